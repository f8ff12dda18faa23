"""`Places`: how many callers may do at a time what holds memory or a connection for long."""

from http import HTTPStatus

from .errors import ApiError


class Places:
    def __init__(self, limit: int, full: str) -> None:
        """`full`: what a caller is told that finds none."""
        self._limit = limit
        self._full = full
        self.taken = 0

    def take(self) -> None:
        """Give it back with `leave`. Raises ApiError."""
        if self.taken >= self._limit:
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.SERVICE_UNAVAILABLE, self._full)
        self.taken += 1

    def leave(self) -> None:
        assert self.taken > 0
        self.taken -= 1
