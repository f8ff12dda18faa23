"""/v3/clusters and brokers."""

from dataclasses import asdict
from typing import Final

from barnabas.kraft.metadata.image import BrokerImage
from barnabas.net.client.admin.cluster_health import cluster_health

from ..frame import shapes
from ..frame.call import Call, Json, Reply, Route
from ..frame.errors import not_found

CLUSTER = "/v3/clusters/{cluster_id}"
BROKER = f"{CLUSTER}/brokers/{{broker_id}}"


def _cluster(call: Call) -> Json:
    controller = call.image.controller_id
    return call.item(
        "KafkaCluster",
        (),
        {
            "controller": call.related("brokers", controller) if controller >= 0 else None,
            "acls": call.related("acls"),
            "quotas": call.related("quotas"),
            "brokers": call.related("brokers"),
            "broker_configs": call.related("broker-configs"),
            "consumer_groups": call.related("consumer-groups"),
            "topics": call.related("topics"),
            "partition_reassignments": call.related("topics", "-", "partitions", "-", "reassignment"),
        },
    )


async def _list_clusters(call: Call) -> Reply:
    envelope = {"self": f"{call.base}/v3/clusters", "next": None}
    return Reply(body={"kind": "KafkaClusterList", "metadata": envelope, "data": [_cluster(call)]})


async def _get_cluster(call: Call) -> Reply:
    return Reply(body=_cluster(call))


async def _health(call: Call) -> Reply:
    """A path of Barnabas that Confluent's API does not have."""
    health = await call.ask(cluster_health)
    fields = {"healthy": not health.causes, **asdict(health)}
    return Reply(body=call.item("BarnabasClusterHealth", ("health",), fields))


def _broker(call: Call, broker: BrokerImage) -> Json:
    endpoint = broker.endpoints[0] if broker.endpoints else None
    return call.item(
        "KafkaBroker",
        ("brokers", broker.node_id),
        {
            "broker_id": broker.node_id,
            "host": endpoint.host if endpoint else None,
            "port": endpoint.port if endpoint else None,
            "rack": broker.rack,
            "machine": broker.machine,
            "fenced": broker.fenced,
            "in_controlled_shutdown": broker.in_controlled_shutdown,
            "decommissioning": broker.decommissioning,
            "configs": call.related("brokers", broker.node_id, "configs"),
            "partition_replicas": call.related("brokers", broker.node_id, "partition-replicas"),
        },
    )


def broker_of(call: Call) -> BrokerImage:
    """The broker in the path."""
    node_id = call.number("broker_id")
    found = call.image.brokers.get(node_id)
    if found is None:
        raise not_found(f"broker {node_id} is not registered")
    return found


async def _list_brokers(call: Call) -> Reply:
    brokers = [_broker(call, broker) for _, broker in sorted(call.image.brokers.items())]
    return call.listed("KafkaBrokerList", ("brokers",), brokers)


async def _get_broker(call: Call) -> Reply:
    return Reply(body=_broker(call, broker_of(call)))


async def _partition_replicas(call: Call) -> Reply:
    node_id = broker_of(call).node_id
    data = [
        {
            "topic_name": topic.name,
            "partition_id": index,
            "broker_id": node_id,
            "is_leader": partition.leader == node_id,
            "is_in_sync": node_id in partition.isr,
            "is_offline": node_id in partition.offline_replicas,
        }
        for topic in call.image.topics.values()
        for index, partition in enumerate(topic.partitions)
        if node_id in partition.replicas
    ]
    return call.listed("KafkaReplicaList", ("brokers", node_id, "partition-replicas"), data)


_CLUSTER: Final = shapes.item(
    "KafkaCluster",
    shapes.link("controller", "The broker that leads the quorum; null: none.", null=True),
    shapes.link("acls", "Permissions."),
    shapes.link("quotas", "Quotas."),
    shapes.link("brokers", "Brokers."),
    shapes.link("broker_configs", "Defaults of all brokers."),
    shapes.link("consumer_groups", "Consumer groups."),
    shapes.link("topics", "Topics."),
    shapes.link("partition_reassignments", "Partitions on the move."),
)
_HEALTH: Final = shapes.item(
    "BarnabasClusterHealth",
    shapes.flag("healthy", "There are no causes."),
    shapes.texts("causes", "Problems that exist now."),
    shapes.texts("unclean_elections", "Partitions that may have lost records in an election."),
    shapes.texts("ignored_settings", "Settings of brokers that the cluster's replace."),
)
_BROKER: Final = shapes.item(
    "KafkaBroker",
    shapes.whole("broker_id", "The broker."),
    shapes.text("host", "Its first address.", null=True),
    shapes.whole("port", "The port of its first address.", null=True),
    shapes.text("rack", "Its rack.", null=True),
    shapes.text("machine", "Its machine.", null=True),
    shapes.flag("fenced", "It has stopped, or does not answer."),
    shapes.flag("in_controlled_shutdown", "It is stopping."),
    shapes.flag("decommissioning", "Its replicas move to others."),
    shapes.link("configs", "Its configuration."),
    shapes.link("partition_replicas", "Its replicas."),
)
_HELD: Final = (
    shapes.text("topic_name", "The topic."),
    shapes.whole("partition_id", "The partition."),
    shapes.whole("broker_id", "The broker that holds the replica."),
    shapes.flag("is_leader", "It is the leader."),
    shapes.flag("is_in_sync", "It is in sync."),
    shapes.flag("is_offline", "It is on a data folder that is offline."),
)

ROUTES = (
    Route(
        method="GET",
        path="/v3/clusters",
        handler=_list_clusters,
        summary="The cluster, as a list of one",
        answer=shapes.listed("KafkaClusterList", _CLUSTER),
    ),
    Route(method="GET", path=CLUSTER, handler=_get_cluster, summary="The cluster", answer=_CLUSTER),
    Route(
        method="GET",
        path=f"{CLUSTER}/health",
        handler=_health,
        summary="Whether the cluster is healthy, and every problem that it knows",
        answer=_HEALTH,
    ),
    Route(
        method="GET",
        path=f"{CLUSTER}/brokers",
        handler=_list_brokers,
        summary="All registered brokers",
        answer=shapes.listed("KafkaBrokerList", _BROKER),
    ),
    Route(method="GET", path=BROKER, handler=_get_broker, summary="One broker", answer=_BROKER),
    Route(
        method="GET",
        path=f"{BROKER}/partition-replicas",
        handler=_partition_replicas,
        summary="The replicas on a broker",
        answer=shapes.listed("KafkaReplicaList", _HELD),
    ),
)
