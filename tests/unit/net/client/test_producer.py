"""The producer against a scripted cluster, on virtual time."""

import asyncio
from typing import Any

import pytest
from unit.net.client.fake_cluster import HANG, FakeCluster
from unit.net.client.virtual_time import run

from barnabas.log.vocabulary.errors import (
    ErrorCode,
    InvalidRecordError,
    NetworkError,
    NotEnoughReplicasError,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import (
    BufferExhaustedError,
    ClientClosedError,
    DeliveryTimeoutError,
    NoBrokersAvailableError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from barnabas.net.client.producer.handles import extents
from barnabas.net.client.producer.producer import Producer
from barnabas.net.wire.protocol import responses as r
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.requests import ProduceRequest

T0 = TopicPartition("t", 0)


def refusing(code: int) -> Any:
    def script(node_id: int, request: ProduceRequest) -> r.ProduceResponse:
        return r.ProduceResponse(
            partitions=tuple(
                r.ProducePartitionResponse(topic=item.topic, partition=item.partition, error=code)
                for item in request.partitions
            )
        )

    return script


def test_a_record_is_acknowledged_with_its_place() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        async with Producer(client=cluster.client()) as producer:
            first = await (await producer.send("t", b"a", timestamp_ms=5))
            second = await (await producer.send("t", b"b", key=b"k", headers=[("h", b"1"), ("n", None)]))
        assert (first.topic, first.partition, first.offset, first.timestamp_ms) == ("t", 0, 0, 5)
        assert second.offset == 1
        assert cluster.logs[T0].values() == [b"a", b"b"]

    run(main())


def test_a_topic_is_shown_to_other_threads_when_it_has_its_partitions() -> None:
    """`barnabas.sync` looks it up in the thread of the application."""

    class Shown(dict[str, Any]):
        def __setitem__(self, topic: str, state: Any) -> None:
            assert len(state.queues) == 3
            super().__setitem__(topic, state)

    async def main() -> None:
        cluster = FakeCluster(topics={"t": 3})
        async with Producer(client=cluster.client()) as producer:
            producer._buffer.topics = Shown()
            await (await producer.send("t", b"value", key=b"key"))
            assert list(producer._buffer.topics) == ["t"]

    run(main())


def test_records_share_batches_and_keep_their_order() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        values = [b"%d" % number for number in range(5000)]
        async with Producer(client=cluster.client(), batch_size=4096) as producer:
            handles = [await producer.send("t", value) for value in values]
            offsets = [(await handle).offset for handle in handles]
        assert cluster.logs[T0].values() == values
        assert offsets == list(range(5000))
        assert len(cluster.sent(ProduceRequest)) < 50

    run(main())


@pytest.mark.parametrize("failing", [1, 2, 3, 5])
def test_a_retriable_failure_keeps_the_order(failing: int) -> None:
    """Whichever requests fail, whatever had been sealed behind them waits its turn."""

    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        behave = [lambda *_: None] * failing
        cluster.script(ApiKey.PRODUCE, *behave, refusing(19), refusing(19), lambda *_: NetworkError("lost"))
        values = [b"%04d" % number for number in range(3000)]
        async with Producer(client=cluster.client(), batch_size=512) as producer:
            for value in values:
                await producer.send("t", value)
            await producer.flush()
        assert cluster.logs[T0].values() == values

    run(main())


def test_the_leader_moves_and_the_hint_is_followed_at_once() -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=2, topics={"t": 1})
        loop = asyncio.get_running_loop()
        async with Producer(client=cluster.client()) as producer:
            await (await producer.send("t", b"a"))
            cluster.move_leader(T0, 1)
            begin = loop.time()
            metadata = await (await producer.send("t", b"b"))
            assert loop.time() - begin < 0.02  # No back-off.
        assert metadata.offset == 1
        assert [node for node, request in cluster.requests if isinstance(request, ProduceRequest)] == [0, 0, 1]

    run(main())


def test_a_back_off_for_a_leader_that_is_gone_ends_with_the_news_of_the_next_one() -> None:
    """It had grown to a second while nobody knew; the successor is not to blame for it."""

    async def main() -> None:
        cluster = FakeCluster(brokers=2, topics={"t": 1})
        loop = asyncio.get_running_loop()
        client = cluster.client()
        refusals = asyncio.Semaphore(0)

        def refuse(node_id: int, request: ProduceRequest) -> Any:
            if node_id == 1:
                return None
            refusals.release()
            return refusing(ErrorCode.NOT_ENOUGH_REPLICAS)(node_id, request)

        async with Producer(client=client) as producer:
            cluster.script(ApiKey.PRODUCE, refuse, forever=True)
            handle = await producer.send("t", b"a")
            for _ in range(8):
                await refusals.acquire()
            await asyncio.sleep(0.3)  # in the middle of a wait of about a second
            cluster.move_leader(T0, 1)
            begin = loop.time()
            await client.refresh()
            assert (await handle).offset == 0
            assert loop.time() - begin < 0.02

    run(main())


def test_a_lost_connection_is_opened_again() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        cluster.script(ApiKey.PRODUCE, lambda *_: HANG)
        async with Producer(client=cluster.client()) as producer:
            handle = await producer.send("t", b"a")
            await asyncio.sleep(0.1)
            cluster.drop_connections()
            assert (await handle).offset == 0

    run(main())


def test_delivery_times_out_and_nothing_is_silent() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        cluster.script(ApiKey.PRODUCE, refusing(19), forever=True)
        seen: list[tuple[type, int]] = []
        producer = Producer(
            client=cluster.client(),
            request_timeout_ms=1000,
            delivery_timeout_ms=2000,
            on_error=lambda error, partition, count: seen.append((type(error), count)),
        )
        async with producer:
            handle = await producer.send("t", b"a")
            await producer.send("t", b"b")
            begin = asyncio.get_running_loop().time()
            with pytest.raises(DeliveryTimeoutError, match="may have been written"):
                await handle
            assert 1.9 < asyncio.get_running_loop().time() - begin < 4
        assert seen == [(DeliveryTimeoutError, 2)]

    run(main())


def test_delivery_times_out_without_a_leader() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        async with Producer(client=cluster.client(), request_timeout_ms=1000, delivery_timeout_ms=2000) as producer:
            await producer.prepare("t")
            cluster.move_leader(T0, -1)
            producer._client.metadata.forget_leader(T0, node_id=0)
            with pytest.raises(DeliveryTimeoutError, match="never sent"):
                await (await producer.send("t", b"a"))

    run(main())


def test_a_refusal_for_good_hits_only_the_batch_to_blame() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})

        def script(node_id: int, request: ProduceRequest) -> Any:
            return refusing(87)(node_id, request) if b"bad" in bytes(request.partitions[0].records) else None

        cluster.script(ApiKey.PRODUCE, script, forever=True)
        async with Producer(client=cluster.client(), batch_size=256) as producer:
            handles = [await producer.send("t", value + bytes(150)) for value in (b"a", b"b", b"bad", b"c", b"d")]
            outcomes = await asyncio.gather(*handles, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes].count(InvalidRecordError) == 1
        assert isinstance(outcomes[2], InvalidRecordError)
        assert [value[:1] for value in cluster.logs[T0].values() if value] == [b"a", b"b", b"c", b"d"]

    run(main())


def test_a_full_buffer_blocks_and_then_refuses() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        cluster.script(ApiKey.PRODUCE, lambda *_: HANG, forever=True)
        producer = Producer(client=cluster.client(), batch_size=1024, buffer_memory=4096, max_block_ms=500)
        await producer.start()
        await producer.prepare("t")
        with pytest.raises(BufferExhaustedError, match="4096"):
            for _ in range(100):
                producer.send_nowait("t", bytes(500))
        begin = asyncio.get_running_loop().time()
        with pytest.raises(BufferExhaustedError):
            await producer.send("t", bytes(500))
        assert asyncio.get_running_loop().time() - begin == pytest.approx(0.5, abs=0.01)
        await producer.close(timeout_ms=100)

    run(main())


def test_a_frozen_partition_holds_up_no_send_while_the_buffer_has_room() -> None:
    """Neither its own records, beyond a moment, nor those of others at all."""

    async def main(*, partition: int | None, limit_s: float) -> None:
        cluster = FakeCluster(brokers=2, topics={"t": 2})
        loop = asyncio.get_running_loop()
        frozen: list[Any] = []

        def freeze(node_id: int, request: Any) -> Any:
            if node_id == 0:
                frozen.append(request)
                return HANG
            return None

        async with Producer(client=cluster.client(), max_block_ms=1_000, batch_size=1_000, max_in_flight=1) as client:
            await client.prepare("t")
            cluster.script(ApiKey.PRODUCE, freeze, forever=True)
            longest_s = 0.0
            for number in range(400):
                begin = loop.time()
                where = number % 2 if partition is None else partition
                await client.send("t", bytes(200), partition=where)
                if where == 1 or partition is not None:
                    longest_s = max(longest_s, loop.time() - begin)
                if number % 16 == 0:
                    await asyncio.sleep(0)
            assert frozen and longest_s <= limit_s
            assert client._buffer.reserved_bytes < 200_000, "of 64 MiB"
            del cluster.scripts[ApiKey.PRODUCE]
            cluster.drop_connections(0)
            await client.flush()

    run(main(partition=0, limit_s=0.101))
    run(main(partition=None, limit_s=0))  # The other one's.


def test_records_without_keys_go_round_a_frozen_partition() -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=2, topics={"t": 2})
        loop = asyncio.get_running_loop()
        async with Producer(client=cluster.client(), batch_size=1_000, max_in_flight=1) as client:
            await client.prepare("t")
            cluster.script(ApiKey.PRODUCE, lambda node, _: HANG if node == 0 else None, forever=True)
            begin = loop.time()
            for _ in range(2_000):
                await client.send("t", bytes(200))
            assert loop.time() - begin < 1
            await asyncio.sleep(1)
            assert len(cluster.logs[TopicPartition("t", 1)].values()) > 1_900
            del cluster.scripts[ApiKey.PRODUCE]
            cluster.drop_connections(0)

    run(main())


def test_a_send_has_one_deadline_however_often_others_take_the_room() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        loop = asyncio.get_running_loop()
        blocked: list[float] = []

        async def slowly(node_id: int, request: Any) -> Any:
            await asyncio.sleep(0.4)
            return cluster.produce(node_id, request)

        async def one(client: Producer) -> None:
            begin = loop.time()
            try:
                await client.send("t", bytes(900))
            except BufferExhaustedError:
                blocked.append(loop.time() - begin)

        options = {"max_block_ms": 1_000, "batch_size": 1_000, "buffer_memory": 2_000, "max_in_flight": 1}
        async with Producer(client=cluster.client(), **options) as client:
            await client.prepare("t")
            cluster.script(ApiKey.PRODUCE, slowly, forever=True)
            await asyncio.gather(*[one(client) for _ in range(40)])
            assert len(blocked) > 20
            assert max(blocked) <= 1.01
            with pytest.raises(BufferExhaustedError):
                await asyncio.gather(*[client.send_many("t", [bytes(900)]) for _ in range(40)])

    run(main())


def test_a_producer_knows_which_broker_it_waits_for() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        async with Producer(client=cluster.client()) as client:
            await client.prepare("t")
            assert not client.client.unanswered()
            cluster.script(ApiKey.PRODUCE, lambda *_: HANG)
            handle = await client.send("t", b"v")
            await asyncio.sleep(1)
            assert client.client.unanswered() == "no answer yet from broker 0 at fake:9000"
            await handle
            assert not client.client.unanswered() and not client.client.troubles

    run(main())


def test_all_buffer_memory_comes_back() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 3})
        async with Producer(client=cluster.client(), batch_size=1024, buffer_memory=8192) as producer:
            for number in range(500):
                await producer.send("t", bytes(number % 300), key=None if number % 3 else b"%d" % number)
            await producer.send_many("t", [bytes(100)] * 500)
            await producer.flush()
            assert producer._buffer.reserved_bytes == 0

    run(main())


def test_close_flushes_and_fails_what_cannot_leave() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        async with Producer(client=cluster.client(), linger_ms=5000) as producer:
            handle = await producer.send("t", b"a")
        assert handle.result().offset == 0
        cluster.script(ApiKey.PRODUCE, lambda *_: HANG, forever=True)
        producer = Producer(client=cluster.client())
        await producer.start()
        handle = await producer.send("t", b"b")
        await producer.close(timeout_ms=50)
        with pytest.raises(ClientClosedError):
            await handle
        with pytest.raises(ClientClosedError):
            await producer.send("t", b"c")

    run(main())


def test_lingering() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        async with Producer(client=cluster.client(), linger_ms=50) as producer:
            begin = asyncio.get_running_loop().time()
            await (await producer.send("t", b"a"))
            assert 0.04 < asyncio.get_running_loop().time() - begin < 0.06
        async with Producer(client=cluster.client()) as producer:
            begin = asyncio.get_running_loop().time()
            await (await producer.send("t", b"a"))
            assert asyncio.get_running_loop().time() - begin < 0.01

    run(main())


def test_an_unknown_topic_is_created_or_reported() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        async with Producer(client=cluster.client(), max_block_ms=300) as producer:
            with pytest.raises(UnknownTopicOrPartitionError, match="prepare"):
                producer.send_nowait("new", b"a")
            assert (await (await producer.send("new", b"a"))).offset == 0
            cluster.script(
                ApiKey.METADATA,
                lambda node, request: r.MetadataResponse(
                    cluster_id="fake", controller_id=0, offset=9, brokers=(), topics=()
                ),
                forever=True,
            )
            with pytest.raises(UnknownTopicOrPartitionError):
                await producer.send("other", b"a")

    run(main())


def test_acks_0_does_not_wait() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        async with Producer(client=cluster.client(), acks=0) as producer:
            assert (await (await producer.send("t", b"a"))).offset == -1
        assert cluster.logs[T0].values() == [b"a"]

    run(main())


def test_no_broker_answers() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.down.add(0)
        with pytest.raises(NoBrokersAvailableError, match=r"fake:9000.*refused"):
            await Producer(client=cluster.client()).start()

    run(main())


def test_keyless_records_are_spread_and_avoid_partitions_without_a_leader() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 4})
        cluster.move_leader(TopicPartition("t", 2), -1)
        async with Producer(client=cluster.client()) as producer:
            for _ in range(60):
                await (await producer.send("t", b"x"))
        counts = [len(cluster.logs[TopicPartition("t", number)].values()) for number in range(4)]
        assert counts[2] == 0
        assert min(counts[0], counts[1], counts[3]) > 5

    run(main())


def test_a_waiter_who_is_cancelled_cancels_nobody_else() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        cluster.script(ApiKey.PRODUCE, lambda *_: NotEnoughReplicasError("wait"))
        async with Producer(client=cluster.client()) as producer:
            handle = await producer.send("t", b"a")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await handle
            assert (await handle).offset == 0

    run(main())


def test_records_that_linger_follow_their_leader_to_an_idle_broker() -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=2, topics={"t": 4})
        gate = asyncio.Event()

        async def slowly(node_id: int, request: ProduceRequest) -> r.ProduceResponse:
            await gate.wait()
            return cluster.produce(node_id, request)

        client = cluster.client()
        loop = asyncio.get_running_loop()
        async with Producer(client=client) as producer:
            await producer.prepare("t")
            cluster.script(ApiKey.PRODUCE, lambda *arguments: slowly(*arguments))
            first = await producer.send("t", b"a", partition=0)
            await asyncio.sleep(0.1)
            second = await producer.send("t", b"b", partition=2)  # Lingers: broker 0 is busy.
            await asyncio.sleep(0.1)
            cluster.move_leader(TopicPartition("t", 2), 1)
            await client.refresh()
            gate.set()
            await first
            begin = loop.time()
            await second
            assert loop.time() - begin < 1

    run(main())


def test_an_error_in_the_callback_of_errors_stops_nothing() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 2})

        async def slowly(node_id: int, request: ProduceRequest) -> r.ProduceResponse:
            await asyncio.sleep(1)
            return cluster.produce(node_id, request)

        cluster.script(ApiKey.PRODUCE, slowly, refusing(ErrorCode.MESSAGE_TOO_LARGE))
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["exception"]))
        seen: list[BaseException] = []

        def broken(*_: object) -> None:
            raise RuntimeError("from the application")

        async with Producer(client=cluster.client(), on_error=broken, linger_ms=10, max_in_flight=1) as producer:
            await producer.send("t", b"first", partition=0)
            await asyncio.sleep(0.1)
            handles = [await producer.send("t", b"a", partition=number) for number in (0, 1)]
            for handle in handles:
                with pytest.raises(RecordTooLargeError):
                    await handle
            assert (await (await producer.send("t", b"b", partition=1))).offset == 0
        assert [type(error) for error in seen] == [RuntimeError, RuntimeError]

    run(main())


def test_acks_0_does_not_run_away_from_a_slow_broker() -> None:
    """Nothing is answered, so the producer asks now and then, and keeps what it may not send yet in its buffer."""

    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        async with Producer(
            client=cluster.client(), acks=0, max_request_bytes=100_000, buffer_memory=1_000_000, max_block_ms=1_000
        ) as producer:
            await producer.prepare("t")
            cluster.script(ApiKey.METADATA, lambda *_: HANG, forever=True)
            with pytest.raises(BufferExhaustedError):
                for _ in range(1000):
                    await producer.send("t", b"x" * 10_000)
            assert sum(len(request.partitions[0].records) for request in cluster.sent(ProduceRequest)) < 2_000_000
            cluster.scripts.clear()

    run(main())


def test_acks_0_closes_only_when_the_broker_has_read_everything() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        read_by_broker = asyncio.Event()

        async def late(node_id: int, request: Any) -> Any:
            await asyncio.sleep(1)
            read_by_broker.set()
            return cluster.metadata(node_id, request)

        async with Producer(client=cluster.client(), acks=0) as producer:
            await producer.send("t", b"a")
            cluster.script(ApiKey.METADATA, lambda *arguments: late(*arguments))
        assert read_by_broker.is_set()

    run(main())


def test_extents_tell_where_whole_batches_lie_also_of_those_that_were_split() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        cluster.logs[T0].max_batch_bytes = 1_000
        async with Producer(client=cluster.client(), batch_size=4096) as producer:
            sent = [await producer.send_many("t", [bytes(90)] * 70), await producer.send_many("t", [bytes(90)] * 30)]
            await producer.flush()
            found = await extents(sent)
        there = [(base, end - base) for base, end, _ in cluster.logs[T0].batches]
        assert [(extent.base_offset, extent.record_count) for extent in found] == there
        assert len(found) > 10 and sum(extent.record_count for extent in found) == 100

    run(main())
