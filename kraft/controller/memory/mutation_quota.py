"""How fast partitions are created and deleted: a token for each, as in Kafka's controller mutation quota (KIP-599). Pure.

Each of them costs every broker a millisecond of its loop and a few files, and the quorum's thread a decision and a commit.
Without a limit, one request (Metadata with thousands of unknown names, CreateTopics) kept all of them busy for seconds. A request
is accepted as a whole if there is a token left, so that a topic of any allowed size can be created; later requests wait until its
tokens have been refilled.
"""

from typing import Final

from barnabas.log.vocabulary.errors import ThrottlingQuotaExceededError

PARTITIONS_PER_S: Final = 250  # a quarter of a second of each broker's loop in a second
BURST_PARTITIONS: Final = 2_500  # ten seconds of it: deployments create their topics together


class MutationQuota:
    """Invariant: tokens <= BURST_PARTITIONS; below zero after a large request."""

    def __init__(self) -> None:
        self._tokens = float(BURST_PARTITIONS)
        self._filled_ms: int | None = None

    def check(self, now_ms: int) -> None:
        """Raises ThrottlingQuotaExceededError while no token is left."""
        if self._filled_ms is not None:
            came = max(now_ms - self._filled_ms, 0) * PARTITIONS_PER_S / 1000
            self._tokens = min(self._tokens + came, BURST_PARTITIONS)
        self._filled_ms = now_ms
        if self._tokens <= 0:
            wait_ms = int(-self._tokens * 1000 / PARTITIONS_PER_S) + 1
            raise ThrottlingQuotaExceededError(
                f"topics are created or deleted too fast: more than {PARTITIONS_PER_S} partitions a second; try again in"
                f" {wait_ms} ms"
            )

    def charge(self, partitions: int) -> None:
        self._tokens -= partitions
