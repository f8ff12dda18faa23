"""What a connection receives, and the reasons for which the server does not read it at the moment.

The server reads a connection only while there is memory for its next request, while it is its turn (`fair_reads`), while the
client is within its quotas, and while it is within its limits (which the connection decides).
"""

import asyncio
from collections.abc import Callable

from ..base.fair_reads import FairReads
from .memory_budget import MemoryBudget
from .receive_buffer import ReceiveBuffer


class Intake:
    __slots__ = (
        "_memory",
        "_muted_until_s",
        "_on_turn",
        "_reads",
        "_transport",
        "_unmute_timer",
        "is_muted",
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
        self.is_muted = False  # The client has used up its quota.
        self.is_paused = False
        self._unmute_timer: asyncio.TimerHandle | None = None
        self._muted_until_s = 0.0  # by the clock of the loop, while there is a timer
        self._transport = transport
        self._memory = memory
        self._reads = reads
        self._on_turn = on_turn

    @property
    def waits_for_server(self) -> bool:
        return self.waits_for_memory or self.waits_for_turn or self.is_muted

    @property
    def has_unfinished_request(self) -> bool:
        return bool(self.reader.own_bytes and self.reader.pending_bytes)

    def settle(self, *, may_read_on: bool) -> None:
        """At the end of a wake-up: wait for memory if the incomplete request needs more than there is."""
        reader = self.reader
        self.waits_for_memory = not reader.settle()
        if self.waits_for_memory:
            self._memory.wait(self, reader.wanted_bytes, self._memory_granted)
        is_to_read = may_read_on and not (self.waits_for_memory or self.is_muted)
        if is_to_read is self.is_paused:
            self.set_reading(is_to_read)

    def set_reading(self, on: bool) -> None:
        if on is not self.is_paused or self._transport.is_closing():
            return
        self.is_paused = not on
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def mute(self, duration_ms: float) -> None:
        """Read nothing for this long, or until an earlier call ends, whichever is later."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + duration_ms / 1000
        if self._transport.is_closing() or (self._unmute_timer is not None and until_s <= self._muted_until_s):
            return
        if self._unmute_timer is not None:
            self._unmute_timer.cancel()
        self._muted_until_s = until_s
        self._unmute_timer = loop.call_at(until_s, self._unmute)
        self.is_muted = True
        self.set_reading(False)

    def wait_for_turn(self) -> None:
        if not self.waits_for_turn:
            self.waits_for_turn = True
            self._reads.wait(self._turn_has_come)

    def close(self) -> None:
        """Give all memory back: the connection is closed."""
        if self._unmute_timer is not None:
            self._unmute_timer.cancel()
            self._unmute_timer = None
        self._memory.forget(self)
        self.reader.release()
        self._on_turn = _nothing  # A reference cycle would keep the connection until the next full collection.

    def _turn_has_come(self) -> None:
        self.waits_for_turn = False
        if not (self.waits_for_memory or self.is_muted):
            self._on_turn()

    def _unmute(self) -> None:
        self.is_muted, self._unmute_timer = False, None
        if not self.waits_for_memory:
            self.wait_for_turn()

    def _memory_granted(self) -> None:
        self.reader.granted(self.reader.wanted_bytes)
        self.waits_for_memory = False
        self.wait_for_turn()


def _nothing() -> None:
    pass
