"""What the SDK costs: producer and consumer against a broker in memory, in a process of its own, over loopback.

    python tests/performance/sdk_load.py [send|nowait|keyed|many|latency|poll|batch|iterate ...] [-n RECORDS] [-b BYTES]

Prints one line per measurement: records a second of wall time, and CPU nanoseconds of the client per record.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from unit.net.client.fake_cluster import FakeCluster

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer

ACTIONS = ("send", "nowait", "keyed", "many", "latency", "poll", "batch", "iterate")


def serve(ready: Any) -> None:
    from barnabas.net.server.dispatcher import Dispatcher
    from barnabas.net.server.server import Server
    from barnabas.net.wire.protocol.api_keys import ApiKey
    from barnabas.net.wire.tcp import TcpNetwork

    async def main() -> None:
        cluster = FakeCluster(topics={"sink": 1, "spread": 8, "source": 1})
        cluster.keep_requests = False
        for partition, log in cluster.logs.items():
            log.keep = partition.topic == "source"

        def handler(request: Any, context: Any, reply: Any) -> None:
            found = cluster.answer(0, request)
            if asyncio.iscoroutine(found):
                asyncio.ensure_future(found).add_done_callback(lambda task: reply(task.result()))
            else:
                reply(found)

        server = Server(TcpNetwork(), Dispatcher(dict.fromkeys(ApiKey, handler)))
        host, port = await server.start("127.0.0.1", 0)
        cluster.nodes[0] = (host, port)
        ready.put(port)
        await asyncio.Event().wait()

    asyncio.run(main())


async def produce(port: int, action: str, count: int, size: int) -> int:
    value = bytes(size)
    values = [value] * count
    keys = [b"user-%d" % (number % 997) for number in range(count)]
    async with Producer(f"127.0.0.1:{port}", acks=1) as producer:
        await producer.prepare("sink")
        await producer.prepare("spread")
        with Timer(action, count):
            if action == "send":
                for item in values:
                    await producer.send("sink", item)
            elif action == "nowait":
                for number, item in enumerate(values):
                    producer.send_nowait("sink", item)
                    if not number % 5000:
                        await producer.flush()
            elif action == "keyed":
                for item, key in zip(values, keys, strict=True):
                    await producer.send("spread", item, key=key)
            elif action == "many":
                for start in range(0, count, 5000):
                    await producer.send_many("sink", values[start : start + 5000])
            await producer.flush()
    return count


async def latency(port: int, count: int, size: int) -> None:
    samples = []
    async with Producer(f"127.0.0.1:{port}") as producer:
        for _ in range(count):
            begin = time.perf_counter()
            await (await producer.send("sink", bytes(size)))
            samples.append((time.perf_counter() - begin) * 1e6)
    samples.sort()
    print(f"latency  p50 {statistics.median(samples):.0f} us  p99 {samples[len(samples) * 99 // 100]:.0f} us")


async def fill(port: int, count: int, size: int) -> None:
    async with Producer(f"127.0.0.1:{port}", acks=1) as producer:
        for start in range(0, count, 5000):
            await producer.send_many("source", [bytes(size)] * min(5000, count - start))


async def consume(port: int, action: str, count: int) -> None:
    async with Consumer(bootstrap=f"127.0.0.1:{port}", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("source", 0)])
        seen = size = 0
        with Timer(action, count):
            if action == "iterate":
                async for record in consumer:
                    seen += 1
                    size += len(record.value)
                    if seen == count:
                        break
            while seen < count and action == "poll":
                for records in (await consumer.poll()).values():
                    seen += len(records)
                    for record in records:
                        size += len(record.value)
            while seen < count and action == "batch":
                columns = await consumer.poll_batch()
                seen += len(columns or ())


class Timer:
    def __init__(self, name: str, count: int) -> None:
        self.name, self.count = name, count

    def __enter__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def __exit__(self, *error: object) -> None:
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        print(f"{self.name:8} {self.count / wall / 1e6:6.2f} M/s  {cpu / self.count * 1e9:6.0f} ns/record", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("actions", nargs="*", default=list(ACTIONS))
    parser.add_argument("-n", type=int, default=1_000_000)
    parser.add_argument("-b", type=int, default=100)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    broker = context.Process(target=serve, args=(ready,), daemon=True)
    broker.start()
    port = ready.get()
    filled = False
    for action in arguments.actions:
        if action == "latency":
            asyncio.run(latency(port, 5000, arguments.b))
        elif action in ("poll", "batch", "iterate"):
            if not filled:
                asyncio.run(fill(port, arguments.n, arguments.b))
                filled = True
            asyncio.run(consume(port, action, arguments.n))
        else:
            asyncio.run(produce(port, action, arguments.n, arguments.b))
    broker.kill()


if __name__ == "__main__":
    main()
