"""`ClassicSession`: joins, syncs and heartbeats of a member of a classic group. The rules are in `classic_membership`."""

import logging
from typing import Any

from barnabas.log.vocabulary.group_messages import JoinGroupResponse, SyncGroupResponse
from barnabas.log.vocabulary.name_pattern import name_pattern
from barnabas.log.vocabulary.topic_partition import INTERNAL_TOPICS

from ..connection.client import Client
from ..connection.errors import BarnabasError
from .classic_membership import ClassicMembership, ClassicState
from .session import Session

logger = logging.getLogger("barnabas.consumer")

JOIN_GRACE_MS = 5_000  # On top of the rebalance timeout, before a join times out (as in Kafka).


class ClassicSession(Session):
    def __init__(
        self,
        client: Client,
        membership: ClassicMembership,
        *,
        heartbeat_interval_ms: int,
        join_timeout_ms: int,
        **options: Any,
    ) -> None:
        super().__init__(client, membership, **options)
        self.membership = membership
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._join_timeout_ms = join_timeout_ms
        self._failures = 0
        self.metadata_changed()
        self.start()

    def metadata_changed(self) -> None:
        membership, metadata = self.membership, self._client.metadata
        pattern = membership.subscription.pattern
        if pattern is not None:
            self._client.want_all_topics()
            membership.topics_are(matching(pattern, metadata.topics()))
        membership.partitions_are({topic: metadata.partition_count(topic) for topic in membership.topics_of_group})
        if membership.must_act:
            self._wake.set()
        if membership.has_change:
            self._on_change()

    async def _step(self) -> float:
        membership = self.membership
        try:
            if membership.can_join:
                await self._join()
            elif membership.state is ClassicState.SYNCING:
                await self._sync()
            else:
                request = membership.heartbeat()
                if request is not None:
                    await self._client.coordinators.ask(membership.group_id, request)
        except BarnabasError as error:
            return await self._failed(error)
        self._failures = 0
        if membership.has_change:
            self._on_change()
        return 0 if membership.must_act else self._heartbeat_interval_ms

    async def _join(self) -> None:
        membership = self.membership
        response: JoinGroupResponse = await self._client.coordinators.ask(
            membership.group_id, membership.join(), timeout_ms=self._join_timeout_ms
        )
        membership.joined(response)

    async def _sync(self) -> None:
        membership = self.membership
        if membership.must_assign:
            await self._assign()
        response: SyncGroupResponse = await self._client.coordinators.ask(
            membership.group_id, membership.sync(), timeout_ms=self._join_timeout_ms
        )
        membership.synced(response)
        logger.info("group joined group=%s generation=%d", membership.group_id, membership.epoch)

    async def _assign(self) -> None:
        """The topics of the other members may be unknown to this client."""
        topics = self.membership.topics_of_group
        for topic in topics:
            self._client.want_topic(topic)
        await self._client.refresh()
        self.membership.assign({topic: self._client.metadata.partition_count(topic) for topic in topics})

    async def _failed(self, error: BarnabasError) -> float:
        membership = self.membership
        is_ours = membership.failed(error)
        logger.info("group step failed group=%s reason=%s", membership.group_id, error.message)
        if not is_ours:
            self._on_error(error)
            await (
                self._leave()
            )  # The other members must not wait for this one. It rejoins when the application asks for records again.
        if membership.has_change:
            self._on_change()
        if is_ours and not error.retriable:
            self._failures = 0
            return 0 if membership.can_join else self._heartbeat_interval_ms
        self._failures += 1
        return min(self._client.backoff.delay_ms(self._failures, self._client.rng.random), self._heartbeat_interval_ms)


def matching(pattern: str, topics: list[str]) -> tuple[str, ...]:
    """Topics that the whole pattern matches; never internal ones, as in Kafka. Raises InvalidRegularExpressionError."""
    matches = name_pattern(pattern).matches
    return tuple(sorted(topic for topic in topics if topic not in INTERNAL_TOPICS and matches(topic)))
