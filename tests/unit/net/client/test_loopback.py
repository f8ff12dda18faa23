"""The SDK over real sockets, with the real codec, and without asyncio; Admin against the scripted cluster."""

import asyncio
import gc
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.virtual_time import run

import barnabas
import barnabas.sync
from barnabas import errors
from barnabas.log.vocabulary import cluster_changes
from barnabas.log.vocabulary import errors as broker_errors
from barnabas.log.vocabulary.cluster_changes import CreateTopicResponse
from barnabas.log.vocabulary.share import errors as share_errors
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection import errors as client_errors
from barnabas.net.client.connection.errors import ClientClosedError, GroupIdNotFoundError, UnknownTopicOrPartitionError
from barnabas.net.server.dispatcher import Dispatcher
from barnabas.net.server.server import Server
from barnabas.net.wire.protocol import group_responses as g
from barnabas.net.wire.protocol import requests as q
from barnabas.net.wire.protocol import responses as r
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.tcp import TcpNetwork

T0 = TopicPartition("t", 0)


async def serve(cluster: FakeCluster) -> Server:
    tasks: set[asyncio.Future[Any]] = set()

    def handler(request: Any, context: Any, reply: Any) -> None:
        found = cluster.answer(0, request)
        if asyncio.iscoroutine(found):
            task = asyncio.ensure_future(found)
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            task.add_done_callback(lambda done: None if done.cancelled() else reply(done.result()))
        else:
            reply(found)

    server = Server(TcpNetwork(), Dispatcher(dict.fromkeys(ApiKey, handler)))
    cluster.nodes[0] = await server.start("127.0.0.1", 0)
    return server


@pytest.fixture
def port() -> Iterator[int]:
    """A cluster on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(serve(FakeCluster(topics={"t": 1})), loop).result()
    yield server.address[1]
    asyncio.run_coroutine_threadsafe(server.close(100), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def test_produce_and_consume_over_sockets() -> None:
    server = await serve(FakeCluster(topics={"t": 1}))
    bootstrap = f"127.0.0.1:{server.address[1]}"
    values = [b"%d" % number for number in range(20_000)]
    async with barnabas.Producer(bootstrap, compression="lz4") as producer:
        for value in values:
            await producer.send("t", value)
        await producer.flush()
    seen = []
    async with barnabas.Consumer("t", bootstrap=bootstrap, auto_offset_reset="earliest") as consumer:
        async for record in consumer:
            seen.append(record.value)
            if len(seen) == len(values):
                break
    assert seen == values
    await server.close(100)


def test_without_asyncio(port: int) -> None:
    bootstrap = f"127.0.0.1:{port}"
    with barnabas.sync.Producer(bootstrap) as producer:
        assert producer.send("t", b"a", key=b"k").result(timeout=10).offset == 0
        handles = producer.send_many("t", [b"b", b"c"])
        assert [item.offset for item in handles.result()] == [1, 2]
        assert handles[1].result().offset == 2
        producer.flush()
    with barnabas.sync.Consumer("t", bootstrap=bootstrap, auto_offset_reset="earliest") as consumer:
        assert [record.value for _, record in zip(range(3), consumer, strict=False)] == [b"a", b"b", b"c"]
        assert consumer.position(T0) == 3
        consumer.seek(T0, 1)
        assert consumer.poll()[T0][0].value == b"b"
        assert consumer.assignment == [T0]
    with barnabas.sync.Admin(bootstrap) as admin:
        assert admin.list_topics() == ["t"]
        with pytest.raises(AttributeError):
            admin.no_such_method()


def _in_child(producer: Any, bootstrap: str, results: Any) -> None:
    try:
        producer.send("t", b"x")
    except ClientClosedError as error:
        results.put("fork" in error.message)
    with barnabas.sync.Producer(bootstrap) as own:
        results.put(own.send("t", b"y").result(timeout=10).topic)


def test_a_client_that_is_dropped_closes_by_itself(port: int) -> None:
    consumer = barnabas.sync.Consumer("t", bootstrap=f"127.0.0.1:{port}")
    inner = consumer._client
    assert not inner._is_closed
    del consumer
    gc.collect()
    deadline_s = time.monotonic() + 10
    while not inner._is_closed:
        assert time.monotonic() < deadline_s


def test_the_end_of_the_process_closes_what_was_left_open(port: int) -> None:
    program = f"""
import logging
from barnabas import sync
from barnabas.net.client.consumer.consumer import Consumer

class Told(Consumer):
    async def close(self):
        await super().close()
        print("closed", flush=True)

sync._consumer.Consumer = Told
consumer = sync.Consumer("t", bootstrap="127.0.0.1:{port}")
"""
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (ended.stdout, ended.stderr) == ("closed\n", "")


def test_after_a_fork(port: int) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with barnabas.sync.Producer(f"127.0.0.1:{port}") as producer:
        producer.send("t", b"a").result(timeout=10)
        child = context.Process(target=_in_child, args=(producer, f"127.0.0.1:{port}", results))
        child.start()
        assert results.get(timeout=20) is True
        assert results.get(timeout=20) == "t"
        child.join(20)


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, barnabas; print([m for m in ('asyncio', 'aiokafka', 'aiohttp', 'msgpack') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
    code = "import sys; from barnabas import Producer, Consumer, Admin; print({'aiokafka', 'aiohttp'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
    with pytest.raises(AttributeError):
        _ = barnabas.nothing  # type: ignore[attr-defined]
    assert all(getattr(barnabas, name) for name in barnabas.__all__)
    assert set(barnabas.__all__) <= set(dir(barnabas))


def test_every_typed_error_can_be_imported_from_the_package() -> None:
    known = {
        name: found
        for module in (broker_errors, cluster_changes, share_errors, client_errors)
        for name, found in vars(module).items()
        if isinstance(found, type) and issubclass(found, barnabas.BarnabasError)
    }
    assert len(known) > 100 and set(known) == {*errors.__all__} - {"ErrorCode"}
    for name, found in known.items():
        assert getattr(errors, name) is found and getattr(barnabas, name) is found, name
    with pytest.raises(AttributeError):
        _ = barnabas.NoSuchError  # type: ignore[attr-defined]


def test_the_error_of_a_code_is_one_of_them() -> None:
    made = [(code, broker_errors.error_for(code)) for code in broker_errors.ErrorCode]
    typed = [(code, error) for code, error in made if type(error) is not barnabas.BarnabasError]
    assert len(typed) > 80
    assert all(error.code == code and getattr(errors, type(error).__name__) is type(error) for code, error in typed)


def test_admin_finds_the_controller_and_the_coordinators() -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=2, topics={"t": 2})
        cluster.script(
            ApiKey.CREATE_TOPIC,
            lambda *_: r.ErrorResponse(error=41, message="not me"),
            lambda *_: CreateTopicResponse(name="n", topic_id="1", partition_count=3, replication_factor=1),
        )
        cluster.script(
            ApiKey.LIST_GROUPS,
            lambda node, _: g.ListGroupsResponse(
                groups=(g.ListedGroup(group_id=f"g{node}", state="stable", protocol="consumer", member_count=1),)
            ),
            forever=True,
        )
        cluster.script(
            ApiKey.DESCRIBE_GROUPS, lambda *_: r.ErrorResponse(error=69, message="no such group"), forever=True
        )
        async with Admin(client=cluster.client()) as admin:
            assert (await admin.create_topic("n", partitions=3)).partition_count == 3
            assert [group.group_id for group in await admin.list_groups()] == ["g0", "g1"]
            with pytest.raises(GroupIdNotFoundError, match="no such group"):
                await admin.describe_group("g")
            with pytest.raises(UnknownTopicOrPartitionError):
                await admin.describe_topic("missing")
            assert len((await admin.describe_topic("t")).partitions) == 2
            await admin.commit_offsets("g", {T0: 0})
            assert (await admin.group_offsets("g"))[T0].lag == 0
            ends = await admin.list_offsets("t")
            assert {partition: found.offset for partition, found in ends.items()} == {T0: 0, ("t", 1): 0}
        assert len(cluster.sent(q.CreateTopicRequest)) == 2

    run(main())
