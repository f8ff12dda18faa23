"""Heartbeats that wait at the coordinator: what answers them, and when."""

from msgspec.structs import replace

from barnabas.consumer_groups.members.parked_heartbeats import MAX_ANSWERS_PER_WAKE
from barnabas.consumer_groups.model.messages import CoordinatorResult
from barnabas.consumer_groups.model.rebalance_causes import RebalanceCause
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.log.vocabulary.errors import (
    FencedMemberEpochError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from barnabas.log.vocabulary.group_messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OffsetToCommit,
)

from .coordinator_bench import GROUP, Bench, T


class Poller:
    """A member's parked heartbeats, and what they were answered."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.tickets = 0
        self.answers: dict[int, object] = {}

    def poll(self, request: ConsumerGroupHeartbeatRequest, *, max_wait_ms: int = 60_000) -> int:
        self.tickets += 1
        self.take(
            self.bench.coordinator.poll_heartbeat(
                replace(request, owned=None, max_wait_ms=max_wait_ms), self.tickets, self.bench.now_ms
            )
        )
        return self.tickets

    def take(self, result: CoordinatorResult[None]) -> None:
        self.bench.commit(result.records)
        self.answers |= {item.ticket: item.value for item in result.answers}

    def tick(self, pass_ms: int) -> None:
        self.bench.now_ms += pass_ms
        self.take(self.bench.coordinator.tick(self.bench.now_ms))


def test_a_parked_heartbeat_is_answered_when_a_rebalance_begins_and_when_partitions_come_free() -> None:
    bench = Bench()
    poller = Poller(bench)
    first = bench.join("a")
    ticket = poller.poll(first.request())
    assert poller.answers == {}
    second = bench.join("b")
    assert poller.answers == {}, "not with the join: the join's own decision must stay small"
    poller.tick(1)
    told = poller.answers[ticket]
    assert isinstance(told, ConsumerGroupHeartbeatResponse) and told.assignment is not None
    second.beat()
    waiting = poller.poll(second.request())
    first.take(told)
    first.beat()  # It says that it has let go.
    poller.tick(1)
    told = poller.answers[waiting]
    assert isinstance(told, ConsumerGroupHeartbeatResponse)
    assert second.take(told) and first.owned | second.owned == T


def test_a_parked_heartbeat_ends_in_time_and_says_nothing_new() -> None:
    bench = Bench()
    poller = Poller(bench)
    first = bench.join("a")
    short = poller.poll(first.request(), max_wait_ms=200)
    poller.tick(199)
    assert poller.answers == {}
    poller.tick(1)
    assert poller.answers[short] == ConsumerGroupHeartbeatResponse(
        member_id="a", member_epoch=first.epoch, heartbeat_interval_ms=bench.settings.heartbeat_interval_ms
    )
    long = poller.poll(first.request())
    poller.tick(bench.settings.heartbeat_interval_ms)
    assert long in poller.answers, "nobody waits for longer than a heartbeat interval: it is a sign of life"


def test_to_be_told_is_no_sign_of_life() -> None:
    bench = Bench()
    poller = Poller(bench)
    first = bench.join("a")
    poller.poll(first.request())
    session_ms = bench.settings.session_timeout_ms
    bench.now_ms += bench.settings.heartbeat_interval_ms - 1
    bench.join("b")
    poller.tick(1)
    assert len(poller.answers) == 1
    poller.tick(session_ms - bench.settings.heartbeat_interval_ms)
    assert RebalanceCause.MEMBER_EXPIRED in bench.causes()


def test_a_newer_heartbeat_and_the_end_of_a_membership_answer_the_one_that_waits() -> None:
    bench = Bench()
    poller = Poller(bench)
    first = bench.join("a")
    old = poller.poll(first.request())
    new = poller.poll(first.request())
    assert isinstance(poller.answers[old], RebalanceInProgressError) and new not in poller.answers
    bench.now_ms += bench.settings.session_timeout_ms
    poller.tick(0)
    assert isinstance(poller.answers[new], UnknownMemberIdError)


def test_a_reset_of_offsets_reaches_those_who_wait() -> None:
    bench = Bench()
    poller = Poller(bench)
    ticket = poller.poll(bench.join("a").request())
    offsets = (OffsetToCommit(topic="t", partition=0, offset=0),)
    bench.commit(bench.coordinator.reset_offsets(group_id=GROUP, offsets=offsets, now_ms=bench.now_ms).records)
    poller.tick(1)
    assert isinstance(poller.answers[ticket], FencedMemberEpochError)


def test_a_wake_that_tells_many_members_goes_in_several_decisions() -> None:
    bench = Bench(topics={"t": 2_000}, settings=GroupSettings(assignment_interval_ms=0))
    poller = Poller(bench)
    members = [bench.join(f"m{number:04d}", assignor="uniform") for number in range(MAX_ANSWERS_PER_WAKE + 50)]
    for _ in range(3):
        for member in members:
            member.beat()
    for member in members:
        poller.poll(member.request())
    assert not poller.answers
    bench.change_topics({"t": 4_000})
    poller.tick(1)
    assert len(poller.answers) == MAX_ANSWERS_PER_WAKE
    poller.tick(1)
    assert len(poller.answers) == len(members)
    for ticket, member in enumerate(members, 1):
        answer = poller.answers.pop(ticket)
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        member.take(answer)
        member.beat()
    for member in members:
        poller.poll(member.request())
    assert not poller.answers
    offsets = (OffsetToCommit(topic="t", partition=0, offset=0),)
    bench.commit(bench.coordinator.reset_offsets(group_id=GROUP, offsets=offsets, now_ms=bench.now_ms).records)
    poller.tick(1)
    assert len(poller.answers) == MAX_ANSWERS_PER_WAKE
    poller.tick(1)
    assert len(poller.answers) == len(members), "a refusal changes nothing in the group that would wake the rest"
