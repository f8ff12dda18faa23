"""Seeds of `transaction_simulation` (`simulation.coordinator_bugs` has bugs that they find).
BARNABAS_TRANSACTION_SEEDS (30) is the number of seeds; `TransactionSimulation(seed).run()` repeats a failure."""

import contextlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from .prepared_simulation import PreparedSimulation
from .transaction_simulation import TransactionSimulation
from .transaction_variants import few_epochs, second_version_without_stamps

SEEDS = int(os.environ.get("BARNABAS_TRANSACTION_SEEDS", "30"))


@pytest.mark.parametrize("epochs", [contextlib.nullcontext, few_epochs])
def test_every_seed_keeps_the_invariants_and_settles(epochs: Callable[[], AbstractContextManager[Any]]) -> None:
    with epochs():
        for seed in range(SEEDS):
            try:
                TransactionSimulation(seed).run()
            except Exception as error:
                raise AssertionError(f"seed {seed}") from error


def test_the_second_version_needs_no_stamps() -> None:
    with second_version_without_stamps():
        for seed in range(SEEDS // 3):
            TransactionSimulation(seed).run()


@pytest.mark.parametrize("epochs", [contextlib.nullcontext, few_epochs])
def test_prepared_transactions_wait_for_their_decision(epochs: Callable[[], AbstractContextManager[Any]]) -> None:
    late = 0
    with epochs():
        for seed in range(SEEDS):
            try:
                simulation = PreparedSimulation(seed)
                simulation.run()
            except Exception as error:
                raise AssertionError(f"seed {seed}") from error
            late += simulation.decided_late
    assert late >= SEEDS, "decisions come after timeouts"


def test_histories_have_what_they_are_about() -> None:
    simulations = [TransactionSimulation(seed) for seed in range(4)]
    for simulation in simulations:
        simulation.run()
    tokens = [token for simulation in simulations for token in simulation.tokens]
    told = [token.told for token in tokens]
    assert told.count(True) > 50 and told.count(False) > 30 and told.count(None) > 10
    assert any(token.told and token.has_offset for token in tokens)
    assert {uses_v2 for simulation in simulations for uses_v2 in simulation.uses_v2.values()} == {True, False}
