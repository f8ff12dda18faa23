"""A token bucket never gives more than its quota, its burst, and what was taken at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.net.server.quotas.token_bucket import TokenBucket


def test_what_was_used_beyond_the_burst_is_waited_for() -> None:
    bucket = TokenBucket(rate_per_s=100, burst_s=2, now_ms=0)
    assert bucket.charge(200, 0) == 0, "an idle client has saved its burst"
    assert bucket.charge(50, 0) == 500
    assert bucket.charge(0, 250) == 250
    assert bucket.charge(0, 500) == 0
    assert bucket.charge(201, 100_000) == pytest.approx(10), "no more than the burst is saved"


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(rate_per_s=100, burst_s=1, now_ms=1_000)
    bucket.charge(100, 1_000)
    assert bucket.charge(10, 0) == 100
    assert bucket.charge(0, 50) == pytest.approx(50), "it goes on from the new time"


def test_another_quota_pays_the_debt_at_its_rate_and_keeps_the_time_saved() -> None:
    bucket = TokenBucket(rate_per_s=100, burst_s=1, now_ms=0)
    bucket.charge(200, 0)
    bucket.change(rate_per_s=1_000, burst_s=1, now_ms=0)
    assert bucket.owed_ms == 100
    bucket.charge(0, 600)
    assert bucket.tokens == 500
    bucket.change(rate_per_s=10, burst_s=1, now_ms=600)
    assert bucket.tokens == 5, "half a second, as before"


def test_debt_is_forgiven_down_to_a_time() -> None:
    bucket = TokenBucket(rate_per_s=10, burst_s=1, now_ms=0)
    bucket.charge(1_010, 0)
    bucket.forgive(5_000)
    assert bucket.owed_ms == 5_000
    bucket.forgive(6_000)
    assert bucket.owed_ms == 5_000


@given(
    st.floats(0.5, 1e9),
    st.integers(1, 100),
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 60_000)), min_size=1, max_size=50),
)
def test_a_client_that_waits_gets_its_quota_its_burst_and_one_request(
    rate: float, burst_s: int, steps: list[tuple[float, float]]
) -> None:
    """Each step is a request and how long the client pauses by itself. It waits as it is told."""
    bucket = TokenBucket(rate_per_s=rate, burst_s=burst_s, now_ms=0)
    now_ms, used = 0.0, 0.0
    for amount, pause_ms in steps:
        used_before = used
        used += amount
        assert used_before <= rate * (now_ms / 1000 + burst_s) * (1 + 1e-9) + 1e-6
        now_ms += bucket.charge(amount, now_ms) + pause_ms
        assert bucket.tokens <= bucket.capacity
