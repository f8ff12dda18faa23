"""Resets of committed offsets (`group seek`), also of running groups, and their undo.

Every reset records what it replaced (`OffsetResetRecord`), so any later coordinator can undo the newest one. An undo is itself
a reset: undoing it applies the first one again.
"""

from collections import Counter
from collections.abc import Collection

from barnabas.kraft.group_state.group_slots import GroupState, SlotState
from barnabas.kraft.metadata.records import OffsetResetRecord
from barnabas.log.vocabulary.errors import InvalidRequestError, UnstableOffsetCommitError
from barnabas.log.vocabulary.group_messages import (
    CommittedOffset,
    OffsetToCommit,
    PartitionOffset,
    UndoneOffset,
    UndoOffsetResetResponse,
)

from ..classic.membership import ClassicMembership
from ..members.membership import Membership
from ..model.decision import Decision
from ..model.rebalance_causes import RebalanceCause
from .offsets import Offsets

MAX_BY_LENGTH = 200  # of the name of the client that reset the offsets: every voter keeps it


class OffsetResets:
    def __init__(
        self, *, state: SlotState, offsets: Offsets, membership: Membership, classic: ClassicMembership
    ) -> None:
        self._state = state
        self._offsets = offsets
        self._membership = membership
        self._classic = classic

    def reset(
        self, group_id: str, offsets: tuple[OffsetToCommit, ...], by: str, decision: Decision
    ) -> tuple[CommittedOffset, ...]:
        """Set offsets, even while members read. Return what was committed before.

        Running members are fenced in the same atomic batch (`Membership.fence_all`), so none of them can overwrite the new
        offsets before it has fetched them. All or nothing: one invalid partition refuses the whole request.
        """
        group = self._offsets.existing(group_id)
        for offset in offsets:
            outcome = self._offsets.judged(offset)
            if outcome.error:
                raise InvalidRequestError(f"{offset.topic}-{offset.partition}: {outcome.message}")
        times = Counter((offset.topic, offset.partition) for offset in offsets)
        for (topic, partition), count in times.items():
            if count > 1:
                raise InvalidRequestError(f"{topic}-{partition} appears {count} times in one request; give it once")
        before = tuple(self._offsets.committed(group_id, key) for key in times)
        if not offsets:
            return before
        self._remember(group_id, before, by, decision)
        for offset in offsets:
            decision.add(self._offsets.commit_record(group_id, offset, decision.now_ms))
        self._fence(group_id, group, decision)
        return before

    def undo(
        self, group_id: str, by: str, validate_only: bool, decision: Decision, *, topics: Collection[str] | None = None
    ) -> UndoOffsetResetResponse:
        """Restore what the last reset replaced, except for deleted partitions. `validate_only`: report without changes.

        All or nothing: raises InvalidRequestError if there is nothing to undo, or if a topic would move that is not in `topics`.
        """
        group = self._offsets.existing(group_id)
        kept = self._state.resets.get(group_id, ())
        if not kept:
            raise InvalidRequestError(f"group {group_id} has no recorded reset to undo")
        last = kept[-1]
        wanted = [item for item in last.before if self._offsets.exists(item.topic, item.partition)]
        others = set() if topics is None else {item.topic for item in wanted}.difference(topics)
        if others:  # not named: the client may not be allowed to know of them
            raise InvalidRequestError(
                f"the last reset of group {group_id} moved {len(others)} topics that the request does not name: preview the undo"
            )
        if any(self._state.pending.is_pending(group_id, (item.topic, item.partition)) for item in wanted):
            raise UnstableOffsetCommitError(
                f"a transaction with offsets of group {group_id} is open: wait for its end, or abort it"
            )
        before = tuple(self._offsets.committed(group_id, (item.topic, item.partition)) for item in wanted)
        undone = UndoOffsetResetResponse(
            reset_id=last.reset_id,
            at_ms=last.at_ms,
            by=last.by,
            offsets=tuple(
                UndoneOffset(topic=item.topic, partition=item.partition, before=now.offset, after=item.offset)
                for item, now in zip(wanted, before, strict=True)
            ),
        )
        if validate_only or not wanted:
            return undone
        self._remember(group_id, before, by, decision, undoes=last.reset_id)
        for item in wanted:
            self._bring_back(group_id, item, decision)
        self._fence(group_id, group, decision)
        return undone

    def _bring_back(self, group_id: str, item: PartitionOffset, decision: Decision) -> None:
        key = (item.topic, item.partition)
        if item.offset >= 0:
            decision.add(self._offsets.commit_record(group_id, item, decision.now_ms))
        elif self._state.offset(group_id, key) is not None:
            decision.add(self._offsets.remove_record(group_id, key))

    def _remember(
        self, group_id: str, before: tuple[CommittedOffset, ...], by: str, decision: Decision, undoes: int = -1
    ) -> None:
        kept = self._state.resets.get(group_id, ())
        decision.add(
            OffsetResetRecord(
                slot=self._state.slot,
                coordinator_epoch=self._state.coordinator_epoch,
                group_id=group_id,
                reset_id=kept[-1].reset_id + 1 if kept else 0,
                at_ms=decision.now_ms,
                by=by[:MAX_BY_LENGTH],
                undoes=undoes,
                before=tuple(
                    PartitionOffset(
                        topic=item.topic,
                        partition=item.partition,
                        offset=item.offset,
                        leader_epoch=item.leader_epoch,
                        metadata=item.metadata,
                    )
                    for item in before
                ),
            )
        )

    def _fence(self, group_id: str, group: GroupState | None, decision: Decision) -> None:
        self._classic.remove_all(group_id, RebalanceCause.OFFSETS_RESET, decision)
        if group is not None and group.members:
            self._membership.fence_all(group, decision)
