"""The program that forks brokers: it has their modules, so that a broker is there in milliseconds.

Importing them takes a second of a processor, which is most of a broker's start. `forked_brokers` starts this program and sends it
orders. It has one thread and no event loop: what is forked must hold no lock.

An order is a message on the socket that is its standard input: the JSON of a `ForkOrder`, and two descriptors, for the output of
the broker and for its end of a socket. There the server writes the exit status when the broker has ended. The answer to an order
is the process id, or why there is none. The server ends with the process that has started it, and with it the brokers that are to
die with that.
"""

import errno
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final, NoReturn

from barnabas.net.base.local.local_cluster import end_with_parent

MAX_ORDER_BYTES: Final = 128 * 1024  # a command and an environment; a message of a socket may be so long on every Linux
_STATUS_BYTES: Final = 4
_PID_BYTES: Final = 8
# What a broker imports, also later: the modules of its HTTP API.
_MODULES: Final = (
    "barnabas.net.cli.main",
    "barnabas.net.cli.verbs.brokers",
    "barnabas.net.broker.broker_process",
    "barnabas.net.admin.app",
    "barnabas.net.testing.faults.fault_board",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkOrder:
    module: str  # as of `python -m`
    arguments: list[str]
    environment: dict[str, str]
    folder: str  # to work in
    die_with_parent: bool

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def decoded_order(data: bytes) -> ForkOrder:
    return ForkOrder(**json.loads(data))


def encoded_pid(pid: int) -> bytes:
    """`pid`: or the negative number of the error, if the system has forked no process."""
    return pid.to_bytes(_PID_BYTES, "little", signed=True)


def decoded_pid(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def encoded_status(code: int) -> bytes:
    return code.to_bytes(_STATUS_BYTES, "little", signed=True)


def decoded_status(data: bytes) -> int:
    """The exit code as `subprocess` has it: of a signal, its negative number."""
    return int.from_bytes(data, "little", signed=True)


class _Server:
    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._ends: dict[int, socket.socket] = {}  # process id -> where its status is told
        self._woken, waking = socket.socketpair()
        for end in (self._woken, waking):
            end.setblocking(False)
        self._waking = waking
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waking.fileno())

    def serve(self) -> None:
        """Until the other end of the orders is closed."""
        selector = selectors.DefaultSelector()
        selector.register(self._orders, selectors.EVENT_READ)
        selector.register(self._woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is self._woken:
                    self._woken.recv(4_096)
                    self._tell_ends()
                else:
                    data, descriptors, _, _ = socket.recv_fds(self._orders, MAX_ORDER_BYTES, 2)
                    if not data:
                        return
                    self._fork(decoded_order(data), *descriptors)

    def _tell_ends(self) -> None:
        """The status is told before the process id may be another process's."""
        for pid in list(self._ends):
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                continue
            code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            with self._ends.pop(pid) as end:
                try:
                    end.send(encoded_status(code))
                except OSError:
                    pass  # the process that has started the broker is gone
            os.waitpid(pid, 0)

    def _fork(self, order: ForkOrder, log: int, status: int) -> None:
        end = socket.socket(fileno=status)
        try:
            pid = -errno.ECANCELED if _is_given_up(end) else os.fork()
        except OSError as error:  # too many processes, or no memory: the brokers that there are live on
            pid = -(error.errno or errno.EAGAIN)
        if pid == 0:
            _become(order, log)
        os.close(log)
        if pid > 0:
            self._ends[pid] = end
        else:
            end.close()
        with suppress(BrokenPipeError):  # The other end is closed: the next thing to receive says so.
            self._orders.send(encoded_pid(pid))


def _is_given_up(end: socket.socket) -> bool:
    """Whether the process that has sent the order does not wait for it any more."""
    try:
        return not end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def _become(order: ForkOrder, log: int) -> NoReturn:
    """Be the broker. All that this process has from the server alone is closed."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if order.die_with_parent:
            end_with_parent()
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
        os.environ.clear()
        os.environ.update(order.environment)
        os.chdir(order.folder)
        random.seed()
        sys.argv = [order.module, *order.arguments]
        gc.unfreeze()
        try:
            runpy.run_module(order.module, run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as ended:
            if isinstance(ended.code, str):
                sys.stderr.write(f"{ended.code}\n")
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that has started it
    for name in _MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # memory that the brokers share
    orders: Any = socket.socket(fileno=os.dup(0))
    _Server(orders).serve()


if __name__ == "__main__":
    main()
