"""Committed offsets of a group: commit as a member or from outside, and fetch. Where each of them goes is the client's affair."""

from collections.abc import Iterable, Mapping

from barnabas.log.vocabulary.group_messages import CommittedOffset, OffsetToCommit, PartitionOutcome
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.group_responses import OffsetCommitResponse, OffsetFetchResponse
from barnabas.net.wire.protocol.requests import MetadataRequest, OffsetCommitRequest, OffsetFetchRequest
from barnabas.net.wire.protocol.responses import MetadataResponse

from ...base.limits import OFFSETS_PER_REQUEST
from ..connection.client import API_TIMEOUT_MS, Client
from ..connection.errors import (
    BarnabasError,
    CommitDuringRebalanceError,
    ErrorCode,
    LeaderNotAvailableError,
    PartitionGoneError,
    UnstableOffsetCommitError,
    error_for,
)
from ..connection.records import OffsetAndMetadata
from .group_membership import owned_partitions
from .ownership import Ownership

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
_WAIT_FOR_REBALANCE = frozenset({ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS})


async def commit_offsets(client: Client, group_id: str, offsets: Offsets, *, timeout_ms: int = API_TIMEOUT_MS) -> None:
    """Commit from outside of the group, again and again until it is taken or the time is over. Raises the first refusal.

    PartitionGoneError: it does not exist (any more). Consumers commit by their `commit_pipeline`.
    """

    async def attempt() -> None:
        for partition, error in (await commit_once(client, group_id, offsets)).items():
            if isinstance(error, PartitionGoneError) and await _is_known(client, partition):
                raise LeaderNotAvailableError(f"{error.message}, as far as the coordinator knows: it is new") from error
            raise error

    await client.retrying(attempt, timeout_ms=timeout_ms)


async def _is_known(client: Client, partition: TopicPartition) -> bool:
    """Whether the controller knows it: a coordinator learns of a new topic some milliseconds later."""
    request = MetadataRequest(topics=(partition.topic,), allow_auto_topic_creation=False)
    answer: MetadataResponse = await client.call_controller(request)
    return any(partition.partition < len(topic.partitions) for topic in answer.topics)


async def commit_once(
    client: Client, group_id: str, offsets: Offsets, *, membership: Ownership | None = None
) -> dict[TopicPartition, BarnabasError]:
    """Ask the coordinator once, as a member of the group or (None) from outside of it; return what it refuses, by partition.

    Raises what concerns the whole request. Very many offsets are committed in several requests, one after the other.
    """
    refused: dict[TopicPartition, BarnabasError] = {}
    every = offsets_to_commit(offsets)
    for start in range(0, max(len(every), 1), OFFSETS_PER_REQUEST):
        refused |= await _commit_part(client, group_id, every[start : start + OFFSETS_PER_REQUEST], membership)
    return refused


async def _commit_part(
    client: Client, group_id: str, offsets: tuple[OffsetToCommit, ...], membership: Ownership | None
) -> dict[TopicPartition, BarnabasError]:
    request = OffsetCommitRequest(
        group_id=group_id,
        member_id="" if membership is None else membership.member_id,
        member_epoch=-1 if membership is None else membership.epoch,
        partitions=offsets,
        instance_id=None if membership is None else membership.instance_id,
    )
    try:
        response: OffsetCommitResponse = await client.coordinators.ask(group_id, request)
    except BarnabasError as error:
        if membership is not None and membership.is_rebalancing and error.code in _WAIT_FOR_REBALANCE:
            raise CommitDuringRebalanceError(error.message) from error
        raise
    return {TopicPartition(item.topic, item.partition): refusal_of(item) for item in response.partitions if item.error}


def offsets_to_commit(offsets: Offsets) -> tuple[OffsetToCommit, ...]:
    return tuple(
        OffsetToCommit(
            topic=topic,
            partition=number,
            offset=item.offset,
            leader_epoch=item.leader_epoch,
            metadata=item.metadata,
            topic_id=item.topic_id,
        )
        for (topic, number), item in offsets.items()
    )


def refusal_of(item: PartitionOutcome) -> BarnabasError:
    name = f"commit of {item.topic}-{item.partition}"
    if item.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return PartitionGoneError(f"{name}: {item.message or 'there is no such partition'}")
    return error_for(item.error, item.message or name)


async def fetch_committed(
    client: Client,
    group_id: str,
    partitions: list[TopicPartition] | None,
    *,
    timeout_ms: int = API_TIMEOUT_MS,
    is_stable: bool = True,
) -> dict[TopicPartition, CommittedOffset]:
    """What the group has committed; partitions without a commit are left out. `is_stable`: waits for open transactions with
    offsets of them; raises UnstableOffsetCommitError at the timeout."""

    async def attempt() -> dict[TopicPartition, CommittedOffset]:
        found, unstable = await _fetch(client, group_id, partitions, is_stable=is_stable)
        if unstable:
            raise unstable_error(group_id, unstable)
        return found

    return await client.retrying(attempt, timeout_ms=timeout_ms)


def with_metadata(found: dict[TopicPartition, CommittedOffset]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        partition: OffsetAndMetadata(item.offset, item.metadata, item.leader_epoch) for partition, item in found.items()
    }


async def fetch_stable(
    client: Client, group_id: str, partitions: list[TopicPartition] | None
) -> tuple[dict[TopicPartition, CommittedOffset], set[TopicPartition]]:
    """What the group has committed, and the partitions whose offset an open transaction may change."""
    return await client.retrying(
        lambda: _fetch(client, group_id, partitions, is_stable=True), timeout_ms=API_TIMEOUT_MS
    )


async def _fetch(
    client: Client, group_id: str, partitions: list[TopicPartition] | None, *, is_stable: bool
) -> tuple[dict[TopicPartition, CommittedOffset], set[TopicPartition]]:
    request = OffsetFetchRequest(
        group_id=group_id,
        partitions=None if partitions is None else owned_partitions(partitions),
        require_stable=is_stable,
    )
    response: OffsetFetchResponse = await client.coordinators.ask(group_id, request)
    found = {TopicPartition(item.topic, item.partition): item for item in response.partitions if item.offset >= 0}
    return found, {TopicPartition(item.topic, number) for item in response.unstable for number in item.partitions}


def unstable_error(group_id: str, partitions: Iterable[TopicPartition]) -> UnstableOffsetCommitError:
    names = ", ".join(map(str, sorted(partitions)))
    return UnstableOffsetCommitError(
        f"a transaction that is open may commit offsets of group {group_id!r} for {names}; it ends within its timeout"
    )
