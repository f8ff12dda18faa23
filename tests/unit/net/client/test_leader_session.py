"""What a share consumer asks of one broker, request by request."""

from typing import Any

from barnabas.log.vocabulary.share.messages import AcknowledgedBatch, Acknowledgement, ShareFetchRequest
from barnabas.net.client.share.leader_session import FINAL_EPOCH, MAX_EPOCH, LeaderSession, batches_of

A, B = ("t", 0), ("t", 1)
ACCEPT, RELEASE = Acknowledgement.ACCEPT, Acknowledgement.RELEASE


LOCK_MS = 30_000


def asked(session: LeaderSession, *wanted: tuple[str, int], max_bytes: int = 9) -> ShareFetchRequest:
    return session.request(
        group_id="g", member_id="m", wanted=wanted, max_wait_ms=500, max_records=10, max_bytes=max_bytes
    )


def named(request: ShareFetchRequest) -> dict[tuple[str, int], Any]:
    return {(item.topic_id, item.partition): item.acknowledged for item in request.partitions}


def batch(first: int, last: int, *kinds: int) -> AcknowledgedBatch:
    return AcknowledgedBatch(first_offset=first, last_offset=last, kinds=kinds)


def test_only_news_is_named() -> None:
    session = LeaderSession(1)
    request = asked(session, A, B)
    assert (request.session_epoch, named(request), request.max_wait_ms) == (0, {A: (), B: ()}, 0)
    session.answered([A, B], LOCK_MS)
    request = asked(session, A)
    assert (request.session_epoch, named(request)) == (1, {})
    assert [(item.topic_id, item.partition) for item in request.forgotten] == [B]
    session.answered([A], LOCK_MS)
    assert asked(session, A).forgotten == ()


def test_acknowledgements_travel_at_once_and_only_once() -> None:
    session = LeaderSession(1)
    asked(session, A)
    session.answered([A], LOCK_MS)
    for offset in (3, 4, 5, 8):
        session.acknowledge(A, offset, RELEASE if offset == 5 else ACCEPT)
    assert session.is_waited_for
    request = asked(session, A)
    assert named(request) == {A: (batch(3, 5, ACCEPT, ACCEPT, RELEASE), batch(8, 8, ACCEPT))}
    assert request.max_wait_ms == 0 and session.is_sending and not session.is_waited_for
    assert session.answered([A], LOCK_MS) == {A: {3: ACCEPT, 4: ACCEPT, 5: RELEASE, 8: ACCEPT}}
    assert not session.is_sending and named(asked(session, A)) == {}


def test_what_is_not_assigned_any_more_is_acknowledged_and_forgotten() -> None:
    session = LeaderSession(1)
    asked(session, A)
    session.answered([A], LOCK_MS)
    session.acknowledge(A, 1, ACCEPT)
    request = asked(session)
    assert named(request) == {A: (batch(1, 1, ACCEPT),)}
    assert [(item.topic_id, item.partition) for item in request.forgotten] == [A]


def test_after_a_failure_a_new_session_comes_first() -> None:
    session = LeaderSession(1)
    asked(session, A)
    session.answered([A], LOCK_MS)
    session.acknowledge(A, 1, ACCEPT)
    asked(session, A)
    session.acknowledge(A, 2, RELEASE)
    session.failed()
    request = asked(session, A)
    assert (request.session_epoch, named(request)) == (0, {A: ()})
    session.answered([A], LOCK_MS)
    assert named(asked(session, A)) == {A: (batch(1, 2, ACCEPT, RELEASE),)}


def test_the_last_request_has_the_last_acknowledgements() -> None:
    session = LeaderSession(1)
    assert session.last_request(group_id="g", member_id="m") is None
    asked(session, A, B)
    session.answered([A, B], LOCK_MS)
    session.acknowledge(A, 1, ACCEPT)
    session.acknowledge(B, 1, ACCEPT)
    session.drop(B)
    last = session.last_request(group_id="g", member_id="m")
    assert last is not None and (last.session_epoch, named(last)) == (FINAL_EPOCH, {A: (batch(1, 1, ACCEPT),)})


def test_epochs_and_runs_of_offsets() -> None:
    session = LeaderSession(1)
    session.epoch = MAX_EPOCH
    session.answered([A], LOCK_MS)
    assert session.epoch == 1
    assert batches_of({}) == []
    assert batches_of({9: ACCEPT, 7: RELEASE, 8: RELEASE}) == [batch(7, 9, RELEASE, RELEASE, ACCEPT)]
    assert batches_of({1: ACCEPT, 2: ACCEPT}) == [batch(1, 2, ACCEPT)]


def test_a_request_waits_for_half_of_a_lock_at_most() -> None:
    """The consumer counts a lock from its request on: a longer wait would use it up, and the record would never be returned."""
    session, waits = LeaderSession(1), []
    for lock_ms in (500, 30_000, 100):
        request = session.request(group_id="g", member_id="m", wanted=[A], max_wait_ms=400, max_records=1, max_bytes=1)
        waits.append(request.max_wait_ms)
        session.answered([A], lock_ms)
    assert waits == [0, 250, 400]
