"""`scripts/benchmark records`: what a record costs in memory, without brokers: compiled, in Python, and in confluent-kafka.

Nanoseconds a record, the best of some rounds; the rows of a round run one after the other, so a busy machine slows all of them.
confluent-kafka has no such functions: its rows are the processor time of a producer and of a consumer of the same records on
librdkafka's mock cluster, which runs in the same process and costs little of it.
"""

import argparse
import importlib
import time
from array import array
from collections.abc import Callable
from types import ModuleType

from barnabas.log.format.record_batch import iter_headers
from barnabas.log.records import pure
from barnabas.log.records.codec import Codec
from barnabas.log.records.columns import BinaryColumn

VALUE_BYTES = 100
BATCH_BYTES = 65_536
STAMP_MS = 1_700_000_000_000
SLOW = 20  # The twin in Python gets a share of the records: it needs so many times as long.
Work = Callable[[], object]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark records", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000, metavar="N", help="in a round; default: 100000")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="the best of so many counts; default: 5")
    options = parser.parse_args(arguments)
    best: dict[str, dict[str, float]] = {}
    for _ in range(options.rounds):
        for peer, count, cases in suites(options.records):
            for name, work in cases.items():
                began = time.process_time()
                work()
                spent_ns = (time.process_time() - began) / count * 1e9
                row = best.setdefault(name, {})
                row[peer] = min(row.get(peer, spent_ns), spent_ns)
    peers = ["compiled", "in Python", "confluent-kafka"]
    print(f"{'ns a record of processor time':<34}" + "".join(f"{peer:>17}" for peer in peers))
    for name, row in best.items():
        print(f"{name:<34}" + "".join(f"{row[peer]:>17.0f}" if peer in row else f"{'-':>17}" for peer in peers))
    return 0


def suites(count: int) -> list[tuple[str, int, dict[str, Work]]]:
    """(who, records of a round, its cases by name)."""
    found = [("in Python", count // SLOW, cases_of(pure, count // SLOW))]
    try:
        found.append(("compiled", count, cases_of(importlib.import_module("barnabas.log.records._native"), count)))
    except ImportError:
        print("the compiled module was not built")
    try:
        found.append(("confluent-kafka", count, confluent_cases(count)))
    except ImportError:
        print("confluent-kafka is not installed")
    return found


def cases_of(module: ModuleType, count: int) -> dict[str, Work]:
    codec = Codec(module)
    values = [b"x" * VALUE_BYTES] * count
    keys = [b"user%06d" % (number % 997) for number in range(count)]
    view_type = type("View", (module.RecordView,), {"__slots__": ()})
    offsets = array("i", range(0, VALUE_BYTES * (count + 1), VALUE_BYTES)).tobytes()
    column = BinaryColumn(offsets=offsets, data=b"x" * (VALUE_BYTES * count))
    log = b"".join(batches(module, count, lambda batch, at: batch.extend(values, None, None, STAMP_MS, at)))

    def views() -> list[object]:
        return [view for header in iter_headers(log) for view in codec.records_of(log, header, view_type)]

    def append() -> None:
        batch = module.Accumulator(BATCH_BYTES)
        for value in values:
            if batch.append(value, None, (), STAMP_MS) < 0:
                batch.seal()
                batch = module.Accumulator(BATCH_BYTES)
                batch.append(value, None, (), STAMP_MS)

    return {
        "batches to Arrow buffers": lambda: codec.decode([log]),
        "batches to views": views,
        "batches to views, value read": lambda: [view.value for view in views()],  # type: ignore[attr-defined]
        "batches to lists": lambda: [codec.lists_of(log, header) for header in iter_headers(log)],
        "send: append, seal": append,
        "list of values to batches": lambda: batches(
            module, count, lambda batch, at: batch.extend(values, None, None, STAMP_MS, at)
        ),
        "lists of keys, values to batches": lambda: batches(
            module, count, lambda batch, at: batch.extend(values, keys, None, STAMP_MS, at)
        ),
        "Arrow column to batches": lambda: batches(
            module, count, lambda batch, at: batch.extend_columns(count, column, timestamps_ms=STAMP_MS, start=at)
        ),
        "partitions of keys": lambda: module.rows_by_partition(keys, 6),
    }


def batches(module: ModuleType, count: int, fill: Callable[[object, int], int]) -> list[bytes]:
    found, at = [], 0
    while at < count:
        batch = module.Accumulator(BATCH_BYTES)
        at += fill(batch, at)
        found.append(batch.seal())
    return found


def confluent_cases(count: int) -> dict[str, Work]:
    from confluent_kafka import Consumer, Producer

    producer = Producer(
        {"test.mock.num.brokers": 1, "queue.buffering.max.messages": 2 * count, "acks": 1, "batch.size": BATCH_BYTES}
    )
    producer.produce("t", b"first")
    producer.flush()
    (broker,) = producer.list_topics("t").brokers.values()
    value = b"x" * VALUE_BYTES

    def produce() -> None:
        for _ in range(count):
            producer.produce("t", value)
        producer.flush()

    def consume() -> None:
        consumer = Consumer(
            {"bootstrap.servers": f"{broker.host}:{broker.port}", "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["t"])
        left = count
        while left > 0:
            left -= len([message.value() for message in consumer.consume(10_000, 1.0)])
        consumer.close()

    return {"send: append, seal": produce, "batches to views, value read": consume}
