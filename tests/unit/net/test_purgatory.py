"""Parked requests are answered once, for the right reason, and leave nothing behind."""

import random

from barnabas.log.vocabulary.errors import ErrorCode, NotLeaderOrFollowerError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.logs.purgatory import DelayedFetch, DelayedProduce, Purgatory, ReadUpTo

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


class FakePartition:
    def __init__(self) -> None:
        self.leadership = self.leader_epoch = 1
        self.high_watermark = self.last_stable_offset = self.log_end_offset = 0
        self.durable_end_offset = 0
        self.has_enough_replicas = True
        self.is_lost = False

    def readable_bytes(self, offset: int, *, end_offset: int, max_bytes: int) -> int:
        return 100 * (end_offset - offset)


class World:
    def __init__(self, **limits: int) -> None:
        self.partitions = {TP: FakePartition(), OTHER: FakePartition()}
        self.purgatory = Purgatory(self.lookup, **limits)

    def lookup(self, topic_partition: TopicPartition) -> FakePartition:
        if self.partitions[topic_partition].is_lost:
            raise NotLeaderOrFollowerError("gone")
        return self.partitions[topic_partition]

    def produce(
        self, *offsets: tuple[TopicPartition, int], client: str = "c", timeout_ms: int = 1_000, now_ms: int = 0
    ) -> DelayedProduce:
        operation = DelayedProduce(token=object(), client=client, timeout_ms=timeout_ms)
        for topic_partition, offset in offsets:
            operation.wait_for(topic_partition, required_offset=offset, leadership=1)
        assert self.purgatory.park(operation, now_ms)
        return operation

    def fetch(
        self, read_up_to: ReadUpTo, *, min_bytes: int = 1, offset: int = 0, tps: tuple[TopicPartition, ...] = (TP,)
    ) -> DelayedFetch:
        operation = DelayedFetch(
            token=object(),
            client="f",
            timeout_ms=500,
            min_bytes=min_bytes,
            read_up_to=read_up_to,
            offsets={topic_partition: (offset, 1) for topic_partition in tps},
        )
        assert self.purgatory.park(operation, 0)
        return operation

    def assert_empty(self) -> None:
        purgatory = self.purgatory
        assert len(purgatory) == 0
        assert (purgatory._watches, purgatory._by_client, purgatory._by_timeout) == ({}, {}, {})


def test_produces_complete_in_the_order_of_their_offsets():
    world = World()
    operations = [world.produce((TP, offset)) for offset in (1, 2, 3)]
    assert world.purgatory.check(TP) == []
    world.partitions[TP].high_watermark = 2
    assert world.purgatory.check(TP) == operations[:2]
    assert operations[0].errors == {TP: ErrorCode.NONE}
    world.partitions[TP].high_watermark = 3
    assert world.purgatory.check(TP) == operations[2:]
    world.assert_empty()


def test_a_repeated_batch_waits_in_its_place():
    world = World()
    late = world.produce((TP, 9))
    early = world.produce((TP, 4))
    world.partitions[TP].high_watermark = 5
    assert world.purgatory.check(TP) == [early]
    assert len(world.purgatory) == 1 and not late.is_done


def test_a_produce_over_several_partitions_waits_for_all():
    world = World()
    operation = world.produce((TP, 1), (OTHER, 5))
    world.partitions[TP].high_watermark = 1
    assert world.purgatory.check(TP) == []
    world.partitions[OTHER].is_lost = True
    assert world.purgatory.check(OTHER) == [operation]
    assert operation.errors == {TP: ErrorCode.NONE, OTHER: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    world.assert_empty()


def test_a_leadership_that_was_lost_and_won_again_acknowledges_nothing_of_the_first():
    world = World()
    operation = world.produce((TP, 1))
    world.partitions[TP].leadership, world.partitions[TP].high_watermark = 3, 10
    assert world.purgatory.check(TP) == [operation]
    assert operation.errors == {TP: ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_not_enough_replicas_after_the_append():
    world = World()
    operation = world.produce((TP, 1))
    world.partitions[TP].high_watermark, world.partitions[TP].has_enough_replicas = 1, False
    world.purgatory.check(TP)
    assert operation.errors == {TP: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}


def test_time_is_over_once_and_in_order():
    world = World()
    slow = world.produce((TP, 1), timeout_ms=1_000)
    quick = world.produce((TP, 2), timeout_ms=200)
    fetch = world.fetch(ReadUpTo.LOG_END)
    assert world.purgatory.next_deadline_ms() == 200
    assert world.purgatory.expire(199) == []
    assert world.purgatory.expire(200) == [quick]
    assert quick.errors == {TP: ErrorCode.REQUEST_TIMED_OUT}
    assert world.purgatory.expire(5_000) == [slow, fetch]
    assert world.purgatory.next_deadline_ms() is None
    world.assert_empty()


def test_what_is_complete_or_has_no_time_or_no_room_is_not_parked():
    world = World(max_operations=1)
    world.partitions[TP].high_watermark = 5
    done = DelayedProduce(token=1, client="c", timeout_ms=100)
    done.wait_for(TP, required_offset=5, leadership=1)
    assert not world.purgatory.park(done, 0) and done.errors == {TP: ErrorCode.NONE}
    hasty = DelayedProduce(token=1, client="c", timeout_ms=0)
    hasty.wait_for(TP, required_offset=6, leadership=1)
    assert not world.purgatory.park(hasty, 0) and hasty.errors == {TP: ErrorCode.REQUEST_TIMED_OUT}
    world.produce((TP, 6))
    crowded = DelayedProduce(token=1, client="c", timeout_ms=100)
    crowded.wait_for(TP, required_offset=7, leadership=1)
    assert not world.purgatory.park(crowded, 0) and crowded.errors == {TP: ErrorCode.REQUEST_TIMED_OUT}


def test_followers_wake_by_the_log_end_consumers_by_what_they_may_see():
    world = World()
    follower = world.fetch(ReadUpTo.LOG_END)
    consumer = world.fetch(ReadUpTo.HIGH_WATERMARK)
    committed = world.fetch(ReadUpTo.LAST_STABLE_OFFSET)
    partition = world.partitions[TP]
    partition.log_end_offset = 1
    assert world.purgatory.check(TP) == [follower]
    partition.high_watermark = 1
    assert world.purgatory.check(TP) == [consumer]
    partition.last_stable_offset = 1
    assert world.purgatory.check(TP) == [committed]
    world.assert_empty()


def test_min_bytes_are_counted_over_all_partitions():
    world = World()
    fetch = world.fetch(ReadUpTo.LOG_END, min_bytes=300, tps=(TP, OTHER))
    world.partitions[TP].log_end_offset = 2
    assert world.purgatory.check(TP) == []
    world.partitions[OTHER].log_end_offset = 1
    assert world.purgatory.check(OTHER) == [fetch]
    world.assert_empty()


def test_a_fetch_ends_with_the_leadership_the_epoch_or_a_truncation():
    for change in ("is_lost", "leader_epoch", "log_end_offset"):
        world = World()
        world.partitions[TP].log_end_offset = 5
        fetch = world.fetch(ReadUpTo.LOG_END, offset=5)
        setattr(world.partitions[TP], change, {"is_lost": True, "leader_epoch": 2, "log_end_offset": 3}[change])
        assert world.purgatory.check(TP) == [fetch]


def test_a_client_that_left_leaves_nothing():
    world = World()
    world.produce((TP, 1), (OTHER, 1), client="gone")
    stays = world.produce((TP, 2), client="here")
    assert world.purgatory.forget_client("gone") == 1
    assert world.purgatory.forget_client("gone") == 0
    world.partitions[TP].high_watermark = 2
    assert world.purgatory.check(TP) == [stays]
    world.assert_empty()


def test_expired_produces_do_not_pile_up_behind_one_that_waits_for_long():
    world = World()
    world.produce((TP, 1), timeout_ms=1_000_000)
    for step in range(1_000):
        world.produce((TP, 2 + step), timeout_ms=10, now_ms=step)
        world.purgatory.expire(step)
    assert len(world.purgatory._watches[TP].commits.entries) < 150


def test_random_histories_answer_each_operation_once_and_leak_nothing():
    for seed in range(50):
        rng = random.Random(seed)
        world = World()
        parked: set[object] = set()
        answered: list[object] = []
        for now_ms in range(200):
            tps = rng.sample((TP, OTHER), rng.choice((1, 2)))
            kind = rng.random()
            if kind < 0.5:
                operation = DelayedProduce(token=0, client=rng.randrange(5), timeout_ms=rng.choice((10, 50)))
                for topic_partition in tps:
                    end = world.partitions[topic_partition].high_watermark + rng.randrange(6)
                    operation.wait_for(topic_partition, required_offset=end, leadership=1)
                if world.purgatory.park(operation, now_ms):
                    parked.add(operation)
            elif kind < 0.8:
                world.partitions[tps[0]].high_watermark += rng.randrange(3)
                answered += world.purgatory.check(tps[0])
            elif kind < 0.9:
                gone = rng.randrange(5)
                parked -= {operation for operation in parked if operation.client == gone and not operation.is_done}  # type: ignore[attr-defined]
                world.purgatory.forget_client(gone)
            answered += world.purgatory.expire(now_ms)
        answered += world.purgatory.expire(10_000)
        assert len(answered) == len(set(answered)) and set(answered) == parked
        world.assert_empty()


def test_acks_1_waits_for_the_leaders_disk_and_not_for_the_high_watermark() -> None:
    world = World()
    operations = []
    for offset in (1, 2):
        operation = DelayedProduce(token=offset, client="c", timeout_ms=100, is_for_leader_only=True)
        operation.wait_for(TP, required_offset=offset, leadership=1)
        assert world.purgatory.park(operation, 0)
        operations.append(operation)
    everybody = world.produce((TP, 1))
    partition = world.partitions[TP]
    partition.durable_end_offset = 1
    partition.has_enough_replicas = False  # no concern of acks=1
    assert world.purgatory.check(TP) == operations[:1] and operations[0].errors == {TP: ErrorCode.NONE}
    partition.leadership = 2
    assert world.purgatory.check(TP) == [everybody, operations[1]]
    assert operations[1].errors == {TP: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    world.assert_empty()
