"""What a coordinator refuses of a request before it decides, and what it takes as Kafka does: ids, limits, leaves, epochs."""

import itertools

import pytest
from msgspec.structs import replace

from barnabas.consumer_groups.members.heartbeat_checks import check_request
from barnabas.consumer_groups.model.group_limits import check_group_id
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.consumer_groups.model.states import GroupPhase
from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    FencedMemberEpochError,
    InvalidGroupIdError,
    InvalidRequestError,
    PolicyViolationError,
    UnknownMemberIdError,
)
from barnabas.log.vocabulary.group_messages import (
    ConsumerGroupHeartbeatRequest,
    GroupProtocol,
    JoinGroupRequest,
    OffsetToCommit,
)

from .coordinator_bench import SLOT, Bench


@pytest.mark.parametrize("group_id", ["", "g" * 256])
def test_a_group_id_has_a_length(group_id: str) -> None:
    with pytest.raises(InvalidGroupIdError) as caught:
        check_group_id(group_id, GroupSettings())
    assert caught.value.code == 24
    check_group_id("g" * 255, GroupSettings())


def ids_of_one_slot(count: int) -> list[str]:
    found = (name for number in itertools.count() if slot_of(name := f"group-{number}") == SLOT)
    return list(itertools.islice(found, count))


def test_a_slot_has_a_limit_of_groups_however_they_are_made() -> None:
    bench = Bench(settings=GroupSettings(max_groups_per_slot=2))
    first, second, third = ids_of_one_slot(3)
    bench.join("a", group_id=first)
    offsets = (OffsetToCommit(topic="t", partition=0, offset=1),)
    result = bench.coordinator.commit_offsets(
        group_id=second, member_id="", member_epoch=-1, offsets=offsets, now_ms=bench.now_ms
    )
    bench.commit(result.records)
    bench.join("b", group_id=first)
    with pytest.raises(PolicyViolationError, match=r"group\.max\.per\.slot.*barnabas group delete"):
        bench.join("c", group_id=third)
    with pytest.raises(PolicyViolationError):
        bench.coordinator.commit_offsets(
            group_id=third, member_id="", member_epoch=-1, offsets=offsets, now_ms=bench.now_ms
        )
    request = JoinGroupRequest(
        group_id=third, member_id="", client_id="c", session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000, protocol_type="consumer", protocols=(GroupProtocol(name="range", metadata=b""),),
    )  # fmt: skip
    with pytest.raises(PolicyViolationError):
        bench.coordinator.join_group(request, 1, bench.now_ms)
    bench.commit(bench.coordinator.delete_group(group_id=second, now_ms=bench.now_ms).records)
    bench.join("c", group_id=third)


# --- leaving as Kafka's clients do ----------------------------------------------------------------------------------

SLOPPY: dict[str, object] = {
    "rebalance_timeout_ms": 0,
    "session_timeout_ms": 0,
    "subscribed_topics": ("t",) * 10_001,
    "subscribed_pattern": "(",
    "assignor": "magic",
    "owned": None,
}


@pytest.mark.parametrize("field", [*SLOPPY, "all"])
@pytest.mark.parametrize("epoch", [-1, -2])
def test_a_leave_is_taken_whatever_else_its_fields_say(epoch: int, field: str) -> None:
    """Some clients send zeros: refused, their members stayed for a whole session after they had closed."""
    bench = Bench()
    client = bench.join("a", instance_id="i" if epoch == -2 else None)
    fields = SLOPPY if field == "all" else {field: SLOPPY[field]}
    told = bench.heartbeat(client.request(member_epoch=epoch, **fields))
    assert told.member_epoch == epoch
    assert bench.phase() is (GroupPhase.EMPTY if epoch == -1 else GroupPhase.STABLE)


def test_a_leave_still_says_who_leaves_and_how() -> None:
    bench = Bench()
    client = bench.join("a")
    for fields, error in (
        ({"member_epoch": -1, "member_id": ""}, InvalidRequestError),
        ({"member_epoch": -1, "instance_id": ""}, InvalidRequestError),
        ({"member_epoch": -2}, InvalidRequestError),
        ({"member_epoch": -1, "member_id": "other"}, UnknownMemberIdError),
    ):
        with pytest.raises(error):
            bench.heartbeat(client.request(**fields))


def test_an_empty_pattern_is_a_subscription_to_nothing() -> None:
    bench = Bench()
    assert bench.join("a", subscribed_topics=None, subscribed_pattern="").owned == frozenset()


def test_a_member_of_the_previous_epoch_that_does_not_say_what_it_owns_is_fenced() -> None:
    bench = Bench()
    first = bench.join("a")
    epoch = first.epoch
    bench.join("b")
    first.beat(owned=())
    assert first.epoch > epoch
    with pytest.raises(FencedMemberEpochError):
        bench.heartbeat(first.request(member_epoch=epoch, owned=None))


def test_a_member_whose_answer_was_lost_may_own_all_that_it_was_assigned() -> None:
    bench = Bench()
    first = bench.join("a")
    bench.join("b")
    first.beat()  # it learns what it must let go
    before = first.request()
    lost = bench.heartbeat(before)
    assert lost.member_epoch > before.member_epoch
    assert bench.heartbeat(before).member_epoch == lost.member_epoch


SETTINGS = GroupSettings(max_subscribed_topics=3)
JOINING = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, subscribed_topics=("t",))
LOW_MS, HIGH_MS, LENGTH = SETTINGS.min_session_timeout_ms, SETTINGS.max_session_timeout_ms, SETTINGS.max_id_length


@pytest.mark.parametrize(
    ("allowed", "refused"),
    [
        *(({name: "i" * LENGTH}, {name: "i" * (LENGTH + 1)}) for name in ("member_id", "instance_id", "client_id")),
        ({"instance_id": "i"}, {"instance_id": ""}),
        ({"member_id": ""}, {"member_id": "", "member_epoch": 1}),
        ({"subscribed_topics": ("t",) * 3}, {"subscribed_topics": ("t",) * 4}),
        ({"subscribed_topics": None, "member_epoch": 1}, {"subscribed_topics": None}),
        ({"subscribed_topics": None, "subscribed_pattern": "t"}, {"subscribed_pattern": "("}),
        ({"session_timeout_ms": LOW_MS}, {"session_timeout_ms": LOW_MS - 1}),
        ({"session_timeout_ms": HIGH_MS}, {"session_timeout_ms": HIGH_MS + 1}),
        ({"session_timeout_ms": -1}, {"session_timeout_ms": -2}),
        ({"rebalance_timeout_ms": 1}, {"rebalance_timeout_ms": 0}),
        ({"rebalance_timeout_ms": -1}, {"rebalance_timeout_ms": -2}),
        ({"assignor": SETTINGS.assignors[0]}, {"assignor": "other"}),
        ({"member_epoch": -2, "instance_id": "i"}, {"member_epoch": -2}),
        ({"member_epoch": -1, "subscribed_topics": ("t",) * 4}, {"member_epoch": -3, "instance_id": "i"}),
    ],
)
def test_a_heartbeat_is_checked_at_each_border(allowed: dict[str, object], refused: dict[str, object]) -> None:
    check_request(replace(JOINING, **allowed), SETTINGS)
    with pytest.raises(BarnabasError):
        check_request(replace(JOINING, **refused), SETTINGS)
