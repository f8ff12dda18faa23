"""Topics, their partitions, replicas and reassignments."""

from http import HTTPStatus
from typing import Final

from barnabas.kraft.metadata.image import PartitionImage, TopicImage
from barnabas.log.settings.kinds import MAX_INT32
from barnabas.log.vocabulary.topic_partition import INTERNAL_TOPICS

from ..frame import shapes
from ..frame.call import Call, Field, Json, Reply, Route, objects, optional_text, text_of
from ..frame.errors import bad_request, not_found
from ..frame.paging import PAGE, paged
from .clusters import CLUSTER

TOPIC = CLUSTER + "/topics/{topic_name}"
PARTITION = TOPIC + "/partitions/{partition_id}"


def _topic(call: Call, name: str, partition_count: int, replication_factor: int) -> Json:
    return call.item(
        "KafkaTopic",
        ("topics", name),
        {
            "topic_name": name,
            "is_internal": name in INTERNAL_TOPICS,
            "replication_factor": replication_factor,
            "partitions_count": partition_count,
            "partitions": call.related("topics", name, "partitions"),
            "configs": call.related("topics", name, "configs"),
            "partition_reassignments": call.related("topics", name, "partitions", "-", "reassignment"),
        },
    )


def _known(call: Call, topic: TopicImage) -> Json:
    factor = len(topic.partitions[0].replicas) if topic.partitions else 0
    return _topic(call, topic.name, len(topic.partitions), factor)


async def _list(call: Call) -> Reply:
    topics = call.image.topics
    return paged(
        call,
        "KafkaTopicList",
        ("topics",),
        sorted(topics),
        lambda name: _known(call, topics[name]) if call.shows_topic(name) else None,
    )


async def _get(call: Call) -> Reply:
    return Reply(body=_known(call, call.topic()))


async def _create(call: Call) -> Reply:
    body = call.body
    assignment = _assignment(body)
    configs = {text_of(item, "name"): optional_text(item, "value") or "" for item in objects(body, "configs")}
    created = await call.ask(
        lambda admin: admin.create_topic(
            body["topic_name"],
            partitions=_count(body, "partitions_count"),
            replication_factor=_count(body, "replication_factor"),
            assignment=assignment,
            configs=configs,
            validate_only=bool(body.get("validate_only")),
        )
    )
    topic = _topic(call, created.name, created.partition_count, created.replication_factor)
    return Reply(status=HTTPStatus.OK if body.get("validate_only") else HTTPStatus.CREATED, body=topic)


def _count(body: Json, name: str) -> int:
    """A missing count means the cluster's default."""
    value: int | None = body.get(name)
    return -1 if value is None else value


def _assignment(body: Json) -> tuple[tuple[int, ...], ...]:
    found: dict[int, tuple[int, ...]] = {}
    for item in objects(body, "replicas_assignments"):
        brokers = item["broker_ids"]
        if any(type(node) is not int or not 0 <= node <= MAX_INT32 for node in brokers):
            raise bad_request(f"replicas_assignments.broker_ids must be integers between 0 and {MAX_INT32}")
        found[item["partition_id"]] = tuple(brokers)
    if sorted(found) != list(range(len(found))):
        raise bad_request("replicas_assignments must list each partition from 0 on exactly once")
    return tuple(found[partition] for partition in sorted(found))


async def _grow(call: Call) -> Reply:
    topic = call.topic()
    total = call.body["partitions_count"]
    await call.ask(lambda admin: admin.add_partitions(topic.name, total))
    factor = len(topic.partitions[0].replicas) if topic.partitions else 0
    return Reply(body=_topic(call, topic.name, total, factor))


async def _delete(call: Call) -> Reply:
    name = call.topic().name
    await call.ask(lambda admin: admin.delete_topic(name))
    return Reply(status=HTTPStatus.NO_CONTENT)


def _partition(call: Call, topic: str, index: int, partition: PartitionImage) -> Json:
    path = ("topics", topic, "partitions", index)
    leader = call.related(*path, "replicas", partition.leader) if partition.leader >= 0 else None
    return call.item(
        "KafkaPartition",
        path,
        {
            "topic_name": topic,
            "partition_id": index,
            "leader": leader,
            "leader_epoch": partition.leader_epoch,
            "unclean_elections": partition.unclean_elections,
            "eligible_leader_replicas": list(partition.eligible_leader_replicas),
            "replicas": call.related(*path, "replicas"),
            "reassignment": call.related(*path, "reassignment"),
        },
    )


async def _list_partitions(call: Call) -> Reply:
    topic = call.topic()
    return paged(
        call,
        "KafkaPartitionList",
        ("topics", topic.name, "partitions"),
        range(len(topic.partitions)),
        lambda index: _partition(call, topic.name, index, topic.partitions[index]),
    )


async def _get_partition(call: Call) -> Reply:
    topic, index, partition = call.partition()
    return Reply(body=_partition(call, topic.name, index, partition))


def _replica(call: Call, topic: str, index: int, node_id: int, partition: PartitionImage) -> Json:
    return call.item(
        "KafkaReplica",
        ("topics", topic, "partitions", index, "replicas", node_id),
        {
            "topic_name": topic,
            "partition_id": index,
            "broker_id": node_id,
            "is_leader": node_id == partition.leader,
            "is_in_sync": node_id in partition.isr,
            "is_offline": node_id in partition.offline_replicas,
            "broker": call.related("brokers", node_id),
        },
    )


async def _list_replicas(call: Call) -> Reply:
    topic, index, partition = call.partition()
    data = [_replica(call, topic.name, index, node_id, partition) for node_id in partition.replicas]
    return call.listed("KafkaReplicaList", ("topics", topic.name, "partitions", index, "replicas"), data)


async def _get_replica(call: Call) -> Reply:
    topic, index, partition = call.partition()
    node_id = call.number("broker_id")
    if node_id not in partition.replicas:
        raise not_found(f"broker {node_id} has no replica of {topic.name}-{index}")
    return Reply(body=_replica(call, topic.name, index, node_id, partition))


def _reassignment(call: Call, topic: str, index: int, partition: PartitionImage) -> Json:
    path = ("topics", topic, "partitions", index)
    return call.item(
        "KafkaReassignment",
        (*path, "reassignment"),
        {
            "topic_name": topic,
            "partition_id": index,
            "adding_replicas": list(partition.adding_replicas),
            "removing_replicas": list(partition.removing_replicas),
            "replicas": call.related(*path, "replicas"),
        },
    )


def _reassignments(call: Call, topics: list[TopicImage], path: tuple[str, ...]) -> Reply:
    data = [
        _reassignment(call, topic.name, index, partition)
        for topic in topics
        for index, partition in enumerate(topic.partitions)
        if partition.adding_replicas or partition.removing_replicas
    ]
    return call.listed("KafkaReassignmentList", path, data)


async def _all_reassignments(call: Call) -> Reply:
    topics = [topic for topic in call.image.topics.values() if call.shows_topic(topic.name)]
    return _reassignments(call, topics, ("topics", "-", "partitions", "-", "reassignment"))


async def _topic_reassignments(call: Call) -> Reply:
    topic = call.topic()
    return _reassignments(call, [topic], ("topics", topic.name, "partitions", "-", "reassignment"))


async def _get_reassignment(call: Call) -> Reply:
    topic, index, partition = call.partition()
    if not (partition.adding_replicas or partition.removing_replicas):
        raise not_found(f"{topic.name}-{index} is not being moved")
    return Reply(body=_reassignment(call, topic.name, index, partition))


_TOPIC: Final = shapes.item(
    "KafkaTopic",
    shapes.text("topic_name", "The topic."),
    shapes.flag("is_internal", "The cluster uses it itself."),
    shapes.whole("replication_factor", "Replicas of the first partition."),
    shapes.whole("partitions_count", "Number of partitions."),
    shapes.link("partitions", "Its partitions."),
    shapes.link("configs", "Its configuration."),
    shapes.link("partition_reassignments", "Its partitions on the move."),
)
_PLACE: Final = (shapes.text("topic_name", "The topic."), shapes.whole("partition_id", "The partition."))
_PARTITION: Final = shapes.item(
    "KafkaPartition",
    *_PLACE,
    shapes.link("leader", "The replica that leads; null: none.", null=True),
    shapes.whole("leader_epoch", "Counts leaders."),
    shapes.whole("unclean_elections", "Elections of leaders neither in sync nor eligible."),
    shapes.wholes(
        "eligible_leader_replicas", "Replicas that may lead without loss though they are not in sync (KIP-966)."
    ),
    shapes.link("replicas", "Its replicas."),
    shapes.link("reassignment", "Its move."),
)
_REPLICA: Final = shapes.item(
    "KafkaReplica",
    *_PLACE,
    shapes.whole("broker_id", "The broker that holds it."),
    shapes.flag("is_leader", "It is the leader."),
    shapes.flag("is_in_sync", "It is in sync."),
    shapes.flag("is_offline", "It is on a data folder that is offline."),
    shapes.link("broker", "The broker."),
)
_REASSIGNMENT: Final = shapes.item(
    "KafkaReassignment",
    *_PLACE,
    shapes.wholes("adding_replicas", "Brokers that it moves to."),
    shapes.wholes("removing_replicas", "Brokers that it leaves."),
    shapes.link("replicas", "Its replicas."),
)
_MOVING: Final = shapes.listed("KafkaReassignmentList", _REASSIGNMENT)
_CREATE_BODY = (
    Field(name="topic_name", type="string", description="name of the topic", required=True),
    Field(name="partitions_count", type="integer", description="number of partitions; default: the cluster's"),
    Field(name="replication_factor", type="integer", description="replicas of each partition; default: the cluster's"),
    Field(
        name="replicas_assignments",
        type="array",
        description="[{partition_id, broker_ids}] instead of both counts",
        fields=(
            Field(name="partition_id", type="integer", description="the partition", required=True),
            Field(name="broker_ids", type="array", description="node ids of its replicas", required=True),
        ),
    ),
    Field(
        name="configs",
        type="array",
        description="[{name, value}]",
        fields=(
            Field(name="name", type="string", description="the key", required=True),
            Field(name="value", type="any", description="its value, a string"),
        ),
    ),
    Field(name="validate_only", type="boolean", description="validate only, create nothing"),
)
_GROW_BODY = (
    Field(name="partitions_count", type="integer", description="the new number of partitions", required=True),
)

ROUTES = (
    Route(
        method="GET",
        path=f"{CLUSTER}/topics",
        handler=_list,
        summary="All topics",
        query=PAGE,
        answer=shapes.listed("KafkaTopicList", _TOPIC),
    ),
    Route(
        method="POST",
        path=f"{CLUSTER}/topics",
        handler=_create,
        summary="Create a topic",
        body=_CREATE_BODY,
        answer=_TOPIC,
        status=HTTPStatus.CREATED,
        also=(HTTPStatus.OK,),  # validate_only
    ),
    # "-" stands for all topics; it comes before the paths with a topic's name, which would match "-" as a name.
    Route(
        method="GET",
        path=f"{CLUSTER}/topics/-/partitions/-/reassignment",
        handler=_all_reassignments,
        summary="All partitions that are being moved",
        answer=_MOVING,
    ),
    Route(method="GET", path=TOPIC, handler=_get, summary="One topic", answer=_TOPIC),
    Route(
        method="PATCH", path=TOPIC, handler=_grow, summary="Add partitions to a topic", body=_GROW_BODY, answer=_TOPIC
    ),
    Route(method="DELETE", path=TOPIC, handler=_delete, summary="Delete a topic", status=HTTPStatus.NO_CONTENT),
    Route(
        method="GET",
        path=f"{TOPIC}/partitions",
        handler=_list_partitions,
        summary="Partitions of a topic",
        query=PAGE,
        answer=shapes.listed("KafkaPartitionList", _PARTITION),
    ),
    Route(
        method="GET",
        path=f"{TOPIC}/partitions/-/reassignment",
        handler=_topic_reassignments,
        summary="Partitions of a topic that are being moved",
        answer=_MOVING,
    ),
    Route(method="GET", path=PARTITION, handler=_get_partition, summary="One partition", answer=_PARTITION),
    Route(
        method="GET",
        path=f"{PARTITION}/replicas",
        handler=_list_replicas,
        summary="Replicas of a partition",
        answer=shapes.listed("KafkaReplicaList", _REPLICA),
    ),
    Route(
        method="GET",
        path=f"{PARTITION}/replicas/{{broker_id}}",
        handler=_get_replica,
        summary="One replica",
        answer=_REPLICA,
    ),
    Route(
        method="GET",
        path=f"{PARTITION}/reassignment",
        handler=_get_reassignment,
        summary="The reassignment of a partition",
        answer=_REASSIGNMENT,
    ),
)
