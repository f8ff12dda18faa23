"""What a connection receives, and the reasons for which the server does not read it at the moment.

The server reads a connection only while there is memory for its next request, while it is its turn (`fair_reads`), and while the
client is within its limits (which the connection decides).
"""

import asyncio
from collections.abc import Callable

from .fair_reads import FairReads
from .memory_budget import MemoryBudget
from .receive_buffer import ReceiveBuffer


class Intake:
    __slots__ = (
        "_memory",
        "_on_turn",
        "_reads",
        "_transport",
        "is_paused",
        "reader",
        "waits_for_memory",
        "waits_for_turn",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        reader: ReceiveBuffer,
        memory: MemoryBudget,
        reads: FairReads,
        on_turn: Callable[[], None],
    ) -> None:
        """`on_turn` reads the connection; it is called in a later pass, if `wait_for_turn` was called or memory was granted."""
        self.reader = reader
        self.waits_for_memory = False
        self.waits_for_turn = False
        self.is_paused = False
        self._transport = transport
        self._memory = memory
        self._reads = reads
        self._on_turn = on_turn

    @property
    def waits_for_server(self) -> bool:
        return self.waits_for_memory or self.waits_for_turn

    @property
    def has_unfinished_request(self) -> bool:
        return bool(self.reader.own_bytes and self.reader.pending_bytes)

    def settle(self, *, may_read_on: bool) -> None:
        """At the end of a wake-up: wait for memory if the incomplete request needs more than there is."""
        reader = self.reader
        self.waits_for_memory = not reader.settle()
        if self.waits_for_memory:
            self._memory.wait(self, reader.wanted_bytes, self._memory_granted)
        self.set_reading(may_read_on and not self.waits_for_memory)

    def set_reading(self, on: bool) -> None:
        if on is not self.is_paused or self._transport.is_closing():
            return
        self.is_paused = not on
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def wait_for_turn(self) -> None:
        if not self.waits_for_turn:
            self.waits_for_turn = True
            self._reads.wait(self._turn_has_come)

    def close(self) -> None:
        """Give all memory back: the connection is closed."""
        self._memory.forget(self)
        self.reader.release()
        self._on_turn = _nothing  # A reference cycle would keep the connection until the next full collection.

    def _turn_has_come(self) -> None:
        self.waits_for_turn = False
        if not self.waits_for_memory:
            self._on_turn()

    def _memory_granted(self) -> None:
        self.reader.granted(self.reader.wanted_bytes)
        self.waits_for_memory = False
        self.wait_for_turn()


def _nothing() -> None:
    pass
