"""Partitions in memory for directed scenarios: leaders and followers, and what they send each other."""

from simulation.isr_log import RECORD, MemoryLog, batch, changed

from barnabas.log.replication.effects import (
    Effect,
    PartitionAssignment,
    ProposeIsr,
)
from barnabas.log.replication.follower import FetchAnswer
from barnabas.log.replication.partition import Partition
from barnabas.log.replication.partition_reads import PartitionRead
from barnabas.log.vocabulary.topic_partition import TopicPartition

TP = TopicPartition("t", 0)
LAG_MS = 1_000


def assignment(
    leader: int,
    epoch: int,
    *,
    partition_epoch: int | None = None,
    isr: tuple[int, ...] = (1, 2, 3),
    active: dict[int, int] | None = None,
) -> PartitionAssignment:
    return PartitionAssignment(
        topic_partition=TP,
        topic_id="t1",
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=epoch * 10 if partition_epoch is None else partition_epoch,
        replicas=(1, 2, 3),
        isr=isr,
        broker_epochs={1: 101, 2: 102, 3: 103} if active is None else active,
    )


def replica(node_id: int, *, min_isr: int = 1) -> Partition:
    log = MemoryLog(TP, min_insync_replicas=min_isr)
    return Partition(log, node_id, replica_lag_time_max_ms=LAG_MS)


def leader(*, isr: tuple[int, ...] = (1, 2, 3), min_isr: int = 1, epoch: int = 5) -> Partition:
    partition = replica(1, min_isr=min_isr)
    partition.make_leader(assignment(1, epoch, isr=isr), 0)
    return partition


def produce(partition: Partition, *sequences: int, now_ms: int = 0, acks: int = 1) -> list[Effect]:
    effects: list[Effect] = []
    for sequence in sequences:
        effects += partition.leading.append(batch((0, sequence)), acks=acks, now_ms=now_ms)[2]
    return effects


def fetch(
    partition: Partition,
    replica_id: int,
    offset: int,
    *,
    now_ms: int = 0,
    broker_epoch: int | None = None,
    epoch: int | None = None,
) -> list[Effect]:
    """A follower whose log agrees with the leader's says that it has everything before `offset`."""
    last = partition.log.records[offset - 1][0] if offset else -1
    return partition.leading.read_for_follower(
        replica_id,
        broker_epoch=100 + replica_id if broker_epoch is None else broker_epoch,
        offset=offset,
        max_bytes=1 << 20,
        current_leader_epoch=partition.leader_epoch if epoch is None else epoch,
        last_fetched_epoch=last,
        now_ms=now_ms,
    )[1]


def pull(follower: Partition, source: Partition, *, rounds: int = 10) -> None:
    """Fetch until the logs are equal."""
    for _ in range(rounds):
        position = follower.following.next_fetch()
        assert position is not None
        read, _ = source.leading.read_for_follower(
            follower.node_id,
            broker_epoch=100 + follower.node_id,
            offset=position.offset,
            max_bytes=RECORD.size,
            current_leader_epoch=position.leader_epoch,
            last_fetched_epoch=position.last_fetched_epoch,
            now_ms=0,
        )
        changed(follower, follower.following.fetched(position, answer(read), 0))


def answer(read: PartitionRead) -> FetchAnswer:
    assert isinstance(read.records, bytes)
    return FetchAnswer(
        error=read.error,
        records=read.records,
        high_watermark=read.high_watermark,
        log_start_offset=read.log_start_offset,
        diverging_epoch=read.diverging_epoch,
        diverging_end_offset=read.diverging_end_offset,
    )


def proposal_in(effects: list[Effect]) -> ProposeIsr:
    (proposal,) = [effect for effect in effects if isinstance(effect, ProposeIsr)]
    return proposal


def members(proposal: ProposeIsr) -> list[int]:
    return [member.node_id for member in proposal.isr]
