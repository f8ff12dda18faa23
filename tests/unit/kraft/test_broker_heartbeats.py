"""Sessions of brokers, and the shorter one of those that a new controller hears nothing of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from barnabas.kraft.controller.memory.broker_heartbeats import BrokerHeartbeats

SESSION_MS, GRACE_MS = 3_000, 1_500


def taken_over(brokers: int) -> BrokerHeartbeats:
    heartbeats = BrokerHeartbeats(session_timeout_ms=SESSION_MS, takeover_grace_ms=GRACE_MS)
    heartbeats.begin_unknown(range(brokers), now_ms=0)
    return heartbeats


def test_who_stays_silent_after_a_takeover_is_given_up_early_when_most_have_spoken() -> None:
    heartbeats = taken_over(3)
    heartbeats.touch(0, now_ms=10)
    assert heartbeats.expired(range(3), now_ms=GRACE_MS) == frozenset()  # one of three: it may be us
    heartbeats.touch(1, now_ms=GRACE_MS)
    assert heartbeats.expired(range(3), now_ms=GRACE_MS) == {2}
    assert heartbeats.next_expiry_ms(range(3)) == GRACE_MS


def test_nobody_is_given_up_early_when_all_are_silent() -> None:
    heartbeats = taken_over(3)
    assert heartbeats.expired(range(3), now_ms=SESSION_MS - 1) == frozenset()
    assert heartbeats.expired(range(3), now_ms=SESSION_MS) == {0, 1, 2}


def test_who_was_heard_once_has_a_full_session() -> None:
    heartbeats = taken_over(3)
    for node_id in range(3):
        heartbeats.touch(node_id, now_ms=100)
    assert heartbeats.expired(range(3), now_ms=SESSION_MS) == frozenset()
    assert heartbeats.is_heard(1) and not taken_over(3).is_heard(1)


@given(st.integers(1, 8), st.sets(st.integers(0, 7)), st.integers(0, 2 * SESSION_MS))
def test_no_mass_fencing_after_a_takeover(brokers: int, heard: set[int], now_ms: int) -> None:
    """Before a full session is over, fewer than half of the brokers are given up."""
    heartbeats = taken_over(brokers)
    for node_id in heard & set(range(brokers)):
        heartbeats.touch(node_id, now_ms=0)
    expired = heartbeats.expired(range(brokers), now_ms=now_ms)
    if now_ms < SESSION_MS:
        assert 2 * len(expired) < brokers and not expired & heard
    else:
        assert expired == frozenset(range(brokers))
    first_ms = heartbeats.next_expiry_ms(range(brokers))
    assert (now_ms >= (first_ms or 0)) == bool(expired)
