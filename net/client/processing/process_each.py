"""`process_each`: call a handler for each record of a group, many at a time, and commit what is done, in order.

    async with Consumer("orders", group="billing", auto_commit=False) as consumer:
        await process_each(consumer, handle, concurrency=50, order="key", stop_on_signals=True)

At least once: a record is committed when its handler has returned, or when it was given up as `on_failure` says, and all
records of its partition before it are done. A partition that the group takes away is let go only when its running handlers
have ended and their records are committed, so that no other member handles the same record meanwhile.

One task polls without pause, also while all handlers are busy: a slow handler does not cost the member its place in the group.
What is read and not done is bounded; beyond that the partitions are paused.
"""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.client import inside_of
from ..connection.errors import (
    BarnabasError,
    ClientClosedError,
    FencedMemberEpochError,
    IllegalGenerationError,
    InvalidConfigError,
    NotAssignedError,
    PartitionGoneError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from ..connection.records import ConsumerRecord
from ..consumer.consumer import Consumer, RecordsByPartition
from ..group.listener import Listeners
from .lanes import Lanes
from .ledger import Ledger
from .options import (
    FIRST_BACKOFF_MS,
    MAX_BACKOFF_MS,
    Delay,
    FailureHandler,
    Options,
    RecordHandler,
    is_coroutine_function,
    options_of,
)
from .signals import called_on_signals

# Another member has the partition, or will have it, and handles the records again; or the topic is gone.
_MOVED: Final = (
    FencedMemberEpochError,
    IllegalGenerationError,
    NotAssignedError,
    PartitionGoneError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

logger = logging.getLogger("barnabas.consumer")

POLL_MS: Final = 200  # a stop is noticed within this time
CLOSING_PAUSE_S: Final = 0.01
DRAIN_S: Final = 60.0  # running handlers of a partition that is taken away are waited for so long
LAST_COMMIT_S: Final = 10.0  # of a call that is cancelled; beyond it, what is done may be handled again
DRAIN_SHARE: Final = 0.5  # of the time that the group gives this member; the rest is for the commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """What a call of `process_each` has done."""

    records: int  # that are done, including those given up
    retried: int  # calls of the handler after a failure
    given_up: int  # records whose last attempt failed too


async def process_each(
    consumer: Consumer,
    handler: RecordHandler,
    *,
    order: str = "key",
    concurrency: int = 16,
    max_in_flight: int | None = None,
    attempts: int = 5,
    backoff_ms: tuple[float, float] = (FIRST_BACKOFF_MS, MAX_BACKOFF_MS),
    timeout_ms: float | None = None,
    on_failure: str | FailureHandler = "stop",
    commit_interval_ms: float = 1_000,
    delay_ms: Delay = 0,
    stop: asyncio.Event | None = None,
    stop_on_signals: bool = False,
) -> Processed:
    """Call `handler(record)` for each record until `stop` is set, a signal comes or the consumer is closed.

    `handler`: a coroutine function, or a function, which is called in a thread. `order`: "key" (default), "partition" or
    "none" says which records are handled one after the other; at most `concurrency` at a time in all. `max_in_flight` records
    are read and not done (default: ten times the concurrency, at least 100).

    A handler that raises is called again, `attempts` times in all, after waits that double from the first to the second number
    of `backoff_ms`. `timeout_ms` bounds one attempt of a coroutine function. After the last attempt: `on_failure` is "stop"
    (raise HandlerFailedError), "skip" (log a warning), or a function of the record and the error, such as
    `dead_letters(producer, topic)`.

    What is done is committed every `commit_interval_ms`. `delay_ms`: a record is handled when this time has passed since its
    timestamp; a number, or a function of the record.

    At the end, running handlers are waited for, what is done is committed, and the consumer goes back to the first record that
    is not done. `stop_on_signals`: the first SIGTERM or Ctrl-C stops it in this way, instead of ending the process; the second
    one acts as without it. If the task is cancelled, so are the handlers, and the last commit has 10 s. Raises InvalidConfigError
    for a consumer that commits by itself or has no group.
    """
    is_blocking = not is_coroutine_function(handler)
    options = options_of(
        order=order,
        concurrency=concurrency,
        max_in_flight=max_in_flight,
        attempts=attempts,
        backoff_ms=backoff_ms,
        timeout_ms=timeout_ms,
        on_failure=on_failure,
        commit_interval_ms=commit_interval_ms,
        delay_ms=delay_ms,
        is_blocking=is_blocking,
    )
    if consumer.group is None or inside_of(consumer).commits_by_itself:
        raise InvalidConfigError(
            "process_each commits itself, in a group: create the consumer with group= and auto_commit=False"
        )
    stopping = stop or asyncio.Event()
    executor = ThreadPoolExecutor(concurrency, "barnabas-handler") if is_blocking else None
    stop_soon = partial(asyncio.get_running_loop().call_soon_threadsafe, stopping.set)
    try:
        with called_on_signals(stop_soon) if stop_on_signals else nullcontext():
            return await _Processing(consumer, handler, options, executor, stopping).run()
    finally:
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)


class _Processing:
    def __init__(
        self,
        consumer: Consumer,
        handler: RecordHandler,
        options: Options,
        executor: ThreadPoolExecutor | None,
        stopping: asyncio.Event,
    ) -> None:
        self._consumer = consumer
        self._options = options
        self._stopping = stopping
        self._lanes = Lanes(
            handler,
            options,
            executor=executor,
            random=consumer.client.rng.random,
            wall_ms=consumer.client.clock.wall_ms,
            on_done=self._done,
            on_failed=self._failed,
        )
        self._ledgers: dict[TopicPartition, Ledger] = {}
        self._fresh: set[TopicPartition] = set()  # nothing of their ledgers was begun: older handlers may still run
        self._committing: asyncio.Future[None] | None = None
        self._commit_at_s = 0.0
        self._paused: set[TopicPartition] = set()  # by this object, because enough is in flight
        self._failure: BaseException | None = None
        self._records = 0

    async def run(self) -> Processed:
        forget = inside_of(self._consumer).add_listeners(Listeners(revoked=self._revoked, lost=self._lost))
        is_cut_off = False
        try:
            try:
                while not self._stopping.is_set() and self._failure is None and await self._step():
                    pass
            except Exception as error:  # noqa: BLE001 - raised when the handlers have ended
                self._failed(error)
            await self._drain()
        except BaseException:
            is_cut_off = True
            await self._lanes.cancel()
            raise
        finally:
            forget()
            await self._leave(within_s=LAST_COMMIT_S if is_cut_off else None)
        if self._failure is not None:
            raise self._failure
        return Processed(records=self._records, retried=self._lanes.retried, given_up=self._lanes.given_up)

    async def _step(self) -> bool:
        """Read and submit records. False: the consumer was closed."""
        room = self._options.max_in_flight - self._in_flight()
        if room <= 0:
            self._pause()
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            found = await self._consumer.poll(max_records=max(room, 1), timeout_ms=POLL_MS)
        except ClientClosedError:
            return False
        if (
            not found and loop.time() - begun_s < CLOSING_PAUSE_S
        ):  # a consumer that is being closed does not wait for records
            await asyncio.sleep(CLOSING_PAUSE_S)
        await self._submit(found)
        now_s = loop.time()
        self._lanes.name_the_stuck(now_s)
        self._commit_soon(now_s)
        return True

    async def _submit(self, found: RecordsByPartition) -> None:
        waiting, origins = dict(found), {place: inside_of(self._consumer).origin(place) for place in found}
        try:
            for place in found:
                if await self._may_begin(place, found[place][0].offset):
                    ledger = self._ledgers[place]
                    for record in waiting.pop(place):
                        ledger.begin(record.offset)
                        self._lanes.submit(record)
        finally:
            for place, records in waiting.items():
                # Read them again, unless the application has moved on meanwhile.
                if place in self._consumer.assignment and inside_of(self._consumer).origin(place) == origins[place]:
                    self._consumer.seek(place, records[0].offset)

    async def _may_begin(self, place: TopicPartition, offset: int) -> bool:
        """Where the group was moved back, or has given a partition up and got it again, first end what runs, so that no record
        is handled twice at once. False: not yet. It does not wait long, because nobody polls meanwhile."""
        ledger = self._ledgers.get(place)
        if ledger is None or not ledger.follows(offset):
            self._ledgers[place] = Ledger()
            self._fresh.add(place)
        if place in self._fresh:
            if not await self._lanes.close([place], timeout_s=POLL_MS / 1000):
                return False
            self._fresh.discard(place)
        return True

    async def _drain(self) -> None:
        """Wait for the handlers that run. The consumer polls meanwhile, so that it keeps its place in the group."""
        may_poll = True
        while not await self._lanes.close_all(timeout_s=POLL_MS / 1000):
            now_s = asyncio.get_running_loop().time()
            self._lanes.name_the_stuck(now_s)
            if not may_poll:
                continue
            try:
                self._pause()
                for place, records in (await self._consumer.poll(max_records=1, timeout_ms=0)).items():
                    self._consumer.seek(place, records[0].offset)
                self._commit_soon(now_s)
            except ClientClosedError:
                may_poll = False
            except Exception as error:  # noqa: BLE001 - raised when the handlers have ended
                may_poll = False
                self._failed(error)

    def _in_flight(self) -> int:
        return sum(ledger.open_count for ledger in self._ledgers.values())

    def _done(self, record: ConsumerRecord) -> None:
        place = record.topic_partition
        ledger = self._ledgers.get(place)
        if ledger is None or not ledger.is_open(record.offset):
            return  # the partition was lost meanwhile
        ledger.done(record.offset)
        self._records += 1
        self._resume_if_there_is_room()

    def _failed(self, error: BaseException) -> None:
        self._failure = self._failure or error

    # --- pauses ------------------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        places = set(self._consumer.assignment) - set(self._consumer.paused)
        self._consumer.pause(*places)
        self._paused |= places

    def _resume_if_there_is_room(self) -> None:
        is_ending = self._stopping.is_set() or self._failure is not None
        if self._paused and not is_ending and self._in_flight() <= self._options.max_in_flight // 2:
            with suppress(ClientClosedError):  # the next poll tells of it
                self._resume()

    def _resume(self) -> None:
        places = self._paused.intersection(self._consumer.assignment)
        self._paused.clear()
        self._consumer.resume(*places)

    # --- commits -----------------------------------------------------------------------------------------------------

    def _to_commit(self) -> dict[TopicPartition, int]:
        assigned = set(self._consumer.assignment)
        found = {place: (ledger.committable, ledger.committed) for place, ledger in self._ledgers.items()}
        return {
            place: offset
            for place, (offset, committed) in found.items()
            if place in assigned and offset is not None and offset != committed
        }

    def _commit_soon(self, now_s: float) -> None:
        if (self._committing is not None and not self._committing.done()) or now_s < self._commit_at_s:
            return
        self._commit_at_s = now_s + self._options.commit_interval_ms / 1000
        if offsets := self._to_commit():
            of = {place: self._ledgers[place] for place in offsets}
            try:
                self._committing = self._consumer.commit_nowait(offsets)
            except _MOVED as error:  # the group has removed this member, and the next poll tells of it
                logger.info("a commit came too late group=%s reason=%s", self._consumer.group, error)
                return
            self._committing.add_done_callback(lambda future: self._committed_in_the_background(future, offsets, of))

    def _committed_in_the_background(
        self, future: "asyncio.Future[None]", offsets: dict[TopicPartition, int], of: dict[TopicPartition, Ledger]
    ) -> None:
        error = None if future.cancelled() else future.exception()
        if error is None:
            for place, ledger in of.items():
                ledger.committed = offsets[place]
        elif _is_passing(error) or isinstance(error, ClientClosedError):
            logger.info("a commit failed group=%s reason=%s", self._consumer.group, error)
        else:
            self._failed(error)

    async def _commit_now(self) -> None:
        """What is being committed in the background is committed again: that may fail yet."""
        if offsets := self._to_commit():
            of = {place: self._ledgers[place] for place in offsets}
            try:
                await self._consumer.commit(offsets)
            except _MOVED as error:
                logger.info("a commit came too late group=%s reason=%s", self._consumer.group, error)
                return
            for place, ledger in of.items():
                ledger.committed = offsets[place]

    # --- partitions that go ------------------------------------------------------------------------------------------

    async def _revoked(self, partitions: list[TopicPartition]) -> None:
        drain_s = min(DRAIN_S, DRAIN_SHARE * inside_of(self._consumer).patience_ms / 1000)
        if not await self._lanes.close(partitions, timeout_s=drain_s):
            logger.warning(
                "partitions are given up while handlers still run, which takes longer than %d s: others will handle these records"
                " again partitions=%s",
                drain_s, ",".join(map(str, partitions)),
            )  # fmt: skip
        try:
            await self._commit_now()
        except BarnabasError as error:
            if not error.retriable:
                raise
            logger.warning(
                "partitions are given up without a commit: others will handle their records again reason=%s partitions=%s",
                error, ",".join(map(str, partitions)),
            )  # fmt: skip
        finally:
            self._forget(partitions)

    async def _lost(self, partitions: list[TopicPartition]) -> None:
        """Others have them already: what still runs here counts no more."""
        self._forget(partitions)
        await self._lanes.close(partitions, timeout_s=0)

    def _forget(self, partitions: list[TopicPartition]) -> None:
        for place in partitions:
            self._ledgers.pop(place, None)
            self._fresh.discard(place)
            self._paused.discard(place)
        self._resume_if_there_is_room()

    async def _leave(self, *, within_s: float | None) -> None:
        """Commit, and leave the consumer at the first record that is not done, also if the commit fails or takes longer."""
        commit = asyncio.create_task(self._commit_now(), name="barnabas-last-commit")
        try:
            # No `asyncio.timeout`, which takes its own end for a cancellation where the task was cancelled before.
            if (await asyncio.wait([commit], timeout=within_s))[0]:
                commit.result()
            else:
                logger.warning("the last commit is given up group=%s after_s=%g", self._consumer.group, within_s)
        except ClientClosedError:
            pass  # its close has revoked and committed
        except Exception as error:  # noqa: BLE001 - raised, unless there is an earlier reason for the end
            logger.warning("the last commit failed group=%s reason=%s", self._consumer.group, error)
            self._failed(error)
        finally:
            commit.cancel()
            self._go_back()

    def _go_back(self) -> None:
        with suppress(ClientClosedError):
            self._resume()
            assigned = set(self._consumer.assignment)
            for place, ledger in self._ledgers.items():
                if place in assigned and ledger.open_count and ledger.committable is not None:
                    self._consumer.seek(place, ledger.committable)


def _is_passing(error: BaseException) -> bool:
    """The next commit may succeed, or need not."""
    return (isinstance(error, BarnabasError) and error.retriable) or isinstance(error, _MOVED)
