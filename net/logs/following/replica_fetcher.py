"""Fetches the partitions that this broker follows from their leaders: one connection and one coroutine per leader broker.

The next fetch is the acknowledgement of the last one, so after data, the next request is sent at once: no sleep, no
task per fetch. Many partitions share one request, and in a fetch session it names only those with another position
(`follower_session`); partitions that returned data go to the end of the line, so that none starves behind a busy one.
`Following.fetched` decides what an answer means; this module has only sockets, time and errors.

Partitions of topics with flush.messages=1 have a separate fetcher for each leader: it must flush the fetched records before it
fetches again (the fetch offset acknowledges them), and other partitions must not wait for that flush. It has no session, as none
of its partitions may be fetched while one of them is flushed.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple, Protocol

from barnabas.log.replication.effects import Effect, StartFetching, StopFetching
from barnabas.log.replication.follower import FetchAnswer, FetchPosition
from barnabas.log.settings.broker_keys import BrokerKeys
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode, StorageError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.requests import SESSION_ERRORS, FetchPartition, FetchRequest, Request, forgotten_topics
from barnabas.net.wire.protocol.responses import ErrorResponse, FetchPartitionResponse, FetchResponse, Response

from .fetch_answers import checked_answer, is_quiet, log_refusals
from .follower_session import MAX_FORGOTTEN, FollowerSession

MIN_BACKOFF_MS: Final = 50
# An error of one partition usually means that metadata has not reached one of the brokers yet, which takes milliseconds. If the
# error persists, the partition is fetched less and less often. During this wait, acks=all waits for this follower.
FIRST_PARTITION_BACKOFF_MS: Final = 5
PARTITION_BACKOFF_MS: Final = 200

_KEYS: Final = BrokerKeys()

logger = logging.getLogger("barnabas.replication")


class _Interrupted(Exception):
    """A partition has come while the leader waits with its answer."""


class ConnectionToLeader(Protocol):
    """Requests to one broker (`net.wire.rpc`). It connects on demand."""

    async def send(self, request: Request, timeout_ms: int) -> "asyncio.Future[Response]":
        """Return the future of the response; if that is cancelled, the response is dropped. Both raise NetworkError,
        RequestTimedOutError or another BarnabasError."""

    async def close(self) -> None: ...


class FollowedPartition(Protocol):
    """The part of log.replication.following.Following that the fetcher uses."""

    @property
    def topic_id(self) -> str: ...
    @property
    def flushes_first(self) -> bool: ...
    @property
    def holds_lane(self) -> bool: ...
    @property
    def is_in_isr(self) -> bool: ...
    def next_fetch(self) -> FetchPosition | None: ...
    def fetched(self, position: FetchPosition, answer: FetchAnswer, now_ms: int) -> list[Effect]: ...


class FollowerIdentity(Protocol):
    """The current identity of this broker: the broker epoch changes with a new registration."""

    @property
    def node_id(self) -> int: ...
    @property
    def broker_epoch(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """Limits of fetch requests, in bytes and milliseconds."""

    max_wait_ms: int = _KEYS.replica_fetch_wait_max_ms  # followers learn of a new high watermark at least this often
    min_bytes: int = _KEYS.replica_fetch_min_bytes
    max_bytes: int = _KEYS.replica_fetch_response_max_bytes  # limits the buffer for one response
    max_partition_bytes: int = _KEYS.replica_fetch_max_bytes
    call_timeout_ms: int = _KEYS.replica_socket_timeout_ms  # a leader that does not answer in this time counts as gone
    max_idle_wait_ms: int = 2_000  # of a follower that has all records and the high watermark
    max_backoff_ms: int = _KEYS.replica_fetch_backoff_ms  # a leader that returns is found within a second

    def __post_init__(self) -> None:
        assert self.max_wait_ms < self.call_timeout_ms, "every fetch without new records would time out"


class FetchThrottle(Protocol):
    """Throttles the copies of a reassignment, see `replication_throttle`."""

    def fetch_delay_ms(self, topic_partition: TopicPartition) -> int:
        """The time for which this partition must not be fetched; 0: no delay."""

    def fetched(self, topic_partition: TopicPartition, size_bytes: int) -> None: ...


class NoThrottle:
    def fetch_delay_ms(self, topic_partition: TopicPartition) -> int:
        return 0

    def fetched(self, topic_partition: TopicPartition, size_bytes: int) -> None:
        pass


EffectSink = Callable[[list[Effect]], None]


class ReplicaFetcher:
    """Fetches from one leader while `run` runs."""

    def __init__(
        self,
        leader: int,
        connection: ConnectionToLeader,
        *,
        identity: FollowerIdentity,
        settings: FetchSettings,
        rng: Random,
        wall_ms: Callable[[], int],
        on_effects: EffectSink,
        throttle: FetchThrottle,
        in_session: bool = True,
    ) -> None:
        self.leader = leader
        self._session = FollowerSession(is_wanted=in_session)
        self._throttle = throttle
        self._connection = connection
        self._identity = identity
        self._settings = settings
        self._rng = rng
        self._wall_ms = wall_ms
        self._on_effects = on_effects
        self._partitions: dict[TopicPartition, FollowedPartition] = {}  # in the order in which they are fetched
        self._delayed_until: dict[TopicPartition, float] = {}  # loop time; a subset of _partitions
        self._refusals: dict[TopicPartition, int] = {}  # consecutive refusals, at least 1; a subset of _partitions
        # Whether partitions must be flushed first. Those that arrived together are flushed together, so the next request can
        # contain all of them again.
        self._awaits_flush = False
        self._failures = 0  # calls that failed in a row
        self._quiet_answers = 0  # consecutive answers without news
        self._is_changed = asyncio.Event()
        self._must_tell = False  # a partition has come: the leader must learn it before its next answer
        self._waiting: asyncio.Future[None] | None = None  # for an answer, or for a change that must not wait for it

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(self._partitions)

    def add(self, topic_partition: TopicPartition, partition: FollowedPartition) -> None:
        """Takes effect at once: a parked fetch is overtaken, or replaced, by one that includes the new partition."""
        self.remove(topic_partition)
        # To the front: it has not been fetched yet.
        self._partitions = {topic_partition: partition, **self._partitions}
        self._must_tell = True
        self._is_changed.set()
        self._wake()

    def remove(self, topic_partition: TopicPartition) -> None:
        """The records of a fetch in flight are dropped for this partition."""
        self._partitions.pop(topic_partition, None)
        self._delayed_until.pop(topic_partition, None)
        self._refusals.pop(topic_partition, None)
        self._session.happened[topic_partition] = None

    def resume(self, topic_partition: TopicPartition) -> None:
        """The partition has been flushed, or has left."""
        self._session.happened[topic_partition] = None
        self._is_changed.set()

    def _wake(self, _: object = None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch until cancelled."""
        try:
            while True:
                self._is_changed.clear()
                request = self._build_request()
                if self._session.named and not self._awaits_flush:
                    await self._fetch(request)
                    continue
                self._session.close()  # the leader does not get this request
                await self._wait_for_change(None if self._awaits_flush else self._next_turn())
        finally:
            await self._connection.close()

    async def _fetch(self, request: FetchRequest) -> None:
        """One request, and those that overtake it. Returns after the last answer, or after the backoff of a failure."""
        number, future = self._session.number, await self._send(request)
        newer: asyncio.Future[Response] | None = None
        try:
            while future is not None:
                try:
                    response = await self._answer(future)
                except _Interrupted:
                    newer = None
                    if self._session.session_id:  # otherwise the next request has everything
                        newer = await self._send(self._build_request(overtakes=True))
                    newer_number = self._session.number
                    response = None if newer is None else await self._answer(future, is_overtaken=True)
                    if response is None:
                        return
                    future = newer
                else:
                    future, newer_number = None, number
                if response is not None:
                    self._handle(response, number)
                number = newer_number
        finally:
            _drop(future, newer)  # where one failed, and where this fetcher ends

    async def _send(self, request: FetchRequest) -> "asyncio.Future[Response] | None":
        """None: it failed, and the backoff has passed."""
        self._must_tell = False
        try:
            return await self._connection.send(request, self._settings.call_timeout_ms)
        except BarnabasError as error:
            await self._back_off(error.message)
            return None

    async def _answer(self, future: "asyncio.Future[Response]", *, is_overtaken: bool = False) -> FetchResponse | None:
        """None: it failed, and the backoff has passed. Raises _Interrupted for a change, unless the request is overtaken, and
        answered at once; the future continues then."""
        try:
            if not is_overtaken and not await self._is_done(future):
                raise _Interrupted
            response = await future
        except TimeoutError as error:
            await self._back_off(repr(error))
            return None
        except BarnabasError as error:
            await self._back_off(error.message)
            return None
        if type(response) is FetchResponse:
            self._failures = 0
            return response
        if isinstance(response, ErrorResponse) and response.error in SESSION_ERRORS and self._session.session_id:
            self._session.close()  # and begin another one at once
            return None
        await self._back_off(response.message if isinstance(response, ErrorResponse) else f"answered {response!r}")
        return None

    async def _is_done(self, future: "asyncio.Future[Response]") -> bool:
        """Wait for the answer. False: a change comes first. (`asyncio.timeout` and `shield` take three times as many calls.)"""
        if not future.done() and not self._must_tell:
            waiting = self._waiting = future.get_loop().create_future()
            future.add_done_callback(self._wake)
            try:
                await waiting
            finally:
                self._waiting = None
                future.remove_done_callback(self._wake)
        return future.done()

    async def _back_off(self, reason: str) -> None:
        """Wait with exponential backoff and jitter, so that the followers of a returning broker do not all connect at once."""
        self._session.close()
        if self._failures == 0:
            logger.warning("fetch_failed leader=%d reason=%s", self.leader, reason)
        delay_ms = min(self._settings.max_backoff_ms, MIN_BACKOFF_MS << min(self._failures, 10))
        self._failures += 1
        delay_s = delay_ms * self._rng.uniform(0.8, 1.2) / 1000
        loop = asyncio.get_running_loop()
        until = loop.time() + delay_s
        while loop.time() < until:  # new partitions do not shorten it
            self._is_changed.clear()
            await self._wait_for_change(until)

    async def _wait_for_change(self, until: float | None) -> None:
        try:
            async with asyncio.timeout_at(until):
                await self._is_changed.wait()
        except TimeoutError:
            pass

    def _next_turn(self) -> float | None:
        """The time at which the first delayed partition may be fetched again; None: only a change brings work."""
        return min(self._delayed_until.values(), default=None)

    # --- requests ----------------------------------------------------------------------------------------------------

    def _build_request(self, *, overtakes: bool = False) -> FetchRequest:
        if self._delayed_until:
            self._end_delays()
        self._awaits_flush = False
        session, now_s = self._session, asyncio.get_running_loop().time()
        parts: list[FetchPartition] = []
        forgotten: list[FetchPartition] = []
        for topic_partition in session.to_look_at(self._partitions, now_s, overtakes=overtakes):
            partition = self._partitions.get(topic_partition)
            is_in_sync = partition is not None and partition.is_in_isr
            # In-sync replicas are never throttled.
            is_held_back = topic_partition in self._delayed_until or (
                not is_in_sync and self._is_held_back(topic_partition)
            )
            position = None if partition is None or is_held_back else partition.next_fetch()
            if partition is None or position is None or position.leader != self.leader:
                if partition is not None and position is None and not is_held_back:
                    self._awaits_flush |= partition.holds_lane
                left = session.leave(topic_partition, is_restless=partition is not None and not is_held_back)
                forgotten += [left] if left is not None else []
                continue
            item = self._fetch_partition(topic_partition, partition.topic_id, position)
            if session.keep(topic_partition, item, position, now_s, names=overtakes, is_restless=not is_in_sync):
                parts.append(item)
        if len(forgotten) > MAX_FORGOTTEN:
            session.close()
            return self._build_request()
        session_id, session_epoch = session.sent()
        return FetchRequest(
            max_wait_ms=self._wait_ms(),
            min_bytes=self._settings.min_bytes,
            max_bytes=self._settings.max_bytes,
            partitions=tuple(parts),
            replica_id=self._identity.node_id,
            broker_epoch=self._identity.broker_epoch,
            session_id=session_id,
            session_epoch=session_epoch,
            forgotten=forgotten_topics(forgotten) if forgotten else (),
        )

    def _wait_ms(self) -> int:
        """The wait grows while there is no news, because each request contains thousands of idle partitions. New records and new
        partitions end a wait of any length. It ends at the latest when a delayed partition may be fetched again."""
        settings = self._settings
        quiet_answers = 0 if self._session.unsettled else self._quiet_answers
        longest_ms = max(settings.max_wait_ms, settings.max_idle_wait_ms)
        wait_ms = min(settings.max_wait_ms << min(quiet_answers, 4), longest_ms)
        until = self._next_turn()
        if until is None:
            return wait_ms
        left_ms = int((until - asyncio.get_running_loop().time()) * 1000) + 1
        return max(1, min(wait_ms, left_ms))

    def _is_held_back(self, topic_partition: TopicPartition) -> bool:
        delay_ms = self._throttle.fetch_delay_ms(topic_partition)
        if delay_ms > 0:
            self._delayed_until[topic_partition] = asyncio.get_running_loop().time() + delay_ms / 1000
        return delay_ms > 0

    def _fetch_partition(
        self, topic_partition: TopicPartition, topic_id: str, position: FetchPosition
    ) -> FetchPartition:
        return FetchPartition(
            topic=topic_partition.topic,
            partition=topic_partition.partition,
            fetch_offset=position.offset,
            max_bytes=self._settings.max_partition_bytes,
            current_leader_epoch=position.leader_epoch,
            last_fetched_epoch=position.last_fetched_epoch,
            log_start_offset=position.log_start_offset,
            topic_id=topic_id,
        )

    def _end_delays(self) -> None:
        now = asyncio.get_running_loop().time()
        ended = [topic_partition for topic_partition, until in self._delayed_until.items() if until <= now]
        for topic_partition in ended:
            del self._delayed_until[topic_partition]
            self._session.happened[topic_partition] = None

    # --- answers -----------------------------------------------------------------------------------------------------

    def _handle(self, response: FetchResponse, number: int) -> None:
        """Handle the answer to request `number`."""
        session = self._session
        session.answered(response.session_id)
        effects: list[Effect] = []
        refused: list[FetchPartitionResponse] = []
        for answered in response.partitions:
            topic_partition = TopicPartition(answered.topic, answered.partition)
            position = session.position(topic_partition, number)
            if position is None:
                continue
            session.happened[topic_partition] = None
            if not is_quiet(answered, position):
                session.unsettled[topic_partition] = None
            elif session.unsettled:
                session.unsettled.pop(topic_partition, None)
            partition = self._partitions.get(topic_partition)
            if partition is not None:
                effects += self._handle_partition(topic_partition, partition, position, answered)
                if answered.error:
                    refused.append(answered)
        self._quiet_answers = 0 if session.unsettled else self._quiet_answers + 1
        log_refusals(self.leader, refused)
        if effects:
            self._on_effects(effects)

    def _handle_partition(
        self,
        topic_partition: TopicPartition,
        partition: FollowedPartition,
        position: FetchPosition,
        answered: FetchPartitionResponse,
    ) -> list[Effect]:
        """Handle the answer of one partition. An error affects no other partition."""
        try:
            answer = checked_answer(answered, position)
            effects = partition.fetched(position, answer, self._wall_ms())
        except StorageError as error:
            logger.error("replica_failed partition=%s reason=%s", topic_partition, error)
            self._delay(topic_partition, self._settings.max_backoff_ms)
            return []
        except BarnabasError as error:
            logger.warning("replica_stalled partition=%s reason=%s", topic_partition, error)
            self._refused(topic_partition)
            return []
        if answered.error != ErrorCode.NONE:
            self._refused(topic_partition)
            return effects
        self._refusals.pop(topic_partition, None)
        if len(answer.records):
            self._throttle.fetched(topic_partition, len(answer.records))
            self._partitions[topic_partition] = self._partitions.pop(topic_partition)  # to the end of the line
        return effects

    def _refused(self, topic_partition: TopicPartition) -> None:
        refusals = self._refusals[topic_partition] = self._refusals.get(topic_partition, 0) + 1
        self._delay(topic_partition, min(PARTITION_BACKOFF_MS, FIRST_PARTITION_BACKOFF_MS << min(refusals - 1, 10)))

    def _delay(self, topic_partition: TopicPartition, delay_ms: int) -> None:
        delay_s = delay_ms * self._rng.uniform(0.8, 1.2) / 1000
        self._delayed_until[topic_partition] = asyncio.get_running_loop().time() + delay_s


def _drop(*futures: "asyncio.Future[Response] | None") -> None:
    """Of requests whose answers do not matter any more."""
    for future in futures:
        if future is not None and not future.cancel() and not future.cancelled():
            future.exception()  # looked at


class Lane(NamedTuple):
    """The partitions that one fetcher serves: those of a leader that need no flush, or those that are flushed first."""

    leader: int
    flushes_first: bool


class ReplicaFetcherManager:
    """The fetchers of a broker, by lane. A fetcher starts with the first partition of its lane and ends with the last."""

    def __init__(
        self,
        *,
        identity: FollowerIdentity,
        settings: FetchSettings,
        connect: Callable[[int], ConnectionToLeader],
        rng: Random,
        wall_ms: Callable[[], int],
        on_effects: EffectSink,
        throttle: FetchThrottle | None = None,
    ) -> None:
        self._throttle = throttle or NoThrottle()
        self._identity = identity
        self._settings = settings
        self._connect = connect
        self._rng = rng
        self._wall_ms = wall_ms
        self._on_effects = on_effects
        self._fetchers: dict[Lane, ReplicaFetcher] = {}
        self._tasks: dict[Lane, asyncio.Task[None]] = {}
        self._lane_of: dict[TopicPartition, Lane] = {}
        self._ending: dict[asyncio.Task[None], None] = {}  # in order, unlike a set

    @property
    def leaders(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(lane.leader for lane in self._fetchers))

    def apply(self, effects: Iterable[Effect], find: Callable[[TopicPartition], FollowedPartition | None]) -> None:
        """Perform StartFetching and StopFetching in order; ignore other effects."""
        for effect in effects:
            if isinstance(effect, StopFetching):
                self.stop(effect.topic_partition)
            elif isinstance(effect, StartFetching):
                partition = find(effect.topic_partition)
                if partition is not None:
                    self.start(effect, partition)

    def start(self, effect: StartFetching, partition: FollowedPartition) -> None:
        self._start(effect.topic_partition, Lane(effect.leader, partition.flushes_first), partition)

    def _start(self, topic_partition: TopicPartition, lane: Lane, partition: FollowedPartition) -> None:
        if self._lane_of.get(topic_partition) not in (None, lane):
            self.stop(topic_partition)
        fetcher = self._fetchers.get(lane) or self._new_fetcher(lane)
        self._lane_of[topic_partition] = lane
        fetcher.add(topic_partition, partition)

    def _new_fetcher(self, lane: Lane) -> ReplicaFetcher:
        fetcher = self._fetchers[lane] = ReplicaFetcher(
            lane.leader,
            self._connect(lane.leader),
            identity=self._identity,
            settings=self._settings,
            rng=self._rng,
            wall_ms=self._wall_ms,
            on_effects=self._on_effects,
            throttle=self._throttle,
            in_session=not lane.flushes_first,
        )
        name = f"replica-fetcher-{lane.leader}{'-flushing' if lane.flushes_first else ''}"
        task = self._tasks[lane] = asyncio.get_running_loop().create_task(fetcher.run(), name=name)
        task.add_done_callback(_report)
        return fetcher

    def resume(self, topic_partition: TopicPartition, partition: FollowedPartition) -> None:
        """The partition has been flushed, or need not be any more because its topic's configuration has changed."""
        lane = self._lane_of.get(topic_partition)
        if lane is None:
            return
        self._fetchers[lane].resume(topic_partition)
        if lane.flushes_first != partition.flushes_first:
            self._start(topic_partition, Lane(lane.leader, partition.flushes_first), partition)

    def stop(self, topic_partition: TopicPartition) -> None:
        lane = self._lane_of.pop(topic_partition, None)
        if lane is None:
            return
        fetcher = self._fetchers[lane]
        fetcher.remove(topic_partition)
        if not fetcher.partitions:
            del self._fetchers[lane]
            self._end(self._tasks.pop(lane))
        else:
            fetcher.resume(topic_partition)  # the others may have waited for this partition

    def _end(self, task: asyncio.Task[None]) -> None:
        self._ending[task] = None
        task.add_done_callback(lambda done: self._ending.pop(done, None))
        task.cancel()

    async def close(self) -> None:
        for task in self._tasks.values():
            self._end(task)
        self._tasks.clear()
        self._fetchers.clear()
        self._lane_of.clear()
        await asyncio.gather(*self._ending, return_exceptions=True)


def _report(task: asyncio.Task[None]) -> None:
    """A fetcher ends only by cancellation; any other end is an internal error, and is logged."""
    if not task.cancelled() and task.exception() is not None:
        logger.critical("replica_fetcher_died task=%s", task.get_name(), exc_info=task.exception())
