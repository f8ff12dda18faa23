"""`Fetcher`: keeps a fetch in flight to every leader of an assigned partition, or to the replica that the leader named for the
rack of this consumer, ahead of the application, within bounds.

A partition is fetched as soon as there is room for its records, independent of other requests to the same broker. So a partition
without new records, whose fetch waits at the broker, delays no other. Those that bring little share a fetch session with their
leader (`positions.fetch_session`). No task per fetch: answers arrive as callbacks.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.requests import (
    FINAL_EPOCH,
    SESSION_ERRORS,
    FetchPartition,
    FetchRequest,
    ForgottenTopic,
)
from barnabas.net.wire.protocol.responses import ErrorResponse, FetchPartitionResponse, FetchResponse, Response

from ..connection.client import Client
from ..connection.errors import BarnabasError, CorruptRecordError, ErrorCode, UnreadableBatchError, error_for
from ..connection.ports import Connection
from ..positions import fetch_session
from ..positions.fetch_session import ClientFetchSession, Sent, fetch_partition, sent_now
from ..positions.partition_state import PartitionState
from .read_replicas import ReadReplicas

logger = logging.getLogger("barnabas.consumer")

MAX_FETCHES_PER_BROKER = 16  # Each holds different partitions; more would only fill the broker's purgatory.
RESPONSE_GRACE_MS = 30_000  # On top of the time that the broker may wait for data, before the request times out.
_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchConfig:
    min_bytes: int
    max_bytes: int  # Of one answer.
    max_wait_ms: int
    max_buffered_bytes: int  # Of all partitions, without decoded records: at most this plus one answer per broker.
    isolation_level: int
    rack: str


class Fetcher:
    def __init__(
        self,
        client: Client,
        config: FetchConfig,
        states: dict[TopicPartition, PartitionState],
        *,
        on_data: Callable[[], None],
        on_out_of_range: Callable[[PartitionState], None],
        on_made_anew: Callable[[PartitionState], None],
        on_error: Callable[[BarnabasError], None],
    ) -> None:
        """`states` is the consumer's own: partitions added to it are fetched after the next `pump_soon`."""
        self._client = client
        self._config = config
        self._states = states
        self._on_data = on_data
        self._on_out_of_range = on_out_of_range
        self._on_made_anew = on_made_anew
        self._on_error = on_error
        self._replicas = ReadReplicas(client.metadata, config.rack, stay_ms=client.metadata_max_age_ms)
        self._loop = asyncio.get_running_loop()
        self._in_flight: dict[int, int] = {}  # Requests per broker.
        self._sessions: dict[int, ClientFetchSession] = {}
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._pump: asyncio.Handle | None = None
        self._is_closed = False

    def pump_soon(self) -> None:
        """Something changed: send all possible fetches at the end of this iteration of the loop."""
        if self._pump is None and not self._is_closed:
            self._pump = self._loop.call_soon(self._pump_now)

    async def close(self) -> None:
        self._is_closed = True
        if self._pump is not None:
            self._pump.cancel()
        for timer in self._timers:
            timer.cancel()
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)

    # --- asking ------------------------------------------------------------------------------------------------------

    def _pump_now(self) -> None:
        self._pump = None
        if sum(state.buffered_bytes for state in self._states.values()) >= self._config.max_buffered_bytes:
            return
        by_source: dict[tuple[int, str], list[PartitionState]] = {}
        now_ms = self._client.clock.now_ms()
        for state in self._states.values():
            if state.is_fetchable:
                state.topic_id = state.topic_id or self._client.metadata.topic_id(state.partition.topic)
                by_source.setdefault(self._replicas.source(state.partition, now_ms), []).append(state)
        for (node_id, rack), states in by_source.items():
            if node_id < 0:
                self._client.request_refresh()  # The next metadata calls `pump_soon` again.
            elif self._in_flight.get(node_id, 0) < MAX_FETCHES_PER_BROKER:
                self._fetch(node_id, rack, states)

    def _fetch(self, node_id: int, rack: str, states: list[PartitionState]) -> None:
        connection = self._client.peek(node_id, bulk=True)
        if connection is None:
            if node_id not in self._opening:
                self._opening[node_id] = asyncio.create_task(self._open(node_id), name=f"barnabas-fetch-{node_id}")
            return
        session = self._sessions.get(node_id)
        if session is not None and session.connection is not connection:
            session = None  # It ended with its connection.
        quiet, others = self._sorted(node_id, rack, states)
        if session is None and len(quiet) >= fetch_session.MIN_PARTITIONS:
            session = self._sessions[node_id] = ClientFetchSession(connection, rack)
        if session is None or session.rack != rack or not session.may_ask:
            self._ask(connection, node_id, rack, states)
            return
        if quiet:
            self._ask(connection, node_id, rack, quiet, session)
        elif session.waiting is None:
            del self._sessions[node_id]
        if others:
            self._ask(connection, node_id, rack, others)

    def _sorted(
        self, node_id: int, rack: str, states: list[PartitionState]
    ) -> tuple[list[PartitionState], list[PartitionState]]:
        """Those for a session, and the others. A replica that a leader has named gets no session: if it falls behind, it tells a
        reader so only in the answer to a fetch of the partition."""
        leader = self._client.metadata.leader
        quiet: list[PartitionState] = []
        others: list[PartitionState] = []
        for state in states:
            fits = state.is_quiet and state.topic_id and leader(state.partition).node_id == node_id
            (quiet if fits else others).append(state)
        return quiet, others

    def _ask(
        self,
        connection: Connection,
        node_id: int,
        rack: str,
        states: list[PartitionState],
        session: ClientFetchSession | None = None,
    ) -> None:
        leader = self._client.metadata.leader
        earlier: Sent | None = None
        if session is None:
            sent = sent_now(states)
            request = self._request([fetch_partition(state, leader(state.partition).epoch) for state in states], rack)
        else:
            earlier = session.waiting
            changed, forgotten = session.ask(states, lambda partition: leader(partition).epoch)
            assert session.waiting is not None
            sent = session.waiting
            request = self._request(changed, rack, forgotten, *session.next_epoch())
        try:
            future = connection.send(request, timeout_ms=self._config.max_wait_ms + RESPONSE_GRACE_MS)
        except BarnabasError as error:
            if session is not None:
                session.waiting = earlier  # whose answer is still to come
            self._end_session(node_id, session)
            self._failed(states, error)
            return
        for state in states:
            state.in_flight = True
        self._in_flight[node_id] = self._in_flight.get(node_id, 0) + 1
        future.add_done_callback(lambda done: self._answered(node_id, sent, session, done))

    def _request(
        self,
        partitions: list[FetchPartition],
        rack: str,
        forgotten: tuple[ForgottenTopic, ...] = (),
        session_id: int = 0,
        session_epoch: int = FINAL_EPOCH,
    ) -> FetchRequest:
        return FetchRequest(
            max_wait_ms=self._config.max_wait_ms,
            min_bytes=self._config.min_bytes,
            max_bytes=max(self._config.max_bytes, max((item.max_bytes for item in partitions), default=0)),
            partitions=tuple(partitions),
            isolation_level=self._config.isolation_level,
            rack=rack,
            session_id=session_id,
            session_epoch=session_epoch,
            forgotten=forgotten,
            may_be_sent_away=bool(self._config.rack),
        )

    def _end_session(self, node_id: int, session: ClientFetchSession | None) -> None:
        if session is not None and self._sessions.get(node_id) is session:
            del self._sessions[node_id]

    async def _open(self, node_id: int) -> None:
        try:
            await self._client.connect(node_id, bulk=True)
        except BarnabasError as error:
            logger.info("broker unreachable node_id=%d reason=%s", node_id, error.message)
            self._replicas.lost(node_id, self._client.clock.now_ms())
            self._client.request_refresh()
            await asyncio.sleep(self._client.backoff.delay_ms(1, self._client.rng.random) / 1000)
        finally:
            self._opening.pop(node_id, None)
        self.pump_soon()

    # --- answers -----------------------------------------------------------------------------------------------------

    def _answered(
        self, node_id: int, sent: Sent, session: ClientFetchSession | None, future: asyncio.Future[Response]
    ) -> None:
        self._in_flight[node_id] -= 1
        failure = None if future.cancelled() else future.exception()
        if self._is_closed or future.cancelled():
            return
        states = [state for state, version, _ in sent.values() if state.version == version]
        if session is None or session.answered(sent):
            for state in states:
                state.in_flight = False
        if failure is None and self._is_session_kept(node_id, session, future.result()):
            self._take_response(sent, states, future.result())
        elif isinstance(failure, BarnabasError):
            self._end_session(node_id, session)
            self._failed(states, failure)
        elif failure is not None:
            raise failure
        self.pump_soon()

    def _is_session_kept(self, node_id: int, session: ClientFetchSession | None, response: Response) -> bool:
        """False: there is nothing to take from the answer. The next request begins another session."""
        if session is None:
            return True
        if not isinstance(response, FetchResponse) or not session.is_kept(response.session_id):
            self._end_session(node_id, session)
        return not isinstance(response, ErrorResponse) or response.error not in SESSION_ERRORS

    def _take_response(self, sent: Sent, states: Iterable[PartitionState], response: Response) -> None:
        if isinstance(response, ErrorResponse):
            self._failed(states, error_for(response.error, response.message))
            return
        if not isinstance(response, FetchResponse):
            self._failed(states, CorruptRecordError("a fetch received a response of another type"))
            return
        has_news = False
        for answer in response.partitions:
            partition = TopicPartition(answer.topic, answer.partition)
            state, version, offset = sent.get(partition, (None, 0, 0))
            if state is not None and state.version == version and state.fetch_offset == offset:
                has_news |= self._take_partition(state, answer)
                state.is_quiet = not answer.error and len(answer.records) <= fetch_session.QUIET_BYTES  # type: ignore[arg-type]
        if has_news:
            self._on_data()

    def _take_partition(self, state: PartitionState, answer: FetchPartitionResponse) -> bool:
        """Return whether there is something for the application."""
        if answer.error:
            self._refused(state, answer)
            return False
        if answer.preferred_read_replica >= 0:
            if not self._replicas.send(state.partition, answer.preferred_read_replica, self._client.clock.now_ms()):
                self._client.request_refresh()
            return False
        state.high_watermark = answer.high_watermark
        state.log_start_offset = answer.log_start_offset
        if answer.diverging_epoch >= 0:
            logger.warning(
                "log truncated partition=%s position=%d new_position=%d",
                state.partition,
                state.position,
                min(state.position, answer.diverging_end_offset),
            )
            state.seek(min(state.position, answer.diverging_end_offset), epoch=answer.diverging_epoch)
            return False
        assert isinstance(answer.records, bytes | bytearray | memoryview)
        if not len(answer.records):
            return False
        try:
            state.fetched(bytes(answer.records), answer.aborted)
        except CorruptRecordError as error:
            self._unreadable(state, error)
        return state.has_records

    def _unreadable(self, state: PartitionState, error: CorruptRecordError) -> None:
        """The header of the next batch is damaged. The application gets the error after all records before the batch: it may
        seek to the offset in the error. Until it does, or another leader answers, the fetch is repeated and fails again."""
        self._back_off(state)
        if self._replicas.failed(state.partition, self._client.clock.now_ms()):
            return  # The leader may have it intact.
        if not state.has_records:
            offset = state.fetch_offset
            reason = f"its header is damaged ({error.message}), so where the batch ends is not known"
            self._on_error(UnreadableBatchError(state.partition, offset, offset + 1, reason))
            self._client.request_refresh()

    def _refused(self, state: PartitionState, answer: FetchPartitionResponse) -> None:
        if self._replicas.failed(state.partition, self._client.clock.now_ms()):
            if answer.error in _MOVED:
                self._client.metadata.hint(state.partition, node_id=answer.leader_id, epoch=answer.leader_epoch)
            self._client.request_refresh()
            return  # Ask the leader at once.
        if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._on_out_of_range(state)
            return
        if answer.error == ErrorCode.INCONSISTENT_TOPIC_ID:
            known = self._client.metadata.topic_id(state.partition.topic)
            if known not in ("", state.topic_id):
                state.topic_id = known
                self._on_made_anew(state)
                return
            self._client.request_refresh()  # The broker or this client does not know the new topic yet.
        if answer.error in _MOVED:
            if self._client.metadata.hint(state.partition, node_id=answer.leader_id, epoch=answer.leader_epoch):
                return  # Fetch from the new leader at once.
            self._client.request_refresh()
        self._failed([state], error_for(answer.error, answer.message))

    def _failed(self, states: Iterable[PartitionState], error: BarnabasError) -> None:
        """Retry retriable errors; report the others to the application."""
        if not error.retriable:
            self._on_error(error)
        self._client.request_refresh()
        for state in states:
            self._replicas.failed(state.partition, self._client.clock.now_ms())
            self._back_off(state)

    def _back_off(self, state: PartitionState) -> None:
        state.is_backing_off = True

        def resume() -> None:
            self._timers.discard(timer)
            state.is_backing_off = False
            self.pump_soon()

        timer = self._loop.call_later(self._client.backoff.delay_ms(1, self._client.rng.random) / 1000, resume)
        self._timers.add(timer)
