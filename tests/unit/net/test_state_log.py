"""Every change of state is a line in the log of its domain, and a thousand of them are a few."""

import logging
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from barnabas.kraft.metadata.image import BrokerImage, Endpoint, MetadataImage, PartitionImage, TopicImage, differences
from barnabas.kraft.metadata.records import ControllerRecord
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.kraft.quorum.quorum import Leadership
from barnabas.net.metadata.events.state_log import BURST_LINES, LINES_PER_S, SHOWN_PER_EVENT, StateLog

PARTITION = PartitionImage(replicas=(0, 1, 2), isr=(0, 1, 2), leader=0)


class Time:
    ms = 0

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return self.ms


def broker(node_id: int, **changes: Any) -> BrokerImage:
    endpoint = Endpoint(listener="PLAINTEXT", host="h", port=9092)
    known = BrokerImage(node_id=node_id, broker_epoch=7, incarnation="i", endpoints=(endpoint,), fenced=False)
    return replace(known, **changes)


def image(*partitions: PartitionImage, topic_id: str = "a", **rest: Any) -> MetadataImage:
    topics = {"t": TopicImage(name="t", topic_id=topic_id, partitions=partitions)} if partitions else {}
    return MetadataImage(topics=topics, controller_id=0, controller_epoch=1, **rest)


class World:
    def __init__(self, caplog: pytest.LogCaptureFixture, node_id: int = 9) -> None:
        caplog.set_level(logging.INFO)
        self.time = Time()
        self.log = StateLog(node_id, self.time)
        self._caplog = caplog
        self._last = MetadataImage()

    def publish(self, new: MetadataImage, *, decides: bool = True, restored: bool = False) -> list[str]:
        """The lines, as `domain event=...`, without `barnabas.`."""
        self._caplog.clear()
        publication = MetadataPublication(
            image=new,
            changes=differences(self._last, new),
            group_records=(),
            leader=Leadership(leader_id=0, term=1, is_self=decides),
            is_active_controller=decides,
            restored=restored,
            records=(
                (1, ControllerRecord(controller_id=0, controller_epoch=1)),
            ),  # one at least, where an image changes
        )
        self._last = new
        self.log.published(publication)
        return [f"{record.name.removeprefix('barnabas.')} {record.getMessage()}" for record in self._caplog.records]


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> Iterator[World]:
    yield World(caplog)


MOVING = replace(PARTITION, replicas=(0, 1, 2, 3), adding_replicas=(3,), removing_replicas=(0,))
CASES: tuple[tuple[MetadataImage, MetadataImage, list[str]], ...] = (
    (image(), image(PARTITION, PARTITION), ["topics event=created topic=t topic_id=a partitions=2 replicas=3"]),
    (image(PARTITION), image(), ["topics event=deleted topic=t topic_id=a"]),
    (
        image(PARTITION),
        image(PARTITION, topic_id="b"),
        [
            "topics event=created topic=t topic_id=b partitions=1 replicas=3",
            "topics event=deleted topic=t topic_id=a",
        ],
    ),
    (image(PARTITION), image(PARTITION, PARTITION), ["topics event=partitions_added topic=t partitions=2 was=1"]),
    (
        image(PARTITION, topic_configs={"t": {"retention.ms": "5", "segment.ms": "9"}}),
        image(PARTITION, topic_configs={"t": {"retention.ms": "6"}}),
        [
            "topics event=configured topic=t key=retention.ms value=6 was=5",
            "topics event=configured topic=t key=segment.ms value=default was=9",
        ],
    ),
    (
        image(broker_configs={"": {"k": "1"}}),
        image(broker_configs={"": {"k": "2"}, "1": {"k": "3"}}),
        [
            "controller event=configured broker=all key=k value=2 was=1",
            "controller event=configured broker=1 key=k value=3 was=default",
        ],
    ),
    (
        image(group_configs={"g": {"k": "1"}, "same": {"k": "1"}}),
        image(group_configs={"same": {"k": "1"}, "x": {"k": "2"}}),
        [
            "controller event=configured group=g key=k value=default was=1",
            "controller event=configured group=x key=k value=2 was=default",
        ],
    ),
    (
        image(PARTITION),
        image(replace(PARTITION, leader=1, leader_epoch=1, isr=(1, 2), eligible_leader_replicas=(0,))),
        [
            "controller event=elected partition=t-0 leader=1 was=0 leader_epoch=1 why=leader_unregistered",
            "controller event=isr partition=t-0 isr=1,2 was=0,1,2 eligible=0 why=unregistered",
        ],
    ),
    (
        image(PARTITION),
        image(replace(PARTITION, leader=-1, leader_epoch=1)),
        ["controller event=leaderless partition=t-0 leader=-1 was=0 leader_epoch=1 why=leader_unregistered"],
    ),
    (
        image(replace(PARTITION, leader=-1)),
        image(replace(PARTITION, unclean_elections=1)),
        [
            "controller event=elected partition=t-0 leader=0 was=-1 leader_epoch=0 why=replica_returned",
            'controller event=unclean_election partition=t-0 leader=0 risk="acknowledged records may be lost"',
        ],
    ),
    (image(PARTITION), image(MOVING), ["controller event=reassignment partition=t-0 adding=3 removing=0"]),
    (
        image(MOVING),
        image(replace(PARTITION, replicas=(1, 2, 3))),
        ["controller event=reassignment_ended partition=t-0 replicas=1,2,3 was=0,1,2,3"],
    ),
    (
        image(PARTITION),
        image(replace(PARTITION, offline_replicas=(2,))),
        ["controller event=offline_replicas partition=t-0 offline=2 was=-"],
    ),
    (
        image(),
        image(brokers={1: broker(1)}),
        [
            "controller event=registered broker=1 broker_epoch=7 rack=- endpoints=PLAINTEXT://h:9092",
            "controller event=unfenced broker=1",
        ],
    ),
    (
        image(brokers={1: broker(1)}),
        image(brokers={1: broker(1, fenced=True, decommissioning=True, in_controlled_shutdown=True)}),
        [
            "controller event=controlled_shutdown broker=1",
            "controller event=decommissioning broker=1",
            "controller event=fenced broker=1 why=not_heard",
        ],
    ),
    (
        image(brokers={1: broker(1), 2: broker(2, decommissioning=True)}),
        image(brokers={2: broker(2)}),
        ["controller event=decommission_cancelled broker=2", "controller event=unregistered broker=1"],
    ),
    (
        image(),
        replace(image(), controller_id=2, controller_epoch=3),
        ["controller event=controller controller=2 controller_epoch=3 was=0"],
    ),
)


@pytest.mark.parametrize(("old", "new", "lines"), CASES)
def test_every_decision_is_told_by_the_controller_only(
    caplog: pytest.LogCaptureFixture, old: MetadataImage, new: MetadataImage, lines: list[str]
) -> None:
    other = World(caplog)
    other.publish(old, decides=False)
    assert [line for line in other.publish(new, decides=False) if "event=controller " not in line] == []
    world = World(caplog)
    world.publish(old)
    assert world.publish(new) == lines
    assert world.publish(new) == []


def test_a_broker_tells_what_it_leads(caplog: pytest.LogCaptureFixture) -> None:
    world = World(caplog, node_id=1)
    first = image(PARTITION)
    led = image(replace(PARTITION, leader=1, leader_epoch=4, isr=(1, 2)))
    again = image(replace(PARTITION, leader=1, leader_epoch=5, isr=(1, 2)))
    lost = image(replace(PARTITION, leader=2, leader_epoch=6, isr=(1, 2)))
    told = [world.publish(new, decides=False) for new in (first, led, led, again, lost, led, image())]
    assert told[1:] == [
        ["replication event=leads partition=t-0 leader_epoch=4 isr=1,2"],
        [],
        ["replication event=leads partition=t-0 leader_epoch=5 isr=1,2"],
        ["replication event=leads_no_more partition=t-0 leader=2"],
        ["replication event=leads partition=t-0 leader_epoch=4 isr=1,2"],
        ["replication event=leads_no_more partition=t-0 leader=none"],
    ]


def test_a_thousand_elections_are_some_lines_and_a_sum(world: World) -> None:
    many = image(*[PARTITION] * 1_000)
    world.publish(many)
    lines = world.publish(image(*[replace(PARTITION, leader=1, leader_epoch=1)] * 1_000))
    assert len(lines) == SHOWN_PER_EVENT + 1
    assert lines[0] == "controller event=elected partition=t-0 leader=1 was=0 leader_epoch=1 why=leader_unregistered"
    assert lines[-1] == f"controller event=elected total=1000 not_shown={1_000 - SHOWN_PER_EVENT}"


def test_changes_without_end_are_bounded_in_time_and_what_is_missing_is_counted(world: World) -> None:
    flapping = [image(PARTITION), image(replace(PARTITION, isr=(0, 1)))] * (BURST_LINES + 100)
    world.publish(flapping[0])
    written = sum(len(world.publish(new)) for _, new in pairwise(flapping))
    assert BURST_LINES - 5 < written <= BURST_LINES
    assert world.publish(image(PARTITION)) == []
    world.time.ms += 1_000
    suppressed, line = world.publish(image(replace(PARTITION, isr=(0,))))
    assert f"lines={2 * (BURST_LINES + 100) - 1 - written + 1}" in suppressed and "event=isr" in line
    hour_lines = BURST_LINES + 3_600 * LINES_PER_S
    assert hour_lines < 40_000


def test_a_snapshot_is_one_line(world: World) -> None:
    new = replace(image(*[PARTITION] * 100), offset=55)
    assert world.publish(new, restored=True)[-1] == "metadata event=restored offset=55 topics=1 brokers=0"
