"""`Departures`: when the open batches of a producer leave, and when those that wait too long expire.

Without `linger_ms`, lingering is adaptive: a batch leaves at the end of the turn of the loop while nothing is in flight to its
broker, otherwise when the answers are back. Threads (`barnabas.sync`) fill batches beside the loop, which only opens them, and
brokers that answer fast would make their batches tiny. So these stay open for `THREADS_LINGER_MS`; when a thread waits for a
record, lingering is adaptive until that time is over.
"""

import asyncio
from typing import TYPE_CHECKING

from ..connection.client import Client
from .producer_config import ProducerConfig
from .record_accumulator import Batch
from .sender import Sender

if TYPE_CHECKING:
    from .record_buffer import RecordBuffer

THREADS_LINGER_MS = 1  # A thread fills a batch of 64 KB in less.
MIN_SWEEP_MS = 20  # How often batches are looked through for expired ones, at most.


class Departures:
    """Of one producer. `start` it before the first batch is opened."""

    def __init__(self, buffer: "RecordBuffer", config: ProducerConfig, client: Client) -> None:
        self._buffer = buffer
        self._config = config
        self._linger_ms = config.linger_ms
        self._is_hurried = False  # a thread waits for a record
        self._metadata = client.metadata
        self._clock = client.clock
        self._loop = asyncio.get_running_loop()
        self._sweep: asyncio.TimerHandle | None = None
        self._tick: asyncio.Handle | None = None

    def start(self, sender: Sender) -> None:
        self._sender = sender

    def serve_threads(self) -> None:
        """From now on, threads send."""
        self._linger_ms = self._config.linger_ms or THREADS_LINGER_MS

    @property
    def lingers(self) -> bool:
        """An open batch leaves after a time in any case."""
        return self._linger_ms > 0

    def hurry(self) -> None:
        """A thread waits for what is here. `linger_ms` of the application stays as it is."""
        if not self._config.linger_ms:
            self._is_hurried = True
            self._send_to_idle()

    def close(self) -> None:
        for timer in (self._sweep, self._tick):
            if timer is not None:
                timer.cancel()

    def opened(self, batch: Batch) -> None:
        """Schedule a batch: it is sent at the end of this iteration of the loop or after the linger time, and it expires."""
        if self._tick is None:
            if self._linger_ms:
                self._tick = self._loop.call_later(self._linger_ms / 1000, self._linger_over)
            else:
                self._tick = self._loop.call_soon(self._turn_over)
        if self._sweep is None:
            self._arm_sweep(batch.created_ms)

    def broker_has_room(self, node_id: int, requests: int) -> None:
        """A broker has few requests in flight: what has grown for it goes; if it has none, all that lingered for it."""
        is_idle = not requests and self._is_adaptive
        leader = self._metadata.leader
        for queue in list(self._buffer.open if is_idle else self._buffer.grown):
            if leader(queue.partition).node_id == node_id:
                self._buffer.seal_of(queue)

    def leaders_changed(self) -> None:
        """What lingered for a busy broker would wait for ever if an idle one leads now."""
        if self._is_adaptive:
            self._send_to_idle()

    @property
    def _is_adaptive(self) -> bool:
        return self._is_hurried or not self._linger_ms

    def _turn_over(self) -> None:
        """Adaptive linger: what goes to an idle broker goes now, the rest when its answers are back."""
        self._tick = None
        self._send_to_idle()

    def _send_to_idle(self) -> None:
        for queue in list(self._buffer.open):
            if self._sender.is_idle(queue.partition):
                self._buffer.seal_of(queue)

    def _linger_over(self) -> None:
        self._tick = None
        self._is_hurried = False
        # Timers are precise to a millisecond.
        opened_before_ms = self._clock.now_ms() - self._linger_ms + 1
        for queue in list(self._buffer.open):
            batch = queue.open
            if batch is not None and batch.created_ms <= opened_before_ms:
                self._buffer.seal_of(queue)
        oldest = next((queue.open for queue in self._buffer.open if queue.open is not None), None)
        if oldest is not None:
            self.opened(oldest)

    def _arm_sweep(self, oldest_ms: int) -> None:
        """Not too often: what is in flight may be older than its delivery timeout until its request ends."""
        delay_ms = oldest_ms + self._config.delivery_timeout_ms - self._clock.now_ms()
        self._sweep = self._loop.call_later(max(delay_ms, MIN_SWEEP_MS) / 1000, self._sweep_expired)

    def _sweep_expired(self) -> None:
        """Runs when the oldest batch reaches its delivery timeout, and again for the oldest that is then left."""
        self._sweep = None
        now_ms = self._clock.now_ms()
        self._buffer.seal_open()
        queues = self._buffer.queues()
        for queue in queues:
            self._sender.expire(queue, now_ms)
        waiting = [batches[0] for queue in queues if (batches := queue.batches())]
        if waiting:
            self._arm_sweep(min(batch.created_ms for batch in waiting))
