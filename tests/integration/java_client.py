"""Kafka's own client and tools, in Java: fetched by mvn into a temporary folder; the client is run from one source file."""

import hashlib
import shutil
import subprocess
from pathlib import Path

from integration import programs
from integration.cluster import clean_environment

SOURCES = Path(__file__).with_name("clients")
FETCH_LIMIT_S = 150.0
SPARKS_KAFKA = "4.2.0"  # the newest that there is; it runs in Spark 4.3, too
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"


def find() -> str:
    """The reason why there is no Java client here, or nothing."""
    return programs.missing("java", "mvn")


def fetch(folder: Path, version: str, libraries: str = "pom.xml", of: str = "kafka") -> Path | None:
    """Return the folder of the libraries that a pom names, or None where Maven Central is out of reach. `of`: whose version."""
    target = folder / version
    pom = SOURCES / libraries
    with programs.cache("maven") as repository:
        kept = repository / "fetched" / f"{pom.stem}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:16]}-{of}-{version}"
        if not kept.is_dir() and not _copied(repository, pom, f"-D{of}.version={version}", kept):
            return None
        shutil.copytree(kept, target)
    return target


def _copied(repository: Path, pom: Path, version: str, kept: Path) -> bool:
    """Let mvn copy libraries, which takes six seconds of a processor also where it downloads nothing: once for many tests."""
    part = kept.with_name(f"{kept.name}.part")  # of a run that was killed, too: `kept` is always complete
    shutil.rmtree(part, ignore_errors=True)
    made = subprocess.run(
        [
            "mvn", "-q", "-B", "-f", str(pom), f"-Dmaven.repo.local={repository}", version,
            "dependency:copy-dependencies", f"-DoutputDirectory={part}",
        ],
        env={**clean_environment(), "MAVEN_OPTS": " ".join(programs.QUICK_JAVA)}, capture_output=True,
        timeout=FETCH_LIMIT_S, check=False,
    )  # fmt: skip
    if made.returncode == 0:
        part.rename(kept)
    return made.returncode == 0


def compiled(folder: Path, libraries: Path, name: str) -> str:
    """The class path of a source of ours, for a program that is started more often than once."""
    target = folder / "classes"
    subprocess.run(
        ["javac", "-cp", f"{libraries}/*", "-d", str(target), str(SOURCES / f"{name}.java")],
        check=True,
        timeout=FETCH_LIMIT_S,
    )
    return f"{target}:{libraries}/*"


def round_trip(
    libraries: Path, bootstrap: str, topic: str, *, count: int, pause_ms: int, codecs: str, protocols: str
) -> list[str]:
    """The command line of RoundTrip.java."""
    return [
        "java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", *programs.QUICK_JAVA, "-cp", f"{libraries}/*",
        str(SOURCES / "RoundTrip.java"), bootstrap, topic, str(count), str(pause_ms), codecs, protocols,
    ]  # fmt: skip


def refusals(libraries: Path, bootstrap: str) -> list[str]:
    """The command line of Refusals.java."""
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    return [
        "java",
        quiet,
        *programs.QUICK_JAVA,
        "-cp",
        f"{libraries}/*",
        str(SOURCES / "Refusals.java"),
        bootstrap,
    ]


def transactions(libraries: Path, bootstrap: str, topic: str, *, count: int) -> list[str]:
    """The command line of Transactions.java."""
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    source = str(SOURCES / "Transactions.java")
    return ["java", quiet, *programs.QUICK_JAVA, "-cp", f"{libraries}/*", source, bootstrap, topic, str(count)]


def logins(libraries: Path, topic: str, *files: str, allowed_urls: str) -> list[str]:
    """The command line of Logins.java. `allowed_urls`: Java reads tokens from nowhere else."""
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={allowed_urls}"
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    return [
        "java", quiet, allowed, *programs.QUICK_JAVA, "-cp", f"{libraries}/*", str(SOURCES / "Logins.java"), topic, *files,
    ]  # fmt: skip


def access_admin(libraries: Path, settings: Path, topic: str) -> list[str]:
    """The command line of AccessAdmin.java."""
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    source = str(SOURCES / "AccessAdmin.java")
    return ["java", quiet, *programs.QUICK_JAVA, "-cp", f"{libraries}/*", source, str(settings), topic]


def tool(libraries: Path, main_class: str, *arguments: str) -> list[str]:
    """The command line of one of Kafka's tools, such as kafka.admin.ConfigCommand."""
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    return ["java", quiet, *programs.QUICK_JAVA, "-cp", f"{libraries}/*", main_class, *arguments]
