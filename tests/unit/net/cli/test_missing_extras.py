"""What an installation without extras can do, and what it says about the rest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = "import sys; sys.modules['cryptography'] = None; "  # each import of it fails
COMMAND = WITHOUT + "from barnabas.net.cli.main import main; sys.exit(main(sys.argv[1:]))"
CLUSTER = WITHOUT + "from barnabas.testing import Cluster; Cluster(brokers=1, tls=True).start()"


def without_cryptography(code: str, folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, "XDG_CONFIG_HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


def test_profiles_need_no_extra(tmp_path: Path) -> None:
    code, told = without_cryptography(COMMAND, tmp_path, "profile", "add", "here", "--bootstrap", "localhost:9092")
    assert (code, told) == (0, "")
    assert (tmp_path / "barnabas" / "profiles.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "command", ["security ca x", "security broker x 0 localhost", "security client x alice", "security show x"]
)
def test_certificates_name_their_extra(tmp_path: Path, command: str) -> None:
    assert without_cryptography(COMMAND, tmp_path, *command.split()) == (
        1,
        "barnabas: barnabas security needs cryptography, which is not installed: pip install 'barnabas[security]'\n",
    )


def test_a_secure_cluster_names_its_extra(tmp_path: Path) -> None:
    code, told = without_cryptography(COMMAND, tmp_path, "up", "-n", "1", "--secure", "--port", "0")
    assert code == 1 and "a secure cluster needs cryptography" in told


def test_a_secure_cluster_in_a_test_names_its_extra(tmp_path: Path) -> None:
    code, told = without_cryptography(CLUSTER, tmp_path)
    assert code == 1 and told.endswith(
        "MissingExtraError: a cluster with users or TLS needs cryptography, which is not installed: pip install"
        " 'barnabas[security]'\n"
    )
