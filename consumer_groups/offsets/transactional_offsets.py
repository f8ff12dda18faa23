"""Offsets that transactions commit for groups (KIP-98, KIP-447): pending until the transaction ends.

Before offsets become pending, the shell asks the coordinator of the transaction whether the group is part of it. The transaction
may end while the answer is on its way, and its end may come here first: offsets that became pending then would stay so, and would
be committed by a later transaction. Therefore a commit begins with a permit (`permit`), which every end of a transaction of its
producer makes void.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from barnabas.kraft.group_state.group_slots import PartitionKey, SlotState, slot_of
from barnabas.kraft.metadata.records import PendingOffsetsEndedRecord, PendingOffsetsRecord
from barnabas.log.vocabulary.errors import (
    CoordinatorLoadInProgressError,
    GroupIdNotFoundError,
    NotCoordinatorError,
    PolicyViolationError,
)
from barnabas.log.vocabulary.group_messages import CommittedOffset, OffsetToCommit, PartitionOffset, PartitionOutcome
from barnabas.log.vocabulary.transaction_messages import NOT_STARTED, TransactionalOffsetCommitRequest

from ..model.decision import Decision
from ..model.messages import CoordinatorResult
from .offsets import NO_IDS, Offsets

# The oldest permit is void beyond this number; its client asks again. Each takes about 200 bytes.
MAX_PERMITS: Final = 10_000
# Of one group, over all open transactions: every voter keeps them beside the offsets, and applies them by one record.
MAX_PENDING_OFFSETS: Final = 20_000
SWEEP_ABOVE: Final = 1_000  # starts of transactions whose offsets may have been overruled or removed since


class Permit(NamedTuple):
    """To commit offsets of one producer's transaction. A successor of the coordinator must not take it for its own."""

    coordinator_epoch: int
    number: int  # grows by 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StableOffsets:
    """`unstable`: partitions that must be read again later, because a transaction with their offset is open."""

    offsets: tuple[CommittedOffset, ...]
    unstable: frozenset[PartitionKey]


class TransactionalOffsets:
    """Of one slot."""

    def __init__(self, *, state: SlotState, offsets: Offsets, max_permits: int = MAX_PERMITS) -> None:
        self._state = state
        self._offsets = offsets
        self._max_permits = max_permits
        # (group, producer id) -> the first permit that is valid; the newest last.
        self._valid_from: OrderedDict[tuple[str, int], Permit] = OrderedDict()
        self._last_permit = Permit(state.coordinator_epoch, 0)
        # (group, producer id) -> when the transaction of the pending offsets began, if they became pending here.
        self._started_ms: dict[tuple[str, int], int] = {}
        self._swept_at = SWEEP_ABOVE

    def permit(self, *, group_id: str, producer_id: int) -> CoordinatorResult[Permit]:
        """To be taken before the coordinator of the transaction is asked whether the group is part of it."""
        self._check_slot(group_id)
        self._last_permit = self._last_permit._replace(number=self._last_permit.number + 1)
        key = (group_id, producer_id)
        self._valid_from.setdefault(key, self._last_permit)
        self._valid_from.move_to_end(key)
        if len(self._valid_from) > self._max_permits:
            self._valid_from.popitem(last=False)
        return CoordinatorResult(records=(), response=self._last_permit)

    def commit(
        self,
        request: TransactionalOffsetCommitRequest,
        *,
        permit: Permit,
        now_ms: int,
        started_ms: int = NOT_STARTED,
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> CoordinatorResult[tuple[PartitionOutcome, ...]]:
        """`started_ms`: when the transaction began, as its coordinator says.

        Raises what an ordinary commit raises, and CoordinatorLoadInProgressError if the permit is void: ask again."""
        self._check_slot(request.group_id)
        valid_from = self._valid_from.get((request.group_id, request.producer_id))
        if valid_from is None or permit < valid_from:
            raise CoordinatorLoadInProgressError(
                f"a transaction of producer {request.producer_id} has ended meanwhile: commit the offsets again"
            )
        decision = Decision(state=self._state, now_ms=now_ms)
        outcomes, accepted = self._offsets.checked(
            request.group_id,
            request.member_id,
            request.member_epoch,
            request.partitions,
            decision,
            instance_id=request.instance_id,
            topic_ids=topic_ids,
            is_transactional=True,
        )
        if accepted:
            self._check_room(request.group_id, len(accepted))
            self._offsets.create_group(request.group_id, decision)
            decision.add(self._pending_record(request, accepted, now_ms))
            self._note_start((request.group_id, request.producer_id), started_ms)
        return CoordinatorResult(records=decision.finish(), response=outcomes)

    def end(
        self,
        *,
        group_id: str,
        producer_id: int,
        marker_epoch: int,
        uses_v2: bool,
        is_commit: bool,
        now_ms: int,
        started_ms: int = NOT_STARTED,
    ) -> CoordinatorResult[None]:
        """The transaction of this producer has ended. May be repeated: without pending offsets nothing is written.

        In the second version of the protocol the marker has the epoch of the next transaction already, whose offsets a repetition
        that comes late must not end. In the first version `started_ms` tells one transaction from the next.
        """
        self._check_slot(group_id)
        known_ms = self._started_ms.get((group_id, producer_id), NOT_STARTED)
        if NOT_STARTED != known_ms != started_ms != NOT_STARTED:
            return CoordinatorResult(records=(), response=None)  # late: its transaction has ended
        self._started_ms.pop((group_id, producer_id), None)
        self._valid_from.pop((group_id, producer_id), None)
        producer_epoch = marker_epoch - 1 if uses_v2 else marker_epoch
        decision = Decision(state=self._state, now_ms=now_ms)
        count = self._state.pending.count_ended_by(group_id, (producer_id, producer_epoch))
        if count:
            decision.add(
                PendingOffsetsEndedRecord(
                    slot=self._state.slot,
                    coordinator_epoch=self._state.coordinator_epoch,
                    group_id=group_id,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    is_commit=is_commit,
                )
            )
        return CoordinatorResult(records=decision.finish(), response=None, ended_offsets=count)

    def fetch_stable(
        self,
        *,
        group_id: str,
        partitions: tuple[PartitionKey, ...] | None,
        member_id: str = "",
        member_epoch: int = -1,
        topic_ids: Mapping[str, str] = NO_IDS,
        must_confirm: bool = True,
    ) -> CoordinatorResult[StableOffsets]:
        """Committed offsets, and the partitions of the group whose offset an open transaction may change (KIP-447).

        A consumer that continues from these offsets must not get older ones than those that are committed: a broker that was
        replaced as coordinator without knowing it would repeat transactions."""
        self._check_slot(group_id)
        found = self._offsets.fetch(group_id, partitions, member_id, member_epoch, topic_ids)
        pending = self._state.pending.keys(group_id)
        if partitions is None:
            uncommitted = pending - {(item.topic, item.partition) for item in found}
            found = (*found, *(self._offsets.committed(group_id, key) for key in sorted(uncommitted)))
        response = StableOffsets(offsets=found, unstable=pending)
        return CoordinatorResult(records=(), response=response, must_confirm=must_confirm)

    def _note_start(self, key: tuple[str, int], started_ms: int) -> None:
        self._started_ms[key] = started_ms
        if len(self._started_ms) <= self._swept_at:
            return
        pending = self._state.pending
        groups = dict.fromkeys(group_id for group_id, _ in self._started_ms)  # each once: one group may have all
        producers = {group_id: {known for known, _ in pending.transactions(group_id)} for group_id in groups}
        self._started_ms = {
            (name, known): at for (name, known), at in self._started_ms.items() if known in producers[name]
        }
        self._swept_at = max(SWEEP_ABOVE, 2 * len(self._started_ms))

    def _check_slot(self, group_id: str) -> None:
        if slot_of(group_id) != self._state.slot:
            raise NotCoordinatorError(
                f"group {group_id} belongs to slot {slot_of(group_id)}, not to slot {self._state.slot}"
            )
        if group_id in self._state.shares.groups:
            raise GroupIdNotFoundError(f"group {group_id} is a share group: it has no committed offsets")

    def _check_room(self, group_id: str, more: int) -> None:
        count = self._state.pending.count(group_id) + more
        if count > MAX_PENDING_OFFSETS:
            raise PolicyViolationError(
                f"group {group_id} would have {count} offsets of open transactions, at most {MAX_PENDING_OFFSETS} are allowed: "
                "end transactions sooner"
            )

    def _pending_record(
        self, request: TransactionalOffsetCommitRequest, accepted: list[OffsetToCommit], now_ms: int
    ) -> PendingOffsetsRecord:
        return PendingOffsetsRecord(
            slot=self._state.slot,
            coordinator_epoch=self._state.coordinator_epoch,
            group_id=request.group_id,
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            commit_timestamp_ms=now_ms,
            offsets=tuple(
                PartitionOffset(
                    topic=item.topic,
                    partition=item.partition,
                    offset=item.offset,
                    leader_epoch=item.leader_epoch,
                    metadata=item.metadata,
                )
                for item in accepted
            ),
        )
