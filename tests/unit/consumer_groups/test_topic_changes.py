"""What a rebalance says about changed topics."""

import pytest

from barnabas.consumer_groups.subscriptions.topic_changes import NAMES_TOLD, listed_names


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, ""), (1, "t0"), (NAMES_TOLD, "t0, t1, t2, t3, t4"), (NAMES_TOLD + 2, "t0, t1, t2, t3, t4 and 2 more")],
)
def test_names_beyond_the_first_are_counted(count: int, told: str) -> None:
    assert listed_names(f"t{number}" for number in range(count)) == told
