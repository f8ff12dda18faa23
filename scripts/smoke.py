"""A short trial of this Python, for scripts/other-pythons: three real brokers, both clients, transactions, and kill -9.

It needs what Barnabas needs to run, and no more. DeprecationWarnings of Barnabas are errors here, and in the logs of the brokers.
Exit code 0, and a line with the time, if all is well.
"""

import asyncio
import os
import platform
import time
import warnings

import barnabas
from barnabas.log.records.codec import IS_COMPILED
from barnabas.sync import Consumer, Producer
from barnabas.testing import Cluster

COUNT = 500
LIMIT_MS = 60_000  # of each wait
LOG_LINES = 100_000  # all of them


async def transact(bootstrap: str) -> None:
    """A transaction that is committed, and one that is not."""
    async with barnabas.Producer(bootstrap=bootstrap, transactional_id="smoke") as producer:
        async with producer.transaction() as transaction:
            await transaction.send("paid", b"yes", key=b"1")
        try:
            async with producer.transaction() as transaction:
                await transaction.send("paid", b"no", key=b"2")
                raise LookupError
        except LookupError:
            pass
    async with barnabas.Consumer(
        "paid", bootstrap=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        found = await consumer.poll(timeout_ms=LIMIT_MS)
        assert [record.value for records in found.values() for record in records] == [b"yes"]


def read(bootstrap: str, count: int) -> None:
    with Consumer("orders", bootstrap=bootstrap, group="smoke", auto_offset_reset="earliest") as consumer:
        values: set[bytes | None] = set()
        deadline_s = time.monotonic() + LIMIT_MS / 1000
        while len(values) < count:
            assert time.monotonic() < deadline_s, f"{len(values)} of {count} records came"
            for records in consumer.poll(timeout_ms=1_000).values():
                values.update(record.value for record in records)


def check_logs(logs: str) -> None:
    """Other packages may use what Python will drop; ours may not."""
    lines = logs.splitlines()
    told = [line for line in lines if ("/barnabas/" in line and "DeprecationWarning" in line) or "Traceback" in line]
    assert not told, "\n".join(told)


def trial() -> None:
    with Cluster(3, backend="processes") as cluster:
        bootstrap = cluster.bootstrap_servers
        cluster.create_topic("orders", partitions=3)
        cluster.create_topic("paid")
        with Producer(bootstrap=bootstrap) as producer:
            for number in range(COUNT):
                producer.send("orders", str(number).encode()).result()
            cluster.kill(cluster.leader("orders", 0))
            for number in range(COUNT, 2 * COUNT):
                producer.send("orders", str(number).encode()).result()
        read(bootstrap, 2 * COUNT)
        asyncio.run(transact(bootstrap))
        check_logs(cluster.logs(lines=LOG_LINES))


def main() -> None:
    began_s = time.monotonic()
    os.environ["PYTHONWARNINGS"] = "always::DeprecationWarning"  # of the brokers: they go to their logs
    warnings.filterwarnings("error", category=DeprecationWarning, module=r"barnabas\.")
    trial()
    compiled = "compiled" if IS_COMPILED else "in Python"
    print(f"Python {platform.python_version()} (records: {compiled}): well after {time.monotonic() - began_s:.1f} s")


if __name__ == "__main__":
    main()
