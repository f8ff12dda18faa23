"""The coordinator of one slot: the machine of its groups and the machine of its transactions, over one state.

A slot has one writer. Both machines replay their decisions into the same `SlotState`, and the shell appends the records of both
in the order of their results; the duties of the shell stand in `coordinator`.
"""

from collections.abc import Set as AbstractSet

from .coordinator import GroupCoordinator
from .explain.watch import GroupAlert
from .model.messages import CoordinatorResult
from .offsets.transactional_offsets import TransactionalOffsets
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
        self.transactions = TransactionCoordinator(state=groups.state, settings=settings, now_ms=now_ms, counts=counts)

    def tick(self, now_ms: int) -> CoordinatorResult[tuple[GroupAlert, ...]]:
        groups = self.groups.tick(now_ms)
        transactions = self.transactions.tick(now_ms)
        return CoordinatorResult(
            records=(*groups.records, *transactions.records), response=groups.response, answers=groups.answers
        )

    def next_deadline_ms(self) -> int | None:
        of_groups, of_transactions = self.groups.next_deadline_ms(), self.transactions.next_deadline_ms()
        if of_groups is None or of_transactions is None:
            return of_transactions if of_groups is None else of_groups
        return min(of_groups, of_transactions)

    @property
    def follows_topics(self) -> bool:
        """Whether a change of topics needs a decision (`topics_changed`); if not, `take_topics` suffices."""
        return self.groups.follows_topics

    def take_topics(self, topics: TopicsView) -> None:
        self.groups.take_topics(topics)

    def topics_changed(
        self, topics: TopicsView, now_ms: int, *, recreated: AbstractSet[str], changed: AbstractSet[str]
    ) -> CoordinatorResult[None]:
        return self.groups.topics_changed(topics, now_ms, recreated=recreated, changed=changed)
