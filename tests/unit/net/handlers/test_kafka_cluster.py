"""The cluster, its disks, and who may do what, as Kafka's clients ask."""

from typing import Any, cast

import pytest
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.handlers.test_kafka_configs import request
from unit.net.shell_world import Client, broker, partition, simulated, topic

from barnabas.kraft.metadata.image import FOLDER_OFFLINE
from barnabas.kraft.quorum.voters import QuorumStatus
from barnabas.log.vocabulary.quorum import QuorumPeer
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.handlers.kafka.cluster import KafkaClusterHandlers
from barnabas.net.handlers.kafka.quorum import KafkaQuorumHandlers
from barnabas.net.handlers.own.voters import VoterHandlers
from barnabas.net.logs.storage_service import DescribedFolder, StorageService
from barnabas.net.wire.protocol.kafka.apis import SERVED, KafkaRequest
from barnabas.net.wire.protocol.kafka.compiler import decoder, encoder
from barnabas.net.wire.protocol.kafka.message_classes import types_of
from barnabas.net.wire.protocol.kafka.metadata_api import listed_controller
from barnabas.net.wire.protocol.responses import StorageFolder


class Disks:
    """The folders of a broker, as a test wants them."""

    def __init__(self, *folders: DescribedFolder) -> None:
        self._folders = folders

    async def describe(self) -> tuple[DescribedFolder, ...]:
        return self._folders


def folder(path: str, sizes: dict[TopicPartition, int] | None = None, *, state: str = "online") -> DescribedFolder:
    is_online = state != FOLDER_OFFLINE
    described = StorageFolder(
        path=path,
        directory_id="d",
        state=state,
        cause="" if is_online else "EIO",
        since_ms=-1,
        partitions=len(sizes or {}),
        offline_partitions=(),
        size_bytes=sum((sizes or {}).values()),
        free_bytes=40 if is_online else -1,
        total_bytes=100 if is_online else -1,
    )
    return DescribedFolder(folder=described, sizes=sizes or {})


def over_the_wire(asked: KafkaRequest[Any], body: Any) -> Any:
    name = f"{SERVED[asked.api_key - 2000].name}Response"
    chunks: list[Any] = []
    encoder(name, asked.version)(body, chunks)
    return decoder(name, asked.version)(memoryview(b"".join(chunks)), 0)[0]


def handlers(world: HandlerWorld, *folders: DescribedFolder) -> KafkaClusterHandlers:
    return KafkaClusterHandlers(world.services, cast(StorageService, Disks(*folders)))


# --- the cluster ------------------------------------------------------------------------------------------------------


async def cluster_of(world: HandlerWorld, version: int, **values: Any) -> Any:
    asked = request(60, version, **values)
    return over_the_wire(asked, (await handlers(world).describe(asked, Client())).body)


@pytest.mark.parametrize("version", range(3))
@simulated
async def test_fenced_brokers_are_listed_for_those_who_ask_for_them(version: int) -> None:
    world = await HandlerWorld.start(brokers=(broker(2), broker(0), broker(1, fenced=True)))
    answer = await cluster_of(world, version)
    assert [item.broker_id for item in answer.brokers] == [0, 2]
    assert answer.controller_id in (0, 2) and (answer.error_code, answer.error_message) == (0, None)
    assert answer.cluster_authorized_operations == -(2**31), "nobody asked"
    if version == 2:
        answer = await cluster_of(world, 2, include_fenced_brokers=True)
        assert [(item.broker_id, item.is_fenced) for item in answer.brokers] == [(0, False), (1, True), (2, False)]
    answer = await cluster_of(world, version, include_cluster_authorized_operations=True)
    assert answer.cluster_authorized_operations == 0b1111110100000


@simulated
async def test_controllers_are_not_reached_by_themselves() -> None:
    world = await HandlerWorld.start()
    assert [(await cluster_of(world, 1, endpoint_type=kind)).error_code for kind in (1, 2, 3)] == [0, 114, 115]


def test_the_controller_that_clients_are_told_of_is_one_of_the_brokers_listed() -> None:
    assert listed_controller(2, [1, 2]) == 2
    assert listed_controller(0, [1, 2]) == 1
    assert listed_controller(-1, [1, 2]) == 1
    assert listed_controller(3, []) == -1


# --- disks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 5))
@simulated
async def test_each_folder_with_the_sizes_of_its_logs_and_an_offline_one_with_its_error(version: int) -> None:
    world = await HandlerWorld.start(topic("t", partition(0)))
    sizes = {TopicPartition("t", 1): 20, TopicPartition("t", 0): 10, TopicPartition("a", 3): 5}
    disks = handlers(world, folder("/one", sizes), folder("/two", state=FOLDER_OFFLINE))
    asked = request(35, version, topics=None)
    one, two = over_the_wire(asked, (await disks.describe_log_dirs(asked, Client())).body).results
    found = [
        (top.name, p.partition_index, p.partition_size, p.offset_lag) for top in one.topics for p in top.partitions
    ]
    assert found == [("a", 3, 5, 0), ("t", 0, 10, 0), ("t", 1, 20, 0)]
    assert (one.error_code, one.log_dir, two.error_code, two.log_dir, two.topics) == (0, "/one", 56, "/two", [])
    if version == 4:
        assert [(item.total_bytes, item.usable_bytes) for item in (one, two)] == [(100, 40), (-1, -1)]


@simulated
async def test_only_the_partitions_that_were_named() -> None:
    world = await HandlerWorld.start(topic("t", partition(0)))
    disks = handlers(world, folder("/one", {TopicPartition("t", 1): 20, TopicPartition("t", 0): 10}))
    for named, expected in (([], []), ([("t", [1, 7]), ("u", [0])], [("t", [1])])):
        make = types_of("DescribeLogDirsRequest")["DescribableLogDirTopic"]
        asked = request(35, 4, topics=[make(topic=name, partitions=numbers) for name, numbers in named])
        (one,) = over_the_wire(asked, (await disks.describe_log_dirs(asked, Client())).body).results
        assert [(item.name, [p.partition_index for p in item.partitions]) for item in one.topics] == expected


# --- the quorum -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
@simulated
async def test_the_quorum_is_a_partition_of_its_own(version: int) -> None:
    world = await HandlerWorld.start(brokers=(broker(0), broker(1), broker(5)), controller_quorum_voters="0@h:1,1@h:2")
    peers = tuple(
        QuorumPeer(node_id=node, host="h", port=node, is_voter=True, is_live=True, lag_entries=lag)
        for node, lag in ((0, 0), (1, 3))
    )
    world.source.script(QuorumStatus(leader_id=0, term=8, committed_index=90, voters_index=0, peers=peers))
    world.source.publish(leader=0)
    types = types_of("DescribeQuorumRequest")
    asked = request(55, version, topics=[
        types["TopicData"](topic_name="__cluster_metadata", partitions=[
            types["PartitionData"](partition_index=number) for number in (0, 1)])])  # fmt: skip
    handler = KafkaQuorumHandlers(VoterHandlers(world.services))
    answer = over_the_wire(asked, (await handler.describe(asked, Client())).body)
    quorum, other = answer.topics[0].partitions
    assert (quorum.error_code, other.error_code, answer.error_code) == (0, 3, 0)
    assert (quorum.leader_id, quorum.leader_epoch, quorum.high_watermark) == (0, 8, 90)
    assert [(item.replica_id, item.log_end_offset) for item in quorum.current_voters] == [(0, 90), (1, 87)]
    assert [(item.replica_id, item.log_end_offset) for item in quorum.observers] == [(5, -1)]
    if version == 2:
        assert [(node.node_id, node.listeners[0].port) for node in answer.nodes] == [(0, 0), (1, 1)]
