"""A worker as users write it, in a process of its own that is killed: `worker.py SEMANTICS BOOTSTRAP TOPIC SINK`.

Its effects are lines of a file (one write each, which kill -9 cannot cut), or rows of a table without any constraint, so that
what is done twice is there twice. An effect says which record it is of.
"""

import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from typing import Any

from barnabas.sync import Consumer, process_once  # type: ignore[import-not-found]  # not in the tree that mypy sees

GROUP = "workers"
POLL_RECORDS = 10
SESSION_TIMEOUT_MS = 2_000  # of a member that is killed: the other one takes over after that
OPTIONS: dict[str, Any] = {
    "group": GROUP,
    "auto_offset_reset": "earliest",
    "session_timeout_ms": SESSION_TIMEOUT_MS,
    "request_timeout_ms": 5_000,
    "fetch_max_wait_ms": 100,
}


def appender(path: str) -> Callable[[Any], None]:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def process(record: Any) -> None:
        os.write(descriptor, b"%d %d %b\n" % (record.partition, record.offset, record.value))

    return process


def at_most_once(bootstrap: str, topic: str, sink: str) -> None:
    process = appender(sink)
    is_told_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_told_to_end.set())
    with Consumer(topic, bootstrap=bootstrap, auto_commit=False, **OPTIONS) as consumer:
        while not is_told_to_end.is_set():
            found = consumer.poll(max_records=POLL_RECORDS, timeout_ms=200)
            consumer.commit()
            for records in found.values():
                for record in records:
                    process(record)


def at_least_once(bootstrap: str, topic: str, sink: str) -> None:
    process = appender(sink)
    with Consumer(topic, bootstrap=bootstrap, auto_commit=False, **OPTIONS) as consumer:
        while True:
            for records in consumer.poll(max_records=POLL_RECORDS, timeout_ms=200).values():
                for record in records:
                    process(record)
            consumer.commit()


def effectively_once(bootstrap: str, topic: str, sink: str) -> None:
    connection = connect(sink)
    with (
        Consumer(topic, bootstrap=bootstrap, auto_commit_interval_ms=500, **OPTIONS) as consumer,
        process_once(consumer, connection, max_records=POLL_RECORDS) as records,
    ):
        for record, cursor in records:
            effect = f"{record.partition}, {record.offset}, '{record.value.decode()}'"
            cursor.execute(f"INSERT INTO effects VALUES ({effect})")


def connect(sink: str) -> Any:
    """`sink` is a path of SQLite, or what PostgreSQL calls a connection string."""
    if "host=" not in sink:
        return sqlite3.connect(sink, timeout=30)
    import psycopg

    return psycopg.connect(sink)


SEMANTICS = {"at-most-once": at_most_once, "at-least-once": at_least_once, "effectively-once": effectively_once}

if __name__ == "__main__":
    SEMANTICS[sys.argv[1]](*sys.argv[2:])
