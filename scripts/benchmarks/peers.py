"""Other systems with their Python clients, where they are installed. `python peers.py ROLE ADDRESS COUNT SIZE`.

confluent-kafka's producer and aiokafka's work against librdkafka's own mock cluster, which keeps everything in memory:
what is compared is the client. Redis and NATS are real servers that write to disk without a flush per message.
"""

import asyncio
import contextlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from measure import Metrics, Skipped, child, percentiles, process, records
from sketches import wait_for

from barnabas.net.base.local.ports import free_ports

HERE = Path(__file__)
MOCK_LIFE_S = 600.0
PIPELINE = 1_000


def _rate(count: int, size: int, began: float) -> Metrics:
    seconds = time.perf_counter() - began
    return {"msg/s": count / seconds, "MB/s": count * size / seconds / 1e6}


# --- roles, each in a process of its own -----------------------------------------------------------------------------


def kafka_mock(address: str, count: int, size: int) -> Metrics:
    """Holds the mock; prints where it listens; ends by a signal or by its age."""
    from confluent_kafka import Producer

    producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 3})
    broker = next(iter(producer.list_topics(timeout=10).brokers.values()))
    print(f"{broker.host}:{broker.port}", flush=True)
    deadline = time.monotonic() + MOCK_LIFE_S
    while time.monotonic() < deadline:
        producer.poll(1)
    return {}


def confluent_produce(address: str, count: int, size: int) -> Metrics:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": address,
            "acks": "1",
            "linger.ms": 5,
            "batch.size": 65_536,
            "queue.buffering.max.messages": 500_000,
        }
    )
    producer.list_topics("bench", timeout=10)
    values = records(count, size)
    began = time.perf_counter()
    produce, poll = producer.produce, producer.poll
    for value in values:
        while True:
            try:
                produce("bench", value)
                break
            except BufferError:
                poll(0.01)
    producer.flush()
    return _rate(count, size, began)


async def aiokafka_produce(address: str, count: int, size: int) -> Metrics:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(bootstrap_servers=address, acks=1, linger_ms=5, max_batch_size=65_536)
    await producer.start()
    values = records(count, size)
    began = time.perf_counter()
    for value in values:
        await producer.send("bench", value)
    await producer.flush()
    found = _rate(count, size, began)
    await producer.stop()
    return found


def redis_produce(address: str, count: int, size: int) -> Metrics:
    client = _redis(address)
    values = records(count, size)
    began = time.perf_counter()
    for start in range(0, count, PIPELINE):
        pipeline = client.pipeline(transaction=False)
        for value in values[start : start + PIPELINE]:
            pipeline.xadd("bench", {"v": value})
        pipeline.execute()
    return _rate(count, size, began)


def redis_consume(address: str, count: int, size: int) -> Metrics:
    client = _redis(address)
    redis_produce(address, count, size)
    last, read = "0-0", 0
    began = time.perf_counter()
    while read < count:
        for _, entries in client.xread({"bench": last}, count=PIPELINE):
            read += len(entries)
            last = entries[-1][0]
    return _rate(count, size, began)


def redis_one_at_a_time(address: str, count: int, size: int) -> Metrics:
    client = _redis(address)
    value = records(1, size)[0]
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        client.xadd("bench", {"v": value})
        taken.append(time.perf_counter() - began)
    return percentiles(taken)


def _redis(address: str):  # type: ignore[no-untyped-def]
    import redis

    host, _, port = address.partition(":")
    client = redis.Redis(host, int(port))
    client.delete("bench")
    return client


@contextlib.asynccontextmanager
async def _jetstream(address: str):  # type: ignore[no-untyped-def]
    import nats
    from nats.js.api import StorageType, StreamConfig

    connection = await nats.connect(f"nats://{address}")
    stream = connection.jetstream(publish_async_max_pending=4000, timeout=60)
    with contextlib.suppress(nats.js.errors.NotFoundError):
        await stream.delete_stream("bench")
    await stream.add_stream(StreamConfig(name="bench", subjects=["bench.>"], storage=StorageType.FILE))
    try:
        yield stream
    finally:
        await connection.close()


async def nats_produce(address: str, count: int, size: int) -> Metrics:
    values = records(count, size)
    async with _jetstream(address) as stream:
        began = time.perf_counter()
        for value in values:
            await stream.publish_async("bench.x", value)
        await stream.publish_async_completed()
        return _rate(count, size, began)


async def nats_consume(address: str, count: int, size: int) -> Metrics:
    """An ordered push consumer, the fastest that nats-py has."""
    async with _jetstream(address) as stream:
        for value in records(count, size):
            await stream.publish_async("bench.x", value)
        await stream.publish_async_completed()
        read = 0
        done = asyncio.get_running_loop().create_future()

        async def take(_: object) -> None:
            nonlocal read
            read += 1
            if read == count:
                done.set_result(None)

        began = time.perf_counter()
        await stream.subscribe("bench.x", ordered_consumer=True, cb=take)
        await done
        return _rate(count, size, began)


async def nats_one_at_a_time(address: str, count: int, size: int) -> Metrics:
    value = records(1, size)[0]
    taken = []
    async with _jetstream(address) as stream:
        for _ in range(count):
            began = time.perf_counter()
            await stream.publish("bench.x", value)
            taken.append(time.perf_counter() - began)
    return percentiles(taken)


ROLES: dict[str, Callable[[str, int, int], Metrics | Awaitable[Metrics]]] = {
    "kafka-mock": kafka_mock,
    "confluent-produce": confluent_produce,
    "aiokafka-produce": aiokafka_produce,
    "redis-produce": redis_produce,
    "redis-consume": redis_consume,
    "redis-one-at-a-time": redis_one_at_a_time,
    "nats-produce": nats_produce,
    "nats-consume": nats_consume,
    "nats-one-at-a-time": nats_one_at_a_time,
}

# --- servers, for the time of one sample -----------------------------------------------------------------------------


def against_mock(role: str, count: int, size: int) -> Metrics:
    _need(module="confluent_kafka", cure="pip install confluent-kafka")
    mock = subprocess.Popen([sys.executable, str(HERE), "kafka-mock", "", "0", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert mock.stdout is not None
        return child(HERE, role, mock.stdout.readline().strip(), count, size)
    finally:
        mock.terminate()
        mock.wait()


def against_redis(role: str, count: int, size: int) -> Metrics:
    _need(module="redis", program="redis-server", cure="apt-get install redis-server; pip install redis hiredis")
    with _folder() as folder:
        port = free_ports(1)[0]
        options = (
            "--bind",
            "127.0.0.1",
            "--dir",
            folder,
            "--appendonly",
            "yes",
            "--appendfsync",
            "everysec",
            "--save",
            "",
        )
        with process("redis-server", "--port", port, *options):
            wait_for(port)
            return child(HERE, role, f"127.0.0.1:{port}", count, size)


def against_nats(role: str, count: int, size: int) -> Metrics:
    _need(module="nats", program="nats-server", cure="apt-get install nats-server; pip install nats-py")
    with _folder() as folder:
        port = free_ports(1)[0]
        with process("nats-server", "-a", "127.0.0.1", "-p", port, "-js", "-sd", folder):
            wait_for(port)
            return child(HERE, role, f"127.0.0.1:{port}", count, size)


def _need(*, module: str, cure: str, program: str | None = None) -> None:
    if importlib.util.find_spec(module) is None or (program is not None and shutil.which(program) is None):
        raise Skipped(cure)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="barnabas-peer-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    role, address, count, size = sys.argv[1:]
    outcome = ROLES[role](address, int(count), int(size))
    if not isinstance(outcome, dict):
        outcome = asyncio.run(outcome)  # type: ignore[arg-type]
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
