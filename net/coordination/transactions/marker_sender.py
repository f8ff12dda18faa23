"""Sends the markers of decided transactions to the leaders of their partitions and to the coordinators of their groups.

One queue and one task for each broker; a request has the markers of several transactions, whose answer waits for the slowest
partition. So a partition that was late once has another queue until it has answered. What is not answered, or refused, is sent
again to the broker that is in charge then, until every partition and every group has answered: only then the transaction
is complete. Partitions of deleted topics count as answered. A coordinator that loses its slot stops sending; its successor
begins again, because nothing is known of what was sent. Markers may arrive twice, which `marker_writer` recognizes.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from barnabas.consumer_groups.model.messages import CoordinatorResult
from barnabas.consumer_groups.slot_coordinator import SlotCoordinator
from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.kraft.metadata.image import NO_LEADER, MetadataImage
from barnabas.kraft.metadata.records import Record, TransactionRecord
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode
from barnabas.log.vocabulary.transaction_messages import TransactionMarker, TransactionState, TransactionTopic
from barnabas.net.wire.protocol.requests import WriteMarkersRequest
from barnabas.net.wire.protocol.responses import MarkerOutcomes, WriteMarkersResponse

from ..groups.hosted_slot import HostedSlot

logger = logging.getLogger("barnabas.transactions")

MAX_MARKERS_PER_REQUEST: Final = 200  # some milliseconds of the receiver's loop
MAX_PARTITIONS_PER_REQUEST: Final = 2_000
RETRY_MS: Final = 50  # an election takes longer; a broker that just became the leader answers at once
LOG_AFTER_ATTEMPTS: Final = 200  # about ten seconds: then an operator wants to know

NO_BROKER: Final = -1  # of a partition without a leader, or a slot without a coordinator
TopicNumber = tuple[str, str, int]  # topic, its id, partition
Lane = tuple[int, bool]  # node id, and whether it is for late partitions
# Answers after which a partition needs no marker of this coordinator: it has a newer one.
_SUPERSEDED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})


@dataclass(slots=True, eq=False)
class _Work:
    """A decided transaction, and what has not answered yet."""

    slot: HostedSlot[SlotCoordinator]
    record: TransactionRecord
    decided_offset: int  # of the metadata: an older image may not have all topics of the transaction
    partitions: set[TopicNumber]
    groups: set[str]
    in_flight: set[TopicNumber | str] = field(
        default_factory=set
    )  # partitions and groups that a queue or a request has
    is_repeated_soon: bool = False  # a timer runs
    is_done: bool = (
        False  # reported once: a second report might meet the next transaction of the same producer and epoch
    )
    attempts: int = 0

    @property
    def is_void(self) -> bool:
        return self.slot.is_released or self.slot.machine is None


@dataclass(slots=True)
class _Part:
    """What one broker must write for one transaction."""

    work: _Work
    partitions: list[TopicNumber] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    # What the metadata says of each: a marker that is delayed beyond a change of the leader or coordinator is void.
    epochs: dict[TopicNumber | str, int] = field(default_factory=dict)

    def marker(self) -> TransactionMarker:
        record = self.work.record
        groups = tuple(sorted(self.groups))
        topics = _topics(self.partitions)
        return TransactionMarker(
            transactional_id=record.transactional_id,
            producer_id=record.producer_id,
            producer_epoch=record.producer_epoch,
            coordinator_epoch=self.work.slot.coordinator_epoch,
            is_commit=record.state == TransactionState.PREPARE_COMMIT,
            topics=topics,
            groups=groups,
            uses_v2=record.uses_v2,
            started_ms=record.started_ms,
            leader_epochs=tuple(
                self.epochs[item.topic, item.topic_id, number] for item in topics for number in item.partitions
            ),
            group_epochs=tuple(self.epochs[group_id] for group_id in groups),
        )


class MarkerSender:
    """`ask` sends a request to a broker, which may be this one.

    There is at most one work for each transactional id of a slot, whose number is limited, and none longer than the slot is here.
    """

    def __init__(
        self,
        *,
        image: Callable[[], MetadataImage],
        ask: Callable[[int, WriteMarkersRequest], Awaitable[WriteMarkersResponse]],
        now_ms: Callable[[], int],
        spawn: Callable[..., "asyncio.Task[None]"],
        completed: Callable[[str], None],
    ) -> None:
        """`completed` learns the transactional id of each transaction that is complete, in the same pass of the loop: what was
        waiting for it goes into the same append of the quorum."""
        self._completed = completed
        self._image = image
        self._ask = ask
        self._now_ms = now_ms
        self._spawn = spawn
        self._queues: dict[Lane, deque[_Part]] = {}  # while a task sends them
        # Whose in-sync replicas do not have a marker in time. At most those of the works: it is cleared when they are done.
        self._late: set[TopicNumber] = set()

    def settled(self, slot: HostedSlot[SlotCoordinator], records: Iterable[Record]) -> None:
        """These records of the slot are committed; at its start, () stands for everything."""
        decided = [item for item in records if isinstance(item, TransactionRecord)]
        for record in decided:
            if TransactionState(record.state).is_decided and (record.partitions or record.offset_groups):
                self._begin(slot, record)

    def started(self, slot: HostedSlot[SlotCoordinator]) -> None:
        """A machine was loaded: all that it knows is committed."""
        if slot.machine is not None:
            for record in slot.machine.transactions.undecided_markers():
                self._begin(slot, record)

    def _begin(self, slot: HostedSlot[SlotCoordinator], record: TransactionRecord) -> None:
        partitions = {(item.topic, item.topic_id, number) for item in record.partitions for number in item.partitions}
        self._send(_Work(slot, record, slot.committed_offset, partitions, set(record.offset_groups)))

    def _send(self, work: _Work) -> None:
        """Give what has not answered to the queues of the brokers in charge."""
        work.is_repeated_soon = False
        if work.is_void or work.is_done:
            return
        image = self._image()
        existing = {item for item in work.partitions if _exists(item, image)}
        self._late -= work.partitions - existing
        if image.offset >= work.decided_offset:
            work.partitions = {item for item in work.partitions if item in existing or item in work.in_flight}
        if not work.partitions and not work.groups:
            self._done(work)
            return
        parts: dict[Lane, _Part] = {}
        for partition in sorted(existing - work.in_flight):
            leader, leader_epoch = _leader_of(partition, image)
            part = parts.setdefault((leader, partition in self._late), _Part(work))
            part.partitions.append(partition)
            part.epochs[partition] = leader_epoch
        for group_id in sorted(work.groups - work.in_flight):
            slot = image.slots[slot_of(group_id)]
            part = parts.setdefault((slot.coordinator, False), _Part(work))
            part.groups.append(group_id)
            part.epochs[group_id] = slot.coordinator_epoch
        work.attempts += 1
        if work.attempts % LOG_AFTER_ATTEMPTS == 0:
            logger.warning(
                "transaction=%s state=%s waits for markers partitions=%d groups=%d brokers=%s",
                work.record.transactional_id,
                work.record.state,
                len(work.partitions),
                len(work.groups),
                sorted({node_id for node_id, _ in parts}),
            )
        here = {lane: part for lane, part in parts.items() if lane[0] != NO_BROKER}
        if len(here) < len(parts) or not work.partitions <= existing | work.in_flight:
            self._again(work)
        for lane, part in sorted(here.items(), key=lambda item: item[0]):
            self._enqueue(lane, part)

    def _enqueue(self, lane: Lane, part: _Part) -> None:
        part.work.in_flight.update(part.partitions, part.groups)
        queue = self._queues.get(lane)
        if queue is not None:
            queue.append(part)
            return
        self._queues[lane] = deque([part])
        self._spawn(self._run(lane))

    async def _run(self, lane: Lane) -> None:
        queue = self._queues[lane]
        try:
            await asyncio.sleep(0)  # other decisions of this pass of the loop go into the same request
            while queue:
                await self._send_some(lane[0], queue)
        finally:
            del self._queues[lane]

    async def _send_some(self, node_id: int, queue: deque[_Part]) -> None:
        parts = _taken(queue)
        if not parts:
            return
        try:
            answer = await self._ask(node_id, WriteMarkersRequest(markers=tuple(part.marker() for part in parts)))
            outcomes: tuple[MarkerOutcomes | None, ...] = answer.outcomes
        except BarnabasError as error:
            logger.debug("markers were not written broker=%d reason=%s", node_id, error.message)
            outcomes = (None,) * len(parts)
        retried: dict[_Work, None] = {}
        for part, outcome in zip(parts, outcomes, strict=True):
            self._note_late(part, outcome)
            if not _settle(part, outcome):
                retried[part.work] = None
            elif not part.work.partitions and not part.work.groups:
                self._done(part.work)
        for work in retried:
            self._again(work)

    def _note_late(self, part: _Part, outcome: MarkerOutcomes | None) -> None:
        if outcome is not None:
            late = {
                (item.topic, item.partition) for item in outcome.partitions if item.error == ErrorCode.REQUEST_TIMED_OUT
            }
            self._late.difference_update(part.partitions)
            self._late.update(item for item in part.partitions if (item[0], item[2]) in late)

    def _again(self, work: _Work) -> None:
        if work.is_repeated_soon:
            return
        work.is_repeated_soon = True
        asyncio.get_running_loop().call_later(RETRY_MS / 1000, self._send, work)

    def _done(self, work: _Work) -> None:
        record = work.record
        if not work.is_void and not work.is_done:
            work.is_done = True
            work.slot.decide_later(lambda machine: self._complete(machine, record))

    def _complete(self, machine: SlotCoordinator, record: TransactionRecord) -> CoordinatorResult[None]:
        result = machine.transactions.markers_done(record, now_ms=self._now_ms())
        self._completed(record.transactional_id)
        return result


def _taken(queue: deque[_Part]) -> list[_Part]:
    parts: list[_Part] = []
    size = 0
    while queue and len(parts) < MAX_MARKERS_PER_REQUEST and size < MAX_PARTITIONS_PER_REQUEST:
        part = queue.popleft()
        if not part.work.is_void:
            parts.append(part)
            size += len(part.partitions)
    return parts


def _settle(part: _Part, outcome: MarkerOutcomes | None) -> bool:
    """Note the answers; False if something of the part must be sent again."""
    work = part.work
    work.in_flight.difference_update(part.partitions, part.groups)
    if outcome is None:
        return False
    written = {
        (item.topic, item.partition) for item in outcome.partitions if not item.error or item.error in _SUPERSEDED
    }
    work.partitions -= {item for item in part.partitions if (item[0], item[2]) in written}
    work.groups -= {item.group_id for item in outcome.groups if not item.error}
    return not work.partitions.intersection(part.partitions) and not work.groups.intersection(part.groups)


def _exists(partition: TopicNumber, image: MetadataImage) -> bool:
    topic = image.topics.get(partition[0])
    return topic is not None and topic.topic_id == partition[1] and partition[2] < len(topic.partitions)


def _leader_of(partition: TopicNumber, image: MetadataImage) -> tuple[int, int]:
    found = image.topics[partition[0]].partitions[partition[2]]
    return NO_BROKER if found.leader == NO_LEADER else found.leader, found.leader_epoch


def _topics(partitions: list[TopicNumber]) -> tuple[TransactionTopic, ...]:
    numbers: dict[tuple[str, str], list[int]] = {}
    for topic, topic_id, number in partitions:
        numbers.setdefault((topic, topic_id), []).append(number)
    return tuple(
        TransactionTopic(topic=topic, topic_id=topic_id, partitions=tuple(sorted(found)))
        for (topic, topic_id), found in sorted(numbers.items())
    )
