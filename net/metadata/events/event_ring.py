"""Events of one kind: the newest ones, bounded in number and in bytes, and how many may come. Pure."""

from collections import deque
from collections.abc import Iterator
from typing import Final

from barnabas.net.wire.protocol.event_messages import ClusterEvent

# Of each of the fifteen kinds. 2,000 elections and 2,000 changes of ISRs are the loss of a broker with 2,000 partitions; a
# small cluster keeps months. At some 500 bytes each in memory, all kinds together stay below 20 MB.
MAX_EVENTS: Final = 2_000
MAX_BYTES: Final = 512 * 1024  # of texts in one ring: values may be longer than usual
OVERHEAD_BYTES: Final = 64  # of an event beside its texts, as it is written


def size_of(event: ClusterEvent) -> int:
    """In bytes, approximately: what its texts take. Written as JSON, they take twice of it at most."""
    texts = sum(len(key) + len(value.encode()) for key, value in event.fields.items())
    return OVERHEAD_BYTES + len(event.topic) + 8 * len(event.brokers) + texts


class EventRing:
    """Invariants: numbers rise; `len(events) <= max_events`; `size_bytes <= max_bytes`, unless there is only one event."""

    def __init__(self, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        self._events: deque[ClusterEvent] = deque()
        self._max_events = max_events
        self._max_bytes = max_bytes
        self.size_bytes = 0
        self.forgotten = 0  # events that had to leave
        self.forgotten_until_ms = -1  # the time of the newest of them

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: ClusterEvent) -> None:
        assert not self._events or event.number > self._events[-1].number
        self._events.append(event)
        self.size_bytes += size_of(event)
        while len(self._events) > 1 and (len(self._events) > self._max_events or self.size_bytes > self._max_bytes):
            oldest = self._events.popleft()
            self.size_bytes -= size_of(oldest)
            self.forgotten += 1
            self.forgotten_until_ms = oldest.at_ms

    def after(self, number: int) -> Iterator[ClusterEvent]:
        """The newest first: a reader is usually a few events behind."""
        for event in reversed(self._events):
            if event.number <= number:
                return
            yield event


class EventRate:
    """How many events of a kind may come, if clients cause them. Invariant: 0 <= tokens <= burst."""

    def __init__(self, *, burst: int, per_s: float, now_ms: int) -> None:
        self._burst = burst
        self._per_s = per_s
        self._tokens = float(burst)
        self._filled_ms = now_ms
        self.suppressed = 0  # events that were not admitted since `take_suppressed`

    def admits(self, now_ms: int) -> bool:
        self._tokens = min(self._tokens + (now_ms - self._filled_ms) * self._per_s / 1000, self._burst)
        self._filled_ms = now_ms
        if self._tokens < 1:
            self.suppressed += 1
            return False
        self._tokens -= 1
        return True

    def take_suppressed(self) -> int:
        taken, self.suppressed = self.suppressed, 0
        return taken
