"""`EndWatch`: where logs end, and a notification when one of them grows.

A reader that waits for records without reading them yet would otherwise poll the ends. Here a fetch of one byte waits at each
leader instead, like any consumer's fetch, until a record arrives: a query without new records costs a broker one request per
`WAIT_MS`.
"""

import asyncio
from collections.abc import Iterable, Mapping

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.requests import READ_COMMITTED, READ_UNCOMMITTED, FetchPartition, FetchRequest
from barnabas.net.wire.protocol.responses import FetchResponse

from ..connection.client import Client
from ..connection.errors import BarnabasError
from ..connection.records import OffsetAndTimestamp
from ..positions.offset_lookup import LATEST, list_offsets, topic_id_of

WAIT_MS = 5_000  # Of one fetch at a leader without new records.
RESPONSE_GRACE_MS = 30_000
PAUSE_AFTER_FAILURE_MS = 200  # Then the ends are queried again, which finds the new leader.


class EndWatch:
    """Used on one event loop."""

    def __init__(self, client: Client, *, is_committed_only: bool) -> None:
        self._client = client
        self._isolation_level = READ_COMMITTED if is_committed_only else READ_UNCOMMITTED
        self._watched: dict[TopicPartition, int] = {}  # Ends that are current unless `_news` is set.
        self._topic_ids: dict[str, str] = {}  # of the topics that the newest answers are of
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._news = asyncio.Event()

    async def ends(
        self, partitions: Iterable[TopicPartition], *, timeout_ms: float
    ) -> tuple[dict[TopicPartition, int], dict[str, str]]:
        """Return the end of each log, and the ids of the topics that these ends are of; queries the leaders unless a watch shows
        that nothing was appended. A leader that refuses a known id of a topic makes the client look up the new one at once.

        Raises the last error if a leader could not be queried within the timeout, and TopicRecreatedError if a topic was created
        again while its leaders were asked; ask again then.
        """
        wanted = list(partitions)
        topics = {partition.topic for partition in wanted}
        if (
            not self._news.is_set()
            and all(partition in self._watched for partition in wanted)
            and all(self._client.metadata.topic_id(topic) == self._topic_ids.get(topic) for topic in topics)
        ):
            return {partition: self._watched[partition] for partition in wanted}, {
                topic: self._topic_ids[topic] for topic in topics
            }
        self._news.clear()
        self._watched = {}
        found = await list_offsets(
            self._client,
            dict.fromkeys(wanted, LATEST),
            timeout_ms=timeout_ms,
            isolation_level=self._isolation_level,
        )
        of_topics: dict[str, dict[TopicPartition, OffsetAndTimestamp]] = {}
        for place, item in found.items():
            of_topics.setdefault(place.topic, {})[place] = item
        self._topic_ids = {topic: topic_id_of(topic, [offsets]) for topic, offsets in of_topics.items()}
        return {partition: item.offset for partition, item in found.items()}, dict(self._topic_ids)

    async def wait(self, ends: Mapping[TopicPartition, int], *, timeout_ms: float) -> bool:
        """Wait until a log has grown beyond these ends; False at the timeout."""
        if not self._news.is_set():
            self._watch(ends)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        tasks = set(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _watch(self, ends: Mapping[TopicPartition, int]) -> None:
        """A fetch that already waits, from an older end, returns at once if there are new records: no need to send it again."""
        self._watched = dict(ends)
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for partition, end in ends.items():
            if partition not in self._tasks:
                by_leader.setdefault(self._client.metadata.leader(partition).node_id, {})[partition] = end
        for node_id, group in by_leader.items():
            task = asyncio.create_task(self._watch_leader(node_id, group), name=f"barnabas-watch-{node_id}")
            self._tasks.update(dict.fromkeys(group, task))

    async def _watch_leader(self, node_id: int, ends: dict[TopicPartition, int]) -> None:
        try:
            while not await self._has_news(node_id, ends):
                pass
        except BarnabasError:
            await asyncio.sleep(PAUSE_AFTER_FAILURE_MS / 1000)
        finally:
            for partition in ends:
                del self._tasks[partition]
            self._news.set()

    async def _has_news(self, node_id: int, ends: dict[TopicPartition, int]) -> bool:
        """Errors count as a change too: the leader has moved, or the log starts after the known end, or the topic was created
        again, and its ends are not those of the topic that the metadata know."""
        connection = await self._client.connect(node_id, bulk=True)
        request = FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=1,
            partitions=tuple(
                FetchPartition(
                    topic=partition.topic,
                    partition=partition.partition,
                    fetch_offset=end,
                    max_bytes=1,
                    current_leader_epoch=self._client.metadata.leader(partition).epoch,
                    topic_id=self._client.metadata.topic_id(partition.topic),
                )
                for partition, end in ends.items()
            ),
            isolation_level=self._isolation_level,
        )
        response: FetchResponse = await connection.call(request, timeout_ms=WAIT_MS + RESPONSE_GRACE_MS)
        if any(item.error for item in response.partitions):
            self._client.request_refresh()
            await asyncio.sleep(PAUSE_AFTER_FAILURE_MS / 1000)
            return True
        return any(len(item.records) for item in response.partitions)  # type: ignore[arg-type]  # a client gets bytes
