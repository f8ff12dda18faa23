"""`ShareConsumer`: reads a topic as a queue (KIP-932): its group gives each record to one member at a time.

The leaders of partitions lock records for this member; acknowledgements travel with the next fetch. Heartbeats and one fetch for
each leader run in the background; everything else happens in the calls of the application.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Self, Unpack

from barnabas.log.format.record_batch import iter_headers
from barnabas.log.records.codec import records_of
from barnabas.log.vocabulary.share.errors import InvalidRecordStateError
from barnabas.log.vocabulary.share.messages import (
    Acknowledgement,
    AcquiredRecords,
    ShareFetchResponse,
    SharePartitionAnswer,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.client import API_TIMEOUT_MS, DEFAULT_BOOTSTRAP, REQUEST_TIMEOUT_MS, RETRY_BACKOFF_MS, Client
from ..connection.errors import (
    BarnabasError,
    ClientClosedError,
    InvalidConfigError,
    InvalidRequestError,
    RequestTimedOutError,
    error_for,
)
from ..connection.habits import with_habits
from ..connection.metadata import NO_LEADER
from ..connection.security import SecurityOptions
from .leader_session import LeaderSession, PartitionId
from .share_membership import ShareMembership
from .share_record import ShareRecord, share_record_class

logger = logging.getLogger("barnabas.consumer")

MAX_RECORDS = 500
MAX_BYTES = 1 << 20
ITERATION_POLL_MS = 60_000  # `async for` waits without end, in steps
CLOSE_TIMEOUT_MS = 5_000
_KINDS = {"accept": Acknowledgement.ACCEPT, "release": Acknowledgement.RELEASE, "reject": Acknowledgement.REJECT}
_Place = tuple[PartitionId, int]  # partition, offset


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
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        retry_backoff_ms: float = RETRY_BACKOFF_MS,
        client_id: str = "barnabas-share-consumer",
        client: Client | None = None,
        **security: Unpack[SecurityOptions],
    ) -> None:
        """`max_records`: how many records are locked by one fetch, rounded up to whole batches. Raises InvalidConfigError."""
        names = [name for item in topics for name in ([item] if isinstance(item, str) else item)]
        if not names or not group:
            raise InvalidConfigError(
                "a share consumer needs topics and a group: ShareConsumer('jobs', group='workers')"
            )
        if max_records < 1 or fetch_max_bytes < 1:
            raise InvalidConfigError("max_records and fetch_max_bytes must be positive")
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
        self._membership: ShareMembership | None = None
        self._is_closed = False
        self._sessions: dict[int, LeaderSession] = {}  # by broker
        self._fetches: dict[int, asyncio.Task[None]] = {}
        self._failures: dict[int, int] = {}
        self._ready: deque[ShareRecord] = deque()  # locked, and not returned yet
        self._returned: dict[_Place, None] = {}  # to be accepted, unless the application says otherwise
        self._home: dict[_Place, int] = {}  # of all records that are locked here: the broker
        self._names: dict[str, str] = {}  # topic id -> name
        self._refusal: BarnabasError | None = None  # the first one of an acknowledgement since the last `commit`

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
        self._wake = asyncio.Event()
        self._client.on_metadata(self._wake.set)
        self._membership = ShareMembership(self._client, self._group, self._topics, self._wake.set)
        self._membership.start()

    async def close(self) -> None:
        """Send what is acknowledged, release the other records, and leave the group."""
        if self._is_closed or self._membership is None:
            return
        self._is_closed, member_id = True, self._membership.member_id
        await self._sent()
        for task in self._fetches.values():
            task.cancel()
        await asyncio.gather(*self._fetches.values(), return_exceptions=True)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_MS / 1000):
                await asyncio.gather(*(self._end(session, member_id) for session in self._sessions.values()))
        except TimeoutError:
            logger.warning("share group=%s: a broker did not answer; its locks end by themselves", self._group)
        await self._membership.close()
        await self._client.close()

    async def _sent(self) -> None:
        """Wait for the requests with acknowledgements that are on their way: cut off, their records would be released."""
        sending = [task for node_id, task in self._fetches.items() if self._session(node_id).is_sending]
        if sending:
            await asyncio.wait(sending, timeout=CLOSE_TIMEOUT_MS / 1000)

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
                self._note_refusal(item)

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

        Raises the error that ended the membership.
        """
        self._check()
        for place in self._returned:
            self._settle(place, Acknowledgement.ACCEPT)
        self._returned.clear()
        until_ms = self._client.clock.now_ms() + timeout_ms
        while not self._ready:
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
        found = [self._ready.popleft() for _ in range(min(max_records, len(self._ready)))]
        self._returned.update((self._place(record), None) for record in found)
        return found

    def acknowledge(self, record: ShareRecord, kind: str = "accept") -> None:
        """Say what became of a record: "accept", "release" (deliver it again), or "reject" (archive it). It is sent with the next
        fetch; `commit` waits until it is stored. Raises InvalidRequestError for a record that is not locked here."""
        self._check()
        if kind not in _KINDS:
            raise InvalidRequestError(f"acknowledgement {kind!r} is not known: use accept, release or reject")
        place = self._place(record)
        if place not in self._home:
            raise InvalidRequestError(
                f"{record.topic_partition} offset {record.offset} is not locked here: it is acknowledged"
            )
        self._returned.pop(place, None)
        self._settle(place, _KINDS[kind])

    async def commit(self, *, timeout_ms: float = API_TIMEOUT_MS) -> None:
        """Return when everything acknowledged so far is stored. Raises the first refusal since the last call
        (InvalidRecordStateError: the lock was over), and RequestTimedOutError."""
        until_ms = self._client.clock.now_ms() + timeout_ms
        while any(session.is_waited_for for session in self._sessions.values()) or self._is_sending:
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
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    @property
    def _is_sending(self) -> bool:
        """A request with acknowledgements is on its way."""
        return any(session.is_sending for session in self._sessions.values())

    def _check(self) -> None:
        error = self._member.error
        if error is not None:
            raise error

    def _place(self, record: ShareRecord) -> _Place:
        return (record.topic_id, record.partition), record.offset

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
            logger.warning("acknowledgement refused group=%s partition=%s: %s", self._group, partition, error.message)
            self._refusal = self._refusal or error

    def _fetched(self, node_id: int, task: "asyncio.Task[None]") -> None:
        self._fetches.pop(node_id, None)
        self._wake.set()
        if not task.cancelled() and task.exception() is not None:
            logger.error("a fetch of share group %s failed", self._group, exc_info=task.exception())

    async def _fetch(self, session: LeaderSession, wanted: list[PartitionId], *, is_flush: bool) -> None:
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
        session.answered(wanted)
        for item in answer.partitions:
            self._note_refusal(item)
            if item.error:
                self._note_error(item, session.node_id)
            self._take(item, session)

    def _drop_ready(self, node_id: int) -> None:
        """The session is over, and with it the locks of what was not returned yet: the group delivers it again."""
        gone = {place for place, home in self._home.items() if home == node_id} - self._returned.keys()
        for record in [record for record in self._ready if self._place(record) in gone]:
            self._ready.remove(record)
            self._home.pop(self._place(record))

    def _take(self, item: SharePartitionAnswer, session: LeaderSession) -> None:
        """The records that are locked for us. Offsets without a record are acknowledged as gaps."""
        partition, topic = (item.topic_id, item.partition), self._names.get(item.topic_id, "")
        headers = list(iter_headers(item.records))
        for acquired in item.acquired:
            record_type = share_record_class(topic, item.topic_id, item.partition, acquired.delivery_count)
            found: list[ShareRecord] = []
            for header in headers:
                if (
                    header.is_control
                    or header.last_offset < acquired.first_offset
                    or header.base_offset > acquired.last_offset
                ):
                    continue
                found += records_of(item.records, header, record_type, acquired.first_offset, acquired.last_offset + 1)
            self._home.update(((partition, record.offset), session.node_id) for record in found)
            self._ready.extend(found)
            _acknowledge_gaps(session, partition, acquired, found)

    def _note_refusal(self, item: SharePartitionAnswer) -> None:
        if not item.acknowledge_error:
            return
        error = error_for(item.acknowledge_error, item.acknowledge_message)
        logger.warning(
            "acknowledgement refused group=%s partition=%s-%d: %s", self._group, self._names.get(item.topic_id, "?"),
            item.partition, error.message,
        )  # fmt: skip
        self._refusal = self._refusal or error

    def _note_error(self, item: SharePartitionAnswer, node_id: int) -> None:
        """The partition has moved, in most cases."""
        partition = TopicPartition(self._names.get(item.topic_id, ""), item.partition)
        metadata = self._client.metadata
        if not metadata.hint(partition, node_id=item.leader_id, epoch=item.leader_epoch):
            metadata.forget_leader(partition, node_id=node_id)
        self._client.request_refresh()
        self._client.note_trouble(f"{partition}", error_for(item.error, item.message))


def _acknowledge_gaps(
    session: LeaderSession, partition: PartitionId, acquired: AcquiredRecords, found: list[ShareRecord]
) -> None:
    known = {record.offset for record in found}
    for offset in range(acquired.first_offset, acquired.last_offset + 1):
        if offset not in known:
            session.acknowledge(partition, offset, Acknowledgement.GAP)
