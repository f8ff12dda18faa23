"""`process_each` where handlers, commits, revocations and signals go wrong; with the real coordinator, on virtual time."""

import asyncio
import os
import signal
from typing import Any

import pytest
from unit.net.client.fake_cluster import HANG, FakeCluster
from unit.net.client.test_process_each import a_cluster, a_consumer, committed
from unit.net.client.virtual_time import run

from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.errors import BarnabasError, NotCoordinatorError
from barnabas.net.client.connection.errors import HandlerFailedError
from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.client.processing.process_each import LAST_COMMIT_S, Processed, process_each
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.responses import ErrorResponse


class Outcome(BaseException):
    """As pytest's own `Failed`."""


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize(
    ("error", "told"),
    [(asyncio.CancelledError, HandlerFailedError), (Outcome, Outcome), (StopIteration, HandlerFailedError)],
)
def test_a_handler_that_raises_what_is_no_exception_does_not_end_its_lane_in_silence(
    error: type[BaseException], told: type[BaseException], in_thread: bool
) -> None:
    def fail(record: ConsumerRecord) -> None:
        raise error

    async def fail_too(record: ConsumerRecord) -> None:
        raise error

    async def main() -> None:
        async with a_consumer(a_cluster(1, 5)) as consumer, asyncio.timeout(100):
            with pytest.raises(told):
                await process_each(consumer, fail if in_thread else fail_too, attempts=2, backoff_ms=(1, 1))

    run(main())


def test_a_handler_that_cancels_its_own_task_ends_the_processing() -> None:
    async def handle(record: ConsumerRecord) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    async def main() -> None:
        async with a_consumer(a_cluster(1, 5)) as consumer, asyncio.timeout(100):
            with pytest.raises(HandlerFailedError, match="t-0 at offset 0 was cancelled"):
                await process_each(consumer, handle, order="partition")

    run(main())


def test_no_handler_begins_after_a_cancellation_that_another_one_ignores() -> None:
    calls: list[int] = []

    async def handle(record: ConsumerRecord) -> None:
        calls.append(record.offset)
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            if record.offset % 2:
                raise ValueError("not cancelled, but failed") from None

    async def main() -> None:
        for first in (0, 1):
            calls.clear()
            cluster = a_cluster(1, 40)
            async with a_consumer(cluster) as consumer:
                task = asyncio.create_task(process_each(consumer, handle, order="partition"))
                await asyncio.sleep(5 + 10 * first)
                task.cancel()
                begun_s = asyncio.get_running_loop().time()
                await asyncio.gather(task, return_exceptions=True)
                assert task.cancelled()
                assert calls == list(range(first + 1))
                assert asyncio.get_running_loop().time() - begun_s < 1

    run(main())


async def _taken_by_another(cluster: FakeCluster, places: int, **options: Any) -> float:
    """Let another member join; seconds until it owns so many partitions."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    async with a_consumer(cluster, heartbeat_interval_ms=200, **options) as other:
        while len(other.assignment) < places:
            await other.poll(timeout_ms=100)
        took_s = loop.time() - begun_s
        for _ in range(50):
            await other.poll(timeout_ms=100)
    return took_s


def _slow_where_it_goes(seconds: float, stays: float = 0.01) -> Any:
    """A handler that is slow for partition 1, which goes to the second member."""

    async def handle(record: ConsumerRecord) -> None:
        await asyncio.sleep(seconds if record.partition == 1 else stays)

    return handle


def test_partitions_go_on_when_the_one_that_filled_the_room_is_taken_away() -> None:
    done: list[int] = []
    slow = _slow_where_it_goes(10_000)

    async def handle(record: ConsumerRecord) -> None:
        await slow(record)
        done.append(record.partition)

    async def main() -> None:
        cluster = a_cluster(2, 300)
        async with a_consumer(cluster, heartbeat_interval_ms=200) as consumer:
            task = asyncio.create_task(
                process_each(consumer, handle, order="partition", concurrency=2, max_in_flight=20)
            )
            while len(consumer.assignment) < 2:  # noqa: ASYNC110 - time is virtual
                await asyncio.sleep(0)
            consumer.pause(("t", 0))
            await asyncio.sleep(10)
            consumer.resume(("t", 0))
            await asyncio.sleep(10)
            assert len(consumer.paused) == 2 and done.count(0) < 300
            await _taken_by_another(cluster, 1)
            await asyncio.sleep(60)
            assert done.count(0) == 300
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(main())


def test_records_that_wait_for_their_turn_do_not_hold_up_a_revocation() -> None:
    async def main() -> None:
        cluster = a_cluster(2, 10)
        async with a_consumer(cluster, heartbeat_interval_ms=200) as consumer:
            handle = _slow_where_it_goes(10, stays=10_000)
            task = asyncio.create_task(process_each(consumer, handle, order="partition", concurrency=1))
            await asyncio.sleep(5)
            assert await _taken_by_another(cluster, 1) < 5
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(main())


def test_handlers_of_a_partition_that_goes_do_not_cost_the_membership() -> None:
    lost: list[Any] = []

    async def main() -> None:
        cluster = a_cluster(2, 10)
        consumer = a_consumer(cluster, heartbeat_interval_ms=200, max_poll_interval_ms=30_000, on_lost=lost.append)
        async with consumer:
            task = asyncio.create_task(process_each(consumer, _slow_where_it_goes(500, stays=500), order="partition"))
            await asyncio.sleep(5)
            assert 14 < await _taken_by_another(cluster, 1) < 25
            assert not lost and not task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(main())


def test_handlers_that_are_slow_at_the_end_do_not_cost_the_membership_either() -> None:
    stop, lost = asyncio.Event(), []

    async def main() -> None:
        cluster = a_cluster(2, 10)
        consumer = a_consumer(cluster, heartbeat_interval_ms=200, max_poll_interval_ms=30_000, on_lost=lost.append)
        async with consumer:
            task = asyncio.create_task(
                process_each(consumer, _slow_where_it_goes(500, stays=100), order="partition", stop=stop)
            )
            await asyncio.sleep(5)
            stop.set()
            await asyncio.sleep(120)
            assert (await committed(cluster))[0] == 1  # though partition 1 is still at work
            assert (await task).records == 2 and not lost
            assert await committed(cluster) == {0: 1, 1: 1}
            assert await consumer.position(("t", 0)) == await consumer.position(("t", 1)) == 1 and not consumer.paused

    run(main())


def test_a_cancellation_after_a_failed_poll_ends_the_handlers_too() -> None:
    running = 0

    async def handle(record: ConsumerRecord) -> None:
        nonlocal running
        running += 1
        try:
            await asyncio.sleep(1_000)
        finally:
            running -= 1

    async def main() -> None:
        async with a_consumer(a_cluster(2, 10)) as consumer:
            task = asyncio.create_task(process_each(consumer, handle, order="partition", attempts=1))
            await asyncio.sleep(5)
            consumer._polling.fail(BarnabasError("no more records"))
            await asyncio.sleep(5)
            assert running and not task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled() and not running

    run(main())


def test_no_handler_runs_after_the_return_though_its_partition_was_lost() -> None:
    stop, running, seconds = asyncio.Event(), 0, [100.0]
    at_once = 0

    async def handle(record: ConsumerRecord) -> None:
        nonlocal running, at_once
        running += 1
        at_once = max(at_once, running)
        try:
            await asyncio.sleep(seconds.pop() if seconds else 0.1)
        finally:
            running -= 1

    async def main() -> None:
        async with a_consumer(a_cluster(1, 20), heartbeat_interval_ms=200) as consumer:
            task = asyncio.create_task(process_each(consumer, handle, order="partition", stop=stop))
            await asyncio.sleep(5)
            await consumer.unsubscribe()
            await consumer.subscribe("t")
            while not consumer.assignment:  # noqa: ASYNC110 - time is virtual
                await asyncio.sleep(0.1)
            await asyncio.sleep(5)
            stop.set()
            await task
            assert running == 0 and at_once == 1

    run(main())


def _refused_commits(cluster: FakeCluster) -> None:
    async def refuse() -> ErrorResponse:
        return ErrorResponse(error=int(NotCoordinatorError("").code), message="not here")

    cluster.answers[ApiKey.OFFSET_COMMIT] = lambda node, request: refuse()


def test_a_failed_commit_at_the_end_hides_no_other_failure_and_skips_no_record() -> None:
    async def main() -> None:
        cluster = a_cluster(1, 40)
        taken = cluster.answers[ApiKey.OFFSET_COMMIT]
        is_broken, stop = True, asyncio.Event()
        done: list[int] = []

        async def handle(record: ConsumerRecord) -> None:
            if record.offset == 20 and is_broken:
                _refused_commits(cluster)
                raise ValueError
            done.append(record.offset)
            if record.offset == 39:
                stop.set()

        async with a_consumer(cluster) as consumer:
            with pytest.raises(HandlerFailedError, match="t-0 at offset 20"):
                await process_each(consumer, handle, order="partition", attempts=1)
            cluster.answers[ApiKey.OFFSET_COMMIT] = taken
            is_broken = False
            await process_each(consumer, handle, order="partition", stop=stop)
        assert done == list(range(40)) and await committed(cluster) == {0: 40}

    run(main())


def test_a_failed_commit_hides_no_cancellation() -> None:
    async def main() -> None:
        cluster = a_cluster(1, 40)

        async def handle(record: ConsumerRecord) -> None:
            if record.offset == 20:
                _refused_commits(cluster)
                await asyncio.sleep(1_000)

        async with a_consumer(cluster) as consumer:
            task = asyncio.create_task(process_each(consumer, handle, order="partition", commit_interval_ms=1_000_000))
            await asyncio.sleep(5)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled() and await consumer.position(("t", 0)) == 20

    run(main())


@pytest.mark.parametrize("times", [1, 2])
def test_a_cancelled_call_waits_a_while_for_a_coordinator_that_stands_still(times: int) -> None:
    """It waited a minute."""

    async def main() -> None:
        cluster = a_cluster(1, 40)
        cluster.script(ApiKey.OFFSET_COMMIT, lambda *_: HANG, forever=True)

        async def handle(record: ConsumerRecord) -> None:
            if record.offset == 20:
                await asyncio.sleep(1_000)

        async with a_consumer(cluster) as consumer:
            task = asyncio.create_task(process_each(consumer, handle, order="partition", commit_interval_ms=1_000_000))
            await asyncio.sleep(5)
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0.1)
            began_s = asyncio.get_running_loop().time()
            await asyncio.wait([task])
            assert asyncio.get_running_loop().time() - began_s <= (LAST_COMMIT_S if times == 1 else 0)
            assert task.cancelled() and await consumer.position(("t", 0)) == 20
            cluster.scripts.clear()

    run(main())


def test_a_coordinator_that_is_away_at_a_revocation_ends_nothing() -> None:
    async def main() -> None:
        cluster = a_cluster(2, 10)
        taken = cluster.answers[ApiKey.OFFSET_COMMIT]
        async with a_consumer(cluster, heartbeat_interval_ms=200) as consumer:
            stop = asyncio.Event()
            task = asyncio.create_task(process_each(consumer, _slow_where_it_goes(3), order="partition", stop=stop))
            await asyncio.sleep(5)
            _refused_commits(cluster)
            await _taken_by_another(cluster, 1)
            cluster.answers[ApiKey.OFFSET_COMMIT] = taken
            assert not task.done()
            await asyncio.sleep(60)
            stop.set()
            await task
        assert await committed(cluster) == {0: 10, 1: 10}

    run(main())


def test_what_is_being_committed_at_the_end_is_committed_at_the_return() -> None:
    async def main() -> None:
        cluster, stop, held = a_cluster(1, 40), asyncio.Event(), asyncio.Event()
        taken = cluster.answers[ApiKey.OFFSET_COMMIT]

        async def slow(node: int, request: Any) -> Any:
            held.set()
            await asyncio.sleep(3)
            return await taken(node, request)

        async def handle(record: ConsumerRecord) -> None:
            await asyncio.sleep(0.1)
            if record.offset == 39:
                cluster.answers[ApiKey.OFFSET_COMMIT] = lambda node, request: slow(node, request)

        async with a_consumer(cluster) as consumer:
            task = asyncio.create_task(
                process_each(consumer, handle, order="partition", commit_interval_ms=0, stop=stop)
            )
            await held.wait()
            await asyncio.sleep(0.5)
            stop.set()
            assert await task == Processed(records=40, retried=0, given_up=0)
            assert await committed(cluster) == {0: 40}

    run(main())


def test_a_member_that_is_removed_while_a_partition_goes_comes_back() -> None:
    async def main() -> None:
        cluster = a_cluster(2, 10)
        async with a_consumer(cluster, heartbeat_interval_ms=200) as consumer:
            stop = asyncio.Event()
            task = asyncio.create_task(
                process_each(consumer, _slow_where_it_goes(20, stays=3), order="partition", stop=stop)
            )
            await asyncio.sleep(5)
            taking = asyncio.create_task(_taken_by_another(cluster, 1))
            await asyncio.sleep(8)
            cluster.logs["t", 0].append(encode_batch([b"more"] * 10, timestamps_ms=[0] * 10))
            session = consumer._subscriber.session
            assert session is not None
            session.ownership.fence()  # type: ignore[attr-defined]
            await taking
            await asyncio.sleep(300)
            assert not task.done()
            stop.set()
            await task
        assert await committed(cluster) == {0: 20, 1: 10}

    run(main())


def test_a_seek_back_does_not_stop_the_polls_while_a_handler_runs() -> None:
    lost: list[Any] = []

    async def main() -> None:
        cluster, stop = a_cluster(1, 10), asyncio.Event()
        calls: list[int] = []

        async def handle(record: ConsumerRecord) -> None:
            calls.append(record.offset)
            await asyncio.sleep(100 if len(calls) == 10 else 0.1)
            if len(calls) == 18:
                stop.set()

        consumer = a_consumer(cluster, heartbeat_interval_ms=200, max_poll_interval_ms=30_000, on_lost=lost.append)
        async with consumer:
            task = asyncio.create_task(process_each(consumer, handle, order="partition", stop=stop))
            await asyncio.sleep(5)
            consumer.seek(("t", 0), 2)
            await task
        assert calls == [*range(10), *range(2, 10)] and not lost

    run(main())


async def _nothing(record: ConsumerRecord) -> None:
    pass


def test_one_signal_stops_all_that_want_it_and_the_former_handlers_come_back() -> None:
    heard: list[int] = []

    async def main() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, heard.append, 1)
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        cluster = a_cluster(1, 10)
        one, two = a_consumer(cluster), a_consumer(cluster, group="h")
        async with one, two, asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            for consumer in (one, two):
                tasks.create_task(process_each(consumer, _nothing, stop_on_signals=True))
            await asyncio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
        heard.clear()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.01)
        assert heard == [1]
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)

    asyncio.run(main())


def test_the_second_signal_ends_handlers_that_hang() -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def hang(record: ConsumerRecord) -> None:
            begun.set()
            await asyncio.Event().wait()

        async def interrupt() -> None:
            await begun.wait()
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        async with a_consumer(a_cluster(1, 10)) as consumer, asyncio.timeout(20):
            interrupting = asyncio.create_task(interrupt())
            await process_each(consumer, hang, stop_on_signals=True)
            await interrupting

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
