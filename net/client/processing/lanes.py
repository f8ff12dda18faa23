"""`Lanes`: runs a handler for records, those of a lane one after the other, and tries again what fails.

A record that waits for its time, or for its next attempt, holds up its lane, and no other: it takes none of the places of
`concurrency` meanwhile.
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
        self.is_at_work = False  # a handler runs, or a record is being given up


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
        wall_ms: Callable[[], float],
        on_done: Callable[[ConsumerRecord], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        """`executor`: for a handler that is no coroutine function. `on_done`: also of records that were given up as the
        application wants it. `on_failed`: the processing must end."""
        self._handler = handler
        self._options = options
        self._executor = executor
        self._random = random
        self._wall_ms = wall_ms
        self._on_done = on_done
        self._on_failed = on_failed
        self._places = asyncio.Semaphore(options.concurrency)
        self._lanes: dict[object, _Lane] = {}
        self._tasks: dict[asyncio.Task[None], _Lane] = {}  # also of lanes that are closed
        self._is_cancelled = False
        self._running: dict[int, _Attempt] = {}  # by the identity of the record, in the order of their begin
        self.retried = 0
        self.given_up = 0

    def submit(self, record: ConsumerRecord) -> None:
        key = self._options.order.lane_of(record)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(TopicPartition(record.topic, record.partition))
            lane.waiting.append(record)
            task = asyncio.get_running_loop().create_task(self._walk(key, lane))
            self._tasks[task] = lane
            task.add_done_callback(self._tasks.pop)
        else:
            lane.waiting.append(record)

    async def close(self, places: Iterable[TopicPartition], *, timeout_s: float) -> bool:
        """Begin nothing more of these partitions, and wait for their handlers that run. False at the timeout: some go on. The
        lanes are forgotten in either case.

        Lanes that wait for one of the `concurrency` places are not waited for: they end when they get it."""
        wanted = set(places)
        for key, lane in list(self._lanes.items()):
            if lane.place in wanted:
                lane.closed.set()
                del self._lanes[key]
        tasks = [task for task, lane in self._tasks.items() if lane.place in wanted and lane.is_at_work]
        if not tasks:
            return True
        _, late = await asyncio.wait(tasks, timeout=timeout_s)
        return not late

    async def close_all(self, *, timeout_s: float) -> bool:
        """As `close`, of all partitions, also of those that were closed before. May be called again."""
        for lane in self._lanes.values():
            lane.closed.set()
        self._lanes.clear()
        if not self._tasks:
            return True
        _, late = await asyncio.wait(list(self._tasks), timeout=timeout_s)
        return not late

    async def cancel(self) -> None:
        """End all at once. What a thread runs goes on in the thread."""
        self._is_cancelled = True
        for lane in self._lanes.values():
            lane.closed.set()  # also if its handler ends as if nothing had happened
        self._lanes.clear()
        tasks = list(self._tasks)
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
            except BaseException as error:
                lane.closed.set()
                lane.is_at_work = False
                if not self._is_cancelled:  # or else nobody would learn that this lane has ended
                    self._on_failed(_told(error, record))
                if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                    raise
                return
            lane.is_at_work = False
            if is_done:
                self._on_done(record)
            lane.waiting.popleft()
        if self._lanes.get(key) is lane:
            del self._lanes[key]

    async def _handled(self, record: ConsumerRecord, lane: _Lane) -> bool:
        """False if the lane was closed before the record was done. Raises what must end the processing."""
        wait_ms = self._options.wait_ms(record, self._wall_ms())
        if wait_ms > 0 and await _set_within(lane.closed, wait_ms / 1000):
            return False
        for failures in range(1, self._options.attempts + 1):
            async with self._places:
                if lane.closed.is_set():
                    return False
                lane.is_at_work = True
                error = await self._attempt(record)
            if error is None:
                return True
            if self._is_cancelled:
                return False
            if failures < self._options.attempts:
                self.retried += 1
                logger.info(
                    "a handler failed, and is called again partition=%s-%d offset=%d failures=%d error=%s: %s",
                    record.topic, record.partition, record.offset, failures, type(error).__name__, error,
                )  # fmt: skip
                lane.is_at_work = False
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
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if self._is_cancelled or (task is not None and task.cancelling()):
                raise
            cancelled = RuntimeError("the handler ended with CancelledError, although nobody has cancelled it")
            cancelled.__cause__ = error
            return cancelled
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


def _told(error: BaseException, record: ConsumerRecord) -> BaseException:
    """What the caller of `process_each` gets. It was not cancelled itself."""
    if not isinstance(error, asyncio.CancelledError):
        return error
    told = HandlerFailedError(
        f"the task of the handler for {record.topic}-{record.partition} at offset {record.offset} was cancelled"
    )
    told.__cause__ = error
    return told
