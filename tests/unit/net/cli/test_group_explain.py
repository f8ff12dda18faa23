"""`barnabas group explain`: the story for people, codes for programs."""

from typing import Any

import pytest

from barnabas.consumer_groups.model.rebalance_causes import RebalanceCause
from barnabas.log.vocabulary.group_messages import OwnerChange, RebalanceEvent, RebalanceReason, UnownedPartition
from barnabas.net.cli.verbs.group_explain import MOVES_TOLD, NEWEST_TOLD, story
from barnabas.net.wire.protocol import group_responses

from .fake_cluster import FakeCluster
from .test_commands import P0, rows


def member(member_id: str, **more: Any) -> group_responses.GroupMember:
    return group_responses.GroupMember(
        member_id=member_id,
        instance_id=None,
        client_id="app",
        client_host="10.0.0.1",
        member_epoch=3,
        subscribed_topics=("t",),
        assigned=(),
        target=(),
        **more,
    )


def event(number: int, moves: int = 0, **more: Any) -> RebalanceEvent:
    reason = RebalanceReason(
        at_ms=1_000, cause="member_expired", member_id="gone-1234", client_id="job", client_host="h", detail="silent"
    )
    moved = tuple(
        OwnerChange(
            topic="t", partition=index, from_member="gone-1234", to_member="live-5678", at_ms=1_000, pause_ms=45_040
        )
        for index in range(moves)
    )
    return RebalanceEvent(
        at_ms=1_000, cause="member_expired", member_id="gone-1234", group_epoch=3, rebalance_id=number,
        reasons=(reason,), moves=moved, moved_count=moves, longest_pause_ms=45_040, **more,
    )  # fmt: skip


def group(*events: RebalanceEvent, **more: Any) -> group_responses.DescribeGroupResponse:
    return group_responses.DescribeGroupResponse(
        group_id="g", state="stable", group_epoch=3, assignment_epoch=3, assignor="range", coordinator=1,
        rebalances=events, **{"members": (member("live-5678"),), **more},
    )  # fmt: skip


def told(found: group_responses.DescribeGroupResponse, *, every: bool = False) -> list[str]:
    return list(story(found, every=every))


def test_the_story_of_a_rebalance() -> None:
    assert told(group(event(4, moves=1, stable_after_ms=40))) == [
        "group g is stable, epoch 3, coordinated by broker 1",
        "now: 1 members, every partition is read",
        "",
        "#4 1970-01-01T00:00:01.000+00:00 epoch 3: 1 partitions moved, the longest pause was 45.0 s, stable after 40 ms",
        "    member_expired job/one-1234@h: silent",
        "    t-0  job/one-1234@h -> app/ive-5678@10.0.0.1  paused 45.0 s",
    ]


def test_what_the_group_waits_for_now() -> None:
    unowned = UnownedPartition(
        topic="t", partition=2, reason="waiting_for_revocation", text="not let go", member_id="live-5678",
        since_ms=12_000, ends_in_ms=900,
    )  # fmt: skip
    members = (
        member("live-5678", slow_ms=12_000, silent_ms=5),
        member("away", is_away=True, session_left_ms=2_000),
        member("mute", silent_ms=11_000, session_left_ms=4_000),
    )
    lines = told(group(unowned=(unowned,), members=members))
    assert lines[1:6] == [
        "now: 3 members, 1 partitions have no reader:",
        "  t-2  waiting_for_revocation for 12.0 s (app/ive-5678@10.0.0.1): not let go; ends within 900 ms",
        "  app/ive-5678@10.0.0.1 is slow: for 12.0 s it has not taken over its assignment (it polls too rarely)",
        "  app/away@10.0.0.1 is away; its session ends in 2.0 s",
        "  app/mute@10.0.0.1 has been silent for 11.0 s; its session ends in 4.0 s",
    ]
    assert lines[-1] == "no rebalance since this coordinator took over"


def test_an_empty_group_has_no_members_and_nothing_unowned() -> None:
    assert told(group(members=()))[1] == "now: no members, so no partition is read"


def test_long_stories_are_cut_and_say_so() -> None:
    events = [event(number, moves=MOVES_TOLD + 5) for number in range(NEWEST_TOLD + 2)]
    lines = told(group(*events))
    assert f"the newest {NEWEST_TOLD} of {NEWEST_TOLD + 2} rebalances (--all shows the others too)" in lines
    assert lines.count("    ... and 5 more") == NEWEST_TOLD
    every = told(group(*events), every=True)
    assert not [line for line in every if "more" in line]
    assert sum(line.startswith("#") for line in every) == NEWEST_TOLD + 2
    assert "nothing moved, ran into the next one" in told(group(event(1, is_superseded=True)))[-2]
    assert "under way" in told(group(event(1)))[-2]


def test_the_command(run: Any, cluster: FakeCluster) -> None:
    cluster.committed["g"] = {P0: 1}
    assert "member_joined" in run("group", "explain", "g")[1]
    explained = rows(run("group", "explain", "g", "-f", "json")[1])
    (only,) = explained["rebalances"]
    assert (only["cause"], only["member"], only["stable_after_ms"]) == ("member_joined", "m", 7)
    assert only["moves"] == [{"topic": "t", "partition": 0, "from": None, "to": "m", "at_ms": 5, "pause_ms": 5}]
    assert explained["unowned"][0] == {
        "topic": "t", "partition": 1, "reason": "waiting_for_heartbeat", "text": "it is free", "member": "m",
        "for_ms": 1_500, "ends_in_ms": None,
    }  # fmt: skip


@pytest.mark.parametrize("words", [("-f", "json"), ()])
def test_the_causes(run: Any, words: tuple[str, ...]) -> None:
    code, out, _ = run("group", "explain", "--causes", *words)
    assert code == 0
    assert all(cause.value in out for cause in RebalanceCause)


def test_a_group_must_be_named(run: Any) -> None:
    assert run("group", "explain")[0] == 2
