"""How fast partitions are made and removed."""

import pytest

from barnabas.kraft.controller.memory.mutation_quota import BURST_PARTITIONS, PARTITIONS_PER_S, MutationQuota
from barnabas.log.vocabulary.errors import ThrottlingQuotaExceededError


def is_refused(quota: MutationQuota, now_ms: int) -> bool:
    try:
        quota.check(now_ms)
    except ThrottlingQuotaExceededError:
        return True
    return False


def test_a_burst_is_taken_and_then_the_rate() -> None:
    quota = MutationQuota()
    for _ in range(BURST_PARTITIONS):
        quota.check(0)
        quota.charge(1)
    assert is_refused(quota, 0)
    taken = 0
    for now_ms in range(0, 10_000, 1):
        if not is_refused(quota, now_ms):
            quota.charge(1)
            taken += 1
    assert PARTITIONS_PER_S * 10 - 2 <= taken <= PARTITIONS_PER_S * 10 + 1


def test_a_large_topic_is_taken_whole_and_its_tokens_come_back_before_the_next() -> None:
    quota = MutationQuota()
    quota.check(0)
    quota.charge(BURST_PARTITIONS + 10 * PARTITIONS_PER_S)
    with pytest.raises(ThrottlingQuotaExceededError, match="try again in 10001 ms"):
        quota.check(0)
    assert is_refused(quota, 9_999)
    assert not is_refused(quota, 10_001)


def test_idle_time_is_saved_up_to_the_burst_only() -> None:
    quota = MutationQuota()
    quota.check(0)
    quota.check(3_600_000)
    quota.charge(BURST_PARTITIONS)
    assert is_refused(quota, 3_600_000)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    quota = MutationQuota()
    quota.check(1_000)
    quota.charge(BURST_PARTITIONS)
    assert is_refused(quota, 0)
