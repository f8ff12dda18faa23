"""The coordinator of share groups: members without a handshake, and states of partitions that their last leader writes."""

import random
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace
from unit.consumer_groups.coordinator_bench import SLOT, Bench

from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.consumer_groups.share.assignor import assign
from barnabas.consumer_groups.share.coordinator import ShareCoordinator
from barnabas.consumer_groups.slot_coordinator import SlotCoordinator
from barnabas.consumer_groups.transactions.settings import TransactionSettings
from barnabas.kraft.group_state.group_slots import GroupSlots, SlotState, slot_of
from barnabas.kraft.metadata.records import (
    Record,
    RecordBatch,
    ShareGroupRecord,
    ShareMemberRecord,
    decode_batch,
    encode_batch,
)
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    ErrorCode,
    FencedMemberEpochError,
    GroupAuthorizationError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidRequestError,
    NonEmptyGroupError,
    NotCoordinatorError,
    PolicyViolationError,
    UnknownMemberIdError,
)
from barnabas.log.vocabulary.group_messages import (
    ConsumerGroupHeartbeatResponse,
    JoinGroupRequest,
    PartitionOffset,
    TopicPartitions,
)
from barnabas.log.vocabulary.share.messages import (
    LoadedShareState,
    LoadShareStatesRequest,
    RecordState,
    ShareGroupHeartbeatRequest,
    ShareRange,
    ShareStateToLoad,
    ShareStateToWrite,
    WriteShareStatesRequest,
)

G, OTHER = [name for name in map(str, range(2_000)) if slot_of(name) == SLOT][:2]
ELSEWHERE = next(name for name in map(str, range(100)) if slot_of(name) != SLOT)
TOPICS, IDS = {"t": 3, "u": 1}, {"t": "t1", "u": "u1"}
SESSION_MS = GroupSettings().share_session_timeout_ms
RANGE = ShareRange(first_offset=7, last_offset=9, state=RecordState.ACKNOWLEDGED, delivery_count=1)


class ShareBench:
    """A coordinator, and the quorum's copy of its slot."""

    def __init__(self, **settings: int) -> None:
        self.now_ms = 1_000
        self.settings = GroupSettings(**settings)
        self.quorum = GroupSlots()
        self.quorum.on_slot_moved(SLOT, 1)
        self.index = count(1)
        self.shares = self.coordinator(1)

    def coordinator(self, epoch: int) -> ShareCoordinator:
        state = SlotState(slot=SLOT)
        for record in self.quorum.records_of(SLOT):
            state.replay(record)
        assert state.moved(epoch)
        return ShareCoordinator(
            state=state,
            settings=self.settings,
            topics=TOPICS,
            rng=random.Random(epoch),
            now_ms=self.now_ms,
            is_other_group=lambda group_id: group_id == OTHER,
        )

    def commit(self, records: Iterable[Record]) -> None:
        index = next(self.index)
        encoded = encode_batch(RecordBatch(controller_epoch=1, records=tuple(records)))
        for record in decode_batch(encoded).records:
            assert self.quorum.replay(record, index)

    def beat(
        self,
        member: str,
        epoch: int = 0,
        topics: tuple[str, ...] | None = ("t",),
        group: str = G,
        user: str = "User:a",
        rack: str | None = None,
    ) -> ConsumerGroupHeartbeatResponse:
        request = ShareGroupHeartbeatRequest(
            group_id=group, member_id=member, member_epoch=epoch, subscribed_topics=topics, rack=rack
        )
        result = self.shares.heartbeat(request, self.now_ms, principal=user)
        self.commit(result.records)
        return result.response

    def load(
        self, leader_epoch: int = 4, initial: int = 5, topic_id: str = "t1", ids: Mapping[str, str] = IDS
    ) -> LoadedShareState:
        wanted = ShareStateToLoad(
            topic="t", topic_id=topic_id, partition=0, leader_epoch=leader_epoch, initial_offset=initial
        )
        result = self.shares.states.load(LoadShareStatesRequest(group_id=G, states=(wanted,)), ids, self.now_ms)
        self.commit(result.records)
        (state,) = result.response.states
        return state

    def write(self, load_id: int, sequence: int = 1, start: int = 7, ranges: Any = (RANGE,)) -> int:
        item = ShareStateToWrite(
            topic="t", partition=0, load_id=load_id, sequence=sequence, start_offset=start, ranges=ranges
        )
        result = self.shares.states.write(WriteShareStatesRequest(group_id=G, states=(item,)), self.now_ms)
        self.commit(result.records)
        (outcome,) = result.response.outcomes
        return outcome.error

    def move(self) -> None:
        """Another broker coordinates the slot."""
        epoch = self.quorum.slot(SLOT).coordinator_epoch + 1
        self.quorum.on_slot_moved(SLOT, epoch)
        self.shares = self.coordinator(epoch)


def partitions(*numbers: int, topic: str = "t") -> TopicPartitions:
    return TopicPartitions(topic=topic, partitions=numbers)


# --- members ----------------------------------------------------------------------------------------------------------


def test_members_join_stay_and_leave() -> None:
    bench = ShareBench()
    assert bench.beat("a").assignment == (partitions(0, 1, 2),)
    second = bench.beat("b")
    assert second.member_epoch == 2 and second.assignment == (partitions(1),)
    told = bench.beat("a", 1, None)
    assert told.member_epoch == 2 and told.assignment == (partitions(0, 2),)
    assert bench.beat("a", 2, None).assignment is None
    assert bench.beat("a", 1, None).assignment == (partitions(0, 2),)  # an answer was lost
    assert bench.beat("b", -1).member_epoch == -1
    assert bench.beat("a", 2, None).assignment == (partitions(0, 1, 2),)
    with pytest.raises(UnknownMemberIdError):
        bench.beat("b", 2, None)


def test_a_heartbeat_changes_what_it_names_and_nothing_else() -> None:
    bench = ShareBench()

    def kept() -> tuple[str | None, tuple[str, ...]]:
        member = bench.quorum.slot(SLOT).shares.groups[G].members["a"]
        return member.rack, member.subscribed_topics

    bench.beat("a", rack="r1")
    bench.beat("a", 1, ("u",))
    assert kept() == ("r1", ("u",))
    bench.beat("a", 2, None, rack="r2")
    assert kept() == ("r2", ("u",))
    bench.beat("a", 3, ("t",), rack="r3")
    assert kept() == ("r3", ("t",))
    bench.beat("a", 4, ("t",), rack="")
    assert kept() == ("", ("t",))


@pytest.mark.parametrize(("epoch", "topics"), [(0, ("u",)), (1, None), (1, ("u",)), (-1, None)])
def test_a_member_belongs_to_its_user(epoch: int, topics: tuple[str, ...] | None) -> None:
    bench = ShareBench()
    bench.beat("a")
    bench.move()
    with pytest.raises(GroupAuthorizationError, match="another user"):
        bench.beat("a", epoch, topics, user="User:mallory")
    assert bench.beat("a", 1, None).member_epoch == 1


def test_a_silent_member_is_removed() -> None:
    bench = ShareBench()
    bench.beat("a")
    bench.now_ms += 1_000
    bench.beat("b")
    bench.now_ms += SESSION_MS - 1_000
    assert bench.shares.next_deadline_ms() == bench.now_ms
    bench.commit(bench.shares.tick(bench.now_ms).records)
    with pytest.raises(UnknownMemberIdError):
        bench.beat("a", 1, None)
    assert bench.beat("b", 2, None).assignment == (partitions(0, 1, 2),)


def test_members_outlive_their_coordinator() -> None:
    bench = ShareBench()
    bench.beat("a")
    bench.beat("b")
    bench.move()
    # the new coordinator does not know what it was told
    assert bench.beat("a", 2, None).assignment == (partitions(0, 2),)
    assert bench.beat("a", 2, None).assignment is None
    bench.now_ms += SESSION_MS
    bench.shares.tick(bench.now_ms)
    with pytest.raises(UnknownMemberIdError):
        bench.beat("b", 2, None)


@pytest.mark.parametrize(
    ("member", "epoch", "topics", "group", "error"),
    [
        ("a", 3, None, G, FencedMemberEpochError),
        ("z", 1, None, G, UnknownMemberIdError),
        ("b", 0, None, G, InvalidRequestError),
        ("b", 0, (), G, InvalidRequestError),
        ("", 0, ("t",), G, InvalidRequestError),
        ("b", -2, ("t",), G, InvalidRequestError),
        ("b", 0, ("t",), OTHER, GroupIdNotFoundError),
        ("b", 0, ("t",), ELSEWHERE, NotCoordinatorError),
        ("b", 0, ("t",), G, GroupMaxSizeReachedError),
        ("x" * 1_001, 0, ("t",), G, InvalidRequestError),
        ("b", 0, ("t",), "", InvalidGroupIdError),
        ("b", 0, ("t",), "g" * 256, InvalidGroupIdError),
    ],
)
def test_refusals(
    member: str, epoch: int, topics: tuple[str, ...] | None, group: str, error: type[BarnabasError]
) -> None:
    bench = ShareBench(max_share_group_size=1)
    bench.beat("a")
    with pytest.raises(error):
        bench.beat(member, epoch, topics, group)


def test_a_slot_has_a_limit_of_share_groups() -> None:
    bench = ShareBench(max_groups_per_slot=1)
    second = next(name for name in map(str, range(2_000)) if slot_of(name) == SLOT and name not in (G, OTHER))
    bench.beat("a")
    bench.beat("b")
    with pytest.raises(PolicyViolationError):
        bench.beat("c", group=second)


def test_a_change_of_topics_changes_the_assignment() -> None:
    bench = ShareBench()
    bench.beat("a", topics=("t", "v"))
    grown = {**TOPICS, "v": 1}
    bench.commit(bench.shares.topics_changed(grown, bench.now_ms, recreated=frozenset(), changed={"v"}).records)
    assert bench.beat("a", 1, None).assignment == (partitions(0, 1, 2), partitions(0, topic="v"))
    before = bench.beat("a", 2, None)
    bench.commit(bench.shares.topics_changed(grown, bench.now_ms, recreated=frozenset(), changed={"u"}).records)
    assert bench.beat("a", 2, None) == before


@pytest.mark.parametrize(("members", "count"), [(1, 5), (2, 5), (5, 5), (5, 2), (7, 3), (3, 1)])
def test_every_partition_is_read_and_every_member_works(members: int, count: int) -> None:
    names = [f"m{number}" for number in range(members)]
    records = {
        name: ShareMemberRecord(
            slot=SLOT, coordinator_epoch=1, group_id=G, member_id=name, client_id="", client_host="", rack=None,
            subscribed_topics=("t", "unknown"),
        )
        for name in names
    }  # fmt: skip
    found = assign(records, {"t": count})
    read = [number for items in found.values() for item in items for number in item.partitions]
    assert set(read) == set(range(count)) and all(found[name] for name in names)
    shares = [sum(len(item.partitions) for item in items) for items in found.values()]
    assert max(shares) - min(shares) <= 1
    assert len(read) == max(count, members)


# --- states -----------------------------------------------------------------------------------------------------------


def test_a_state_begins_once_and_is_written_by_its_leader() -> None:
    bench = ShareBench()
    bench.beat("a")
    first = bench.load(initial=5)
    assert (first.error, first.start_offset, first.ranges) == (0, 5, ())
    assert bench.write(first.load_id) == ErrorCode.NONE
    second = bench.load(initial=100)  # the same leader lost its memory
    assert (second.start_offset, second.ranges) == (7, (RANGE,))
    assert bench.write(first.load_id, 2) == ErrorCode.FENCED_STATE_EPOCH
    assert bench.write(second.load_id, 1) == ErrorCode.NONE
    assert bench.write(second.load_id, 1, start=5) == ErrorCode.FENCED_STATE_EPOCH  # a delayed attempt
    assert bench.load(leader_epoch=3).error == ErrorCode.FENCED_LEADER_EPOCH
    assert bench.write(second.load_id, 2) == ErrorCode.NONE  # an old leader cannot take it over


def test_a_state_says_in_which_epoch_it_was_written() -> None:
    """A leader that loads it and fails before it writes has said nothing about its own log."""
    bench = ShareBench()
    bench.beat("a")
    assert bench.load(leader_epoch=4).written_epoch == 4  # it begins with an offset of this leader's log
    loaded = bench.load(leader_epoch=6)
    assert loaded.written_epoch == 4
    loaded = bench.load(leader_epoch=7)
    assert loaded.written_epoch == 4
    assert bench.write(loaded.load_id) == ErrorCode.NONE
    bench.move()
    assert bench.load(leader_epoch=9).written_epoch == 7


def test_a_state_outlives_its_coordinator() -> None:
    bench = ShareBench()
    bench.beat("a")
    loaded = bench.load()
    assert bench.write(loaded.load_id) == ErrorCode.NONE
    bench.move()
    assert bench.write(loaded.load_id, 2, start=8) == ErrorCode.NONE
    assert bench.load().start_offset == 8


def test_another_topic_of_the_name_begins_anew() -> None:
    bench = ShareBench()
    bench.beat("a")
    loaded = bench.load()
    assert bench.load(topic_id="t0").error == ErrorCode.UNKNOWN_TOPIC_ID
    result = bench.shares.topics_changed(TOPICS, bench.now_ms, recreated=frozenset({"t"}), changed={"t"})
    bench.commit(result.records)
    assert bench.write(loaded.load_id) == ErrorCode.FENCED_STATE_EPOCH
    assert bench.load(initial=0).start_offset == 0


def test_a_state_of_an_earlier_topic_is_no_state_of_this_one() -> None:
    """The ids may be those of a newer image than the changes that the coordinator has seen."""
    bench = ShareBench()
    bench.beat("a")
    loaded = bench.load(leader_epoch=9)
    bench.write(loaded.load_id)
    again = bench.load(leader_epoch=0, initial=0, topic_id="t2", ids={"t": "t2"})
    assert (again.error, again.start_offset, again.ranges) == (ErrorCode.NONE, 0, ())


def test_the_quorum_forgets_the_states_of_a_deleted_topic() -> None:
    bench = ShareBench()
    bench.beat("a")
    bench.load()
    view = bench.quorum.view(SLOT)
    bench.quorum.delete_topic("t")
    assert not bench.quorum.slot(SLOT).shares.groups[G].states
    assert view.shares.groups[G].states  # a reader in another thread


def test_a_slot_knows_whether_it_has_states_of_a_topic() -> None:
    bench = ShareBench()
    bench.beat("a", topics=("t", "u"))
    bench.load()
    shares = bench.quorum.slot(SLOT).shares
    assert shares.has_states_of("t") and not shares.has_states_of("u")
    wanted = ShareStateToLoad(topic="u", topic_id="u1", partition=0, leader_epoch=1, initial_offset=0)
    result = bench.shares.states.load(LoadShareStatesRequest(group_id=G, states=(wanted,)), IDS, bench.now_ms)
    bench.commit(result.records)
    shares = bench.quorum.slot(SLOT).shares
    assert shares.has_states_of("t") and shares.has_states_of("u")


def test_a_snapshot_holds_everything() -> None:
    bench = ShareBench()
    bench.beat("a")
    loaded = bench.load()
    bench.write(loaded.load_id)
    copy = SlotState(slot=SLOT)
    for batch in bench.quorum.batches_of(SLOT):
        for record in decode_batch(batch).records:
            copy.replay(record)
    assert copy == bench.quorum.slot(SLOT)
    assert copy.shares.groups[G].states[("t", 0)].ranges == (RANGE,)
    copy.shares.groups[G].members.clear()
    assert copy != bench.quorum.slot(SLOT)


def test_records_of_unknown_groups_are_ignored() -> None:
    state = SlotState(slot=SLOT)
    member = ShareMemberRecord(
        slot=SLOT, coordinator_epoch=0, group_id=G, member_id="a", client_id="", client_host="", rack=None,
        subscribed_topics=(),
    )  # fmt: skip
    assert state.replay(member) and not state.shares.groups
    assert state.replay(ShareGroupRecord(slot=SLOT, coordinator_epoch=0, group_id=G, group_epoch=1))
    assert not state.replay(replace(member, coordinator_epoch=-1))  # of a coordinator before


# --- operators --------------------------------------------------------------------------------------------------------


def test_offsets_are_changed_while_nobody_reads() -> None:
    bench = ShareBench()
    bench.beat("a")
    loaded = bench.load()
    wanted = (PartitionOffset(topic="t", partition=0, offset=2), PartitionOffset(topic="t", partition=9, offset=2))
    with pytest.raises(NonEmptyGroupError):
        bench.shares.states.alter_offsets(G, wanted, IDS, bench.now_ms)
    bench.beat("a", -1)
    result = bench.shares.states.alter_offsets(G, wanted, IDS, bench.now_ms)
    bench.commit(result.records)
    assert [item.error for item in result.response] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert bench.write(loaded.load_id) == ErrorCode.FENCED_STATE_EPOCH
    assert [state.start_offset for state in bench.shares.states.of_group(G).response] == [2]
    gone = bench.shares.states.delete_offsets(G, ("t", "u"), bench.now_ms)
    bench.commit(gone.records)
    assert [item.error for item in gone.response] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert bench.load(initial=50).start_offset == 50


def test_a_group_without_members_can_be_deleted() -> None:
    bench = ShareBench()
    bench.beat("a")
    loaded = bench.load()
    with pytest.raises(NonEmptyGroupError):
        bench.shares.delete_group(G, bench.now_ms)
    bench.beat("a", -1)
    bench.commit(bench.shares.delete_group(G, bench.now_ms).records)
    for refused in (lambda: bench.write(loaded.load_id), bench.load, lambda: bench.shares.delete_group(G, 0)):
        with pytest.raises(GroupIdNotFoundError):
            refused()


def test_a_name_belongs_to_one_type_of_group() -> None:
    bench = Bench()
    slot = SlotCoordinator(groups=bench.coordinator, settings=TransactionSettings(), now_ms=bench.now_ms)
    asked = ShareGroupHeartbeatRequest(group_id=G, member_id="a", member_epoch=0, subscribed_topics=("t",))
    slot.shares.heartbeat(asked, bench.now_ms)
    with pytest.raises(GroupIdNotFoundError):
        slot.groups.commit_offsets(group_id=G, member_id="", member_epoch=-1, offsets=(), now_ms=bench.now_ms)
    with pytest.raises(InconsistentGroupProtocolError):
        join = JoinGroupRequest(
            group_id=G,
            member_id="",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=(),
        )
        slot.groups.join_group(join, ticket=1, now_ms=bench.now_ms)
    assert [(group.group_id, group.protocol) for group in slot.list_groups()] == [(G, "share")]
    assert slot.describe_group(G).response.assignor == "simple"
    bench.join("m")
    (joined,) = [group.group_id for group in slot.list_groups() if group.protocol != "share"]
    with pytest.raises(GroupIdNotFoundError):
        slot.shares.heartbeat(replace(asked, group_id=joined), bench.now_ms)


def test_only_offsets_of_partitions_that_exist_are_set_and_none_is_negative() -> None:
    bench = ShareBench()
    bench.beat("a")
    bench.beat("a", -1)
    count = bench.shares.states.topics["t"]
    asked = [(-1, 0), (0, -2), (0, -1), (0, 0), (count - 1, 0), (count, 0), (count + 1, 0)]
    for number, offset in asked:
        item = PartitionOffset(topic="t", partition=number, offset=offset)
        (told,) = bench.shares.states.alter_offsets(G, (item,), IDS, bench.now_ms).response
        if not 0 <= number < count:
            assert told.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            assert told.error == (ErrorCode.NONE if offset >= 0 else ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize("field", ["member_id", "client_id", "rack"])
def test_a_heartbeat_with_an_id_that_is_too_long_is_refused(field: str) -> None:
    bench = ShareBench()
    request = ShareGroupHeartbeatRequest(group_id=G, member_id="a", member_epoch=0, subscribed_topics=("t",))
    with pytest.raises(InvalidRequestError):
        bench.shares.heartbeat(replace(request, **{field: "x" * 100_000}), bench.now_ms, principal="User:a")
