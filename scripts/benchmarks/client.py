"""One role of a Barnabas client in a process of its own: `python client.py ROLE --bootstrap A --topic T ...`.

It prints its metrics as one line of JSON. The interpreter is as users have it: asyncio's own loop, default collector.
"""

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from measure import Metrics, Work, percentiles, records

import barnabas
import barnabas.sync
from barnabas import Consumer, Producer, TopicPartition
from barnabas.log.format.record_codec import encode_batch
from barnabas.net.wire.protocol.requests import FetchPartition, FetchRequest, ProducePartition, ProduceRequest
from barnabas.net.wire.rpc import RpcConnection
from barnabas.net.wire.tcp import TcpNetwork

MANY = 5_000  # records of one send_many
TABLE_ROWS = 100_000
IN_TRANSACTION = 100  # records
RAW_SECONDS = 1.0
Options = argparse.Namespace


async def produce(options: Options) -> Metrics:
    values = records(options.count, options.size)
    topic = options.topic
    idempotence = False if options.idempotence == "off" else None
    async with Producer(options.bootstrap, acks=options.acks, enable_idempotence=idempotence) as producer:
        await producer.prepare(topic)
        await (await producer.send(topic, values[0], key=b"user" if options.api == "send_key" else None))
        tables = _tables(values) if options.api == "send_table" else []
        if tables:  # As with the other ways: the first record, which imports and connects, is not measured.
            await (await producer.send_table(topic, tables[0].slice(0, 1)))
        with Work(options.servers) as work:
            if options.api == "send":
                for value in values:
                    await producer.send(topic, value)
            elif options.api == "send_key":
                keys = [b"user%04d" % number for number in range(997)]
                for number, value in enumerate(values):
                    await producer.send(topic, value, key=keys[number % 997])
            elif options.api == "send_table":
                for table in tables:
                    await producer.send_table(topic, table)
            else:
                for start in range(0, len(values), MANY):
                    await producer.send_many(topic, values[start : start + MANY])
            await producer.flush()
    return work.metrics(len(values), options.size)


def _tables(values: list[bytes]) -> list[Any]:
    import pyarrow

    return [
        pyarrow.table({"value": pyarrow.array(values[start : start + TABLE_ROWS], pyarrow.binary())})
        for start in range(0, len(values), TABLE_ROWS)
    ]


def sync_send(options: Options) -> Metrics:
    """`send` in a plain loop, without asyncio."""
    values = records(options.count, options.size)
    with barnabas.sync.Producer(options.bootstrap, acks=options.acks) as producer:
        producer.send(options.topic, values[0]).result()
        with Work(options.servers) as work:
            send, topic = producer.send, options.topic
            for value in values:
                send(topic, value)
            producer.flush()
    return work.metrics(len(values), options.size)


async def consume(options: Options) -> Metrics:
    """The first `count` records of the topic, with a look at each value."""
    if options.api == "poll_arrow":
        import pyarrow  # noqa: F401 - its import is not a cost of the records
    async with Consumer(bootstrap=options.bootstrap) as consumer:
        consumer.assign([TopicPartition(options.topic, number) for number in range(options.partitions)])
        await consumer.seek_to_start()
        with Work(options.servers) as work:
            read, read_bytes = await CONSUMING[options.api](consumer, options.count)
    return work.metrics(read, read_bytes // max(read, 1))


async def _poll(consumer: Consumer, count: int) -> tuple[int, int]:
    read = read_bytes = 0
    while read < count:
        for found in (await consumer.poll()).values():
            read += len(found)
            for record in found:
                read_bytes += len(record.value or b"")
    return read, read_bytes


async def _poll_batch(consumer: Consumer, count: int) -> tuple[int, int]:
    read = read_bytes = 0
    while read < count:
        columns = await consumer.poll_batch()
        if columns is not None:
            read += len(columns)
            read_bytes += sum(map(len, columns.values))  # type: ignore[arg-type]
    return read, read_bytes


async def _poll_arrow(consumer: Consumer, count: int) -> tuple[int, int]:
    read = read_bytes = 0
    while read < count:
        table = await consumer.poll_arrow()
        read += table.num_rows
        read_bytes += table.column("value").nbytes
    return read, read_bytes


async def _iterate(consumer: Consumer, count: int) -> tuple[int, int]:
    read = read_bytes = 0
    async for record in consumer:
        read += 1
        read_bytes += len(record.value or b"")
        if read == count:
            break
    return read, read_bytes


CONSUMING: dict[str, Callable[[Consumer, int], Coroutine[Any, Any, tuple[int, int]]]] = {
    "poll": _poll,
    "poll_batch": _poll_batch,
    "poll_arrow": _poll_arrow,
    "iterate": _iterate,
}


def read_table(options: Options) -> Metrics:
    """The first `count` records of each partition by `read_table`. `api`: as one table, as a stream of batches that are dropped,
    or as such a stream with the values alone."""
    columns = ["value"] if options.api == "values" else None
    barnabas.read_table(options.topic, end=1, bootstrap=options.bootstrap)  # The imports are not measured.
    with Work(options.servers) as work:
        if options.api == "table":
            table = barnabas.read_table(options.topic, end=options.count, bootstrap=options.bootstrap)
            read, read_bytes = table.num_rows, table.column("value").nbytes
        else:
            read = read_bytes = 0
            for batch in barnabas.read_table(
                options.topic, end=options.count, columns=columns, stream=True, bootstrap=options.bootstrap
            ):
                read += batch.num_rows
                read_bytes += batch.column("value").nbytes
    return work.metrics(read, read_bytes // max(read, 1))


async def one_at_a_time(options: Options) -> Metrics:
    """send, then await the acknowledgement, then the next."""
    value = records(1, options.size)[0]
    taken = []
    async with Producer(options.bootstrap, acks=options.acks) as producer:
        await producer.prepare(options.topic)
        for _ in range(options.count):
            began = time.perf_counter()
            await (await producer.send(options.topic, value))
            taken.append(time.perf_counter() - began)
    return percentiles(taken)


async def end_to_end(options: Options) -> Metrics:
    """From `send` until a consumer that waits in `poll` has the record, both in this process."""
    value = records(1, options.size)[0]
    taken = []
    async with (
        Producer(options.bootstrap, acks=options.acks) as producer,
        Consumer(bootstrap=options.bootstrap) as reader,
    ):
        await producer.prepare(options.topic)
        await (await producer.send(options.topic, value))
        reader.assign([TopicPartition(options.topic, 0)])
        await reader.seek_to_end()
        for _ in range(options.count):
            began = time.perf_counter()
            await producer.send(options.topic, value, partition=0)
            while not await reader.poll(timeout_ms=1000):
                pass
            taken.append(time.perf_counter() - began)
    return percentiles(taken)


async def transactions(options: Options) -> Metrics:
    """`count` times IN_TRANSACTION records and their commit; `api` plain: without transactions, until all are acknowledged.

    `depth` producers share the work. The latency is that of the commit alone, or of the wait for the acknowledgements.
    """
    values = records(IN_TRANSACTION, options.size)
    is_plain = options.api == "plain"
    taken: list[float] = []

    async def lane(number: int) -> None:
        name = None if is_plain else f"{options.topic}-{number}"
        async with Producer(options.bootstrap, transactional_id=name) as producer:
            for _ in range(3):
                await _send_together(producer, options.topic, values, is_plain=is_plain)
            await started.wait()
            taken.extend(
                [
                    await _send_together(producer, options.topic, values, is_plain=is_plain)
                    for _ in range(options.count // options.depth)
                ]
            )

    started = asyncio.Barrier(options.depth + 1)
    lanes = [asyncio.create_task(lane(number)) for number in range(options.depth)]
    await started.wait()
    with Work(options.servers) as work:
        await asyncio.gather(*lanes)
    return work.metrics(len(taken) * IN_TRANSACTION, options.size) | percentiles(taken)


async def _send_together(producer: Producer, topic: str, values: list[bytes], *, is_plain: bool) -> float:
    """Returns how long the end took."""
    if is_plain:
        for value in values:
            await producer.send(topic, value)
        began = time.perf_counter()
        await producer.flush()
        return time.perf_counter() - began
    transaction = producer.transaction()
    await transaction.begin()
    for value in values:
        await transaction.send(topic, value)
    began = time.perf_counter()
    await transaction.commit()
    return time.perf_counter() - began


async def _leader(options: Options) -> RpcConnection:
    """A connection without an SDK round it, to the leader of partition 0."""
    async with Producer(options.bootstrap) as producer:
        await producer.prepare(options.topic)
        metadata = producer._client.metadata
        broker = metadata.brokers[metadata.leader(TopicPartition(options.topic, 0)).node_id]
    return await RpcConnection.open(TcpNetwork(), broker.host, broker.port, client_id="benchmark")


async def raw_produce(options: Options) -> Metrics:
    """Batches that were encoded before, `depth` requests in flight: what the broker itself can take."""
    connection = await _leader(options)
    batch = encode_batch(records(max(1, options.size // 110), 100), timestamps_ms=int(time.time() * 1000))
    acks = {"0": 0, "1": 1, "all": -1}[options.acks]
    request = ProduceRequest(
        acks=acks, timeout_ms=30_000, partitions=(ProducePartition(topic=options.topic, partition=0, records=batch),)
    )
    done = 0
    taken: list[float] = []
    began = time.perf_counter()

    async def lane() -> None:
        nonlocal done
        while time.perf_counter() - began < RAW_SECONDS:
            sent = time.perf_counter()
            await connection.call(request, timeout_ms=30_000)
            taken.append(time.perf_counter() - sent)
            done += 1

    await asyncio.gather(*(lane() for _ in range(options.depth)))
    seconds = time.perf_counter() - began
    await connection.close()
    return {"MB/s": done * len(batch) / seconds / 1e6, "req/s": done / seconds, **percentiles(taken)}


async def raw_fetch(options: Options) -> Metrics:
    """Two fetches in flight, nothing is decoded."""
    connection = await _leader(options)
    read_bytes = 0
    began = time.perf_counter()

    async def lane() -> None:
        nonlocal read_bytes
        while time.perf_counter() - began < RAW_SECONDS:
            response = await connection.call(
                FetchRequest(
                    max_wait_ms=0,
                    min_bytes=1,
                    max_bytes=options.size,
                    partitions=(
                        FetchPartition(
                            topic=options.topic,
                            partition=0,
                            fetch_offset=0,
                            max_bytes=options.size,
                            current_leader_epoch=-1,
                        ),
                    ),
                ),
                timeout_ms=30_000,
            )
            read_bytes += len(response.partitions[0].records)

    await asyncio.gather(*(lane() for _ in range(options.depth)))
    seconds = time.perf_counter() - began
    await connection.close()
    return {"MB/s": read_bytes / seconds / 1e6}


ROLES: dict[str, Callable[[Options], Metrics | Coroutine[Any, Any, Metrics]]] = {
    "produce": produce,
    "sync-send": sync_send,
    "consume": consume,
    "read-table": read_table,
    "one-at-a-time": one_at_a_time,
    "end-to-end": end_to_end,
    "transactions": transactions,
    "raw-produce": raw_produce,
    "raw-fetch": raw_fetch,
}


def parser(roles: Iterable[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=roles)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--api", default="send")
    parser.add_argument("--acks", default="1")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--idempotence", choices=("on", "off"), default="on", help="with acks=all")
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument(
        "--servers",
        type=lambda text: [int(pid) for pid in text.split(",") if pid],
        default=[],
        help="ids of processes whose CPU time is counted too",
    )
    return parser


def main() -> None:
    options = parser(ROLES).parse_args()
    if options.acks in ("0", "1"):
        acks_role = options.role in ("produce", "one-at-a-time", "end-to-end")
        options.acks = int(options.acks) if acks_role else options.acks
    gc.collect()

    outcome = ROLES[options.role](options)
    print(json.dumps(outcome if isinstance(outcome, dict) else asyncio.run(outcome)))


if __name__ == "__main__":
    main()
