"""A start that fails: the reason is told, nothing stays behind, and nothing is forgotten. Real sockets and files."""

import asyncio
import gc
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from unit.net.client.virtual_time import run

from barnabas.log.disk.files import RealFiles
from barnabas.log.folders.log_manager import LogManager
from barnabas.log.vocabulary.errors import StorageError
from barnabas.net.base.local.ports import free_ports
from barnabas.net.base.settings.config import BrokerConfig, load
from barnabas.net.base.settings.endpoints import Endpoints, read_endpoints, write_endpoints
from barnabas.net.broker import broker_process
from barnabas.net.cli.verbs.brokers import load_uncollected


def config_in(folder: Path, **ports: int) -> BrokerConfig:
    return load(
        None,
        {
            "node.id": "0",
            "log.dirs": str(folder),
            "listeners": f"127.0.0.1:{ports.get('client', 0)}",
            "admin.listener": f"127.0.0.1:{ports.get('admin', 0)}",
            "controller.quorum.voters": f"0@127.0.0.1:{ports.get('quorum') or free_ports(1)[0]}",
        },
        {},
    )


@pytest.mark.parametrize("which", ["client", "quorum", "admin"])
def test_a_port_in_use_is_told_and_nothing_stays_behind(
    which: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert broker_process.run(config_in(tmp_path, **{which: port})) == 1
    told = capsys.readouterr().err
    assert "cannot listen" in told and str(port) in told and "Stop it, or set other ports" in told
    assert "Traceback" not in told
    LogManager(RealFiles(), [str(tmp_path)], node_id=0).close()  # the lock is free again


def test_a_damaged_journal_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_in(tmp_path)
    metadata = Path(config.metadata_folder())
    metadata.mkdir(parents=True)
    (metadata / "quorum.journal").write_bytes(b"this is no journal" * 100)
    assert broker_process.run(config) == 1
    told = capsys.readouterr().err
    assert "This voter may not take part with it" in told and "Traceback" not in told
    LogManager(RealFiles(), [str(tmp_path)], node_id=0).close()


def test_a_start_beside_a_running_broker_does_not_take_its_addresses_away(tmp_path: Path) -> None:
    files = RealFiles()
    running = LogManager(files, [str(tmp_path)], node_id=0)
    addresses = Endpoints(node_id=0, pid=1, listeners={"PLAINTEXT": "127.0.0.1:1"})
    write_endpoints(str(tmp_path), addresses)
    with pytest.raises(StorageError, match="locked"):
        LogManager(files, [str(tmp_path)], node_id=0)
    assert broker_process.run(config_in(tmp_path)) == 1
    assert read_endpoints(str(tmp_path)) == addresses
    running.close()


def test_addresses_that_cannot_be_written_are_written_later(caplog):
    refusals = [OSError(24, "Too many open files"), OSError(28, "No space left on device")]

    def write() -> None:
        if refusals:
            raise refusals.pop(0)
        written.append(asyncio.get_running_loop().time())

    written: list[float] = []
    run(broker_process.publish_endpoints(write))
    assert len(written) == 1 and written[0] >= 2 * broker_process.ENDPOINTS_RETRY_S
    assert "cause=[Errno 28] No space left on device" in caplog.text


def test_a_broker_loads_its_modules_without_collections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were a seventh of the processor time of a broker's imports."""
    (tmp_path / "loaded_by_test.py").write_text("import gc\ncollects = gc.isenabled()\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert gc.isenabled()
    assert load_uncollected("loaded_by_test").collects is False
    assert gc.isenabled()
    with pytest.raises(ModuleNotFoundError):
        load_uncollected("not_there_for_test")
    assert gc.isenabled()


def test_a_broker_does_not_load_what_it_needs_only_for_some_settings() -> None:
    """Each of these libraries would be a large part of an idle broker's memory."""
    code = "import sys, barnabas.net.broker.broker_process; print(*sorted({%s} & {*sys.modules}))"
    heavy = ("aiohttp", "cryptography", "re2", "lz4", "cramjam", "zstandard", "numpy", "pyarrow", "urllib.request")
    command = [sys.executable, "-P", "-c", code % ", ".join(map(repr, heavy))]
    assert subprocess.check_output(command, text=True).strip() == ""
