"""`process_each`: many handlers at a time, retries, and commits in order; with the real coordinator, on virtual time."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.fake_groups import FakeGroups
from unit.net.client.virtual_time import run

from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import HandlerFailedError, InvalidConfigError
from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.processing.ledger import Ledger
from barnabas.net.client.processing.process_each import Processed, process_each

PARTITIONS = 3
PER_PARTITION = 40
KEYS = 5
ALL = {(partition, offset) for partition in range(PARTITIONS) for offset in range(PER_PARTITION)}
Place = tuple[int, int]


def a_cluster(partitions: int = PARTITIONS, count: int = PER_PARTITION) -> FakeCluster:
    cluster = FakeCluster(topics={"t": partitions})
    for log in cluster.logs.values():
        keys = [None if number % 7 == 6 else b"k%d" % (number % KEYS) for number in range(count)]
        log.append(encode_batch([b"%d" % number for number in range(count)], keys=keys, timestamps_ms=[0] * count))
    FakeGroups(cluster)
    return cluster


def a_consumer(cluster: FakeCluster, **options: Any) -> Consumer:
    given = {"group": "g", "auto_offset_reset": "earliest", "auto_commit": False, **options}
    return Consumer("t", client=cluster.client(), **given)


class Work:
    """A handler that takes a random time, and notes what it did. `fails` says how often a record fails."""

    def __init__(self, seed: int = 1, fails: Callable[[Place], int] = lambda place: 0, most_s: float = 0.1) -> None:
        self.rng = Random(seed)
        self.fails = fails
        self.most_s = most_s
        self.calls: Counter[Place] = Counter()
        self.done: list[Place] = []
        self.running: set[Place] = set()
        self.most_running = 0
        self.stop = asyncio.Event()
        self.stop_after = len(ALL)

    async def __call__(self, record: ConsumerRecord) -> None:
        place = (record.partition, record.offset)
        assert place not in self.running, "handled twice at the same time"
        self.running.add(place)
        self.most_running = max(self.most_running, len(self.running))
        self.calls[place] += 1
        try:
            await asyncio.sleep(self.rng.uniform(0, self.most_s))
        finally:
            self.running.remove(place)
        if self.calls[place] <= self.fails(place):
            raise ValueError(f"no {self.calls[place]} of {place}")
        self.done.append(place)
        if len(set(self.done)) >= self.stop_after:
            self.stop.set()


async def committed(cluster: FakeCluster) -> dict[int, int]:
    async with Consumer(client=cluster.client(), group="g") as reader:  # not a member
        found = await reader.committed(*[TopicPartition("t", number) for number in range(PARTITIONS)])
    return {place.partition: offset for place, offset in found.items()}


async def processed(cluster: FakeCluster, work: Work, **options: Any) -> Processed:
    async with a_consumer(cluster) as consumer:
        return await process_each(consumer, work, stop=work.stop, **options)


def in_order(done: list[Place], lane: Callable[[Place], object]) -> bool:
    last: dict[object, int] = {}
    for place in done:
        if place[1] < last.get(lane(place), -1):
            return False
        last[lane(place)] = place[1]
    return True


def by_partition(place: Place) -> object:
    return place[0]


def by_key(place: Place) -> object:
    return place if place[1] % 7 == 6 else (place[0], place[1] % KEYS)  # every seventh record has no key


@pytest.mark.parametrize(
    ("order", "lane", "least_running", "most_running"),
    [("partition", by_partition, 3, 3), ("key", by_key, 8, 8), ("none", lambda place: place, 8, 8)],
)
def test_records_of_a_lane_are_in_order_and_others_run_beside_them(
    order: str, lane: Callable[[Place], object], least_running: int, most_running: int
) -> None:
    async def main() -> None:
        cluster, work = a_cluster(), Work()
        outcome = await processed(cluster, work, order=order, concurrency=8)
        assert sorted(work.done) == sorted(ALL) and outcome == Processed(records=len(ALL), retried=0, given_up=0)
        assert in_order(work.done, lane)
        assert in_order(work.done, by_partition) == (order == "partition")
        assert least_running <= work.most_running <= most_running
        assert await committed(cluster) == dict.fromkeys(range(PARTITIONS), PER_PARTITION)

    run(main())


def test_what_fails_is_tried_again_after_waits_that_double_and_holds_up_only_its_lane() -> None:
    async def main() -> None:
        cluster = a_cluster()
        work = Work(fails=lambda place: 3 if place == (1, 7) else 0, most_s=0)
        work.stop_after = len(ALL)
        begun = asyncio.get_running_loop().time()
        outcome = await processed(
            cluster, work, order="partition", attempts=4, backoff_ms=(1_000, 3_000), concurrency=1
        )
        took = asyncio.get_running_loop().time() - begun
        assert outcome == Processed(records=len(ALL), retried=3, given_up=0)
        assert 0.8 * 6 <= took <= 1.2 * 6 + 1  # 1 s, 2 s and 3 s, a fifth more or less
        last = {place: index for index, place in enumerate(work.done)}
        assert (
            max(last[0, PER_PARTITION - 1], last[2, PER_PARTITION - 1]) < last[1, 7]
        )  # though there is one place only
        assert in_order(work.done, by_partition)

    run(main())


def test_the_last_failure_stops_and_the_record_comes_again() -> None:
    async def main() -> None:
        cluster = a_cluster()
        work = Work(fails=lambda place: 9 if place == (1, 7) else 0)
        async with a_consumer(cluster) as consumer:
            with pytest.raises(
                HandlerFailedError, match=r"t-1 at offset 7, 2 times: ValueError: no 2 of \(1, 7\)"
            ) as raised:
                await process_each(consumer, work, attempts=2, backoff_ms=(10, 10))
            assert isinstance(raised.value.__cause__, ValueError)
            assert not work.running
            assert await consumer.position(("t", 1)) == 7  # also for this consumer
            offsets = await committed(cluster)
            assert offsets.get(1, 0) <= 7
            assert all(
                (partition, offset) in work.done for partition in offsets for offset in range(offsets[partition])
            )
            work.fails = lambda place: 0
            await process_each(consumer, work, stop=work.stop)
        assert set(work.done) == ALL and await committed(cluster) == dict.fromkeys(range(PARTITIONS), PER_PARTITION)

    run(main())


def test_a_record_that_is_given_up_is_done() -> None:
    async def main() -> None:
        for how in ("skip", "function"):
            letters: list[tuple[int, str]] = []

            async def keep(record: ConsumerRecord, error: Exception, letters: Any = letters) -> None:
                await asyncio.sleep(0.01)
                letters.append((record.offset, str(error)))

            cluster, work = a_cluster(), Work(fails=lambda place: 9 if place == (1, 7) else 0)
            work.stop_after = len(ALL) - 1
            outcome = await processed(
                cluster, work, attempts=2, backoff_ms=(0, 0), on_failure="skip" if how == "skip" else keep
            )
            assert outcome.given_up == outcome.retried == 1
            assert work.calls[1, 7] == 2 and len(work.done) == len(ALL) - 1
            assert letters == ([] if how == "skip" else [(7, "no 2 of (1, 7)")])
            assert await committed(cluster) == dict.fromkeys(range(PARTITIONS), PER_PARTITION)

    run(main())


def test_a_function_for_failures_that_fails_stops_too() -> None:
    def refuse(record: ConsumerRecord, error: Exception) -> None:
        raise OSError("no dead letters")

    async def main() -> None:
        cluster, work = a_cluster(), Work(fails=lambda place: 9 if place == (1, 7) else 0)
        with pytest.raises(OSError, match="no dead letters"):
            await processed(cluster, work, attempts=1, on_failure=refuse)
        assert (await committed(cluster)).get(1, 0) <= 7

    run(main())


def test_an_attempt_has_a_time_limit() -> None:
    async def main() -> None:
        cluster, work = a_cluster(), Work(most_s=0)
        hung = 0

        async def handle(record: ConsumerRecord) -> None:
            nonlocal hung
            if (record.partition, record.offset) == (0, 3) and not hung:
                hung += 1
                await asyncio.Event().wait()
            await work(record)

        async with a_consumer(cluster) as consumer:
            outcome = await process_each(consumer, handle, stop=work.stop, timeout_ms=500)
        assert outcome.retried == hung == 1 and set(work.done) == ALL

    run(main())


def test_a_function_is_called_in_a_thread() -> None:
    async def main() -> None:
        cluster, work, seen = a_cluster(), Work(), []

        def handle(record: ConsumerRecord) -> None:
            seen.append((record.partition, record.offset))
            if len(seen) == len(ALL):
                work.stop.set()

        async with a_consumer(cluster) as consumer:
            outcome = await process_each(consumer, handle, stop=work.stop, order="partition")
        assert outcome.records == len(ALL) and in_order(seen, by_partition)

    run(main())


def test_slow_handlers_cost_neither_the_membership_nor_the_memory() -> None:
    async def main() -> None:
        cluster, work = a_cluster(1, 12), Work(most_s=400)
        work.stop_after = 12
        read: list[int] = []
        async with a_consumer(cluster, max_poll_interval_ms=60_000) as consumer:
            poll = consumer.poll

            async def noted(**options: Any) -> Any:
                found = await poll(**options)
                read.append(sum(map(len, found.values())))
                assert sum(read) - len(work.done) <= 6 + 4  # those just ended are still in flight for a moment
                return found

            consumer.poll = noted  # type: ignore[method-assign]
            await process_each(consumer, work, stop=work.stop, concurrency=4, max_in_flight=6)
            assert consumer.paused == []
        assert set(work.calls.values()) == {1} and len(work.done) == 12

    run(main())


@pytest.mark.parametrize("seed", range(20))
def test_members_that_come_and_go_leave_out_nothing_and_hand_over_what_is_done(seed: int) -> None:
    """Without crashes and failures: what is done of a partition is committed before another member begins. In the order of the
    keys, records that overtook others are handled again."""

    async def main() -> None:
        rng, order = Random(seed), ("partition", "key")[seed % 2]
        cluster, work = a_cluster(), Work(seed, most_s=rng.choice((0.05, 0.5, 3)))
        stops = [asyncio.Event() for _ in range(3)]

        async def member(stop: asyncio.Event, after_s: float) -> None:
            await asyncio.sleep(after_s)
            async with a_consumer(cluster, heartbeat_interval_ms=200) as consumer:
                closing = asyncio.create_task(closed_at(consumer, stop)) if rng.random() < 0.5 else None
                await process_each(consumer, work, stop=asyncio.Event() if closing else stop, order=order)
                if closing is not None:
                    await closing

        async def closed_at(consumer: Consumer, stop: asyncio.Event) -> None:
            await stop.wait()
            await consumer.close()

        async with asyncio.TaskGroup() as tasks:
            for stop in stops:
                tasks.create_task(member(stop, rng.uniform(0, 3)))
            await asyncio.sleep(rng.uniform(1, 4))
            stops[0].set()  # its partitions go to the others
            await work.stop.wait()
            for stop in stops:
                stop.set()
        assert set(work.done) == ALL
        assert order == "key" or not {place: count for place, count in work.calls.items() if count > 1}
        assert await committed(cluster) == dict.fromkeys(range(PARTITIONS), PER_PARTITION)

    run(main())


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_committed_before_it_is_done_though_tasks_are_cancelled(seed: int) -> None:
    async def main() -> None:
        rng = Random(seed)
        cluster, work = a_cluster(), Work(seed, fails=lambda place: sum(place) % 5 == 0, most_s=rng.choice((0.01, 0.3)))
        for _ in range(200):
            async with AsyncExitStack() as stack:
                consumer = await stack.enter_async_context(a_consumer(cluster))
                order = rng.choice(("key", "partition", "none"))
                task = asyncio.create_task(
                    process_each(
                        consumer,
                        work,
                        stop=work.stop,
                        order=order,
                        backoff_ms=(1, 1),
                        concurrency=3,
                        commit_interval_ms=50,
                    )
                )
                await asyncio.wait([task], timeout=rng.uniform(0, 3))
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert not work.running
            for partition, offset in (await committed(cluster)).items():
                assert {(partition, before) for before in range(offset)} <= set(work.done)
            if work.stop.is_set():
                break
        assert set(work.done) == ALL

    run(main())


def test_a_group_that_is_moved_back_handles_the_records_again() -> None:
    async def main() -> None:
        cluster, work = a_cluster(), Work()
        async with a_consumer(cluster) as consumer:
            task = asyncio.create_task(process_each(consumer, work))
            await work.stop.wait()
            consumer.seek(("t", 1), 10)
            while len(work.done) < len(ALL) + PER_PARTITION - 10:  # noqa: ASYNC110 - time is virtual
                await asyncio.sleep(0.05)
            assert work.calls[1, 9] == 1 and work.calls[1, 10] == 2
            await consumer.close()
            assert (await task).records == len(ALL) + PER_PARTITION - 10

    run(main())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"order": "keys"}, 'order is \'keys\'; it must be "partition", "key", "none"'),
        ({"on_failure": "dlq"}, 'on_failure is \'dlq\'; it must be "stop", "skip", or a function'),
        ({"concurrency": 0}, "concurrency is 0; it must be a whole number from 1 to 10000"),
        ({"concurrency": 2.5}, "concurrency is 2.5; it must be a whole number"),
        ({"delay_ms": "5"}, "delay_ms is '5'; it must be a number of 0 or more"),
        ({"delay_ms": float("nan")}, "delay_ms is nan"),
        ({"concurrency": 50, "max_in_flight": 20}, "max_in_flight is 20; it must be a whole number from 50 to 100000"),
        ({"attempts": 0}, "attempts is 0"),
        ({"backoff_ms": (100, 10)}, "backoff_ms is"),
        ({"timeout_ms": 0}, "timeout_ms is 0"),
        ({"commit_interval_ms": -1}, "commit_interval_ms is -1"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], told: str) -> None:
    async def main() -> None:
        async with a_consumer(a_cluster()) as consumer:
            with pytest.raises(InvalidConfigError, match=told):
                await process_each(consumer, Work(), **options)
            with pytest.raises(InvalidConfigError, match="timeout_ms needs a coroutine function"):
                await process_each(consumer, print, timeout_ms=5)

    run(main())


@pytest.mark.parametrize("options", [{"auto_commit": True}, {"group": None, "auto_commit": False}])
def test_a_consumer_that_commits_itself_or_cannot_is_refused(options: dict[str, Any]) -> None:
    async def main() -> None:
        async with a_consumer(a_cluster(), **options) as consumer:
            with pytest.raises(InvalidConfigError, match="create the consumer with group= and auto_commit=False"):
                await process_each(consumer, Work())

    run(main())


@pytest.mark.parametrize("seed", range(50))
def test_the_ledger_is_what_counting_says(seed: int) -> None:
    rng, ledger = Random(seed), Ledger()
    assert ledger.committable is None and ledger.open_count == 0
    begun: list[int] = []
    done: set[int] = set()
    for _ in range(300):
        waiting = [offset for offset in begun if offset not in done]
        if not waiting or rng.random() < 0.5:
            offset = (begun[-1] if begun else rng.randrange(5)) + rng.choice((1, 1, 1, 4))
            assert ledger.follows(offset)
            ledger.begin(offset)
            begun.append(offset)
            assert not ledger.follows(offset)
        else:
            offset = rng.choice(waiting)
            assert ledger.is_open(offset)
            ledger.done(offset)
            done.add(offset)
            assert not ledger.is_open(offset)
        waiting = [offset for offset in begun if offset not in done]
        assert ledger.open_count == len(waiting)
        assert ledger.committable == (min(waiting) if waiting else begun[-1] + 1)
