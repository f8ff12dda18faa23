"""Kafka's own client, in Java: fetched by mvn into a temporary folder, run from one source file."""

import shutil
import subprocess
from pathlib import Path

from integration.cluster import clean_environment

SOURCES = Path(__file__).with_name("clients")
FETCH_LIMIT_S = 150.0


def find() -> str:
    """The reason why there is no Java client here, or nothing."""
    missing = [program for program in ("java", "mvn") if shutil.which(program) is None]
    return f"no {' and no '.join(missing)} here" if missing else ""


def fetch(folder: Path, version: str) -> Path | None:
    """Return the folder of the libraries, or None where Maven Central is out of reach."""
    target = folder / version
    made = subprocess.run(
        [
            "mvn", "-q", "-B", "-f", str(SOURCES / "pom.xml"), f"-Dmaven.repo.local={folder / 'repository'}",
            f"-Dkafka.version={version}", "dependency:copy-dependencies", f"-DoutputDirectory={target}",
        ],
        env=clean_environment(), capture_output=True, timeout=FETCH_LIMIT_S, check=False,
    )  # fmt: skip
    return target if made.returncode == 0 else None


def round_trip(
    libraries: Path, bootstrap: str, topic: str, *, count: int, pause_ms: int, codecs: str, protocols: str
) -> list[str]:
    """The command line of RoundTrip.java."""
    return [
        "java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-XX:TieredStopAtLevel=1", "-cp", f"{libraries}/*",
        str(SOURCES / "RoundTrip.java"), bootstrap, topic, str(count), str(pause_ms), codecs, protocols,
    ]  # fmt: skip
