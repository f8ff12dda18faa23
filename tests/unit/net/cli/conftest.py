"""A cluster in memory, and commands that are run on it."""

from typing import Any

import pytest
from unit.net.cli.fake_cluster import FakeCluster

from barnabas.net.cli.main import main


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    made.add("t", b"a", b"b", b"c")
    made.add("t", b"d", partition=1)
    return made


@pytest.fixture
def run(
    cluster: FakeCluster,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    """Run a command; returns exit code, stdout and stderr. The profiles of who runs the tests are not used."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))

    def run_command(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments, connector=cluster)
        out, err = capsysbinary.readouterr()
        return code, out.decode(), err.decode()

    return run_command
