"""`Lanes`: runs a handler for records, those of a lane one after the other, and tries again what fails.

A record that waits for its next attempt holds up its lane, and no other: it gives its place of the `concurrency` back.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final

from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.errors import HandlerFailedError
from ..connection.records import ConsumerRecord
from .options import Options, Policy, RecordHandler

logger = logging.getLogger("barnabas.consumer")

STUCK_MS: Final = 60_000  # a handler that takes longer is named in the log, once for each record


class _Lane:
    def __init__(self, place: TopicPartition) -> None:
        self.place = place
        self.waiting: deque[ConsumerRecord] = deque()  # the first is being handled
        self.closed = asyncio.Event()  # begin no other record, and no other attempt
        self.task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _Attempt:
    record: ConsumerRecord
    since_s: float  # by the loop's clock
    is_named: bool = False  # in the log, because it takes long


class Lanes:
    def __init__(
        self,
        handler: RecordHandler,
        options: Options,
        *,
        executor: Executor | None,
        random: Callable[[], float],
        on_done: Callable[[ConsumerRecord], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        """`executor`: for a handler that is no coroutine function. `on_done`: also of records that were given up as the
        application wants it. `on_failed`: the processing must end."""
        self._handler = handler
        self._options = options
        self._executor = executor
        self._random = random
        self._on_done = on_done
        self._on_failed = on_failed
        self._places = asyncio.Semaphore(options.concurrency)
        self._lanes: dict[object, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[int, _Attempt] = {}  # by the identity of the record, in the order of their begin
        self.retried = 0
        self.given_up = 0

    def submit(self, record: ConsumerRecord) -> None:
        key = self._options.order.lane_of(record)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(TopicPartition(record.topic, record.partition))
            lane.waiting.append(record)
            lane.task = asyncio.get_running_loop().create_task(self._walk(key, lane))
            self._tasks.add(lane.task)
            lane.task.add_done_callback(self._tasks.discard)
        else:
            lane.waiting.append(record)

    async def close(self, places: Iterable[TopicPartition] | None, *, timeout_s: float | None) -> bool:
        """Begin nothing more of these partitions (None: of all), and wait for the handlers that run. False at the timeout:
        some go on. The lanes are forgotten in either case."""
        wanted = None if places is None else set(places)
        closing = {key: lane for key, lane in self._lanes.items() if wanted is None or lane.place in wanted}
        for key, lane in closing.items():
            lane.closed.set()
            del self._lanes[key]
        tasks = [lane.task for lane in closing.values() if lane.task is not None]
        if not tasks:
            return True
        _, late = await asyncio.wait(tasks, timeout=timeout_s)
        return not late

    async def cancel(self) -> None:
        """End all at once. What a thread runs goes on in the thread."""
        tasks = list(self._tasks)
        self._lanes.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def name_the_stuck(self, now_s: float) -> None:
        for attempt in self._running.values():
            if now_s - attempt.since_s < STUCK_MS / 1000:
                return  # the others began later
            if not attempt.is_named:
                attempt.is_named = True
                record = attempt.record
                logger.warning(
                    "a handler takes long partition=%s-%d offset=%d seconds=%d",
                    record.topic, record.partition, record.offset, now_s - attempt.since_s,
                )  # fmt: skip

    async def _walk(self, key: object, lane: _Lane) -> None:
        while lane.waiting and not lane.closed.is_set():
            record = lane.waiting[0]
            try:
                is_done = await self._handled(record, lane)
            except Exception as error:  # noqa: BLE001 - whatever the application raises
                lane.closed.set()
                self._on_failed(error)
                return
            if is_done:
                self._on_done(record)
            lane.waiting.popleft()
        if self._lanes.get(key) is lane:
            del self._lanes[key]

    async def _handled(self, record: ConsumerRecord, lane: _Lane) -> bool:
        """False if the lane was closed before the record was done. Raises what must end the processing."""
        for failures in range(1, self._options.attempts + 1):
            async with self._places:
                if lane.closed.is_set():
                    return False
                error = await self._attempt(record)
            if error is None:
                return True
            if failures < self._options.attempts:
                self.retried += 1
                logger.info(
                    "a handler failed, and is called again partition=%s-%d offset=%d failures=%d error=%s: %s",
                    record.topic, record.partition, record.offset, failures, type(error).__name__, error,
                )  # fmt: skip
                if await _set_within(lane.closed, self._options.backoff.delay_ms(failures, self._random) / 1000):
                    return False
        assert error is not None
        await self._give_up(record, error)
        return True

    async def _attempt(self, record: ConsumerRecord) -> Exception | None:
        loop = asyncio.get_running_loop()
        self._running[id(record)] = _Attempt(record, loop.time())
        try:
            if self._executor is not None:
                outcome = await loop.run_in_executor(self._executor, self._handler, record)
                if inspect.isawaitable(outcome):
                    await outcome
                return None
            timeout_ms = self._options.timeout_ms
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await _called(self._handler, record)
        except Exception as error:  # noqa: BLE001 - whatever the application raises
            return error
        finally:
            self._running.pop(id(record), None)
        return None

    async def _give_up(self, record: ConsumerRecord, error: Exception) -> None:
        policy = self._options.on_failure
        if policy is Policy.STOP:
            raise HandlerFailedError(
                f"the handler failed for {record.topic}-{record.partition} at offset {record.offset},"
                f" {self._options.attempts} times: {type(error).__name__}: {error}"
            ) from error
        logger.warning(
            "a record is given up partition=%s-%d offset=%d attempts=%d error=%s: %s",
            record.topic, record.partition, record.offset, self._options.attempts, type(error).__name__, error,
        )  # fmt: skip
        if not isinstance(policy, Policy):
            outcome = policy(record, error)
            if inspect.isawaitable(outcome):
                await outcome
        self.given_up += 1


def _called(handler: RecordHandler, record: ConsumerRecord) -> Awaitable[None]:
    outcome = handler(record)
    assert inspect.isawaitable(outcome)
    return outcome


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    waiting: Coroutine[Any, Any, Any] = event.wait()
    try:
        async with asyncio.timeout(seconds):
            await waiting
    except TimeoutError:
        return False
    return True
