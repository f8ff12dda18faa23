"""Events of the committed metadata: the same on every broker, however its publications are cut; never twice; right reasons."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from barnabas.kraft.metadata.delta import MetadataDelta
from barnabas.kraft.metadata.image import (
    BrokerImage,
    Endpoint,
    FolderTrouble,
    MetadataImage,
    PartitionImage,
    TopicImage,
    differences,
)
from barnabas.kraft.metadata.records import (
    BrokerChangeRecord,
    ConfigRecord,
    ControllerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from barnabas.kraft.metadata.replay import replay
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.kraft.quorum.quorum import Leadership
from barnabas.net.metadata.events.committed import MAX_COMMANDS, SHOWN_PER_COMMAND, CommittedEvents
from barnabas.net.metadata.events.event_log import SUPPRESSED, EventLog
from barnabas.net.metadata.events.state_changes import HIDDEN, Tally, decisions, own_roles
from barnabas.net.wire.protocol.event_messages import ClusterEvent

ID = "a" * 32
Command = tuple[Record, ...]


def registered(node_id: int) -> Record:
    return RegisterBrokerRecord(
        node_id=node_id,
        incarnation="i",
        endpoints=(Endpoint(listener="PLAINTEXT", host="h", port=1),),
        admin_endpoint=None,
        rack=None,
        directories=(),
        min_feature_level=1,
        max_feature_level=1,
    )


def fenced(node_id: int, is_fenced: bool) -> Record:
    epoch = START.brokers[node_id].broker_epoch
    return BrokerChangeRecord(node_id=node_id, broker_epoch=epoch, fenced=is_fenced, in_controlled_shutdown=False)


def partition_record(number: int) -> Record:
    return PartitionRecord(
        topic_id=ID,
        partition=number,
        replicas=(0, 1, 2),
        isr=(0, 1, 2),
        leader=0,
        leader_epoch=0,
        partition_epoch=0,
    )


@dataclass(kw_only=True)
class Node:
    """A broker that follows the metadata."""

    image: MetadataImage
    is_current: bool = True
    log: EventLog = field(init=False)

    def __post_init__(self) -> None:
        self.log = EventLog(0, _Time())
        self.events = CommittedEvents(self.log, lambda: self.is_current)
        self._publish(self.image, (), restored=True)

    def follow(self, first_offset: int, commands: list[Command]) -> None:
        """One publication."""
        old = self.image
        records: list[tuple[int, Record]] = []
        delta = MetadataDelta(old)
        for offset, command in enumerate(commands, first_offset):
            records += [(offset, record) for record in command if replay(delta, record, offset)]
        self.image = delta.apply(first_offset + len(commands) - 1)
        self._publish(self.image, tuple(records), old=old)

    def _publish(
        self,
        image: MetadataImage,
        records: tuple[tuple[int, Record], ...],
        *,
        old: MetadataImage | None = None,
        **rest: Any,
    ) -> None:
        self.events.published(
            MetadataPublication(
                image=image,
                changes=differences(old or image, image),
                records=records,
                group_records=(),
                leader=Leadership(leader_id=0, term=1, is_self=False),
                is_active_controller=False,
                **rest,
            )
        )

    def seen(self) -> list[ClusterEvent]:
        """Without what differs between brokers."""
        return [replace(event, number=0, at_ms=0, is_late=False) for event in self.log.all() if event.place is not None]

    def names(self) -> list[str]:
        return [event.name for event in self.log.all()]


class _Time:
    def now_ms(self) -> int:
        return 1_000

    def wall_ms(self) -> int:
        return 1_000


def _start() -> MetadataImage:
    delta = MetadataDelta(MetadataImage())
    for node_id in range(3):
        replay(delta, registered(node_id), node_id + 1)
    image = delta.apply(3)
    brokers = {node_id: replace(broker, fenced=False) for node_id, broker in image.brokers.items()}
    return replace(image, brokers=brokers)


START = _start()
POSSIBLE: list[Command] = [
    (TopicRecord(name="t", topic_id=ID), partition_record(0), partition_record(1)),
    (RemoveTopicRecord(topic_id=ID),),
    (PartitionChangeRecord(topic_id=ID, partition=0, isr=(0, 1)),),
    (PartitionChangeRecord(topic_id=ID, partition=0, isr=(0, 1, 2)),),
    (PartitionChangeRecord(topic_id=ID, partition=1, leader=1), fenced(0, True)),
    (PartitionChangeRecord(topic_id=ID, partition=1, leader=0), fenced(0, False)),
    (ConfigRecord(resource_type=2, resource="t", key="retention.ms", value="5"),),
    (ConfigRecord(resource_type=2, resource="t", key="retention.ms", value=None),),
    (ControllerRecord(controller_id=1, controller_epoch=4),),
    (registered(2),),
]


@given(
    numbers=st.lists(st.integers(0, len(POSSIBLE) - 1), max_size=40),
    cuts=st.lists(st.integers(1, 7), min_size=40, max_size=40),
)
def test_all_brokers_have_the_same_events_however_their_publications_are_cut(
    numbers: list[int], cuts: list[int]
) -> None:
    commands = [POSSIBLE[number] for number in numbers]
    one_by_one, in_runs = Node(image=START), Node(image=START)
    for offset, command in enumerate(commands, 4):
        one_by_one.follow(offset, [command])
    position = 0
    for cut in cuts:
        run = commands[position : position + cut]
        if run:
            in_runs.follow(4 + position, run)
        position += cut
    assert in_runs.seen() == one_by_one.seen()
    assert in_runs.image.topics == one_by_one.image.topics
    places = [event.place for event in in_runs.seen()]
    assert len(set(places)) == len(places) and places == sorted(places)


@given(known=st.integers(0, 12))
def test_a_restarted_broker_has_no_event_twice_and_misses_none(known: int) -> None:
    commands = [POSSIBLE[0], POSSIBLE[2], POSSIBLE[3], POSSIBLE[4], POSSIBLE[5], POSSIBLE[6], POSSIBLE[7], POSSIBLE[8]]
    before = Node(image=START)
    for offset, command in enumerate(commands[:known], 4):
        before.follow(offset, [command])
    after = Node(image=START, is_current=False)
    after.log.restore(before.log.all())
    after.events.resume(*after.log.newest_place())
    after.follow(4, commands)  # its journal is replayed
    whole = Node(image=START)
    whole.follow(4, commands)
    assert after.seen() == whole.seen()
    late = [event.is_late for event in after.log.all()]
    assert late == sorted(late) and sum(late) == len(whole.seen()) - len(before.seen())


def test_a_snapshot_says_what_is_not_known() -> None:
    node = Node(image=MetadataImage())
    node.events.resume(0, 5)
    node._publish(replace(START, offset=9), (), restored=True)
    (event,) = node.log.all()
    assert (event.kind, event.name, event.fields["after"], event.fields["to"]) == ("metadata", "not_seen", "5", "9")
    node.image = replace(START, offset=9)
    node.follow(10, [POSSIBLE[0]])
    assert node.names() == ["not_seen", "created"]


def test_offsets_that_a_recovery_uses_again_have_events() -> None:
    node = Node(image=START)
    node.follow(4, [POSSIBLE[0], POSSIBLE[2]])
    again = Node(image=START)
    again.log.restore(node.log.all())
    again.events.resume(*again.log.newest_place())
    again.image = replace(START, recovery_epoch=77, recovery_offset=4, offset=4)
    again.follow(5, [POSSIBLE[0]])
    assert again.names() == ["created", "isr", "created"]
    assert again.log.all()[-1].place == (77, 5, 0)


def test_a_broker_that_is_far_behind_says_so_and_is_right_about_the_rest() -> None:
    flapping = [POSSIBLE[2], POSSIBLE[3]] * MAX_COMMANDS
    node = Node(image=START)
    node.follow(4, [POSSIBLE[0], *flapping])
    told = node.log.all()
    assert told[0].name == "not_seen" and told[0].fields["to"] == str(4 + MAX_COMMANDS)
    assert [event.name for event in told[1:]] == ["isr"] * MAX_COMMANDS
    assert told[1].fields["was"] == "0,1,2" and told[-1].fields["isr"] == "0,1,2"


def test_thousands_of_changes_of_one_command_are_some_and_a_sum() -> None:
    count = SHOWN_PER_COMMAND + 7
    node = Node(image=START)
    node.follow(4, [(TopicRecord(name="t", topic_id=ID), *map(partition_record, range(count)))])
    node.follow(5, [tuple(PartitionChangeRecord(topic_id=ID, partition=n, isr=(0, 1)) for n in range(count))])
    told = node.log.all()
    assert [event.name for event in told] == ["created", *["isr"] * SHOWN_PER_COMMAND, SUPPRESSED]
    assert told[-1].kind == "isr" and told[-1].fields["count"] == "7"


def test_changes_that_nothing_shows_are_not_made() -> None:
    """The controller that moves 10,000 leaderships in one command made the texts of all of them, twice: 170 ms on its loop."""
    node = Node(image=START)
    node.follow(4, [(TopicRecord(name="t", topic_id=ID), *map(partition_record, range(100)))])
    before = node.image
    node.follow(5, [tuple(PartitionChangeRecord(topic_id=ID, partition=n, leader=1, isr=(1, 2)) for n in range(100))])
    changes, tally = differences(before, node.image), Tally(10)
    made = Counter(change.event for change in decisions(before, node.image, changes, tally))
    assert made == {"elected": 10, "isr": 10} and tally.left_out("election") == tally.left_out("isr") == 90
    by_name = Tally(10, by_name=True)
    assert len(list(own_roles(1, before, node.image, changes, by_name))) == 10 and by_name.left_out("leads") == 90


# --- reasons ----------------------------------------------------------------------------------------------------------

PARTITION = PartitionImage(replicas=(0, 1, 2), isr=(0, 1, 2), leader=0)
FULL = FolderTrouble(path="/d", directory_id="d", state="full", cause="no space", since_ms=1)
BROKER: dict[str, Any] = {"broker_epoch": 1, "incarnation": "i", "endpoints": ()}


def why(new: PartitionImage, old: PartitionImage = PARTITION, **broker_0: Any) -> list[str]:
    """Of the events of one partition, when broker 0 has this state."""
    brokers = {n: BrokerImage(node_id=n, fenced=False, **BROKER) for n in range(4)}
    before = MetadataImage(brokers=brokers, topics={"t": TopicImage(name="t", topic_id=ID, partitions=(old,))})
    now = replace(
        before,
        brokers=brokers | ({0: replace(brokers[0], **broker_0)} if broker_0 else {}),
        topics={"t": TopicImage(name="t", topic_id=ID, partitions=(new,))},
    )
    changes = list(decisions(before, now, differences(before, now), Tally(9)))
    return [item.fields["why"] for item in changes if item.topic and "why" in item.fields]


LED_BY_1 = replace(PARTITION, leader=1, leader_epoch=1, isr=(1, 2))


@pytest.mark.parametrize(
    ("reasons", "new", "more"),
    [
        (["leader_fenced", "fenced"], LED_BY_1, {"fenced": True}),
        (["leader_stopping", "stopping"], LED_BY_1, {"in_controlled_shutdown": True}),
        (["leader_offline", "offline"], replace(LED_BY_1, offline_replicas=(0,)), {}),
        (["leader_moved_away", "moved_away"], replace(LED_BY_1, replicas=(1, 2)), {}),
        (["leader_full_disk"], replace(LED_BY_1, isr=(0, 1, 2)), {"troubled_folders": (FULL,)}),
        (["requested"], replace(LED_BY_1, isr=(0, 1, 2)), {}),
        (["lags"], replace(PARTITION, isr=(0, 1)), {}),
        (["preferred"], PARTITION, {"old": replace(PARTITION, leader=1)}),
        (["replica_returned"], PARTITION, {"old": replace(PARTITION, leader=-1)}),
        (["caught_up"], PARTITION, {"old": replace(PARTITION, isr=(0, 1))}),
        (["lags,caught_up"], replace(PARTITION, isr=(0, 2)), {"old": replace(PARTITION, isr=(0, 1))}),
    ],
)
def test_reasons(reasons: list[str], new: PartitionImage, more: dict[str, Any]) -> None:
    assert why(new, **more) == reasons


def test_folders_and_secrets() -> None:
    one = BrokerImage(node_id=0, fenced=False, **BROKER)
    before = MetadataImage(brokers={0: one})
    full = MetadataImage(brokers={0: replace(one, troubled_folders=(FULL,))})
    (change,) = decisions(before, full, differences(before, full), Tally(9))
    assert change.event == "folder_full" and dict(change.fields) == {
        "broker": "0", "folder": "/d", "was": "online", "why": "no space",
    }  # fmt: skip
    (change,) = decisions(full, before, differences(full, before), Tally(9))
    assert (change.event, change.fields["was"]) == ("folder_online", "full")
    secret = MetadataImage(brokers={0: one}, broker_configs={"0": {"ssl.key.password": "hunter2"}})
    (change,) = decisions(before, secret, differences(before, secret), Tally(9))
    assert change.fields["value"] == HIDDEN and "hunter2" not in change.text
