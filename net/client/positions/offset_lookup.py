"""Queries that only the leaders of partitions can answer, for consumer and admin: offsets by time, and unread records after an
offset."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.group_responses import UnreadPartitionResponse, UnreadResponse
from barnabas.net.wire.protocol.requests import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ListOffsetsPartition,
    ListOffsetsRequest,
    Request,
    UnreadPartition,
    UnreadRequest,
)

from ..connection.client import API_TIMEOUT_MS, Client
from ..connection.errors import (
    BarnabasError,
    InvalidConfigError,
    LeaderNotAvailableError,
    TopicRecreatedError,
    error_for,
)
from ..connection.habits import partition_of
from ..connection.metadata import NO_LEADER
from ..connection.records import OffsetAndTimestamp

EARLIEST = EARLIEST_TIMESTAMP
LATEST = LATEST_TIMESTAMP
ISOLATION_LEVELS: Final = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
MAX_UNREAD_PER_REQUEST: Final = 1_000  # so that no request blocks a leader's loop for more than a few milliseconds


def isolation_level(name: str) -> int:
    if name not in ISOLATION_LEVELS:
        raise InvalidConfigError(f"isolation_level is {name!r}; use read_uncommitted or read_committed")
    return ISOLATION_LEVELS[name]


async def list_offsets(
    client: Client,
    times_ms: Mapping[TopicPartition, int],
    *,
    timeout_ms: float = API_TIMEOUT_MS,
    isolation_level: int = READ_UNCOMMITTED,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Return for each partition the first offset at or after its time (or EARLIEST, LATEST), wherever leaders move.

    For READ_COMMITTED, LATEST is the last stable offset.
    """

    times_ms = {partition_of(partition): time_ms for partition, time_ms in times_ms.items()}
    query = _OffsetQuery(client, times_ms, isolation_level)
    return query.told(await _ask_leaders(client, list(times_ms), query.request, timeout_ms=timeout_ms))


def topic_id_of(topic: str, found: Iterable[Mapping[TopicPartition, OffsetAndTimestamp]], *, planned: str = "") -> str:
    """The id of the topic that all these offsets of one name belong to; `planned`, if it is known before, must be the same.

    Raises TopicRecreatedError: an offset of the older topic means nothing in the newer one.
    """
    before = planned
    for offsets in found:
        for item in offsets.values():
            if before not in ("", item.topic_id):
                raise TopicRecreatedError.between(topic, before, item.topic_id)
            before = item.topic_id
    return before


async def list_offsets_once(
    client: Client, times_ms: Mapping[TopicPartition, int], *, isolation_level: int = READ_UNCOMMITTED
) -> tuple[dict[TopicPartition, OffsetAndTimestamp], BarnabasError | None]:
    """As `list_offsets`, without a second question: what the leaders say now, and why partitions are missing in it. One partition
    without a leader, or one topic that is gone, holds up no other. Asks on the connections for fetches, which a consumer needs
    next: it opens no others for its start. Raises what a refresh of the metadata raises."""
    unknown = {item.topic for item in times_ms if not client.metadata.partition_count(item.topic)}
    for topic in unknown:
        client.want_topic(topic)
    if unknown:
        await client.refresh()
    query = _OffsetQuery(client, times_ms, isolation_level)
    found: dict[TopicPartition, Any] = {}
    failure = await _ask_each(client, list(times_ms), query.request, found, bulk=True)
    return query.told(found), failure


class _OffsetQuery:
    def __init__(self, client: Client, times_ms: Mapping[TopicPartition, int], level: int) -> None:
        self._client = client
        self._times_ms = times_ms
        self._level = level
        self._topic_ids: dict[
            TopicPartition, str
        ] = {}  # As each was asked for the last time: a leader answers for no other topic.

    def request(self, partitions: Sequence[TopicPartition]) -> Request:
        metadata = self._client.metadata
        self._topic_ids.update((partition, metadata.topic_id(partition.topic)) for partition in partitions)
        return ListOffsetsRequest(
            partitions=tuple(
                ListOffsetsPartition(
                    topic=partition.topic,
                    partition=partition.partition,
                    timestamp_ms=self._times_ms[partition],
                    current_leader_epoch=metadata.leader(partition).epoch,
                    topic_id=self._topic_ids[partition],
                )
                for partition in partitions
            ),
            isolation_level=self._level,
        )

    def told(self, found: Mapping[TopicPartition, Any]) -> dict[TopicPartition, OffsetAndTimestamp]:
        return {
            partition: OffsetAndTimestamp(
                offset=item.offset,
                timestamp_ms=item.timestamp_ms,
                leader_epoch=item.leader_epoch,
                topic_id=self._topic_ids[partition],
            )
            for partition, item in found.items()
        }


async def unread_behind(
    client: Client, offsets: Mapping[TopicPartition, int], *, timeout_ms: float = API_TIMEOUT_MS
) -> dict[TopicPartition, UnreadPartitionResponse]:
    """Return the unread records of each partition for a reader at its offset (-1: at the start)."""

    def request(partitions: Sequence[TopicPartition]) -> Request:
        return UnreadRequest(
            partitions=tuple(
                UnreadPartition(
                    topic=partition.topic,
                    partition=partition.partition,
                    offset=offsets[partition],
                    current_leader_epoch=client.metadata.leader(partition).epoch,
                )
                for partition in partitions
            )
        )

    return await _ask_leaders(client, list(offsets), request, timeout_ms=timeout_ms)


async def unread_now(
    client: Client, places: Iterable[tuple[TopicPartition, int]]
) -> dict[tuple[TopicPartition, int], UnreadPartitionResponse]:
    """Like `unread`, for pairs of a partition and an offset, asked once: partitions that cannot be queried are left out."""
    wanted = sorted(set(places))
    for topic in sorted({partition.topic for partition, _ in wanted}):
        client.want_topic(topic)
    await client.refresh()
    by_leader: dict[int, list[tuple[TopicPartition, int]]] = {}
    for place in wanted:
        by_leader.setdefault(client.metadata.leader(place[0]).node_id, []).append(place)
    by_leader.pop(NO_LEADER, None)
    found: dict[tuple[TopicPartition, int], UnreadPartitionResponse] = {}

    async def ask(node_id: int, asked: Sequence[tuple[TopicPartition, int]]) -> None:
        for start in range(0, len(asked), MAX_UNREAD_PER_REQUEST):
            part = asked[start : start + MAX_UNREAD_PER_REQUEST]
            request = UnreadRequest(
                partitions=tuple(
                    UnreadPartition(topic=partition.topic, partition=partition.partition, offset=offset)
                    for partition, offset in part
                )
            )
            try:
                response: UnreadResponse = await client.call(node_id, request)
            except BarnabasError:
                continue  # It is not there, or does not lead any more: its partitions are left out.
            found.update((place, item) for place, item in zip(part, response.partitions, strict=True) if not item.error)

    await asyncio.gather(*(ask(node_id, asked) for node_id, asked in by_leader.items()))
    return found


async def _ask_leaders(
    client: Client,
    wanted: Sequence[TopicPartition],
    request: Callable[[Sequence[TopicPartition]], Request],
    *,
    timeout_ms: float,
) -> dict[TopicPartition, Any]:
    """The answer for each partition, from its leader; asked again where leaders move."""
    found: dict[TopicPartition, Any] = {}

    async def attempt() -> None:
        failure = await _ask_each(client, [item for item in wanted if item not in found], request, found)
        if failure is not None:
            raise failure

    for topic in {partition.topic for partition in wanted}:
        await client.wait_for_topic(topic, timeout_ms=timeout_ms)
    await client.retrying(attempt, timeout_ms=timeout_ms, before_retry=client.refresh)
    return found


async def _ask_each(
    client: Client,
    partitions: list[TopicPartition],
    request: Callable[[Sequence[TopicPartition]], Request],
    found: dict[TopicPartition, Any],
    *,
    bulk: bool = False,
) -> BarnabasError | None:
    """Ask each leader once; the last failure is returned. `bulk`: on the connections for fetches."""
    failure: BarnabasError | None = None
    for node_id, asked in _by_leader(client, partitions).items():
        try:
            failure = await _ask(client, node_id, asked, request, found, bulk=bulk) or failure
        except BarnabasError as error:
            failure = error
    return failure


def _by_leader(client: Client, partitions: list[TopicPartition]) -> dict[int, list[TopicPartition]]:
    by_leader: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        by_leader.setdefault(client.metadata.leader(partition).node_id, []).append(partition)
    return by_leader


async def _ask(
    client: Client,
    node_id: int,
    partitions: list[TopicPartition],
    request: Callable[[Sequence[TopicPartition]], Request],
    found: dict[TopicPartition, Any],
    *,
    bulk: bool,
) -> BarnabasError | None:
    """Ask one leader; answers go to `found`, the last refusal is returned."""
    if node_id < 0:
        gone = next((item.topic for item in partitions if not client.metadata.partition_count(item.topic)), None)
        if gone is not None:
            return client.metadata.topic_failure(gone)
        beyond = next(filter(None, map(client.metadata.partition_failure, partitions)), None)
        if beyond is not None:
            return beyond
        return LeaderNotAvailableError(f"{', '.join(map(str, partitions))} has no leader")
    response = await client.call(node_id, request(partitions), bulk=bulk)
    failure: BarnabasError | None = None
    for item in response.partitions:
        partition = TopicPartition(item.topic, item.partition)
        if item.error:
            failure = error_for(item.error, item.message or str(partition))
        else:
            found[partition] = item
    return failure
