"""The node above the quorum: who decides when, what is void, what is answered, what observers get."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from unit.kraft.group_state_fake import FakeGroupState
from unit.kraft.metadata_cluster import FakeQuorum, MetadataCluster
from unit.kraft.single_controller import SingleController

from barnabas.kraft.controller.controller import Controller
from barnabas.kraft.group_state.group_slots import GroupSlots
from barnabas.kraft.metadata.controller_errors import DivergentMetadataError
from barnabas.kraft.metadata.controller_result import ControllerResult
from barnabas.kraft.metadata.image import SLOT_COUNT, MetadataChanges
from barnabas.kraft.metadata.records import (
    ClusterRecord,
    FeatureLevelRecord,
    RecordBatch,
    RemoveGroupRecord,
    TopicRecord,
    encode_batch,
)
from barnabas.kraft.metadata.requests import (
    AppendGroupRecords,
    ControllerRequest,
    CreateTopic,
    DeleteTopic,
    Done,
    RenewSlot,
    SlotAppend,
    TopicCreated,
)
from barnabas.kraft.node.metadata_feed import FeedRing, MetadataFeed
from barnabas.kraft.node.metadata_node import MetadataNode
from barnabas.kraft.node.quarantine import Quarantine
from barnabas.kraft.quorum.quorum import AppendOutcome, Leadership
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    InvalidRequestError,
    NotControllerError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
)
from barnabas.log.vocabulary.quorum import CommittedCommand


def test_a_node_that_does_not_lead_names_the_leader() -> None:
    cluster = MetadataCluster(2)
    cluster.elect(1)
    cluster.run()
    answer = cluster.ask(CreateTopic(name="t"), 0, node_id=0)
    assert isinstance(answer, NotControllerError)
    assert "broker 1" in answer.message


def test_a_leader_decides_only_after_a_record_of_its_own_term_is_committed() -> None:
    cluster = MetadataCluster(1)
    cluster.elect(0)
    assert not cluster.nodes[0].is_active_controller
    answers: list[object] = []
    cluster.nodes[0].submit(CreateTopic(name="t"), 0, answers.append)
    assert isinstance(answers[0], NotControllerError)
    cluster.run()
    assert cluster.nodes[0].is_active_controller
    assert cluster.publications[0][-1].is_active_controller


def test_the_first_record_names_the_cluster_and_no_later_one_does() -> None:
    cluster = MetadataCluster(2)
    cluster.elect(0)
    cluster.run()
    cluster_id = cluster.nodes[0].image.cluster_id
    assert len(cluster_id) == 22
    assert isinstance(cluster_id, str)
    cluster.elect(1)
    cluster.run()
    assert cluster.nodes[1].image.cluster_id == cluster_id
    assert (cluster.nodes[0].image.controller_id, cluster.nodes[0].image.controller_epoch) == (1, 2)


def command(index: int, term: int, epoch: int, level: int) -> CommittedCommand:
    batch = RecordBatch(controller_epoch=epoch, records=(FeatureLevelRecord(feature_level=level),))
    return CommittedCommand(index=index, term=term, command=encode_batch(batch))


def test_a_batch_of_another_controller_epoch_than_its_entry_is_void() -> None:
    cluster = MetadataCluster(1)
    node = cluster.nodes[0]
    node.committed([command(1, 3, 3, 5), command(2, 4, 3, 6)])
    assert (node.image.feature_level, node.image.offset) == (5, 2)
    assert len(cluster.publications[0]) == 1, "one publication for what was committed at once"


def test_a_command_that_cannot_be_applied_stops_the_process() -> None:
    cluster = MetadataCluster(1)
    cluster.nodes[0].committed([CommittedCommand(index=1, term=1, command=b"junk")])
    assert "index 1" in cluster.fatal[0]
    assert cluster.nodes[0].image.offset == 0
    cluster.nodes[0].restore(5, [b"junk"])
    assert "snapshot" in cluster.fatal[1]


def open_request(cluster: SingleController, name: str = "t") -> list[object]:
    answers: list[object] = []
    cluster.cluster.nodes[0].submit(CreateTopic(name=name), cluster.now_ms, answers.append)
    return answers


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (AppendOutcome.DISCARDED, NotControllerError),
        (AppendOutcome.NOT_APPENDED, NotControllerError),
        (AppendOutcome.UNKNOWN, RequestTimedOutError),
    ],
)
def test_an_append_that_fails_is_answered_and_the_term_is_claimed_anew(
    outcome: AppendOutcome, error: type[Exception]
) -> None:
    cluster = SingleController(1)
    node = cluster.cluster.nodes[0]
    first = open_request(cluster)
    upon_it = open_request(cluster)
    entry = cluster.cluster.tail.pop(0)
    entry.tell(outcome)
    assert isinstance(first[0], error)
    assert isinstance(upon_it[0], NotControllerError), "the refusal stood on what was never written"
    assert not node.is_active_controller
    assert not cluster.cluster.publications[0][-1].is_active_controller, "its broker knows it at once"
    assert node.next_deadline_ms(cluster.now_ms) == cluster.now_ms
    cluster.tick()
    assert node.is_active_controller
    assert isinstance(cluster.ask(CreateTopic(name="t")), TopicCreated)


def test_whoever_loses_the_leadership_forgets_what_it_decided() -> None:
    cluster = SingleController(1)
    answers = open_request(cluster)
    quorum = cluster.cluster.quorums[0]
    entry = cluster.cluster.tail.pop()
    quorum.leadership = Leadership(leader_id=5, term=2, is_self=False)
    cluster.cluster.nodes[0].leadership_changed(quorum.leadership)
    assert not cluster.cluster.nodes[0].is_active_controller
    entry.tell(AppendOutcome.DISCARDED)
    assert isinstance(answers[0], NotControllerError)
    assert "broker 5" in answers[0].message
    cluster.cluster.term = 2
    cluster.cluster.elect(0)
    cluster.cluster.run()
    assert isinstance(cluster.ask(CreateTopic(name="t")), TopicCreated)


def test_an_append_of_an_earlier_term_that_fails_does_not_end_the_present_one() -> None:
    cluster = SingleController(1)
    node, quorum = cluster.cluster.nodes[0], cluster.cluster.quorums[0]
    answers = open_request(cluster)
    entry = cluster.cluster.tail.pop()
    quorum.leadership = Leadership(leader_id=5, term=2, is_self=False)
    node.leadership_changed(quorum.leadership)
    cluster.cluster.term = 2
    cluster.cluster.elect(0)
    cluster.cluster.run()
    assert node.is_active_controller
    entry.tell(AppendOutcome.UNKNOWN)
    assert isinstance(answers[0], RequestTimedOutError)
    assert node.is_active_controller


def test_what_a_successor_commits_is_answered_as_committed() -> None:
    cluster = MetadataCluster(2)
    cluster.elect(0)
    cluster.run()
    answers: list[object] = []
    cluster.nodes[0].submit(DeleteTopic(name="none"), 0, answers.append)
    cluster.nodes[0].committed([])
    entry_count = len(cluster.log)
    batch = RecordBatch(controller_epoch=1, records=(ClusterRecord(cluster_id="again"),))
    cluster.quorums[0].append(encode_batch(batch), term=1, done=lambda outcome: answers.append(outcome))
    cluster.rng = random.Random(3)
    cluster.term += 1
    cluster.leader = cluster.quorums[1]
    cluster.notify(1)
    cluster.notify(0)
    cluster.run()
    assert answers[-1] is AppendOutcome.COMMITTED
    assert len(cluster.log) == entry_count + 3  # the settings of the cluster too


def test_a_refusal_waits_for_what_it_was_decided_upon() -> None:
    cluster = SingleController(1)
    first, second = open_request(cluster), open_request(cluster)
    assert first == second == []
    cluster.cluster.commit()
    cluster.cluster.deliver(0)
    assert isinstance(first[0], TopicCreated)
    assert isinstance(second[0], TopicAlreadyExistsError)


class NotingQuorum(FakeQuorum):
    """Notes for which commands other nodes wait."""

    def append(
        self, command: bytes, *, term: int, done: Callable[[AppendOutcome], None], others_wait: bool = True
    ) -> None:
        self.waited_for = [*getattr(self, "waited_for", []), others_wait]
        super().append(command, term=term, done=done, others_wait=others_wait)


def test_other_brokers_wait_for_changes_of_the_image_alone() -> None:
    cluster = SingleController(3)
    quorum, node = cluster.cluster.quorums[0], cluster.cluster.nodes[0]
    quorum.__class__ = NotingQuorum
    assert isinstance(quorum, NotingQuorum)
    slot = node.image.slots[3]
    owner, epoch = slot.coordinator, slot.coordinator_epoch
    record = RemoveGroupRecord(slot=3, coordinator_epoch=epoch, group_id="g")
    expected = []
    for request, others_wait in (
        (CreateTopic(name="t"), True),
        (AppendGroupRecords(node_id=owner, slots=(SlotAppend.of(3, epoch, (record,)),)), False),
        (AppendGroupRecords(node_id=owner, slots=(SlotAppend.of(3, epoch, ()),)), False),  # a proof
        (RenewSlot(node_id=owner, slot=3, coordinator_epoch=epoch), True),
    ):
        assert not isinstance(cluster.ask(request), BarnabasError)
        expected.append(others_wait)
        assert quorum.waited_for == expected, request
    cluster.cluster.elect(0)
    assert quorum.waited_for == [*expected, True]  # its claim


class SmallQuorum(FakeQuorum):
    """Takes no command at all."""

    def append(self, command: bytes, *, term: int, done: object, others_wait: bool = True) -> None:
        raise InvalidRequestError("the command is too large")


def test_a_command_over_the_limit_is_refused_and_leaves_no_trace() -> None:
    cluster = SingleController(1)
    node = cluster.cluster.nodes[0]
    node._quorum = SmallQuorum(cluster.cluster, 0)
    answers = open_request(cluster)
    assert isinstance(answers[0], InvalidRequestError)
    assert node.controller.overlay.topic("t") is None


class ForgetfulController(Controller):
    """Its decision on a topic named "bad" cannot be replayed to its end; on "worse", it decides nothing."""

    def decide(self, request: ControllerRequest, now_ms: int) -> ControllerResult:
        if isinstance(request, CreateTopic) and request.name == "worse":
            raise KeyError(request.name)
        if isinstance(request, CreateTopic) and request.name == "bad":
            unhashable: Any = ["half"]
            half = TopicRecord(name="half", topic_id="1" * 32)
            return ControllerResult(records=(half, TopicRecord(name=unhashable, topic_id="2" * 32)))
        return super().decide(request, now_ms)


@pytest.mark.parametrize("name", ["bad", "worse"])
def test_a_decision_that_cannot_be_replayed_is_refused_and_the_controller_goes_on(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = SingleController(1)
    node = cluster.cluster.nodes[0]
    node.controller.__class__ = ForgetfulController
    with caplog.at_level("CRITICAL", logger="barnabas.quorum"):
        answers = open_request(cluster, name)
    cluster.cluster.run()
    assert type(answers[0]) is BarnabasError and "changed nothing" in answers[0].message
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]
    assert node.controller.overlay.topic("half") is None
    assert not cluster.cluster.fatal and node.is_active_controller
    assert isinstance(cluster.ask(CreateTopic(name="t")), TopicCreated)
    assert cluster.image.topics.keys() == {"t"}


# --- snapshots and the feed ------------------------------------------------------------------------------------------


def packed(feed: MetadataFeed | Callable[[], MetadataFeed]) -> MetadataFeed:
    return feed if isinstance(feed, MetadataFeed) else feed()


def follow(observer: MetadataNode, cluster: SingleController, max_bytes: int = 100) -> int:
    """How many answers of the feed it took to catch up."""
    node = cluster.cluster.nodes[0]
    for rounds in range(1_000):
        feed = packed(node.feed(observer.image.offset, max_bytes))
        observer.apply_feed(feed)
        observer.apply_feed(feed)  # a repeated answer does no harm
        if feed == MetadataFeed():
            return rounds
    raise AssertionError("the feed does not end")


def test_an_observer_follows_the_feed_and_ends_with_the_same_image() -> None:
    cluster = SingleController(3)
    observer = cluster.cluster.new_node(0)
    assert follow(observer, cluster) > 1
    assert observer.image == cluster.image
    cluster.topic(0, 1, 2)
    assert follow(observer, cluster) == 1
    assert observer.image == cluster.image
    publication = cluster.cluster.publications[0][-1]
    assert (publication.leader.leader_id, publication.leader.is_self) == (0, False)


def test_an_observer_that_is_too_old_gets_a_snapshot() -> None:
    cluster = SingleController(3)
    cluster.topic(0, 1, 2)
    node = cluster.cluster.nodes[0]
    node._feed = FeedRing(max_bytes=150)
    cluster.topic(0, name="u")
    cluster.topic(0, name="v")
    node._feed.restart(node.image.offset)
    cluster.topic(0, name="w")
    observer = cluster.cluster.new_node(0)
    pack, offset = node.feed(0, 100), node.image.offset
    assert not isinstance(pack, MetadataFeed), "it is left to whoever has the time"
    cluster.topic(0, name="x")
    assert pack().snapshot_index == offset, "the state is that of the question"
    follow(observer, cluster)
    assert observer.image == cluster.image
    assert cluster.cluster.publications[0][-1].restored


def test_an_observer_of_another_history_gets_nothing_and_hears_whom_to_ask() -> None:
    """The voters went back to old copies: commands of their new history on top of what it has would make a third one."""
    cluster = SingleController(2)
    observer = cluster.cluster.new_node(0)
    follow(observer, cluster)
    other = SingleController(2, seed=1)
    node = other.cluster.nodes[0]
    other.topic(0, name="later")
    mine = observer.image
    assert node.image.offset > mine.offset and node.image.controller_epoch == mine.controller_epoch
    with pytest.raises(DivergentMetadataError, match="broker 7 knows .* another controller, or another process of it"):
        node.feed(mine.offset, 100, node_id=7, applied=mine.position)
    observer.apply_feed(MetadataFeed(), Leadership(leader_id=4, term=mine.controller_epoch, is_self=False))
    assert observer.image == mine
    assert cluster.cluster.publications[0][-1].leader.leader_id == 4
    observer.apply_feed(MetadataFeed(), Leadership(leader_id=5, term=mine.controller_epoch - 1, is_self=False))
    assert cluster.cluster.publications[0][-1].leader.leader_id == 5  # the restored voters may be in an earlier term


def test_a_leader_that_is_older_than_the_commands_beside_it_does_not_count() -> None:
    cluster = SingleController(1)
    observer = cluster.cluster.new_node(0)
    feed = packed(cluster.cluster.nodes[0].feed(0, 10_000))
    observer.apply_feed(feed, Leadership(leader_id=4, term=0, is_self=False))
    assert cluster.cluster.publications[0][-1].leader == Leadership(leader_id=0, term=1, is_self=False)


def test_the_ring_is_bounded_and_knows_what_it_lost() -> None:
    ring = FeedRing(max_bytes=30)
    for index in range(1, 11):
        ring.append(CommittedCommand(index=2 * index, term=1, command=b"x" * 10))
    assert ring.after(13, 100) is None
    kept = ring.after(14, 100)
    assert kept is not None
    assert [item.index for item in kept] == [16, 18, 20]
    limited = ring.after(16, 5)
    assert limited is not None
    assert [item.index for item in limited] == [18], "one at least, however small the limit"
    assert ring.after(20, 100) == ()


def test_restoring_a_snapshot_tells_what_differs() -> None:
    cluster = SingleController(2)
    cluster.topic(0, 1, retention_ms="1")
    chunks = list(cluster.cluster.nodes[0].snapshot()())
    other = MetadataCluster(1)
    other.nodes[0].restore(cluster.image.offset + 7, chunks)
    publication = other.publications[0][-1]
    assert publication.restored
    assert publication.image.offset == cluster.image.offset + 7
    assert publication.changes.topics == publication.changes.topic_configs == {"t"}
    assert publication.changes.brokers == {0, 1}
    assert publication.changes.slots == set(range(50))


def test_only_commands_that_change_nothing_but_groups_keep_the_image() -> None:
    """Changes name neither quotas nor permissions: a snapshot may bring others of them, and nothing else."""
    cluster = SingleController(1)
    node = cluster.cluster.nodes[0]
    publications, offset = cluster.cluster.publications[0], cluster.image.offset + 1
    of_group = RecordBatch(controller_epoch=1, records=(RemoveGroupRecord(slot=0, coordinator_epoch=1, group_id="g"),))
    node.committed([CommittedCommand(index=offset, term=1, command=encode_batch(of_group))])
    assert publications[-1].keeps_image and publications[-1].image.offset == offset
    node.restore(offset, list(node.snapshot()()))
    publication = publications[-1]
    assert publication.changes == MetadataChanges() and not publication.keeps_image


def test_a_view_for_a_snapshot_does_not_move_with_the_state() -> None:
    cluster = SingleController(1)
    pack = cluster.cluster.nodes[0].snapshot()
    before = cluster.image
    cluster.topic(0)
    other = MetadataCluster(1)
    other.nodes[0].restore(before.offset, pack())
    assert other.nodes[0].image == before


def test_deleting_is_answered_with_the_offset_that_shows_it() -> None:
    cluster = SingleController(1)
    cluster.topic(0)
    answer = cluster.ask(DeleteTopic(name="t"))
    assert isinstance(answer, Done)
    assert answer.offset == cluster.image.offset
    groups = cluster.cluster.nodes[0].state.groups
    assert isinstance(groups, FakeGroupState) and groups.deleted_topics == ["t"], "its offsets go with it"


def test_a_record_that_this_process_has_no_memory_for_is_not_set_aside() -> None:
    """The others have applied it: a broker that went on without it would be another cluster's."""
    quarantine = Quarantine(0)

    def replay() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        quarantine.guard(replay, TopicRecord(name="t", topic_id="0" * 32), 1)
    assert quarantine.count == 0


def test_a_committed_record_that_cannot_be_applied_is_set_aside_alike_by_all_and_the_rest_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = MetadataCluster(2, new_groups=GroupSlots)
    cluster.elect(0)
    cluster.run()
    impossible = RemoveGroupRecord(slot=SLOT_COUNT, coordinator_epoch=1, group_id="g")
    records = (impossible, TopicRecord(name="behind", topic_id="0" * 32))
    index = cluster.log[-1][0].index + 1
    poison = CommittedCommand(
        index=index, term=1, command=encode_batch(RecordBatch(controller_epoch=1, records=records))
    )
    with caplog.at_level("CRITICAL", logger="barnabas.quorum"):
        for node in cluster.nodes:
            node.committed([poison])
    assert [record.levelname for record in caplog.records] == ["CRITICAL"] * 2
    assert not cluster.fatal
    first, second = (published[-1] for published in cluster.publications)
    assert first.image.topics.keys() == second.image.topics.keys() == {"behind"}
    (told,) = first.quarantined
    assert first.quarantined == second.quarantined and f"index {index}" in told and "RemoveGroupRecord" in told
    # A restart meets it again, and starts.
    restarted = cluster.new_node(1)
    restarted.committed([poison])
    assert restarted.image.topics.keys() == {"behind"}
