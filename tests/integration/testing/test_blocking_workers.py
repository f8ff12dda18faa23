"""`barnabas.sync` for workers: `process_each` and `ShareConsumer`, with dead letters, on both backends."""

import signal
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from barnabas import sync
from barnabas.net.client.connection.errors import (
    DeserializationError,
    HandlerFailedError,
    InvalidConfigError,
)
from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.testing.cluster import Cluster

VALUES = [b"%d" % number for number in range(40)]
PATIENCE_S = 60


def group_of(cluster: Cluster, name: str, **settings: str) -> None:
    configs = {key.replace("_", "."): value for key, value in settings.items()}
    with sync.Admin(cluster.bootstrap_servers) as admin:
        admin.alter_config(name, {"share.auto.offset.reset": "earliest", **configs}, resource_type="group")


def a_consumer(cluster: Cluster, topic: str) -> sync.Consumer:
    return sync.Consumer(
        topic, bootstrap=cluster.bootstrap_servers, group="billing", auto_commit=False, auto_offset_reset="earliest"
    )


def send(cluster: Cluster, topic: str, *values: bytes) -> None:
    with sync.Producer(cluster.bootstrap_servers) as producer:
        producer.send_many(topic, values).result(30)


def test_handlers_run_side_by_side_and_failures_go_to_dead_letters(cluster: Cluster, topic: str) -> None:
    send(cluster, topic, *VALUES)
    calls: Counter[bytes] = Counter()
    both = threading.Barrier(2, timeout=PATIENCE_S)
    stop = threading.Event()

    def handle(record: ConsumerRecord) -> None:
        value = bytes(record.value)
        calls[value] += 1
        if value in (b"0", b"1"):
            both.wait()  # two handlers are at work at one time
        if value == b"7":
            raise ValueError("seven")
        if value == b"39":
            stop.set()

    with a_consumer(cluster, topic) as consumer, sync.Producer(cluster.bootstrap_servers) as producer:
        failed = sync.dead_letters(producer, "orders.dead")
        outcome = sync.process_each(
            consumer, handle, concurrency=4, attempts=2, backoff_ms=(1, 1), on_failure=failed, stop=stop
        )
        assert outcome.records >= 38 and outcome.retried == 1 and outcome.given_up == 1
        rest = [bytes(record.value) for records in consumer.poll(timeout_ms=500).values() for record in records]
    assert calls[b"7"] == 2 and set(calls) | set(rest) == set(VALUES)
    (dead,) = cluster.records("orders.dead")
    assert bytes(dead.value) == b"7" and dict(dead.headers)["barnabas-error"] == b"ValueError: seven"


def test_what_a_handler_raises_ends_it_and_the_record_comes_again(cluster: Cluster, topic: str) -> None:
    send(cluster, topic, *VALUES)

    def handle(record: ConsumerRecord) -> None:
        if record.value == b"5":
            raise ValueError("five")

    with a_consumer(cluster, topic) as consumer:
        with pytest.raises(HandlerFailedError, match="five"):
            sync.process_each(consumer, handle, order="partition", attempts=1)
        assert sum(cluster.committed("billing").values()) == 5

        async def coroutine(record: ConsumerRecord) -> None: ...

        with pytest.raises(InvalidConfigError, match=r"barnabas\.process_each"):
            sync.process_each(consumer, coroutine)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Also where this process ignores it, as in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_commits_what_is_done(cluster: Cluster, topic: str) -> None:
    """KeyboardInterrupt arises in the thread that waits, as Ctrl-C does."""
    send(cluster, topic, *VALUES)

    def handle(record: ConsumerRecord) -> None:
        if record.offset == 20:
            signal.raise_signal(signal.SIGINT)  # handled in the main thread

    with a_consumer(cluster, topic) as consumer:
        with pytest.raises(KeyboardInterrupt):
            sync.process_each(consumer, handle, order="partition", concurrency=1, commit_interval_ms=3_600_000)
        assert sum(cluster.committed("billing").values()) >= 20


def test_a_queue_without_asyncio(cluster: Cluster, topic: str) -> None:
    group_of(cluster, "workers")
    send(cluster, topic, *VALUES)
    seen: Counter[int] = Counter()
    with sync.ShareConsumer(
        topic, bootstrap=cluster.bootstrap_servers, group="workers", value_deserializer=int
    ) as queue:
        for record in queue:
            seen[record.value] += 1
            if record.value == 3 and record.delivery_count == 1:
                queue.acknowledge(record, "release")
            if sum(seen.values()) == len(VALUES) + 1:
                queue.acknowledge(record)
                break
        queue.commit()
    assert seen == Counter({**dict.fromkeys(range(40), 1), 3: 2})
    assert cluster.lag("workers") == {next(iter(cluster.lag("workers"))): 0}


def test_poison_in_a_queue_becomes_a_dead_letter(cluster: Cluster, topic: str) -> None:
    """One record cannot be read, one is rejected, one is never accepted; the last is delivered as often as asked."""
    group_of(cluster, "workers")
    send(cluster, topic, b"1", b"no number", b"2", b"3", b"4")
    deliveries: Counter[int] = Counter()
    with sync.Producer(cluster.bootstrap_servers) as producer:
        options = {
            "bootstrap": cluster.bootstrap_servers,
            "group": "workers",
            "value_deserializer": int,
            "dead_letter": sync.dead_letters(producer, "orders.dead"),
            "max_deliveries": 3,
        }
        with sync.ShareConsumer(topic, **options) as queue:
            for record in queue:
                deliveries[record.value] += 1
                if record.value == 2:
                    queue.acknowledge(record, "reject", reason="two is unlucky")
                if record.value == 3:
                    queue.acknowledge(record, "release")
                if record.value == 4:
                    queue.acknowledge(record)
                    break
            while len(cluster.records("orders.dead") if deliveries[3] == 3 else ()) < 3:
                for record in queue.poll(timeout_ms=200):
                    deliveries[record.value] += 1
                    queue.acknowledge(record, "release")
            queue.commit()
    assert deliveries == Counter({1: 1, 2: 1, 3: 3, 4: 1})
    dead = {bytes(record.value): dict(record.headers)["barnabas-error"] for record in cluster.records("orders.dead")}
    assert dead.keys() == {b"no number", b"2", b"3"}
    assert dead[b"no number"].startswith(b"value: invalid literal")  # type: ignore[union-attr]
    assert dead[b"2"] == b"RecordGivenUpError: two is unlucky"
    assert dead[b"3"] == b"RecordGivenUpError: delivered 4 times, and never accepted"
    assert set(cluster.lag("workers").values()) == {0}


def test_a_record_that_cannot_be_read_stops_a_queue_until_it_is_rejected(cluster: Cluster, topic: str) -> None:
    group_of(cluster, "workers")
    send(cluster, topic, b"1", b"no number", b"2")
    found: list[tuple[object, object]] = []
    with sync.ShareConsumer(
        topic, bootstrap=cluster.bootstrap_servers, group="workers", value_deserializer=int
    ) as queue:
        while len(found) < 2:
            try:
                found += [(record.value, record.raw.value) for record in queue.poll()]
            except DeserializationError as error:
                assert "acknowledge(error.record, 'reject')" in str(error)
                with pytest.raises(DeserializationError):
                    queue.poll()  # nothing is skipped silently
                queue.acknowledge(error.record, "reject")
        assert found == [(1, b"1"), (2, b"2")]
