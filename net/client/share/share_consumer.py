"""`ShareConsumer`: reads a topic as a queue (KIP-932): its group gives each record to one member at a time.

The leaders of partitions lock records for this member; acknowledgements travel with the next fetch. Heartbeats and one fetch for
each leader run in the background; everything else happens in the calls of the application.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Self, Unpack, cast

from barnabas.log.format.record_batch import BatchHeader, iter_headers
from barnabas.log.records.codec import records_of
from barnabas.log.vocabulary.share.errors import InvalidRecordStateError
from barnabas.log.vocabulary.share.messages import (
    Acknowledgement,
    AcquiredRecords,
    ShareFetchResponse,
    SharePartitionAnswer,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.arguments import explained
from ..connection.client import (
    API_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    REQUEST_TIMEOUT_MS,
    RETRY_BACKOFF_MS,
    Client,
    check_loop,
)
from ..connection.errors import (
    BarnabasError,
    ClientClosedError,
    InvalidConfigError,
    InvalidRequestError,
    RequestTimedOutError,
    error_for,
)
from ..connection.habits import asynchronous, topic_names, with_habits
from ..connection.metadata import NO_LEADER, MissingTopics
from ..connection.security import SecurityOptions
from ..serde.bad_records import Handler
from ..serde.serdes import AnyDeserializer
from .leader_session import LeaderSession, PartitionId
from .ready_records import ReadyRecords
from .refusals import Refusals
from .share_membership import ShareMembership
from .share_reading import DeadLetter, Rejections, ShareReading
from .share_record import ShareRecord, share_record_class

logger = logging.getLogger("barnabas.consumer")

MAX_RECORDS = 500
MAX_BYTES = 1 << 20
ITERATION_POLL_MS = 60_000  # `async for` waits without end, in steps
CLOSE_TIMEOUT_MS = 5_000
_KINDS = {"accept": Acknowledgement.ACCEPT, "release": Acknowledgement.RELEASE, "reject": Acknowledgement.REJECT}
_Place = tuple[PartitionId, int]  # partition, offset


@explained
@asynchronous
class ShareConsumer:
    """A member of a share group: several of them share the records of a partition.

        async with ShareConsumer("jobs", bootstrap="localhost:9092", group="workers") as consumer:
            async for record in consumer:
                if not handle(record.value):
                    consumer.acknowledge(record, "release")

    A record that is not acknowledged is accepted by the next `poll`, or the next step of `async for`: then the application is
    done with it. What is neither by the time that the consumer closes is released. A released record is delivered again, to any
    member, with a higher `delivery_count`, at most `share.delivery.count.limit` times; a rejected one is archived. The lock of a
    record ends `share.record.lock.duration.ms` after it came here; then others get it, and an acknowledgement comes too late.

    `dead_letter=dead_letters(producer, "jobs.dead")` keeps the records that nobody could handle: those that the application
    rejects, those that a deserializer cannot read, and those that come for more than the `max_deliveries`th time, which are not
    returned any more. A record is rejected when its dead letter is written; after a crash in between it is written again.
    """

    @with_habits
    def __init__(
        self,
        *topics: str | Iterable[str],
        group: str,
        bootstrap: str | Iterable[str] = DEFAULT_BOOTSTRAP,
        max_records: int = MAX_RECORDS,
        fetch_max_bytes: int = MAX_BYTES,
        fetch_max_wait_ms: int = 500,
        key_deserializer: AnyDeserializer | None = None,
        value_deserializer: AnyDeserializer | None = None,
        on_bad_record: str | Handler | None = None,
        dead_letter: DeadLetter | None = None,
        max_deliveries: int | None = None,
        missing_topic_timeout_ms: int = API_TIMEOUT_MS,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        retry_backoff_ms: float = RETRY_BACKOFF_MS,
        client_id: str = "barnabas-share-consumer",
        client: Client | None = None,
        **security: Unpack[SecurityOptions],
    ) -> None:
        """`topics`: names, or lists of names; `group`: the share group; `bootstrap`: addresses of brokers.

        `max_records`: how many records are locked by one fetch, rounded up to whole batches; `fetch_max_bytes`: the bytes of one
        fetch, `fetch_max_wait_ms`: how long it waits for records. `key_deserializer` and `value_deserializer` make objects of
        bytes; `on_bad_record`: for records that they cannot read, "stop" (each `poll` raises DeserializationError until
        `acknowledge(error.record, "reject")`), "skip" (rejects them) or a function of the record and the error, by default
        `dead_letter`, or else "stop". `dead_letter`: a function or coroutine function of a record and the reason as an exception.
        `max_deliveries` (4 with `dead_letter`): deliveries to the application; it must be below `share.delivery.count.limit`
        of the group. `missing_topic_timeout_ms` (-1: no limit): `poll` raises UnknownTopicOrPartitionError once none of the
        topics has existed for so long; the next one waits again. `request_timeout_ms`, `retry_backoff_ms`: of one request, and
        the first wait before it is repeated.
        `client_id`: the name in logs and quotas of brokers. `client`: a connected client, which this consumer closes.
        `security`: `ssl_cafile`, `sasl_mechanism` and so on, as for `Consumer`. Raises InvalidConfigError.
        """
        names = topic_names(topics)
        if not names or not group:
            raise InvalidConfigError(
                "a share consumer needs topics and a group: ShareConsumer('jobs', group='workers')"
            )
        self._reading = ShareReading(key_deserializer, value_deserializer, on_bad_record, dead_letter, max_deliveries)
        self._rejections = Rejections(self._reading)
        self._topics = tuple(dict.fromkeys(names))
        self._group = group
        self._max_records = max_records
        self._max_bytes = fetch_max_bytes
        self._max_wait_ms = fetch_max_wait_ms
        self._client = client or Client(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            **security,
        )
        self._missing = MissingTopics(self._client.metadata, limit_ms=missing_topic_timeout_ms)
        self._membership: ShareMembership | None = None
        self._is_closed = False
        self._sessions: dict[int, LeaderSession] = {}  # by broker
        self._fetches: dict[int, asyncio.Task[None]] = {}
        self._failures: dict[int, int] = {}
        self._ready = ReadyRecords()
        self._returned: dict[_Place, None] = {}  # to be accepted, unless the application says otherwise
        self._home: dict[_Place, int] = {}  # of all records that are locked here: the broker
        self._names: dict[str, str] = {}  # topic id -> name
        self._refusals = Refusals(group)

    # --- life ---------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect, and join the group. Raises NoBrokersAvailableError."""
        if self._membership is not None:
            return
        for topic in self._topics:
            self._client.want_topic(topic)
        await self._client.start()
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._client.on_metadata(self._metadata_changed)
        self._membership = ShareMembership(self._client, self._group, self._topics, self._wake.set)
        self._membership.start()

    async def close(self) -> None:
        """Send what is acknowledged, release the other records, and leave the group. Raises ConcurrentUseError on another
        event loop than that of the start."""
        if self._is_closed or self._membership is None:
            self._is_closed = True
            if self._membership is None:
                await self._client.close()  # It may be connecting.
            return
        check_loop(self._loop, "share consumer")
        try:
            await self._rejections.settle(CLOSE_TIMEOUT_MS / 1000)
        finally:
            self._is_closed = True
            # The last one ends first. Each does, also if the caller is cancelled in another one.
            async with AsyncExitStack() as parts:
                end_sessions = partial(self._end_sessions, self._membership.member_id)
                for end in (self._client.close, self._membership.close, end_sessions, self._end_fetches, self._sent):
                    parts.push_async_callback(end)

    async def _sent(self) -> None:
        """Wait for the requests with acknowledgements that are on their way: cut off, their records would be released."""
        sending = [task for node_id, task in self._fetches.items() if self._session(node_id).is_sending]
        if sending:
            await asyncio.wait(sending, timeout=CLOSE_TIMEOUT_MS / 1000)

    async def _end_fetches(self) -> None:
        for task in self._fetches.values():
            task.cancel()
        await asyncio.gather(*self._fetches.values(), return_exceptions=True)

    async def _end_sessions(self, member_id: str) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_MS / 1000):
                await asyncio.gather(*(self._end(session, member_id) for session in self._sessions.values()))
        except TimeoutError:
            logger.warning("share group=%s: a broker did not answer; its locks end by themselves", self._group)

    async def _end(self, session: LeaderSession, member_id: str) -> None:
        request = session.last_request(group_id=self._group, member_id=member_id)
        if request is None:
            return
        try:
            answer = await self._client.call(session.node_id, request)
        except BarnabasError as error:
            logger.info("share session at broker %d was not ended: %s", session.node_id, error.message)
        else:
            for item in answer.partitions:
                _note_refusal(self._refusals, self._names, item)

    @property
    def _member(self) -> ShareMembership:
        if self._membership is None:
            raise ClientClosedError("the share consumer is not started: use it in `async with`, or call start()")
        if self._is_closed:
            raise ClientClosedError("the share consumer is closed")
        return self._membership

    # --- records ------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[ShareRecord]:
        return self._records()

    async def _records(self) -> AsyncIterator[ShareRecord]:
        while True:
            for record in await self.poll(max_records=1, timeout_ms=ITERATION_POLL_MS):
                yield record

    async def poll(self, *, max_records: int = MAX_RECORDS, timeout_ms: float = 1_000) -> list[ShareRecord]:
        """Accept the records of the last call that were not acknowledged, and return the next ones, or none after the time.

        Raises the error that ended the membership, DeserializationError, SchemaRegistryError, and what the function for bad
        records or dead letters raises: then the record comes next again.
        """
        self._check()
        for place in self._returned:
            self._settle(place, Acknowledgement.ACCEPT)
        self._returned.clear()
        until_ms = self._client.clock.now_ms() + timeout_ms
        while True:
            while not self._ready:
                self._missing.raise_noted()
                self._wake.clear()
                self._start_fetches()
                remaining_ms = until_ms - self._client.clock.now_ms()
                if remaining_ms <= 0:
                    return []
                try:
                    async with asyncio.timeout(remaining_ms / 1000):
                        await self._wake.wait()
                except TimeoutError:
                    return []
                self._check()
            self._start_fetches(only_waited_for=True)
            found = await self._read(max_records, until_ms)
            if found:
                self._returned.update((_place_of(record), None) for record in found)
                return found
            if self._client.clock.now_ms() >= until_ms:
                return []

    async def _read(self, max_records: int, until_ms: float) -> list[ShareRecord]:
        """The next records, as the application wants them. One that must be waited for comes alone; it stays in `_ready` while
        its schema is loaded or its dead letter is written."""
        found: list[ShareRecord] = []
        while len(found) < max_records:
            self._forget(self._ready.drop_lapsed(self._client.clock.now_ms(), self._has_moved))
            record = self._ready.first
            if record is None:
                break
            read = self._reading.now(record)
            if read is None:
                if found:
                    break
                try:
                    read = await self._reading.read(record, max(0, until_ms - self._client.clock.now_ms()) / 1000)
                except TimeoutError:
                    break
                if read is not None:  # a dead letter is rejected, even if that comes too late
                    self._forget(self._ready.drop_lapsed(self._client.clock.now_ms(), self._has_moved))
                if self._ready.first is not record:
                    continue  # Its lock ended meanwhile.
            self._ready.take()
            if read is None:
                self._settle(_place_of(record), Acknowledgement.REJECT)
            else:
                found.append(cast(ShareRecord, read))
        return found

    def acknowledge(self, record: ShareRecord, kind: str = "accept", *, reason: str = "") -> None:
        """Say what became of a record: "accept", "release" (deliver it again), or "reject" (archive it, as a dead letter if the
        consumer has a function for them; `reason` is what it tells). It is sent with the next fetch; `commit` waits until it is
        stored. Raises InvalidRequestError for a record that is not locked here."""
        self._check()
        if kind not in _KINDS:
            raise InvalidRequestError(f"acknowledgement {kind!r} is not known: use accept, release or reject")
        place = _place_of(record)
        if place not in self._home:
            raise InvalidRequestError(
                f"{record.topic_partition} offset {record.offset} is not locked here: it is acknowledged"
            )
        self._returned.pop(place, None)
        if (first := self._ready.first) is not None and _place_of(first) == place:
            self._ready.take()  # It could not be read.
        if kind == "reject" and self._reading.has_dead_letters:
            self._reject(record, place, reason)
        else:
            self._settle(place, _KINDS[kind])

    def _reject(self, record: ShareRecord, place: _Place, reason: str) -> None:
        """Once its dead letter is written."""
        node_id = self._home.pop(place)

        def ended(error: Exception | None) -> None:
            if error is not None:
                told = BarnabasError(f"{record.topic_partition} offset {record.offset} has no dead letter: {error}")
                told.__cause__ = error
                self._refusals.note(record.topic_partition, told)
            kind = Acknowledgement.REJECT if error is None else Acknowledgement.RELEASE
            self._session(node_id).acknowledge(*place, kind)
            self._wake.set()

        self._rejections.begin(cast(ShareRecord, record.raw), reason or "rejected by the application", ended)

    async def commit(self, *, timeout_ms: float = API_TIMEOUT_MS) -> None:
        """Return when everything acknowledged so far is stored. Raises the first refusal since the last call
        (InvalidRecordStateError: the lock was over; what the function for dead letters raised is the cause of a BarnabasError),
        and RequestTimedOutError."""
        until_ms = self._client.clock.now_ms() + timeout_ms
        while self._rejections or self._is_sending or any(item.is_waited_for for item in self._sessions.values()):
            self._check()
            if self._client.clock.now_ms() >= until_ms:
                raise RequestTimedOutError(f"not everything was acknowledged within {timeout_ms:.0f} ms; call it again")
            self._wake.clear()
            self._start_fetches(only_waited_for=True)
            try:
                async with asyncio.timeout(max(0, until_ms - self._client.clock.now_ms()) / 1000):
                    await self._wake.wait()
            except TimeoutError:
                continue
        self._refusals.raise_first()

    @property
    def _is_sending(self) -> bool:
        """A request with acknowledgements is on its way."""
        return any(session.is_sending for session in self._sessions.values())

    def _metadata_changed(self) -> None:
        self._missing.note(self._topics, self._client.clock.now_ms())
        self._wake.set()

    def _check(self) -> None:
        error = self._member.error
        if error is not None:
            raise error

    def _settle(self, place: _Place, kind: int) -> None:
        node_id = self._home.pop(place, None)
        if node_id is not None:
            self._session(node_id).acknowledge(*place, kind)

    # --- fetching -----------------------------------------------------------------------------------------------------

    def _session(self, node_id: int) -> LeaderSession:
        return self._sessions.setdefault(node_id, LeaderSession(node_id))

    def _start_fetches(self, *, only_waited_for: bool = False) -> None:
        """One for each leader that has none. `only_waited_for`: only where something has to be acknowledged."""
        metadata = self._client.metadata
        wanted: dict[int, list[PartitionId]] = {node_id: [] for node_id in self._sessions}
        for partition in self._member.assigned:
            topic_id, leader = metadata.topic_id(partition.topic), metadata.leader(partition).node_id
            if not topic_id or leader < 0:
                self._client.request_refresh()
                continue
            self._names[topic_id] = partition.topic
            wanted.setdefault(leader, []).append((topic_id, partition.partition))
        for node_id, partitions in wanted.items():
            session = self._session(node_id)
            self._drop_lost(session)
            is_needed = session.is_waited_for or (not only_waited_for and (partitions or session.reading))
            if node_id not in self._fetches and is_needed:
                task = asyncio.create_task(self._fetch(session, partitions, is_flush=only_waited_for))
                self._fetches[node_id] = task
                task.add_done_callback(lambda done, node_id=node_id: self._fetched(node_id, done))  # type: ignore[misc]

    def _drop_lost(self, session: LeaderSession) -> None:
        """What cannot be acknowledged any more, because another broker leads the partition: the group delivers it again."""
        for topic_id, number in list(session.pending):
            partition = TopicPartition(self._names.get(topic_id, ""), number)
            leader = self._client.metadata.leader(partition).node_id
            if leader in (session.node_id, NO_LEADER):
                continue
            session.drop((topic_id, number))
            error = InvalidRecordStateError(f"{partition} has another leader: the locks of its records are over")
            self._refusals.note(partition, error)

    def _fetched(self, node_id: int, task: "asyncio.Task[None]") -> None:
        self._fetches.pop(node_id, None)
        self._wake.set()
        if not task.cancelled() and task.exception() is not None:
            logger.error("a fetch of share group %s failed", self._group, exc_info=task.exception())

    async def _fetch(self, session: LeaderSession, wanted: list[PartitionId], *, is_flush: bool) -> None:
        asked_ms = self._client.clock.now_ms()
        request = session.request(
            group_id=self._group,
            member_id=self._member.member_id,
            wanted=wanted,
            max_wait_ms=self._max_wait_ms,
            max_records=self._max_records,
            max_bytes=0 if is_flush else self._max_bytes,
        )
        try:
            connection = await self._client.connect(session.node_id, bulk=True)
            timeout_ms = self._client.request_timeout_ms + self._max_wait_ms
            answer: ShareFetchResponse = await connection.call(request, timeout_ms=timeout_ms)
        except BarnabasError as error:
            session.failed()
            self._drop_ready(session.node_id)
            self._client.note_trouble(f"share session at broker {session.node_id}", error)
            self._client.request_refresh()
            failures = self._failures[session.node_id] = self._failures.get(session.node_id, 0) + 1
            await asyncio.sleep(self._client.backoff.delay_ms(failures, self._client.rng.random) / 1000)
            return
        self._failures.pop(session.node_id, None)
        session.answered(wanted, answer.lock_duration_ms)
        for item in answer.partitions:
            _note_refusal(self._refusals, self._names, item)
            if item.error:
                _note_error(self._client, self._names, item, session.node_id)
            self._take(item, session, asked_ms + answer.lock_duration_ms)

    def _drop_ready(self, node_id: int) -> None:
        """The session is over, and with it the locks of what was not returned yet: the group delivers it again."""
        self._forget(self._ready.drop(lambda record: self._home.get(_place_of(record)) == node_id))

    def _has_moved(self, record: ShareRecord) -> bool:
        """Another broker leads its partition: its lock is over."""
        leader = self._client.metadata.leader(record.topic_partition).node_id
        return leader not in (self._home[_place_of(record)], NO_LEADER)

    def _forget(self, records: list[ShareRecord]) -> None:
        for record in records:
            self._home.pop(_place_of(record), None)

    def _take(self, item: SharePartitionAnswer, session: LeaderSession, deadline_ms: float) -> None:
        """The records that are locked for us until then at least. Offsets without a record are acknowledged as gaps."""
        partition, topic = (item.topic_id, item.partition), self._names.get(item.topic_id, "")
        headers = list(iter_headers(item.records))
        for acquired in item.acquired:
            found = _records_of(item, acquired, headers, topic)
            self._home.update(((partition, record.offset), session.node_id) for record in found)
            self._ready.extend(found, deadline_ms)
            _acknowledge_gaps(session, partition, acquired, found)


def _place_of(record: ShareRecord) -> _Place:
    return (record.topic_id, record.partition), record.offset


def _note_refusal(refusals: Refusals, names: Mapping[str, str], item: SharePartitionAnswer) -> None:
    if item.acknowledge_error:
        place = TopicPartition(names.get(item.topic_id, "?"), item.partition)
        refusals.note(place, error_for(item.acknowledge_error, item.acknowledge_message))


def _note_error(client: Client, names: Mapping[str, str], item: SharePartitionAnswer, node_id: int) -> None:
    """The partition has moved, in most cases."""
    partition, metadata = TopicPartition(names.get(item.topic_id, ""), item.partition), client.metadata
    if not metadata.hint(partition, node_id=item.leader_id, epoch=item.leader_epoch):
        metadata.forget_leader(partition, node_id=node_id)
    client.request_refresh()
    client.note_trouble(f"{partition}", error_for(item.error, item.message))


def _records_of(
    item: SharePartitionAnswer, acquired: AcquiredRecords, headers: list[BatchHeader], topic: str
) -> list[ShareRecord]:
    """The records of a range that is locked, out of whole batches."""
    record_type = share_record_class(topic, item.topic_id, item.partition, acquired.delivery_count)
    first, last = acquired.first_offset, acquired.last_offset
    found: list[ShareRecord] = []
    for header in headers:
        if not header.is_control and header.last_offset >= first and header.base_offset <= last:
            found += records_of(item.records, header, record_type, first, last + 1)
    return found


def _acknowledge_gaps(
    session: LeaderSession, partition: PartitionId, acquired: AcquiredRecords, found: list[ShareRecord]
) -> None:
    known = {record.offset for record in found}
    for offset in range(acquired.first_offset, acquired.last_offset + 1):
        if offset not in known:
            session.acknowledge(partition, offset, Acknowledgement.GAP)
