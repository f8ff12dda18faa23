"""What is checked and converted before it is appended: what is stored, in which order, and what of it is refused."""

import asyncio
import struct
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from crc32c import crc32c
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.shell_world import Client, partition, simulated, topic, turns

from barnabas.log.format.compression import Compression
from barnabas.log.format.recompression import codec_named, recompressed
from barnabas.log.format.record_batch import CRC_COVERS_FROM, CRC_POSITION, HEADER_SIZE, check_crc, read_header
from barnabas.log.format.record_check import RecordRules
from barnabas.log.format.record_codec import ProducerFields, encode_batch, iter_records
from barnabas.log.replication.ports import ReplicatedLogConfig
from barnabas.log.vocabulary.errors import CorruptRecordError, ErrorCode, RecordTooLargeError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import AddToTransactionRequest
from barnabas.net.coordination.transactions.verification import TransactionVerification
from barnabas.net.handlers.records import preparing
from barnabas.net.handlers.records.preparing import MAX_RECORDS_A_PASS, MAX_RECORDS_AT_ONCE, Preparing, Refused
from barnabas.net.handlers.records.produce import ProduceHandler
from barnabas.net.handlers.records.produce_parts import MAX_APPENDED_AT_ONCE
from barnabas.net.server.memory_budget import MemoryBudget
from barnabas.net.wire.protocol.requests import KafkaProduceRequest, ProducePartition, ProduceRequest
from barnabas.net.wire.protocol.responses import AddToTransactionResponse, ProducePartitionResponse, ProduceResponse

ALONE = topic("t", partition(0, replicas=(0,)), partition(0, replicas=(0,)))
RULES = RecordRules(needs_keys=False, max_message_bytes=1 << 20)
VALUES = [b"value %d " % number * 20 for number in range(50)]


@pytest.mark.parametrize(("made", "wanted"), list(product(Compression, Compression)))
def test_only_the_codec_changes(made: Compression, wanted: Compression) -> None:
    fields = ProducerFields(producer_id=7, producer_epoch=2, base_sequence=9)
    batch = encode_batch(VALUES, timestamps_ms=list(range(50)), compression=made, producer=fields)
    other = recompressed(batch + batch, wanted, RULES)
    header = read_header(other)
    check_crc(other, header)
    assert (header.compression, header.size_bytes * 2) == (wanted, len(other))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 9)
    assert list(iter_records(other)) == list(iter_records(batch))


def test_what_is_damaged_or_too_large_is_refused() -> None:
    batch = bytearray(encode_batch(VALUES, timestamps_ms=1, compression=Compression.GZIP))
    with pytest.raises(RecordTooLargeError, match="with its compression.type"):
        recompressed(batch, Compression.NONE, replace(RULES, max_message_bytes=len(batch) + 100))
    batch[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="CRC"):
        recompressed(batch, Compression.ZSTD, RULES)
    assert codec_named("uncompressed") is Compression.NONE


class World(HandlerWorld):
    def handler(self) -> ProduceHandler:
        self.made = getattr(self, "made", None) or ProduceHandler(self.services)
        return self.made

    def send(self, *items: tuple[int, bytes], version: int = -1, acks: int = 1, connection: object = None) -> Client:
        client = Client()
        client.connection = connection or self  # mostly, all requests are of one connection
        made: dict[str, Any] = {}
        make: Any = ProduceRequest
        if version >= 0:
            make, made = KafkaProduceRequest, {"kafka_version": version}
        request = make(
            **made,
            acks=acks,
            timeout_ms=1_000,
            partitions=tuple(ProducePartition(topic="t", partition=number, records=data) for number, data in items),
        )
        self.handler()(request, client, client.reply)  # type: ignore[arg-type]
        return client

    async def settled(self) -> None:
        while tasks := list(self.handler().tasks):
            await asyncio.wait(tasks)

    def stored(self, number: int = 0) -> list[tuple[int, bytes | None]]:
        data = self.log(number=number).read(0, max_bytes=1 << 20, up_to_offset=1 << 40).slice
        whole = data if isinstance(data, bytes) else data.read()
        found, position = [], 0
        while position < len(whole):
            header = read_header(whole, position)
            batch = whole[position : position + header.size_bytes]
            found += [(header.compression, record.value) for record in iter_records(batch)]
            position += header.size_bytes
        return found


def partitions_of(client: Client) -> tuple[ProducePartitionResponse, ...]:
    answer = client.answer()
    assert isinstance(answer, ProduceResponse)
    return answer.partitions


def batch(*values: bytes, compression: Compression = Compression.NONE) -> bytes:
    return encode_batch(values, timestamps_ms=1_700_000_000_000, compression=compression)


@simulated
async def test_batches_are_stored_as_the_topic_wants_in_the_order_of_arrival() -> None:
    world = await World.start(ALONE, compression_type="gzip")
    first = world.send((0, batch(b"a", b"b")))
    second = world.send((0, batch(b"c", compression=Compression.GZIP)))  # as it should be, but behind the first
    third = world.send((0, batch(b"d", compression=Compression.ZSTD)), (1, batch(b"e")))
    assert first.replies == second.replies == []
    await world.settled()
    assert [partitions_of(client)[0].base_offset for client in (first, second, third)] == [0, 2, 3]
    gzip = int(Compression.GZIP)
    assert world.stored() == [(gzip, b"a"), (gzip, b"b"), (gzip, b"c"), (gzip, b"d")]
    assert world.stored(1) == [(gzip, b"e")]
    assert not list(world.handler().tasks)
    at_once = world.send((0, batch(b"f", compression=Compression.GZIP)))
    assert partitions_of(at_once)[0].base_offset == 4


@simulated
async def test_what_cannot_be_converted_is_refused_and_the_rest_is_appended() -> None:
    world = await World.start(ALONE, compression_type="lz4")
    damaged = bytearray(batch(b"a"))
    damaged[-1] ^= 1
    client = world.send((0, bytes(damaged)), (1, batch(b"b")))
    await world.settled()
    assert [item.error for item in partitions_of(client)] == [ErrorCode.CORRUPT_MESSAGE, 0]
    client = world.send((0, batch(b"a", compression=Compression.ZSTD)), version=6)
    await world.settled()
    assert partitions_of(client)[0].error == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@simulated
async def test_what_waits_is_bounded() -> None:
    world = await World.start(ALONE, compression_type="gzip")
    large = batch(b"x" * 500_000)
    memory = world.services.memory
    clients = [world.send((0, large), connection=object()) for _ in range(memory.limit_bytes // len(large) + 1)]
    assert partitions_of(clients[-1])[0].error == ErrorCode.REQUEST_TIMED_OUT
    assert all(client.replies == [] for client in clients[:-1])
    tasks = list(world.handler().tasks)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert memory.used_bytes == 0


@pytest.mark.parametrize(
    ("codec", "low", "high"), [(Compression.GZIP, 1, 9), (Compression.LZ4, 9, 17), (Compression.ZSTD, -100, 19)]
)
@simulated
async def test_a_topic_s_level_is_that_of_what_is_stored(codec: Compression, low: int, high: int) -> None:
    """A higher level makes smaller batches of the same records. Of lz4, 9 is the fast compressor, as in Kafka."""
    values = [b"%d" % (number * number % 977) * 9 for number in range(2_000)]
    sizes = []
    name = codec.name.lower()
    for level in (low, high):
        world = await World.start(ALONE)
        configs = {"compression.type": name, f"compression.{name}.level": str(level)}
        world.show(ALONE, offset=11, topic_configs={"t": configs})
        client = world.send((0, batch(*values)))
        await world.settled()
        assert partitions_of(client)[0].error == 0
        assert world.stored() == [(int(codec), value) for value in values]
        sizes.append(world.log().size_bytes)
    assert sizes[1] < sizes[0]


@simulated
async def test_one_connection_has_a_share_of_what_waits() -> None:
    world = await World.start(ALONE, compression_type="gzip")
    large = batch(b"x" * 500_000)
    greedy, fits = object(), preparing.MAX_PENDING_BYTES_OF_ONE // len(large)
    clients = [world.send((0, large), connection=greedy) for _ in range(fits + 1)]
    assert partitions_of(clients[-1])[0].error == ErrorCode.REQUEST_TIMED_OUT
    other = world.send((0, large))
    await world.settled()
    assert partitions_of(other)[0].error == 0
    assert (
        partitions_of(world.send((0, batch(b"again", compression=Compression.GZIP)), connection=greedy))[0].error == 0
    )


def of_nonsense(data: bytes) -> bytes:
    """The same header, with the right CRC of records that are none."""
    made = bytearray(data)
    made[HEADER_SIZE:] = b"\xa5" * (len(data) - HEADER_SIZE)
    struct.pack_into(">I", made, CRC_POSITION, crc32c(memoryview(made)[CRC_COVERS_FROM:]))
    return bytes(made)


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
@simulated
async def test_a_compressed_batch_of_nonsense_is_refused(codec: Compression) -> None:
    """Kafka refuses it too: acknowledged, it would stop every consumer at its offset."""
    world = await World.start(ALONE)
    good = batch(*VALUES, compression=codec)
    client = world.send((0, of_nonsense(good)), (1, good))
    await world.settled()
    bad, fine = partitions_of(client)
    assert (bad.error, fine.error) == (ErrorCode.INVALID_RECORD, 0), bad.message
    assert world.stored() == [] and len(world.stored(1)) == len(VALUES)


@simulated
async def test_an_uncompressed_batch_whose_first_record_is_nonsense_is_refused() -> None:
    world = await World.start(ALONE)
    client = world.send((0, of_nonsense(batch(*VALUES))))
    assert partitions_of(client)[0].error == ErrorCode.INVALID_RECORD
    assert "first record" in partitions_of(client)[0].message


@simulated
async def test_records_of_compacted_topics_have_keys() -> None:
    world = await World.start(ALONE, log_cleanup_policy="compact")
    for codec in (Compression.NONE, Compression.ZSTD):
        data = encode_batch([b"a", b"b"], keys=[b"k", None], timestamps_ms=1, compression=codec)
        answer = partitions_of(world.send((0, data)))[0]
        assert answer.error == ErrorCode.INVALID_RECORD and "no key" in answer.message
        assert partitions_of(world.send((0, data[:70])))[0].error == ErrorCode.CORRUPT_MESSAGE
    keyed = encode_batch([b"a", None], keys=[b"k", b"l"], timestamps_ms=1)
    assert partitions_of(world.send((0, keyed)))[0].error == 0


@simulated
async def test_what_is_long_is_checked_off_the_loop_and_keeps_its_place() -> None:
    world = await World.start(ALONE, log_cleanup_policy="compact")
    many = encode_batch([None] * 5_000, keys=[b"k"] * 5_000, timestamps_ms=1, compression=Compression.ZSTD)
    few = encode_batch([b"v"], keys=[b"k"], timestamps_ms=1, compression=Compression.ZSTD)
    first, second = world.send((0, many)), world.send((0, few))
    assert first.replies == second.replies == [], "the second waits for its turn"
    assert partitions_of(world.send((1, few)))[0].error == 0, "what is short is checked at once"
    await world.settled()
    assert [partitions_of(client)[0].base_offset for client in (first, second)] == [0, 5_000]


@simulated
async def test_the_batches_of_a_client_that_has_gone_are_dropped() -> None:
    world = await World.start(ALONE, compression_type="gzip")
    gone, forgetful = world.send((0, batch(b"a"))), world.send((0, batch(b"b")), acks=0)
    gone.disconnect()
    forgetful.disconnect()
    await world.settled()
    assert [value for _, value in world.stored()] == [b"b"], "who asks for no answer may go"


@simulated
async def test_what_is_checked_at_once_is_bounded_for_all_clients_together() -> None:
    """Else each connection has its 64 requests of some milliseconds checked before the loop looks at anything else."""
    world = await World.start(ALONE)
    packed = batch(*[b"x"] * MAX_RECORDS_AT_ONCE, compression=Compression.ZSTD)
    clients = [world.send((0, packed)) for _ in range(2 * MAX_RECORDS_A_PASS // MAX_RECORDS_AT_ONCE)]
    at_once = [bool(client.replies) for client in clients]
    assert at_once == sorted(at_once, reverse=True) and 0 < sum(at_once) <= MAX_RECORDS_A_PASS // MAX_RECORDS_AT_ONCE
    await world.settled()
    assert [partitions_of(client)[0].base_offset for client in clients] == [
        number * MAX_RECORDS_AT_ONCE for number in range(len(clients))
    ]
    assert world.send((0, packed)).replies, "a new pass"


@simulated
async def test_a_check_that_fails_by_a_bug_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    """Without an answer a client of Kafka's gets none to whatever it sends later, either."""
    world = await World.start(ALONE)
    looks = 0

    def config_of(partition: TopicPartition) -> ReplicatedLogConfig:
        nonlocal looks
        looks += 1
        if looks > 1:
            raise MemoryError
        found = world.services.replication.manager.find(partition)
        assert found is not None
        return found.log.config

    handler = Preparing(config_of, world.services.memory, world.services.verification)
    found: list[Refused] = []
    records = batch(b"x" * 100_000, compression=Compression.GZIP) + batch(b"x" * 100_000)
    request = ProduceRequest(
        acks=1, timeout_ms=1, partitions=(ProducePartition(topic="t", partition=0, records=records),)
    )
    client = Client()
    assert handler.at_once(request, client.connection) is None
    handler.later(request, client, lambda _, refused: found.append(refused))  # type: ignore[arg-type]
    await asyncio.wait(list(handler.tasks))
    assert found[0][0].code == ErrorCode.UNKNOWN_SERVER_ERROR and "MemoryError" in caplog.text
    await asyncio.sleep(0)
    assert world.services.memory.used_bytes == 0


@simulated
async def test_what_waits_is_a_copy_of_the_receive_buffer() -> None:
    world = await World.start(ALONE, compression_type="gzip")
    received = bytearray(batch(b"a", b"b"))
    client = world.send((0, memoryview(received)))  # type: ignore[arg-type]
    received[:] = bytes(len(received))  # the next request of any connection
    await world.settled()
    assert partitions_of(client)[0].error == 0
    assert [value for _, value in world.stored()] == [b"a", b"b"]


@simulated
async def test_the_threads_take_one_request_of_each_connection_in_turn() -> None:
    world = await World.start(ALONE, compression_type="gzip")
    await asyncio.sleep(1)  # until nothing else is in a thread
    loop = asyncio.get_running_loop()
    begun: list[tuple[Any, asyncio.Future[Any]]] = []

    def begin(_: object, work: Any) -> "asyncio.Future[Any]":
        begun.append((work, loop.create_future()))
        return begun[-1][1]

    loop.run_in_executor = begin  # type: ignore[method-assign, assignment]  # threads that end when the test says so
    busy, modest = object(), object()
    for connection in (busy, busy, modest, busy, busy, busy):
        world.send(
            (1 if connection is modest else 0, batch(b"b" if connection is modest else b"a")), connection=connection
        )
    await asyncio.sleep(0.01)
    assert len(begun) == preparing.MAX_THREADS
    for work, ended in begun:  # grows meanwhile
        ended.set_result(work())
        await asyncio.sleep(0.01)
    assert [bytes(work.__self__.records) == batch(b"b") for work, _ in begun] == [False] * 2 + [True] + [False] * 3
    await world.settled()


async def test_a_request_whose_preparation_fails_by_a_bug_is_answered() -> None:
    """It was never answered, and with it none of those behind it on a connection of Kafka's protocol."""

    def fails(topic_partition: TopicPartition) -> None:
        raise MemoryError

    async def never(request: AddToTransactionRequest) -> AddToTransactionResponse:
        raise AssertionError("there is no transactional batch")

    made = preparing.Preparing(fails, MemoryBudget(), TransactionVerification(find=lambda _: None, ask=never))
    client, served = Client(), list[preparing.Refused]()
    client.connection = client
    item = ProducePartition(topic="t", partition=0, records=batch(b"a"))
    request = ProduceRequest(acks=1, timeout_ms=1_000, partitions=(item,))
    made.later(request, client, lambda _, refused: served.append(refused))  # type: ignore[arg-type]
    await asyncio.wait(list(made.tasks))
    (refused,) = served
    assert refused[0].code == ErrorCode.UNKNOWN_SERVER_ERROR


VERY_MANY = 2 * MAX_APPENDED_AT_ONCE + 1


class Passes(World):
    """Counts the batches that are appended in each pass of the loop: no clock is asked."""

    async def until_over(self, *clients: Client) -> list[int]:
        counts, append = [0], self.replication.append

        def counted(*arguments: Any, **more: Any) -> Any:
            counts[-1] += 1
            return append(*arguments, **more)

        self.replication.append = counted  # type: ignore[method-assign]
        while not all(client.replies or client.wants_no_reply or client.is_hung_up for client in clients):
            counts.append(0)
            await asyncio.sleep(0)
        return counts


@simulated
@pytest.mark.parametrize("acks", [1, -1])
async def test_a_request_with_very_many_batches_lets_the_loop_run_in_between(acks: int) -> None:
    """20,000 batches of one record held it for 382 ms."""
    world = await Passes.start(topic("t", *(partition(0, replicas=(0,)) for _ in range(VERY_MANY))))
    await turns(VERY_MANY)  # the logs are made in slices
    client = world.send(*((number, batch(b"a")) for number in range(VERY_MANY)), acks=acks)
    behind = world.send((VERY_MANY - 1, batch(b"b")))  # of the same connection
    assert not client.replies and not behind.replies
    counts = await world.until_over(client, behind)
    assert max(counts) <= MAX_APPENDED_AT_ONCE and sum(counts) == VERY_MANY + 1
    assert [(item.partition, item.base_offset) for item in partitions_of(client)] == [(n, 0) for n in range(VERY_MANY)]
    assert partitions_of(behind)[0].base_offset == 1
    await turns()
    assert world.services.memory.used_bytes == 0


@simulated
async def test_a_partition_that_a_long_request_names_again_is_written_once() -> None:
    """Also where the two are in different parts. With acks=all, as in a short request."""
    world = await Passes.start(topic("t", *(partition(0, replicas=(0,)) for _ in range(VERY_MANY))))
    await turns(VERY_MANY)
    client = world.send(*((number, batch(b"a")) for number in (*range(VERY_MANY), 0)), acks=-1)
    await world.until_over(client)
    await turns()
    first, last = partitions_of(client)[0], partitions_of(client)[-1]
    assert (first.error, first.base_offset) == (0, 0)
    assert (last.partition, last.error) == (0, ErrorCode.INVALID_TOPIC_EXCEPTION) and "appears twice" in (
        last.message or ""
    )
    again = world.send((0, batch(b"b")))
    await world.until_over(again)
    assert partitions_of(again)[0].base_offset == 1, "the second batch was not written"


@simulated
@pytest.mark.parametrize("broken", [None, 0, VERY_MANY - 1])
async def test_without_answers_any_part_that_fails_ends_the_connection(broken: int | None) -> None:
    world = await Passes.start(ALONE)
    client = world.send(*((0, b"no batch" if number == broken else batch(b"a")) for number in range(VERY_MANY)), acks=0)
    await world.until_over(client)
    await world.settled()
    assert (client.is_hung_up, client.wants_no_reply) == (broken is not None, broken is None)
    assert len(world.stored()) == VERY_MANY - (broken is not None)


@simulated
async def test_a_long_request_is_taken_as_a_whole_or_not_at_all() -> None:
    """Its parts are not greedy because of each other."""
    world = await World.start(ALONE)
    records = batch(b"x" * 20_000)
    assert len(records) * VERY_MANY > preparing.MAX_PENDING_BYTES_OF_ONE
    whole = world.send(*((0, records) for _ in range(VERY_MANY)))
    refused = world.send(*((0, records) for _ in range(VERY_MANY)))
    assert {item.error for item in partitions_of(refused)} == {ErrorCode.REQUEST_TIMED_OUT}
    await world.settled()
    assert {item.error for item in partitions_of(whole)} == {0} and len(partitions_of(whole)) == VERY_MANY


@simulated
async def test_very_many_empty_batches_are_refused_each(caplog: pytest.LogCaptureFixture) -> None:
    world = await World.start(ALONE)
    client = world.send(*((0, b"") for _ in range(VERY_MANY)))
    await world.settled()
    await turns()
    assert {item.error for item in partitions_of(client)} == {ErrorCode.INVALID_RECORD}
    assert not caplog.records
