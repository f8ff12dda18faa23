"""`ShareMembership`: the heartbeats of a member of a share group, and the partitions that they assign to it."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from uuid import UUID

from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatResponse
from barnabas.log.vocabulary.share.messages import ShareGroupHeartbeatRequest
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.client import Client
from ..connection.errors import BarnabasError, FencedMemberEpochError, UnknownMemberIdError
from ..group.leaving import see_through

logger = logging.getLogger("barnabas.consumer")

LEAVE_TIMEOUT_MS = 2_000  # then its session ends by itself
_JOIN, _LEAVE = 0, -1


class ShareMembership:
    def __init__(self, client: Client, group: str, topics: tuple[str, ...], on_change: Callable[[], None]) -> None:
        self.member_id = str(UUID(int=client.rng.getrandbits(128), version=4))
        self.assigned: tuple[TopicPartition, ...] = ()
        self.error: BarnabasError | None = None  # ends the membership
        self._client = client
        self._group = group
        self._topics = topics
        self._on_change = on_change
        self._epoch = _JOIN
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self._may_be_member = False  # also by a request to join whose answer never came

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="barnabas-share-heartbeats")

    async def close(self) -> None:
        """Leave the group, if its coordinator can be reached soon. A caller that is cancelled waits for that, too, once."""
        if self._task is not None:
            await see_through(partial(self._leave, self._task))

    async def _leave(self, heartbeats: "asyncio.Task[None]") -> None:
        heartbeats.cancel()
        await asyncio.gather(heartbeats, return_exceptions=True)
        if not self._may_be_member:
            return
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_MS / 1000):
                await self._client.coordinators.call(self._group, self._request(_LEAVE), timeout_ms=LEAVE_TIMEOUT_MS)
        except UnknownMemberIdError:
            return
        except (BarnabasError, TimeoutError) as error:
            logger.info("share group=%s was not left: %s", self._group, error)

    async def _run(self) -> None:
        while True:
            delay_ms = await self._beat()
            if self.error is not None:
                return
            await asyncio.sleep(delay_ms / 1000)

    async def _beat(self) -> float:
        """Return the time until the next heartbeat, in ms."""
        try:
            answer: ConsumerGroupHeartbeatResponse
            answer = await self._client.coordinators.ask(
                self._group, self._request(self._epoch), on_sending=self._sending
            )
        except (UnknownMemberIdError, FencedMemberEpochError):
            self._epoch = _JOIN
            return 0
        except BarnabasError as error:
            self._failures += 1
            if not error.retriable:
                self.error = error
                self._on_change()
            return self._client.backoff.delay_ms(self._failures, self._client.rng.random)
        self._failures = 0
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            self.assigned = tuple(
                TopicPartition(item.topic, number) for item in answer.assignment for number in item.partitions
            )
            self._on_change()
        return answer.heartbeat_interval_ms

    def _sending(self) -> None:
        self._may_be_member = True

    def _request(self, epoch: int) -> ShareGroupHeartbeatRequest:
        return ShareGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self.member_id,
            member_epoch=epoch,
            subscribed_topics=self._topics if epoch == _JOIN else None,
            client_id=self._client.client_id,
        )
