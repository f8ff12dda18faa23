"""The pure parts: addresses, back-off, metadata, partitioner, accumulator, records, membership."""

import pickle
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.log.format.compression import Compression
from barnabas.log.format.record_codec import iter_records
from barnabas.log.vocabulary.errors import InvalidRecordError
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatResponse, TopicPartitions
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.retries import Backoff, Copies
from barnabas.net.client.connection.addresses import parse_bootstrap
from barnabas.net.client.connection.errors import FencedMemberEpochError, InvalidConfigError, NetworkError
from barnabas.net.client.connection.metadata import MetadataCache
from barnabas.net.client.connection.records import consumer_record
from barnabas.net.client.group.group_membership import GroupMembership, State, Verdict
from barnabas.net.client.group.ownership import Subscription
from barnabas.net.client.producer.partitioner import next_sticky, partition_of_key
from barnabas.net.client.producer.record_accumulator import Batch, PartitionQueue
from barnabas.net.wire.protocol import responses as r

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def test_addresses() -> None:
    assert parse_bootstrap("a:1, b:2,") == (("a", 1), ("b", 2))
    assert parse_bootstrap(["host", "[::1]:99"]) == (("host", 9092), ("::1", 99))
    for wrong in ("", " , ", "a:b", "a:0", "a:70000", "::1", ":9092"):
        with pytest.raises(InvalidConfigError):
            parse_bootstrap(wrong)
    with pytest.raises(InvalidConfigError, match="'http://a:1' is a URL; give host:port alone"):
        parse_bootstrap("http://a:1")
    with pytest.raises(InvalidConfigError, match="bootstrap is None"):
        parse_bootstrap(None)


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_back_off_is_capped(failures: int, chance: float) -> None:
    delay_ms = Backoff(first_ms=50, max_ms=1000).delay_ms(failures, lambda: chance)
    assert 40 <= delay_ms <= 1200


# Of Kafka's own UtilsTest.testMurmur2, by way of the sign bit and the modulo.
@pytest.mark.parametrize(
    ("key", "hashed"), [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)]
)
def test_keys_go_where_kafka_puts_them(key: bytes, hashed: int) -> None:
    assert partition_of_key(key, 1000) == (hashed & 0x7FFFFFFF) % 1000


@given(st.integers(1, 20), st.data())
def test_the_sticky_partition_moves_to_an_available_one(count: int, data: st.DataObject) -> None:
    available = data.draw(st.lists(st.integers(0, count - 1), unique=True))
    current = data.draw(st.integers(0, count - 1))
    chosen = next_sticky(current, available, count, Random(1).random)
    assert 0 <= chosen < count
    if available:
        assert chosen in available
        assert chosen != current or available == [current]


def metadata(offset: int, leaders: list[tuple[int, int]], topic_id: str = "id") -> r.MetadataResponse:
    return r.MetadataResponse(
        cluster_id="c",
        controller_id=0,
        offset=offset,
        brokers=(r.BrokerMetadata(node_id=0, host="h", port=1),),
        topics=(
            r.TopicMetadata(
                error=0,
                name="t",
                topic_id=topic_id,
                partitions=tuple(
                    r.PartitionMetadata(error=0, leader=leader, leader_epoch=epoch, replicas=(), isr=())
                    for leader, epoch in leaders
                ),
            ),
        ),
    )


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 3), st.integers(0, 5), st.booleans()), max_size=20))
def test_a_leader_epoch_never_goes_back(steps: list[tuple[int, int, int, bool]]) -> None:
    cache = MetadataCache()
    newest = -1
    for offset, leader, epoch, is_hint in steps:
        if is_hint:
            cache.hint(T0, node_id=leader, epoch=epoch)
        else:
            cache.update(metadata(offset, [(leader, epoch)]))
        assert cache.leader(T0).epoch >= newest
        newest = cache.leader(T0).epoch


def test_a_topic_made_anew_begins_anew() -> None:
    cache = MetadataCache()
    cache.update(metadata(5, [(0, 7), (0, 7)]))
    cache.update(metadata(4, [(1, 0)], topic_id="older"))
    assert cache.leader(T0).epoch == 7
    cache.update(metadata(6, [(1, 0)], topic_id="newer"))
    assert (cache.leader(T0).epoch, cache.partition_count("t")) == (0, 1)
    assert cache.without_leader(["t"]) is False
    assert cache.without_leader(["t", "u"]) is True
    cache.forget_leader(T0, node_id=1)
    assert cache.without_leader(["t"]) is True


records_drawn = st.tuples(
    st.one_of(st.none(), st.binary(max_size=20)),
    st.one_of(st.none(), st.binary(max_size=5)),
    st.lists(st.tuples(st.text(max_size=3), st.one_of(st.none(), st.binary(max_size=3))), max_size=2),
    st.integers(0, 1 << 40),
)


@given(st.lists(records_drawn, min_size=1, max_size=30))
def test_a_batch_holds_what_was_put_in(
    drawn: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]],
) -> None:
    batch = Batch(T0, room=10_000, created_ms=0, stamp_ms=17)
    for index, (value, key, headers, stamp_ms) in enumerate(drawn):
        assert batch.add(value, key, headers, stamp_ms) == index
    found = list(iter_records(batch.encode(Compression.NONE), check=True))
    assert [(one.value, one.key, list(one.headers), one.timestamp_ms) for one in found] == drawn
    batch.finish(base_offset=5)
    assert batch.metadata_of(len(drawn) - 1)[2:] == (5 + len(drawn) - 1, drawn[-1][3])


@given(st.lists(st.sampled_from(["send", "seal", "take", "ack", "retry", "refuse"]), max_size=60))
def test_a_queue_never_changes_the_order(steps: list[str]) -> None:
    """Whatever happens, what is left is in order, and nothing overtakes what is in flight."""
    queue = PartitionQueue(T0)
    sent = 0
    done: list[int] = []
    numbers: dict[int, int] = {}
    for step in steps:
        if step == "send" and queue.open is None:
            queue.open = Batch(T0, room=100, created_ms=0, stamp_ms=1)
            queue.open.add(b"%d" % sent, None, (), 1)
            numbers[id(queue.open)] = sent
            queue.open.callbacks.append(lambda number=sent: done.append(number))  # type: ignore[misc]
            sent += 1
        elif step == "seal":
            queue.seal()
        elif step == "take" and queue.is_ready:
            queue.take(200, Compression.NONE)
        elif step == "ack" and queue.in_flight:
            queue.acknowledge(queue.in_flight, base_offset=0)
        elif step == "retry" and queue.in_flight:
            queue.fail(queue.in_flight, NetworkError("lost"))
        elif step == "refuse" and queue.in_flight:
            queue.fail(queue.in_flight, InvalidRecordError("no"))
        left = [numbers[id(batch)] for batch in queue.batches()]
        assert left == sorted(left)
        assert done == list(range(len(done)))
        assert done + left == list(range(sent))


def test_records_of_users() -> None:
    record = consumer_record("t", 3, 7, 9, b"k", b"v", (("h", b"1"),))
    assert pickle.loads(pickle.dumps(record)) == record
    assert record != consumer_record("t", 4, 7, 9, b"k", b"v", (("h", b"1"),))
    assert record.topic_partition == ("t", 3)
    assert "offset=7" in repr(record)
    assert len({record, consumer_record("t", 3, 7, 9, b"k", b"v", (("h", b"1"),))}) == 1


# --- membership ------------------------------------------------------------------------------------------------------


def answer(epoch: int, *partitions: int, news: bool = True) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        member_id="m",
        member_epoch=epoch,
        heartbeat_interval_ms=100,
        assignment=(TopicPartitions(topic="t", partitions=partitions),) if news else None,
    )


def member() -> GroupMembership:
    machine = GroupMembership("g", "m", Subscription(topics=("t",)))
    machine.heartbeat()
    machine.sending()
    machine.answered(answer(1, 0, 1))
    machine.adopted(machine.change().adopt)
    return machine


def test_joining() -> None:
    machine = GroupMembership("g", "m", Subscription(topics=("t",)), instance_id="i", rack="r")
    join = machine.heartbeat()
    assert (join.member_epoch, join.subscribed_topics, join.owned, join.rack) == (0, ("t",), (), "r")
    machine.answered(answer(3, 0, 1))
    assert (machine.state, machine.epoch, machine.heartbeat_interval_ms) == (State.MEMBER, 3, 100)
    assert machine.change().adopt == {T0, T1}
    machine.adopted([T0, T1])
    assert machine.must_tell
    assert machine.heartbeat().owned == (TopicPartitions(topic="t", partitions=(0, 1)),)
    machine.answered(answer(3, news=False))
    assert not machine.must_tell
    assert machine.heartbeat().owned is None
    assert not machine.has_change


def test_revoking_is_told_before_the_rest() -> None:
    machine = member()
    machine.heartbeat()
    machine.answered(answer(2, 1, 2))
    change = machine.change()
    assert (change.revoke, change.adopt) == ({T0}, {T2})
    machine.revoked([T0])
    assert machine.heartbeat().owned == (TopicPartitions(topic="t", partitions=(1,)),)
    machine.adopted([T2])
    machine.answered(answer(2, news=False))
    assert machine.must_tell  # T2 was adopted after that heartbeat.


def test_a_lost_heartbeat_is_repeated_in_full() -> None:
    machine = member()
    machine.heartbeat()
    assert machine.failed(NetworkError("lost")) is Verdict.RETRY
    assert machine.heartbeat().owned is not None
    machine.answered(answer(1, news=False))
    machine.heartbeat()
    assert machine.failed(NetworkError("lost")) is Verdict.RETRY
    assert machine.heartbeat().owned is not None


def test_being_fenced_loses_everything_and_joins_anew() -> None:
    machine = member()
    machine.heartbeat()
    assert machine.failed(FencedMemberEpochError("old")) is Verdict.REJOIN
    assert machine.has_change
    assert machine.take_lost() == {T0, T1}
    assert machine.owned == frozenset()
    assert not machine.has_change
    join = machine.heartbeat()
    assert (join.member_epoch, join.owned, join.subscribed_topics) == (0, (), ("t",))
    assert machine.failed(InvalidRecordError("no")) is Verdict.FATAL


def test_leaving_and_coming_back() -> None:
    machine = member()
    farewell = machine.leave()
    assert farewell is not None
    assert farewell.member_epoch == -1
    machine.answered(answer(5, 0))  # Too late.
    assert (machine.state, machine.owned) == (State.LEFT, frozenset())
    machine.rejoin()
    assert machine.heartbeat().member_epoch == 0
    machine.subscribe(Subscription(topics=("u",)))
    assert machine.heartbeat().subscribed_topics == ("u",)
    machine.sending()
    assert machine.leave() is not None
    assert machine.leave() is None  # It has left already.


def test_who_may_be_known_to_the_coordinator_leaves() -> None:
    never_joined = GroupMembership("g", "m", Subscription(topics=("t",)))
    assert never_joined.leave() is None
    fenced = member()
    assert fenced.failed(FencedMemberEpochError("old")) is Verdict.REJOIN
    assert fenced.leave() is not None  # The coordinator knows it, at another epoch.
    static = GroupMembership("g", "m", Subscription(topics=("t",)), instance_id="i")
    static.heartbeat()
    assert static.leave() is None  # The heartbeat has not left this process.
    static.rejoin()
    static.heartbeat()
    static.sending()
    farewell = static.leave("shutdown")
    assert farewell is not None
    assert (farewell.member_id, farewell.member_epoch, farewell.instance_id) == ("m", -2, "i")
    assert farewell.reason == "shutdown"


def test_it_is_so_already_is_a_success_only_behind_a_copy_whose_end_is_unknown() -> None:
    refusal, already = FencedMemberEpochError("it is so already"), (FencedMemberEpochError,)
    copies = Copies()
    copies.failed(InvalidConfigError("definite: nothing was done"))
    assert not copies.is_done(refusal, already)
    copies.failed(NetworkError("the connection was lost"))
    assert copies.is_done(refusal, already)
    assert not copies.is_done(InvalidConfigError("another refusal"), already)
    more = Copies(InvalidConfigError)
    more.failed(InvalidConfigError("unknown to this caller"))
    assert more.is_done(refusal, already)


def test_brokers_spread_their_pauses_more_widely_than_clients() -> None:
    backoff = Backoff(first_ms=20, max_ms=500, jitter=0.5)
    assert [backoff.delay_ms(failures, lambda: 0.0) for failures in (1, 2, 9)] == [10, 20, 250]
    assert backoff.delay_ms(9, lambda: 1.0) == 750
