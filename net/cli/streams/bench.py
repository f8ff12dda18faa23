"""`barnabas bench`: what this client gets out of this cluster: rates of producing and consuming, and percentiles of waiting."""

import asyncio
import os
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..frame.command import Context, Verb, number_from
from ..frame.exit_codes import ExitCode
from ..frame.output import Row
from ..frame.patience import Patience
from ..frame.progress import Progress
from ..records.places import offsets_of
from .produce import COMPRESSIONS

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.client.producer.handles import Handle
    from barnabas.net.client.producer.producer import Producer

MAX_RECORDS: Final = 100_000_000
MAX_RECORD_BYTES: Final = 1_000_000  # brokers refuse batches of more than message.max.bytes (1 MiB by default)
MAX_IN_FLIGHT: Final = 1_000_000
MAX_RATE: Final = 10_000_000
MAX_SAMPLES: Final = 100_000  # of latencies, 8 bytes each: every k-th record is timed
PAYLOADS: Final = 64  # different values, so that compression has about as much to do as with incompressible data
BURST: Final = 256  # records between two looks at the time without progress
POLL_MS: Final = 500
PERCENTILES: Final = (50, 95, 99, 99.9)


def percentiles_ms(waits_s: Sequence[float]) -> Row:
    """The percentiles of waiting times, by nearest rank, and the longest; None without a measurement."""
    ordered = sorted(waits_s)

    def shown(rank: int) -> float | None:
        return round(ordered[rank] * 1000, 3) if ordered else None

    found = {f"p{share:g}_ms": shown(min(len(ordered) - 1, int(len(ordered) * share / 100))) for share in PERCENTILES}
    return {**found, "max_ms": shown(-1), "samples": len(ordered)}


def _up_to(most: int) -> Callable[[str], int]:
    """The argparse type of an integer from 1 on, with a limit."""

    def number(text: str) -> int:
        found = number_from(1)(text)
        if found > most:
            raise ArgumentTypeError(f"{text}: give an integer of at most {most}")
        return found

    return number


def _produce_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="TOPIC", help="an existing topic; the records stay in it")
    count, size, many, rate = _up_to(MAX_RECORDS), _up_to(MAX_RECORD_BYTES), _up_to(MAX_IN_FLIGHT), _up_to(MAX_RATE)
    parser.add_argument("-n", "--num", type=count, default=100_000, metavar="N", help="records; default: %(default)s")
    parser.add_argument("--size", type=size, default=100, metavar="BYTES", help="of a value; default: %(default)s")
    parser.add_argument("--rate", type=rate, metavar="N", help="records per second; default: as many as possible")
    parser.add_argument(
        "--in-flight",
        type=many,
        default=10_000,
        metavar="N",
        help="records that wait for acknowledgements at once; fewer: less waiting, less throughput (default: %(default)s)",
    )
    parser.add_argument(
        "--linger", type=number_from(0), default=0, metavar="MS", help="wait for larger batches; default: 0"
    )
    parser.add_argument("-z", "--compression", choices=COMPRESSIONS, default="none", help="codec; default: none")
    parser.add_argument("--acks", choices=("0", "1", "all"), default="all", help="default: all")


async def _produce(context: Context) -> int:
    """Measure the time from handing a record over to its acknowledgement."""
    wanted = context.arguments
    patience = Patience(wanted.timeout, note=context.out.note, trouble=lambda: "")
    async with context.connector.admin(context.bootstrap) as admin:
        await patience.wait(admin.describe_topic(wanted.name), f"a broker at {context.bootstrap}")
    async with AsyncExitStack() as stack:
        opening = stack.enter_async_context(
            context.connector.producer(
                context.bootstrap, acks=wanted.acks, compression=wanted.compression, linger_ms=wanted.linger
            )
        )
        producer = await patience.wait(opening, f"a broker at {context.bootstrap}")
        sending = _Sending(context, producer, patience)
        elapsed_s = await sending.run()
    _show(context, wanted.num, wanted.num * wanted.size, elapsed_s, sending.waits_s)
    return ExitCode.OK


class _Sending:
    """One run of `bench produce`: what waits for acknowledgements, and how long the timed records have waited."""

    def __init__(self, context: Context, producer: "Producer", patience: Patience) -> None:
        self._wanted = context.arguments
        self._producer = producer
        self._patience = patience
        self._payloads = [os.urandom(self._wanted.size) for _ in range(PAYLOADS)]
        self._every = -(-self._wanted.num // MAX_SAMPLES)
        self._timing: set[asyncio.Task[None]] = set()
        self._waiting: deque[Handle] = deque()
        self._progress = Progress(context.out.stderr, "records", self._wanted.num)
        self._started_s = time.perf_counter()
        self.waits_s: list[float] = []

    async def run(self) -> float:
        """Send all records; returns the seconds until the last acknowledgement."""
        wanted, wait = self._wanted, self._patience.wait
        step = min(BURST, wanted.rate or BURST)
        try:
            for first in range(0, wanted.num, step):
                count = min(step, wanted.num - first)
                await wait(self._burst(range(first, first + count)), "acknowledgements")
                self._progress.advance(count, count)
            await wait(self._producer.flush(), "acknowledgements")
            elapsed_s = time.perf_counter() - self._started_s
            await wait(self._settled(), "acknowledgements")
        finally:
            self._progress.finish()
            for task in self._timing:
                task.cancel()
            await asyncio.gather(*self._timing, return_exceptions=True)
        return elapsed_s

    async def _burst(self, numbers: range) -> None:
        wanted, waiting = self._wanted, self._waiting
        for number in numbers:
            if wanted.rate and (early_s := self._started_s + number / wanted.rate - time.perf_counter()) > 0:
                await asyncio.sleep(early_s)
            since_s = time.perf_counter()
            handle = await self._producer.send(wanted.name, self._payloads[number % PAYLOADS])
            waiting.append(handle)
            if number % self._every == 0:
                task = asyncio.create_task(self._timed(handle, since_s))
                self._timing.add(task)
                task.add_done_callback(self._timing.discard)
            while len(waiting) >= wanted.in_flight or (waiting and waiting[0].is_done):
                await waiting.popleft()

    async def _timed(self, handle: "Handle", since_s: float) -> None:
        await handle
        self.waits_s.append(time.perf_counter() - since_s)

    async def _settled(self) -> None:
        for handle in self._waiting:
            await handle
        await asyncio.gather(*self._timing)


def _consume_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="TOPIC", help="the topic, which is read from its start")
    parser.add_argument(
        "-n", "--num", type=_up_to(MAX_RECORDS), metavar="N", help="records; default: all that are there"
    )


async def _consume(context: Context) -> int:
    """Measure the time that each poll waits for records."""
    wanted = context.arguments
    patience = Patience(wanted.timeout, note=context.out.note, trouble=lambda: "")
    async with context.connector.admin(context.bootstrap) as admin:
        topic = await patience.wait(admin.describe_topic(wanted.name), f"a broker at {context.bootstrap}")
        places = [TopicPartition(topic.name, number) for number in range(len(topic.partitions))]
        level = "read_uncommitted"
        starts = await patience.wait(offsets_of(admin, places, "start", isolation_level=level), "the leaders")
        ends = await patience.wait(offsets_of(admin, places, "end", isolation_level=level), "the leaders")
    async with context.connector.consumer(
        context.bootstrap, topics=[wanted.name], group=None, start="start", isolation_level=level
    ) as consumer:
        consumer.assign(starts)
        count = size = 0
        waits_s: list[float] = []
        started_s = last_s = time.perf_counter()
        patience.moved()
        while (wanted.num is None or count < wanted.num) and not _is_at_end(await consumer.positions(), ends):
            since_s = time.perf_counter()
            records = list(await consumer.poll(POLL_MS))
            if not records:
                patience.look("records before the end")
                continue
            patience.moved()
            last_s = time.perf_counter()
            if len(waits_s) < MAX_SAMPLES:
                waits_s.append(last_s - since_s)
            records = records if wanted.num is None else records[: wanted.num - count]
            count += len(records)
            size += sum(len(record.key or b"") + len(record.value or b"") for record in records)
    _show(context, count, size, last_s - started_s, waits_s)
    return ExitCode.OK


def _is_at_end(positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> bool:
    return all(positions.get(place, 0) >= end for place, end in ends.items())


def _show(context: Context, count: int, size_bytes: int, elapsed_s: float, waits_s: Sequence[float]) -> None:
    seconds = max(elapsed_s, 1e-9)
    context.out.record(
        {
            "records": count,
            "seconds": round(elapsed_s, 3),
            "records_per_s": round(count / seconds),
            "mb_per_s": round(size_bytes / seconds / 1e6, 2),
            **percentiles_ms(waits_s),
        }
    )


VERBS = (
    Verb(
        name="produce",
        summary="send records; rate, and percentiles of the time until a record is acknowledged",
        arguments=_produce_arguments,
        run=_produce,
        timed=False,
    ),
    Verb(
        name="consume",
        summary="read a topic; rate, and percentiles of the time that a poll waits",
        arguments=_consume_arguments,
        run=_consume,
        timed=False,
    ),
)
