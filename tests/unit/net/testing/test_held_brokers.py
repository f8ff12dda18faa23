"""Brokers that several faults hold."""

from barnabas.net.testing.faults.held_brokers import HeldBrokers


def test_a_broker_is_free_when_the_last_fault_has_ended() -> None:
    held = HeldBrokers()
    first, second = held.hold([0, 1]), held.hold([1, 2])
    assert [broker in held for broker in (0, 1, 2, 3)] == [True, True, True, False]
    assert held.release(first) == {0}
    assert [broker in held for broker in (0, 1, 2)] == [False, True, True]
    assert held.release(second) == {1, 2}
    assert 1 not in held


def test_a_broker_that_is_forgotten_is_free_and_not_released_again() -> None:
    held = HeldBrokers()
    first, second = held.hold([0, 1]), held.hold([0, 1])
    held.forget(1)
    assert (0 in held, 1 in held) == (True, False)
    assert held.release(second) == set()
    assert held.release(first) == {0}
