"""Offsets by time, asked of the leaders: what consumer and admin share."""

from collections.abc import Mapping

from barnabas.log.topic_partition import TopicPartition

from ..protocol.requests import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ListOffsetsPartition, ListOffsetsRequest
from ..protocol.responses import ListOffsetsResponse
from .client import API_TIMEOUT_MS, Client
from .errors import BarnabasError, LeaderNotAvailableError, error_for
from .records import OffsetAndTimestamp

EARLIEST = EARLIEST_TIMESTAMP
LATEST = LATEST_TIMESTAMP


async def list_offsets(
    client: Client, times_ms: Mapping[TopicPartition, int], *, timeout_ms: float = API_TIMEOUT_MS
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Return for each partition the first offset at or after its time (or EARLIEST, LATEST), wherever leaders move."""
    found: dict[TopicPartition, OffsetAndTimestamp] = {}

    async def attempt() -> None:
        failure: BarnabasError | None = None
        for node_id, partitions in _by_leader(client, [item for item in times_ms if item not in found]).items():
            try:
                failure = await _ask(client, node_id, partitions, times_ms, found) or failure
            except BarnabasError as error:
                failure = error
        if failure is not None:
            raise failure

    for topic in {partition.topic for partition in times_ms}:
        await client.wait_for_topic(topic, timeout_ms=timeout_ms)
    await client.retrying(attempt, timeout_ms=timeout_ms, before_retry=client.refresh)
    return found


def _by_leader(client: Client, partitions: list[TopicPartition]) -> dict[int, list[TopicPartition]]:
    by_leader: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        by_leader.setdefault(client.metadata.leader(partition).node_id, []).append(partition)
    return by_leader


async def _ask(
    client: Client,
    node_id: int,
    partitions: list[TopicPartition],
    times_ms: Mapping[TopicPartition, int],
    found: dict[TopicPartition, OffsetAndTimestamp],
) -> BarnabasError | None:
    """Ask one leader; answers go to `found`, the last refusal is returned."""
    if node_id < 0:
        return LeaderNotAvailableError(f"{', '.join(map(str, partitions))} has no leader now")
    request = ListOffsetsRequest(
        partitions=tuple(
            ListOffsetsPartition(
                topic=partition.topic,
                partition=partition.partition,
                timestamp_ms=times_ms[partition],
                current_leader_epoch=client.metadata.leader(partition).epoch,
            )
            for partition in partitions
        )
    )
    response: ListOffsetsResponse = await client.call(node_id, request)
    failure: BarnabasError | None = None
    for item in response.partitions:
        partition = TopicPartition(item.topic, item.partition)
        if item.error:
            failure = error_for(item.error, item.message or str(partition))
        else:
            found[partition] = OffsetAndTimestamp(
                offset=item.offset, timestamp_ms=item.timestamp_ms, leader_epoch=item.leader_epoch
            )
    return failure
