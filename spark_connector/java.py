"""`require_java`: PySpark runs on Java, which pip cannot install. Without it PySpark only says that its gateway exited."""

import os
import shutil
from pathlib import Path

from barnabas.log.vocabulary.errors import InvalidConfigError

JAVA_INSTALLATION = (
    "install Java 17 (Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17; "
    "conda: conda install openjdk=17), or set JAVA_HOME to it"
)


class JavaMissingError(InvalidConfigError):
    """PySpark runs on a Java that is not there; the message has the command that installs it."""


def require_java() -> str:
    """Return the path of Java as PySpark will find it. Raises JavaMissingError."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        if not java.exists():
            raise JavaMissingError(f"JAVA_HOME is {home}, where there is no bin/java: {JAVA_INSTALLATION}")
        return str(java)
    found = shutil.which("java")
    if found is None:
        raise JavaMissingError(f"Spark needs Java, and there is none on the PATH: {JAVA_INSTALLATION}")
    return found
