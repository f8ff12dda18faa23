"""Ports of brokers that several processes draw at the same time."""

import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.net.base.local import ports
from barnabas.net.base.local.local_cluster import ClusterError, free_node_ports
from barnabas.net.base.local.ports import AREA_PORTS, NoFreePorts, PortAreas, free_ports, usual_ports

ALL = range(61_008, 61_072)  # above those of outgoing connections, and above those that free_ports draws
AREA = 16


@pytest.fixture
def areas() -> Iterator[list[PortAreas]]:
    """As four processes that look at the same time."""
    made = [PortAreas(ALL, random.Random(seed), AREA) for seed in range(4)]
    yield made
    for one in made:
        one.close()


def test_those_who_look_at_the_same_time_find_different_ports(areas: list[PortAreas]) -> None:
    drawn = [one.free(AREA - 1) for one in areas]
    assert len({port for ports in drawn for port in ports}) == 4 * (AREA - 1)


def test_a_port_comes_again_only_after_all_others(areas: list[PortAreas]) -> None:
    first = [areas[0].free(5) for _ in range(3)]
    assert len({port for ports in first for port in ports}) == AREA - 1
    assert areas[0].free(5) == first[0]


def test_a_port_in_use_is_left_out(areas: list[PortAreas]) -> None:
    first = areas[0].free(AREA - 1)
    with socket.create_server(("127.0.0.1", first[0])):
        assert areas[0].free(AREA - 2) == first[1:]


def test_an_area_that_was_left_is_free_for_others(areas: list[PortAreas]) -> None:
    for one in areas:
        one.free(1)
    fifth = PortAreas(ALL, random.Random(5), AREA)
    areas[2].close()
    ports = fifth.free(AREA - 1)
    fifth.close()
    assert len({port // AREA for port in ports}) == 1


def test_without_an_area_there_are_still_ports(areas: list[PortAreas]) -> None:
    for one in areas:
        one.free(1)
    fifth = PortAreas(ALL, random.Random(5), AREA)
    assert len(set(fifth.free(10))) == 10
    with pytest.raises(NoFreePorts, match="no 61 ports of 61008 to 61071 are free"):  # four are the guards of areas
        fifth.free(len(ALL) - 3)


def test_looking_for_ports_takes_none_from_a_server_that_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is started again finds its port free, also while another process looks whether it is."""
    served: list[int] = []

    class Looking(socket.socket):
        def bind(self, address: Any) -> None:
            super().bind(address)
            if self.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR):  # else it guards an area
                socket.create_server(address).close()
                served.append(address[1])

    monkeypatch.setattr(ports, "socket", SimpleNamespace(**{**vars(socket), "socket": Looking}))
    drawing = PortAreas(ALL, random.Random(0), AREA)
    assert drawing.free(3) == served and len(served) == 3
    drawing.close()


def test_more_ports_than_there_are_take_no_area(areas: list[PortAreas]) -> None:
    greedy = PortAreas(ALL, random.Random(5), AREA)
    with pytest.raises(NoFreePorts, match="no 65 ports"):
        greedy.free(len(ALL) + 1)
    drawn = [one.free(AREA - 1) for one in areas]  # four areas are all that there are
    assert len({port // AREA for ports in drawn for port in ports}) == 4


# The lock is held as another thread would hold it that draws at this moment.
FORKED_MEANWHILE = """
import os, signal
from barnabas.net.base.local import ports
ports.free_ports(1)
ports._HELD[0]._lock.acquire()
if not (child := os.fork()):
    signal.alarm(5)
    ports.free_ports(1)
    os._exit(0)
status = os.waitpid(child, 0)[1]
ports._HELD[0]._lock.release()
print(status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_process_that_is_forked_while_a_thread_draws_can_draw() -> None:
    command = [sys.executable, "-P", "-c", FORKED_MEANWHILE]
    assert subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.split() == [b"0"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_draws_other_ports(areas: list[PortAreas]) -> None:
    before = areas[0].free(3)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, " ".join(map(str, areas[0].free(3))).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as told:
        theirs = {int(port) // AREA for port in told.read().split()}
    assert len(theirs) == 1 and before[0] // AREA not in theirs
    assert {port // AREA for port in areas[0].free(3)} == {before[0] // AREA}  # the parent kept its own


def test_processes_draw_different_ports() -> None:
    code = (
        "from barnabas.net.base.local.ports import free_ports\n"
        "import sys\nprint(*free_ports(200), flush=True)\nsys.stdin.read()"
    )
    started = [
        subprocess.Popen([sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    drawn = [process.stdout.readline().split() for process in started if process.stdout is not None]
    for process in started:
        process.communicate()
    assert len({port for ports in drawn for port in ports}) == 600


def test_ports_of_machines_whose_outgoing_connections_use_all_of_them() -> None:
    assert usual_ports(32_768) == range(10_240, 32_768)
    assert usual_ports(1024) == usual_ports(10_240) == range(10_240, 32_768)  # of net.ipv4.ip_local_port_range
    assert usual_ports(10_240 + AREA_PORTS) == range(10_240, 10_752)


def test_the_error_of_a_cluster_names_the_cure() -> None:
    with pytest.raises(ClusterError, match="no 40000 ports of .* are free; choose ports with --port PORT"):
        free_node_ports(10_000)
    assert len(set(free_ports(8))) == 8
