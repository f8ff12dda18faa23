"""kafka-python's integration suite: out of its sdist on PyPI, with what the sdist leaves out, pointed at a running broker.

Of the suite's environment only what names a broker is set; its version is the newest that the suite knows, which needs no
ZooKeeper. Tests that start brokers of their own (TLS, SASL) cannot pass: there is no Kafka to start.
"""

import os
import shutil
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Sequence
from pathlib import Path

from integration.cluster import Cluster, clean_environment

SDIST = (
    "https://files.pythonhosted.org/packages/bb/a9/"
    "e8b96f7f71aacd94faf1db0feb9750bf557b17bd22b0595023c88c1f0eb2/kafka_python-3.0.12.tar.gz"
)
KAFKA_VERSION = "4.2.0"
TEST_LIMIT_S = 60
NEEDED = ("pytest", "pytest-mock", "pytest-timeout", "py", "crc32c", "lz4", "zstandard", "python-snappy")
# test/service.py starts brokers and is not in the sdist; a broker that runs already needs this of it.
SERVICE = """
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    close = start = stop = dump_logs = open

    def wait_for(self, pattern, timeout=30):
        return True


class SpawnedService:
    def __init__(self, *args, **kwargs):
        raise RuntimeError("there is no Kafka here to be started")
"""


def run(folder: Path, cluster: Cluster, arguments: Sequence[str]) -> int:
    """Return pytest's exit code."""
    suite = unpacked(folder)
    python = folder / "venv" / "bin" / "python"
    venv.create(folder / "venv", with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "-q", *NEEDED], check=True)
    kafka_root = folder / "no-kafka"
    kafka_root.mkdir()
    environment = {
        **clean_environment(),
        "PYTHONPATH": str(suite),
        "KAFKA_ROOT": str(kafka_root),
        "KAFKA_URI": f"kafka://{cluster.nodes[0].address}",
        "KAFKA_VERSION": KAFKA_VERSION,
    }
    chosen = list(arguments) or ["test/integration"]
    options = ["-o", "addopts=", "-p", "no:logging", "-q", "-rfEs", "--tb=short", f"--timeout={TEST_LIMIT_S}"]
    return subprocess.run(
        [python, "-m", "pytest", *options, *chosen], cwd=suite, env=environment, check=False
    ).returncode


def unpacked(folder: Path) -> Path:
    folder.mkdir(parents=True)
    archive = folder / os.path.basename(SDIST)
    with urllib.request.urlopen(SDIST, timeout=TEST_LIMIT_S) as response:
        archive.write_bytes(response.read())
    shutil.unpack_archive(archive, folder)
    suite = folder / archive.name.removesuffix(".tar.gz")
    (suite / "test" / "__init__.py").touch()  # Else the interpreter's own package of that name is found.
    (suite / "test" / "service.py").write_text(SERVICE, encoding="utf-8")
    print(f"{suite.name} under Python {sys.version.split()[0]}, as Kafka {KAFKA_VERSION}", file=sys.stderr)
    return suite
