"""What `barnabas doctor` says of a cluster, from what the cluster says of itself."""

from dataclasses import replace as replaced
from typing import Any

import pytest
from msgspec.structs import replace

from barnabas.log.vocabulary.group_messages import UnownedPartition
from barnabas.log.vocabulary.quorum import Stranger
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.doctor import Picture, TopicLimits, diagnose, without_newcomers
from barnabas.net.client.admin.finding import Weight
from barnabas.net.wire.protocol.group_responses import DescribeGroupResponse, GroupMember, UnreadPartitionResponse
from barnabas.net.wire.protocol.lag import lag_behind
from barnabas.net.wire.protocol.responses import (
    ClusterBroker,
    DescribeClusterResponse,
    DescribeQuorumResponse,
    DescribeStorageResponse,
    IgnoredSetting,
    PartitionMetadata,
    PartitionMove,
    QuorumPeer,
    StorageFolder,
    TopicMetadata,
)
from barnabas.net.wire.protocol.transaction_operations import ListedTransaction

BROKERS = tuple(
    ClusterBroker(
        node_id=number, host="h", port=1, rack=None, fenced=False, in_controlled_shutdown=False, broker_epoch=1
    )
    for number in range(3)
)


def partition(leader: int = 0, replicas: tuple[int, ...] = (0, 1, 2), isr: tuple[int, ...] | None = None) -> Any:
    in_sync = replicas if isr is None else isr
    return PartitionMetadata(error=0, leader=leader, leader_epoch=1, replicas=replicas, isr=in_sync)


def topic(name: str, *partitions: PartitionMetadata) -> TopicMetadata:
    return TopicMetadata(error=0, name=name, topic_id=name, partitions=partitions)


def peer(node_id: int, *, live: bool = True, lag: int = 0) -> QuorumPeer:
    return QuorumPeer(node_id=node_id, host="h", port=2, is_voter=True, is_live=live, lag_entries=lag)


QUORUM = DescribeQuorumResponse(
    leader_id=0, term=1, committed_index=9, voters=(0, 1, 2), peers=(peer(0), peer(1), peer(2))
)
HEALTHY = Picture(
    cluster=DescribeClusterResponse(cluster_id="c", controller_id=0, offset=9, brokers=BROKERS),
    quorum=QUORUM,
    topics=(topic("orders", partition()),),
    limits={"orders": TopicLimits(min_insync_replicas=2, retention_ms=100_000)},
)


def folder(free: int, total: int = 100 << 30, size: int = 5) -> StorageFolder:
    return StorageFolder(
        path="/data",
        directory_id="d",
        state="online",
        cause="",
        since_ms=-1,
        partitions=1,
        offline_partitions=(),
        size_bytes=size,
        free_bytes=free,
        total_bytes=total,
    )


def with_topics(*topics: TopicMetadata, **limits: Any) -> Picture:
    return replaced(HEALTHY, topics=topics, limits={topics[0].name: TopicLimits(**limits)} if limits else {})


def with_brokers(*brokers: ClusterBroker) -> Picture:
    return replaced(HEALTHY, cluster=replace(HEALTHY.cluster, brokers=brokers))


def group(*unowned: UnownedPartition, members: int = 1) -> Picture:
    found = DescribeGroupResponse(
        group_id="billing",
        state="Stable",
        group_epoch=1,
        assignment_epoch=1,
        assignor="range",
        coordinator=0,
        members=tuple(
            GroupMember(
                member_id=f"m{number}",
                instance_id=None,
                client_id="c",
                client_host="h",
                member_epoch=1,
                subscribed_topics=("orders",),
                assigned=(),
                target=(),
            )
            for number in range(members)
        ),
        unowned=unowned,
    )
    return replaced(HEALTHY, groups=(found,))


def unread(committed: int, **log: int) -> Picture:
    lag = lag_behind(committed, UnreadPartitionResponse(topic="orders", partition=0, log_end_offset=10, **log))
    return replaced(HEALTHY, lags={"billing": {TopicPartition("orders", 0): lag}})


def waits(ms: int) -> UnownedPartition:
    return UnownedPartition(topic="orders", partition=0, reason="r", text="its member is silent", since_ms=ms)


def open_for(ms: int, state: str = "Ongoing") -> Picture:
    found = ListedTransaction(
        transactional_id="tx",
        producer_id=1,
        producer_epoch=0,
        state=state,
        timeout_ms=900_000,
        duration_ms=ms,
        partition_count=1,
        group_count=0,
        coordinator=0,
    )
    return replaced(HEALTHY, long_transactions=(found,))


TURNED = tuple(partition(leader=1) for _ in range(3))
STRAIGHT = tuple(partition() for _ in range(9))
SICK = [
    (replaced(HEALTHY, quorum=replace(QUORUM, leader_id=-1)), Weight.CRITICAL, "the quorum has no leader"),
    (with_brokers(replace(BROKERS[0], fenced=True), *BROKERS[1:]), Weight.PROBLEM, "broker 0 is fenced"),
    (with_topics(topic("t", partition(leader=-1))), Weight.CRITICAL, "1 partitions have no leader: t-0"),
    (with_topics(topic("t", partition(isr=(0, 1)))), Weight.PROBLEM, "out of sync: t-0"),
    (
        with_topics(topic("t", partition(isr=(0,))), min_insync_replicas=2, retention_ms=-1),
        Weight.CRITICAL,
        "fewer replicas in sync than min.insync.replicas: t-0 (1 of 2)",
    ),
    (
        with_topics(topic("t", partition()), min_insync_replicas=4, retention_ms=-1),
        Weight.RISK,
        "topic 't' has 3 replicas and min.insync.replicas=4",
    ),
    (with_topics(topic("t", partition(replicas=(0,)))), Weight.RISK, "1 topics have partitions with one replica: t"),
    (
        replaced(HEALTHY, quorum=replace(QUORUM, peers=(peer(0), peer(1, live=False), peer(2)))),
        Weight.PROBLEM,
        "voters [1] of the quorum do not answer",
    ),
    (
        replaced(HEALTHY, quorum=replace(QUORUM, peers=(peer(0), peer(1, lag=1_001), peer(2)))),
        Weight.PROBLEM,
        "voter 1 is 1001 entries behind",
    ),
    (replaced(HEALTHY, quorum=replace(QUORUM, voters=(0, 1), peers=())), Weight.RISK, "2 voters, an even number"),
    (replaced(HEALTHY, quorum=replace(QUORUM, voters=(0,), peers=())), Weight.RISK, "the quorum has one voter"),
    (
        replaced(HEALTHY, storage=(DescribeStorageResponse(node_id=2, folders=(folder(9 << 30),)),)),
        Weight.RISK,
        "broker 2: 9.0 GiB are free for data folder /data, 9 % of the disk",
    ),
    (group(waits(30_000)), Weight.PROBLEM, "1 partitions of group 'billing' have no reader, for up to 30 s: orders-0"),
    (unread(3, log_start_offset=5), Weight.CRITICAL, "has read orders-0 up to offset 3, and the log begins at 5 now"),
    (
        unread(3, log_start_offset=0, first_unread_ms=20_000, now_ms=100_000),
        Weight.PROBLEM,
        "lags in orders-0: the oldest record that it has not read is 80 s old",
    ),
    (with_topics(topic("t", *TURNED, *STRAIGHT)), Weight.RISK, "3 of 12 partitions are not led by their preferred"),
    (open_for(600_000), Weight.RISK, "open for more than 10 minutes: tx (10 min)"),
    (
        with_topics(topic("t", replace(partition(), unclean_elections=2))),
        Weight.RISK,
        "leaders were elected that did not have all records: t-0 (2)",
    ),
    (
        with_brokers(
            replace(BROKERS[0], ignored_settings=(IgnoredSetting(key="k", of_file="1", of_cluster="2"),)), *BROKERS[1:]
        ),
        Weight.RISK,
        "k=1 in its configuration, 2 in the cluster",
    ),
]


def test_more_than_all_replicas_counts_as_all() -> None:
    found = diagnose(with_topics(topic("t", partition(isr=(0,))), min_insync_replicas=4, retention_ms=-1))
    (few,) = [item for item in found if item.weight is Weight.CRITICAL]
    assert "min.insync.replicas: t-0 (1 of 3)" in few.what


@pytest.mark.parametrize(("picture", "weight", "what"), SICK)
def test_each_sickness_is_found_alone(picture: Picture, weight: Weight, what: str) -> None:
    found = diagnose(picture)
    assert [item.weight for item in found if what in item.what] == [weight], found
    assert len(found) <= 2, "a sickness and what follows from it"


@pytest.mark.parametrize(
    "picture",
    [
        HEALTHY,
        replaced(HEALTHY, storage=(DescribeStorageResponse(node_id=2, folders=(folder(10 << 30), folder(-1, -1))),)),
        group(waits(29_999)),
        group(waits(99_999), members=0),
        unread(5, log_start_offset=5, first_unread_ms=20_001, now_ms=100_000),
        unread(5, log_start_offset=5),
        open_for(700_000, state="PrepareCommit"),
        with_topics(topic("t", *TURNED[:2], *STRAIGHT)),
        with_topics(topic("t", *TURNED)),
        with_topics(replace(topic("__consumer_offsets", *TURNED * 5), internal=True)),
        with_brokers(BROKERS[0]),
    ],
)
def test_nothing_is_found_where_nothing_is_wrong(picture: Picture) -> None:
    assert not diagnose(picture)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (group(waits(30_000)), group(waits(32_000))),
        (unread(3, log_start_offset=5), unread(4, log_start_offset=9)),
        (
            unread(3, log_start_offset=0, first_unread_ms=20_000, now_ms=100_000),
            unread(3, log_start_offset=0, first_unread_ms=20_000, now_ms=102_000),
        ),
        (open_for(600_000), open_for(660_000)),
        (
            replaced(HEALTHY, storage=(DescribeStorageResponse(node_id=2, folders=(folder(9 << 30),)),)),
            replaced(HEALTHY, storage=(DescribeStorageResponse(node_id=2, folders=(folder(8 << 30),)),)),
        ),
        (
            replaced(HEALTHY, quorum=replace(QUORUM, peers=(peer(0), peer(1, lag=1_001), peer(2)))),
            replaced(HEALTHY, quorum=replace(QUORUM, peers=(peer(0), peer(1, lag=1_002), peer(2)))),
        ),
        (
            replaced(HEALTHY, quorum=replace(QUORUM, leader_id=-1, unconfirmed_ms=1_000)),
            replaced(HEALTHY, quorum=replace(QUORUM, leader_id=-1, unconfirmed_ms=9_000)),
        ),
    ],
)
def test_a_sickness_that_grows_stays_the_same(before: Picture, after: Picture) -> None:
    (one,), (other,) = diagnose(before), diagnose(after)
    assert one.what != other.what
    assert one.identity == other.identity


def test_a_sickness_of_another_partition_is_another_one() -> None:
    (one,), (other,) = (diagnose(with_topics(topic(name, partition(leader=-1)))) for name in "ab")
    assert one.identity != other.identity


def test_a_replica_that_is_still_being_copied_is_not_out_of_sync() -> None:
    topics = [topic("t", partition(isr=(0, 1))), topic("u", partition())]
    move = PartitionMove(topic="t", partition=0, leader=0, replicas=(0, 1, 2), adding=(2,), removing=(1,))
    assert diagnose(replaced(HEALTHY, topics=topics))
    assert not diagnose(replaced(HEALTHY, topics=without_newcomers(topics, [move])))


def test_a_lost_majority_bears_no_loss_at_all() -> None:
    (found,) = diagnose(
        replaced(HEALTHY, quorum=replace(QUORUM, peers=(peer(0), peer(1, live=False), peer(2, live=False))))
    )
    assert (found.weight, found.costs) == (Weight.CRITICAL, "the quorum has no majority")
    assert "voters remove" not in found.cure, "without a majority nothing can be removed"


def test_single_replicas_are_told_the_command_that_adds_some() -> None:
    (found,) = diagnose(with_topics(topic("t", partition(replicas=(0,)))))
    assert "`barnabas partition move TOPIC PARTITION --to BROKER,BROKER,BROKER`" in found.cure


@pytest.mark.parametrize(("free", "size", "count"), [(90, 1, 0), (90, 91, 1), (9, 1, 1), (101, 900, 0)])
def test_a_disk_that_others_fill_is_no_risk_while_the_logs_have_room(free: int, size: int, count: int) -> None:
    """Of 1,000 GiB; laptops often have less than a tenth of their disk free."""
    full = folder(free << 30, 1_000 << 30, size << 30)
    found = diagnose(replaced(HEALTHY, storage=(DescribeStorageResponse(node_id=2, folders=(full,)),)))
    assert len(found) == count


def test_a_cure_can_be_pasted_into_a_shell() -> None:
    (sick,) = group(waits(30_000)).groups
    (found,) = diagnose(replaced(HEALTHY, groups=(replace(sick, group_id="a b; c"),)))
    assert found.cure == "barnabas group explain 'a b; c'"


def test_what_was_not_answered_is_named() -> None:
    (found,) = diagnose(replaced(HEALTHY, unanswered=("groups",)))
    assert (found.weight, "groups" in found.what) == (Weight.RISK, True)


def test_the_gravest_comes_first() -> None:
    topics = (topic("a", partition(replicas=(0,))), topic("b", partition(isr=(0, 1))), topic("c", partition(leader=-1)))
    found = diagnose(replaced(HEALTHY, topics=topics))
    assert [item.weight for item in found] == [Weight.CRITICAL, Weight.PROBLEM, Weight.RISK]


def test_a_broker_of_another_cluster_is_a_risk_with_its_place_and_age() -> None:
    stranger = Stranger(host="10.0.0.5", cluster_id="theirs", age_ms=12_345)
    (found,) = diagnose(replaced(HEALTHY, quorum=replace(QUORUM, strangers=(stranger,)), now_ms=100_000))
    assert found.weight is Weight.RISK and found.since_ms == 87_655
    assert found.what.startswith("a broker at 10.0.0.5 has the data folder of another cluster (theirs)")
    assert "12 s ago" in found.what and "12" not in found.identity and "mount the right data folder" in found.cure


def test_a_fenced_broker_has_costs_and_a_cure() -> None:
    (found,) = diagnose(with_brokers(replace(BROKERS[0], fenced=True), *BROKERS[1:]))
    assert found.what.startswith("broker 0 is fenced") and found.costs and "its log says why" in found.cure
