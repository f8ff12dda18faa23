"""Share sessions (KIP-932): what a member reads at this broker, and the order of its requests. No I/O, no clock.

A session belongs to the connection that began it; when that is gone, the session ends, and what its member holds is released.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import count
from typing import Final, NamedTuple, Protocol, cast

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.log.vocabulary.principal import ANONYMOUS, Principal
from barnabas.log.vocabulary.share.errors import (
    InvalidShareSessionEpochError,
    ShareSessionLimitReachedError,
    ShareSessionNotFoundError,
)
from barnabas.log.vocabulary.share.messages import ShareFetchPartition

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_MAX_EPOCH: Final = 2**31 - 1
MAX_PARTITIONS: Final = 2_000  # of one session: each of its fetches looks at all of them, which takes ten milliseconds

MAX_ALL_PARTITIONS: Final = 200_000  # of all sessions: one takes some hundred bytes while its reader waits
MAX_TOPIC_ID_LENGTH: Final = 64  # of any client's text that a session keeps; ids have half of it

PartitionId = tuple[str, int]  # topic id, number


class SessionKey(NamedTuple):
    """A member id is no secret: another user that knows it must not read, acknowledge or end what is not its own."""

    group_id: str
    member_id: str
    principal: Principal = ANONYMOUS

    @property
    def holder(self) -> str:
        """Of locks. No two keys of a group have the same one: names of principals have no NUL."""
        return f"{self.principal}\0{self.member_id}"


class Connection(Protocol):
    @property
    def is_connected(self) -> bool: ...


class ShareSession:
    def __init__(self, *, key: SessionKey, connection: Connection, readers: Counter[tuple[str, PartitionId]]) -> None:
        """`readers`: of all sessions."""
        self._readers = readers
        self.key = key
        self.group_id = key.group_id
        self.member_id = key.member_id
        self.connection = connection
        self.epoch = INITIAL_EPOCH + 1  # of the next request
        self.partitions: dict[PartitionId, int] = {}  # since which moment; the next one to read first

    def add(self, named: Iterable[ShareFetchPartition], moment: int) -> None:
        for item in named:
            partition = (item.topic_id, item.partition)
            if partition in self.partitions:
                continue
            if len(self.partitions) >= MAX_PARTITIONS:
                raise InvalidRequestError(f"a share session reads at most {MAX_PARTITIONS} partitions of a broker")
            self.partitions[partition] = moment
            self._readers[self.group_id, partition] += 1

    def forget(self, named: Iterable[ShareFetchPartition]) -> None:
        for item in named:
            self._drop((item.topic_id, item.partition))

    def close(self) -> None:
        for partition in list(self.partitions):
            self._drop(partition)

    def _drop(self, partition: PartitionId) -> None:
        if partition not in self.partitions:
            return
        del self.partitions[partition]
        self._readers[self.group_id, partition] -= 1
        if not self._readers[self.group_id, partition]:
            del self._readers[self.group_id, partition]

    def served(self, partition: PartitionId) -> None:
        """The others come first next time."""
        if partition in self.partitions:
            self.partitions[partition] = self.partitions.pop(partition)


class ShareSessions:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.opened: dict[SessionKey, ShareSession] = {}
        self.readers: Counter[tuple[str, PartitionId]] = Counter()  # sessions by group and partition; no count is 0
        self._moments = count(1)

    def __len__(self) -> int:
        return len(self.opened)

    def moment(self) -> int:
        """Later ones are higher: whether the coordinator was asked before a session began, or after that."""
        return next(self._moments)

    def find(self, key: SessionKey) -> ShareSession | None:
        return self.opened.get(key)

    def begin(self, key: SessionKey, connection: object) -> ShareSession:
        """A session of the same member ends; what the member holds stays locked. Raises ShareSessionLimitReachedError."""
        if key not in self.opened and len(self.opened) >= self._limit:
            raise ShareSessionLimitReachedError(
                f"{len(self.opened)} share sessions at this broker (group.share.max.share.sessions); try again later"
            )
        replaced = self.opened.get(key)
        if replaced is not None:
            self.end(replaced)
        session = ShareSession(key=key, connection=cast(Connection, connection), readers=self.readers)
        self.opened[key] = session
        return session

    def add(self, session: ShareSession, named: Iterable[ShareFetchPartition]) -> None:
        """Raises InvalidRequestError, ShareSessionLimitReachedError."""
        new = [item for item in named if (item.topic_id, item.partition) not in session.partitions]
        if not new:
            return
        if any(len(item.topic_id) > MAX_TOPIC_ID_LENGTH for item in new):
            raise InvalidRequestError(f"a topic id has at most {MAX_TOPIC_ID_LENGTH} characters")
        if len(new) + sum(len(other.partitions) for other in self.opened.values()) > MAX_ALL_PARTITIONS:
            raise ShareSessionLimitReachedError(
                f"the share sessions at this broker read {MAX_ALL_PARTITIONS} partitions in all; try again later"
            )
        session.add(new, self.moment())

    def follow(self, key: SessionKey, epoch: int) -> ShareSession:
        """The session that a request with this epoch continues, or ends. Raises ShareSessionNotFoundError,
        InvalidShareSessionEpochError."""
        session = self.opened.get(key)
        if session is None:
            raise ShareSessionNotFoundError(
                f"member {key.member_id} has no share session at this broker: begin one with epoch 0"
            )
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            raise InvalidShareSessionEpochError(
                f"share session epoch {epoch}, but {session.epoch} comes next: begin a new session with epoch 0"
            )
        session.epoch = 1 if epoch == _MAX_EPOCH else epoch + 1
        return session

    def is_open(self, session: ShareSession) -> bool:
        return self.opened.get(session.key) is session

    def end(self, session: ShareSession) -> None:
        if self.is_open(session):
            del self.opened[session.key]
            session.close()

    def disconnected(self) -> list[ShareSession]:
        """Those whose connections are gone."""
        return [session for session in self.opened.values() if not session.connection.is_connected]
