"""Share sessions: the order of a member's requests, and their limits."""

from dataclasses import dataclass

import pytest

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.log.vocabulary.principal import Principal
from barnabas.log.vocabulary.share.errors import (
    InvalidShareSessionEpochError,
    ShareSessionLimitReachedError,
    ShareSessionNotFoundError,
)
from barnabas.log.vocabulary.share.messages import ShareFetchPartition
from barnabas.net.coordination.shares.share_sessions import (
    FINAL_EPOCH,
    MAX_ALL_PARTITIONS,
    MAX_PARTITIONS,
    SessionKey,
    ShareSessions,
)


@dataclass
class Connection:
    is_connected: bool = True


def named(*numbers: int) -> list[ShareFetchPartition]:
    return [ShareFetchPartition(topic_id="t", partition=number) for number in numbers]


def test_each_request_continues_the_one_before() -> None:
    sessions = ShareSessions(2)
    session = sessions.begin(SessionKey("g", "m"), Connection())
    assert sessions.follow(SessionKey("g", "m"), 1) is session
    for wrong in (1, 3, 0, -2):
        with pytest.raises(InvalidShareSessionEpochError):
            sessions.follow(SessionKey("g", "m"), wrong)
    assert sessions.follow(SessionKey("g", "m"), 2) is session
    assert sessions.follow(SessionKey("g", "m"), FINAL_EPOCH) is session
    sessions.end(session)
    for epoch in (3, FINAL_EPOCH):
        with pytest.raises(ShareSessionNotFoundError):
            sessions.follow(SessionKey("g", "m"), epoch)


def test_another_user_with_the_same_member_id_has_no_part_in_a_session() -> None:
    sessions = ShareSessions(2)
    session = sessions.begin(SessionKey("g", "m"), Connection())
    stranger = SessionKey("g", "m", Principal(name="mallory"))
    for epoch in (1, FINAL_EPOCH):
        with pytest.raises(ShareSessionNotFoundError):
            sessions.follow(stranger, epoch)
    other = sessions.begin(stranger, Connection())
    assert sessions.is_open(session) and sessions.is_open(other)
    sessions.end(other)
    assert sessions.follow(SessionKey("g", "m"), 1) is session


def test_epochs_begin_again_after_the_last() -> None:
    sessions = ShareSessions(1)
    session = sessions.begin(SessionKey("g", "m"), Connection())
    session.epoch = 2**31 - 1
    sessions.follow(SessionKey("g", "m"), 2**31 - 1)
    assert sessions.follow(SessionKey("g", "m"), 1) is session


def test_a_new_session_of_a_member_replaces_its_old_one() -> None:
    sessions = ShareSessions(1)
    old = sessions.begin(SessionKey("g", "m"), Connection())
    new = sessions.begin(SessionKey("g", "m"), Connection())
    assert not sessions.is_open(old) and sessions.is_open(new) and len(sessions) == 1
    sessions.end(old)
    assert sessions.is_open(new)


def test_sessions_and_their_partitions_are_limited() -> None:
    sessions = ShareSessions(1)
    session = sessions.begin(SessionKey("g", "m"), Connection())
    with pytest.raises(ShareSessionLimitReachedError):
        sessions.begin(SessionKey("g", "other"), Connection())
    session.add(named(*range(MAX_PARTITIONS)), 1)
    assert len(sessions.readers) == MAX_PARTITIONS and sessions.find(SessionKey("g", "m")) is session
    session.add(named(5), 1)
    with pytest.raises(InvalidRequestError):
        session.add(named(MAX_PARTITIONS), 1)
    session.forget(named(0))
    session.add(named(MAX_PARTITIONS), 1)
    sessions.end(session)
    assert not sessions.readers and sessions.find(SessionKey("g", "m")) is None


def test_what_all_sessions_together_keep_is_limited() -> None:
    sessions = ShareSessions(MAX_ALL_PARTITIONS)
    full = MAX_ALL_PARTITIONS // MAX_PARTITIONS
    opened = [sessions.begin(SessionKey("g", str(number)), Connection()) for number in range(full + 1)]
    for session in opened[:-1]:
        sessions.add(session, named(*range(MAX_PARTITIONS)))
    with pytest.raises(ShareSessionLimitReachedError):
        sessions.add(opened[-1], named(0))
    sessions.add(opened[0], named(0))  # it has it
    sessions.end(opened[0])
    sessions.add(opened[-1], named(0))
    with pytest.raises(InvalidRequestError):
        sessions.add(opened[-1], [ShareFetchPartition(topic_id="x" * 65, partition=0)])


def test_partitions_are_read_in_turn() -> None:
    session = ShareSessions(1).begin(SessionKey("g", "m"), Connection())
    session.add(named(0, 1, 2), 1)
    session.served(("t", 0))
    session.served(("t", 9))
    assert [number for _, number in session.partitions] == [1, 2, 0]
    session.forget(named(2, 7))
    assert [number for _, number in session.partitions] == [1, 0]


def test_sessions_of_closed_connections_are_found() -> None:
    sessions = ShareSessions(2)
    first, second = Connection(), Connection()
    gone = sessions.begin(SessionKey("g", "a"), first)
    sessions.begin(SessionKey("g", "b"), second)
    first.is_connected = False
    assert sessions.disconnected() == [gone]
