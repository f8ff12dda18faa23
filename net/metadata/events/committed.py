"""Events of the committed metadata, made on every broker from the same records: elections, ISRs, brokers, topics, moves.

One publication may have the records of several commands, and more of them on a broker that is behind. So each command is replayed
again, alone: all brokers then have the same events at the same offsets, and `Admin.events` shows each once.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from barnabas.kraft.metadata.delta import MetadataDelta
from barnabas.kraft.metadata.image import MetadataChanges, MetadataImage
from barnabas.kraft.metadata.records import Record
from barnabas.kraft.metadata.replay import replay
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.net.wire.protocol.event_messages import NOT_COMMITTED, EventKind

from .event_log import SUPPRESSED, CommittedAt, EventLog
from .state_changes import Change, Tally, controller_change, decisions

# Of one kind and one command. The loss of a broker with more leaderships is told by so many, and their sum: earlier events stay.
SHOWN_PER_COMMAND: Final = 500
# Commands of one publication that are looked at one by one, some 20 ms; the oldest of more become no events. A broker that is so
# far behind was down, and the others have these events.
MAX_COMMANDS: Final = 200

_Step = tuple[int, tuple[Record, ...]]


class CommittedEvents:
    """A subscriber of the metadata."""

    def __init__(self, events: EventLog, is_current: Callable[[], bool]) -> None:
        """`is_current`: has the image what was committed before this process registered?"""
        self._events = events
        self._is_current = is_current
        self._image = MetadataImage()
        self._recovery_epoch = 0
        self._known_offset = NOT_COMMITTED  # what is committed up to here has its events already

    def resume(self, recovery_epoch: int, offset: int) -> None:
        """Earlier processes have kept the events up to this offset."""
        self._recovery_epoch, self._known_offset = recovery_epoch, offset

    def published(self, publication: MetadataPublication) -> None:
        old, self._image = self._image, publication.image
        if publication.image.recovery_epoch != self._recovery_epoch:
            # Offsets behind the recovery are used a second time, by other records.
            self._recovery_epoch = publication.image.recovery_epoch
            self._known_offset = min(self._known_offset, publication.image.recovery_offset - 1)
        if publication.restored:
            self._restored(publication.image.offset)
        elif publication.records:
            self._replayed(old, publication)

    def _restored(self, offset: int) -> None:
        """A snapshot says how things are, not how they came about."""
        if NOT_COMMITTED < self._known_offset < offset:
            fields = {"after": str(self._known_offset), "to": str(offset), "why": "snapshot"}
            self._events.record(EventKind.METADATA, "not_seen", fields)
        self._known_offset = max(self._known_offset, offset)

    def _replayed(self, old: MetadataImage, publication: MetadataPublication) -> None:
        steps = [
            (index, tuple(record for _, record in group))
            for index, group in itertools.groupby(publication.records, key=_index)
        ]
        unseen = [step for step in steps if step[0] > self._known_offset]
        if not unseen:
            return
        if len(steps) == 1:
            self._tell(steps[0][0], old, publication.image, publication.changes)
        else:
            self._tell_steps(old, steps[: len(steps) - len(unseen)], unseen)
        self._known_offset = steps[-1][0]

    def _tell_steps(self, image: MetadataImage, seen: list[_Step], unseen: list[_Step]) -> None:
        skipped, shown = unseen[:-MAX_COMMANDS], unseen[-MAX_COMMANDS:]
        if skipped:
            fields = {"after": str(skipped[0][0] - 1), "to": str(skipped[-1][0]), "why": "far_behind"}
            self._events.record(EventKind.METADATA, "not_seen", fields)
        before = [*seen, *skipped]
        if before:
            image, _ = _applied(image, before)
        for step in shown:
            old = image
            image, changes = _applied(image, [step])
            self._tell(step[0], old, image, changes)

    def _tell(self, offset: int, old: MetadataImage, new: MetadataImage, changes: MetadataChanges) -> None:
        told: Counter[EventKind] = Counter()
        tally = Tally(SHOWN_PER_COMMAND)
        index = 0
        for index, change in enumerate(_changes(old, new, changes, tally)):
            told[change.kind] += 1
            if told[change.kind] <= SHOWN_PER_COMMAND:
                self._record(change, offset, index)
        for kind, count in told.items():
            left_out = max(0, count - SHOWN_PER_COMMAND) + tally.left_out(kind)
            if left_out:
                index += 1
                fields = {"count": str(left_out), "shown": str(SHOWN_PER_COMMAND)}
                self._events.record(kind, SUPPRESSED, fields, at=self._at(offset, index))

    def _record(self, change: Change, offset: int, index: int) -> None:
        self._events.record(
            change.kind,
            change.event,
            change.fields,
            topic=change.topic,
            brokers=change.brokers,
            at=self._at(offset, index),
        )

    def _at(self, offset: int, index: int) -> CommittedAt:
        return CommittedAt(
            recovery_epoch=self._recovery_epoch, offset=offset, index=index, is_late=not self._is_current()
        )


def _changes(old: MetadataImage, new: MetadataImage, changes: MetadataChanges, tally: Tally) -> Iterator[Change]:
    yield from controller_change(old, new)
    yield from decisions(old, new, changes, tally)


def _applied(image: MetadataImage, steps: list[_Step]) -> tuple[MetadataImage, MetadataChanges]:
    delta = MetadataDelta(image)
    for index, records in steps:
        for record in records:
            replay(delta, record, index)
    return delta.apply(steps[-1][0]), delta.changes


def _index(item: tuple[int, Record]) -> int:
    return item[0]
