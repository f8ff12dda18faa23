"""Fetch (key 1): read record batches, as a consumer or as a follower.

Versions: 0. Behaviour: waits up to `max_wait_ms` for `min_bytes`; an error on any partition is answered at once. A consumer
sees what is committed (the high watermark; for read_committed the last stable offset, with the aborted transactions among the
records, which it leaves out); a follower sees the whole log, and its offset is its acknowledgement of everything before. Each
answer brings at least one whole batch where there is one, also when it is larger than the limits (KIP-74). The answer reports a
divergence (KIP-595). A consumer that names its rack is sent to a replica there (KIP-392, `replica_selection`).
`__consumer_offsets` is served by any broker from the state of the quorum (`offsets_topic`). In a session (`fetch_sessions`), a
request of a consumer or a follower reads what has changed since the last one.
"""

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from barnabas.log.replication.partition import Partition
from barnabas.log.replication.partition_reads import PartitionRead
from barnabas.log.replication.ports import slice_size
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode
from barnabas.log.vocabulary.topic_partition import CONSUMER_OFFSETS_TOPIC, TopicPartition
from barnabas.net.base.figures.request_measures import FETCH, FOLLOWER_FETCH
from barnabas.net.base.limits import check_count
from barnabas.net.coordination.groups.offsets_topic import OffsetsTopic
from barnabas.net.logs.purgatory import DelayedFetch, Operation, ReadUpTo
from barnabas.net.server.dispatcher import Reply, RequestContext, answering, error_response
from barnabas.net.wire.protocol.requests import FINAL_EPOCH, READ_COMMITTED, FetchPartition, FetchRequest
from barnabas.net.wire.protocol.responses import FetchPartitionResponse, FetchResponse

from ..common.services import Services
from .fetch_sessions import (
    LOOK_AGAIN_MS,
    MAX_FOLLOWED_PARTITIONS,
    MAX_FOLLOWER_SESSIONS,
    PAUSE_MS,
    FetchSession,
    FetchSessions,
)
from .replica_selection import NO_REPLICA, ReplicaSelection

MAX_FETCH_BYTES = (
    64 << 20
)  # of one response, also if fetch.max.bytes is larger: clients accept frames of at most 100 MiB
MAX_FETCH_WAIT_MS = 60_000
OFFSETS_TOPIC_POLL_MS = 100  # of topics that are fetched in one request with __consumer_offsets


class FetchHandler:
    def __init__(self, services: Services) -> None:
        self._replication = services.replication
        self._clock = services.clock
        self._measures = services.figures.measures
        self._throttle = services.throttle
        self._selection = ReplicaSelection(services.config, services.metadata)
        self._max_bytes = min(services.config.fetch_max_bytes, MAX_FETCH_BYTES)
        # Not led here: the error of the read shows a fetch of it, so that other fetches cost nothing.
        self._offsets_topic = OffsetsTopic(services.metadata)
        self._read_offsets_topic = answering(self._fetch_offsets_topic)
        watching = services.replication.purgatory
        self.sessions = FetchSessions(services.config.max_incremental_fetch_session_cache_slots, watching, services.rng)
        self.follower_sessions = FetchSessions(
            MAX_FOLLOWER_SESSIONS,
            watching,
            services.rng,
            max_partitions=MAX_FOLLOWED_PARTITIONS,
            look_again_ms=min(LOOK_AGAIN_MS, services.config.replica_lag_time_max_ms // 4),
        )

    def __call__(self, request: FetchRequest, context: RequestContext, reply: Reply) -> None:
        if request.replica_id < 0:
            check_count(request.partitions)  # Followers name all that they have.
        if request.session_epoch != FINAL_EPOCH or request.session_id:
            now_ms = self._clock.now_ms()
            sessions = self.sessions if request.replica_id < 0 else self.follower_sessions
            session = sessions.begin(request, id(context.connection), now_ms, self._overtake)
            if session is not None:
                self._serve_session(session, request, context, reply)
                return
        responses, size_bytes, is_final = self._read(request, request.partitions, is_first_read=True)
        if (
            is_final
            and request.replica_id < 0
            and any(item.topic == CONSUMER_OFFSETS_TOPIC for item in request.partitions)
        ):
            self._read_offsets_topic(request, context, reply)
            return
        if is_final or size_bytes >= request.min_bytes or request.max_wait_ms <= 0 or not request.partitions:
            reply(FetchResponse(partitions=tuple(responses)))
            return
        self._park(request, context, reply)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _serve_session(
        self, session: FetchSession, request: FetchRequest, context: RequestContext, reply: Reply
    ) -> None:
        responses, size_bytes, is_final = self._read(request, session.to_read(), is_first_read=True)
        watch = session.watch
        timeout_ms = min(
            request.max_wait_ms, MAX_FETCH_WAIT_MS, PAUSE_MS if session.has_more_due else MAX_FETCH_WAIT_MS
        )
        told: dict[TopicPartition, int] = {}
        for topic_partition in list(watch.changed):
            partition = self._replication.manager.find(topic_partition)
            if partition is None:
                continue
            watch.places[topic_partition] = (watch.places[topic_partition][0], partition.leader_epoch)
            if not session.is_of_follower:
                continue
            delay_ms = self._send_delay_ms(request, partition)
            if delay_ms > 0:  # what lies there must not wake it; its follower is not in sync, and names it again
                timeout_ms = min(timeout_ms, delay_ms)
                session.rest(topic_partition, self._clock.now_ms())
                self._replication.purgatory.unwatch(watch, topic_partition)
            elif partition.leading.tells_at_once(request.replica_id, self._clock.now_ms()):
                told[topic_partition] = partition.high_watermark
        if is_final or size_bytes >= request.min_bytes or request.max_wait_ms <= 0:
            reply(self._news(session, request, responses))
            return

        def answer() -> FetchResponse:
            responses, _, _ = self._read(request, session.to_read(), is_first_read=False)
            return self._news(session, request, responses)

        def disconnected() -> None:
            self._replication.forget_client(context)
            if session.is_of_follower:
                self.follower_sessions.end(session)

        context.on_disconnect(disconnected)
        self._replication.park(
            DelayedFetch(
                token=_completing(answer, request, reply),
                client=context,
                timeout_ms=timeout_ms,
                min_bytes=request.min_bytes,
                read_up_to=_read_up_to(request),
                offsets=watch.places,
                told_high_watermarks=told,
                standing=watch,
            )
        )

    def _news(
        self, session: FetchSession, request: FetchRequest, responses: list[FetchPartitionResponse]
    ) -> FetchResponse:
        news = session.news(responses, request.isolation_level)
        if session.is_of_follower:
            now_ms = self._clock.now_ms()
            for topic_partition in list(session.watch.changed):
                partition = self._replication.manager.find(topic_partition)
                if partition is None or topic_partition not in session.told:
                    continue
                if partition.leading.is_settled(session.replica_id, session.partitions[topic_partition].fetch_offset):
                    session.rest(topic_partition, now_ms)
        return FetchResponse(partitions=tuple(news), session_id=session.session_id)

    def _overtake(self, session: FetchSession) -> None:
        """Answer the request of this session that still waits: another one continues the session, or ends it."""
        parked = session.watch.parked
        if parked is not None:
            self._replication.forget_client(parked.client)
            parked.token(parked)  # type: ignore[operator]

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _park(self, request: FetchRequest, context: RequestContext, reply: Reply) -> None:
        def answer() -> FetchResponse:
            responses, _, _ = self._read(request, request.partitions, is_first_read=False)
            return FetchResponse(partitions=tuple(responses))

        manager = self._replication.manager
        offsets: dict[TopicPartition, tuple[int, int]] = {}
        told: dict[TopicPartition, int] = {}
        now_ms = self._clock.now_ms()
        timeout_ms = min(request.max_wait_ms, MAX_FETCH_WAIT_MS)
        for item in request.partitions:
            topic_partition = TopicPartition(item.topic, item.partition)
            partition = manager.partition(topic_partition)
            delay_ms = self._send_delay_ms(request, partition)
            if delay_ms > 0:  # what lies there must not wake it
                timeout_ms = min(timeout_ms, delay_ms)
                continue
            offsets[topic_partition] = (item.fetch_offset, partition.leader_epoch)
            if request.replica_id >= 0 and partition.leading.tells_at_once(request.replica_id, now_ms):
                told[topic_partition] = partition.high_watermark
        context.on_disconnect(lambda: self._replication.forget_client(context))
        self._replication.park(
            DelayedFetch(
                token=_completing(answer, request, reply),
                client=context,
                timeout_ms=timeout_ms,
                min_bytes=request.min_bytes,
                read_up_to=_read_up_to(request),
                offsets=offsets,
                told_high_watermarks=told,
            )
        )

    def _read(
        self, request: FetchRequest, partitions: Iterable[FetchPartition], *, is_first_read: bool
    ) -> tuple[list[FetchPartitionResponse], int, bool]:
        """Read these partitions. The last value: whether the response must not wait (an error, divergence)."""
        remaining = min(request.max_bytes, self._max_bytes)
        responses: list[FetchPartitionResponse] = []
        total = 0
        is_final = False
        for item in partitions:
            topic_partition = TopicPartition(item.topic, item.partition)
            response, must_not_wait, size_bytes = self._read_one(
                request, item, topic_partition, remaining, is_first_batch=total == 0, is_first_read=is_first_read
            )
            if size_bytes and request.replica_id >= 0:
                self._throttle.sent(topic_partition, request.replica_id, size_bytes)
            total += size_bytes
            remaining = max(0, remaining - size_bytes)
            is_final = is_final or must_not_wait
            responses.append(response)
        return responses, total, is_final

    def _read_one(
        self,
        request: FetchRequest,
        item: FetchPartition,
        topic_partition: TopicPartition,
        max_bytes: int,
        *,
        is_first_batch: bool,
        is_first_read: bool,
    ) -> tuple[FetchPartitionResponse, bool, int]:
        """Also whether the response must not wait (an error, divergence, another replica, news for a follower), and the bytes of
        its records."""
        limit = min(max_bytes, item.max_bytes)
        read_replica = NO_REPLICA
        try:
            partition = self._replication.manager.partition(topic_partition)
            if request.replica_id >= 0:
                read = self._read_for_follower(request, item, partition, limit, is_first_batch, is_first_read)
            else:
                partition.role.check_topic_id(item.topic_id)
                if request.may_be_sent_away:
                    partition.following.check_serves_consumers(self._clock.wall_ms())
                    read_replica = self._selection.choose(
                        partition, request.rack, item.fetch_offset, self._clock.now_ms()
                    )
                read = partition.reads.read_for_consumer(
                    item.fetch_offset,
                    max_bytes=limit if read_replica == NO_REPLICA else 0,
                    isolation_level=request.isolation_level,
                    current_leader_epoch=item.current_leader_epoch,
                    last_fetched_epoch=item.last_fetched_epoch,
                    at_least_one_batch=is_first_batch and read_replica == NO_REPLICA,
                    allow_follower=request.may_be_sent_away,
                )
        except BarnabasError as refusal:
            error = self._replication.as_told(topic_partition, refusal)
            self._note_error(request, error.code)
            leader_id, leader_epoch = self._replication.leader_hint(topic_partition)
            refused = FetchPartitionResponse(
                topic=item.topic,
                partition=item.partition,
                error=error.code,
                message=error.message,
                leader_id=leader_id,
                leader_epoch=leader_epoch,
            )
            return refused, True, 0
        is_refused = read.error != ErrorCode.NONE or read.diverging_epoch >= 0
        if is_refused:
            read_replica = NO_REPLICA
            if read.error != ErrorCode.NONE:
                self._note_error(request, read.error)
        response = FetchPartitionResponse(
            topic=item.topic,
            partition=item.partition,
            error=read.error,
            high_watermark=read.high_watermark,
            last_stable_offset=read.last_stable_offset,
            log_start_offset=read.log_start_offset,
            diverging_epoch=read.diverging_epoch,
            diverging_end_offset=read.diverging_end_offset,
            preferred_read_replica=read_replica,
            records=read.records,
            aborted=tuple([(found.producer_id, found.first_offset) for found in read.aborted]) if read.aborted else (),
        )
        size_bytes = slice_size(read.records) if read.records else 0
        if size_bytes and request.replica_id < 0:
            partition.bytes_out += size_bytes
        return response, is_refused or read.is_urgent or read_replica != NO_REPLICA, size_bytes

    def _note_error(self, request: FetchRequest, code: int) -> None:
        self._measures.failed(FETCH if request.replica_id < 0 else FOLLOWER_FETCH, code)

    async def _fetch_offsets_topic(self, request: FetchRequest, context: RequestContext) -> FetchResponse:
        """Some partitions are of `__consumer_offsets`. The other partitions of the request are read again with them."""
        deadline_ms = self._clock.now_ms() + min(request.max_wait_ms, MAX_FETCH_WAIT_MS)
        others = replace(
            request, partitions=tuple(item for item in request.partitions if item.topic != CONSUMER_OFFSETS_TOPIC)
        )
        while True:
            found, size_bytes, is_final = self._read(others, others.partitions, is_first_read=True)
            for item in request.partitions:
                if item.topic == CONSUMER_OFFSETS_TOPIC:
                    response = await self._read_slot(item, min(request.max_bytes, self._max_bytes) - size_bytes)
                    size_bytes += slice_size(response.records)  # type: ignore[arg-type]
                    is_final = is_final or response.error != ErrorCode.NONE
                    found.append(response)
            remaining_ms = deadline_ms - self._clock.now_ms()
            if is_final or size_bytes >= max(1, request.min_bytes) or remaining_ms <= 0:
                return FetchResponse(partitions=tuple(found))
            await self._offsets_topic.wait(
                min(remaining_ms, OFFSETS_TOPIC_POLL_MS) if others.partitions else remaining_ms
            )

    async def _read_slot(self, item: FetchPartition, max_bytes: int) -> FetchPartitionResponse:
        try:
            read = await self._offsets_topic.read(item.partition, item.fetch_offset, min(max_bytes, item.max_bytes))
        except BarnabasError as error:
            return FetchPartitionResponse(
                topic=item.topic, partition=item.partition, error=error.code, message=error.message
            )
        return FetchPartitionResponse(
            topic=item.topic,
            partition=item.partition,
            error=ErrorCode.NONE,
            high_watermark=read.high_watermark,
            last_stable_offset=read.high_watermark,
            log_start_offset=0,
            records=read.records,
        )

    def _read_for_follower(
        self,
        request: FetchRequest,
        item: FetchPartition,
        partition: Partition,
        limit: int,
        is_first_batch: bool,
        is_first_read: bool,
    ) -> PartitionRead:
        if item.topic_id and item.topic_id != partition.topic_id:
            return PartitionRead(error=ErrorCode.INCONSISTENT_TOPIC_ID)
        is_held_back = self._send_delay_ms(request, partition) > 0
        read, effects = partition.leading.read_for_follower(
            request.replica_id,
            broker_epoch=request.broker_epoch,
            offset=item.fetch_offset,
            max_bytes=0 if is_held_back else limit,
            current_leader_epoch=item.current_leader_epoch,
            last_fetched_epoch=item.last_fetched_epoch,
            now_ms=self._clock.now_ms(),
            log_start_offset=item.log_start_offset,
            is_first_read=is_first_read,
            at_least_one_batch=is_first_batch and not is_held_back,
        )
        if effects:
            self._replication.perform(effects)
        return read

    def _send_delay_ms(self, request: FetchRequest, partition: Partition) -> int:
        """Nothing is held back from a follower that the high watermark waits for, although the metadata here may be older."""
        replica_id = request.replica_id
        delay_ms = 0 if replica_id < 0 else self._throttle.send_delay_ms(partition.topic_partition, replica_id)
        return 0 if delay_ms > 0 and partition.leading.waits_for(replica_id) else delay_ms


def _completing(
    answer: Callable[[], FetchResponse], request: FetchRequest, reply: Reply
) -> Callable[[Operation], None]:
    def completed(_: Operation) -> None:
        try:
            response = answer()
        except Exception as error:  # noqa: BLE001 - the dispatcher's boundary is far away by now
            reply(error_response(error, request))
        else:
            reply(response)

    return completed


def _read_up_to(request: FetchRequest) -> ReadUpTo:
    if request.replica_id >= 0:
        return ReadUpTo.LOG_END
    if request.isolation_level == READ_COMMITTED:
        return ReadUpTo.LAST_STABLE_OFFSET
    return ReadUpTo.HIGH_WATERMARK
