"""Share sessions (KIP-932): what a member reads at this broker, and the order of its requests. No I/O, no clock.

A session belongs to the connection that began it; when that is gone, the session ends, and what its member holds is released.
"""

from collections.abc import Iterable
from typing import Final, Protocol, cast

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.log.vocabulary.share.errors import (
    InvalidShareSessionEpochError,
    ShareSessionLimitReachedError,
    ShareSessionNotFoundError,
)
from barnabas.log.vocabulary.share.messages import ShareFetchPartition

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_MAX_EPOCH: Final = 2**31 - 1
MAX_PARTITIONS: Final = 10_000  # of one session: each costs a few hundred bytes here, and more if it is loaded

PartitionId = tuple[str, int]  # topic id, number


class Connection(Protocol):
    @property
    def is_connected(self) -> bool: ...


class ShareSession:
    def __init__(self, *, group_id: str, member_id: str, connection: Connection) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.connection = connection
        self.epoch = INITIAL_EPOCH + 1  # of the next request
        self.partitions: dict[PartitionId, None] = {}  # the next one to read first

    def add(self, named: Iterable[ShareFetchPartition]) -> None:
        for item in named:
            self.partitions.setdefault((item.topic_id, item.partition))
        if len(self.partitions) > MAX_PARTITIONS:
            raise InvalidRequestError(f"{len(self.partitions)} partitions in a share session; at most {MAX_PARTITIONS}")

    def forget(self, named: Iterable[ShareFetchPartition]) -> None:
        for item in named:
            self.partitions.pop((item.topic_id, item.partition), None)

    def served(self, partition: PartitionId) -> None:
        """The others come first next time."""
        if partition in self.partitions:
            del self.partitions[partition]
            self.partitions[partition] = None


class ShareSessions:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sessions: dict[tuple[str, str], ShareSession] = {}  # by group and member

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, group_id: str, member_id: str, connection: object) -> ShareSession:
        """A session of the same member ends; what the member holds stays locked. Raises ShareSessionLimitReachedError."""
        key = (group_id, member_id)
        if key not in self._sessions and len(self._sessions) >= self._limit:
            raise ShareSessionLimitReachedError(
                f"{len(self._sessions)} share sessions at this broker (group.share.max.share.sessions); try again later"
            )
        session = ShareSession(group_id=group_id, member_id=member_id, connection=cast(Connection, connection))
        self._sessions[key] = session
        return session

    def follow(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """The session that a request with this epoch continues, or ends. Raises ShareSessionNotFoundError,
        InvalidShareSessionEpochError."""
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise ShareSessionNotFoundError(
                f"member {member_id} has no share session at this broker: begin one with epoch 0"
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
        return self._sessions.get((session.group_id, session.member_id)) is session

    def end(self, session: ShareSession) -> None:
        if self.is_open(session):
            del self._sessions[session.group_id, session.member_id]

    def disconnected(self) -> list[ShareSession]:
        """Those whose connections are gone."""
        return [session for session in self._sessions.values() if not session.connection.is_connected]

    def read_partitions(self) -> set[tuple[str, PartitionId]]:
        """Group and partition of everything that is read in some session."""
        return {(session.group_id, item) for session in self._sessions.values() for item in session.partitions}
