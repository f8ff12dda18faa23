"""`Subscriber`: what a consumer is to read, and the partitions that follow from it.

With a group, its session gets them assigned; without one, the partitions of whole topics are taken as the metadata shows them; or
the application assigns them itself.
"""

import asyncio

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.client import Client
from ..connection.errors import InvalidRequestError
from ..connection.metadata import MissingPartitions, MissingTopics
from ..group.classic_session import matching
from ..group.commits import Commits
from ..group.ownership import Subscription
from ..group.rebalancing import Rebalancing
from ..group.session import Session
from ..positions.offset_lookup import EARLIEST
from ..positions.reading import Reading
from .consumer_config import FOREVER_MS, ConsumerConfig
from .fetcher import Fetcher
from .polling import Polling
from .positions import PositionFinder


class Subscriber:
    """Of one consumer. Call `start` before anything else."""

    def __init__(self, client: Client, config: ConsumerConfig, reading: Reading, subscription: Subscription) -> None:
        self.subscription = subscription
        self.session: Session | None = None  # The membership in the group.
        self._client = client
        self._config = config
        self._reading = reading
        self._missing = MissingTopics(client.metadata, limit_ms=config.missing_topic_timeout_ms)
        self._missing_partitions = MissingPartitions(client.metadata, limit_ms=config.missing_topic_timeout_ms)
        self._told: BarnabasError | None = None  # of what is missing, for the next call of the application

    async def start(
        self, *, fetcher: Fetcher, positions: PositionFinder, polling: Polling, wake: asyncio.Event
    ) -> None:
        """Begin with the subscription, if there is one. `wake` wakes up the application's call for records."""
        self._fetcher = fetcher
        self._positions = positions
        self._polling = polling
        self._wake = wake
        if self.subscription.topics or self.subscription.pattern is not None:
            await self.subscribe(self.subscription)

    async def subscribe(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self._look_anew()
        for topic in subscription.topics:
            self._client.want_topic(topic)
        if self._config.group is None:
            await self._assign_whole_topics(subscription)
        elif self.session is not None:
            self.session.subscribe(subscription)
        else:
            self.session = self._config.session(
                self._client,
                subscription,
                on_change=self._group_changed,
                on_error=self._polling.fail,
                idle_ms=self._polling.idle_ms,
            )

    async def unsubscribe(self, commits: Commits, rebalancing: Rebalancing) -> None:
        """Drop all partitions, and leave the group, if there is one."""
        self.subscription, session = Subscription(), self.session
        if session is not None:
            if self._config.auto_commit:
                self._reading.stop_cursor()
                await commits.begin_done()
            await rebalancing.give_up_all()
            self.session = None
        try:
            if session is not None:
                await session.leave()
        finally:  # Also if the caller is cancelled: other members may own the partitions already.
            self._reading.drop(list(self._reading.states))

    def assign(self, wanted: list[TopicPartition]) -> None:
        """Read exactly these partitions. Those that stay keep their position."""
        if self.session is not None:
            raise InvalidRequestError("the group of this consumer assigns its partitions; omit the topics")
        self._look_anew()
        kept = set(wanted)
        self._reading.drop([partition for partition in self._reading.states if partition not in kept])
        self._add(wanted)
        self._client.request_refresh()
        self._positions.find_soon()

    def adopted(self, partitions: list[TopicPartition]) -> None:
        """The group has assigned these. Ask for what the metadata lacks; a leader that has moved says so itself."""
        metadata = self._client.metadata
        for partition in partitions:
            self._client.want_topic(partition.topic)
        if any(metadata.leader(partition).node_id < 0 for partition in partitions):
            self._client.request_refresh()

    def metadata_changed(self) -> None:
        """Handle new leaders; for a consumer of whole topics, read added partitions from their start."""
        states = self._reading.states
        if self.session is not None:
            self.session.metadata_changed()
        if self._config.group is None and (states or self.subscription.pattern is not None):
            for topic in self._topics_now():
                added = [item for item in self._client.metadata.partitions(topic) if item not in states]
                self._add(added)
                for partition in added:
                    states[partition].seek_to_time(EARLIEST)
                if added:
                    self._positions.find_soon()
        self._look_for_topics()
        self._fetcher.pump_soon()

    def _look_for_topics(self) -> None:
        """An application that has waited long enough is told why there are no records. A pattern waits without a limit."""
        if self.subscription.pattern is not None:
            return
        topics = self.subscription.topics or tuple(dict.fromkeys(item.topic for item in self._reading.states))
        now_ms = self._client.clock.now_ms()
        error = self._missing.failure(topics, now_ms)
        if error is None and not self.subscription.topics:  # Only an application can name partitions that do not exist.
            error = self._missing_partitions.failure(self._reading.states, now_ms)
        if error is not None:
            if not self._positions.fail(error):
                self._told = error
                self._polling.fail(error)
        elif self._told is not None and not (self._missing.is_waiting or self._missing_partitions.is_waiting):
            self._withdraw()

    def _look_anew(self) -> None:
        self._missing.reset()
        self._missing_partitions.reset()
        self._withdraw()

    def _withdraw(self) -> None:
        if self._told is not None:
            self._polling.withdraw(self._told)
            self._told = None

    def _group_changed(self) -> None:
        """The assignment changes: wake up the application's call for records, which carries it out."""
        self._reading.interrupt()
        self._wake.set()

    async def _assign_whole_topics(self, subscription: Subscription) -> None:
        topics = subscription.topics
        if subscription.pattern is not None:
            matching(subscription.pattern, [])  # Raises at once if the pattern is invalid.
            self._client.want_all_topics()
            await self._client.refresh()
            topics = self._topics_now()
        for topic in topics:
            limit_ms = self._config.missing_topic_timeout_ms
            await self._client.wait_for_topic(topic, timeout_ms=FOREVER_MS if limit_ms < 0 else limit_ms)
        self._reading.drop([partition for partition in self._reading.states if partition.topic not in topics])
        self._add([partition for topic in topics for partition in self._client.metadata.partitions(topic)])
        self._positions.find_soon()

    def _topics_now(self) -> tuple[str, ...]:
        """Without a group: the topics of the subscription."""
        pattern = self.subscription.pattern
        return self.subscription.topics if pattern is None else matching(pattern, self._client.metadata.topics())

    def _add(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._client.want_topic(partition.topic)
        self._reading.add(partitions)
