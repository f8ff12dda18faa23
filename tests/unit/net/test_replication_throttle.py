"""Bytes per second for replicas that a reassignment adds, and for nobody else."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from barnabas.kraft.metadata.image import MetadataChanges, MetadataImage, PartitionImage, TopicImage
from barnabas.kraft.metadata.topic_settings import CLUSTER_DEFAULT, REASSIGNMENT_THROTTLE
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.kraft.quorum.quorum import Leadership
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.settings.config import load
from barnabas.net.base.settings.dynamic_config import FOLLOWER_RATE, LEADER_RATE
from barnabas.net.logs.following.replication_throttle import (
    MAX_WAIT_MS,
    ReplicationThrottle,
    TokenBucket,
)

PLACE = TopicPartition("t", 0)


@given(
    st.integers(1, 10_000_000),
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 5_000_000)), min_size=1, max_size=50),
)
def test_never_more_than_the_rate_a_saved_second_and_one_batch(rate: int, offers: list[tuple[int, int]]) -> None:
    bucket = TokenBucket(rate, 0)
    now_ms = passed = last = 0
    for pause_ms, size_bytes in offers:
        now_ms += pause_ms
        if bucket.wait_ms(now_ms) == 0:
            assert passed * 1000 < rate * (1000 + now_ms)
            bucket.passed(size_bytes, now_ms)
            passed += size_bytes
            last = size_bytes
    assert (passed - last) * 1000 <= rate * (1000 + now_ms)


@given(st.integers(1, 1_000_000), st.integers(1, 10_000_000))
def test_the_wait_is_exactly_as_long_as_it_says(rate: int, size_bytes: int) -> None:
    bucket = TokenBucket(rate, 0)
    bucket.passed(size_bytes, 0)
    wait_ms = bucket.wait_ms(0)
    assert bucket.wait_ms(wait_ms) == 0
    if wait_ms:
        other = TokenBucket(rate, 0)
        other.passed(size_bytes, 0)
        assert other.wait_ms(wait_ms - 1) > 0


def test_a_clock_that_stands_still_lets_nothing_through_twice() -> None:
    bucket = TokenBucket(1_000, 5_000)
    bucket.passed(1_000, 5_000)
    assert bucket.wait_ms(5_000) > 0 and bucket.wait_ms(4_000) > 0


@dataclass
class FixedClock:
    ms: int = 0

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return self.ms


class World:
    """Broker 1 leads t-0; broker 3 is being added, broker 2 is in sync."""

    def __init__(self, node_id: int = 1, **file: str) -> None:
        self.clock = FixedClock()
        overrides = {key.replace("_", "."): value for key, value in file.items()}
        self.throttle = ReplicationThrottle(node_id=node_id, config=load(None, overrides, {}), clock=self.clock)
        self.partition = PartitionImage(replicas=(3, 2, 1), isr=(1, 2), leader=1, adding_replicas=(3,))
        self.configs: dict[str, dict[str, str]] = {}
        self.show()

    def show(self) -> None:
        topic = TopicImage(name="t", topic_id="0" * 32, partitions=(self.partition,))
        self.throttle.published(
            MetadataPublication(
                image=MetadataImage(topics={"t": topic}, broker_configs=self.configs),
                changes=MetadataChanges(broker_configs=frozenset(self.configs)),
                group_records=(),
                leader=Leadership(leader_id=1, term=1, is_self=True),
                is_active_controller=False,
            )
        )


def test_only_replicas_that_are_added_and_not_in_sync_are_held_back() -> None:
    world = World(leader_replication_throttled_rate="1000")
    for replica in (2, 3):
        world.throttle.sent(PLACE, replica, 5_000)
    assert world.throttle.send_delay_ms(PLACE, 2) == 0
    assert world.throttle.send_delay_ms(PLACE, 3) == MAX_WAIT_MS
    world.clock.ms = 4_001
    assert world.throttle.send_delay_ms(PLACE, 3) == 0
    world.throttle.sent(PLACE, 3, 5_000)
    world.partition = replace(world.partition, isr=(1, 2, 3))
    world.show()
    assert world.throttle.send_delay_ms(PLACE, 3) == 0


def test_rates_change_while_the_broker_runs() -> None:
    world = World()
    world.throttle.sent(PLACE, 3, 10**12)
    assert world.throttle.send_delay_ms(PLACE, 3) == 0
    world.configs = {"1": {LEADER_RATE: "1000"}}
    world.show()
    world.throttle.sent(PLACE, 3, 1_100)
    assert world.throttle.send_delay_ms(PLACE, 3) == 101
    world.configs = {"1": {LEADER_RATE: "100000"}}
    world.show()
    assert world.throttle.send_delay_ms(PLACE, 3) == 2
    world.configs = {"1": {}}
    world.show()
    assert world.throttle.send_delay_ms(PLACE, 3) == 0


def test_a_follower_holds_itself_back_and_the_smaller_rate_counts() -> None:
    world = World(node_id=3)
    world.configs = {CLUSTER_DEFAULT: {REASSIGNMENT_THROTTLE: "1000"}, "3": {FOLLOWER_RATE: "500"}}
    world.show()
    world.throttle.fetched(PLACE, 600)
    assert world.throttle.fetch_delay_ms(PLACE) == 201
    assert world.throttle.fetch_delay_ms(TopicPartition("other", 0)) == 0
    assert world.throttle.send_delay_ms(PLACE, 3) == 0  # its own bucket
