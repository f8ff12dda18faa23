"""`Refusals`: acknowledgements without effect. Each is logged; `commit` raises the first one since the last call."""

import logging

from ..connection.errors import BarnabasError

logger = logging.getLogger("barnabas.consumer")


class Refusals:
    def __init__(self, group: str) -> None:
        self._group = group
        self._first: BarnabasError | None = (
            None  # the only one kept: a consumer that never commits must not pile them up
        )

    def note(self, partition: object, error: BarnabasError) -> None:
        logger.warning("acknowledgement refused group=%s partition=%s: %s", self._group, partition, error.message)
        self._first = self._first or error

    def raise_first(self) -> None:
        """It is told once."""
        first, self._first = self._first, None
        if first is not None:
            raise first
