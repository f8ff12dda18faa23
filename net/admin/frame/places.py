"""`Places`: how many callers may do at a time what holds memory or a connection for long."""

from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from .errors import ApiError

USERS: Final = 2  # that it takes to fill all places: one alone cannot keep all others out


class Places:
    def __init__(self, limit: int, full: str) -> None:
        """`full`: what a caller is told that finds none."""
        self._limit = limit
        self._full = full
        self._taken: Counter[str] = Counter()  # by user; none has 0

    @property
    def taken(self) -> int:
        return self._taken.total()

    def take(self, user: str = "") -> Callable[[], None]:
        """Returns what gives the place back; call it once. `user` "": it is not known who calls. Raises ApiError."""
        share = self._limit // USERS
        words = ""
        if self.taken >= self._limit:
            words = self._full
        elif user and self._taken[user] >= share:
            words = f"{user} has {share} of {self._limit} places at this broker already: end a stream, or use another broker"
        if words:
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.SERVICE_UNAVAILABLE, words)
        self._taken[user] += 1
        return lambda: self._leave(user)

    def _leave(self, user: str) -> None:
        assert self._taken[user] > 0
        self._taken[user] -= 1
        if not self._taken[user]:
            del self._taken[user]
