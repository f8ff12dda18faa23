"""The leader's machine against a controller and followers whose truth it hears late or not at all.

After each event, whatever the controller may elect from has everything below the high watermark: each member of its ISR, and each
eligible replica. Once all is heard again, everybody is in sync and everything is committed.
"""

from random import Random

import pytest

from barnabas.log.replication.effects import (
    Effect,
    HighWatermarkAdvanced,
    IsrAnswer,
    LogEndAdvanced,
    PartitionAssignment,
    ProposeIsr,
)
from barnabas.log.replication.isr import PROPOSAL_LIFETIME_MS, PROPOSAL_TIMEOUT_MS
from barnabas.log.replication.leader import LeaderState
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.topic_partition import TopicPartition

TP = TopicPartition("t", 0)
LEADER, FOLLOWERS = 1, (2, 3, 4)
REPLICAS = (LEADER, *FOLLOWERS)
LAG_MS = 1_000
STEPS = 150
NEVER_MS = -(10**9)


class World:
    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.now_ms = 0
        self.is_flushed_first = rng.random() < 0.3
        self.end = rng.randint(0, 5)
        self.held = {node: rng.randint(0, self.end) for node in FOLLOWERS}  # their log ends
        # The controller's truth.
        self.isr, self.eligible = {LEADER, *rng.sample(FOLLOWERS, rng.randint(0, 3))}, set[int]()
        self.partition_epoch = 7
        self.broker_epochs = {node: 100 + node for node in REPLICAS}
        self.inactive = set[int]()
        self.min_isr = rng.randint(1, 3)
        for node in self.isr - {LEADER}:
            self.held[node] = self.end  # what earlier leaders committed
        self.on_the_way: list[ProposeIsr] = []
        self.caught_up_ms = dict.fromkeys(FOLLOWERS, NEVER_MS)  # when it surely had everything, as a member of the ISR
        self.leader = LeaderState(LEADER, replica_lag_time_max_ms=LAG_MS)
        self.leader.min_insync_replicas = self.min_isr
        self.take(
            self.leader.become_leader(
                self.assignment(),
                log_end_offset=self.end,
                durable_end_offset=self.end,
                high_watermark=rng.randint(0, min([self.end, *(self.held[node] for node in self.isr - {LEADER})])),
                now_ms=0,
            )
        )

    def assignment(self) -> PartitionAssignment:
        active = {node: epoch for node, epoch in self.broker_epochs.items() if node not in self.inactive}
        return PartitionAssignment(
            topic_partition=TP, topic_id="id", leader=LEADER, leader_epoch=3, partition_epoch=self.partition_epoch,
            replicas=REPLICAS, isr=tuple(sorted(self.isr)), broker_epochs=active, eligible=tuple(sorted(self.eligible)),
        )  # fmt: skip

    # --- the leader ---------------------------------------------------------------------------------------------------

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ProposeIsr):
                self.check_proposal(effect)
                self.on_the_way.append(effect)
            elif isinstance(effect, HighWatermarkAdvanced):
                assert effect.high_watermark == self.leader.high_watermark
            elif isinstance(effect, LogEndAdvanced):
                assert effect.log_end_offset == self.end

    def check_proposal(self, proposal: ProposeIsr) -> None:
        known = self.leader.isr.isr
        members = {member.node_id: member.broker_epoch for member in proposal.isr}
        assert LEADER in members and members[LEADER] == -1
        assert len({one.proposal_id for one in self.on_the_way} | {proposal.proposal_id}) == len(self.on_the_way) + 1
        for node in members.keys() - known:
            assert members[node] == self.leader.followers.broker_epochs[node]
            assert self.held[node] >= max(self.leader.high_watermark, self.leader.epoch_start_offset)
        for node in known - members.keys():
            assert self.now_ms - self.caught_up_ms[node] > LAG_MS

    def append(self) -> None:
        self.end += self.rng.randint(1, 3)
        durable = self.leader.durable_end_offset if self.is_flushed_first else self.end
        self.take(self.leader.appended(self.end, durable_end_offset=durable, now_ms=self.now_ms))

    def flush(self) -> None:
        self.take(self.leader.flushed(self.end, now_ms=self.now_ms))

    def pass_ms(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        self.take(self.leader.check_isr(self.now_ms))

    def hear(self) -> None:
        """The newest metadata."""
        if self.partition_epoch > self.leader.isr.partition_epoch:
            self.take(self.leader.metadata_changed(self.assignment(), now_ms=self.now_ms))
        else:
            self.take(self.leader.brokers_changed(self.assignment().broker_epochs, now_ms=self.now_ms))

    # --- followers ----------------------------------------------------------------------------------------------------

    def fetch(self, node: int, *, is_answered: bool = True) -> None:
        at = self.held[node]
        if at == self.end:
            self.caught_up_ms[node] = self.now_ms
        self.take(
            self.leader.follower_fetched(
                node, broker_epoch=self.broker_epochs[node], fetch_offset=at, now_ms=self.now_ms
            )
        )
        if is_answered:
            self.held[node] = self.rng.randint(at, self.end)

    def stray_fetch(self, node: int) -> None:
        """Of an earlier incarnation, of a stranger, or of an offset that is not there: nothing moves."""
        before = str(self.leader)
        wrong = [
            (9, 109, self.end),
            (node, self.broker_epochs[node], self.end + 1),
            (node, self.broker_epochs[node], -1),
        ]
        if node in self.leader.followers.broker_epochs:  # else it is news that there are later incarnations
            wrong.append((node, 1, self.end))
        node_id, epoch, offset = self.rng.choice(wrong)
        assert not self.leader.follower_fetched(node_id, broker_epoch=epoch, fetch_offset=offset, now_ms=self.now_ms)
        assert str(self.leader) == before

    # --- the controller -----------------------------------------------------------------------------------------------

    def restart(self, node: int) -> None:
        """Without loss: it leaves the ISR, and stays eligible if the rest is too small."""
        self.broker_epochs[node] += 10
        self.inactive.symmetric_difference_update({node})
        if node in self.isr:
            self.change(self.isr - {node})

    def change(self, isr: set[int]) -> None:
        had = self.isr | self.eligible
        self.eligible = had - isr if len(isr) < self.min_isr else set()
        self.isr = isr
        self.partition_epoch += 1

    def answer(self, proposal: ProposeIsr) -> IsrAnswer:
        members = {member.node_id: member.broker_epoch for member in proposal.isr}
        if proposal.partition_epoch != self.partition_epoch:
            return IsrAnswer(error=ErrorCode.INVALID_UPDATE_VERSION)
        if any(node in self.inactive or epoch not in (-1, self.broker_epochs[node]) for node, epoch in members.items()):
            return IsrAnswer(error=ErrorCode.INELIGIBLE_REPLICA)
        if members.keys() != self.isr:
            self.change(set(members))
        return IsrAnswer(
            leader=LEADER, leader_epoch=3, partition_epoch=self.partition_epoch, isr=tuple(self.isr),
            eligible=tuple(self.eligible),
        )  # fmt: skip

    def decide(self, *, is_heard: bool) -> None:
        if not self.on_the_way:
            return
        proposal = self.on_the_way.pop(self.rng.randrange(len(self.on_the_way)))
        answer = self.answer(proposal) if is_heard or self.rng.random() < 0.5 else None
        self.check()
        if is_heard and answer is not None:
            self.take(self.leader.isr_answered(proposal, answer, now_ms=self.now_ms))
        else:
            self.take(self.leader.isr_unanswered(proposal, now_ms=self.now_ms))

    # --- all together -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        node = self.rng.choice(FOLLOWERS)
        match self.rng.randrange(12):
            case 0 | 1:
                self.append()
            case 2:
                self.flush()
            case 3:
                self.pass_ms(self.rng.choice([0, 1, LAG_MS // 2, LAG_MS, LAG_MS + 1]))
            case 4:
                self.hear()
            case 5:
                self.restart(node)
            case 6:
                self.decide(is_heard=True)
            case 7:
                self.decide(is_heard=False)
            case 8:
                self.stray_fetch(node)
            case _:
                self.fetch(node, is_answered=self.rng.random() < 0.9)
        self.check()

    def check(self) -> None:
        leader = self.leader
        committed = leader.high_watermark
        assert committed <= leader.durable_end_offset <= leader.log_end_offset == self.end
        for node in (self.isr | self.eligible) - {LEADER}:
            assert self.held[node] >= committed, f"{node} has {self.held[node]}, committed is {committed}: {leader}"
        known = leader.isr
        self.caught_up_ms.update(dict.fromkeys(set(FOLLOWERS) - known.isr, NEVER_MS))
        assert known.isr <= known.maximal_isr and LEADER in known.isr
        assert leader.is_under_min_isr == (len(known.isr) < self.min_isr)
        assert leader.is_under_replicated == (known.isr != set(REPLICAS))

    def heal(self) -> None:
        """All brokers are up, all is heard, and nothing is written any more."""
        self.inactive.clear()
        for _ in range(40):
            self.hear()
            while self.on_the_way:
                self.decide(is_heard=True)
            for node in FOLLOWERS:
                self.fetch(node)
                self.held[node] = self.end
            self.flush()
            self.pass_ms(LAG_MS)
            self.check()
        assert self.isr == self.leader.isr.isr == set(REPLICAS)
        assert self.leader.high_watermark == self.end and self.leader.knows_earlier_epochs_end
        assert not self.eligible and not self.leader.isr.eligible


@pytest.mark.parametrize("seed", range(150))
def test_whoever_may_be_elected_has_everything_that_is_committed(seed: int) -> None:
    world, before = World(seed), 0
    for _ in range(STEPS):
        world.step()
        assert world.leader.high_watermark >= before
        before = world.leader.high_watermark
    world.now_ms += max(PROPOSAL_TIMEOUT_MS, PROPOSAL_LIFETIME_MS)
    world.heal()
