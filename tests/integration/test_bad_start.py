"""A broker or a command that is started wrongly: one line that names cause and cure, and the right exit code."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from integration.cluster import Cluster, active_brokers, clean_environment, until, write_properties
from integration.load import send

from barnabas.net.base.local.ports import free_ports
from barnabas.net.base.settings.endpoints import read_endpoints
from barnabas.net.client.admin.admin import Admin

START_TIMEOUT_S = 60
Maker = Callable[..., Cluster]


def barnabas(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "barnabas", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        env=clean_environment(),
        check=False,
    )


def fails_to_start(config: Path, *words: str) -> str:
    """Start a broker that cannot start; returns the one line of its complaint."""
    done = barnabas("broker", "start", "--config", config, *words)
    assert done.returncode == 1, done.stderr
    complaints = [line for line in done.stderr.splitlines() if line.startswith("barnabas: ")]
    assert len(complaints) == 1, done.stderr
    assert "Traceback" not in done.stderr and "CRITICAL" not in done.stderr, done.stderr
    return complaints[0]


def config_with(folder: Path, **changes: str) -> Path:
    """A configuration on free ports, with changes."""
    folder.mkdir(exist_ok=True)
    values = {"node.id": "0", "listeners": "127.0.0.1:0", "admin.listener": "none", "log.dirs": str(folder / "data")}
    values["controller.quorum.voters"] = f"0@127.0.0.1:{free_ports(1)[0]}"
    write_properties(folder / "test.properties", {**values, **{k.replace("_", "."): v for k, v in changes.items()}})
    return folder / "test.properties"


# --- flags and configuration ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["topic", "create", "x", "--partitons", "3"], "--partitons"),
        (["topic", "create", "x", "-p", "many"], "-p"),
        (["topics", "list"], "topics"),
        (["topic", "consume", "x", "-o", "yesterday"], "start, end, an offset N, -N (the last N), or a time"),
        (["cluster", "health", "--bootstrap", "host:port"], "HOST:PORT"),
        (["broker", "start", "--override", "no-equals"], "KEY=VALUE"),
    ],
)
def test_wrong_flags_are_a_fault_of_usage(words: list[str], told: str) -> None:
    done = barnabas(*words)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr and "Traceback" not in done.stderr
    assert not done.stdout


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    told = fails_to_start(config_with(tmp_path, log_retention_minuts="5"))
    assert "log.retention.minuts" in told and "log.retention.minutes" in told


def test_a_link_in_a_data_folder_is_refused(tmp_path: Path) -> None:
    config = config_with(tmp_path / "0")
    link = tmp_path / "0" / "data" / "orders-0"
    link.parent.mkdir()
    link.symlink_to(tmp_path)
    assert f"{link} is a symbolic link: remove it" in fails_to_start(config)


def test_a_data_folder_that_everyone_may_write_is_told(tmp_path: Path) -> None:
    config, data = config_with(tmp_path), tmp_path / "data"
    data.mkdir()
    data.chmod(0o777)
    (data / "meta.properties").write_text("version=1\nnode.id=7\ndirectory.id=d\n")
    done = barnabas("broker", "start", "--config", config)
    assert done.returncode == 1, "it has the folder of another node"
    (told,) = [line for line in done.stderr.splitlines() if " WARNING " in line]
    assert f"every user of this machine may change the files in {data}: chmod o-w {data}" in told


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("num.partitions", "three", "an integer between 1 and 2147483647"),
        ("num.partitions", "0", "1"),
        ("compression.type", "rar", "zstd"),
        ("auto.create.topics.enable", "maybe", "true"),
        ("controller.quorum.voters", "localhost", "id@host:port"),
    ],
)
def test_a_wrong_value_names_key_value_and_what_is_allowed(tmp_path: Path, key: str, value: str, allowed: str) -> None:
    told = fails_to_start(config_with(tmp_path), "--override", f"{key}={value}")
    assert f"{key} must be " in told and f", not {value!r}" in told and allowed in told


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "nowhere") in fails_to_start(tmp_path / "nowhere")


# --- ports ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["client", "quorum", "admin"])
def test_a_port_in_use_is_named_with_its_key(tmp_path: Path, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        changes, key = {
            "client": ({"listeners": f"127.0.0.1:{port}"}, "listeners"),
            "quorum": ({"controller.quorum.voters": f"0@127.0.0.1:{port}"}, "controller.quorum.voters"),
            "admin": ({"admin.listener": f"127.0.0.1:{port}"}, "admin.listener"),
        }[which]
        told = fails_to_start(config_with(tmp_path, **changes))
    assert str(port) in told and key in told and "in use" in told


# --- data folders -----------------------------------------------------------------------------------------------------


async def test_a_folder_of_a_running_broker_is_locked(new_cluster: Maker, tmp_path: Path) -> None:
    cluster = await new_cluster(1).ready()
    data = str(cluster.nodes[0].data)
    told = await asyncio.to_thread(fails_to_start, config_with(tmp_path / "second", log_dirs=data))
    assert data in told and "locked" in told and "log.dirs" in told
    # A moment's peace is no proof; that it still takes a record is.
    assert await send(cluster.bootstrap, "orders", [b"still here"]) == [0]


async def test_a_folder_of_another_node_is_refused(new_cluster: Maker, tmp_path: Path) -> None:
    cluster = await new_cluster(1).ready()
    cluster.kill(0)
    data = str(cluster.nodes[0].data)
    told = await asyncio.to_thread(
        fails_to_start,
        config_with(
            tmp_path / "second", log_dirs=data, node_id="1", controller_quorum_voters=f"1@127.0.0.1:{free_ports(1)[0]}"
        ),
    )
    assert data in told and "belongs to node 0" in told and "node.id" in told
    cluster.start(0)
    await cluster.ready()


async def test_a_folder_of_another_cluster_is_refused(new_cluster: Maker) -> None:
    """Both ways: an observer with a foreign folder, and a voter whose peers are of another cluster."""
    ours, theirs = new_cluster(2, name="ours", voters=1), new_cluster(2, name="theirs", voters=1)
    await ours.ready()
    await theirs.ready()
    assert await send(theirs.bootstrap, "orders", [b"theirs"]) == [0]
    stray = ours.nodes[1]
    ours.kill(1)
    theirs.kill(1)
    stray_log = stray.log_size()
    config = stray.config.read_text(encoding="utf-8")
    stray.config.write_text(config.replace(str(stray.data), str(theirs.nodes[1].data)), encoding="utf-8")
    stray.launch()
    code = await asyncio.to_thread(stray.process.wait, START_TIMEOUT_S)
    lines = stray.log_since(stray_log)
    assert code != 0
    told = [line for line in lines if "CRITICAL" in line and "belongs to cluster" in line]
    assert len(told) == 1, "\n".join(lines)
    theirs.start(1)
    await theirs.ready()
    assert await send(theirs.bootstrap, "orders", [b"more"]) == [1]


async def test_a_voter_with_a_folder_of_another_cluster_takes_no_part(new_cluster: Maker) -> None:
    """It must not vote: its journal has other entries under the same indexes and terms. The voters in the journal count, so it
    says that its server.properties names others, and goes back to the cluster that its folder is of."""
    ours, theirs = new_cluster(3, name="ours"), new_cluster(3, name="theirs")
    await ours.ready()
    await theirs.ready()
    ours.kill(2)
    theirs.kill(2)
    stray = ours.nodes[2]
    stray_log = stray.log_size()
    config = stray.config.read_text(encoding="utf-8")
    stray.config.write_text(config.replace(str(stray.data), str(theirs.nodes[2].data)), encoding="utf-8")
    stray.launch()

    def said() -> list[str]:
        return [line for line in stray.log_since(stray_log) if "win over controller.quorum.voters" in line]

    assert len(await until(said, "broker 2 says whose voters count")) == 1

    async def is_alone() -> bool:
        return await active_brokers(ours) == {0, 1}  # the registration of the killed one lasts for a session

    await until(is_alone, "ours are without broker 2")
    assert await send(ours.bootstrap, "orders", [b"ours"]) == [0]


# --- listeners --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_a_listener_that_promises_protection_is_not_served_in_plain_text(tmp_path: Path, name: str) -> None:
    told = fails_to_start(config_with(tmp_path, listeners=f"{name}://127.0.0.1:0"))
    assert f"the listener of brokers, {name}, has the protocol {name}" in told and f"{name}:{name},BROKERS:SSL" in told


def test_an_encrypted_listener_without_a_certificate_is_not_served(tmp_path: Path) -> None:
    told = fails_to_start(config_with(tmp_path, listeners="SSL://127.0.0.1:0"))
    assert "needs a certificate" in told and "ssl.keystore.location" in told


def test_every_interface_is_not_advertised(tmp_path: Path) -> None:
    told = fails_to_start(config_with(tmp_path, listeners="PLAINTEXT://0.0.0.0:0"))
    assert "advertised.listeners" in told and "cannot connect" in told


async def test_a_listener_without_a_host_is_advertised_by_the_machines_name(new_cluster: Maker) -> None:
    cluster = new_cluster(
        1, **{"listeners": "PLAINTEXT://:0", "admin.listener": "0.0.0.0:0", "allow.plaintext.listeners": "true"}
    )
    port = await until(lambda: listening_port(cluster.nodes[0].data), "the broker listens")
    async with Admin(f"127.0.0.1:{port}") as admin:

        async def registered() -> tuple[tuple[str, int], str] | None:
            brokers = (await admin.describe_cluster()).brokers
            return ((brokers[0].host, brokers[0].port), brokers[0].admin_host) if brokers else None

        assert await until(registered, "the broker is registered") == ((socket.getfqdn(), port), socket.getfqdn())
    assert f"advertised node=0 listener=PLAINTEXT address={socket.getfqdn()}:{port}" in cluster.nodes[0].log()


def listening_port(folder: Path) -> int | None:
    found = read_endpoints(str(folder))
    return int(found.listeners["PLAINTEXT"].rpartition(":")[2]) if found else None
