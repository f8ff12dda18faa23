"""Offsets of a group that a transaction commits (KIP-447): as a member, whose epoch the coordinator of the group checks."""

from collections.abc import Callable
from dataclasses import dataclass

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import ProducerIdentity, TransactionalOffsetCommitRequest
from barnabas.net.wire.protocol.group_responses import OffsetCommitResponse

from ..connection.client import Client
from ..connection.errors import NotAssignedError
from .group_offsets import Offsets, offsets_to_commit, refusal_of
from .ownership import Ownership


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPositions:
    """Of one consumer, as they were when it was asked."""

    group_id: str
    offsets: Offsets
    membership: Ownership | None  # None: from outside of the group
    tenures: dict[TopicPartition, int]  # of the partitions, see `Ownership.tenures`
    reads_committed: bool  # the isolation level of the consumer
    on_committed: Callable[[], None]  # to be called when the transaction is committed

    def check_owned(self) -> None:
        """Raises NotAssignedError if one of the partitions was lost since, even if it is owned again: another member may have
        committed meanwhile."""
        if self.membership is not None and self.membership.tenures(self.offsets) != self.tenures:
            raise NotAssignedError(
                f"partitions of group {self.group_id!r} went to another member while their offsets were being committed"
            )


async def commit_in_transaction(
    client: Client,
    positions: GroupPositions,
    *,
    transactional_id: str,
    producer: ProducerIdentity,
    timeout_ms: int,
) -> None:
    """Ask the coordinator of the group until it takes the offsets. May be repeated: they count when the transaction is committed.

    Raises the first refusal."""
    if not positions.offsets:
        return

    async def attempt() -> None:
        positions.check_owned()
        membership = positions.membership
        request = TransactionalOffsetCommitRequest(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id=positions.group_id,
            member_id="" if membership is None else membership.member_id,
            member_epoch=-1 if membership is None else membership.epoch,
            partitions=offsets_to_commit(positions.offsets),
            instance_id=None if membership is None else membership.instance_id,
            uses_v2=True,
        )
        response: OffsetCommitResponse = await client.coordinators.ask(positions.group_id, request)
        for item in response.partitions:
            if item.error:
                raise refusal_of(item)

    await client.retrying(attempt, timeout_ms=timeout_ms)
