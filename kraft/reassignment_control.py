"""Replicas of a partition move to other brokers (KIP-455): first the new ones are added, then the old ones leave.

It ends by itself in `partition_change.complete_reassignment`, when the leader proposes an ISR that holds everybody added.
Throttling is not part of this.
"""

from dataclasses import replace

from barnabas.log.errors import InvalidReplicaAssignmentError

from .controller_errors import NoReassignmentInProgressError
from .controller_result import ControllerResult
from .controller_settings import MAX_REPLICATION_FACTOR, ControllerSettings
from .delta import MetadataDelta
from .image import PartitionImage
from .partition_change import complete_reassignment, difference, elect, with_isr
from .replication_control import find_partition, leader_counts
from .requests import AssignReplicas
from .topic_control import check_replicas
from .topic_settings import election_rules


def assign_replicas(view: MetadataDelta, settings: ControllerSettings, request: AssignReplicas) -> ControllerResult:
    """Begin, change or (with no replicas) cancel a reassignment."""
    topic, partition = find_partition(view, request.topic, request.partition)
    name = f"{request.topic}-{request.partition}"
    if request.replicas:
        if len(request.replicas) > MAX_REPLICATION_FACTOR:
            raise InvalidReplicaAssignmentError(f"{len(request.replicas)} replicas; at most {MAX_REPLICATION_FACTOR}")
        check_replicas(view, request.replicas)
    elif not partition.adding_replicas and not partition.removing_replicas:
        raise NoReassignmentInProgressError(f"no reassignment of {name} is under way")
    planned = _planned(partition, request.replicas)
    isr = tuple(replica for replica in partition.isr if replica in planned.replicas)
    if partition.isr and not isr:
        raise InvalidReplicaAssignmentError(
            f"none of {planned.replicas} is in sync for {name}; in sync: {partition.isr}. Wait until one is"
        )
    rules = election_rules(view, settings, request.topic, active=view.active_brokers())
    wanted = elect(complete_reassignment(with_isr(planned, isr, rules), rules), rules, leader_counts(view))
    record = difference(topic.topic_id, request.partition, partition, wanted)
    return ControllerResult(records=() if record is None else (record,))


def _planned(partition: PartitionImage, target: tuple[int, ...]) -> PartitionImage:
    """Replicas that an earlier reassignment was still adding are dropped at once unless the new one wants them too."""
    original = tuple(replica for replica in partition.replicas if replica not in partition.adding_replicas)
    goal = target or original
    leaving = tuple(replica for replica in original if replica not in goal)
    return replace(
        partition,
        replicas=(*goal, *leaving),
        adding_replicas=tuple(replica for replica in goal if replica not in original),
        removing_replicas=leaving,
    )
