"""compression.type of a topic: what is stored, in which order, and what of it is refused."""

import asyncio
from itertools import product
from typing import Any

import pytest
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.shell_world import Client, partition, simulated, topic

from barnabas.log.compression import Compression
from barnabas.log.errors import CorruptRecordError, ErrorCode
from barnabas.log.recompression import codec_named, recompressed
from barnabas.log.record_batch import check_crc, read_header
from barnabas.log.record_codec import ProducerFields, encode_batch, iter_records
from barnabas.net.handlers import recompressing
from barnabas.net.handlers.produce import ProduceHandler
from barnabas.net.protocol.requests import KafkaProduceRequest, ProducePartition, ProduceRequest
from barnabas.net.protocol.responses import ProducePartitionResponse, ProduceResponse

ALONE = topic("t", partition(0, replicas=(0,)), partition(0, replicas=(0,)))
VALUES = [b"value %d " % number * 20 for number in range(50)]


@pytest.mark.parametrize(("made", "wanted"), list(product(Compression, Compression)))
def test_only_the_codec_changes(made: Compression, wanted: Compression) -> None:
    fields = ProducerFields(producer_id=7, producer_epoch=2, base_sequence=9)
    batch = encode_batch(VALUES, timestamps_ms=list(range(50)), compression=made, producer=fields)
    other = recompressed(batch + batch, wanted)
    header = read_header(other)
    check_crc(other, header)
    assert (header.compression, header.size_bytes * 2) == (wanted, len(other))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 9)
    assert list(iter_records(other)) == list(iter_records(batch))


def test_what_is_damaged_or_too_large_is_refused() -> None:
    batch = bytearray(encode_batch(VALUES, timestamps_ms=1, compression=Compression.GZIP))
    with pytest.raises(CorruptRecordError, match="more than 100 bytes"):
        recompressed(batch, Compression.ZSTD, max_bytes=100)
    batch[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="CRC"):
        recompressed(batch, Compression.ZSTD)
    assert codec_named("uncompressed") is Compression.NONE


class World(HandlerWorld):
    def handler(self) -> ProduceHandler:
        self.made = getattr(self, "made", None) or ProduceHandler(self.services)
        return self.made

    def send(self, *items: tuple[int, bytes], version: int = -1, acks: int = 1) -> Client:
        client = Client()
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
    clients = [world.send((0, large)) for _ in range(recompressing.MAX_PENDING_BYTES // len(large) + 1)]
    assert partitions_of(clients[-1])[0].error == ErrorCode.REQUEST_TIMED_OUT
    assert all(client.replies == [] for client in clients[:-1])
    for task in world.handler().tasks:
        task.cancel()


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
