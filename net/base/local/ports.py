"""Free ports for brokers, drawn so that two processes that look at the same time do not find the same ones.

A port that is free now is only bound later, when its broker starts, and again after the broker was down. To see that it is free
is thus not enough: another process that looks in between finds it free as well, and one of the two brokers ends with "address
already in use". A process therefore holds a whole area of ports for as long as it lives, and draws only from that; it hands out
all ports of the area before any comes again.
"""

import atexit
import os
import random
import socket
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Final

AREA_PORTS: Final = 512
MAX_AREAS: Final = 8  # that one process holds: a thousand brokers; after that it draws from all ports
_LOOPBACK: Final = "127.0.0.1"
_FIRST_FREE_PORT: Final = 10_240  # above those of well-known services
_USUAL_EPHEMERAL_PORT: Final = 32_768  # the default of Linux, if /proc cannot be read


class NoFreePorts(OSError):
    """All ports that could be used are taken."""


class PortAreas:
    """The areas of ports that this process holds. Safe for threads and after a fork."""

    def __init__(self, ports: range, rng: random.Random, area_ports: int = AREA_PORTS) -> None:
        self._ports, self._rng, self._size = ports, rng, area_ports
        self._lock = Lock()
        self._pid = os.getpid()
        self._guards: list[socket.socket] = []
        self._next: deque[int] = deque()  # the ports of the areas held; the first is the one drawn longest ago

    def free(self, count: int) -> list[int]:
        """`count` free ports, all different. Raises NoFreePorts."""
        with self._lock:
            self._forget_those_of_the_parent()
            found: dict[int, None] = {}  # in the order of the draw
            if count <= len(self._ports):  # else no port is tried, and no area taken
                for port in self._candidates():
                    if port not in found and _is_free(port):
                        found[port] = None
                        if len(found) == count:
                            return list(found)
            raise NoFreePorts(f"no {count} ports of {self._ports.start} to {self._ports.stop - 1} are free")

    def forked(self) -> None:
        """For the child, at the fork: another thread of the parent may have held the lock, and is not there to release it."""
        self._lock = Lock()

    def close(self) -> None:
        """Leave the areas to other processes."""
        with self._lock:
            self._forget_those_of_the_parent()
            self._drop()

    def _forget_those_of_the_parent(self) -> None:
        if self._pid != os.getpid():  # the guards of a forked process are still held by its parent
            self._pid = os.getpid()
            self._drop()

    def _drop(self) -> None:
        for guard in self._guards:
            guard.close()
        self._guards.clear()
        self._next.clear()

    def _candidates(self) -> Iterator[int]:
        for _ in range(len(self._next)):
            yield self._draw()
        while len(self._guards) < MAX_AREAS and (area := self._take_area()) is not None:
            self._next.extendleft(reversed(area))
            for _ in area:
                yield self._draw()
        everywhere = list(self._ports)  # many processes hold all areas: better a port that another may take than none
        self._rng.shuffle(everywhere)
        yield from everywhere

    def _draw(self) -> int:
        self._next.rotate(-1)
        return self._next[-1]

    def _take_area(self) -> range | None:
        starts = list(self._ports[:: self._size])
        self._rng.shuffle(starts)
        for start in starts:
            guard = socket.socket()
            try:
                guard.bind(
                    (_LOOPBACK, start)
                )  # without SO_REUSEADDR: nobody else can bind it, and nobody can connect to it
            except OSError:
                guard.close()
                continue
            self._guards.append(guard)
            return range(start + 1, min(start + self._size, self._ports.stop))
        return None


def _is_free(port: int) -> bool:
    """Whether a server could listen there now. Looking does not listen: a server that starts at this moment, on a port that was
    given to it before, gets it."""
    with socket.socket() as looking:
        if os.name == "posix":  # as servers do; without it, closed connections would count as well
            looking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            looking.bind((_LOOPBACK, port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Free ports below the range that the kernel uses for outgoing connections: such a connection could take a broker's port
    while the broker is down. All are different, and no other process that asks this function gets them while this one lives.
    Raises NoFreePorts."""
    return _areas().free(count)


_HELD: Final[list[PortAreas]] = []


def _areas() -> PortAreas:
    if not _HELD:
        _HELD.append(PortAreas(usual_ports(_first_ephemeral_port()), random.Random()))
        atexit.register(_HELD[0].close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_HELD[0].forked)
    return _HELD[0]


def usual_ports(first_ephemeral: int) -> range:
    """The ports to draw from. On machines whose outgoing connections use nearly all ports, these are all others have too."""
    below = range(_FIRST_FREE_PORT, first_ephemeral)
    return below if len(below) >= AREA_PORTS else range(_FIRST_FREE_PORT, _USUAL_EPHEMERAL_PORT)


def _first_ephemeral_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL_EPHEMERAL_PORT
