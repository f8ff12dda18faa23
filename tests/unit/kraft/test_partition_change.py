"""The transitions of a partition against a model that knows which replicas have everything that is committed (KIP-966).

Brokers fail, return, lose data and disks, replicas join the ISR and are moved, and the leader commits where it may. Afterwards,
the in-sync and eligible replicas have everything, and a leader that may lack something is counted as unclean.
"""

import dataclasses
from collections import Counter
from random import Random

import pytest
from msgspec.structs import replace

from barnabas.kraft.metadata.image import NO_LEADER, PartitionImage
from barnabas.kraft.metadata.partition_change import (
    ElectionRules,
    complete_reassignment,
    difference,
    elect,
    is_nothing_known,
    with_isr,
    without_inactive,
)
from barnabas.kraft.metadata.replay import changed_partition

NODES = range(5)
STEPS = 60


class Model:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        replicas = tuple(self.rng.sample(NODES, self.rng.randint(1, 3)))
        self.partition = PartitionImage(replicas=replicas, isr=replicas, leader=replicas[0])
        self.active = set(NODES)
        self.full = frozenset(self.rng.sample(NODES, self.rng.randint(0, 2)))
        self.min_isr = self.rng.randint(1, 3)
        self.is_unclean_allowed = self.rng.random() < 0.2
        self.has_all = set(replicas)
        self.leaders = Counter({self.partition.leader: 1})
        self.others = Counter({node: self.rng.randint(0, 3) for node in NODES})  # leaderships of other partitions
        self.leaders += self.others

    def rules(self, lost: frozenset[int] = frozenset(), longest: int | None = None) -> ElectionRules:
        return ElectionRules(
            active=frozenset(self.active), min_insync_replicas=self.min_isr, unclean=self.is_unclean_allowed,
            lost=lost, full=self.full, longest=longest,
        )  # fmt: skip

    def step(self) -> None:
        node = self.rng.choice(NODES)
        match self.rng.randrange(7):
            case 0:
                self.active.discard(node)
                self.settle(self.partition, self.rules())
            case 1:
                self.active.add(node)
                self.settle(self.partition, self.rules(longest=self.rng.choice([None, node])))
            case 2:  # it comes back, and may have lost what it had acknowledged
                if self.rng.random() < 0.5:
                    self.active.discard(node)
                self.has_all.discard(node)
                self.settle(self.partition, self.rules(lost=frozenset({node})))
            case 3:
                offline = {*self.partition.offline_replicas} ^ {node}
                ordered = tuple(it for it in self.partition.replicas if it in offline)
                self.settle(replace(self.partition, offline_replicas=ordered), self.rules())
            case 4:
                self.move(tuple(self.rng.sample(NODES, self.rng.randint(1, 3))))
            case 5:
                self.expand(node)
            case _:
                self.commit()
        self.check()
        self.probe()

    def settle(self, partition: PartitionImage, rules: ElectionRules) -> None:
        able = rules.able(partition)
        settled = without_inactive(partition, rules)
        assert settled.isr == tuple(node for node in partition.isr if node in able and node not in rules.lost)
        partition = self.completed(settled, rules)
        after = elect(partition, rules, self.leaders)
        self.judge(partition, after, rules)
        if after.unclean_elections > partition.unclean_elections:
            self.has_all = {after.leader}
        if after.leader == NO_LEADER:
            old = self.partition
            assert after.last_known_leader == (old.leader if old.leader != NO_LEADER else old.last_known_leader)
        else:
            assert after.last_known_leader == NO_LEADER
        self.replay(self.partition, after)

    def completed(self, settled: PartitionImage, rules: ElectionRules) -> PartitionImage:
        """A reassignment ends when all that were added are in sync, and those that stay can acknowledge alone."""
        after, target = complete_reassignment(settled, rules), settled.target_replicas
        isr = tuple(node for node in settled.isr if node in target)
        is_due = settled.is_moving and isr and len(isr) >= min(self.min_isr, len(target))
        if not is_due or not set(settled.adding_replicas) <= set(isr):
            assert after is settled
            return after
        had = {*settled.isr, *settled.eligible_leader_replicas} - set(isr)
        eligible = tuple(node for node in target if node in had) if len(isr) < min(self.min_isr, len(target)) else ()
        assert after == replace(
            settled,
            replicas=target,
            isr=isr,
            eligible_leader_replicas=eligible,
            adding_replicas=(),
            removing_replicas=(),
        )
        return after

    def probe(self) -> None:
        """An election while brokers have failed of which the ISR does not know yet."""
        rules = dataclasses.replace(
            self.rules(), active=frozenset(self.rng.sample(NODES, 2)), longest=self.rng.choice(NODES)
        )
        leaders = self.leaders.copy()
        self.judge(self.partition, elect(self.partition, rules, leaders), rules)

    def move(self, target: tuple[int, ...]) -> None:
        if self.partition.is_moving:
            return
        replicas = self.partition.replicas
        removing = tuple(node for node in replicas if node not in target)
        adding = tuple(node for node in target if node not in replicas)
        planned = replace(
            self.partition, replicas=(*target, *removing), adding_replicas=adding, removing_replicas=removing
        )
        rules = self.rules()
        self.settle(with_isr(planned, planned.isr, rules), rules)

    def expand(self, node: int) -> None:
        """The leader proposes a replica that has caught up with it."""
        partition, rules = self.partition, self.rules()
        if partition.leader in rules.able(partition) and node in rules.able(partition) and node in partition.replicas:
            self.has_all.add(node)
            isr = tuple(dict.fromkeys((*partition.isr, node)))
            self.settle(with_isr(partition, isr, rules), rules)

    def commit(self) -> None:
        partition = self.partition
        if partition.leader in self.active and len(partition.isr) >= self.rules().enough(partition):
            assert not partition.eligible_leader_replicas
            self.has_all = set(partition.isr)  # the others lag

    def judge(self, before: PartitionImage, after: PartitionImage, rules: ElectionRules) -> None:
        """What an election has made of the partition."""
        able = rules.able(before)
        in_sync = [node for node in before.isr if node in able]
        eligible = [node for node in before.eligible_leader_replicas if node in able]
        if before.leader in in_sync:
            assert after == before
        elif in_sync:
            best = min((node in self.full, self.others[node]) for node in in_sync)
            assert after.leader in in_sync and after.isr == before.isr
            assert (after.leader in self.full, self.others[after.leader]) == best
        elif eligible:
            assert after.leader in eligible and after.isr == (after.leader,)
            assert after.unclean_elections == before.unclean_elections
        elif after.leader != NO_LEADER:
            assert after.unclean_elections == before.unclean_elections + 1
            assert after.leader in able and after.leader in after.replicas and after.isr == (after.leader,)
            longest = rules.longest if rules.longest in able and rules.longest in before.replicas else None
            assert after.leader == longest if longest is not None else self.is_unclean_allowed
            assert self.is_unclean_allowed or not (before.isr or before.eligible_leader_replicas)
            assert not after.eligible_leader_replicas
        elif self.is_unclean_allowed:
            assert not able.intersection(before.replicas)
        else:
            nothing_known = not before.isr and not before.eligible_leader_replicas
            assert is_nothing_known(before) == nothing_known
            assert not nothing_known or rules.longest not in able.intersection(before.replicas)

    def replay(self, old: PartitionImage, after: PartitionImage) -> None:
        record = difference("id", 0, old, after)
        if record is None:
            assert after == old
            return
        self.partition = changed_partition(old, record)
        kept = tuple(node for node in after.offline_replicas if node in after.replicas)
        is_new_epoch = after.leader != old.leader or not set(old.replicas) <= set(after.replicas)
        assert self.partition == replace(
            after,
            offline_replicas=kept,
            partition_epoch=old.partition_epoch + 1,
            leader_epoch=old.leader_epoch + is_new_epoch,
        )

    def check(self) -> None:
        partition = self.partition
        isr, eligible = set(partition.isr), set(partition.eligible_leader_replicas)
        assert isr | eligible <= set(partition.replicas) and not isr & eligible
        assert isr | eligible <= self.has_all, f"{partition} against {self.has_all}"
        assert isr <= self.active and not isr & set(partition.offline_replicas)
        assert partition.leader == NO_LEADER or partition.leader in isr
        if not partition.is_moving:
            assert not eligible or len(isr) < min(self.min_isr, len(partition.replicas))
        led = Counter({partition.leader: 1}) if partition.leader != NO_LEADER else Counter[int]()
        assert +self.leaders == led + self.others


@pytest.mark.parametrize("seed", range(200))
def test_a_leader_has_everything_that_is_committed_or_is_counted_as_unclean(seed: int) -> None:
    model = Model(seed)
    for _ in range(STEPS):
        model.step()


def test_elections_are_clean_without_a_word() -> None:
    rules = ElectionRules(active=frozenset({1, 2}))
    partition = PartitionImage(replicas=(1, 2, 3), isr=(3,))
    assert elect(partition, rules, Counter()) == partition and rules.enough(partition) == 1
