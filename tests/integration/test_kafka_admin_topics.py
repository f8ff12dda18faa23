"""Topics and partitions administered by Kafka's own clients, unchanged, on three real brokers: each API by at least one."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.structs import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, ElectionType, IsolationLevel, KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec
from integration.cluster import Cluster, describe_cluster, partitions_of, until
from integration.load import send
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import NoReassignmentInProgressError, UnknownTopicIdError

from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.client.admin.admin import Admin

TIMEOUT_S = 30
NO_ID = uuid.UUID(int=0)


async def everywhere(cluster: Cluster, topic: str, partitions: int) -> None:
    """Whoever is asked next knows the topic: a change is answered when the broker that was asked knows it."""
    for node in cluster.nodes:
        async with Admin(node.address) as admin:

            async def is_known(admin: Admin = admin) -> bool:
                return len(await partitions_of(admin, topic)) == partitions

            await until(is_known, f"broker {node.node_id} knows {partitions} partitions of {topic}")


@pytest.fixture
async def admin(shared_cluster: Cluster) -> AsyncIterator[KafkaAdminClient]:
    await shared_cluster.ready()
    client = KafkaAdminClient(bootstrap_servers=shared_cluster.bootstrap.split(","))
    yield client
    client.close()


@pytest.fixture
async def librdkafka(shared_cluster: Cluster) -> AdminClient:
    await shared_cluster.ready()
    return AdminClient({"bootstrap.servers": shared_cluster.bootstrap})


# --- kafka-python -----------------------------------------------------------------------------------------------------


async def test_topics_of_one_request_have_errors_of_their_own(shared_cluster: Cluster, admin: KafkaAdminClient) -> None:
    assigned = {0: [1, 2], 1: [2, 0]}
    wanted: dict[str, dict[str, Any]] = {
        "kp-plain": {"num_partitions": 2, "replication_factor": 3, "configs": {"retention.ms": "12345"}},
        "kp-assigned": {"assignments": assigned},
        "kp bad name": {},
        "kp-many-replicas": {"num_partitions": 1, "replication_factor": 4},
        "kp-no-partitions": {"num_partitions": 0, "replication_factor": 1},
        "kp-bad-config": {"configs": {"retention.mss": "1"}},
        "kp-gap": {"assignments": {0: [1], 2: [2]}},
    }
    looked_at = await asyncio.to_thread(admin.create_topics, wanted, validate_only=True, raise_errors=False)
    assert not wanted.keys() & set(await asyncio.to_thread(admin.list_topics)), "nothing was made"
    made = await asyncio.to_thread(admin.create_topics, wanted, raise_errors=False)
    for answer in (looked_at, made):
        errors = {topic["name"]: topic["error_code"] for topic in answer["topics"]}
        assert errors == {
            "kp-plain": 0,
            "kp-assigned": 0,
            "kp bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "kp-many-replicas": ErrorCode.INVALID_REPLICATION_FACTOR,
            "kp-no-partitions": ErrorCode.INVALID_PARTITIONS,
            "kp-bad-config": ErrorCode.INVALID_CONFIG,
            "kp-gap": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        }
        (plain,) = (topic for topic in answer["topics"] if topic["name"] == "kp-plain")
        configs = {name: (item["value"], item["config_source"]) for name, item in plain["configs"].items()}
        assert (plain["num_partitions"], plain["replication_factor"]) == (2, 3)
        assert configs["retention.ms"] == ("12345", "DYNAMIC_TOPIC_CONFIG")
        assert configs["cleanup.policy"] == ("delete", "DEFAULT_CONFIG")
        messages = {topic["name"]: topic["error_message"] for topic in answer["topics"]}
        assert messages["kp-plain"] is None
        assert "retention.ms" in messages["kp-bad-config"], "the nearest known key is named"
    again = await asyncio.to_thread(admin.create_topics, {"kp-plain": {}}, raise_errors=False)
    assert again["topics"][0]["error_code"] == ErrorCode.TOPIC_ALREADY_EXISTS
    await everywhere(shared_cluster, "kp-assigned", 2)
    (described,) = await asyncio.to_thread(admin.describe_topics, ["kp-assigned"])
    assert {item["partition_index"]: item["replica_nodes"] for item in described["partitions"]} == assigned


async def test_every_broker_takes_changes_and_the_controller_may_die(new_cluster: Callable[..., Cluster]) -> None:
    """aiokafka and old clients ask the broker that the metadata calls the controller; others ask anyone."""
    cluster = new_cluster()
    await cluster.ready()
    clients = [AIOKafkaAdminClient(bootstrap_servers=node.address) for node in cluster.nodes]

    async def create(node_id: int, name: str) -> list[tuple[str, int]]:
        answer = await clients[node_id]._send_request(create_request(name), node_id)
        return [(topic[0], topic[1]) for topic in answer.topic_errors]

    try:
        for node_id, client in enumerate(clients):
            await client.start()
            assert await create(node_id, f"aio-{node_id}") == [(f"aio-{node_id}", 0)]
        controller = (await describe_cluster(cluster)).controller_id
        cluster.kill(controller)
        others = [node_id for node_id in range(3) if node_id != controller]
        made = await asyncio.gather(*(create(node_id, f"after-{node_id}") for node_id in others))
        assert made == [[(f"after-{node_id}", 0)] for node_id in others]
    finally:
        for client in clients:
            await client.close()


def create_request(name: str) -> Any:
    from aiokafka.protocol.admin import CreateTopicsRequest

    topic = AioNewTopic(name=name, num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(
        create_topic_requests=[AIOKafkaAdminClient._convert_new_topic_request(topic)],
        timeout=30_000,
        validate_only=False,
    )


async def test_a_topic_is_deleted_by_its_id_and_its_name_is_another_topic_then(
    shared_cluster: Cluster, admin: KafkaAdminClient
) -> None:

    async def id_of(name: str, *, but: uuid.UUID = NO_ID) -> uuid.UUID:
        async def another() -> uuid.UUID | None:
            (found,) = await asyncio.to_thread(admin.describe_topics, [name])
            if found["topic_id"] is None:  # the broker that was asked has not heard of the topic
                return None
            topic_id = uuid.UUID(str(found["topic_id"]))
            return None if topic_id in (NO_ID, but) else topic_id

        found = await until(another, f"{name} has an id that is not {but}")
        assert isinstance(found, uuid.UUID)
        return found

    await asyncio.to_thread(admin.create_topics, ["kp-twice"])
    first = await id_of("kp-twice")
    deleted = await asyncio.to_thread(admin.delete_topics, [first])
    assert (deleted["topics"][0]["name"], uuid.UUID(str(deleted["topics"][0]["topic_id"]))) == ("kp-twice", first)
    await asyncio.to_thread(admin.create_topics, ["kp-twice"])
    second = await id_of("kp-twice", but=first)
    again = await asyncio.to_thread(admin.delete_topics, [first, "kp-nobody"], raise_errors=False)
    assert [topic["error_code"] for topic in again["topics"]] == [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert await id_of("kp-twice", but=first) == second, "the newer one is still there"
    with pytest.raises(UnknownTopicIdError):
        await asyncio.to_thread(admin.delete_topics, [first])


async def test_partitions_are_added_and_records_deleted(shared_cluster: Cluster, admin: KafkaAdminClient) -> None:
    topic = {"num_partitions": 1, "replication_factor": 3}
    await asyncio.to_thread(
        admin.create_topics, {"kp-grows": topic, "kp-compact": {**topic, "configs": {"cleanup.policy": "compact"}}}
    )
    grown = await asyncio.to_thread(admin.create_partitions, {"kp-grows": 3, "kp-nobody": 2}, raise_errors=False)
    errors = {item.name: item.error_code for item in grown.results}
    assert errors == {"kp-grows": 0, "kp-nobody": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    fewer = await asyncio.to_thread(admin.create_partitions, {"kp-grows": 2}, raise_errors=False)
    assert fewer.results[0].error_code == ErrorCode.INVALID_PARTITIONS
    await everywhere(shared_cluster, "kp-grows", 3)
    for number in range(3):
        await send(shared_cluster.bootstrap, "kp-grows", [b"x"] * 10, partition=number)
    asked = {TopicPartition("kp-grows", 0): 4, TopicPartition("kp-grows", 1): -1}
    deleted = await asyncio.to_thread(admin.delete_records, asked)
    assert {key.partition: item["low_watermark"] for key, item in deleted.items()} == {0: 4, 1: 10}
    read = await asyncio.to_thread(offsets_of, shared_cluster.bootstrap, "kp-grows")
    assert read == {0: (4, 10), 1: (10, 10), 2: (0, 10)}
    for refused, name in ((ErrorCode.OFFSET_OUT_OF_RANGE, "kp-grows"), (ErrorCode.POLICY_VIOLATION, "kp-compact")):
        with pytest.raises(Exception, match=str(int(refused))):
            await asyncio.to_thread(admin.delete_records, {TopicPartition(name, 0): 100})


def offsets_of(bootstrap: str, topic: str) -> dict[int, tuple[int, int]]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","))
    try:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        first, last = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        return {item.partition: (first[item], last[item]) for item in partitions}
    finally:
        consumer.close()


async def test_replicas_are_reassigned_and_the_preferred_leader_elected(
    shared_cluster: Cluster, admin: KafkaAdminClient
) -> None:
    await asyncio.to_thread(admin.create_topics, {"kp-moves": {"assignments": {0: [1, 2]}}})
    item = TopicPartition("kp-moves", 0)

    async def state() -> tuple[int, list[int]]:
        (found,) = await asyncio.to_thread(admin.describe_topics, ["kp-moves"])
        return found["partitions"][0]["leader_id"], found["partitions"][0]["replica_nodes"]

    async def led_by(node_id: int) -> bool:
        return (await state())[0] == node_id

    nobody = TopicPartition("kp-nobody", 0)
    asked = await asyncio.to_thread(admin.alter_partition_reassignments, {item: [0, 1], nobody: [0]})
    assert asked[item] is None
    assert asked[nobody].errno == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def moved() -> bool:
        return not await asyncio.to_thread(admin.list_partition_reassignments) and (await state())[1] == [0, 1]

    await until(moved, "the reassignment has ended")
    (cancelled,) = (await asyncio.to_thread(admin.alter_partition_reassignments, {item: None})).values()
    assert cancelled is NoReassignmentInProgressError
    # Broker 1 led before, and is still in sync; but soon after brokers have started, the controller balances leaders by itself.
    elected = await asyncio.to_thread(admin.elect_leaders, 0, {"kp-moves": [0]}, raise_errors=False)
    code = elected.replica_election_results[0].partition_result[0].error_code
    assert code in (0, ErrorCode.ELECTION_NOT_NEEDED)
    await until(lambda: led_by(0), "everybody knows that broker 0 leads")
    codes = []
    for kind in (0, 1):  # preferred, unclean
        answer = await asyncio.to_thread(admin.elect_leaders, kind, {"kp-moves": [0, 7]}, raise_errors=False)
        codes += [one.error_code for one in answer.replica_election_results[0].partition_result]
    assert codes == [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
    everywhere = await asyncio.to_thread(admin.elect_leaders, 0, None)
    codes = [part.error_code for one in everywhere.replica_election_results for part in one.partition_result]
    assert set(codes) == {ErrorCode.ELECTION_NOT_NEEDED}, "__consumer_offsets too, which this client names by itself"


async def test_a_reassignment_under_way_is_listed_and_cancelled(
    shared_cluster: Cluster, admin: KafkaAdminClient
) -> None:
    await asyncio.to_thread(admin.create_topics, {"kp-slow": {"assignments": {0: [1, 2]}}})
    await send(shared_cluster.bootstrap, "kp-slow", [b"x" * 100_000] * 20)
    async with shared_cluster.admin() as ours:
        await ours.assign_replicas("kp-slow", 0, [0, 1], throttle_bytes_per_s=1)
        item = TopicPartition("kp-slow", 0)
        listed = await asyncio.to_thread(admin.list_partition_reassignments, {"kp-slow": [0], "kp-nobody": [0]})
        assert list(listed) == [item]
        assert sorted(listed[item]["replicas"]) == [0, 1, 2]
        assert (listed[item]["adding_replicas"], listed[item]["removing_replicas"]) == ([0], [2])
        assert not await asyncio.to_thread(admin.list_partition_reassignments, {"kp-slow": [1]})
        assert await asyncio.to_thread(admin.alter_partition_reassignments, {item: None}) == {item: None}
        assert not await asyncio.to_thread(admin.list_partition_reassignments)
        assert (await partitions_of(ours, "kp-slow"))[0].replicas == (1, 2)


async def test_producers_are_described_by_the_leader_and_by_other_replicas(
    shared_cluster: Cluster, admin: KafkaAdminClient
) -> None:
    await asyncio.to_thread(admin.create_topics, {"kp-writers": {"assignments": {0: [0, 1]}}})
    item = TopicPartition("kp-writers", 0)

    def write() -> None:
        with KafkaProducer(
            bootstrap_servers=shared_cluster.bootstrap.split(","), acks="all", enable_idempotence=True
        ) as producer:
            for _ in range(3):
                producer.send("kp-writers", b"x").get(timeout=TIMEOUT_S)

    await asyncio.to_thread(write)
    found = []
    for node_id in (None, 1):
        described = await asyncio.to_thread(admin.describe_producers, [item], broker_id=node_id)
        (producer,) = described[item].active_producers
        found.append((producer.producer_id, producer.producer_epoch, producer.last_sequence))
    assert found[0] == found[1]
    assert found[0][0] >= 0
    assert found[0][1:] == (0, 2)
    with pytest.raises(Exception, match="NotLeader"):
        await asyncio.to_thread(admin.describe_producers, [item], broker_id=2)


async def test_unknown_topics_are_made_when_they_are_written_to_and_not_when_they_are_looked_at(
    shared_cluster: Cluster, admin: KafkaAdminClient
) -> None:

    def work() -> None:
        consumer = KafkaConsumer(bootstrap_servers=shared_cluster.bootstrap.split(","), allow_auto_create_topics=False)
        assert not consumer.partitions_for_topic("kp-looked-at")
        consumer.close()
        with KafkaProducer(bootstrap_servers=shared_cluster.bootstrap.split(",")) as producer:
            assert producer.send("kp-written", b"x").get(timeout=TIMEOUT_S).offset == 0

    await asyncio.to_thread(work)
    await everywhere(shared_cluster, "kp-written", 1)
    topics = await asyncio.to_thread(admin.list_topics)
    assert "kp-looked-at" not in topics


# --- librdkafka -------------------------------------------------------------------------------------------------------


async def test_librdkafka_administers_topics(shared_cluster: Cluster, librdkafka: AdminClient) -> None:
    await asyncio.to_thread(create_with_librdkafka, librdkafka)
    await everywhere(shared_cluster, "rd-one", 3)
    await everywhere(shared_cluster, "rd-two", 2)
    await asyncio.to_thread(change_with_librdkafka, librdkafka)


def outcomes(futures: dict[Any, Any]) -> dict[Any, Any]:
    found = {}
    for key, future in futures.items():
        try:
            found[key] = future.result(timeout=TIMEOUT_S)
        except KafkaException as error:
            found[key] = error.args[0].code()
    return found


def create_with_librdkafka(client: AdminClient) -> None:
    created = outcomes(
        client.create_topics(
            [
                NewTopic("rd-one", num_partitions=1, replication_factor=3),
                NewTopic("rd-two", num_partitions=2, replica_assignment=[[0, 1], [1, 2]]),
                NewTopic("rd/bad", num_partitions=1, replication_factor=1),
            ]
        )
    )
    assert created == {"rd-one": None, "rd-two": None, "rd/bad": ErrorCode.INVALID_TOPIC_EXCEPTION}
    grown = outcomes(client.create_partitions([NewPartitions("rd-one", 3), NewPartitions("rd-nobody", 3)]))
    assert grown == {"rd-one": None, "rd-nobody": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def change_with_librdkafka(client: AdminClient) -> None:
    metadata = client.list_topics(timeout=TIMEOUT_S)
    assert metadata.controller_id in metadata.brokers
    assert len(metadata.topics["rd-one"].partitions) == 3
    not_needed = client.elect_leaders(ElectionType.PREFERRED, [ConfluentPartition("rd-two", 0)]).result(TIMEOUT_S)
    assert [error.code() for error in not_needed.values()] == [ErrorCode.ELECTION_NOT_NEEDED]
    (deleted,) = outcomes(client.delete_records([ConfluentPartition("rd-one", 0, 0)])).values()
    assert deleted.low_watermark == 0
    deleted_topics = outcomes(client.delete_topics(["rd-one", "rd-nobody"]))
    assert deleted_topics == {"rd-one": None, "rd-nobody": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_librdkafka_lists_offsets_of_every_kind(shared_cluster: Cluster, librdkafka: AdminClient) -> None:
    async with shared_cluster.admin() as ours:
        await ours.create_topic("rd-times", partitions=1, replication_factor=3)
    start_ms = round(time.time() * 1000) - 60_000  # what is much older goes by retention
    await asyncio.to_thread(write_at, shared_cluster.bootstrap, "rd-times", [start_ms + 1, start_ms + 5, start_ms + 3])

    def offset(spec: OffsetSpec) -> tuple[int, int]:
        asked = {ConfluentPartition("rd-times", 0): spec}
        (future,) = librdkafka.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED).values()
        found = future.result(timeout=TIMEOUT_S)
        return found.offset, found.timestamp

    found = [
        await asyncio.to_thread(offset, spec)
        for spec in (
            OffsetSpec.earliest(),
            OffsetSpec.latest(),
            OffsetSpec.max_timestamp(),
            OffsetSpec.for_timestamp(start_ms + 2),
            OffsetSpec.for_timestamp(start_ms + 6),
        )
    ]
    assert found == [(0, -1), (3, -1), (1, start_ms + 5), (1, start_ms + 5), (-1, -1)]


def write_at(bootstrap: str, topic: str, timestamps_ms: list[int]) -> None:
    with KafkaProducer(bootstrap_servers=bootstrap.split(","), acks="all") as producer:
        for timestamp_ms in timestamps_ms:
            producer.send(topic, b"x", timestamp_ms=timestamp_ms).get(timeout=TIMEOUT_S)


# --- aiokafka ---------------------------------------------------------------------------------------------------------


async def test_aiokafka_administers_topics(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    client = AIOKafkaAdminClient(bootstrap_servers=shared_cluster.bootstrap)
    await client.start()
    try:
        topics = [AioNewTopic("aio-one", 1, 3), AioNewTopic("aio bad", 1, 1)]
        created = await client.create_topics(topics)
        assert [(name, code) for name, code, _ in created.topic_errors] == [
            ("aio-one", 0),
            ("aio bad", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ]
        grown = await client.create_partitions({"aio-one": AioNewPartitions(total_count=2)})
        assert [(name, code) for name, code, _ in grown.topic_errors] == [("aio-one", 0)]
        await everywhere(shared_cluster, "aio-one", 2)
        (described,) = await client.describe_topics(["aio-one"])
        assert len(described["partitions"]) == 2
        await send(shared_cluster.bootstrap, "aio-one", [b"x"] * 5, partition=1)
        item = AioTopicPartition("aio-one", 1)
        assert await client.delete_records({item: RecordsToDelete(before_offset=3)}) == {item: 3}
        deleted = await client.delete_topics(["aio-one"])
        assert deleted.topic_error_codes == [("aio-one", 0)]
    finally:
        await client.close()


async def test_a_partition_moves_away_from_under_librdkafka(shared_cluster: Cluster, admin: KafkaAdminClient) -> None:
    """To a broker that had no replica, and none is left where it was: the client is told that another one leads."""
    topic, item = "rd-follows", TopicPartition("rd-follows", 0)
    await asyncio.to_thread(admin.create_topics, {topic: {"assignments": {0: [0]}}})
    delivered: list[int] = []
    failed: list[Any] = []

    def told(error: Any, message: Any) -> None:
        if error is None:
            delivered.append(message.offset())
        else:
            failed.append(error)

    # Its own metadata stays as it is unless an error makes it ask.
    settings = {"bootstrap.servers": shared_cluster.bootstrap, "topic.metadata.refresh.interval.ms": -1}
    producer = Producer({**settings, "acks": "all", "linger.ms": 0})
    reader = {"group.id": "rd-follows", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({**settings, **reader})
    consumer.assign([ConfluentPartition(topic, 0, 0)])

    def write_and_read(count: int) -> None:
        for _ in range(count):
            producer.produce(topic, b"x", partition=0, on_delivery=told)
        assert producer.flush(TIMEOUT_S) == 0
        offsets: list[int] = []
        while len(offsets) < count:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            assert message.error() is None, message.error()
            offsets.append(message.offset())

    async def moved() -> bool:
        (found,) = await asyncio.to_thread(admin.describe_topics, [topic])
        return bool(found["partitions"][0]["replica_nodes"] == [target])

    try:
        await asyncio.to_thread(write_and_read, 10)
        for target in (1, 2):
            await asyncio.to_thread(admin.alter_partition_reassignments, {item: [target]})
            await until(moved, f"the partition is on broker {target} alone")
            await asyncio.to_thread(write_and_read, 10)
    finally:
        await asyncio.to_thread(consumer.close)
    assert failed == []
    assert delivered == list(range(30))
