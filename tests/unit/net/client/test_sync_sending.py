"""`barnabas.sync` sends from threads of the application: what they may do at the same time, and when they need the loop."""

import asyncio
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from unit.net.client.fake_cluster import FakeCluster

import barnabas.sync
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.client import inside_of
from barnabas.net.client.connection.errors import (
    BarnabasError,
    BufferExhaustedError,
    ClientClosedError,
    InvalidRequestError,
    RecordTooLargeError,
)
from barnabas.net.client.connection.loop_thread import loop_thread
from barnabas.net.client.producer import departures
from barnabas.net.client.producer.departures import THREADS_LINGER_MS
from barnabas.net.client.producer.producer import Producer
from barnabas.net.wire.protocol import responses as r
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.requests import ProduceRequest

LIMIT_S = 60.0  # of a wait that should be short
TURNS = 50
PARTITIONS = 3


class Gate:
    """A broker that answers produce requests when it is open."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._opened = asyncio.Event()
        cluster.script(ApiKey.PRODUCE, self._answer, forever=True)

    def open(self) -> None:
        loop_thread().loop.call_soon_threadsafe(self._opened.set)

    async def _answer(self, node_id: int, request: ProduceRequest) -> r.ProduceResponse:
        await self._opened.wait()
        return self._cluster.produce(node_id, request)


def slow(cluster: FakeCluster) -> None:
    """The broker answers some turns of the loop later: meanwhile batches are open."""

    async def produce(node_id: int, request: ProduceRequest) -> r.ProduceResponse:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return cluster.produce(node_id, request)

    cluster.script(ApiKey.PRODUCE, produce, forever=True)


@pytest.fixture
def _restless() -> Iterator[None]:
    """Threads take turns as often as the interpreter can, so that they meet in every line."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open batch leaves when a thread waits for a record, and not because the machine was busy for a millisecond."""
    monkeypatch.setattr(departures, "THREADS_LINGER_MS", 10 * LIMIT_S * 1000)


@contextmanager
def stopped_loop() -> Iterator[None]:
    """The loop's thread does nothing meanwhile."""
    stands, goes_on = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        goes_on.wait(LIMIT_S)

    loop_thread().loop.call_soon_threadsafe(stand)
    assert stands.wait(LIMIT_S)
    try:
        yield
    finally:
        goes_on.set()


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(count) as threads:
        return [future.result(LIMIT_S) for future in [threads.submit(work, number) for number in range(count)]]


def make_busy(producer: barnabas.sync.Producer) -> list[barnabas.sync.Handle]:
    """Behind these two the batch stays open: the first one is on its way, and nothing is answered."""
    first = producer.send("t", b"first")
    wait_for_it(producer)
    return [first, producer.send("t", b"second")]


def wait_for_it(producer: barnabas.sync.Producer) -> None:
    """As a thread does that asks for a result, without waiting for it."""

    async def hurry() -> None:
        inside_of(producer._client).hurry()

    producer._call(hurry())


@pytest.mark.usefixtures("_restless")
@pytest.mark.parametrize("options", [{}, {"enable_idempotence": False}, {"batch_size": 300}, {"linger_ms": 1}])
@pytest.mark.parametrize("to", ["sticky", "key", "partition", "many"])
def test_records_of_each_thread_keep_their_order_and_none_is_lost(to: str, options: dict[str, Any]) -> None:
    cluster = FakeCluster(topics={"t": PARTITIONS})
    slow(cluster)
    count = 800

    def work(thread: int) -> list[tuple[bytes, barnabas.sync.Handle]]:
        sent = []
        for number in range(count):
            value = b"%d:%06d" % (thread, number)
            if to == "sticky":
                handle = producer.send("t", value)
            elif to == "key":
                handle = producer.send("t", value, key=b"%d" % (number % 7))
            elif to == "partition":
                handle = producer.send("t", value, partition=number % PARTITIONS)
            elif number % 4 == thread % 4:
                handle = producer.send_many("t", [value])[0]
            else:
                handle = producer.send("t", value, headers=[("h", b"v")] if number % 3 else None)
            sent.append((value, handle))
        return sent

    with barnabas.sync.Producer(client=cluster.client(), **options) as producer:
        sent = in_threads(4, work)
        producer.flush()
        places = [[(value, handle.result(LIMIT_S)) for value, handle in each] for each in sent]
    logs = [cluster.logs[TopicPartition("t", number)].values() for number in range(PARTITIONS)]
    assert sum(map(len, logs)) == 4 * count, "each record once"
    for each in places:
        for partition in range(PARTITIONS):
            offsets = [place.offset for _, place in each if place.partition == partition]
            assert offsets == sorted(set(offsets))
        assert all(logs[place.partition][place.offset] == value for value, place in each)


def test_brokers_that_answer_at_once_do_not_make_batches_tiny() -> None:
    cluster = FakeCluster(topics={"t": 1})
    with barnabas.sync.Producer(client=cluster.client()) as producer:
        producer.send("t", b"first").result(LIMIT_S)
        began = time.monotonic()
        handles = [producer.send("t", b"%d" % number) for number in range(2_000)]
        most = (time.monotonic() - began) * 1000 / THREADS_LINGER_MS + 2
        producer.flush()
        assert [handle.result(LIMIT_S).offset for handle in handles] == list(range(1, 2_001))
    assert len(cluster.sent(ProduceRequest)) <= 1 + most


@pytest.mark.usefixtures("_patience")
@pytest.mark.parametrize("to", ["one", "many"])
def test_a_thread_that_waits_for_a_result_waits_for_no_other_record(to: str) -> None:
    cluster = FakeCluster(topics={"t": 1})
    slow(cluster)
    with barnabas.sync.Producer(client=cluster.client()) as producer:
        for number in range(5):
            if to == "one":
                assert producer.send("t", b"x").result(LIMIT_S).offset == number
            else:
                assert [place.offset for place in producer.send_many("t", [b"x"]).result(LIMIT_S)] == [number]

        def work(_: int) -> None:
            for _ in range(20):
                producer.send("t", b"x").result(LIMIT_S)

        in_threads(4, work)
    assert cluster.logs[TopicPartition("t", 0)].end_offset == 85


@pytest.mark.usefixtures("_patience")
def test_a_thread_needs_the_loop_once_per_batch() -> None:
    """While the loop stands still, records go into the batch that it has opened."""
    cluster = FakeCluster(topics={"t": 1})
    gate = Gate(cluster)
    with barnabas.sync.Producer(client=cluster.client()) as producer:
        handles = make_busy(producer)
        with stopped_loop():
            for number in range(500):
                handles.append(producer.send("t", b"%d" % number, key=b"k" if number % 2 else None))
        assert not any(handle.is_done for handle in handles)
        gate.open()
        assert [handle.result(LIMIT_S).offset for handle in handles] == list(range(502))
    assert cluster.logs[TopicPartition("t", 0)].values()[2:] == [b"%d" % number for number in range(500)]
    assert len(cluster.sent(ProduceRequest)) == 2


@pytest.mark.usefixtures("_patience")
def test_a_batch_grows_from_a_thread() -> None:
    cluster = FakeCluster(topics={"t": 1})
    gate = Gate(cluster)
    with barnabas.sync.Producer(client=cluster.client(), batch_size=1_000, max_batch_size=50_000) as producer:
        handles = make_busy(producer)
        handles += [producer.send("t", bytes(900)) for _ in range(3)]  # the first batch of a producer goes alone
        with stopped_loop():
            handles += [producer.send("t", bytes(900)) for _ in range(40)]
        gate.open()
        assert [handle.result(LIMIT_S).offset for handle in handles] == list(range(45))
    assert max(len(item.records) for request in cluster.sent(ProduceRequest) for item in request.partitions) > 30_000


def test_a_full_buffer_makes_a_thread_wait_for_max_block_ms_and_not_longer() -> None:
    cluster = FakeCluster(topics={"t": 1})
    gate = Gate(cluster)
    handles = []
    with barnabas.sync.Producer(
        client=cluster.client(), batch_size=1_000, buffer_memory=20_000, max_block_ms=100
    ) as producer:
        with pytest.raises(BufferExhaustedError):
            while True:
                handles.append(producer.send("t", bytes(500)))
        assert 20 < len(handles) < 45
        gate.open()
        assert [handle.result(LIMIT_S).offset for handle in handles] == list(range(len(handles)))
        assert producer.send("t", b"again").result(LIMIT_S).offset == len(handles)


@pytest.mark.usefixtures("_restless")
def test_threads_that_send_while_another_one_closes() -> None:
    """Each record is acknowledged and written, or its `send` or its handle says that the producer was closed."""
    cluster = FakeCluster(topics={"t": PARTITIONS})
    slow(cluster)
    producer = barnabas.sync.Producer(client=cluster.client())
    sending = threading.Barrier(4)

    def work(thread: int) -> list[barnabas.sync.Handle]:
        handles = []
        sending.wait(LIMIT_S)
        while True:
            try:
                handles.append(producer.send("t", b"%d:%d" % (thread, len(handles))))
            except ClientClosedError:
                return handles

    def close(_: int) -> None:
        sending.wait(LIMIT_S)
        producer.send("t", b"while they send").result(LIMIT_S)
        producer.close()

    with ThreadPoolExecutor(4) as threads:
        closing = threads.submit(close, 3)
        sent = [future.result(LIMIT_S) for future in [threads.submit(work, number) for number in range(3)]]
        closing.result(LIMIT_S)
    logs = [cluster.logs[TopicPartition("t", number)].values() for number in range(PARTITIONS)]
    acknowledged = 1
    for thread, handles in enumerate(sent):
        for number, handle in enumerate(handles):
            assert handle.is_done
            try:
                place = handle.result()
            except ClientClosedError:
                continue
            acknowledged += 1
            assert logs[place.partition][place.offset] == b"%d:%d" % (thread, number)
    assert acknowledged <= sum(map(len, logs))
    assert len({value for log in logs for value in log}) == sum(map(len, logs)), "none twice"


@pytest.mark.usefixtures("_patience")
def test_an_error_of_delivery_reaches_the_handles_and_wrong_arguments_their_call() -> None:
    cluster = FakeCluster(topics={"t": 1})
    opened = asyncio.Event()

    async def refuse(node_id: int, request: ProduceRequest) -> r.ProduceResponse:
        await opened.wait()
        (item,) = request.partitions
        refused = r.ProducePartitionResponse(
            topic=item.topic, partition=item.partition, error=ErrorCode.INVALID_RECORD, message="no"
        )
        return r.ProduceResponse(partitions=(refused,))

    cluster.script(ApiKey.PRODUCE, refuse, forever=True)
    lost: list[int] = []
    with barnabas.sync.Producer(
        client=cluster.client(), on_error=lambda error, partition, count: lost.append(count)
    ) as producer:
        handles = [*make_busy(producer), producer.send("t", b"third")]
        with pytest.raises(TypeError, match=r"value\.encode\(\)"):
            producer.send("t", "text")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"key\.encode\(\)"):
            producer.send("t", b"", key="text")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="has partitions 0 to 0"):
            producer.send("t", b"", partition=1)
        with pytest.raises(RecordTooLargeError):
            producer.send("t", bytes(2 << 20))
        loop_thread().loop.call_soon_threadsafe(opened.set)
        for handle in handles:
            with pytest.raises(BarnabasError, match="no"):
                handle.result(LIMIT_S)
    assert sum(lost) == 3


def _send_in_child(producer: Any, results: Any) -> None:
    try:
        producer.send("t", b"x")
    except ClientClosedError as error:
        results.put(error.message)


@pytest.mark.usefixtures("_patience")
def test_a_child_of_a_fork_sends_nothing_into_an_open_batch_of_its_parent() -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    cluster = FakeCluster(topics={"t": 1})
    gate = Gate(cluster)
    with barnabas.sync.Producer(client=cluster.client()) as producer:
        handles = make_busy(producer)
        child = context.Process(target=_send_in_child, args=(producer, results))
        child.start()
        assert "before a fork" in results.get(timeout=LIMIT_S)
        child.join(LIMIT_S)
        handles.append(producer.send("t", b"third"))
        gate.open()
        assert [handle.result(LIMIT_S).offset for handle in handles] == [0, 1, 2]


def test_a_transactional_producer_takes_no_record_from_a_thread_past_its_transaction() -> None:
    """An open batch may be one of a transaction: only the loop knows."""
    producer = Producer(transactional_id="orders")
    assert inside_of(producer).send_from_thread("t", b"outside", None, None) is None
    with pytest.raises(ClientClosedError, match="not started"):
        asyncio.run(inside_of(producer).send_on_loop("t", b"outside", None, None, None, None))
