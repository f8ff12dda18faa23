"""`GroupSession`: heartbeats of a member whose coordinator assigns (KIP-848). The rules are in `group_membership`.

A heartbeat of a member waits at the coordinator for its news, so a rebalance reaches us when it happens. Where we have news
meanwhile, we give that heartbeat up and send one that says everything.
"""

import asyncio
import logging
from typing import Any

from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

from ..connection.client import Client
from ..connection.errors import BarnabasError
from .group_membership import GroupMembership, Verdict
from .session import Session

logger = logging.getLogger("barnabas.consumer")

MAX_BACKOFF_SHARE = 3  # Never wait longer than a third of the heartbeat interval before a heartbeat is repeated.


class GroupSession(Session):
    def __init__(self, client: Client, membership: GroupMembership, **options: Any) -> None:
        super().__init__(client, membership, **options)
        self.membership = membership
        self._failures = 0
        self.start()

    async def _step(self) -> float:
        membership = self.membership
        sent_ms = self._client.clock.now_ms()
        request = membership.heartbeat()
        try:
            response = await self._ask(request)
        except BarnabasError as error:
            return self._failed(error)
        self._failures = 0
        if response is None:
            membership.gave_up()
            return 0
        is_news = membership.answered(response)
        if membership.has_change:
            self._on_change()
        if is_news or membership.must_tell or (request.max_wait_ms == 0 and membership.max_wait_ms > 0):
            return 0
        # It has waited at the coordinator for this long already; less, where there is no room to wait.
        return max(0, sent_ms + membership.heartbeat_interval_ms - self._client.clock.now_ms())

    def _failed(self, error: BarnabasError) -> float:
        membership = self.membership
        verdict = membership.failed(error)
        logger.info("heartbeat failed group=%s verdict=%s reason=%s", membership.group_id, verdict.name, error.message)
        if verdict is Verdict.FATAL:
            self._on_error(error)
        if membership.has_change:
            self._on_change()
        self._failures += 1
        return min(
            self._client.backoff.delay_ms(self._failures, self._client.rng.random),
            membership.heartbeat_interval_ms / MAX_BACKOFF_SHARE,
        )

    async def _ask(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse | None:
        """None: given up, because we have news."""
        ask, membership = self._client.coordinators.ask, self.membership
        asking = asyncio.ensure_future(ask(membership.group_id, request, on_sending=membership.sending))
        waking: asyncio.Future[Any] | None = None
        try:
            while request.max_wait_ms > 0 and not asking.done():
                waking = asyncio.ensure_future(self._wake.wait())
                await asyncio.wait([asking, waking], return_when=asyncio.FIRST_COMPLETED)
                if waking.done() and not asking.done():
                    self._wake.clear()
                    if self.membership.has_more_to_tell:
                        return None
                waking.cancel()
            response: ConsumerGroupHeartbeatResponse = await asking
            return response
        finally:
            asking.cancel()
            if waking is not None:
                waking.cancel()
