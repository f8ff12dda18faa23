"""Fetch sessions (KIP-227): a reader of many partitions names only what has changed, and gets only what is new. Pure.

A session begins with a fetch of all partitions. From then on, a request has the partitions that are new or have another offset,
and those that leave; an answer has the partitions with records, errors, or other offsets of their log. The purgatory notes which
partitions of a session have changed, so a request of a thousand idle partitions reads none.

A follower's fetch is an acknowledgement, and tells that it keeps up. So a partition of its session rests only as long as it is
settled: the follower is in sync, has everything, and knows that everything is committed. One that is named is always answered.
Every `look_again_ms`, a settled partition is read and answered as if it were named: neither side goes by what it heard long ago.

Differs from Kafka: a connection has one session at most, so a client cannot fill the cache, and so has a follower, whose session
ends with its connection; a session without a known topic of each id is not made.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from random import Random
from typing import Final, Protocol

from barnabas.log.replication.ports import slice_size
from barnabas.log.vocabulary.errors import (
    ErrorCode,
    FetchSessionIdNotFoundError,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpochError,
)
from barnabas.log.vocabulary.topic_partition import CONSUMER_OFFSETS_TOPIC, TopicPartition, check_topic_id
from barnabas.net.base.limits import check_count, check_number
from barnabas.net.logs.purgatory import StandingWatch
from barnabas.net.wire.protocol.requests import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    READ_COMMITTED,
    FetchPartition,
    FetchRequest,
    epoch_after,
)
from barnabas.net.wire.protocol.responses import FetchPartitionResponse

MAX_SESSION_ID: Final = 2**31 - 1
# As in Kafka: a full cache gives the place of a session to another one if it was not used for so long, or is so old and smaller.
EVICTABLE_AFTER_MS: Final = 120_000
# Of all sessions together; each takes about 0.6 KiB. Kafka limits the sessions alone.
MAX_CACHED_PARTITIONS: Final = 100_000
MAX_FOLLOWED_PARTITIONS: Final = 200_000  # the same, of followers, who do not share a limit with consumers
MAX_FOLLOWER_SESSIONS: Final = 1_000
LOOK_AGAIN_MS: Final = 10_000  # or a quarter of replica.lag.time.max.ms
MAX_LOOKS_AGAIN: Final = 200  # in one request; if more are due, it is answered after `PAUSE_MS`
PAUSE_MS: Final = 50
SPARE_NAMES: Final = 100  # of topics that have left a session

Told = tuple[int, int, int]  # high watermark, last stable offset, log start offset


class Watching(Protocol):
    """The part of net.logs.purgatory.Purgatory that sessions use."""

    def watch(self, standing: StandingWatch, topic_partition: TopicPartition, fetch_offset: int) -> None: ...

    def unwatch(self, standing: StandingWatch, topic_partition: TopicPartition) -> None: ...


class FetchSession:
    """`watch.changed` has the partitions to read: those that have changed since they were read to their end."""

    __slots__ = (
        "broker_epoch",
        "connection_id",
        "created_ms",
        "epoch",
        "has_more_due",
        "is_of_follower",
        "last_used_ms",
        "owner",
        "partitions",
        "replica_id",
        "rested_since_ms",
        "session_id",
        "told",
        "topic_ids",
        "topic_names",
        "uses_topic_ids",
        "watch",
    )

    def __init__(self, session_id: int, connection_id: int, request: FetchRequest, now_ms: int) -> None:
        self.session_id = session_id
        self.connection_id = connection_id
        self.replica_id, self.broker_epoch = request.replica_id, request.broker_epoch
        self.is_of_follower = request.replica_id >= 0
        self.owner = _owner(request, connection_id)
        # Of a follower: settled partitions, and since when they have not been read. The longest ago is first.
        self.rested_since_ms: dict[TopicPartition, int] = {}
        self.has_more_due = False
        self.uses_topic_ids = _uses_topic_ids(request)
        self.epoch = INITIAL_EPOCH + 1  # of the next request
        self.created_ms = self.last_used_ms = now_ms
        self.watch = StandingWatch()
        self.partitions: dict[TopicPartition, FetchPartition] = {}
        self.told: dict[TopicPartition, Told] = {}  # a subset: without those whose last answer was an error
        self.topic_ids: dict[
            str, bytes
        ] = {}  # by name, of all topics that are named with one, and of some that have left
        self.topic_names: dict[str, str] = {}  # by id in hexadecimal: the same topics, and earlier ones of their names

    def is_continued_by(self, request: FetchRequest, connection_id: int) -> bool:
        """Of a follower, only this incarnation may continue, and in the same connection: what another one knows is not told."""
        if not self.is_of_follower:
            return request.replica_id < 0
        asks = (request.replica_id, request.broker_epoch, connection_id)
        return asks == (self.replica_id, self.broker_epoch, self.connection_id)

    def rest(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Do not read it before something changes, or some time has passed."""
        self.watch.changed.pop(topic_partition, None)
        self.rested_since_ms.pop(topic_partition, None)
        self.rested_since_ms[topic_partition] = now_ms

    def due(self, now_ms: int, look_again_ms: int) -> list[TopicPartition]:
        """The settled partitions to read again; they do not rest any more."""
        found: list[TopicPartition] = []
        for topic_partition, since_ms in self.rested_since_ms.items():
            if since_ms + look_again_ms > now_ms:
                break
            if len(found) == MAX_LOOKS_AGAIN:
                self.has_more_due = True
                break
            found.append(topic_partition)
        for topic_partition in found:
            del self.rested_since_ms[topic_partition]
            self.told.pop(topic_partition, None)
        return found

    def name(self, topic: str, topic_id: str) -> None:
        self.topic_ids[topic] = bytes.fromhex(topic_id)
        self.topic_names[topic_id] = topic

    def name_of(self, topic_id: str) -> str:
        """Of a topic that may not exist any more; "" if it is not of this session."""
        return self.topic_names.get(topic_id, "")

    def forget_names(self) -> None:
        """Of topics that have left, as soon as they are more than those that stay: a reader may name new ones for ever."""
        if len(self.topic_names) <= 2 * len(self.partitions) + SPARE_NAMES:
            return
        self.topic_ids.clear()
        self.topic_names.clear()
        for item in self.partitions.values():
            if item.topic_id:
                self.name(item.topic, item.topic_id)

    def to_read(self) -> list[FetchPartition]:
        return [self.partitions[topic_partition] for topic_partition in self.watch.changed]

    def news(self, responses: Iterable[FetchPartitionResponse], isolation_level: int) -> list[FetchPartitionResponse]:
        """The responses that the reader needs. What was read to its end is read again only after it has changed."""
        found: list[FetchPartitionResponse] = []
        for response in responses:
            topic_partition = TopicPartition(response.topic, response.partition)
            asked = self.partitions.get(topic_partition)
            if asked is None:
                continue
            has_records = slice_size(response.records) > 0  # type: ignore[arg-type]
            told = (response.high_watermark, response.last_stable_offset, response.log_start_offset)
            is_refused = response.error != ErrorCode.NONE or response.diverging_epoch >= 0
            is_sent_away = response.preferred_read_replica >= 0
            if has_records or is_refused or is_sent_away or self.told.get(topic_partition) != told:
                found.append(response)
            if is_refused:
                self.told.pop(topic_partition, None)
                continue
            self.told[topic_partition] = told
            if self.is_of_follower:
                continue  # the leader knows whether it is settled
            end_offset = response.last_stable_offset if isolation_level == READ_COMMITTED else response.high_watermark
            if asked.fetch_offset >= end_offset and not has_records and not is_sent_away:
                self.watch.changed.pop(topic_partition, None)
        return found


class FetchSessions:
    """All sessions of a broker, the least recently used first. Ids are random: they are no secret, but not to be guessed."""

    def __init__(
        self,
        limit: int,
        watching: Watching,
        rng: Random,
        *,
        max_partitions: int = MAX_CACHED_PARTITIONS,
        look_again_ms: int = LOOK_AGAIN_MS,
    ) -> None:
        self._limit = limit
        self._look_again_ms = look_again_ms
        self._max_partitions = max_partitions
        self._watching = watching
        self._rng = rng
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._of_owner: dict[tuple[int, int], int] = {}
        self.partition_count = 0  # of all sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    def begin(
        self, request: FetchRequest, connection_id: int, now_ms: int, overtake: Callable[[FetchSession], None]
    ) -> FetchSession | None:
        """The session of the request, with its changes; None: it gets none, and `request.partitions` are all that it reads.
        `overtake` answers the request before it, if that still waits.

        Raises FetchSessionIdNotFoundError, InvalidFetchSessionEpochError, FetchSessionTopicIdError, InvalidRequestError.
        """
        if request.partitions or request.forgotten:
            _check(request)
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            known = self._sessions.get(request.session_id)
            if known is not None and known.is_continued_by(request, connection_id):
                self._end(request.session_id, overtake)
            if request.session_epoch == FINAL_EPOCH:
                return None
            return self._create(request, connection_id, now_ms, overtake)
        session = self._sessions.get(request.session_id)
        if session is None or not session.is_continued_by(request, connection_id):
            raise FetchSessionIdNotFoundError(f"fetch session {request.session_id} is not known; begin a new one")
        if session.epoch != request.session_epoch:
            raise InvalidFetchSessionEpochError(
                f"fetch session {session.session_id} expects epoch {session.epoch}, not {request.session_epoch}; begin a new one"
            )
        return self._continue(session, request, now_ms, overtake)

    def _continue(
        self, session: FetchSession, request: FetchRequest, now_ms: int, overtake: Callable[[FetchSession], None]
    ) -> FetchSession | None:
        named = bool(request.partitions or request.forgotten)
        if named and session.uses_topic_ids != _uses_topic_ids(request):
            raise FetchSessionTopicIdError(
                f"fetch session {session.session_id} names topics in another way since it began; begin a new one"
            )
        if not self._can_hold(request):
            self._end(session.session_id, overtake)
            raise FetchSessionIdNotFoundError(f"fetch session {session.session_id} cannot have these partitions")
        overtake(session)
        session.epoch = epoch_after(session.epoch)
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session.session_id)
        session.has_more_due = False
        due = session.due(now_ms, self._look_again_ms) if session.rested_since_ms else ()
        for topic_partition in due:
            if (item := session.partitions.get(topic_partition)) is not None:
                self._watching.watch(session.watch, topic_partition, item.fetch_offset)
        self._add(session, request.partitions)
        for topic in request.forgotten:
            name = topic.topic or session.name_of(topic.topic_id)
            for number in topic.partitions:
                self._forget(session, TopicPartition(name, number), topic.topic_id)
        if named:
            session.forget_names()
        if not session.partitions:
            self._end(session.session_id, overtake)
            return None
        return session

    # --- partitions ---------------------------------------------------------------------------------------------------

    def _can_hold(self, request: FetchRequest) -> bool:
        """`__consumer_offsets` has no log that could be watched."""
        if self.partition_count + len(request.partitions) > self._max_partitions:
            return False
        return request.replica_id >= 0 or all(item.topic != CONSUMER_OFFSETS_TOPIC for item in request.partitions)

    def _add(self, session: FetchSession, partitions: Iterable[FetchPartition]) -> None:
        for item in partitions:
            topic_partition = TopicPartition(item.topic, item.partition)
            known = session.partitions.get(topic_partition)
            if known is None:
                self.partition_count += 1
            elif known.topic_id != item.topic_id or session.is_of_follower:
                session.told.pop(topic_partition, None)
            session.partitions[topic_partition] = item
            if item.topic_id and (known is None or known.topic_id != item.topic_id):
                session.name(item.topic, item.topic_id)
            self._watching.watch(session.watch, topic_partition, item.fetch_offset)

    def _forget(self, session: FetchSession, topic_partition: TopicPartition, topic_id: str = "") -> None:
        known = session.partitions.get(topic_partition)
        if known is not None and topic_id in ("", known.topic_id):
            del session.partitions[topic_partition]
            session.told.pop(topic_partition, None)
            session.rested_since_ms.pop(topic_partition, None)
            self.partition_count -= 1
            self._watching.unwatch(session.watch, topic_partition)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def end(self, session: FetchSession) -> None:
        """Its connection is closed, and nothing of it waits."""
        if self._sessions.get(session.session_id) is session:
            self._end(session.session_id, lambda _: None)

    def _create(
        self, request: FetchRequest, connection_id: int, now_ms: int, overtake: Callable[[FetchSession], None]
    ) -> FetchSession | None:
        self._end(self._of_owner.get(_owner(request, connection_id), 0), overtake)
        if not request.partitions or not self._can_hold(request):
            return None
        if len(self._sessions) >= self._limit and not self._make_room(len(request.partitions), now_ms, overtake):
            return None
        session_id = self._rng.randint(1, MAX_SESSION_ID)
        while session_id in self._sessions:
            session_id = self._rng.randint(1, MAX_SESSION_ID)
        session = FetchSession(session_id, connection_id, request, now_ms)
        self._sessions[session_id] = session
        self._of_owner[session.owner] = session_id
        self._add(session, request.partitions)
        return session

    def _make_room(self, size: int, now_ms: int, overtake: Callable[[FetchSession], None]) -> bool:
        """For a session of so many partitions."""
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.last_used_ms > EVICTABLE_AFTER_MS:
            self._end(oldest.session_id, overtake)
            return True
        old = [session for session in self._sessions.values() if now_ms - session.created_ms > EVICTABLE_AFTER_MS]
        smallest = min(old, key=lambda session: len(session.partitions), default=None)
        if smallest is None or len(smallest.partitions) >= size:
            return False
        self._end(smallest.session_id, overtake)
        return True

    def _end(self, session_id: int, overtake: Callable[[FetchSession], None]) -> None:
        session = self._sessions.get(session_id)
        if session is None:
            return
        overtake(session)
        for topic_partition in list(session.partitions):
            self._forget(session, topic_partition)
        del self._sessions[session_id]
        if self._of_owner.get(session.owner) == session_id:
            del self._of_owner[session.owner]


def _owner(request: FetchRequest, connection_id: int) -> tuple[int, int]:
    """Who has one session at most: a follower, or the connection of a consumer."""
    return request.replica_id, connection_id if request.replica_id < 0 else 0


def _check(request: FetchRequest) -> None:
    """Before anything is changed. Raises InvalidRequestError."""
    last = ""
    for item in request.partitions:  # mostly, partitions of one topic follow one another
        if item.topic_id != last:
            last = check_topic_id(item.topic_id)
    if not request.forgotten:
        return
    check_count(request.forgotten)
    check_number(sum(len(topic.partitions) for topic in request.forgotten))


def _uses_topic_ids(request: FetchRequest) -> bool:
    """Of Kafka's version 13 and later: all topics have ids, or none."""
    if request.partitions:
        return bool(request.partitions[0].topic_id)
    return any(topic.topic_id for topic in request.forgotten)
