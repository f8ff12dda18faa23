"""`fork_broker`: starts broker processes as forks of a server that has their modules (`fork_server`), where that is possible.

The first broker costs as much as a process of its own, each later one a tenth. The server belongs to this process, and ends with
it. It runs any module (`python -P -m MODULE`): the broker, or one that changes the broker first. Elsewhere than on Linux, and for
other programs, Pythons or environments, `spawn_process` starts the broker.
"""

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import BinaryIO, Final, NoReturn

from barnabas.net.base.local.local_cluster import ClusterError, spawn_process

from .fork_server import MAX_ORDER_BYTES, ForkOrder, decoded_pid, decoded_status

_PROGRAM: Final = (sys.executable, "-P", "-m")
_SERVER: Final = "barnabas.net.testing.brokers.fork_server"
MAX_SERVERS: Final = 4  # of a process that changes its environment again and again
_ANSWER_S: Final = 60.0  # for the imports of the server, which take a second on an idle machine
_END_S: Final = 10.0  # A server that is still there is killed.
# They change what the interpreter or the modules are, which the server has already.
_BEFORE_START: Final = ("PYTHON", "LD_", "BARNABAS_PURE", "OPENSSL_", "MALLOC_")


class ForkedProcess(subprocess.Popen[bytes]):
    """As a process that `subprocess` has started. Its parent is the server, which tells how it ended."""

    def __init__(self, command: Sequence[str], pid: int, status: socket.socket) -> None:
        self._child_created = False  # for the class, there is nothing to await
        self._communication_started = False
        self.args = command
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = self.stdout = self.stderr = None
        self._status: Final = status
        self._lock: Final = threading.Lock()

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            status = self._status.fileno()  # -1: another thread has just taken what it told
            if status >= 0 and not _is_ready(status, timeout):
                self._expire(timeout)
            self._take_status()
        if self.returncode is None:
            # The server has been killed. The kernel tells what was to die with it to end; the rest runs on.
            if not _has_ended(self.pid, timeout):
                self._expire(timeout)
            self.returncode = -signal.SIGKILL  # How it ended is not known.
            self._status.close()
        return self.returncode

    def _take_status(self) -> None:
        with self._lock:
            if self.returncode is None and (told := self._status.recv(16)):
                self.returncode = decoded_status(told)
                self._status.close()

    def _expire(self, timeout: float | None) -> NoReturn:
        assert timeout is not None
        raise subprocess.TimeoutExpired(self.args, timeout)


def _is_ready(descriptor: int, timeout_s: float | None) -> bool:
    """Not by `select`, which takes no descriptor above 1023."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))


def _has_ended(pid: int, timeout_s: float | None) -> bool:
    """Of a process that is no child of this one."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return _is_ready(descriptor, timeout_s)
    finally:
        os.close(descriptor)


class _ForkServer:
    """A server of this process. It starts with the first broker."""

    def __init__(self) -> None:
        self._is_lost = False  # The answer to an earlier order may still come.
        self._lock = threading.Lock()
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.settimeout(_ANSWER_S)
        with theirs:
            self._process = subprocess.Popen(
                [*_PROGRAM, _SERVER], stdin=theirs.fileno(), start_new_session=True, cwd="/"
            )

    def fork(self, command: Sequence[str], log: BinaryIO, order: bytes) -> ForkedProcess:
        """Raises ClusterError if the server does not answer, or cannot fork."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                return ForkedProcess(command, self._forked(order, [log.fileno(), theirs.fileno()]), ours)
        except BaseException:
            ours.close()  # The server begins no order that is given up.
            raise

    def _forked(self, order: bytes, descriptors: list[int]) -> int:
        with self._lock:
            if self._is_lost:
                raise ClusterError("the server that forks brokers has not answered an earlier order")
            try:
                socket.send_fds(self._orders, [order], descriptors)
                told = self._orders.recv(16)
                if not told:
                    raise ClusterError(f"the server that forks brokers has ended with {self._process.wait()}")
            except BaseException as error:  # also if this is interrupted
                self._is_lost = True
                if isinstance(error, ClusterError) or not isinstance(error, OSError):
                    raise
                raise ClusterError(f"the server that forks brokers does not answer: {error}") from error
        pid = decoded_pid(told)
        if pid < 0:
            raise ClusterError(f"a broker cannot be forked: {os.strerror(-pid)}")
        return pid

    @property
    def takes_orders(self) -> bool:
        return not self._is_lost and self._process.poll() is None

    def end(self) -> None:
        self.forget()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """In a fork of this process, which must not keep the server alive."""
        self._orders.close()


_SERVERS: Final[dict[frozenset[tuple[str, str]], _ForkServer]] = {}  # by what their environments have of _BEFORE_START
_LOST: Final[list[_ForkServer]] = []  # They take no more orders, and live on for the brokers that they have.
_LOCK: Final = threading.Lock()


def fork_broker(
    command: Sequence[str], log: BinaryIO, environment: Mapping[str, str], *, die_with_parent: bool
) -> "subprocess.Popen[bytes]":
    """A `Spawn`. Limits of resources, the umask and the priority are those that this process had at its first broker.

    Raises ClusterError.
    """
    server = _server_for(command, environment)
    if server is not None:
        order = ForkOrder(
            module=command[len(_PROGRAM)],
            arguments=list(command[len(_PROGRAM) + 1 :]),
            environment=dict(environment),
            folder=os.getcwd(),
            die_with_parent=die_with_parent,
        ).encoded()
        if len(order) <= MAX_ORDER_BYTES:
            return server.fork(command, log, order)
    return spawn_process(command, log, environment, die_with_parent=die_with_parent)


def _server_for(command: Sequence[str], environment: Mapping[str, str]) -> _ForkServer | None:
    is_module = tuple(command[: len(_PROGRAM)]) == _PROGRAM and len(command) > len(_PROGRAM)
    relevant = _relevant(environment)
    # The server has the environment of this process.
    if sys.platform != "linux" or not is_module or relevant != _relevant(os.environ):
        return None
    with _LOCK:
        if relevant in _SERVERS and not _SERVERS[relevant].takes_orders:
            _LOST.append(_SERVERS.pop(relevant))
        if relevant not in _SERVERS and len(_SERVERS) + len(_LOST) < MAX_SERVERS:
            _SERVERS[relevant] = _ForkServer()
        return _SERVERS.get(relevant)


def _relevant(environment: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(item for item in environment.items() if item[0].startswith(_BEFORE_START))


@atexit.register
def _end_all() -> None:
    for server in (*_SERVERS.values(), *_LOST):
        server.end()


def _forget_all() -> None:
    for server in (*_SERVERS.values(), *_LOST):
        server.forget()
    _SERVERS.clear()
    _LOST.clear()


os.register_at_fork(after_in_child=_forget_all)
