"""Topics: created, extended by partitions, deleted. Names, limits and placement are checked here."""

import random
from collections import Counter
from collections.abc import Iterable
from itertools import product

from barnabas.log.vocabulary.cluster_changes import AddPartitionsRequest
from barnabas.log.vocabulary.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from barnabas.log.vocabulary.topic_partition import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    check_topic_id,
    check_topic_name,
    no_such_topic,
    no_such_topic_id,
)

from ..metadata.cluster_settings import DEFAULT_REPLICATION_FACTOR, NUM_PARTITIONS, cluster_number
from ..metadata.controller_result import ControllerResult, Respond
from ..metadata.controller_settings import (
    MAX_PARTITIONS_PER_CLUSTER,
    MAX_PARTITIONS_PER_REQUEST,
    MAX_REPLICATION_FACTOR,
    ControllerSettings,
)
from ..metadata.delta import MetadataDelta
from ..metadata.image import MetadataImage, TopicImage
from ..metadata.records import TOPIC_RESOURCE, ConfigRecord, PartitionRecord, Record, RemoveTopicRecord, TopicRecord
from ..metadata.requests import CreateTopic, DeleteTopic, TopicCreated
from .configuration_control import ConfigurationControl
from .placement import PlacementBroker, Site, place_replicas
from .replication_control import leader_counts

_Assignment = tuple[tuple[int, ...], ...]
_REQUEST_DIGITS = 16  # of a topic's id: 64 bits, which distinguish two requests for one name
_DEFAULT_REPLICATION_FACTOR = 3  # survives one broker with min.insync.replicas=2; Kafka's usual choice for production
_MAX_NAME_VARIANTS = 64  # above this, checking all names is faster than checking all variants of this one


class TopicControl:
    """Decides on topics. The only randomness is the injected one: topic ids, and the start of a stripe."""

    def __init__(self, settings: ControllerSettings, rng: random.Random, configurations: ConfigurationControl) -> None:
        self._settings = settings
        self._rng = rng
        self._configurations = configurations

    def create(self, view: MetadataDelta, request: CreateTopic) -> ControllerResult:
        check_topic_id(request.topic_id)
        made = view.topic(request.name)
        if made is not None and _is_of(request, made.topic_id):  # a repetition: the response was lost
            return ControllerResult(
                respond=_created(made.name, made.topic_id, tuple(partition.replicas for partition in made.partitions))
            )
        _check_new_name(view, request.name)
        configs = request.configs or {}
        self._configurations.check_new_topic(configs)
        assignment = self._assignment(view, request)
        _check_total(view, len(assignment))
        topic_id = self._fresh_topic_id(view, request)
        if request.validate_only:
            return ControllerResult(respond=_created(request.name, topic_id, assignment))
        return ControllerResult(
            records=(
                TopicRecord(name=request.name, topic_id=topic_id),
                *(
                    ConfigRecord(resource_type=TOPIC_RESOURCE, resource=request.name, key=key, value=value)
                    for key, value in configs.items()
                ),
                *_partition_records(view, topic_id, 0, assignment),
            ),
            respond=_created(request.name, topic_id, assignment),
        )

    def delete(self, view: MetadataDelta, request: DeleteTopic) -> ControllerResult:
        name = view.topic_name(request.topic_id) if request.topic_id else request.name
        if name is None:
            raise UnknownTopicIdError(no_such_topic_id(request.topic_id))
        topic = _existing(view, name)
        return ControllerResult(records=(RemoveTopicRecord(topic_id=topic.topic_id),))

    def add_partitions(self, view: MetadataDelta, request: AddPartitionsRequest) -> ControllerResult:
        topic = _existing(view, request.name)
        have = len(topic.partitions)
        added = request.total_count - have
        if added <= 0:
            raise InvalidPartitionsError(
                f"topic {request.name} has {have} partitions already; partitions can be added, never removed"
            )
        _check_partition_count(added)
        if request.assignment and len(request.assignment) != added:
            raise InvalidReplicaAssignmentError(
                f"{added} partitions are new, but the assignment has {len(request.assignment)}"
            )
        _check_total(view, added)
        factor = len(topic.partitions[0].replicas) - len(topic.partitions[0].adding_replicas)
        if request.assignment:
            _check_assignment(view, request.assignment, factor)
        assignment = request.assignment or self._placed(view, added, factor)
        records = () if request.validate_only else _partition_records(view, topic.topic_id, have, assignment)
        return ControllerResult(records=records)

    def _assignment(self, view: MetadataDelta, request: CreateTopic) -> _Assignment:
        if not request.assignment:
            count = request.partition_count
            if count == -1:
                count = cluster_number(view, NUM_PARTITIONS, self._settings.default_partitions)
            _check_partition_count(count)
            return self._placed(view, count, self._replication_factor(view, request.replication_factor))
        if request.partition_count not in (-1, len(request.assignment)):
            raise InvalidRequestError("the number of partitions contradicts the assignment; give only one of them")
        _check_partition_count(len(request.assignment))
        factor = len(request.assignment[0])
        if request.replication_factor not in (-1, factor):
            raise InvalidRequestError("the replication factor contradicts the assignment; give only one of them")
        _check_assignment(view, request.assignment, factor)
        return request.assignment

    def _replication_factor(self, view: MetadataDelta, asked: int) -> int:
        factor = asked
        if asked == -1:
            factor = cluster_number(view, DEFAULT_REPLICATION_FACTOR, self._settings.default_replication_factor)
        if factor == -1:
            active = view.active_brokers()
            machines = {Site.of(broker).machine for broker in view.brokers().values() if broker.node_id in active}
            factor = max(1, min(_DEFAULT_REPLICATION_FACTOR, len(machines)))
        if not 1 <= factor <= MAX_REPLICATION_FACTOR:
            raise InvalidReplicationFactorError(
                f"the replication factor cannot be {factor}; use 1 to {MAX_REPLICATION_FACTOR}"
            )
        return factor

    def _placed(self, view: MetadataDelta, count: int, factor: int) -> _Assignment:
        active = view.active_brokers()
        brokers = [
            PlacementBroker(node_id=broker.node_id, site=Site.of(broker), active=broker.node_id in active)
            for broker in view.brokers().values()
            if not broker.decommissioning
        ]
        return place_replicas(
            brokers,
            partition_count=count,
            replication_factor=factor,
            leader_counts=leader_counts(view),
            rng=self._rng,
        )

    def _fresh_topic_id(self, view: MetadataDelta, request: CreateTopic) -> str:
        """The first half comes from the request, the second half is drawn here.

        The first half lets a repetition find the topic that its first copy created. The second half prevents a late repetition,
        after the deletion of that topic, from creating a topic with the id of the deleted one: brokers would serve its records.
        """
        while True:  # ends: a random number of 64 bits is hardly ever taken, let alone twice
            drawn = new_topic_id(self._rng)
            topic_id = request.topic_id[:_REQUEST_DIGITS] + drawn[len(request.topic_id[:_REQUEST_DIGITS]) :]
            if view.topic_name(topic_id) is None:
                return topic_id


def new_topic_id(rng: random.Random) -> str:
    return f"{rng.getrandbits(128):032x}"


def _is_of(request: CreateTopic, topic_id: str) -> bool:
    return bool(request.topic_id) and topic_id.startswith(request.topic_id[:_REQUEST_DIGITS])


def _existing(view: MetadataDelta, name: str) -> TopicImage:
    topic = view.topic(name)
    if topic is None and name in INTERNAL_TOPICS:
        raise InvalidTopicError(f"{name} is an internal topic, which can only be read")
    if topic is None:
        raise UnknownTopicOrPartitionError(no_such_topic(name))
    return topic


def _check_new_name(view: MetadataDelta, name: str) -> None:
    check_topic_name(name)
    if view.topic(name) is not None or name == CONSUMER_OFFSETS_TOPIC:
        raise TopicAlreadyExistsError(f"topic {name!r} exists already")
    if name in INTERNAL_TOPICS:
        raise InvalidTopicError(f"the name {name!r} is reserved for internal topics; use another name")
    twin = _colliding(view, name)
    if twin is not None:
        raise InvalidTopicError(
            f"topic {name!r} collides with {twin!r}: `.` and `_` are the same character in metric names; use another name"
        )


def _colliding(view: MetadataDelta, name: str) -> str | None:
    """As in Kafka: two names that differ only in `.` and `_` cannot both exist."""
    ambiguous = sum(letter in "._" for letter in name)
    if 2**ambiguous > _MAX_NAME_VARIANTS:
        plain = name.replace(".", "_")
        return next((topic.name for topic in view.topics() if topic.name.replace(".", "_") == plain), None)
    spellings = ("".join(letters) for letters in product(*("._" if letter in "._" else letter for letter in name)))
    return next((spelling for spelling in spellings if view.topic(spelling) is not None), None)


def _check_partition_count(count: int) -> None:
    if not 1 <= count <= MAX_PARTITIONS_PER_REQUEST:
        raise InvalidPartitionsError(
            f"the number of partitions cannot be {count}; use 1 to {MAX_PARTITIONS_PER_REQUEST} in one request"
        )


def _check_total(view: MetadataDelta, added: int) -> None:
    total = added + sum(len(topic.partitions) for topic in view.topics())
    if total > MAX_PARTITIONS_PER_CLUSTER:
        raise InvalidPartitionsError(
            f"the cluster would have {total} partitions; at most {MAX_PARTITIONS_PER_CLUSTER} are allowed"
        )


def _check_assignment(view: MetadataDelta, assignment: _Assignment, factor: int) -> None:
    if not 1 <= factor <= MAX_REPLICATION_FACTOR:
        raise InvalidReplicaAssignmentError(f"{factor} replicas; use 1 to {MAX_REPLICATION_FACTOR}")
    for number, replicas in enumerate(assignment):
        if len(replicas) != factor:
            raise InvalidReplicaAssignmentError(
                f"partition {number} of the assignment has {len(replicas)} replicas, others have {factor}"
            )
        check_replicas(view, replicas)
        if view.active_brokers().isdisjoint(replicas):
            raise InvalidReplicaAssignmentError(f"all brokers of {replicas} are fenced or shutting down")


def check_replicas(view: MetadataDelta, replicas: tuple[int, ...], *, held: tuple[int, ...] = ()) -> None:
    """Raises InvalidReplicaAssignmentError unless these are registered brokers that stay, on different machines; brokers that
    have a replica already (`held`) may be leaving, and may share a machine."""
    twice = [node_id for node_id, times in Counter(replicas).items() if times > 1]
    if twice:
        raise InvalidReplicaAssignmentError(f"broker {twice[0]} would hold two replicas of one partition: {replicas}")
    strangers = [node_id for node_id in replicas if view.broker(node_id) is None]
    if strangers:
        raise InvalidReplicaAssignmentError(f"broker {strangers[0]} is not registered")
    _check_machines(view, replicas, held)
    leaving = [node_id for node_id in replicas if node_id not in held and view.is_decommissioning(node_id)]
    if leaving:
        raise InvalidReplicaAssignmentError(
            f"broker {leaving[0]} is being decommissioned and gets no new replicas; "
            f"take it back with `barnabas broker decommission {leaving[0]} --cancel`"
        )


def _check_machines(view: MetadataDelta, replicas: tuple[int, ...], held: tuple[int, ...]) -> None:
    by_machine: dict[str | int, int] = {}
    for node_id in sorted(replicas, key=lambda node_id: node_id not in held):
        broker = view.broker(node_id)
        assert broker is not None  # checked before
        other = by_machine.setdefault(Site.of(broker).machine, node_id)
        if other != node_id and node_id not in held:
            raise InvalidReplicaAssignmentError(
                f"brokers {other} and {node_id} share the machine {broker.machine} (broker.machine) and would both hold a replica"
                f" of one partition: {replicas}; choose brokers of different machines"
            )


def _partition_records(
    view: MetadataDelta, topic_id: str, first: int, assignment: _Assignment
) -> tuple[PartitionRecord, ...]:
    active = view.active_brokers()
    return tuple(_new_partition(topic_id, first + place, replicas, active) for place, replicas in enumerate(assignment))


def _new_partition(topic_id: str, number: int, replicas: tuple[int, ...], active: frozenset[int]) -> PartitionRecord:
    """An empty log is in sync everywhere; inactive brokers join the ISR by fetching."""
    isr = tuple(replica for replica in replicas if replica in active)
    return PartitionRecord(
        topic_id=topic_id,
        partition=number,
        replicas=replicas,
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
    )


def changed_partitions(view: MetadataDelta, records: Iterable[Record]) -> int:
    """The number of partitions that these records create, or remove from the view."""
    count = 0
    for record in records:
        if isinstance(record, PartitionRecord):
            count += 1
        elif isinstance(record, RemoveTopicRecord):
            name = view.topic_name(record.topic_id)
            topic = None if name is None else view.topic(name)
            count += 0 if topic is None else len(topic.partitions)
    return count


def _created(name: str, topic_id: str, assignment: _Assignment) -> Respond:
    def respond(index: int, image: MetadataImage) -> object:
        return TopicCreated(
            name=name,
            topic_id=topic_id,
            partition_count=len(assignment),
            replication_factor=len(assignment[0]),
            offset=index,
        )

    return respond
