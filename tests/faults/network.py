"""Hosts of a campaign as network namespaces on a bridge of their own, cuts between them in either direction, bad links.

Needs root and iproute2, no firewall: a cut teaches the sender a wrong hardware address for the receiver, so that frames go
out and no host accepts them, as on a broken cable; a cut of single ports is a rule that drops the packets. For a bad link
the host is removed from the bridge, and a program forwards its frames (see `switch`). The process that runs the campaign
uses the bridge, like the clients.
"""

import ctypes
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from . import switch
from .mounts import NAMESPACES, run, use_own_table

NETWORK: Final = "10.77.0"
NOBODY: Final = "02:00:00:00:00:01"  # a hardware address that no interface has
CLIENT_HOST: Final = -1
_BRIDGE_ADDRESS: Final = "02:00:00:00:01:00"  # its own: otherwise it changes with the hosts that are plugged in
_CLONE_NEWNET: Final = 0x40000000


def why_not() -> str:
    """Why namespaces cannot be made here; empty where they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "nsenter") if shutil.which(name) is None]
    if missing:
        return f"network namespaces need {' and '.join(missing)}"
    name = f"bfprobe{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"network namespaces cannot be made: {tried.stderr.strip()}"
    _ip("netns", "del", name)
    return ""


def why_no_bad_links() -> str:
    """Why links cannot be made bad here; empty where they can."""
    if why := why_not():
        return why
    return "" if os.access(switch.DEVICE, os.R_OK | os.W_OK) else f"bad links need {switch.DEVICE}"


class NamespaceNetwork:
    """One namespace for each broker, one for the bridge and the clients. A context manager that removes them all."""

    def __init__(self, broker_count: int) -> None:
        self._prefix = f"bf{os.getpid()}"
        self._brokers = range(broker_count)
        self._cuts: set[tuple[int, int]] = set()
        self._rules: list[tuple[int, tuple[str, ...]]] = []  # host, rule
        self._switches: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "NamespaceNetwork":
        use_own_table()
        switch = self._switch
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "address", _BRIDGE_ADDRESS, "type", "bridge")
        _ip("-n", switch, "addr", "add", f"{self.address(CLIENT_HOST)}/24", "dev", "br0")
        for name in ("lo", "br0"):
            _ip("-n", switch, "link", "set", name, "up")
        for node_id in self._brokers:
            host = self.namespace(node_id)
            _ip("netns", "add", host)
            _ip("-n", switch, "link", "add", f"b{node_id}", "type", "veth", "peer", "name", "eth0", "netns", host)
            _ip("-n", switch, "link", "set", f"b{node_id}", "master", "br0", "up")
            _ip("-n", host, "addr", "add", f"{self.address(node_id)}/24", "dev", "eth0")
            for name in ("lo", "eth0"):
                _ip("-n", host, "link", "set", name, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._switches.values():
            _end(process)
        for name in (self._switch, *map(self.namespace, self._brokers)):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    @property
    def _switch(self) -> str:
        return f"{self._prefix}sw"

    def namespace(self, node_id: int) -> str:
        return self._switch if node_id == CLIENT_HOST else f"{self._prefix}b{node_id}"

    def address(self, node_id: int) -> str:
        return f"{NETWORK}.{254 if node_id == CLIENT_HOST else node_id + 1}"

    def launcher(self, node_id: int) -> tuple[str, ...]:
        """What runs a command on a broker's host, with no process in between."""
        return ("nsenter", f"--net={_path(self.namespace(node_id))}")

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread, and those that it starts, live on the clients' host meanwhile."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _enter(_path(self._switch))
            yield
        finally:
            if ctypes.CDLL(None, use_errno=True).setns(before, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "cannot return to the network namespace of before")
            os.close(before)

    def cut(self, sender: int, receiver: int) -> None:
        """From now on the receiver hears nothing from the sender."""
        address = self.address(receiver)
        device = "br0" if sender == CLIENT_HOST else "eth0"
        arguments = ("neigh", "replace", address, "lladdr", NOBODY, "nud", "permanent", "dev", device)
        _ip("-n", self.namespace(sender), *arguments)
        self._cuts.add((sender, receiver))

    def part(self, ones: Iterable[int], others: Iterable[int]) -> None:
        """Cut both ways."""
        for one in ones:
            for other in others:
                self.cut(one, other)
                self.cut(other, one)

    def cut_port(self, node_id: int, port: int) -> None:
        """Between this broker and the others nothing goes from or to this port any more; all else does, and clients'."""
        others = [other for other in self._brokers if other != node_id]
        pairs = [pair for other in others for pair in ((node_id, other), (other, node_id))]
        for sender, receiver in pairs:
            for end in ("dport", "sport"):
                rule = ("to", self.address(receiver), "ipproto", "tcp", end, str(port), "blackhole")
                _ip("-n", self.namespace(sender), "rule", "add", "pref", "100", *rule)
                self._rules.append((sender, rule))

    def weaken(self, node_id: int, quality: switch.Quality, seed: int) -> None:
        """From now on a broker's link to everybody is of this quality."""
        inside, outside, bridge = f"i{node_id}", f"o{node_id}", f"h{node_id}"
        words = json.dumps(dataclasses.asdict(quality))
        process = subprocess.Popen(
            [sys.executable, switch.__file__, inside, outside, str(seed), words], stdout=subprocess.PIPE
        )
        self._switches[node_id] = process
        assert process.stdout is not None
        if process.stdout.readline().decode().strip() != switch.READY:
            raise OSError(f"the switch of broker {node_id} ended with {process.wait()}")
        _ip("-n", self._switch, "link", "add", bridge, "type", "bridge")
        for device, master in ((inside, bridge), (outside, "br0"), (f"b{node_id}", bridge)):
            _ip("-n", self._switch, "link", "set", device, "master", master, "up")
        _ip("-n", self._switch, "link", "set", bridge, "up")

    def mend(self) -> None:
        for node_id, process in self._switches.items():
            _ip("-n", self._switch, "link", "set", f"b{node_id}", "master", "br0", "up")
            _ip("-n", self._switch, "link", "del", f"h{node_id}")
            _end(process)
        self._switches.clear()
        for host, rule in self._rules:
            _ip("-n", self.namespace(host), "rule", "del", "pref", "100", *rule)
        self._rules.clear()
        for sender, receiver in sorted(self._cuts):
            device = "br0" if sender == CLIENT_HOST else "eth0"
            _ip("-n", self.namespace(sender), "neigh", "del", self.address(receiver), "dev", device)
        self._cuts.clear()


def _path(namespace: str) -> Path:
    return NAMESPACES / namespace


def _enter(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(handle, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    finally:
        os.close(handle)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _ip(*arguments: str) -> None:
    run("ip", *arguments)
