"""One role of a Barnabas client in a process of its own: `python client.py ROLE --bootstrap A --topic T ...`.

It prints its metrics as one line of JSON. The interpreter is as users have it: asyncio's own loop, default collector.
"""

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Awaitable, Callable

from measure import Metrics, percentiles, records

from barnabas import Consumer, Producer, TopicPartition
from barnabas.log.format.record_codec import encode_batch
from barnabas.net.protocol.requests import FetchPartition, FetchRequest, ProducePartition, ProduceRequest
from barnabas.net.wire.rpc import RpcConnection
from barnabas.net.wire.tcp import TcpNetwork

MANY = 5_000  # records of one send_many
RAW_SECONDS = 1.0
Options = argparse.Namespace


async def produce(options: Options) -> Metrics:
    values = records(options.count, options.size)
    topic = options.topic
    idempotence = False if options.idempotence == "off" else None
    async with Producer(options.bootstrap, acks=options.acks, enable_idempotence=idempotence) as producer:
        await producer.prepare(topic)
        await (await producer.send(topic, values[0], key=b"user" if options.api == "send_key" else None))
        began, cpu = time.perf_counter(), time.process_time()
        if options.api == "send":
            for value in values:
                await producer.send(topic, value)
        elif options.api == "send_key":
            keys = (b"user%04d" % (number % 997) for number in range(len(values)))
            for value, key in zip(values, keys, strict=True):
                await producer.send(topic, value, key=key)
        else:
            for start in range(0, len(values), MANY):
                await producer.send_many(topic, values[start : start + MANY])
        await producer.flush()
        return _rate(len(values), options.size, began, cpu)


def _rate(count: int, size_bytes: int, began: float, cpu: float) -> Metrics:
    seconds = time.perf_counter() - began
    return {
        "msg/s": count / seconds,
        "MB/s": count * size_bytes / seconds / 1e6,
        "client_ns": (time.process_time() - cpu) / count * 1e9,
    }


async def consume(options: Options) -> Metrics:
    async with Consumer(bootstrap=options.bootstrap) as consumer:
        consumer.assign([TopicPartition(options.topic, number) for number in range(options.partitions)])
        await consumer.seek_to_start()
        read = read_bytes = 0
        began, cpu = time.perf_counter(), time.process_time()
        if options.api == "poll":
            while read < options.count:
                for found in (await consumer.poll()).values():
                    read += len(found)
                    for record in found:
                        read_bytes += len(record.value or b"")
        elif options.api == "poll_batch":
            while read < options.count:
                columns = await consumer.poll_batch()
                if columns is not None:
                    read += len(columns)
                    read_bytes += sum(map(len, columns.values))  # type: ignore[arg-type]
        else:
            async for record in consumer:
                read += 1
                read_bytes += len(record.value or b"")
                if read == options.count:
                    break
        return _rate(read, read_bytes // max(read, 1), began, cpu)


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


ROLES: dict[str, Callable[[Options], Awaitable[Metrics]]] = {
    "produce": produce,
    "consume": consume,
    "one-at-a-time": one_at_a_time,
    "end-to-end": end_to_end,
    "raw-produce": raw_produce,
    "raw-fetch": raw_fetch,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--api", default="send")
    parser.add_argument("--acks", default="1")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--idempotence", choices=("on", "off"), default="on", help="with acks=all")
    parser.add_argument("--depth", type=int, default=5)
    options = parser.parse_args()
    if options.acks in ("0", "1"):
        acks_role = options.role in ("produce", "one-at-a-time", "end-to-end")
        options.acks = int(options.acks) if acks_role else options.acks
    gc.collect()

    async def run() -> Metrics:
        return await ROLES[options.role](options)

    print(json.dumps(asyncio.run(run())))


if __name__ == "__main__":
    main()
