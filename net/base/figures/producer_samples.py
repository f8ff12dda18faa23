"""How clients produce: sizes of batches, acks, idempotence. From a part of the requests, so that all others cost nothing."""

import struct
from dataclasses import dataclass
from typing import Final

from barnabas.log.format.record_batch import HEADER_SIZE, PRODUCER_POSITION, Buffer

EVERY: Final = 16  # requests of a broker, of which one is looked at
WINDOW_S: Final = 60.0  # samples of this one and the one before it are kept
MAX_CLIENTS: Final = 200  # in a window; further ones are left out
_COUNT_POSITION: Final = 57
_COUNT: Final = struct.Struct(">i")
_PRODUCER: Final = struct.Struct(">q")
_ALL: Final = -1


@dataclass(slots=True)
class Habits:
    host: str
    requests: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    few_acks: int = 0
    not_idempotent: int = 0

    def add(self, other: "Habits") -> None:
        self.requests += other.requests
        self.batches += other.batches
        self.records += other.records
        self.size_bytes += other.size_bytes
        self.few_acks += other.few_acks
        self.not_idempotent += other.not_idempotent


class ProducerSamples:
    """Pure. A handler counts `turn` down, and calls `note` when it is 0."""

    def __init__(self) -> None:
        self.turn = EVERY
        self._now: dict[str, Habits] = {}
        self._before: dict[str, Habits] = {}
        self._began_s = 0.0
        self._before_s = 0.0  # when the window before began

    def note(self, client_id: str, host: str, acks: int, batches: list[Buffer], now_s: float) -> None:
        self.turn = EVERY
        self._turn_window(now_s)
        habits = self._now.get(client_id)
        if habits is None:
            if len(self._now) >= MAX_CLIENTS:
                return
            habits = self._now[client_id] = Habits(host)
        habits.requests += 1
        for batch in batches:
            if len(batch) < HEADER_SIZE:
                continue
            habits.batches += 1
            habits.records += _COUNT.unpack_from(batch, _COUNT_POSITION)[0]
            habits.size_bytes += len(batch)
            if acks != _ALL:
                habits.few_acks += 1
            elif _PRODUCER.unpack_from(batch, PRODUCER_POSITION)[0] < 0:
                habits.not_idempotent += 1

    def habits(self, now_s: float) -> tuple[float, dict[str, Habits]]:
        """By client id, and the seconds that they were looked at."""
        self._turn_window(now_s)
        found: dict[str, Habits] = {}
        for window in (self._before, self._now):
            for client_id, habits in window.items():
                found.setdefault(client_id, Habits(habits.host)).add(habits)
        return max(1.0, now_s - self._before_s), found

    def _turn_window(self, now_s: float) -> None:
        age_s = now_s - self._began_s
        if age_s >= WINDOW_S:
            is_next = age_s < 2 * WINDOW_S
            self._before = self._now if is_next else {}
            self._before_s = self._began_s if is_next else now_s
            self._now = {}
            self._began_s = now_s
