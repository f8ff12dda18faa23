"""The quorum in a thread of its own, on the real loop, disk and network."""

import asyncio
import pathlib
import queue
import random
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest
from simulation.raft_files import PlainFiles

from barnabas.kraft.quorum.quorum import AppendOutcome, Leadership
from barnabas.kraft.raft.net.network import LoopNetwork
from barnabas.kraft.raft.quorum import RaftQuorum
from barnabas.kraft.raft.thread import RaftThread
from barnabas.log.vocabulary.quorum import CommittedCommand


class Listener:
    def __init__(self) -> None:
        self.leads: queue.Queue[int] = queue.Queue()

    def committed(self, commands: list[CommittedCommand]) -> None:
        pass

    def restore(self, index: int, chunks: Iterable[bytes]) -> None:
        pass

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        return list

    def leadership_changed(self, leadership: Leadership) -> None:
        if leadership.is_self:
            self.leads.put(leadership.term)


def make_thread(path: pathlib.Path, port: int, executor: ThreadPoolExecutor, listener: Listener) -> RaftThread:
    def build(loop: asyncio.AbstractEventLoop) -> RaftQuorum:
        return RaftQuorum(
            node_id=0,
            voters={0: ("127.0.0.1", port)},
            directory=str(path / "quorum"),
            storage=PlainFiles(),
            network=LoopNetwork(),
            executor=executor,
            loop=loop,
            rng=random.Random(1),
            clock=loop.time,
            listener=listener,
            fatal=lambda _reason: None,
        )

    return RaftThread(build)


def test_a_command_from_another_thread_is_committed_and_survives_a_restart(
    tmp_path: pathlib.Path, unused_tcp_port: int
) -> None:
    with ThreadPoolExecutor(1) as executor:
        for expected_term in (1, 2):
            listener = Listener()
            thread = make_thread(tmp_path, unused_tcp_port, executor, listener)
            thread.start()
            assert listener.leads.get(timeout=10) == expected_term
            outcomes: queue.Queue[AppendOutcome] = queue.Queue()
            thread.post(
                lambda quorum, outcomes=outcomes: quorum.append(  # type: ignore[misc]
                    b"x", term=quorum.leadership.term, done=outcomes.put
                )
            )
            assert outcomes.get(timeout=10) is AppendOutcome.COMMITTED
            assert thread.call(lambda quorum: quorum.leadership.leader_id).result(10) == 0
            thread.stop()
            thread.stop()


def test_an_error_of_a_call_belongs_to_the_caller(tmp_path: pathlib.Path, unused_tcp_port: int) -> None:
    with ThreadPoolExecutor(1) as executor:
        thread = make_thread(tmp_path, unused_tcp_port, executor, Listener())
        with pytest.raises(RuntimeError, match="not been started"):
            thread.post(lambda _quorum: None)
        thread.start()
        with pytest.raises(ZeroDivisionError):
            thread.call(lambda _quorum: 1 // 0).result(10)
        thread.stop()


def test_a_port_in_use_fails_the_start(tmp_path: pathlib.Path) -> None:
    with ThreadPoolExecutor(1) as executor, socket.create_server(("127.0.0.1", 0)) as taken:
        thread = make_thread(tmp_path, taken.getsockname()[1], executor, Listener())
        with pytest.raises(OSError, match="in use"):
            thread.start()
        thread.stop()
