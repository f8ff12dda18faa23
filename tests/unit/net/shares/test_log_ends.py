"""Ends of partitions as their leaders tell them, and what a share group has still to do."""

from types import SimpleNamespace
from typing import Any

import pytest
from unit.net.shell_world import simulated

from barnabas.log.vocabulary.errors import BrokerNotAvailableError, ErrorCode, NetworkError, NotLeaderOrFollowerError
from barnabas.log.vocabulary.share.messages import RecordState, ShareRange
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.coordination.shares.log_ends import MAX_PARTITIONS, LogEnds, share_lag
from barnabas.net.wire.protocol.responses import ListOffsetsPartitionResponse, ListOffsetsResponse


def a_range(first: int, last: int, state: RecordState) -> ShareRange:
    return ShareRange(first_offset=first, last_offset=last, state=state, delivery_count=1)


@pytest.mark.parametrize(
    ("ranges", "lag"),
    [
        ([], 10),
        ([a_range(5, 5, RecordState.AVAILABLE), a_range(6, 8, RecordState.ACKNOWLEDGED)], 7),
        ([a_range(5, 5, RecordState.AVAILABLE), a_range(6, 8, RecordState.ARCHIVED)], 7),
        ([a_range(5, 14, RecordState.AVAILABLE)], 10),
        ([a_range(5, 20, RecordState.ACKNOWLEDGED)], 0),  # the end is older than the state
    ],
)
def test_the_lag_leaves_out_what_is_done_behind_the_start(ranges: list[ShareRange], lag: int) -> None:
    assert share_lag(5, ranges, 15) == lag


class Cluster:
    """Broker 0 leads t-0, broker 1 t-1 to t-3, broker 2 does not answer, t-5 has no leader."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.error: Exception = NetworkError("gone")

    def leader_hint(self, partition: TopicPartition) -> tuple[int, int]:
        return {0: (0, 1), 4: (2, 1), 5: (-1, -1)}.get(partition.partition, (1, 1))

    def replica(self, partition: TopicPartition) -> Any:
        if partition.topic == "moved":
            raise NotLeaderOrFollowerError("no longer")
        return SimpleNamespace(reads=SimpleNamespace(list_offset=lambda timestamp_ms: SimpleNamespace(offset=100)))

    async def ask_broker(self, node_id: int, request: Any, *, timeout_ms: int) -> ListOffsetsResponse:
        self.asked.append((node_id, len(request.partitions)))
        if node_id == 2:
            raise self.error
        return ListOffsetsResponse(
            partitions=tuple(
                ListOffsetsPartitionResponse(
                    topic=item.topic,
                    partition=item.partition,
                    offset=item.partition,
                    error=ErrorCode.NOT_LEADER_OR_FOLLOWER if item.partition == 3 else 0,
                )
                for item in request.partitions
            )
        )


@simulated
@pytest.mark.parametrize("error", [NetworkError("gone"), BrokerNotAvailableError("unknown"), ConnectionResetError()])
async def test_each_leader_is_asked_once_and_what_it_does_not_tell_is_left_out(error: Exception) -> None:
    cluster: Any = Cluster()
    cluster.error = error
    ends = LogEnds(node_id=0, replication=cluster, controller=cluster)
    found = await ends.of([*(TopicPartition("t", number) for number in range(6)), TopicPartition("moved", 0)])
    assert {place.partition: end for place, end in found.items()} == {0: 100, 1: 1, 2: 2}
    assert sorted(cluster.asked) == [(1, 3), (2, 1)]


@simulated
async def test_one_request_asks_for_a_bounded_number() -> None:
    cluster: Any = Cluster()
    ends = LogEnds(node_id=0, replication=cluster, controller=cluster)
    found = await ends.of(TopicPartition("t", number) for number in range(10, 10 + MAX_PARTITIONS + 5))
    assert cluster.asked == [(1, MAX_PARTITIONS)] and len(found) == MAX_PARTITIONS
