"""Which brokers faults keep dead, or paused. Pure: several may hold one broker, which is free when the last one has ended."""

from collections.abc import Iterable


class HeldBrokers:
    def __init__(self) -> None:
        self._holds: list[set[int]] = []  # of each fault that holds

    def hold(self, brokers: Iterable[int]) -> set[int]:
        """Returns the hold, for `release`."""
        hold = set(brokers)
        self._holds.append(hold)
        return hold

    def release(self, hold: set[int]) -> set[int]:
        """Returns the brokers of this hold that no other one has."""
        self._holds = [other for other in self._holds if other is not hold]
        return hold.difference(*self._holds)

    def forget(self, broker: int) -> None:
        """It is free, whatever has held it."""
        for hold in self._holds:
            hold.discard(broker)

    def __contains__(self, broker: int) -> bool:
        return any(broker in hold for hold in self._holds)
