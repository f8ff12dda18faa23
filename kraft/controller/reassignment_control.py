"""Replicas of a partition move to other brokers (KIP-455): first the new ones are added, then the old ones leave.

It ends in `partition_change.complete_reassignment`, when the leader proposes an ISR with all added replicas. Brokers limit how
fast the new replicas copy (net/logs/following/replication_throttle); a throttle for moves is a configuration of all brokers, and
is removed here when the last move has ended.
"""

from msgspec.structs import replace

from barnabas.log.vocabulary.cluster_changes import AssignReplicasRequest, NoReassignmentInProgressError
from barnabas.log.vocabulary.errors import InvalidReplicaAssignmentError

from ..metadata.controller_result import ControllerResult
from ..metadata.controller_settings import MAX_REPLICATION_FACTOR, ControllerSettings
from ..metadata.delta import MetadataDelta
from ..metadata.image import PartitionImage, TopicImage
from ..metadata.partition_change import ElectionRules, complete_reassignment, difference, elect, with_isr
from ..metadata.records import BROKER_RESOURCE, ConfigRecord, PartitionChangeRecord
from ..metadata.topic_settings import CLUSTER_DEFAULT, REASSIGNMENT_THROTTLE, election_rules
from .replication_control import find_partition, leader_counts
from .topic_control import check_replicas


def assign_replicas(
    view: MetadataDelta, settings: ControllerSettings, request: AssignReplicasRequest
) -> ControllerResult:
    """Begin, change or (with no replicas) cancel a reassignment."""
    topic, _ = find_partition(view, request.topic, request.partition)
    records = reassign(view, settings, topic, request.partition, request.replicas)
    return ControllerResult(records=(*throttle_records(view, request.throttle_bytes_per_s), *records))


def reassign(
    view: MetadataDelta, settings: ControllerSettings, topic: TopicImage, number: int, replicas: tuple[int, ...]
) -> tuple[PartitionChangeRecord, ...]:
    """The record that begins, changes or cancels the reassignment of one partition; () if nothing is left to do."""
    partition = topic.partitions[number]
    name = f"{topic.name}-{number}"
    if replicas:
        if len(replicas) > MAX_REPLICATION_FACTOR:
            raise InvalidReplicaAssignmentError(f"{len(replicas)} replicas; at most {MAX_REPLICATION_FACTOR}")
        check_replicas(view, replicas, held=partition.replicas)
    elif not partition.is_moving:
        raise NoReassignmentInProgressError(f"no reassignment of {name} is in progress")
    planned = _planned(partition, replicas)
    isr = tuple(replica for replica in partition.isr if replica in planned.replicas)
    if partition.isr and not isr:
        raise InvalidReplicaAssignmentError(
            f"none of {planned.replicas} is in sync for {name}; in sync: {partition.isr}. Wait until one is"
        )
    rules = election_rules(view, settings, topic.name, active=view.active_brokers())
    _check_copies(partition, planned, rules, name)
    wanted = complete_reassignment(with_isr(planned, isr, rules), rules)
    if wanted.leader not in wanted.isr or wanted.leader not in rules.active:
        wanted = elect(wanted, rules, leader_counts(view))
    record = difference(topic.topic_id, number, partition, wanted)
    return () if record is None else (record,)


def _check_copies(partition: PartitionImage, planned: PartitionImage, rules: ElectionRules, name: str) -> None:
    """A replica that is dropped at once removes its copy of acknowledged records, and min.insync.replicas guarantees a number of
    copies. Only the replicas of the ISR and the ELR certainly have all of these records."""
    holders = {*partition.isr, *partition.eligible_leader_replicas}
    kept = holders.intersection(planned.replicas)
    if kept != holders and len(kept) < min(rules.min_insync_replicas, len(planned.replicas), len(holders)):
        raise InvalidReplicaAssignmentError(
            f"{name} would keep its acknowledged records on {sorted(kept)} only, but min.insync.replicas is "
            f"{rules.min_insync_replicas}: {sorted(holders - kept)} would be dropped. Wait until more of "
            f"{planned.replicas} are in sync, or let the reassignment end"
        )


def throttle_records(view: MetadataDelta, bytes_per_s: int) -> tuple[ConfigRecord, ...]:
    """Set the throttle of all moves, if one is given and it differs from the current one."""
    if bytes_per_s <= 0 or view.broker_config(CLUSTER_DEFAULT).get(REASSIGNMENT_THROTTLE) == str(bytes_per_s):
        return ()
    return (_throttle_record(str(bytes_per_s)),)


def end_throttle(view: MetadataDelta) -> tuple[ConfigRecord, ...]:
    """Remove the throttle if no reassignment is in progress and no broker is being emptied."""
    if REASSIGNMENT_THROTTLE not in view.broker_config(CLUSTER_DEFAULT):
        return ()
    leaving = frozenset(broker.node_id for broker in view.brokers().values() if broker.decommissioning)
    for topic in view.topics():
        for partition in topic.partitions:
            if partition.is_moving or not leaving.isdisjoint(partition.replicas):
                return ()
    return (_throttle_record(None),)


def _throttle_record(value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=BROKER_RESOURCE, resource=CLUSTER_DEFAULT, key=REASSIGNMENT_THROTTLE, value=value)


def _planned(partition: PartitionImage, target: tuple[int, ...]) -> PartitionImage:
    """Replicas that an earlier reassignment was still adding are dropped at once unless the new one includes them."""
    original = tuple(replica for replica in partition.replicas if replica not in partition.adding_replicas)
    goal = target or original
    leaving = tuple(replica for replica in original if replica not in goal)
    return replace(
        partition,
        replicas=(*goal, *leaving),
        adding_replicas=tuple(replica for replica in goal if replica not in original),
        removing_replicas=leaving,
    )
