"""`require_java`: PySpark needs Java, which pip cannot install. Without it PySpark only reports that its gateway exited."""

import os
import shutil
from pathlib import Path

from barnabas.log.vocabulary.errors import InvalidConfigError

JAVA_INSTALLATION = (
    "install Java 17 (Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17; "
    "conda: conda install openjdk=17), or set JAVA_HOME to it"
)


class JavaMissingError(InvalidConfigError):
    """Java is missing, which PySpark needs; the message has the command that installs it."""


def require_java() -> str:
    """Return the path of Java as PySpark will find it. Raises JavaMissingError."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        if not java.exists():
            raise JavaMissingError(f"JAVA_HOME is {home}, which has no bin/java: {JAVA_INSTALLATION}")
        return str(java)
    found = shutil.which("java")
    if found is None:
        raise JavaMissingError(f"Spark needs Java, but the PATH has no java: {JAVA_INSTALLATION}")
    return found
