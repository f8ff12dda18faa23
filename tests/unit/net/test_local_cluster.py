"""Starting, watching and stopping broker processes; the brokers here are tiny scripts that write their endpoints."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.net.base.local import local_cluster
from barnabas.net.base.local.local_cluster import Broker, ClusterError, Plan
from barnabas.net.base.settings.config import load
from barnabas.net.base.settings.endpoints import Endpoints, read_endpoints, remove_endpoints, write_endpoints
from barnabas.net.cli.frame.exit_codes import CommandError, ExitCode
from barnabas.net.cli.verbs.local import Watch

WAIT_S: Final = 20
# Stops on SIGTERM like a broker. The pipe on its stdin is never written: reading it waits without using the processor.
WAITS: Final = "import os, signal; print('started', flush=True); signal.sigwait({signal.SIGTERM}); raise SystemExit(0)"
BLOCKS_FIRST: Final = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM});"
DIES: Final = "raise SystemExit('the port is taken')"


def script(text: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", BLOCKS_FIRST + text)


def a_plan(folder: Path, text: str = WAITS, **rest: Any) -> Plan:
    named: dict[str, Any] = {"broker_count": 2, "base_port": 0, **rest}
    return Plan(folder=folder, launcher=script(text), **named)


@pytest.fixture
def started() -> Iterator[list[Broker]]:
    """Brokers that the test started; whatever happens, none survives it."""
    brokers: list[Broker] = []
    yield brokers
    local_cluster.stop(brokers, timeout_s=0)


def wait_for_end(pid: int) -> None:
    """Returns when the process, which need not be our child, has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], WAIT_S)[0], f"process {pid} still runs"
    finally:
        os.close(descriptor)


def test_each_broker_gets_a_folder_a_configuration_and_ports_of_its_own(tmp_path: Path, started: list[Broker]) -> None:
    started += local_cluster.start(a_plan(tmp_path, broker_count=4, overrides={"num.partitions": "7"}))
    configs = [load(str(broker.folder / "server.properties"), {}, {}) for broker in started]
    assert [config.node_id for config in configs] == [0, 1, 2, 3]
    assert [len(config.voters()) for config in configs] == [3] * 4
    assert configs[0].default_replication_factor == 3
    assert configs[3].num_partitions == 7
    addresses = [str(address) for config in configs for address in (*config.client_listeners(), config.admin_address())]
    assert len(set(addresses)) == 8
    assert configs[1].data_folders() == (str(tmp_path / "1" / "data"),)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*/data")} == {0o700}, "records are for their owner"
    local_cluster.stop(started)
    # Told to stop so early, a process may not yet have come to the line that handles it.
    assert {broker.process.returncode for broker in started} <= {0, -signal.SIGTERM}
    assert list(tmp_path.glob("*/broker.pid")) == []


def test_the_environment_of_one_broker_is_not_that_of_all(
    tmp_path: Path, started: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """BARNABAS_LOG_DIRS in the user's shell would put all brokers into one folder."""
    monkeypatch.setenv("BARNABAS_LOG_DIRS", "/shared")
    started += local_cluster.start(
        a_plan(tmp_path, "import os; print([k for k in os.environ if k[:9] == 'BARNABAS_'])", broker_count=1)
    )
    started[0].process.wait(WAIT_S)
    assert local_cluster.last_lines(started[0]) == ["[]"]


def test_a_folder_runs_one_cluster_at_a_time_and_down_stops_it(tmp_path: Path, started: list[Broker]) -> None:
    started += local_cluster.start(a_plan(tmp_path))
    with pytest.raises(ClusterError, match=r"runs from .* already"):
        local_cluster.start(a_plan(tmp_path))
    pids = [broker.process.pid for broker in started]
    assert local_cluster.stop_folder(tmp_path, timeout_s=WAIT_S) == pids
    assert local_cluster.stop_folder(tmp_path) == []


@pytest.mark.parametrize("by_folder", [False, True])
def test_brokers_that_do_not_end_when_the_cluster_stops_are_asked_again(
    tmp_path: Path, started: list[Broker], by_folder: bool
) -> None:
    """The last brokers have no quorum that would answer them."""
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    asked = "signal.sigwait({signal.SIGTERM});"
    text = f"import signal; open({str(ready)!r}, 'w').close(); {asked} {asked} raise SystemExit(0)"
    started += local_cluster.start(a_plan(tmp_path, text, broker_count=1))
    ready.read_bytes()  # Told to stop earlier, a process may not yet have come to the line that handles it.
    if by_folder:
        local_cluster.stop_folder(tmp_path, timeout_s=WAIT_S)
    else:
        local_cluster.stop(started, timeout_s=WAIT_S)
    assert [broker.process.wait(WAIT_S) for broker in started] == [0]


def by_hand(folder: Path, node_id: int) -> "subprocess.Popen[bytes]":
    """As `broker start --config` does around its broker."""
    config = str(folder / str(node_id) / "server.properties")
    text = (
        "import os, signal; from barnabas.net.base.local import local_cluster as c\n"
        f"with c.own_pid_file({config!r}, {node_id}):\n"
        "    print(flush=True); signal.sigwait({signal.SIGTERM})"
    )
    # With -S, as in `script`, nothing that is installed would be found.
    process = subprocess.Popen([sys.executable, "-P", "-c", BLOCKS_FIRST + text], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline()
    process.stdout.close()
    return process


@pytest.mark.parametrize("through_watcher", [False, True])
def test_a_broker_started_again_by_hand_stops_with_the_cluster(
    tmp_path: Path, started: list[Broker], through_watcher: bool
) -> None:
    started += local_cluster.start(a_plan(tmp_path))
    started[1].process.kill()
    started[1].process.wait()
    again = by_hand(tmp_path, 1)
    try:
        assert local_cluster.read_pid_file(tmp_path / "1" / "broker.pid") == again.pid
        if through_watcher:
            local_cluster.stop(started, timeout_s=WAIT_S)
        else:
            assert local_cluster.stop_folder(tmp_path, timeout_s=WAIT_S) == [started[0].process.pid, again.pid]
        assert again.wait(WAIT_S) == 0
        assert list(tmp_path.glob("*/broker.pid")) == []
    finally:
        again.kill()
        again.wait()


def test_a_pid_file_is_that_of_the_broker_that_runs(tmp_path: Path) -> None:
    folder = tmp_path / "2"
    folder.mkdir()
    path, config = folder / "broker.pid", str(folder / "server.properties")
    path.write_text("1 2\n")  # stale
    with local_cluster.own_pid_file(config, 2):
        assert local_cluster.read_pid_file(path) == os.getpid()
    assert not path.exists()
    local_cluster.write_pid_file(path, os.getppid())
    with local_cluster.own_pid_file(config, 2):
        assert local_cluster.read_pid_file(path) == os.getppid()
    assert path.exists()
    path.write_text("1 2\n")
    assert local_cluster.stop_folder(tmp_path) == [] and not path.exists()
    for elsewhere, node_id in ((None, 2), (config, 3), (str(folder / "other.properties"), 2)):
        with local_cluster.own_pid_file(elsewhere, node_id):
            assert not path.exists()


def test_a_broker_is_added_beside_those_that_run_and_stops_before_them(tmp_path: Path, started: list[Broker]) -> None:
    with pytest.raises(ClusterError, match="no cluster runs from"):
        local_cluster.add(tmp_path, {})
    started += local_cluster.start(a_plan(tmp_path, overrides={"num.partitions": "7"}))
    added = local_cluster.add(tmp_path, {"broker.rack": "r"}, launcher=script(WAITS))
    first, new = (load(str(tmp_path / name / "server.properties"), {}, {}) for name in ("0", "2"))
    assert (added.node_id, new.node_id, new.num_partitions, new.broker_rack) == (2, 2, 7, "r")
    assert new.controller_quorum_voters == first.controller_quorum_voters
    assert str(new.client_listeners()[0]).endswith(added.address) and new.admin_listener != first.admin_listener
    assert new.data_folders() == (str(tmp_path / "2" / "data"),)
    assert (tmp_path / "2" / "data").stat().st_mode & 0o777 == 0o700
    local_cluster.stop_added(tmp_path, started)
    wait_for_end(added.process.pid)
    assert added.process.wait(WAIT_S) in (
        0,
        -signal.SIGTERM,
    )  # the latter where it had not come so far as to wait for it
    assert all(broker.process.poll() is None for broker in started)


def test_an_added_broker_can_become_a_voter_on_a_port_of_its_own(tmp_path: Path, started: list[Broker]) -> None:
    """By the rule of ports where all three are free, else any three."""
    started += local_cluster.start(a_plan(tmp_path, broker_count=1))
    base = int(started[0].address.rpartition(":")[2])
    for node_id, taken in ((1, None), (2, base + 21)):
        with socket.create_server(("127.0.0.1", taken or 0)):
            added = local_cluster.add(tmp_path, {}, launcher=script(WAITS))
        started.append(added)
        values = local_cluster._properties(added.folder)
        ports = [int(values[key].rpartition(":")[2]) for key in ("listeners", "quorum.listener", "admin.listener")]
        by_rule = [base + 10 * node_id + step for step in range(3)]
        assert ports == by_rule if taken is None else not set(ports) & set(by_rule)


@pytest.mark.parametrize("data", ["none", "in its folder", "elsewhere"])
def test_a_broker_that_could_not_be_added_leaves_no_folder_but_its_data(
    tmp_path: Path, started: list[Broker], data: str
) -> None:
    started += local_cluster.start(a_plan(tmp_path, broker_count=1))
    elsewhere = tmp_path / "disk"
    added = local_cluster.add(tmp_path, {"log.dirs": str(elsewhere)} if data == "elsewhere" else {}, script(DIES))
    added.process.wait(WAIT_S)
    if data != "none":
        place = elsewhere if data == "elsewhere" else added.folder / "data"
        place.mkdir(exist_ok=True)
        (place / "journal").touch()
    local_cluster.discard(added)
    assert added.folder.exists() == (added.folder / "server.properties").exists() == (data != "none")


def test_a_decommissioned_broker_is_neither_counted_nor_started_nor_its_id_used_again(
    tmp_path: Path, started: list[Broker]
) -> None:
    local_cluster.stop(local_cluster.start(a_plan(tmp_path, broker_count=5)), timeout_s=WAIT_S)
    for node_id in (0, 4):
        with local_cluster.own_pid_file(str(tmp_path / str(node_id) / "server.properties"), node_id) as decommissioned:
            decommissioned()
    with pytest.raises(ClusterError, match="cluster of 3 brokers"):
        local_cluster.start(a_plan(tmp_path))
    started += local_cluster.start(a_plan(tmp_path, broker_count=3))
    started.append(local_cluster.add(tmp_path, {}, launcher=script(WAITS)))
    assert [broker.node_id for broker in started] == [1, 2, 3, 5]
    configs = [load(str(broker.folder / "server.properties"), {}, {}) for broker in started]
    assert [len(config.voters()) for config in configs] == [3] * 4
    with local_cluster.own_pid_file(str(tmp_path / "4" / "server.properties"), 4):
        assert not (tmp_path / "4" / "decommissioned").exists()


def test_a_process_that_got_the_same_id_later_is_left_alone(tmp_path: Path) -> None:
    stranger = subprocess.Popen(script(WAITS), stdout=subprocess.DEVNULL)
    try:
        pid_file = tmp_path / "0" / "broker.pid"
        pid_file.parent.mkdir()
        local_cluster.write_pid_file(pid_file, stranger.pid)
        assert local_cluster.read_pid_file(pid_file) == stranger.pid
        pid_file.write_text(f"{stranger.pid} 12345\n")
        assert local_cluster.read_pid_file(pid_file) is None
        assert local_cluster.stop_folder(tmp_path) == []
        assert stranger.poll() is None
        for text in ("", "x y", "1", f"{stranger.pid} -"):
            pid_file.write_text(text)
            assert local_cluster.read_pid_file(pid_file) is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ({"broker_count": 0}, "-n 0"),
        ({"broker_count": 101}, "-n 101"),
        ({"voter_count": 3}, "--voters 3: give 1 to 2"),
        ({"machine_count": 3}, "--machines 3: give 1 to 2"),
        ({"base_port": 65_530}, "must lie between"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(tmp_path: Path, rest: dict[str, Any], words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        local_cluster.start(a_plan(tmp_path, **rest))
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_keeps_its_size_and_its_voters(tmp_path: Path) -> None:
    local_cluster.stop(local_cluster.start(a_plan(tmp_path)), timeout_s=WAIT_S)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"broker_count": 1}, "cluster of 2 brokers"),
        ({"voter_count": 1}, "with 2 voters"),
    ]
    for rest, words in refused:
        with pytest.raises(ClusterError, match=words):
            local_cluster.start(a_plan(tmp_path, **rest))
    grown = local_cluster.start(a_plan(tmp_path, broker_count=3))
    local_cluster.stop(grown, timeout_s=WAIT_S)
    assert len(load(str(tmp_path / "2" / "server.properties"), {}, {}).voters()) == 2


def test_a_folder_that_has_a_cluster_leaves_its_settings_to_it(tmp_path: Path, started: list[Broker]) -> None:
    def lines() -> list[bool]:
        files = sorted(tmp_path.glob("*/server.properties"))
        return ["default.replication.factor" in file.read_text() for file in files]

    local_cluster.stop(local_cluster.start(a_plan(tmp_path, broker_count=1)), timeout_s=WAIT_S)
    assert lines() == [True]
    started += local_cluster.start(a_plan(tmp_path, broker_count=3))
    assert lines() == [False] * 3


def test_brokers_share_machines_and_keep_them(tmp_path: Path, started: list[Broker]) -> None:
    def machines() -> list[str | None]:
        files = sorted(tmp_path.glob("*/server.properties"))
        return [load(str(file), {}, {}).broker_machine for file in files]

    first = local_cluster.start(a_plan(tmp_path, broker_count=3, machine_count=2))
    local_cluster.stop(first, timeout_s=WAIT_S)
    assert machines() == ["machine-0", "machine-1", "machine-0"]
    assert load(str(tmp_path / "0" / "server.properties"), {}, {}).default_replication_factor == 2
    with pytest.raises(ClusterError, match="has broker 2 on machine-0; leave --machines out"):
        local_cluster.start(a_plan(tmp_path, broker_count=3, machine_count=3))
    started += local_cluster.start(a_plan(tmp_path, broker_count=3))
    started.append(local_cluster.add(tmp_path, {}, launcher=script(WAITS)))
    assert machines() == ["machine-0", "machine-1", "machine-0", "machine-1"]


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        if port > 65_000:
            pytest.skip("the system gave a port too high for a base")
        with pytest.raises(ClusterError, match=f"port {port} cannot be used"):
            local_cluster.start(a_plan(tmp_path, base_port=port, broker_count=1))


async def always(brokers: Sequence[Broker]) -> bool:
    return True


async def never(brokers: Sequence[Broker]) -> bool:
    return False


async def test_the_ready_line(tmp_path: Path, started: list[Broker], capsys: pytest.CaptureFixture[str]) -> None:
    started += local_cluster.start(a_plan(tmp_path))
    assert await Watch(started, always, started_s=0, timeout_s=WAIT_S).until_ready() == ExitCode.OK
    assert capsys.readouterr().out.startswith(f"ready {started[0].address},{started[1].address} in ")


async def test_a_broker_that_dies_at_the_start_is_shown_with_its_log(
    tmp_path: Path, started: list[Broker], capsys: pytest.CaptureFixture[str]
) -> None:
    started += local_cluster.start(a_plan(tmp_path, DIES, broker_count=1))
    with pytest.raises(CommandError, match="did not start"):
        await Watch(started, never, started_s=0, timeout_s=WAIT_S).until_ready()
    told = capsys.readouterr().err
    assert "broker 0 ended with exit code 1" in told
    assert "the port is taken" in told


async def test_a_cluster_that_is_never_ready_is_given_up(tmp_path: Path, started: list[Broker]) -> None:
    started += local_cluster.start(a_plan(tmp_path, broker_count=1))
    with pytest.raises(CommandError) as given_up:
        await Watch(started, never, started_s=0, timeout_s=0.05).until_ready()
    assert given_up.value.exit_code == ExitCode.UNREACHABLE


async def test_watching_reports_a_death_and_ends_with_the_last_broker(
    tmp_path: Path, started: list[Broker], capsys: pytest.CaptureFixture[str]
) -> None:
    started += local_cluster.start(a_plan(tmp_path))

    async def ready_then_killed(brokers: Sequence[Broker]) -> bool:
        for broker in brokers:
            broker.process.kill()
        return True

    with pytest.raises(CommandError, match="no broker of the cluster runs any more"):
        await Watch(started, ready_then_killed, started_s=0, timeout_s=WAIT_S).until_stopped()
    assert capsys.readouterr().err.count("was ended by signal 9") == 2


async def test_a_signal_ends_the_watch(tmp_path: Path, started: list[Broker]) -> None:
    started += local_cluster.start(a_plan(tmp_path))

    async def ready_then_told_to_stop(brokers: Sequence[Broker]) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return True

    assert await Watch(started, ready_then_told_to_stop, started_s=0, timeout_s=WAIT_S).until_stopped() == ExitCode.OK


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_brokers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from barnabas.net.base.local import local_cluster as c;"
        f"b = c.start(c.Plan(folder=Path({str(tmp_path)!r}), broker_count=1, base_port=0, die_with_parent=True,"
        f" launcher={script(WAITS)!r})); print(b[0].process.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-P", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None and parent.stdin is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    parent.stdin.close()
    wait_for_end(child)


def test_endpoints_are_written_read_and_removed(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert read_endpoints(folder) is None
    written = Endpoints(node_id=1, pid=5, listeners={"PLAINTEXT": "127.0.0.1:9092"}, admin="127.0.0.1:9094")
    write_endpoints(folder, written)
    assert read_endpoints(folder) == written
    assert [path.name for path in tmp_path.iterdir()] == ["endpoints.json"]
    for damaged in ("", "{", "[]", '{"node_id": 1}', '{"other": 1}'):
        (tmp_path / "endpoints.json").write_text(damaged)
        assert read_endpoints(folder) is None
    remove_endpoints(folder)
    remove_endpoints(folder)
    assert read_endpoints(folder) is None
