"""Offsets of very many partitions: clients name them in several requests, none of which holds a broker's loop."""

from typing import Any, cast

from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.group_messages import PartitionOutcome
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.limits import MAX_DATA_ITEMS, OFFSETS_PER_REQUEST
from barnabas.net.client.admin.group_members import delete_offsets
from barnabas.net.client.connection.records import OffsetAndMetadata
from barnabas.net.client.group.group_offsets import commit_once
from barnabas.net.wire.protocol.apis import key_of, max_items
from barnabas.net.wire.protocol.group_responses import OffsetCommitResponse
from barnabas.net.wire.protocol.requests import DeleteOffsetsRequest, OffsetCommitRequest, ResetOffsetsRequest

MANY = 2 * OFFSETS_PER_REQUEST + 1


class Asked:
    """A client, an admin client and their coordinators: what they are asked."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.client = self.coordinators = self

    async def ask(self, group_id: str, request: OffsetCommitRequest) -> OffsetCommitResponse:
        self.requests.append(request)
        code = ErrorCode.OFFSET_METADATA_TOO_LARGE
        return OffsetCommitResponse(
            partitions=tuple(
                PartitionOutcome(topic=item.topic, partition=item.partition, error=code)
                for item in request.partitions[-1:]
            )
        )

    async def call(self, group_id: str, request: Any, *, timeout_ms: int) -> None:
        self.requests.append(request)


async def test_commits_go_in_parts_and_all_refusals_are_told() -> None:
    asked = Asked()
    offsets = {TopicPartition("t", number): OffsetAndMetadata(number) for number in range(MANY)}
    refused = await commit_once(cast(Any, asked), "g", offsets)
    sent = [[item.partition for item in request.partitions] for request in asked.requests]
    assert [len(part) for part in sent] == [OFFSETS_PER_REQUEST, OFFSETS_PER_REQUEST, 1]
    assert [number for part in sent for number in part] == list(range(MANY))
    assert {place.partition for place in refused} == {part[-1] for part in sent}
    await commit_once(cast(Any, asked), "g", {})
    assert asked.requests[-1].partitions == ()  # it still says whether this member may commit


async def test_deletions_go_in_parts() -> None:
    asked = Asked()
    await delete_offsets(cast(Any, asked), "g", [TopicPartition(f"t{number % 2}", number) for number in range(MANY)])
    named = [{(item.topic, n) for item in request.partitions for n in item.partitions} for request in asked.requests]
    assert [len(part) for part in named] == [OFFSETS_PER_REQUEST, OFFSETS_PER_REQUEST, 1]
    assert len(set.union(*named)) == MANY


def test_no_request_may_decide_on_more_offsets_than_a_loop_has_time_for() -> None:
    """A reset of 100,000 held the coordinator's for 399 ms, and the quorum's thread of every voter for as long."""
    for request in (OffsetCommitRequest, ResetOffsetsRequest, DeleteOffsetsRequest):
        assert 2 * OFFSETS_PER_REQUEST <= max_items(key_of(request)) == MAX_DATA_ITEMS
