"""Quotas at the port: answers that say how long to wait, connections that are not read meanwhile, and clients that do not care.

On virtual time: what a client gets is counted exactly. The handlers answer at once, so only the quotas make a client wait.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from msgspec.structs import replace
from unit.net.handlers.kafka_client import made
from unit.net.wire_world import (
    Parked,
    RawClient,
    World,
    count_up,
    fetch_request,
    fetch_response,
    produce_request,
    produce_response,
    raw_client,
    request_bytes,
    run_in_simulation,
    serve,
)

from barnabas.log.vocabulary.access.quotas import QuotaEntity, QuotaKind
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.base.limits import SWEEP_INTERVAL_MS
from barnabas.net.server.memory_budget import MemoryBudget
from barnabas.net.server.quotas.client_quotas import MAX_THROTTLE_MS, ClientQuotas, Quotas
from barnabas.net.server.server import Server
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.codec import DecodedRequest
from barnabas.net.wire.protocol.kafka.apis import API_VERSIONS_KEY, SERVED, KafkaApi, KafkaResponse, is_flexible
from barnabas.net.wire.protocol.kafka.codec import KafkaCodec
from barnabas.net.wire.protocol.kafka.compiler import decoder, encoder
from barnabas.net.wire.protocol.kafka.versions_api import versions_response
from barnabas.net.wire.protocol.responses import ErrorResponse, FetchResponse

RATE, BURST_S = 10_000, 2
RECORDS = bytes(1_000)
RAW = QuotaEntity(client_id="raw")
PRODUCE_RATE: Quotas = {RAW: {QuotaKind.PRODUCE: float(RATE)}}


def quotas_of(quotas: Quotas) -> ClientQuotas:
    made = ClientQuotas(dict.fromkeys(QuotaKind, float(BURST_S)))
    made.follow(quotas)
    return made


class Counted:
    """A produce handler that counts what it is given."""

    def __init__(self) -> None:
        self.requests = 0
        self._answer = count_up()

    def __call__(self, request: Any, context: Any, reply: Any) -> None:
        self.requests += 1
        self._answer(request, context, reply)


def elapsed_s(began_s: float) -> float:
    return asyncio.get_running_loop().time() - began_s


async def served(world: World, quotas: Quotas, produce: Any = None, **options: Any) -> Server:
    handlers = {ApiKey.PRODUCE: produce or Counted(), ApiKey.FETCH: lambda request, context, reply: reply(RESPONSE)}
    return await serve(world, handlers, quotas=quotas_of(quotas), kafka_codec=KafkaCodec(), **options)


RESPONSE: FetchResponse = fetch_response(RECORDS)


def most_bytes(seconds: float) -> float:
    return RATE * (seconds + BURST_S)


@pytest.mark.parametrize("acks", [0, 1])
def test_a_client_that_sends_regardless_gets_its_quota_and_others_are_not_slowed(acks: int) -> None:
    async def body(world: World) -> None:
        produce = Counted()
        server = await served(world, PRODUCE_RATE, produce)
        client = await raw_client(world, server.address)
        began_s = asyncio.get_running_loop().time()
        request = request_bytes(1, produce_request(RECORDS, acks=acks))
        frame_bytes = len(request) - 4  # without its size
        client.transport.write(request * 200)
        while produce.requests < 200:
            await asyncio.sleep(0.05)
            assert produce.requests * frame_bytes <= most_bytes(elapsed_s(began_s)) + frame_bytes
        assert elapsed_s(began_s) == pytest.approx(200 * frame_bytes / RATE - BURST_S, abs=0.2)

        other = await world.client.connect(RawClient, *server.address)
        assert isinstance(other, RawClient)
        began_s = asyncio.get_running_loop().time()
        for number in range(50):
            other.transport.write(kafka_produce(number, client_id=b"other"))
            assert throttle_of(await other.frame(), 0, 9) == 0
        assert elapsed_s(began_s) < 1.0
        await server.close(0)

    run_in_simulation(body)


def test_waiting_takes_neither_memory_nor_the_connection() -> None:
    """The client sends a large request behind the one that used up its quota: only what has arrived already is kept."""

    async def body(world: World) -> None:
        server = await served(world, PRODUCE_RATE)
        client = await raw_client(world, server.address)
        client.transport.write(request_bytes(1, produce_request(bytes(RATE * 20))))
        await client.frame()
        (connection,) = server._connections
        assert connection.intake.is_muted and connection.intake.is_paused
        client.transport.write(request_bytes(2, produce_request(bytes(500_000))))
        await asyncio.sleep(10)
        assert connection.intake.is_muted and connection.held_bytes == 0 and server.memory.used_bytes == 0
        began_s = asyncio.get_running_loop().time()
        await client.frame()
        assert elapsed_s(began_s) == pytest.approx(20 - BURST_S - 10, abs=0.5)
        await server.close(0)

    run_in_simulation(body)


def kafka_produce(correlation_id: int, *, client_id: bytes = b"raw", size_bytes: int = 1_000) -> bytes:
    data = made("ProduceRequest", "PartitionProduceData", index=0, records=bytes(size_bytes))
    topics = [made("ProduceRequest", "TopicProduceData", name="t", partition_data=[data])]
    return kafka_frame(0, 9, made("ProduceRequest", acks=1, timeout_ms=1, topic_data=topics), correlation_id, client_id)


def kafka_fetch(correlation_id: int, max_bytes: int = 1 << 20) -> bytes:
    part = made("FetchRequest", "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=max_bytes)
    topics = [made("FetchRequest", "FetchTopic", topic="t", partitions=[part])]
    asked = made("FetchRequest", max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, topics=topics)
    return kafka_frame(1, 11, asked, correlation_id, b"raw")


def kafka_frame(key: int, version: int, body: Any, correlation_id: int, client_id: bytes) -> bytes:
    name = f"{SERVED[key].name}Request"
    chunks: list[Any] = [struct.pack(">hhih", key, version, correlation_id, len(client_id)), client_id]
    if is_flexible(name, version):
        chunks.append(b"\0")
    encoder(name, version)(body, chunks)
    joined = b"".join(map(bytes, chunks))
    return struct.pack(">i", len(joined)) + joined


def throttle_of(frame: bytes, key: int, version: int) -> int:
    name = f"{SERVED[key].name}Response"
    body, _ = decoder(name, version)(memoryview(frame), 5 if is_flexible(name, version) else 4)
    return int(body.throttle_time_ms)


async def kafka_client(world: World, server: Server) -> RawClient:
    client = await world.client.connect(RawClient, *server.address)
    assert isinstance(client, RawClient)
    return client


@pytest.mark.parametrize("key", [0, 1])
def test_kafkas_clients_are_told_at_once_how_long_to_wait(key: int) -> None:
    async def body(world: World) -> None:
        kind, version = ((QuotaKind.PRODUCE, 9), (QuotaKind.FETCH, 11))[key]
        server = await served(world, {RAW: {kind: 400.0}})
        client = await kafka_client(world, server)
        ask = (kafka_produce, kafka_fetch)[key]
        began_s = asyncio.get_running_loop().time()
        client.transport.write(ask(1))
        told_ms = throttle_of(await client.frame(), key, version)
        assert elapsed_s(began_s) < 0.5 and 400 < told_ms < 1_500, "a thousand bytes, less the burst"
        client.transport.write(ask(2))
        await client.frame()
        assert elapsed_s(began_s) == pytest.approx(told_ms / 1000, abs=0.3)
        await server.close(0)

    run_in_simulation(body)


def test_a_fetch_is_not_given_more_than_its_burst() -> None:
    async def body(world: World) -> None:
        asked: list[Any] = []

        def fetch(request: Any, context: Any, reply: Any) -> None:
            asked.append(request)
            reply(RESPONSE)

        server = await serve(world, {ApiKey.FETCH: fetch}, quotas=quotas_of({RAW: {QuotaKind.FETCH: 5_000.0}}))
        client = await raw_client(world, server.address)
        client.transport.write(request_bytes(1, fetch_request()) + request_bytes(2, fetch_request(max_bytes=10)))
        await client.frame()
        await client.frame()
        assert [request.max_bytes for request in asked] == [5_000 * BURST_S, 10]
        await server.close(0)

    run_in_simulation(body)


def test_connections_that_come_again_get_no_more_either() -> None:
    """A client closes its connection at each answer. While it owes more than it can be told, its requests are refused."""

    async def body(world: World) -> None:
        produce = Counted()
        server = await served(world, PRODUCE_RATE, produce)
        size_bytes = 50_000
        request = request_bytes(1, produce_request(bytes(size_bytes)))
        began_s = asyncio.get_running_loop().time()
        for _ in range(60):
            client = await raw_client(world, server.address)
            client.transport.write(request)
            await client.until(1)
            client.transport.abort()
            await asyncio.sleep(0.1)
            limit = most_bytes(elapsed_s(began_s) + MAX_THROTTLE_MS / 1000) + len(request)
            assert produce.requests * size_bytes <= limit
        assert server.quotas.refused > 30
        await server.close(0)

    run_in_simulation(body)


def test_the_time_of_the_handler_counts() -> None:
    async def body(world: World) -> None:
        server = await served(world, {RAW: {QuotaKind.REQUEST: 50.0}})
        client = await kafka_client(world, server)
        client.transport.write(kafka_produce(1))
        assert throttle_of(await client.frame(), 0, 9) == 0
        kinds = [key.kind for key, _ in server.quotas.entities()]
        assert kinds == [QuotaKind.REQUEST]
        await server.close(0)

    run_in_simulation(body)


def test_brokers_have_no_quotas() -> None:
    async def body(world: World) -> None:
        server = await served(world, {QuotaEntity(client_id=""): {QuotaKind.PRODUCE: 1.0, QuotaKind.REQUEST: 1.0}})
        for name in (b"broker-1", b"replica-1"):
            client = await kafka_client(world, server)
            for number in range(5):
                client.transport.write(kafka_produce(number, client_id=name))
                assert throttle_of(await client.frame(), 0, 9) == 0
        assert list(server.quotas.entities()) == []
        await server.close(0)

    run_in_simulation(body)


def test_client_ids_of_brokers_count_only_where_brokers_connect() -> None:
    async def body(world: World) -> None:
        server = await served(world, {QuotaEntity(client_id=""): {QuotaKind.PRODUCE: 100.0}}, serves_brokers=False)
        client = await kafka_client(world, server)
        client.transport.write(kafka_produce(1, client_id=b"broker-1"))
        assert throttle_of(await client.frame(), 0, 9) > 0
        await server.close(0)

    run_in_simulation(body)


def test_a_client_that_claims_to_be_a_replica_has_its_quota() -> None:
    async def body(world: World) -> None:
        server = await served(world, {RAW: {QuotaKind.FETCH: 100.0}})
        client = await raw_client(world, server.address)
        client.transport.write(request_bytes(1, replace(fetch_request(), replica_id=1)))
        await client.frame()
        assert [key.kind for key, _ in server.quotas.entities()] == [QuotaKind.FETCH]
        await server.close(0)

    run_in_simulation(body)


def test_requests_of_a_login_have_no_quota() -> None:
    """Else everyone who logs in would share the quota of the user ANONYMOUS, and strangers could use it up."""

    async def body(world: World) -> None:
        every_user: Quotas = {QuotaEntity(user=""): {QuotaKind.REQUEST: 1.0}}
        handlers = {
            KafkaApi.API_VERSIONS: lambda request, context, reply: reply(KafkaResponse(body=versions_response()))
        }
        for mechanisms, known in (((), [QuotaKind.REQUEST]), (("PLAIN",), [])):
            options: Any = {"quotas": quotas_of(every_user), "kafka_codec": KafkaCodec(), "mechanisms": mechanisms}
            server = await serve(world, handlers, **options)
            client = await kafka_client(world, server)
            client.transport.write(kafka_frame(API_VERSIONS_KEY, 0, made("ApiVersionsRequest"), 1, b"raw"))
            await client.frame()
            assert [key.kind for key, _ in server.quotas.entities()] == known
            await server.close(0)

    run_in_simulation(body)


def test_a_client_does_not_wait_again_for_the_time_that_its_answer_took() -> None:
    async def body(world: World) -> None:
        parked = Parked()
        server = await served(world, PRODUCE_RATE, parked)
        client = await kafka_client(world, server)
        client.transport.write(kafka_produce(1, size_bytes=RATE * (BURST_S + 10)))
        await parked.until(lambda: len(parked.calls) == 1)
        await asyncio.sleep(7)
        parked.calls[0][2](produce_response(0))
        assert throttle_of(await client.frame(), 0, 9) == pytest.approx(3_000, abs=200)
        await server.close(0)

    run_in_simulation(body)


def test_errors_are_counted_once_where_the_client_must_wait() -> None:
    async def body(world: World) -> None:
        def refuse(request: Any, context: Any, reply: Any) -> None:
            reply(ErrorResponse(error=int(ErrorCode.UNKNOWN_SERVER_ERROR), message="refused"))

        server = await served(world, PRODUCE_RATE, refuse)
        client = await kafka_client(world, server)
        client.transport.write(kafka_produce(1, size_bytes=RATE * (BURST_S + 1)))
        assert throttle_of(await client.frame(), 0, 9) > 0
        assert sum(server.measures.errors.values()) == 1
        await server.close(0)

    run_in_simulation(body)


@pytest.mark.parametrize("has_only_brokers", [False, True])
def test_connections_of_an_address_are_counted_where_clients_connect(has_only_brokers: bool) -> None:
    async def body(world: World) -> None:
        connections: Quotas = {QuotaEntity(ip=""): {QuotaKind.CONNECTION: 2.0}}
        server = await served(world, connections, has_only_brokers=has_only_brokers)
        clients = [await kafka_client(world, server) for _ in range(6)]
        await asyncio.sleep(0.5)
        assert sum(not client.closed.done() for client in clients) == (6 if has_only_brokers else 2 * BURST_S)
        assert server.metrics.connections_refused == (0 if has_only_brokers else 2)
        await asyncio.sleep(1)
        again = await kafka_client(world, server)
        again.transport.write(kafka_produce(1))
        await again.frame()
        await server.close(0)

    run_in_simulation(body)


def test_a_quota_that_is_removed_ends_with_the_wait_that_was_told() -> None:
    async def body(world: World) -> None:
        server = await served(world, PRODUCE_RATE)
        client = await kafka_client(world, server)
        client.transport.write(kafka_produce(1, size_bytes=RATE * 4))
        assert throttle_of(await client.frame(), 0, 9) == pytest.approx(2_000, abs=100)
        server.quotas.follow({})
        began_s = asyncio.get_running_loop().time()
        for number in range(10):
            client.transport.write(kafka_produce(number, size_bytes=RATE * 4))
            assert throttle_of(await client.frame(), 0, 9) == 0
        assert elapsed_s(began_s) < 3.0
        await server.close(0)

    run_in_simulation(body)


def test_a_client_beyond_its_quota_gives_way_where_others_need_its_memory() -> None:
    """Its large request has arrived in part, while the answer to an earlier one makes it wait."""

    async def body(world: World) -> None:
        memory = MemoryBudget(2 << 20)
        parked = Parked()

        def fetch(request: Any, context: Any, reply: Any) -> None:
            parked(request, context, reply)

        quotas = quotas_of({RAW: {QuotaKind.FETCH: 100.0}})
        handlers = {ApiKey.PRODUCE: Counted(), ApiKey.FETCH: fetch}
        server = await serve(world, handlers, quotas=quotas, memory=memory, kafka_codec=KafkaCodec())
        throttled, honest = await raw_client(world, server.address), await kafka_client(world, server)
        large = request_bytes(2, produce_request(bytes(1_500_000)))
        throttled.transport.write(request_bytes(1, fetch_request()) + large[:1_400_000])
        await parked.until(lambda: len(parked.calls) == 1)
        await asyncio.sleep(1)
        parked.calls[0][2](RESPONSE)
        await throttled.frame()
        (muted,) = [one for one in server._connections if one.intake.is_muted]
        assert muted.held_bytes >= 1_400_000
        honest.transport.write(kafka_produce(1, client_id=b"honest", size_bytes=1_500_000))
        began_s = asyncio.get_running_loop().time()
        await honest.frame()
        assert elapsed_s(began_s) < 2 * SWEEP_INTERVAL_MS / 1000
        await server.close(0)

    run_in_simulation(body)


@pytest.mark.parametrize("version", range(SERVED[3].versions.first, SERVED[3].versions.last + 1))
def test_encoded_metadata_says_how_long_to_wait(version: int) -> None:
    chunks: list[Any] = []
    encoder("MetadataResponse", version)(made("MetadataResponse", cluster_id="c"), chunks)
    request = DecodedRequest(correlation_id=7, api=3, version=version, payload=None, client_id="raw")
    answer: KafkaResponse[object] = KafkaResponse(body=b"".join(map(bytes, chunks)))
    frame = b"".join(map(bytes, KafkaCodec().encode_response(request, answer, 1_234)))[4:]
    assert throttle_of(frame, 3, version) == (1_234 if version >= 3 else 0)
    untold = b"".join(map(bytes, KafkaCodec().encode_response(request, answer)))[4:]
    assert throttle_of(untold, 3, version) == 0 and len(untold) == len(frame)
