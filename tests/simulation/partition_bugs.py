"""Bugs of one partition's leader and followers, found by `isr_cluster` (more of them are in `isr_bugs`)."""

import contextlib
from typing import Any

from barnabas.log.replication.current_role import CurrentRole
from barnabas.log.replication.effects import Effect, HighWatermarkAdvanced, PartitionAssignment
from barnabas.log.replication.leader import LeaderState
from barnabas.log.replication.partition import Partition
from barnabas.log.replication.partition_reads import PartitionReads
from barnabas.log.replication.replica import Replica

from .isr_bugs import DIRECTED, SCENARIOS, _with_machines, _with_parts
from .isr_cluster import run_seed
from .isr_scenario import Scenario
from .isr_schedules import MomentMissed, ScheduledCluster, run_schedule
from .planted import Planted, Run


class HighWatermarkFalls(LeaderState):
    """The high watermark is computed again from the current ISR, even if that is lower."""

    def _advance(self, now_ms: int) -> list[Effect]:
        ends = [
            replica.log_end_offset
            for replica in self.followers.replicas.values()
            if replica.replica_id in self.isr.maximal_isr
        ]
        high_watermark = min([self.log_end_offset, *(end for end in ends if end >= 0)])
        if high_watermark == self.high_watermark or self.is_under_min_isr:
            return []
        self.high_watermark = high_watermark
        return [HighWatermarkAdvanced(topic_partition=self.topic_partition, high_watermark=high_watermark)]


class CountsBeforeTheFollowerHasIt(LeaderState):
    """A follower is taken to have what it was sent, before its next fetch says so."""

    def follower_fetched(self, replica_id: int, *, broker_epoch: int, fetch_offset: int, now_ms: int) -> list[Effect]:
        ahead = max(fetch_offset, min(self.log_end_offset, fetch_offset + 20))
        return super().follower_fetched(replica_id, broker_epoch=broker_epoch, fetch_offset=ahead, now_ms=now_ms)


class TruncatesToItsOwnHighWatermark(Partition):
    """A follower that fetches cuts what lies behind its high watermark whenever its leader changes, and a new leader too."""

    def make_leader(self, assignment: PartitionAssignment, now_ms: int) -> list[Effect]:
        if assignment.leader_epoch > self.leader_epoch and not self.role.is_leader:
            self.log.truncate_to(min(self.log.high_watermark, self.log.log_end_offset))
        return super().make_leader(assignment, now_ms)


class KeepsItsTail(PartitionReads):
    """A divergence is not looked at: the follower goes on behind its own tail."""

    def refusal(self, offset: int, last_fetched_epoch: int) -> Any:
        return None if offset <= self._storage.log.log_end_offset else super().refusal(offset, -1)


class TakesFetchesOfAnyEpoch(CurrentRole):
    """KIP-320: a fetch of an earlier leadership counts, though its sender has cut its log since."""

    def check_epoch(self, current_leader_epoch: int, *, must_be_known: bool = False) -> None:
        pass


class JoinsBehindEarlierLeaders(LeaderState):
    """KIP-320, fourth rule: a follower joins with what this leader knows to be committed, whatever earlier leaders know."""

    __slots__ = ()

    def _has_reached_commitment(self, replica: Replica) -> bool:
        return replica.log_end_offset >= self.high_watermark


RARE_FROM = 890  # seeds of which one in a thousand shows a bug: found at 903
RARE: dict[str, Scenario] = {
    "a fetch of an earlier leader epoch counts (KIP-320)": Scenario(
        partition_class=_with_parts("TakesAnyEpoch", role=TakesFetchesOfAnyEpoch)
    ),
}
_SCENARIOS: dict[str, Scenario] = {
    "the high watermark falls": Scenario(partition_class=_with_machines("Falls", leader=HighWatermarkFalls)),
    "a follower counts for what it was only sent": Scenario(
        partition_class=_with_machines("CountsEarly", leader=CountsBeforeTheFollowerHasIt)
    ),
    "a new leader cuts its log to its high watermark": Scenario(partition_class=TruncatesToItsOwnHighWatermark),
    "a follower keeps a tail that its leader has not": Scenario(
        partition_class=_with_parts("KeepsItsTail", reads=KeepsItsTail)
    ),
    "a follower joins behind earlier leaders (KIP-320)": Scenario(
        partition_class=_with_machines("JoinsBehind", leader=JoinsBehindEarlierLeaders)
    ),
}


def _in_scenario(scenario: Scenario, first: int = 0) -> Run:
    return lambda seed: run_seed(first + seed, scenario)


def _in_schedule(kind: type[ScheduledCluster], scenario: Scenario) -> Run:
    def run(seed: int) -> None:
        with contextlib.suppress(MomentMissed):
            run_schedule(kind, seed, scenario)

    return run


# The machines themselves are exchanged, by their scenario.
_RUNS: dict[str, dict[str, Run]] = {
    "partition": {
        **{name: _in_scenario(scenario) for name, scenario in (SCENARIOS | _SCENARIOS).items()},
        **{name: _in_scenario(scenario, RARE_FROM) for name, scenario in RARE.items()},
    },
    "schedule": {name: _in_schedule(kind, scenario) for name, (kind, scenario) in DIRECTED.items()},
}
BUGS = [
    Planted(level=level, name=name, plant=contextlib.nullcontext, run=run)
    for level, runs in _RUNS.items()
    for name, run in runs.items()
]
