"""The history of a campaign: what its clients saw, the faults, and the contents of the disks at the end.

Append-only. Times are seconds of one monotonic clock; an operation has the moment before it began and the moment after it
ended, so that "A was over before B began" is certain whenever the history says so. A history can be written to a file, one
JSON array per line, and read again for a post-mortem.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

Partition = tuple[str, int]
Outcome = Literal["ok", "fail", "info"]  # "info": the outcome is unknown


# Acknowledged without an offset, as librdkafka reports a batch that the leader already has (DUPLICATE_SEQUENCE_NUMBER).
UNKNOWN_OFFSET: Final = -1
NEVER_S: Final = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One record that a producer handed over. `sequence` counts the records of one producer to one partition."""

    process: str
    partition: Partition
    value: str
    sequence: int
    acks: int  # -1: all
    began_s: float
    ended_s: float
    outcome: Outcome
    offset: int = UNKNOWN_OFFSET
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """Records of one partition that one call of `poll` returned. A new `session` begins with each assignment."""

    process: str
    group: str  # "": assigned by hand
    session: int
    partition: Partition
    at_s: float
    records: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    process: str
    group: str
    partition: Partition
    offset: int
    began_s: float
    ended_s: float
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedRead:
    """The committed offset of the group that a client received; -1: none."""

    process: str
    group: str
    partition: Partition
    offset: int
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOffset:
    process: str
    partition: Partition
    offset: int
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that was done to the cluster; `affected`: the partitions that the target led at that moment."""

    kind: str
    target: str
    began_s: float
    healed_s: float
    recovered_s: float  # every ISR full again; the next fault may begin before
    affected: tuple[Partition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """Something did not make progress in the time that it was given."""

    what: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalRead:
    """Everything that one partition holds, read when all faults were healed and no producer was left."""

    name: str
    partition: Partition
    at_s: float
    records: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLog:
    """The batches of one replica on its disk while its broker was stopped: first offset, end offset, digest."""

    node_id: int
    partition: Partition
    high_watermark: int
    batches: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transaction. Its name is in the value of each of its records, which are planned before the first is sent."""

    process: str
    transactional_id: str
    name: str
    records: tuple[tuple[str, int, str], ...]  # topic, partition, value
    began_s: float
    commit_s: float  # when the commit was asked for; NEVER_S: it was not
    ended_s: float  # NEVER_S: its process died, or was fenced, before the answer
    outcome: Literal["committed", "aborted", "unknown"]
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StableOffset:
    """The end for readers of committed records, and for others, as one client received them."""

    partition: Partition
    last_stable_offset: int
    high_watermark: int
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """Some time after all producers had ended, a broker still told of this."""

    what: str
    at_s: float


Event = (
    Transaction
    | StableOffset
    | OpenTransaction
    | Send
    | Poll
    | Commit
    | CommittedRead
    | EndOffset
    | Fault
    | Stuck
    | FinalRead
    | ReplicaLog
)
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(Transaction, StableOffset, OpenTransaction),
        *(Send, Poll, Commit, CommittedRead, EndOffset, Fault, Stuck, FinalRead, ReplicaLog),
    )
}
E = TypeVar("E")


@dataclass(slots=True)
class History:
    events: list[Event] = field(default_factory=list)

    def add(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def write(self, path: Path) -> None:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(_lines(self.events))


def read_history(path: Path) -> History:
    with path.open(encoding="utf-8") as file:
        return History(events=[_event(json.loads(line)) for line in file])


def _lines(events: Iterable[Event]) -> Iterator[str]:
    for event in events:
        yield json.dumps([type(event).__name__, dataclasses.asdict(event)], separators=(",", ":")) + "\n"


def _event(item: list[Any]) -> Event:
    name, values = item
    event: Event = _KINDS[name](**{key: _frozen(value) for key, value in values.items()})
    return event


def _frozen(value: Any) -> Any:
    """JSON knows no tuples; the history knows no lists."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
