"""Permissions on a real cluster: what a user may do without any, with some, and nothing of what only brokers do.

The first half is what anyone who could connect was able to do before there were permissions: each line must fail now.
"""

import asyncio
import datetime
import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer as RdConsumer
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Producer as RdProducer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from integration import java_client
from integration.cluster import SESSION, Cluster, until

from barnabas.kraft.metadata.requests import (
    AlterPartition,
    AlterVoters,
    AppendGroupRecords,
    BrokerHeartbeat,
    FenceBroker,
    IsrMember,
    PartitionIsrProposal,
    RegisterBroker,
    encode_request,
)
from barnabas.log.disk.secret_files import write_secret
from barnabas.log.vocabulary.access.acls import Acl, AclFilter, Operation, PatternKind, ResourceKind
from barnabas.log.vocabulary.cluster_changes import (
    AddPartitionsRequest,
    AlterConfigRequest,
    AssignReplicasRequest,
    CreateAclsRequest,
    DecommissionBrokerRequest,
    ElectLeaderRequest,
    UnregisterBrokerRequest,
)
from barnabas.log.vocabulary.errors import AuthorizationError, ClusterAuthorizationError, ErrorCode
from barnabas.log.vocabulary.transaction_messages import InitTransactionsRequest, TransactionMarker
from barnabas.net.base.local.certificates import broker_certificate, read_authority
from barnabas.net.base.local.secure_files import client_certificate_of
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.security import SecurityOptions
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.testing.access import options_for
from barnabas.net.wire.protocol import requests as q
from barnabas.net.wire.protocol.broker_figures import DescribeBrokerRequest
from barnabas.net.wire.protocol.lag import GroupLagsRequest
from barnabas.net.wire.rpc import RpcPool
from barnabas.net.wire.tcp import TcpNetwork
from barnabas.net.wire.tls import TlsContexts, TlsFiles

LIMIT_S = 30.0
ALICE, BOB = "User:CN=alice", "User:CN=bob"
TOPIC, GROUP = ResourceKind.TOPIC, ResourceKind.GROUP
TRANSACTION, CLUSTER = ResourceKind.TRANSACTIONAL_ID, ResourceKind.CLUSTER


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("permissions") / "c", 3, overrides=SESSION, secure=True) as started:
        authority, now = read_authority(home(started)), datetime.datetime.now(datetime.UTC)
        for name in ("alice", "bob"):
            client_certificate_of(started.folder, name)
        write_secret(home(started) / "node-1.pem", broker_certificate(authority, 1, ("127.0.0.1",), now=now))
        yield started


@pytest.fixture
async def records(cluster: Cluster) -> str:
    """A topic with a record, of which nobody but the administrator knows."""
    await cluster.ready()
    async with cluster.admin() as admin:
        await admin.acls.remove([AclFilter()])
        await known_everywhere(cluster, lambda acls: not acls, "no broker knows a permission")
        if "secret" not in await admin.list_topics():
            await admin.create_topic("secret", partitions=1, replication_factor=3)
            async with Producer(cluster.bootstrap, **cluster.security) as producer:
                await (await producer.send("secret", b"x"))
    return "secret"


def home(cluster: Cluster) -> Path:
    return cluster.folder.absolute() / "security"


def security(cluster: Cluster, user: str) -> SecurityOptions:
    options = SecurityOptions(**cluster.security)
    options["ssl_certfile"] = str(home(cluster) / f"{user}.pem")
    return options


def rd(cluster: Cluster, user: str, **more: Any) -> dict[str, Any]:
    shared = {"bootstrap.servers": cluster.bootstrap, "error_cb": lambda error: None}
    return (
        shared
        | options_for("confluent-kafka", security(cluster, user))
        | {key.replace("_", "."): value for key, value in more.items()}
    )


async def grant(cluster: Cluster, principal: str, operation: Operation, kind: ResourceKind, name: str) -> None:
    await add(cluster, Acl(kind=kind, name=name, principal=principal, operation=operation))


async def add(cluster: Cluster, *permissions: Acl) -> None:
    async with cluster.admin() as admin:
        await admin.acls.add(permissions)
    await known_everywhere(cluster, lambda acls: {*permissions} <= {*acls}, "each broker knows the permissions")


async def known_everywhere(cluster: Cluster, is_as_wanted: Callable[[Sequence[Acl]], bool], what: str) -> None:
    """Brokers learn of permissions from the quorum, one a little later than another."""

    async def is_known(pool: RpcPool, node_id: int) -> bool:
        return is_as_wanted((await ask(pool, cluster, node_id, q.DescribeAclsRequest(wanted=AclFilter()))).acls)

    async with speaking_as(cluster, "admin") as pool:
        for node_id in range(len(cluster.nodes)):
            await until(partial(is_known, pool, node_id), what)


@asynccontextmanager
async def speaking_as(cluster: Cluster, user: str) -> AsyncIterator[RpcPool]:
    """Raw requests with the certificate of a user, or of a broker."""
    files = TlsFiles(certificate=str(home(cluster) / f"{user}.pem"), authorities=str(home(cluster) / "ca.pem"))
    pool = RpcPool(TcpNetwork(TlsContexts(files)), client_id="attacker", random=Random(1))
    try:
        yield pool
    finally:
        await pool.close()


async def ask(pool: RpcPool, cluster: Cluster, node_id: int, request: q.Request) -> Any:
    node = cluster.nodes[node_id]
    connection = await pool.get(node.host, node.port)
    return await connection.call(request, timeout_ms=10_000)


async def outcome(asked: Any) -> int:
    """The error of a request: as a whole, or of its first partition."""
    try:
        answer = await asked
    except AuthorizationError as error:
        return int(error.code)
    partitions = getattr(answer, "partitions", ())
    return int(partitions[0].error) if partitions else 0


def call(request: Any) -> q.ControllerCallRequest:
    return q.ControllerCallRequest(body=encode_request(request))


def forged(node_id: int, broker_epoch: int, topic_id: str) -> q.ControllerCallRequest:
    """An ISR of one."""
    proposal = PartitionIsrProposal(
        topic_id=topic_id,
        partition=0,
        leader_epoch=0,
        partition_epoch=0,
        isr=(IsrMember(node_id=node_id, broker_epoch=-1),),
    )
    return call(AlterPartition(node_id=node_id, broker_epoch=broker_epoch, partitions=(proposal,)))


READS: tuple[Any, ...] = (
    q.FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1_000,
        partitions=(q.FetchPartition(topic="secret", partition=0, fetch_offset=0, max_bytes=1_000),),
    ),
    q.FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1_000,
        partitions=(q.FetchPartition(topic="__consumer_offsets", partition=0, fetch_offset=0, max_bytes=1_000),),
    ),
    q.ListOffsetsRequest(partitions=(q.ListOffsetsPartition(topic="secret", partition=0, timestamp_ms=-1),)),
    q.OffsetFetchRequest(group_id="g"),
    q.DescribeGroupRequest(group_id="g"),
    q.DescribeConfigsRequest(resource_type=2, resource="secret"),
    q.DescribeClusterRequest(),
    q.DescribeQuorumRequest(),
    q.DescribeStorageRequest(node_id=0),
    DescribeBrokerRequest(node_id=0),
)
CHANGES: tuple[Any, ...] = (
    q.CreateTopicRequest(name="mine"),
    q.DeleteTopicRequest(name="secret"),
    AddPartitionsRequest(name="secret", total_count=9),
    q.DeleteRecordsRequest(topic="secret", partition=0, before_offset=-1),
    AlterConfigRequest(resource_type=2, resource="secret", changes=()),
    AlterConfigRequest(resource_type=4, resource="", changes=()),
    q.DeleteGroupRequest(group_id="g"),
    q.ResetOffsetsRequest(group_id="g", partitions=()),
    q.DeleteOffsetsRequest(group_id="g", partitions=()),
    AssignReplicasRequest(topic="secret", partition=0, replicas=(1,)),
    ElectLeaderRequest(topic="secret", partition=0, unclean=True),
    InitTransactionsRequest(transactional_id="payments", timeout_ms=1_000),
    q.InitProducerIdRequest(),
    CreateAclsRequest(acls=(Acl(kind=CLUSTER, name="kafka-cluster", principal=ALICE, operation=Operation.ALL),)),
    q.BrokerShutdownRequest(node_id=0),
    DecommissionBrokerRequest(node_id=2),
    UnregisterBrokerRequest(node_id=2),
    q.BringBackFolderRequest(node_id=0, path="/"),
    q.AlterVotersRequest(node_id=2, add=False),
)
AS_A_BROKER: tuple[Any, ...] = (
    q.FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1_000,
        replica_id=2,
        partitions=(q.FetchPartition(topic="secret", partition=0, fetch_offset=1, max_bytes=1_000),),
    ),
    q.MetadataFeedRequest(node_id=2, after_offset=0, max_bytes=1_000, max_wait_ms=0),
    q.QuorumRoleRequest(node_id=2, join=False),
    q.WriteMarkersRequest(
        markers=(
            TransactionMarker(
                transactional_id="payments", producer_id=1, producer_epoch=9, coordinator_epoch=0, is_commit=False
            ),
        )
    ),
    call(BrokerHeartbeat(node_id=2, broker_epoch=1, metadata_offset=0, want_fence=True)),
    call(FenceBroker(node_id=2, broker_epoch=1)),
    call(AlterVoters(node_id=2, add=False)),
    call(AppendGroupRecords(node_id=2, slots=())),
    GroupLagsRequest(wanted=("g",)),
    call(RegisterBroker(node_id=2, incarnation="mine", cluster_id="", endpoints=())),
    forged(2, 1, "0" * 32),
)
REFUSED = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


async def test_a_user_without_permissions_does_nothing_at_all(cluster: Cluster, records: str) -> None:
    async with speaking_as(cluster, "alice") as pool:
        for request in (*READS, *CHANGES, *AS_A_BROKER):
            for node_id in range(3):
                found = await outcome(ask(pool, cluster, node_id, request))
                assert found in REFUSED, (node_id, request, found)
        everything = await ask(pool, cluster, 0, q.MetadataRequest())
        assert everything.topics == ()
        hidden = await ask(pool, cluster, 0, q.MetadataRequest(topics=("secret", "missing")))
        assert [topic.error for topic in hidden.topics] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2
        assert (await ask(pool, cluster, 0, q.ListGroupsRequest())).groups == ()
    async with cluster.admin() as admin:
        assert len((await admin.describe_cluster()).brokers) == 3
        assert set((await admin.describe_topic("secret")).partitions[0].isr) == {0, 1, 2}
    assert all(node.is_running for node in cluster.nodes)


async def test_not_even_an_administrator_is_a_broker(cluster: Cluster, records: str) -> None:
    async with speaking_as(cluster, "admin") as pool:
        for request in AS_A_BROKER:
            assert await outcome(ask(pool, cluster, 0, request)) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, request


async def test_the_key_of_one_broker_is_not_that_of_all(cluster: Cluster, records: str) -> None:
    async with cluster.admin() as admin:
        brokers = (await admin.describe_cluster()).brokers
        topic_id = (await admin.describe_topic(records)).topic_id
    async with speaking_as(cluster, "node-1") as pool:
        for node_id in range(3):
            request = forged(2, brokers[2].broker_epoch, topic_id)
            assert await outcome(ask(pool, cluster, node_id, request)) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            follower = AS_A_BROKER[0]
            assert await outcome(ask(pool, cluster, node_id, follower)) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_the_http_api_is_closed_to_a_user_without_permissions(cluster: Cluster, records: str) -> None:
    await cluster.ready()
    address = cluster.nodes[0].property("admin.listener").removeprefix("HTTPS://")

    def status(user: str, method: str, path: str) -> int:
        context = ssl.create_default_context(cafile=home(cluster) / "ca.pem")
        context.load_cert_chain(home(cluster) / f"{user}.pem")
        request = urllib.request.Request(f"https://{address}{path}", method=method)
        try:
            with urllib.request.urlopen(request, context=context, timeout=LIMIT_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    async with cluster.admin() as admin:
        base = f"/v3/clusters/{(await admin.describe_cluster()).cluster_id}"
    for method, path in (
        ("GET", f"{base}/brokers"),
        ("GET", f"{base}/topics/secret"),
        ("DELETE", f"{base}/topics/secret"),
        ("DELETE", f"{base}/consumer-groups/g"),
        ("GET", f"{base}/acls"),
        ("GET", "/metrics"),
    ):
        assert await asyncio.to_thread(status, "alice", method, path) == 403, path
    assert await asyncio.to_thread(status, "admin", "GET", f"{base}/topics/secret") == 200
    assert await asyncio.to_thread(status, "alice", "GET", "/healthz") == 200


async def test_refusals_are_in_the_audit(cluster: Cluster, records: str) -> None:
    async with speaking_as(cluster, "bob") as pool:
        with pytest.raises(ClusterAuthorizationError):
            await ask(pool, cluster, 0, q.BrokerShutdownRequest(node_id=0))

    def lines() -> list[dict[str, str]]:
        found = [line.partition("barnabas.audit ")[2] for line in cluster.nodes[0].log().splitlines()]
        return [json.loads(line) for line in found if line]

    expected = {"event": "denied", "principal": BOB, "host": "127.0.0.1", "operation": "ALTER", "resource": "CLUSTER"}

    async def is_told() -> bool:
        return any(expected.items() <= line.items() for line in lines())

    await until(is_told, "the refusal is in the audit")


# --- with permissions -------------------------------------------------------------------------------------------------


async def test_the_sdk_does_what_it_may(cluster: Cluster, records: str) -> None:
    logs = Acl(kind=TOPIC, name="log-", pattern=PatternKind.PREFIXED, principal=ALICE, operation=Operation.ALL)
    await add(cluster, logs, Acl(kind=GROUP, name="readers", principal=ALICE, operation=Operation.READ))
    options = security(cluster, "alice")
    async with Admin(cluster.bootstrap, **options) as admin:
        await admin.create_topic("log-web", partitions=1)
        assert await admin.list_topics() == ["log-web"]
    async with Producer(cluster.bootstrap, **options) as producer:
        assert (await (await producer.send("log-web", b"hello"))).offset == 0
        with pytest.raises(AuthorizationError):
            await (await producer.send("secret", b"x"))
    async with Consumer(
        "log-web", bootstrap=cluster.bootstrap, group="readers", auto_offset_reset="earliest", **options
    ) as consumer:
        async with asyncio.timeout(LIMIT_S):
            assert (await anext(aiter(consumer))).value == b"hello"
        await consumer.commit()
    with pytest.raises(AuthorizationError):
        async with asyncio.timeout(LIMIT_S):
            async with Consumer("log-web", bootstrap=cluster.bootstrap, group="others", **options) as consumer:
                await anext(aiter(consumer))


def produce_with_librdkafka(producer: RdProducer, topic: str) -> int:
    """The code of the error; 0: the record was written."""
    told: list[int] = []
    producer.produce(topic, b"x", callback=lambda error, _: told.append(error.code() if error else 0))
    producer.flush(LIMIT_S)
    return told[0]


async def test_librdkafka_writes_and_reads_what_it_may(cluster: Cluster, records: str) -> None:
    async with cluster.admin() as admin:
        await admin.create_topic("orders", partitions=1, replication_factor=3)

    def write(user: str) -> int:
        return produce_with_librdkafka(RdProducer(rd(cluster, user, message_timeout_ms=10_000)), "orders")

    def read(user: str) -> tuple[list[bytes], list[int]]:
        consumer = RdConsumer(rd(cluster, user, group_id="rd", auto_offset_reset="earliest"))
        consumer.subscribe(["orders"])
        values: list[bytes] = []
        errors: list[int] = []
        while not values and not errors:
            message = consumer.poll(LIMIT_S)
            assert message is not None
            error = message.error()
            if error is None:
                values.append(message.value() or b"")
                consumer.commit(message, asynchronous=False)
            else:
                errors.append(error.code())
        consumer.close()
        return values, errors

    assert await asyncio.to_thread(write, "alice") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    await grant(cluster, ALICE, Operation.WRITE, TOPIC, "orders")
    assert await asyncio.to_thread(write, "alice") == 0
    assert await asyncio.to_thread(write, "bob") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert (await asyncio.to_thread(read, "bob"))[1] == [KafkaError.GROUP_AUTHORIZATION_FAILED]
    await grant(cluster, BOB, Operation.READ, GROUP, "rd")
    assert (await asyncio.to_thread(read, "bob"))[1] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    await grant(cluster, BOB, Operation.READ, TOPIC, "orders")
    assert await asyncio.to_thread(read, "bob") == ([b"x"], [])


async def test_a_transaction_that_a_user_may_not_see_does_not_hang(cluster: Cluster, records: str) -> None:
    await grant(cluster, ALICE, Operation.DESCRIBE, CLUSTER, "kafka-cluster")
    async with (
        Producer(cluster.bootstrap, transactional_id="hidden", **cluster.security) as producer,
        producer.transaction() as transaction,
    ):
        await (await transaction.send("secret", b"x"))
        async with Admin(cluster.bootstrap, **security(cluster, "alice")) as alice:
            with pytest.raises(AuthorizationError, match="which of them hang is not known"):
                await alice.transactions.hanging(older_than_ms=0)
        async with cluster.admin() as admin:
            assert not await admin.transactions.hanging(older_than_ms=0)


async def test_librdkafka_needs_its_transactional_id(cluster: Cluster, records: str) -> None:
    await grant(cluster, ALICE, Operation.WRITE, TOPIC, "paid")
    async with cluster.admin() as admin:
        await admin.create_topic("paid", partitions=1, replication_factor=3)

    def commit() -> int:
        producer = RdProducer(rd(cluster, "alice", transactional_id="payments"))
        try:
            producer.init_transactions(LIMIT_S)
            producer.begin_transaction()
            producer.produce("paid", b"paid")
            producer.send_offsets_to_transaction(
                [TopicPartition("paid", 0, 1)],
                RdConsumer(rd(cluster, "alice", group_id="tx")).consumer_group_metadata(),
            )
            producer.commit_transaction(LIMIT_S)
        except KafkaException as error:
            return int(error.args[0].code())
        return 0

    assert await asyncio.to_thread(commit) == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    await grant(cluster, ALICE, Operation.WRITE, TRANSACTION, "payments")
    assert await asyncio.to_thread(commit) == KafkaError.GROUP_AUTHORIZATION_FAILED
    await grant(cluster, ALICE, Operation.READ, GROUP, "tx")
    assert await asyncio.to_thread(commit) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    await grant(cluster, ALICE, Operation.READ, TOPIC, "paid")
    assert await asyncio.to_thread(commit) == 0


async def test_only_who_may_prepares_a_transaction_which_no_timeout_ends(cluster: Cluster, records: str) -> None:
    """WRITE alone suffices for transactions that their timeout ends."""
    await grant(cluster, ALICE, Operation.WRITE, TOPIC, "bills")
    await grant(cluster, ALICE, Operation.WRITE, TRANSACTION, "bills-1")
    async with cluster.admin() as admin:
        await admin.create_topic("bills", partitions=1, replication_factor=3)
    mine = security(cluster, "alice")
    async with Producer(cluster.bootstrap, transactional_id="bills-1", **mine) as producer:
        transaction = producer.transaction()
        await transaction.begin()
        await (await transaction.send("bills", b"refused"))
        with pytest.raises(
            AuthorizationError, match="has no permission to TWO_PHASE_COMMIT TRANSACTIONAL_ID 'bills-1'"
        ):
            await transaction.prepare("a bill")
        await transaction.abort()
        await grant(cluster, ALICE, Operation.TWO_PHASE_COMMIT, TRANSACTION, "bills-1")
        transaction = producer.transaction()
        await transaction.begin()
        await (await transaction.send("bills", b"paid"))
        prepared = await transaction.prepare("a bill")
        assert prepared is not None
    async with Admin(cluster.bootstrap, **mine) as alice:
        await alice.transactions.end_prepared(prepared, is_commit=True)
        await grant(cluster, ALICE, Operation.DESCRIBE, TRANSACTION, "bills-1")
        (listed,) = (await alice.transactions.list()).transactions
        assert (listed.transactional_id, listed.prepared_for) == ("bills-1", "")


async def test_librdkafkas_admin_client_handles_permissions(cluster: Cluster, records: str) -> None:
    def binding(resource: ResourceType, name: str, pattern: ResourcePatternType) -> AclBinding:
        return AclBinding(resource, name, pattern, BOB, "*", AclOperation.READ, AclPermissionType.ALLOW)

    mine = binding(ResourceType.TOPIC, "mine", ResourcePatternType.LITERAL)
    groups = binding(ResourceType.GROUP, "g-", ResourcePatternType.PREFIXED)
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, BOB, None, AclOperation.ANY, AclPermissionType.ANY
    )

    def create(user: str) -> list[int]:
        client = AdminClient(rd(cluster, user))
        codes = []
        for done in client.create_acls([mine, groups]).values():
            try:
                done.result(LIMIT_S)
                codes.append(0)
            except KafkaException as error:
                codes.append(int(error.args[0].code()))
        return codes

    assert await asyncio.to_thread(create, "alice") == [KafkaError.CLUSTER_AUTHORIZATION_FAILED] * 2
    assert await asyncio.to_thread(create, "admin") == [0, 0]
    client = AdminClient(rd(cluster, "admin"))
    assert set(await asyncio.to_thread(client.describe_acls(every).result, LIMIT_S)) == {mine, groups}
    (removed,) = client.delete_acls([every]).values()
    assert set(await asyncio.to_thread(removed.result, LIMIT_S)) == {mine, groups}
    assert await asyncio.to_thread(client.describe_acls(every).result, LIMIT_S) == []


async def test_the_command_adds_lists_and_removes(cluster: Cluster, records: str) -> None:
    file = str(cluster.folder / "client.properties")

    def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-P", "-m", "barnabas", "acl", *arguments, "--command-config", file]
        return subprocess.run(command, capture_output=True, timeout=2 * LIMIT_S, check=False)

    for what in (("read", "--topic", "orders"), ("two-phase-commit", "--transactional-id", "pay-", "--prefix")):
        added = await asyncio.to_thread(run, "add", BOB, *what)
        assert added.returncode == 0, added.stderr
    listed = await asyncio.to_thread(run, "list", "-f", "json")
    found = [(row["principal"], row["operation"], row["name"]) for row in json.loads(listed.stdout)]
    assert sorted(found) == [(BOB, "read", "orders"), (BOB, "two-phase-commit", "pay-")]
    assert (await asyncio.to_thread(run, "remove", "--principal", BOB)).returncode == 0
    assert json.loads((await asyncio.to_thread(run, "list", "-f", "json")).stdout or "[]") == []


# --- logins -----------------------------------------------------------------------------------------------------------


async def test_a_login_gives_the_name_that_permissions_are_for(cluster: Cluster, records: str) -> None:
    async with cluster.admin() as admin:
        await admin.users.add("carol", "the password of carol")
    options = SecurityOptions(**cluster.login)
    options["sasl_plain_username"], options["sasl_plain_password"] = "carol", "the password of carol"
    async with Admin(cluster.logins, **options) as admin:
        assert await admin.list_topics() == []
        with pytest.raises(AuthorizationError, match="User:carol has no permission to DESCRIBE TOPIC"):
            await admin.describe_topic("secret")
    await grant(cluster, "User:carol", Operation.READ, TOPIC, "secret")
    async with Admin(cluster.logins, **options) as admin:
        assert await admin.list_topics() == ["secret"]
        with pytest.raises(AuthorizationError):
            await admin.delete_topic("secret")
    async with Admin(cluster.logins, **cluster.login) as admin:  # the administrator, by a password
        assert len((await admin.describe_cluster()).brokers) == 3


def acl_tool(libraries: Path, cluster: Cluster, *arguments: str) -> str:
    """Kafka's kafka-acls."""
    command = java_client.tool(
        libraries,
        "org.apache.kafka.tools.AclCommand",
        "--bootstrap-server",
        cluster.logins,
        "--command-config",
        str(cluster.folder / "client.properties"),
        *arguments,
    )
    ended = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False)
    return ended.stdout + ended.stderr


@pytest.mark.timeout(240)
async def test_kafka_acls_adds_lists_and_removes(
    cluster: Cluster, records: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if java_client.find():
        pytest.skip(java_client.find())
    libraries = java_client.fetch(tmp_path_factory.mktemp("tools"), "4.1.1", "tools.xml")
    if libraries is None:
        pytest.skip("Maven Central is out of reach")
    about = ("--allow-principal", "User:dave", "--consumer", "--topic", "ord", "--group", "g")
    pattern = ("--resource-pattern-type", "prefixed")
    added = await asyncio.to_thread(acl_tool, libraries, cluster, "--add", *about, *pattern)
    async with cluster.admin() as admin:
        found = {(acl.kind, acl.name, acl.pattern, acl.operation) for acl in await admin.acls.find()}
    prefixed = PatternKind.PREFIXED
    expected = {
        (TOPIC, "ord", prefixed, Operation.READ),
        (TOPIC, "ord", prefixed, Operation.DESCRIBE),
        (GROUP, "g", prefixed, Operation.READ),
    }
    assert found == expected, added
    listed = await asyncio.to_thread(acl_tool, libraries, cluster, "--list", "--principal", "User:dave")
    assert "ResourcePattern(resourceType=TOPIC, name=ord, patternType=PREFIXED)" in listed, listed
    removed = await asyncio.to_thread(acl_tool, libraries, cluster, "--remove", "--force", *about, *pattern)
    async with cluster.admin() as admin:
        assert await admin.acls.find() == [], removed
