"""Brokers that leave permanently, and brokers that are filled: plans of `rebalance_plan` become reassignments.

A record marks a broker as leaving, so the work survives every restart: the active controller plans the next moves at its ticks, a
limited number at a time, until the broker has no replicas. The remaining steps (controlled shutdown, unregistration) are
requested from outside.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from barnabas.log.vocabulary.cluster_changes import (
    BrokerIdNotRegisteredError,
    DecommissionBrokerRequest,
    FillBrokerRequest,
    MovesBegun,
)
from barnabas.log.vocabulary.errors import BarnabasError, InvalidReplicationFactorError, InvalidRequestError
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..metadata.controller_result import ControllerResult, Respond
from ..metadata.controller_settings import MAX_MOVES_PER_REQUEST, ControllerSettings
from ..metadata.delta import MetadataDelta
from ..metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from ..metadata.records import DecommissionRecord, Record
from .group_control import slot_moves
from .placement import Site
from .reassignment_control import reassign, throttle_records
from .rebalance_plan import Move, PlacedPartition, plan_drain, plan_fill

# Concurrent moves of one leaving broker: enough to keep every leader busy, few enough that the disks of the others do not have to
# do everything at once, and that a cancellation undoes most of it at no cost.
MAX_MOVES_UNDER_WAY = 20


def decommission(
    view: MetadataDelta, settings: ControllerSettings, request: DecommissionBrokerRequest
) -> ControllerResult:
    """Begin or cancel (a repeated begin has no effect). Raises BrokerIdNotRegisteredError, InvalidReplicationFactorError."""
    broker = _registered(view, request.node_id)
    if request.cancel:
        return _cancel(view, settings, broker)
    _check_enough_remain(view, broker)
    records: list[Record] = [*throttle_records(view, request.throttle_bytes_per_s)]
    if not broker.decommissioning:
        records.append(DecommissionRecord(node_id=broker.node_id, decommissioning=True))
    return ControllerResult(records=tuple(records))


def _cancel(view: MetadataDelta, settings: ControllerSettings, broker: BrokerImage) -> ControllerResult:
    """Moves that have not ended are undone; completed moves stay."""
    if not broker.decommissioning:
        return ControllerResult()
    records: list[Record] = [DecommissionRecord(node_id=broker.node_id, decommissioning=False)]
    for topic, number, partition in _partitions(view):
        if broker.node_id in partition.removing_replicas:
            try:
                records.extend(reassign(view, settings, topic, number, _before(partition, broker.node_id)))
            except BarnabasError:  # none of the old replicas is in sync: this move must continue
                continue
    return ControllerResult(records=tuple(records), atomic=False)


def _before(partition: PartitionImage, node_id: int) -> tuple[int, ...]:
    """The replicas before the move, at their old positions if `rebalance_plan` made the move (one for one)."""
    if len(partition.adding_replicas) != 1 or partition.removing_replicas != (node_id,):
        return ()
    (heir,) = partition.adding_replicas
    return tuple(node_id if replica == heir else replica for replica in partition.target_replicas)


def next_moves(view: MetadataDelta, settings: ControllerSettings) -> tuple[Record, ...]:
    """The next reassignments (and slots) of brokers that are leaving; () if enough moves are in progress, or nothing is left."""
    records: list[Record] = []
    for broker in view.brokers().values():
        if broker.decommissioning:
            records.extend(_moves_of(view, settings, broker.node_id))
    if records:
        return tuple(records)
    leaving = any(broker.decommissioning for broker in view.brokers().values())
    return slot_moves(view, active=view.active_brokers()) if leaving else ()


def _moves_of(view: MetadataDelta, settings: ControllerSettings, node_id: int) -> Iterator[Record]:
    held = under_way = 0
    for _, _, partition in _partitions(view):
        if node_id in partition.replicas:
            held += 1
            under_way += node_id in partition.removing_replicas
    limit = min(held, MAX_MOVES_UNDER_WAY) - under_way
    if limit > 0:  # a plan reads every partition of the cluster
        yield from _records(
            view, settings, plan_drain(_placed(view), _sites(view), _takers(view), leaving=node_id, limit=limit)
        )


def fill(view: MetadataDelta, settings: ControllerSettings, request: FillBrokerRequest) -> ControllerResult:
    """Begin moves that give the broker its fair share, as many as one decision may have; none if it has its share."""
    broker = _registered(view, request.node_id)
    if broker.node_id not in view.active_brokers() or broker.decommissioning:
        raise InvalidRequestError(f"broker {broker.node_id} is fenced or leaving; it can be filled when it is active")
    moves = plan_fill(_placed(view), _sites(view), _takers(view), newcomer=broker.node_id, limit=MAX_MOVES_PER_REQUEST)
    records = tuple(_records(view, settings, moves))
    return ControllerResult(
        records=(*(throttle_records(view, request.throttle_bytes_per_s) if records else ()), *records),
        respond=_begun(len(records)),
        atomic=False,
    )


def _records(view: MetadataDelta, settings: ControllerSettings, moves: tuple[Move, ...]) -> Iterator[Record]:
    for move in moves:
        topic = view.topic(move.topic_partition.topic)
        assert topic is not None
        try:
            yield from reassign(view, settings, topic, move.topic_partition.partition, move.replicas)
        except BarnabasError:  # none of the remaining replicas is in sync yet: try at a later tick
            continue


def _begun(count: int) -> Respond:
    def respond(index: int, image: MetadataImage) -> object:
        return MovesBegun(move_count=count, offset=index)

    return respond


def _registered(view: MetadataDelta, node_id: int) -> BrokerImage:
    broker = view.broker(node_id)
    if broker is None:
        raise BrokerIdNotRegisteredError(f"broker {node_id} is not registered; see them all: barnabas cluster describe")
    return broker


def _check_enough_remain(view: MetadataDelta, leaving: BrokerImage) -> None:
    remaining = [
        broker for broker in view.brokers().values() if not broker.decommissioning and broker.node_id != leaving.node_id
    ]
    machine_count = len({Site.of(broker).machine for broker in remaining})
    for topic, number, partition in _partitions(view):
        replicas = partition.target_replicas
        if leaving.node_id in replicas and len(replicas) > machine_count:
            shared = "" if machine_count == len(remaining) else f" on {machine_count} machines"
            raise InvalidReplicationFactorError(
                f"broker {leaving.node_id} cannot leave: {topic.name}-{number} has {len(replicas)} replicas, and only "
                f"{len(remaining)} brokers{shared} would remain; add a broker first, or reduce the replicas of the topic"
            )


def _sites(view: MetadataDelta) -> dict[int, Site]:
    return {broker.node_id: Site.of(broker) for broker in view.brokers().values()}


def _takers(view: MetadataDelta) -> list[int]:
    """The brokers that may get replicas."""
    active = view.active_brokers()
    return [
        broker.node_id for broker in view.brokers().values() if broker.node_id in active and not broker.decommissioning
    ]


def _placed(view: MetadataDelta) -> list[PlacedPartition]:
    return [
        PlacedPartition(TopicPartition(topic.name, number), partition.target_replicas)
        for topic in view.topics()
        for number, partition in enumerate(topic.partitions)
    ]


def _partitions(view: MetadataDelta) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    for topic in view.topics():
        for number, partition in enumerate(topic.partitions):
            yield topic, number, partition


DECISIONS: Final[Mapping[type, Callable[..., ControllerResult]]] = {
    DecommissionBrokerRequest: decommission,
    FillBrokerRequest: fill,
}
