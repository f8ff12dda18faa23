"""One role of a Kafka client in a process of its own: `python kafka_client.py ROLE --bootstrap A --topic T ...`.

confluent-kafka with its own defaults, except where a role says otherwise; and `requests`, which needs no client library.
All of them work against Kafka and against Barnabas. The options and metrics are those of client.py.
"""

import concurrent.futures
import json
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from client import IN_TRANSACTION, MANY, Options, parser
from kafka_frames import frame
from measure import Metrics, Work, percentiles, records

from barnabas.log.format.record_codec import encode_batch
from barnabas.net.wire.protocol.kafka.message_classes import types_of

QUEUED_RECORDS = 500_000  # librdkafka's own limit of 100,000 would make the loop below wait more often
READ_AT_ONCE = 10_000
REQUESTS_S = 3.0
WARM_UP_S = 0.5
PRODUCE_VERSION = 9
_SIZE = struct.Struct(">I")


def _producer(options: Options, **settings: object) -> Any:
    from confluent_kafka import Producer

    return Producer(
        {
            "bootstrap.servers": options.bootstrap,
            "acks": options.acks,
            "queue.buffering.max.messages": QUEUED_RECORDS,
            **settings,
        }
    )


def produce(options: Options) -> Metrics:
    """`api`: send, send_key, or send_many for confluent-kafka's `produce_batch`."""
    producer = _producer(options)
    topic = options.topic
    producer.produce(topic, b"first")
    if producer.flush(30):
        raise RuntimeError("the first record was not acknowledged within 30 s")
    values = records(options.count, options.size)
    with Work(options.servers) as work:
        PRODUCING[options.api](producer, topic, values)
        unsent = producer.flush(60)
    if unsent:
        raise RuntimeError(f"{unsent} records were not acknowledged")
    return work.metrics(len(values), options.size)


def _produce(producer: Any, topic: str, values: list[bytes]) -> None:
    produce, poll = producer.produce, producer.poll
    for value in values:
        while True:
            try:
                produce(topic, value)
                break
            except BufferError:
                poll(0.01)


def _produce_with_keys(producer: Any, topic: str, values: list[bytes]) -> None:
    keys = [b"user%04d" % number for number in range(997)]
    produce, poll = producer.produce, producer.poll
    for number, value in enumerate(values):
        while True:
            try:
                produce(topic, value, keys[number % 997])
                break
            except BufferError:
                poll(0.01)


def _produce_batches(producer: Any, topic: str, values: list[bytes]) -> None:
    for start in range(0, len(values), MANY):
        messages = [{"value": value} for value in values[start : start + MANY]]
        while messages:
            producer.produce_batch(topic, messages)
            messages = [
                {"value": message["value"]} for message in messages if message.get("_error") is not None
            ]  # for which there was no room
            if messages:
                producer.poll(0.01)


PRODUCING: dict[str, Callable[[Any, str, list[bytes]], None]] = {
    "send": _produce,
    "send_key": _produce_with_keys,
    "send_many": _produce_batches,
}


def consume(options: Options) -> Metrics:
    """The whole topic by `consume(n)`, and a look at each value."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 5,  # Its default of a second makes it stand still when its queue was full.
            "queued.min.messages": 1_000_000,
        }
    )
    read = read_bytes = 0
    with Work(options.servers) as work:
        consumer.assign(
            [TopicPartition(options.topic, number, OFFSET_BEGINNING) for number in range(options.partitions)]
        )
        while read < options.count:
            for record in consumer.consume(READ_AT_ONCE, 1.0):
                if record.error() is None:
                    read += 1
                    read_bytes += len(record.value() or b"")
    consumer.close()
    return work.metrics(read, read_bytes // max(read, 1))


def one_at_a_time(options: Options) -> Metrics:
    """Produce, poll until the delivery report is there, then the next."""
    producer = _producer(options, **{"linger.ms": 0})
    value = records(1, options.size)[0]
    taken = []
    reported: list[Any] = []

    def report(error: Any, _message: Any) -> None:
        reported.append(error)

    for _ in range(options.count):
        began = time.perf_counter()
        producer.produce(options.topic, value, on_delivery=report)
        while not reported:
            producer.poll(1.0)
        taken.append(time.perf_counter() - began)
        if reported.pop() is not None:
            raise RuntimeError("a record was not acknowledged")
    return percentiles(taken)


def end_to_end(options: Options) -> Metrics:
    """From `produce` until a consumer that waits in `poll` has the record, both in this process."""
    from confluent_kafka import Consumer, TopicPartition

    producer = _producer(options, **{"linger.ms": 0})
    value = records(1, options.size)[0]
    consumer = Consumer({"bootstrap.servers": options.bootstrap, "group.id": "benchmark", "enable.auto.commit": False})
    producer.produce(options.topic, value, partition=0)
    producer.flush(30)
    consumer.assign([TopicPartition(options.topic, 0, 0)])
    while (found := consumer.poll(1.0)) is None or found.error() is not None:
        pass
    taken = []
    for _ in range(options.count):
        began = time.perf_counter()
        producer.produce(options.topic, value, partition=0)
        while (found := consumer.poll(1.0)) is None or found.error() is not None:
            pass
        taken.append(time.perf_counter() - began)
    producer.flush(30)
    consumer.close()
    return percentiles(taken)


def transactions(options: Options) -> Metrics:
    """As `transactions` of client.py; one thread for each producer. `linger.ms` stays: with 0, each record goes to another
    partition."""
    values = records(IN_TRANSACTION, options.size)
    is_plain = options.api == "plain"
    taken: list[float] = []

    def lane(number: int) -> None:
        producer = _producer(options, **_transactional(options, number, is_plain=is_plain))
        if not is_plain:
            producer.init_transactions(30)
        for _ in range(3):
            _send_together(producer, options.topic, values, is_plain=is_plain)
        started.wait()
        taken.extend(
            _send_together(producer, options.topic, values, is_plain=is_plain)
            for _ in range(options.count // options.depth)
        )

    started = threading.Barrier(options.depth + 1)
    with concurrent.futures.ThreadPoolExecutor(options.depth) as lanes:
        running = [lanes.submit(lane, number) for number in range(options.depth)]
        started.wait(60)
        with Work(options.servers) as work:
            for done in running:
                done.result()
    return work.metrics(len(taken) * IN_TRANSACTION, options.size) | percentiles(taken)


def _transactional(options: Options, number: int, *, is_plain: bool) -> dict[str, object]:
    return {} if is_plain else {"transactional.id": f"{options.topic}-{number}"}


def _send_together(producer: Any, topic: str, values: list[bytes], *, is_plain: bool) -> float:
    """Returns how long the end took."""
    if not is_plain:
        producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    began = time.perf_counter()
    if not is_plain:
        producer.commit_transaction(30)
    elif producer.flush(30):
        raise RuntimeError("records were not acknowledged")
    return time.perf_counter() - began


def requests(options: Options) -> Metrics:
    """`depth` connections, each with one produce request of one record in flight; the leader of partition 0 answers."""
    frame = _one_record(options)
    host, port = _leader(options)
    before = _end_offset(options)
    poll = select.epoll()
    connections = {}
    for _ in range(options.depth):
        connection = socket.create_connection((host, port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connections[connection.fileno()] = connection
        poll.register(connection, select.EPOLLIN)
    for connection in connections.values():
        connection.sendall(frame)
    answered = _answer(poll, connections, frame, WARM_UP_S)
    with Work(options.servers) as work:
        measured = _answer(poll, connections, frame, REQUESTS_S)
    for connection in connections.values():  # What is still in flight.
        answered += connection.recv(4096) != b""
        connection.close()
    written = _end_offset(options) - before
    if written != answered + measured:
        raise RuntimeError(f"{written} records were written by {answered + measured} requests: errors were measured")
    found = work.metrics(measured, options.size)
    return {"req/s": found["msg/s"], "client_ns": found["client_ns"], "brokers_ns": found["brokers_ns"]}


def _answer(poll: select.epoll, connections: dict[int, socket.socket], frame: bytes, seconds: float) -> int:
    """Send the next request of every connection whose answer is here; returns the number of answers."""
    answered = 0
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        for number, _ in poll.poll(1.0):
            data = os.read(number, 4096)
            if len(data) < _SIZE.size or len(data) != _SIZE.size + _SIZE.unpack_from(data)[0]:
                raise RuntimeError(f"an answer of {len(data)} bytes is not whole")
            answered += 1
            os.write(number, frame)
    return answered


def _one_record(options: Options) -> bytes:
    types = types_of("ProduceRequest")
    batch = encode_batch(records(1, options.size), timestamps_ms=int(time.time() * 1000))
    data = types["PartitionProduceData"](index=0, records=batch)
    body = types["ProduceRequest"](
        acks=1, timeout_ms=30_000, topic_data=[types["TopicProduceData"](name=options.topic, partition_data=[data])]
    )
    return frame(0, PRODUCE_VERSION, body)


def _leader(options: Options) -> tuple[str, int]:
    from confluent_kafka.admin import AdminClient

    found = AdminClient({"bootstrap.servers": options.bootstrap}).list_topics(options.topic, timeout=10)
    broker = found.brokers[found.topics[options.topic].partitions[0].leader]
    return broker.host, broker.port


def _end_offset(options: Options) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": options.bootstrap, "group.id": "benchmark"})
    _, high = consumer.get_watermark_offsets(TopicPartition(options.topic, 0), timeout=10, cached=False)
    consumer.close()
    return int(high)


ROLES: dict[str, Callable[[Options], Metrics]] = {
    "produce": produce,
    "consume": consume,
    "one-at-a-time": one_at_a_time,
    "end-to-end": end_to_end,
    "transactions": transactions,
    "requests": requests,
}


def main() -> None:
    options = parser(ROLES).parse_args()
    print(json.dumps(ROLES[options.role](options)))


if __name__ == "__main__":
    main()
