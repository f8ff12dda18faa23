"""What metrics say of transactions that their producers did not end."""

from dataclasses import dataclass, field

import pytest

from barnabas.consumer_groups.transactions.coordinator import TransactionCoordinator
from barnabas.consumer_groups.transactions.counts import TransactionCounts
from barnabas.log.vocabulary.errors import ConcurrentTransactionsError

from .test_transactions import T0, TX, World


@dataclass
class Counted(World):
    counts: TransactionCounts = field(default_factory=TransactionCounts)

    def __post_init__(self) -> None:
        self.machine = TransactionCoordinator(
            state=self.state, settings=self.settings, now_ms=self.now_ms, counts=self.counts
        )


def test_a_new_producer_and_an_operator_fence_and_time_ends() -> None:
    world = Counted()
    world.add(world.init(), T0)
    for _ in range(2):  # the repetition finds the abort under way
        with pytest.raises(ConcurrentTransactionsError):
            world.init()
    assert (world.counts.fenced, world.counts.timed_out) == (1, 0)
    world.complete()
    world.add(world.init(timeout_ms=500), T0)
    world.now_ms += 500
    world.tick()
    world.tick()
    assert (world.counts.fenced, world.counts.timed_out) == (1, 1)
    world.complete()
    world.add(world.init(), T0)
    world.machine.abort(transactional_id=TX, now_ms=world.now_ms)
    assert (world.counts.fenced, world.counts.timed_out) == (2, 1)
