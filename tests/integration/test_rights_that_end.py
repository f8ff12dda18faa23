"""What a user may still do on a real cluster after a permission or the user itself was taken away in the middle of a request, and
what a user with few permissions must not reach over HTTP."""

import asyncio
import base64
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import pytest
from integration.cluster import SESSION, Cluster, until

from barnabas.log.vocabulary.access.acls import Acl, AclFilter, Operation, ResourceKind
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.security import SecurityOptions
from barnabas.net.client.producer.producer import Producer
from barnabas.net.wire.protocol import requests as q

LIMIT_S = 30.0
BOUND_S = 20.0  # of docs/security.md: 5 s, and what a loaded machine adds; without a bound, they go on for days
CAROL, PASSWORD = "User:carol", "the password of carol"
TOPIC, GROUP, CLUSTER = ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.CLUSTER
RECORD = b'{"partition_id": 0, "value": {"type": "STRING", "data": "x"}}\n'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("rights") / "c", 1, overrides=SESSION, secure=True) as started:
        yield started


class Carol:
    """A user with a password, at the HTTP API."""

    def __init__(self, cluster: Cluster, session: aiohttp.ClientSession, base: str) -> None:
        self.cluster = cluster
        self.session = session
        self.base = base
        told = base64.b64encode(f"carol:{PASSWORD}".encode()).decode()
        self.login = {"Authorization": f"Basic {told}"}

    def ask(self, method: str, path: str, **more: Any) -> Any:
        headers = self.login | more.pop("headers", {})
        return self.session.request(method, self.base + path, headers=headers, **more)

    async def may(self, operation: Operation, kind: ResourceKind, name: str) -> None:
        async with self.cluster.admin() as admin:
            await admin.acls.add([Acl(kind=kind, name=name, principal=CAROL, operation=operation)])

    async def loses_permissions(self) -> None:
        async with self.cluster.admin() as admin:
            await admin.acls.remove([AclFilter(principal=CAROL)])

    async def is_removed(self) -> None:
        async with self.cluster.admin() as admin:
            await admin.users.remove("carol")

    def sdk(self) -> SecurityOptions:
        options = SecurityOptions(**self.cluster.login)
        options["sasl_plain_username"], options["sasl_plain_password"] = "carol", PASSWORD
        return options


@pytest.fixture
async def carol(cluster: Cluster) -> AsyncIterator[Carol]:
    """She may do nothing yet. The topics `secret` and `known` have a record each."""
    await cluster.ready()
    async with cluster.admin() as admin:
        await admin.acls.remove([AclFilter()])
        await admin.users.add("carol", PASSWORD)
        for topic in {"secret", "known"} - set(await admin.list_topics()):
            await admin.create_topic(topic, partitions=1, replication_factor=1)
            await write(cluster, topic)
        cluster_id = (await admin.describe_cluster()).cluster_id
    address = cluster.nodes[0].property("admin.listener").removeprefix("HTTPS://")
    context = ssl.create_default_context(cafile=cluster.login["ssl_cafile"])
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context), timeout=aiohttp.ClientTimeout(total=2 * LIMIT_S)
    ) as session:
        yield Carol(cluster, session, f"https://{address}/v3/clusters/{cluster_id}")


async def write(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster.bootstrap, **cluster.security) as producer:
        await (await producer.send(topic, b"x"))


async def answered(carol: Carol, method: str, path: str, status: int, **more: Any) -> Any:
    """As soon as the broker knows the newest permissions."""
    last = ""

    async def is_answered() -> Any:
        nonlocal last
        async with carol.ask(method, path, **more) as answer:
            last = f"{answer.status} {await answer.text()}"
            return answer.status == status

    await until(is_answered, f"{method} {path} is answered with {status}")
    return json.loads(last.partition(" ")[2])


# --- undo -------------------------------------------------------------------------------------------------------------


async def committed(cluster: Cluster) -> int:
    async with cluster.admin() as admin:
        return (await admin.group_offsets("g"))[TopicPartition("secret", 0)].committed


@pytest.mark.parametrize("protocol", ["http", "own"])
async def test_an_undo_moves_nothing_of_topics_that_the_user_may_not_read(
    cluster: Cluster, carol: Carol, protocol: str
) -> None:
    async with cluster.admin() as admin:
        await admin.commit_offsets("g", {TopicPartition("secret", 0): 0})
        await admin.reset_offsets("g", {TopicPartition("secret", 0): 1})
    await carol.may(Operation.READ, GROUP, "g")
    path = "/consumer-groups/g/seek/undo"
    await answered(carol, "GET", "/consumer-groups/g/lags", 200)
    if protocol == "http":
        for preview in (True, False):
            async with carol.ask("POST", path, json={"preview": preview}) as answer:
                told = await answer.json()
                assert answer.status == 403 and "READ TOPIC '*'" in told["message"], told
    else:
        async with Admin(cluster.logins, **carol.sdk()) as admin:
            for request in (
                q.UndoOffsetResetRequest(group_id="g", validate_only=True),
                q.UndoOffsetResetRequest(group_id="g"),
                q.UndoOffsetResetRequest(group_id="g", topics=("secret",)),
                q.UndoOffsetResetRequest(group_id="g", topics=()),
            ):
                with pytest.raises(Exception, match="READ TOPIC|does not name"):
                    await admin._ask.coordinator("g", request)
    assert await committed(cluster) == 1
    await carol.may(Operation.READ, TOPIC, "secret")
    await answered(carol, "GET", "/topics/secret", 200)
    if protocol == "http":
        await answered(carol, "POST", path, 200, json={})
    else:
        async with Admin(cluster.logins, **carol.sdk()) as admin:
            await admin.undo_reset("g")
    assert await committed(cluster) == 0


# --- in the middle of a request ---------------------------------------------------------------------------------------

Revoke = Callable[[Carol], Awaitable[None]]
every_way = pytest.mark.parametrize("revoke", [Carol.loses_permissions, Carol.is_removed], ids=["permission", "user"])


@every_way
@pytest.mark.parametrize("path", ["/topics/secret/partitions/0/records?last=1", "/overview/stream"])
async def test_a_stream_ends_soon_after_its_reader_may_not_read_it(
    cluster: Cluster, carol: Carol, path: str, revoke: Revoke
) -> None:
    await carol.may(Operation.READ, TOPIC, "secret")
    await carol.may(Operation.DESCRIBE, CLUSTER, "kafka-cluster")
    await answered(carol, "GET", "/topics/secret/partitions/0/records", 200)
    async with carol.ask("GET", path, headers={"Accept": "text/event-stream"}) as answer:
        assert answer.status == 200
        while b"secret" not in (line := await answer.content.readline()) and b'"value"' not in line:
            assert line
        began_s = time.monotonic()
        await revoke(carol)
        await answer.content.read()
        assert time.monotonic() - began_s < BOUND_S


async def next_event(answer: aiohttp.ClientResponse) -> bytes:
    """The line with the data of the next server-sent event."""
    while b"data:" not in (line := await answer.content.readline()):
        assert line
    return line


async def test_an_overview_does_not_show_a_topic_that_its_reader_may_not_describe_any_more(
    cluster: Cluster, carol: Carol
) -> None:
    await carol.may(Operation.DESCRIBE, TOPIC, "secret")
    await carol.may(Operation.DESCRIBE, CLUSTER, "kafka-cluster")
    await answered(carol, "GET", "/topics/secret", 200)
    await answered(carol, "GET", "/overview", 200)
    async with carol.ask("GET", "/overview/stream", headers={"Accept": "text/event-stream"}) as answer:
        assert b"secret" in await next_event(answer)
        async with cluster.admin() as admin:
            await admin.acls.remove([AclFilter(principal=CAROL, kind=TOPIC)])
        await answered(carol, "GET", "/topics/secret", 403)
        async with cluster.admin() as admin:
            await admin.create_topic(f"new-{time.monotonic_ns()}", partitions=1, replication_factor=1)
        while b"secret" in await next_event(answer):
            pass  # of a change before: it was not read yet
        # The stream goes on. Closed in good order, the connection would wait for the broker's part of it, longer than the loop.
        assert answer.connection is not None and answer.connection.transport is not None
        answer.connection.transport.abort()


async def test_a_fetch_that_waits_gets_no_record_that_was_written_after_the_permission_ended(
    cluster: Cluster, carol: Carol
) -> None:
    await carol.may(Operation.READ, TOPIC, "known")
    await carol.may(Operation.READ, TOPIC, "secret")
    await answered(carol, "GET", "/topics/secret/partitions/0/records", 200)
    await answered(carol, "GET", "/topics/known/partitions/0/records", 200)
    async with Admin(cluster.logins, **carol.sdk()) as admin:
        ends = await admin.find_offsets({TopicPartition("secret", 0): -1})
        wanted = q.FetchPartition(
            topic="secret", partition=0, fetch_offset=ends[TopicPartition("secret", 0)].offset, max_bytes=1_000
        )
        request = q.FetchRequest(max_wait_ms=30_000, min_bytes=1, max_bytes=1_000, partitions=(wanted,))
        waiting = asyncio.ensure_future(admin._ask.broker(0, request))
        await asyncio.sleep(0)
        await answered(carol, "GET", "/topics/known", 200)  # a later request was served: the fetch waits
        async with cluster.admin() as root:
            await root.acls.remove([AclFilter(principal=CAROL, kind=TOPIC, name="secret")])
        await answered(carol, "GET", "/topics/secret", 403)
        assert not waiting.done()
        await write(cluster, "secret")
        answer = await waiting
        assert [item.error for item in answer.partitions] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        assert not answer.partitions[0].records


@every_way
async def test_records_over_http_end_soon_after_their_writer_may_not_write(
    cluster: Cluster, carol: Carol, revoke: Revoke
) -> None:
    """The caller sends one record after the other in one request, which may go on for days."""
    await carol.may(Operation.WRITE, TOPIC, "secret")
    await answered(carol, "GET", "/topics/secret", 200)
    ended, written = asyncio.Event(), asyncio.Event()

    async def records() -> AsyncIterator[bytes]:
        while not ended.is_set():
            yield RECORD
            await written.wait()
            written.clear()

    headers = {"Content-Type": "application/json"}
    async with carol.ask("POST", "/topics/secret/records", data=records(), headers=headers) as answer:
        assert json.loads(await answer.content.readline())["error_code"] == 200
        began_s = time.monotonic()
        await revoke(carol)
        while True:
            written.set()
            line = await answer.content.readline()
            if not line or json.loads(line)["error_code"] != 200:
                break
            assert time.monotonic() - began_s < BOUND_S, "the records are still written"
        ended.set()
        written.set()
        assert json.loads(line)["error_code"] in (40301, 40101), line
