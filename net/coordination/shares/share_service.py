"""Reads and acknowledgements of share groups on the leaders of partitions: feeds the machines, waits for records.

`consumer_groups.share.share_partition` decides; `share_loading` loads it, `led_partitions` stores its decisions, and
`share_sessions` orders the requests.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from barnabas.consumer_groups.share.share_partition import BatchSpan
from barnabas.log.format.record_batch import BatchHeader, iter_headers
from barnabas.log.records.aborted import AbortedFilter
from barnabas.log.replication.partition import Partition
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    ErrorCode,
    FencedLeaderEpochError,
    GroupIdNotFoundError,
    InvalidRequestError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    TopicAuthorizationError,
    UnknownTopicIdError,
    error_for,
)
from barnabas.log.vocabulary.share.errors import InvalidRecordStateError
from barnabas.log.vocabulary.share.messages import (
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    SharePartitionAnswer,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.clock import Clock
from barnabas.net.base.settings.config import BrokerConfig
from barnabas.net.base.settings.group_config import ShareGroupConfig, share_config_of
from barnabas.net.logs.purgatory import DelayedFetch, ReadUpTo
from barnabas.net.logs.replication_service import ReplicationService
from barnabas.net.metadata.broker_to_controller import ControllerChannel
from barnabas.net.metadata.metadata_service import MetadataService
from barnabas.net.server.dispatcher import RequestContext

from ..groups.group_service import GroupService
from ..groups.slot_tasks import SlotTasks
from .led_partitions import LedSharePartition, LedSharePartitions
from .share_loading import READ_COMMITTED, ShareLoading
from .share_sessions import FINAL_EPOCH, INITIAL_EPOCH, PartitionId, SessionKey, ShareSession, ShareSessions
from .share_views import ShareViews
from .state_store import ShareStateStore

MAX_WAIT_MS: Final = 60_000
# Of one answer. It is read on the loop, to find its batches, and usually from memory; a larger batch comes alone.
MAX_READ_BYTES: Final = 1 << 20
LOAD_RETRY_MS: Final = 100  # while the coordinator of the group is not available
SWEEP_INTERVAL_MS: Final = 500
MAX_LOADED_AT_ONCE: Final = 100  # partitions, for one fetch: each load is a decision of the quorum
MAX_ID_LENGTH: Final = 1_000  # of a member, as at the coordinator
MAX_RECORDS: Final = 100_000  # of one answer, if the client names no limit


class BrokerParts(Protocol):
    """The parts of a broker that it works with."""

    @property
    def node_id(self) -> int: ...
    @property
    def config(self) -> BrokerConfig: ...
    @property
    def metadata(self) -> MetadataService: ...
    @property
    def replication(self) -> ReplicationService: ...
    @property
    def groups(self) -> GroupService: ...
    @property
    def controller(self) -> ControllerChannel: ...


class ShareService:
    def __init__(
        self,
        parts: BrokerParts,
        clock: Clock,
        fatal: Callable[[str], None],
        *,
        may_read: Callable[[RequestContext, str], bool] = lambda client, topic: True,
    ) -> None:
        """`may_read`: whether a client may read a topic now. Records are not locked for one that may not: each lock counts as a
        delivery, and the group would lose the records after the last."""
        self._may_read = may_read
        self._config = parts.config
        self._clock = clock
        self._metadata = parts.metadata
        self._replication = parts.replication
        self.store = ShareStateStore(node_id=parts.node_id, groups=parts.groups, controller=parts.controller)
        self._tasks = SlotTasks(fatal)
        self.sessions = ShareSessions(parts.config.group_share_max_share_sessions)
        self.led = LedSharePartitions(store=self.store, spawn=self._tasks.spawn)
        self.views = ShareViews(parts, self.led, clock.now_ms)
        self.loading = ShareLoading(store=self.store, led=self.led, sessions=self.sessions)
        self._swept_ms = clock.now_ms()

    async def close(self) -> None:
        self.loading.close()
        await self._tasks.close()

    def config_of(self, group_id: str) -> ShareGroupConfig:
        return share_config_of(self._config, self._metadata.image.group_configs.get(group_id, {}))

    # --- requests -----------------------------------------------------------------------------------------------------

    async def fetch(self, request: ShareFetchRequest, client: RequestContext) -> ShareFetchResponse:
        """Raises the errors of sessions."""
        session = self._session(request, client)
        answers = await self._acknowledge_all(_key(request, client), request.partitions)
        config = self.config_of(request.group_id)
        if request.session_epoch == FINAL_EPOCH:
            self._end(session)
        elif request.max_bytes > 0:
            await self._fetch(session, request, config, answers, client)
        return ShareFetchResponse(
            partitions=tuple(answers.values()), lock_duration_ms=config.settings.record_lock_duration_ms
        )

    async def acknowledge(self, request: ShareAcknowledgeRequest, client: RequestContext) -> ShareFetchResponse:
        """Raises the errors of sessions. The outcomes are the `acknowledge_error` of the answers."""
        session = self.sessions.follow(_key(request, client), request.session_epoch)
        answers = await self._acknowledge_all(_key(request, client), request.partitions)
        if request.session_epoch == FINAL_EPOCH:
            self._end(session)
        duration_ms = self.config_of(request.group_id).settings.record_lock_duration_ms
        return ShareFetchResponse(partitions=tuple(answers.values()), lock_duration_ms=duration_ms)

    def _session(self, request: ShareFetchRequest, client: RequestContext) -> ShareSession:
        if not request.group_id or not 0 < len(request.member_id) <= MAX_ID_LENGTH:
            raise InvalidRequestError("a share fetch names a group, and a member with an id of 1 to 1,000 characters")
        key = _key(request, client)
        if request.session_epoch == INITIAL_EPOCH:
            if any(item.acknowledged for item in request.partitions):
                raise InvalidRequestError("the first request of a share session has nothing to acknowledge")
            before = self.sessions.find(key)
            if before is not None and before.connection is not client.connection:
                self._end(before)  # its connection is lost, whether that is known here or not
            session = self.sessions.begin(key, client.connection)
        else:
            session = self.sessions.follow(key, request.session_epoch)
        if request.session_epoch != FINAL_EPOCH:
            self.sessions.add(session, request.partitions)
            session.forget(request.forgotten)
        return session

    def _end(self, session: ShareSession) -> None:
        """What the member holds is available to others at once; that it is stored, the answer does not wait for."""
        partitions = list(session.partitions)
        self.sessions.end(session)
        for partition in partitions:
            led = self.led.find((session.group_id, partition))
            if led is not None and led.machine.release_member(session.key.holder):
                self.led.store_later(led)
                led.wake()

    # --- acknowledging ------------------------------------------------------------------------------------------------

    async def _acknowledge_all(
        self, key: SessionKey, partitions: Iterable[ShareFetchPartition]
    ) -> dict[PartitionId, SharePartitionAnswer]:
        named = [item for item in partitions if item.acknowledged]
        found = await asyncio.gather(*(self._acknowledge_one(key, item) for item in named))
        return {(item.topic_id, item.partition): item for item in found}

    async def _acknowledge_one(self, key: SessionKey, item: ShareFetchPartition) -> SharePartitionAnswer:
        try:
            partition = self._partition((item.topic_id, item.partition))
            led = self.led.of_leadership((key.group_id, (item.topic_id, item.partition)), partition)
            if led is None:
                raise InvalidRecordStateError("the locks ended with the leader of the partition before")
            led.machine.acknowledge(key.holder, item.acknowledged, self._clock.now_ms())
            led.wake()
            await self.led.store(led)
        except BarnabasError as error:
            leader_id, leader_epoch = self._hint(item.topic_id, item.partition)
            return SharePartitionAnswer(
                topic_id=item.topic_id,
                partition=item.partition,
                acknowledge_error=error.code,
                acknowledge_message=error.message,
                leader_id=leader_id,
                leader_epoch=leader_epoch,
            )
        return SharePartitionAnswer(topic_id=item.topic_id, partition=item.partition)

    # --- fetching -----------------------------------------------------------------------------------------------------

    async def _fetch(
        self,
        session: ShareSession,
        request: ShareFetchRequest,
        config: ShareGroupConfig,
        answers: dict[PartitionId, SharePartitionAnswer],
        client: RequestContext,
    ) -> None:
        """Add to the answers what can be read, at the latest after `max_wait_ms`."""
        until_ms = self._clock.now_ms() + min(request.max_wait_ms, MAX_WAIT_MS)
        while True:
            readable, refused, is_loading = await self._readable(session, config, client)
            count, budget = 0, min(request.max_bytes, MAX_READ_BYTES)
            most = request.max_records if request.max_records > 0 else MAX_RECORDS
            for led, partition in readable:
                if not self.sessions.is_open(session) or count >= most or (count and budget <= 0):
                    break
                read = self._read(led, partition, session, config, budget, most - count, is_strict=request.is_strict)
                if isinstance(read, BarnabasError):
                    refused.append(self._refusal(led.key[1], read))
                elif read is not None:
                    budget -= len(read.records)
                    count += sum(item.last_offset - item.first_offset + 1 for item in read.acquired)
                    _add(answers, read)
                    session.served(led.key[1])
            for refusal in refused:
                _add(answers, refusal)
            remaining_ms = until_ms - self._clock.now_ms()
            if count or refused or remaining_ms <= 0 or not self.sessions.is_open(session):
                return
            await self._wait(readable, config, min(remaining_ms, LOAD_RETRY_MS) if is_loading else remaining_ms)

    async def _readable(
        self, session: ShareSession, config: ShareGroupConfig, client: RequestContext
    ) -> tuple[list[tuple[LedSharePartition, Partition]], list[SharePartitionAnswer], bool]:
        """The session's partitions that can be read, those that are refused, and whether others cannot be loaded yet."""
        wanted: list[tuple[PartitionId, Partition, int]] = []
        readable: list[tuple[LedSharePartition, Partition]] = []
        refused: list[SharePartitionAnswer] = []
        for item, since in list(session.partitions.items()):
            try:
                partition = self._partition(item)
                if not self._may_read(client, partition.topic_partition.topic):
                    raise TopicAuthorizationError("the client may not read this topic any more")
            except BarnabasError as error:
                refused.append(self._refusal(item, error))
                continue
            known = self.led.of_leadership((session.group_id, item), partition)
            if known is None or not known.is_confirmed(since):
                wanted.append((item, partition, since))
            else:
                readable.append((known, partition))
        is_loading = len(wanted) > MAX_LOADED_AT_ONCE
        del wanted[MAX_LOADED_AT_ONCE:]
        loaded = await asyncio.gather(
            *(
                self.loading.loaded((session.group_id, item), partition, since, config)
                for item, partition, since in wanted
            ),
            return_exceptions=True,
        )
        for (item, partition, _), led in zip(wanted, loaded, strict=True):
            if isinstance(led, LedSharePartition):
                readable.append((led, partition))
            elif isinstance(led, FencedLeaderEpochError | NotLeaderOrFollowerError):
                refused.append(self._refusal(item, led))
            elif isinstance(led, BarnabasError) and (led.retriable or isinstance(led, GroupIdNotFoundError)):
                is_loading = True
            elif isinstance(led, BarnabasError):
                refused.append(self._refusal(item, led))
            else:
                raise led
        return readable, refused, is_loading

    def _read(
        self,
        led: LedSharePartition,
        partition: Partition,
        session: ShareSession,
        config: ShareGroupConfig,
        max_bytes: int,
        max_records: int,
        *,
        is_strict: bool,
    ) -> SharePartitionAnswer | BarnabasError | None:
        """Lock records for the member; None: there are none now."""
        machine = led.machine
        machine.settings = config.settings
        try:
            machine.log_begins_at(partition.log.log_start_offset)
            if led.is_dropped or not machine.has_room:
                return None
            read = partition.reads.read_for_consumer(
                machine.next_fetch_offset,
                max_bytes=max_bytes,
                isolation_level=READ_COMMITTED if config.reads_committed else 0,
                current_leader_epoch=led.leader_epoch,
            )
            if read.error:
                raise error_for(read.error, f"share group {led.group_id} cannot read {led.topic_partition}")
            records = read.records if isinstance(read.records, bytes) else read.records.read()
            headers = list(iter_headers(records))
            left_out = AbortedFilter([(item.producer_id, item.first_offset) for item in read.aborted])
            spans = _spans(headers, records, left_out)
        except OffsetNotAvailableError:
            return None
        except BarnabasError as error:
            return error
        acquired = machine.acquire(
            session.key.holder, spans, max_records=max_records, now_ms=self._clock.now_ms(), is_strict=is_strict
        )
        self.led.store_later(led)  # what was left out is archived
        if not acquired:
            return None
        self.led.locked[led] = None
        begin, end = _stretch(headers, acquired[0].first_offset, acquired[-1].last_offset)
        return SharePartitionAnswer(
            topic_id=led.topic_id,
            partition=led.topic_partition.partition,
            records=records[begin:end],
            acquired=tuple(acquired),
        )

    async def _wait(
        self, readable: list[tuple[LedSharePartition, Partition]], config: ShareGroupConfig, timeout_ms: int
    ) -> None:
        """Return when one of them may have records, or after the time."""
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        places = {
            led.topic_partition: (led.machine.next_fetch_offset, led.leader_epoch)
            for led, _ in readable
            if led.machine.has_room and not led.is_dropped
        }
        for led, _ in readable:
            led.readers[wake] = None
        parked = DelayedFetch(
            token=lambda _: _wake(wake),
            client=wake,
            timeout_ms=timeout_ms,
            min_bytes=1,
            read_up_to=ReadUpTo.LAST_STABLE_OFFSET if config.reads_committed else ReadUpTo.HIGH_WATERMARK,
            offsets=places,
        )
        try:
            self._replication.park(parked)
            await asyncio.sleep(0)  # if it is complete at once, others have their turn before the next read
            await wake
        finally:
            for led, _ in readable:
                led.readers.pop(wake, None)
            self._replication.forget_client(wake)

    # --- partitions ---------------------------------------------------------------------------------------------------

    def _partition(self, item: PartitionId) -> Partition:
        """Raises UnknownTopicIdError, NotLeaderOrFollowerError, UnknownTopicOrPartitionError."""
        topic_id, number = item
        name = self._metadata.image.topic_names.get(topic_id)
        if name is None:
            raise UnknownTopicIdError(f"topic id {topic_id} is not known: the topic was deleted, or is too new")
        partition = self._replication.replica(TopicPartition(name, number))
        if partition.topic_id != topic_id or not partition.role.is_leader:
            raise partition.role.does_not_lead()
        return partition

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """To be called often: ends locks, and sessions whose connections are gone."""
        if not (self.led.loaded or self.sessions.opened):
            return
        now_ms = self._clock.now_ms()
        for led in list(self.led.locked):
            deadline_ms = led.machine.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= now_ms and led.machine.expire(now_ms):
                self.led.store_later(led)
                led.wake()
            if led.machine.next_deadline_ms() is None:
                del self.led.locked[led]
        if now_ms - self._swept_ms >= SWEEP_INTERVAL_MS:
            self._swept_ms = now_ms
            self._sweep()

    def _sweep(self) -> None:
        for session in self.sessions.disconnected():
            self._end(session)
        for led in self.led:
            partition = self._replication.manager.find(led.topic_partition)
            is_led = (
                partition is not None
                and partition.topic_id == led.topic_id
                and partition.role.is_leader
                and partition.leader_epoch == led.leader_epoch
            )
            if not is_led:
                self.led.drop(led, NotLeaderOrFollowerError(f"this broker leads {led.topic_partition} no longer"))
            elif (
                led.key not in self.sessions.readers
                and led.is_stored
                and not led.storing
                and not led.machine.acquired_count
            ):
                self.led.drop(led, NotLeaderOrFollowerError("no session reads this share partition"))

    # --- refusals -----------------------------------------------------------------------------------------------------

    def _refusal(self, item: PartitionId, error: BarnabasError) -> SharePartitionAnswer:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER if isinstance(error, FencedLeaderEpochError) else error.code
        leader_id, leader_epoch = self._hint(*item)
        return SharePartitionAnswer(
            topic_id=item[0],
            partition=item[1],
            error=code,
            message=error.message,
            leader_id=leader_id,
            leader_epoch=leader_epoch,
        )

    def _hint(self, topic_id: str, number: int) -> tuple[int, int]:
        name = self._metadata.image.topic_names.get(topic_id)
        return (-1, -1) if name is None else self._replication.leader_hint(TopicPartition(name, number))


def _key(request: ShareFetchRequest | ShareAcknowledgeRequest, client: RequestContext) -> SessionKey:
    return SessionKey(group_id=request.group_id, member_id=request.member_id, principal=client.principal)


def _wake(reader: "asyncio.Future[None]") -> None:
    if not reader.done():
        reader.set_result(None)


def _add(answers: dict[PartitionId, SharePartitionAnswer], found: SharePartitionAnswer) -> None:
    """To what was said of its acknowledgements."""
    key = (found.topic_id, found.partition)
    before = answers.get(key)
    if before is not None:
        found = SharePartitionAnswer(
            topic_id=found.topic_id,
            partition=found.partition,
            error=found.error,
            message=found.message,
            acknowledge_error=before.acknowledge_error,
            acknowledge_message=before.acknowledge_message,
            leader_id=max(found.leader_id, before.leader_id),
            leader_epoch=max(found.leader_epoch, before.leader_epoch),
            records=found.records,
            acquired=found.acquired,
        )
    answers[key] = found


def _spans(headers: list[BatchHeader], records: bytes, left_out: AbortedFilter) -> list[BatchSpan]:
    return [
        BatchSpan(
            first_offset=header.base_offset,
            last_offset=header.last_offset,
            is_deliverable=not left_out.leaves_out(header, records),
        )
        for header in headers
    ]


def _stretch(headers: list[BatchHeader], first_offset: int, last_offset: int) -> tuple[int, int]:
    """Where the batches with these offsets begin and end."""
    begin = next(item.position for item in headers if item.last_offset >= first_offset)
    last = next(item for item in reversed(headers) if item.base_offset <= last_offset)
    return begin, last.position + last.size_bytes
