"""One real voter process for the kill -9 tests: `python raft_process.py ID PORTS DIRECTORY SNAPSHOT_ENTRIES WINDOW`.

While it leads it keeps WINDOW appends in flight and says `ack SENT ACKED COMMAND` for each that is committed;
`leader TIME TERM` when it has become the leader, `ready TIME` when it listens. A line on its input makes it answer
`state COMMAND...`.
"""

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import msgpack
from simulation.raft_files import PlainFiles

from barnabas.kraft.quorum.config import SnapshotPolicy
from barnabas.kraft.quorum.quorum import AppendOutcome, Leadership
from barnabas.kraft.raft.net.network import LoopNetwork
from barnabas.kraft.raft.quorum import RaftQuorum
from barnabas.kraft.raft.thread import RaftThread
from barnabas.log.vocabulary.quorum import CommittedCommand


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Load:
    def __init__(self, node_id: int, window: int) -> None:
        self.commands: dict[str, int] = {}
        self.quorum: RaftQuorum | None = None
        self._prefix = f"{node_id}.{os.getpid()}"
        self._window = window
        self._count = 0

    def committed(self, commands: list[CommittedCommand]) -> None:
        for command in commands:
            self.commands[command.command.decode()] = command.index

    def restore(self, index: int, chunks: Iterable[bytes]) -> None:
        self.commands = dict(msgpack.unpackb(b"".join(chunks)))

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        view = dict(self.commands)
        return lambda: [msgpack.packb(view)]

    def leadership_changed(self, leadership: Leadership) -> None:
        if leadership.is_self:
            say("leader", time.monotonic(), leadership.term)
            for _ in range(self._window):
                self._append(leadership.term)

    def _append(self, term: int) -> None:
        assert self.quorum is not None
        self._count += 1
        command = f"{self._prefix}.{self._count}"
        sent_at = time.monotonic()

        def done(outcome: AppendOutcome) -> None:
            if outcome is AppendOutcome.COMMITTED:
                say("ack", sent_at, time.monotonic(), command)
                self._append(term)

        self.quorum.append(command.encode(), term=term, done=done)


def main() -> None:
    node_id, ports, directory = int(sys.argv[1]), [int(p) for p in sys.argv[2].split(",")], sys.argv[3]
    load = Load(node_id, int(sys.argv[5]))

    def fatal(reason: str) -> None:
        say("fatal", reason)
        os._exit(70)

    def build(loop: asyncio.AbstractEventLoop) -> RaftQuorum:
        load.quorum = RaftQuorum(
            node_id=node_id,
            voters={peer: ("127.0.0.1", port) for peer, port in enumerate(ports)},
            directory=directory,
            storage=PlainFiles(),
            network=LoopNetwork(),
            executor=ThreadPoolExecutor(2),
            loop=loop,
            rng=random.Random(),
            clock=loop.time,
            listener=load,
            fatal=fatal,
            snapshot_policy=SnapshotPolicy(entries=int(sys.argv[4])),
        )
        return load.quorum

    thread = RaftThread(build)
    thread.start()
    say("ready", time.monotonic())
    for _line in sys.stdin:
        say("state", *thread.call(lambda _quorum: sorted(load.commands)).result())
    thread.stop()


if __name__ == "__main__":
    main()
