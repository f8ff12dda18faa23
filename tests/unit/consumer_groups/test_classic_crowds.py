"""A classic group of thousands: one more join costs what the first ones did."""

import cProfile
import pstats
import random

from hypothesis import given
from hypothesis import strategies as st

from barnabas.consumer_groups.classic.group import ClassicGroup, ClassicMember
from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.kraft.metadata.records import MemberRecord
from barnabas.log.vocabulary.group_messages import JoinGroupRequest

from .classic_world import offered

GROUP = "crowd"
CROWD = 3_000
NAMES = st.sets(st.sampled_from(("range", "uniform", "sticky")), min_size=1)


def join(coordinator: GroupCoordinator, number: int) -> None:
    request = JoinGroupRequest(
        group_id=GROUP,
        member_id="",
        client_id="stranger",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        protocol_type="consumer",
        protocols=offered(("range", b""), ("uniform", b"")),
    )
    coordinator.join_group(request, number, now_ms=0, needs_known_id=False)


def calls(coordinator: GroupCoordinator, numbers: range) -> int:
    profile = cProfile.Profile()
    profile.enable()
    for number in numbers:
        join(coordinator, number)
    profile.disable()
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_a_join_does_not_ask_all_other_members() -> None:
    coordinator = GroupCoordinator(
        slot=slot_of(GROUP),
        coordinator_epoch=1,
        records=[],
        rng=random.Random(1),
        topics={},
        now_ms=0,
        settings=GroupSettings(max_classic_group_size=CROWD + 100),
    )
    join(coordinator, 0)
    first = calls(coordinator, range(1, 21))
    for number in range(21, CROWD):
        join(coordinator, number)
    assert calls(coordinator, range(CROWD, CROWD + 20)) < 2 * first


def member(number: int, names: set[str]) -> ClassicMember:
    metadata = dict.fromkeys(sorted(names), b"")
    record = MemberRecord(
        slot=0,
        coordinator_epoch=1,
        group_id=GROUP,
        member_id=f"m{number}",
        instance_id=None,
        client_id="c",
        client_host="h",
        rack=None,
        subscribed_topics=(),
        subscribed_pattern=None,
        rebalance_timeout_ms=1,
        session_timeout_ms=1,
        classic_metadata=metadata,
    )
    return ClassicMember(record=record)


@given(st.lists(st.tuples(st.sampled_from(("add", "change", "swap", "remove")), NAMES), max_size=12), NAMES)
def test_protocols_in_common_are_those_of_an_intersection(steps: list[tuple[str, set[str]]], asked: set[str]) -> None:
    group = ClassicGroup(group_id=GROUP, protocol_type="consumer")
    for number, (step, names) in enumerate(steps):
        new = member(number, names)
        oldest = next(iter(group.members.values()), None)
        if oldest is None or step == "add":
            group.add(new)
        elif step == "change":
            group.change(oldest, member(int(oldest.member_id[1:]), names).record)
        elif step == "swap":
            group.swap(oldest, new)
        else:
            group.remove(oldest)
    protocols = offered(*((name, b"") for name in asked))
    for but in ("", *group.members):
        others = [set(one.metadata) for one in group.members.values() if one.member_id != but]
        expected = not others or bool(set.intersection(*others) & asked)
        assert group.supports("consumer", protocols, but=but) == expected
