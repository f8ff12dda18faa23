"""State that no leader of the quorum confirms is told as such: `"unconfirmed"` beside it, and RFC 9111's warning of old."""

import asyncio
from typing import Final

from barnabas.net.protocol.doubt import doubt_of
from barnabas.net.protocol.requests import DescribeQuorumRequest
from barnabas.net.protocol.responses import DescribeQuorumResponse

from .backend import AdminBackend
from .call import HERE_TIMEOUT_MS, Json

KEEP_S: Final = 1.0  # The quorum is asked so seldom, however often the API is.
STALE: Final = '110 - "Response is Stale"'  # Warning, RFC 7234, 5.5.1: tools know it, though RFC 9111 has dropped it.


class Doubts:
    """Of one broker; answers to calls of the same second share one question."""

    def __init__(self) -> None:
        self._asked: asyncio.Task[Json | None] | None = None
        self._asked_at_s = -KEEP_S

    async def now(self, backend: AdminBackend) -> Json | None:
        """What to say of the state of this moment; None: a leader of the quorum confirms it."""
        loop = asyncio.get_running_loop()
        if self._asked is None or (self._asked.done() and loop.time() - self._asked_at_s >= KEEP_S):
            self._asked, self._asked_at_s = loop.create_task(_ask(backend)), loop.time()
        return await asyncio.shield(self._asked)  # A caller who hangs up must not take the answer from the others.


async def _ask(backend: AdminBackend) -> Json | None:
    # The voters' handler answers without a quorum too.
    answer: DescribeQuorumResponse = await backend.here.call(DescribeQuorumRequest(), timeout_ms=HERE_TIMEOUT_MS)
    return doubt_of(answer)
