"""/v3/.../overview: brokers and topics with their partitions at a glance, and the same as a stream of server-sent events.

It is computed from the metadata that this broker has applied: nothing is asked of other brokers, so it is there without a quorum,
too. All readers of streams share one computation for each change of the metadata.
"""

import asyncio
from typing import Final

from barnabas.kraft.metadata.image import BrokerImage, MetadataImage, TopicImage
from barnabas.log.vocabulary.access.acls import Operation
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin, topic_sizes
from barnabas.net.client.positions.offset_lookup import EARLIEST, LATEST, list_offsets

from ..frame import shapes
from ..frame.call import Call, Json, Reply, Route
from ..frame.feed import EVENTS
from ..routes.clusters import CLUSTER
from ..routes.topics import TOPIC

ENDS_TIMEOUT_MS: Final = 5_000  # for the ends of partitions: a page that waits longer shows an error
SIZES_TIMEOUT_S: Final = 1.0  # for the sizes, which the rest of a page does not wait for
TURN_TOPICS: Final = 100  # The loop serves clients after so many topics.
MAX_TOPICS: Final = 5_000  # in one overview: 1 MB of JSON


async def overview_of(image: MetadataImage) -> Json:
    """At most MAX_TOPICS topics, by name; the counts are of all."""
    topics: list[Json] = []
    totals = {"partitions": 0, "under_replicated": 0, "without_leader": 0, "moving": 0}
    leaders = dict.fromkeys(image.brokers, 0)
    replicas = dict.fromkeys(image.brokers, 0)
    for number, name in enumerate(sorted(image.topics), 1):
        found = _topic(image.topics[name])
        for key in totals:
            totals[key] += found[key]
        for partition in image.topics[name].partitions:
            leaders[partition.leader] = leaders.get(partition.leader, 0) + 1
            for node in partition.replicas:
                replicas[node] = replicas.get(node, 0) + 1
        if len(topics) < MAX_TOPICS:
            topics.append(found)
        if number % TURN_TOPICS == 0:
            await asyncio.sleep(0)
    brokers = [_broker(broker, leaders, replicas) for _, broker in sorted(image.brokers.items())]
    return {
        "cluster_id": image.cluster_id,
        "controller_id": image.controller_id,
        "topics_count": len(image.topics),
        "totals": totals,
        "brokers": brokers,
        "topics": topics,
    }


def _broker(broker: BrokerImage, leaders: dict[int, int], replicas: dict[int, int]) -> Json:
    endpoint = broker.endpoints[0] if broker.endpoints else None
    return {
        "broker_id": broker.node_id,
        "address": f"{endpoint.host}:{endpoint.port}" if endpoint else "",
        "rack": broker.rack,
        "machine": broker.machine,
        "state": _state(broker),
        "leaders": leaders[broker.node_id],
        "replicas": replicas[broker.node_id],
        "troubled_folders": len(broker.troubled_folders),
    }


def _state(broker: BrokerImage) -> str:
    if broker.fenced:
        return "fenced"  # also after a controlled shutdown: then it has stopped
    if broker.in_controlled_shutdown:
        return "stopping"
    return "leaving" if broker.decommissioning else "active"


def _topic(topic: TopicImage) -> Json:
    partitions = topic.partitions
    return {
        "topic_name": topic.name,
        "partitions": len(partitions),
        "replication_factor": max((len(item.target_replicas) for item in partitions), default=0),
        "under_replicated": sum(len(item.isr) < len(item.target_replicas) for item in partitions),
        "without_leader": sum(item.leader < 0 for item in partitions),
        "moving": sum(item.is_moving for item in partitions),
        "changes": sum(item.partition_epoch for item in partitions),
    }


def visible(overview: Json, call: Call) -> Json:
    """The part that the caller may know of. Counts of the cluster are of all topics."""
    if call.access is None:
        return overview
    return {**overview, "topics": [item for item in overview["topics"] if call.shows_topic(item["topic_name"])]}


async def _get(call: Call) -> Reply:
    return Reply(body=visible(await overview_of(call.image), call))


async def _stream(call: Call) -> Reply:
    return Reply(stream=call.feed.follow(lambda overview: visible(overview, call), call.user))


async def _quorum(call: Call) -> Reply:
    found = await call.ask(lambda admin: admin.describe_quorum())
    peers = [
        {
            "node_id": peer.node_id,
            "address": f"{peer.host}:{peer.port}",
            "is_voter": peer.is_voter,
            "is_live": peer.is_live,
            "lag_entries": peer.lag_entries,
        }
        for peer in found.peers
    ]
    return Reply(
        body={
            "leader_id": found.leader_id,
            "term": found.term,
            "committed_index": found.committed_index,
            "voters": list(found.voters),
            "observers": list(found.observers),
            "peers": peers,
            "change": found.change,
            "unconfirmed_ms": found.unconfirmed_ms,
            "unreachable_voters": list(found.unreachable_voters),
        }
    )


async def _topic_overview(call: Call) -> Reply:
    """The partitions of a topic in one answer, with their ends."""
    topic = call.topic()
    brokers = {node for partition in topic.partitions for node in partition.replicas}

    async def look(admin: Admin) -> tuple[tuple[dict[int, int], dict[int, int]], dict[int, dict[int, int]]]:
        return await asyncio.gather(
            _ends(admin, topic.name), topic_sizes(admin, topic.name, brokers, wait_s=SIZES_TIMEOUT_S)
        )

    (starts, ends), sizes = await call.ask(look)
    rows = [
        {
            "partition_id": index,
            "leader": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "replicas": list(partition.replicas),
            "isr": list(partition.isr),
            "offline": list(partition.offline_replicas),
            "adding": list(partition.adding_replicas),
            "removing": list(partition.removing_replicas),
            "start_offset": starts.get(index),
            "end_offset": ends.get(index),
            "size_bytes": sizes.get(index, {}).get(partition.leader),
            "sizes": [{"broker_id": node, "size_bytes": size} for node, size in sorted(sizes.get(index, {}).items())],
        }
        for index, partition in enumerate(topic.partitions)
    ]
    may_configs = call.access is None or call.access.may_topic(Operation.DESCRIBE_CONFIGS, topic.name)
    configs = call.image.topic_configs.get(topic.name, {}) if may_configs else {}
    return Reply(body={"topic_name": topic.name, "topic_id": topic.topic_id, "configs": configs, "partitions": rows})


async def _ends(admin: Admin, topic: str) -> tuple[dict[int, int], dict[int, int]]:
    """Start and end by partition. None of those that have no leader: the others are shown."""
    count = await admin.client.wait_for_topic(topic, timeout_ms=ENDS_TIMEOUT_MS)
    led = [TopicPartition(topic, number) for number in range(count)]
    led = [place for place in led if admin.client.metadata.leader(place).node_id >= 0]
    if not led:
        return {}, {}
    starts, ends = await asyncio.gather(
        list_offsets(admin.client, dict.fromkeys(led, EARLIEST), timeout_ms=ENDS_TIMEOUT_MS),
        list_offsets(admin.client, dict.fromkeys(led, LATEST), timeout_ms=ENDS_TIMEOUT_MS),
    )
    return (
        {place.partition: found.offset for place, found in starts.items()},
        {place.partition: found.offset for place, found in ends.items()},
    )


_COUNTS: Final = (
    shapes.whole("partitions", "Partitions."),
    shapes.whole("under_replicated", "Partitions with replicas that are not in sync."),
    shapes.whole("without_leader", "Partitions that cannot be used."),
    shapes.whole("moving", "Partitions on the move."),
)
_OVERVIEW: Final = (
    shapes.text("cluster_id", "The cluster."),
    shapes.whole("controller_id", "The broker that leads the quorum; -1: none."),
    shapes.whole("topics_count", "Topics."),
    shapes.part("totals", "Of all topics.", *_COUNTS),
    shapes.rows(
        "brokers",
        "All brokers.",
        shapes.whole("broker_id", "The broker."),
        shapes.text("address", "Its first address; empty: none."),
        shapes.text("rack", "Its rack.", null=True),
        shapes.text("machine", "Its machine.", null=True),
        shapes.text("state", "active, stopping, leaving or fenced."),
        shapes.whole("leaders", "Partitions that it leads."),
        shapes.whole("replicas", "Replicas that it holds."),
        shapes.whole("troubled_folders", "Data folders that are not well."),
    ),
    shapes.rows(
        "topics",
        f"At most {MAX_TOPICS}, by name.",
        shapes.text("topic_name", "The topic."),
        shapes.whole("replication_factor", "The most replicas of a partition."),
        *_COUNTS,
        shapes.whole("changes", "Grows with each change of a leader, the replicas or the ISR of a partition."),
    ),
)
_QUORUM: Final = (
    shapes.whole("leader_id", "The leader; -1: none."),
    shapes.whole("term", "Counts elections."),
    shapes.whole("committed_index", "Entries that a majority has."),
    shapes.wholes("voters", "Who elects."),
    shapes.wholes("observers", "Who only reads."),
    shapes.rows(
        "peers",
        "As the leader sees them; empty without a leader.",
        shapes.whole("node_id", "The node."),
        shapes.text("address", "Its address."),
        shapes.flag("is_voter", "It elects."),
        shapes.flag("is_live", "It answers."),
        shapes.whole("lag_entries", "Entries that it does not have; -1: unknown."),
    ),
    shapes.text("change", "A change of voters that is under way; empty: none."),
    shapes.whole("unconfirmed_ms", "How old this is, without a quorum; -1: there is one."),
    shapes.wholes("unreachable_voters", "Voters that do not answer, without a quorum."),
)
_TOPIC: Final = (
    shapes.text("topic_name", "The topic."),
    shapes.text("topic_id", "Its id: a topic of the same name that is made later has another one."),
    shapes.mapping("configs", "What is set for the topic; empty without the permission."),
    shapes.rows(
        "partitions",
        "In their order.",
        shapes.whole("partition_id", "The partition."),
        shapes.whole("leader", "The leader; -1: none."),
        shapes.whole("leader_epoch", "Counts leaders."),
        shapes.wholes("replicas", "Brokers with a replica, the preferred leader first."),
        shapes.wholes("isr", "Those in sync."),
        shapes.wholes("offline", "Those on data folders that are offline."),
        shapes.wholes("adding", "Where it moves."),
        shapes.wholes("removing", "What it leaves."),
        shapes.whole("start_offset", "The first offset; null: it has no leader.", null=True),
        shapes.whole("end_offset", "The end; null: it has no leader.", null=True),
        shapes.whole("size_bytes", "Bytes on the disk of the leader; null: unknown.", null=True),
        shapes.rows(
            "sizes",
            "Of the replicas whose brokers answer.",
            shapes.whole("broker_id", "The broker."),
            shapes.whole("size_bytes", "Bytes on its disk."),
        ),
    ),
)

ROUTES = (
    Route(
        method="GET",
        path=f"{CLUSTER}/overview",
        handler=_get,
        summary="Brokers and topics at a glance",
        answer=_OVERVIEW,
    ),
    Route(
        method="GET",
        path=f"{CLUSTER}/overview/stream",
        handler=_stream,
        summary="The same as server-sent events, whenever it changes",
        media=EVENTS,
    ),
    Route(
        method="GET",
        path=f"{CLUSTER}/quorum",
        handler=_quorum,
        summary="The quorum: leader, voters, observers",
        answer=_QUORUM,
    ),
    Route(
        method="GET",
        path=f"{TOPIC}/overview",
        handler=_topic_overview,
        summary="The partitions of a topic with leaders, replicas, ISR and ends",
        answer=_TOPIC,
    ),
)
