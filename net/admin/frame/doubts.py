"""Mark state that no quorum leader confirms: an `"unconfirmed"` field, and the Warning header of RFC 7234."""

import asyncio
from typing import Final

from barnabas.net.wire.protocol.doubt import doubt_of
from barnabas.net.wire.protocol.requests import DescribeQuorumRequest
from barnabas.net.wire.protocol.responses import DescribeQuorumResponse

from .backend import AdminBackend
from .call import HERE_TIMEOUT_MS, Json

KEEP_S: Final = 1.0  # The quorum is queried at most once in this time.
STALE: Final = '110 - "Response is Stale"'  # Warning, RFC 7234, 5.5.1: tools know it, although RFC 9111 removed it.


class Doubts:
    """The doubts of one broker; calls within KEEP_S share one query to the quorum."""

    def __init__(self) -> None:
        self._asked: asyncio.Task[Json | None] | None = None
        self._asked_at_s = -KEEP_S

    async def now(self, backend: AdminBackend) -> Json | None:
        """The doubt about the current state; None if a quorum leader confirms it."""
        loop = asyncio.get_running_loop()
        if self._asked is None or (self._asked.done() and loop.time() - self._asked_at_s >= KEEP_S):
            self._asked, self._asked_at_s = loop.create_task(_ask(backend)), loop.time()
        return await asyncio.shield(self._asked)  # A caller that disconnects must not cancel the query for the others.


async def _ask(backend: AdminBackend) -> Json | None:
    # The handler of the voters also answers without a quorum.
    answer: DescribeQuorumResponse = await backend.here.call(DescribeQuorumRequest(), timeout_ms=HERE_TIMEOUT_MS)
    return doubt_of(answer)
