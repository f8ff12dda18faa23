"""What a follower says about the refusals in an answer."""

import pytest

from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.logs.following.fetch_answers import log_refusals
from barnabas.net.wire.protocol.responses import FetchPartitionResponse, FetchResponse


def answered(number: int, error: int = ErrorCode.NONE) -> FetchPartitionResponse:
    return FetchPartitionResponse(topic="t", partition=number, error=error, message="why" if error else "")


def test_a_thousand_refusals_are_one_line_for_each_error(caplog: pytest.LogCaptureFixture) -> None:
    """A leader refuses all partitions of a new topic until it has opened them, and the follower asks again and again."""
    caplog.set_level("INFO", "barnabas.replication")
    partitions = [answered(number, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for number in range(7, 1_007)]
    fenced = answered(2_000, ErrorCode.FENCED_LEADER_EPOCH)
    log_refusals(3, FetchResponse(partitions=(answered(1), *partitions, fenced)))
    assert [record.getMessage() for record in caplog.records] == [
        f"fetch_refused leader=3 partition=t-7 and 999 more error={ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} why",
        f"fetch_refused leader=3 partition=t-2000 error={ErrorCode.FENCED_LEADER_EPOCH} why",
    ]


def test_an_answer_without_refusals_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "barnabas.replication")
    log_refusals(3, FetchResponse(partitions=(answered(1), answered(2, ErrorCode.OFFSET_OUT_OF_RANGE))))
    assert not caplog.records
