"""The coordinator of one slot: the machines of its groups, share groups and transactions, over one state.

A slot has one writer. All machines replay their decisions into the same `SlotState`, and the shell appends the records of all
in the order of their results; the duties of the shell stand in `coordinator`.
"""

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet

from barnabas.kraft.group_state.group_slots import PartitionKey
from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.log.vocabulary.group_messages import (
    NO_OFFSET,
    CommittedOffset,
    OffsetToCommit,
    UndoOffsetResetResponse,
)

from .coordinator import GroupCoordinator
from .explain.watch import GroupAlert
from .model.messages import CoordinatorResult, GroupDescription, ListedGroup
from .offsets.offsets import NO_IDS
from .offsets.transactional_offsets import StableOffsets, TransactionalOffsets
from .share.coordinator import ShareCoordinator
from .subscriptions.subscriptions import TopicsView
from .transactions.coordinator import TransactionCoordinator
from .transactions.counts import TransactionCounts
from .transactions.settings import TransactionSettings


class SlotCoordinator:
    def __init__(
        self,
        *,
        groups: GroupCoordinator,
        settings: TransactionSettings,
        now_ms: int,
        counts: TransactionCounts | None = None,
    ) -> None:
        """`groups` is the only other owner of its state."""
        self.groups = groups
        self.offsets = TransactionalOffsets(state=groups.state, offsets=groups.offsets)
        self.shares = ShareCoordinator(
            state=groups.state,
            settings=groups.settings,
            topics=groups.view.targets.topics,
            rng=groups.rng,
            now_ms=now_ms,
            is_other_group=self._has_group,
        )
        self._shares = groups.state.shares
        self.transactions = TransactionCoordinator(state=groups.state, settings=settings, now_ms=now_ms, counts=counts)

    def _has_group(self, group_id: str) -> bool:
        """Whether a group of consumers has the name."""
        state = self.groups.state
        return group_id in state.groups or group_id in state.offsets or self.groups.view.classic.has_members(group_id)

    def tick(self, now_ms: int, *, topic_ids: Mapping[str, str] = NO_IDS) -> CoordinatorResult[tuple[GroupAlert, ...]]:
        groups = self.groups.tick(now_ms, topic_ids=topic_ids)
        shares = self.shares.tick(now_ms).records if self._shares.groups else ()
        transactions = self.transactions.tick(now_ms)
        return CoordinatorResult(
            records=(*groups.records, *shares, *transactions.records),
            response=groups.response,
            answers=groups.answers,
        )

    def next_deadline_ms(self) -> int | None:
        of_groups, of_transactions = self.groups.next_deadline_ms(), self.transactions.next_deadline_ms()
        of_shares = self.shares.next_deadline_ms() if self._shares.groups else None
        if of_shares is not None and (of_groups is None or of_shares < of_groups):
            of_groups = of_shares
        if of_groups is None or of_transactions is None:
            return of_transactions if of_groups is None else of_groups
        return min(of_groups, of_transactions)

    @property
    def follows_topics(self) -> bool:
        """Whether a change of topics needs a decision (`topics_changed`); if not, `take_topics` suffices."""
        return self.groups.follows_topics or bool(self._shares.groups)

    def take_topics(self, topics: TopicsView) -> None:
        self.groups.take_topics(topics)
        self.shares.states.topics = topics

    def topics_changed(
        self, topics: TopicsView, now_ms: int, *, recreated: AbstractSet[str], changed: AbstractSet[str]
    ) -> CoordinatorResult[None]:
        groups = self.groups.topics_changed(topics, now_ms, recreated=recreated, changed=changed)
        if not self._shares.groups:
            self.shares.states.topics = topics
            return groups
        shares = self.shares.topics_changed(topics, now_ms, recreated=recreated, changed=changed)
        return CoordinatorResult(records=(*groups.records, *shares.records), response=None, answers=groups.answers)

    # --- groups of any type -------------------------------------------------------------------------------------------

    def list_groups(self) -> tuple[ListedGroup, ...]:
        return (*self.groups.list_groups().response, *self.shares.listed())

    def describe_group(self, group_id: str) -> CoordinatorResult[GroupDescription]:
        """A group that does not exist is described as DEAD."""
        if self.shares.has_group(group_id):
            return self.shares.describe(group_id)
        return self.groups.describe_group(group_id=group_id)

    def fetch_offsets(
        self,
        *,
        group_id: str,
        partitions: tuple[PartitionKey, ...] | None,
        topic_ids: Mapping[str, str],
        must_confirm: bool,
    ) -> CoordinatorResult[StableOffsets]:
        """As `TransactionalOffsets.fetch_stable`. Those of a share group are where its undone records begin."""
        if group_id not in self._shares.groups:
            return self.offsets.fetch_stable(
                group_id=group_id, partitions=partitions, topic_ids=topic_ids, must_confirm=must_confirm
            )
        states = {(state.topic, state.partition): state for state in self.shares.states.of_group(group_id).response}
        found = tuple(
            CommittedOffset(
                topic=key[0],
                partition=key[1],
                offset=states[key].start_offset if key in states else NO_OFFSET,
                topic_id=topic_ids.get(key[0], ""),
            )
            for key in (states if partitions is None else partitions)
        )
        return CoordinatorResult(records=(), response=StableOffsets(offsets=found, unstable=frozenset()))

    def reset_offsets(
        self,
        *,
        group_id: str,
        offsets: tuple[OffsetToCommit, ...],
        topic_ids: Mapping[str, str],
        now_ms: int,
        by: str = "",
    ) -> CoordinatorResult[None]:
        """All or nothing. A share group must have no members: what they hold would be given out again without their knowledge."""
        if not self.shares.has_group(group_id):
            reset = self.groups.reset_offsets(group_id=group_id, offsets=offsets, now_ms=now_ms, by=by)
            return CoordinatorResult(records=reset.records, response=None, answers=reset.answers)
        altered = self.shares.states.reset_offsets(group_id, offsets, topic_ids, now_ms)
        return CoordinatorResult(records=altered.records, response=None)

    def undo_reset(
        self, *, group_id: str, now_ms: int, by: str, validate_only: bool, topics: Collection[str] | None
    ) -> CoordinatorResult[UndoOffsetResetResponse]:
        """Raises InvalidRequestError for a share group: which of its records were done is forgotten with a reset."""
        if self.shares.has_group(group_id):
            raise InvalidRequestError(f"a reset of share group {group_id} cannot be undone; reset it to another offset")
        return self.groups.undo_reset(
            group_id=group_id, now_ms=now_ms, by=by, validate_only=validate_only, topics=topics
        )

    def delete_group(self, group_id: str, now_ms: int) -> CoordinatorResult[None]:
        """Raises NonEmptyGroupError, GroupIdNotFoundError."""
        if self.shares.has_group(group_id):
            return self.shares.delete_group(group_id, now_ms)
        return self.groups.delete_group(group_id=group_id, now_ms=now_ms)
