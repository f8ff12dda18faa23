"""What a share group has done in its partitions, as its coordinator and the leaders of the partitions tell it."""

from types import SimpleNamespace
from typing import Any

import pytest
from unit.net.shell_world import simulated

from barnabas.consumer_groups.share.settings import ShareSettings
from barnabas.consumer_groups.share.share_partition import BatchSpan, SharePartition
from barnabas.kraft.metadata.records import ShareStateRecord
from barnabas.log.vocabulary.errors import (
    BrokerNotAvailableError,
    NetworkError,
    NotLeaderOrFollowerError,
    UnsupportedVersionError,
)
from barnabas.log.vocabulary.share.messages import (
    AcknowledgedBatch,
    Acknowledgement,
    DeliveredRecords,
    RecordState,
    SharePartitionView,
    ShareRange,
    ShareViewsRequest,
    ShareViewsResponse,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.coordination.shares.share_views import MAX_PARTITIONS, ShareViews

GROUP = "workers"
END = 100


def machine() -> SharePartition:
    """20 records: 0 to 3 accepted, 4 to 9 released once, of which 4 and 5 are held again, 10 to 19 held."""
    made = SharePartition(start_offset=0, ranges=(), settings=ShareSettings())
    made.acquire("one", [BatchSpan(first_offset=0, last_offset=19)], max_records=20, now_ms=0)
    for first, last, kind in ((0, 3, Acknowledgement.ACCEPT), (4, 9, Acknowledgement.RELEASE)):
        made.acknowledge("one", [AcknowledgedBatch(first_offset=first, last_offset=last, kinds=(int(kind),))], 0)
    made.acquire("two", [BatchSpan(first_offset=0, last_offset=19)], max_records=2, now_ms=0, is_strict=True)
    return made


def state(partition: int) -> ShareStateRecord:
    """As it is stored: records 5 to 7 are to do and were given out twice, 8 and 9 are done."""
    ranges = (
        ShareRange(first_offset=5, last_offset=7, state=RecordState.AVAILABLE, delivery_count=2),
        ShareRange(first_offset=8, last_offset=9, state=RecordState.ACKNOWLEDGED, delivery_count=1),
    )
    return ShareStateRecord(
        slot=0,
        coordinator_epoch=0,
        group_id=GROUP,
        topic="t",
        partition=partition,
        topic_id="id",
        leader_epoch=1,
        load_id=1,
        sequence=0,
        start_offset=5,
        ranges=ranges,
    )


class Cluster:
    """Broker 0 leads partitions 0 and 1 and has loaded 0; broker 1 leads 2; broker 2 leads 3; partition 4 has no leader."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[tuple[int, int]] = []

    def find(self, key: Any) -> Any:
        return SimpleNamespace(machine=machine()) if key == (GROUP, ("id", 0)) else None

    def leader_hint(self, place: TopicPartition) -> tuple[int, int]:
        return {0: (0, 1), 1: (0, 1), 2: (1, 1), 3: (2, 1)}.get(place.partition, (-1, -1))

    def replica(self, place: TopicPartition) -> Any:
        if place.topic == "moved":
            raise NotLeaderOrFollowerError("no longer")
        reads = SimpleNamespace(list_offset=lambda timestamp_ms: SimpleNamespace(offset=END))
        return SimpleNamespace(topic_id="id", reads=reads)

    async def ask_broker(self, node_id: int, request: ShareViewsRequest, *, timeout_ms: int) -> ShareViewsResponse:
        self.asked.append((node_id, sum(len(item.partitions) for item in request.partitions)))
        if node_id == 2 and self.error is not None:
            raise self.error
        partitions = tuple(
            SharePartitionView(
                topic=item.topic, partition=number, start_offset=50, log_end_offset=60, lag=7, acquired=3
            )
            for item in request.partitions
            for number in item.partitions
        )
        return ShareViewsResponse(partitions=partitions)


def views(cluster: Any) -> ShareViews:
    parts: Any = SimpleNamespace(node_id=0, replication=cluster, controller=cluster)
    return ShareViews(parts, cluster, lambda: 0)


@simulated
@pytest.mark.parametrize(
    "error",
    [NetworkError("gone"), BrokerNotAvailableError("?"), ConnectionResetError(), UnsupportedVersionError("older")],
)
async def test_leaders_tell_of_locks_and_the_coordinator_of_what_is_stored(error: Exception) -> None:
    cluster = Cluster(error)
    loaded, stored, elsewhere, silent, leaderless = await views(cluster).of(GROUP, [state(n) for n in range(5)])
    assert (loaded.start_offset, loaded.log_end_offset, loaded.lag, loaded.acquired) == (4, END, 96, 12)
    assert loaded.deliveries == (
        DeliveredRecords(deliveries=1, count=14),
        DeliveredRecords(deliveries=2, count=2),
    )
    assert (stored.start_offset, stored.log_end_offset, stored.lag, stored.acquired) == (5, END, 93, 0)
    assert stored.deliveries == (DeliveredRecords(deliveries=2, count=3),)
    assert (elsewhere.start_offset, elsewhere.lag, elsewhere.acquired) == (50, 7, 3)
    for view in (silent, leaderless):
        assert (view.start_offset, view.log_end_offset, view.lag, view.acquired) == (5, -1, -1, -1)
        assert view.deliveries == stored.deliveries
    assert sorted(cluster.asked) == [(1, 1), (2, 1)]


@simulated
async def test_a_leader_that_begins_at_the_first_record_is_believed() -> None:
    """A reset to the start is at the leader before its state is stored anew."""
    cluster: Any = Cluster()
    told = SharePartitionView(topic="t", partition=2, start_offset=0, log_end_offset=60, lag=60, acquired=0)

    async def ask(node_id: int, request: ShareViewsRequest, *, timeout_ms: int) -> ShareViewsResponse:
        return ShareViewsResponse(partitions=(told,))

    cluster.ask_broker = ask
    assert await views(cluster).of(GROUP, [state(2)]) == (told,)


@simulated
async def test_a_leader_leaves_out_what_it_does_not_lead() -> None:
    asked = ShareViewsRequest(group_id=GROUP, partitions=())
    assert (await views(Cluster()).here(asked)).partitions == ()
    cluster: Any = Cluster()
    found = await views(cluster)._here(GROUP, [TopicPartition("moved", 0), TopicPartition("t", 1)])
    assert [(view.topic, view.partition, view.log_end_offset, view.acquired) for view in found] == [("t", 1, END, 0)]


@simulated
async def test_one_request_asks_for_a_bounded_number() -> None:
    cluster: Any = Cluster()
    cluster.leader_hint = lambda place: (1, 1)
    found = await views(cluster).of(GROUP, [state(number) for number in range(MAX_PARTITIONS + 5)])
    assert cluster.asked == [(1, MAX_PARTITIONS)]
    assert [view.acquired for view in found[-6:]] == [3, -1, -1, -1, -1, -1]
