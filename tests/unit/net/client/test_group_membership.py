"""The member's machine against the coordinator's: whatever the application does in between, all partitions are read in the end.

A member takes what it is given only when its application asks for records, so it may hear of a second change before it has
carried out the first.
"""

from random import Random

from unit.consumer_groups.coordinator_bench import GROUP, Bench

from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.log.vocabulary.errors import UnreleasedInstanceIdError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import BarnabasError, NetworkError
from barnabas.net.client.group.group_membership import GroupMembership, State, Verdict
from barnabas.net.client.group.ownership import Subscription

SEEDS = 1_000
STEPS = 60
MOST_MEMBERS = 4
ROUNDS_TO_SETTLE = 16
# No session ends meanwhile: also a member that leaves without the answer to its join leaves nothing behind.
ROUND_MS = GroupSettings().session_timeout_ms // (2 * ROUNDS_TO_SETTLE)
ALL = {TopicPartition("t", number) for number in range(4)}


class Member:
    def __init__(self, bench: Bench, name: str) -> None:
        self.bench = bench
        self.machine = GroupMembership(GROUP, name, Subscription(topics=("t",)), max_wait_ms=0)

    def beat(self, *, is_answer_lost: bool = False) -> None:
        if self.machine.state is State.LEFT:
            return
        try:
            request = self.machine.heartbeat()
            self.machine.sending()
            told = self.bench.heartbeat(request)
            if is_answer_lost:
                raise NetworkError("the answer was lost")
        except BarnabasError as error:
            self.machine.failed(error)
        else:
            self.machine.answered(told)

    def poll(self) -> None:
        """The application asks for records."""
        self.machine.take_lost()
        change = self.machine.change()
        if change.revoke:
            self.machine.revoked(change.revoke)
        if change.adopt:
            self.machine.adopted(change.adopt)

    def leave(self) -> None:
        farewell = self.machine.leave()
        if farewell is not None:
            self.bench.heartbeat(farewell)


def settle(*members: Member) -> None:
    for _ in range(ROUNDS_TO_SETTLE):
        for member in members:
            member.beat()
            member.poll()
        members[0].bench.tick(ROUND_MS)
    owned = [partition for member in members for partition in member.machine.owned]
    assert sorted(owned) == sorted(ALL)


def test_what_was_given_and_taken_back_before_it_was_adopted_is_let_go_of() -> None:
    """Nothing is left to do then, and the coordinator waits for nothing but a word."""
    bench = Bench()
    first, second = Member(bench, "first"), Member(bench, "second")
    settle(first)
    settle(first, second)
    second.leave()
    first.beat()  # it is given everything, and its application is busy
    third = Member(bench, "third")
    third.beat()
    settle(first, third)


def test_a_member_that_leaves_without_the_answer_to_its_join_has_left() -> None:
    bench = Bench()
    gone, second = Member(bench, "gone"), Member(bench, "second")
    gone.beat(is_answer_lost=True)
    gone.leave()
    settle(second)


def test_a_member_that_the_coordinator_has_removed_need_not_leave() -> None:
    bench = Bench()
    member = Member(bench, "m")
    member.beat()
    bench.tick(GroupSettings().session_timeout_ms)
    member.beat()
    assert member.machine.state is State.JOINING
    assert member.machine.leave() is None


def test_a_member_whose_instance_id_another_one_has_need_not_leave() -> None:
    """The coordinator would refuse it, and tell its operator of a member that was fenced."""
    machine = GroupMembership(GROUP, "m", Subscription(topics=("t",)), instance_id="i")
    machine.heartbeat()
    machine.sending()
    assert machine.failed(UnreleasedInstanceIdError("in use")) is Verdict.RETRY
    assert machine.leave() is None


def test_every_partition_is_read_in_the_end() -> None:
    for seed in range(SEEDS):
        try:
            run_seed(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def run_seed(seed: int) -> None:
    rng, bench, members = Random(seed), Bench(), list[Member]()
    for number in range(STEPS):
        dice = rng.random()
        if not members or (dice < 0.1 and len(members) < MOST_MEMBERS):
            members.append(Member(bench, f"m{number}"))
        elif dice < 0.15 and len(members) > 1:
            members.pop(rng.randrange(len(members))).leave()
        elif dice < 0.5:
            rng.choice(members).poll()
        else:
            rng.choice(members).beat(is_answer_lost=rng.random() < 0.1)
        bench.tick(rng.choice((0, 1, 50)))
    settle(*members)
