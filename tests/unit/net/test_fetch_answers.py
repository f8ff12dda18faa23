"""What an answer of a leader says to a follower, and what the follower says about refusals in it."""

from typing import Any

import pytest

from barnabas.log.format.record_batch import HEADER_SIZE, LOG_OVERHEAD
from barnabas.log.replication.follower import FetchPosition
from barnabas.log.vocabulary.errors import CorruptRecordError, ErrorCode
from barnabas.net.logs.following.fetch_answers import checked_answer, is_quiet, log_refusals
from barnabas.net.wire.protocol.responses import FetchPartitionResponse


def answered(number: int, error: int = ErrorCode.NONE) -> FetchPartitionResponse:
    return FetchPartitionResponse(topic="t", partition=number, error=error, message="why" if error else "")


def test_a_thousand_refusals_are_one_line_for_each_error(caplog: pytest.LogCaptureFixture) -> None:
    """A leader refuses all partitions of a new topic until it has opened them, and the follower asks again and again."""
    caplog.set_level("INFO", "barnabas.replication")
    partitions = [answered(number, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for number in range(7, 1_007)]
    fenced = answered(2_000, ErrorCode.FENCED_LEADER_EPOCH)
    log_refusals(3, (answered(1), *partitions, fenced))
    assert [record.getMessage() for record in caplog.records] == [
        f"fetch_refused leader=3 partition=t-7 and 999 more error={ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} why",
        f"fetch_refused leader=3 partition=t-2000 error={ErrorCode.FENCED_LEADER_EPOCH} why",
    ]


def test_an_answer_without_refusals_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "barnabas.replication")
    log_refusals(3, (answered(1), answered(2, ErrorCode.OFFSET_OUT_OF_RANGE)))
    assert not caplog.records


POSITION = FetchPosition(leader=3, leader_epoch=5, offset=10, last_fetched_epoch=5, sequence=1, log_start_offset=2)


@pytest.mark.parametrize(
    ("news", "quiet"),
    [
        ({}, True),
        ({"high_watermark": 9}, False),
        ({"high_watermark": 11}, False),
        ({"error": ErrorCode.NOT_LEADER_OR_FOLLOWER}, False),
        ({"diverging_epoch": 4, "diverging_end_offset": 8}, False),
        ({"diverging_epoch": 0, "diverging_end_offset": 0}, False),
        ({"records": b"x"}, False),
    ],
)
def test_an_answer_is_quiet_only_if_it_says_that_all_is_there_and_committed(news: dict[str, Any], quiet: bool) -> None:
    """After quiet answers, the leader is asked to wait longer."""
    values = {"topic": "t", "partition": 0, "high_watermark": 10, "log_start_offset": 2, **news}
    assert is_quiet(FetchPartitionResponse(**values), POSITION) == quiet


def header(epoch: int, size: int = HEADER_SIZE) -> bytes:
    return b"".join((bytes(8), (size - LOG_OVERHEAD).to_bytes(4, "big"), epoch.to_bytes(4, "big"), bytes(size - 16)))


@pytest.mark.parametrize("before", [[], [HEADER_SIZE], [HEADER_SIZE + 100, HEADER_SIZE, HEADER_SIZE + 7]])
def test_the_epoch_of_each_batch_is_looked_at(before: list[int]) -> None:
    sound = b"".join(header(5, size) for size in before)
    values: dict[str, Any] = {"topic": "t", "partition": 0, "high_watermark": 12, "log_start_offset": 7}
    answer = checked_answer(FetchPartitionResponse(records=sound + header(5) + header(6)[:-1], **values), POSITION)
    assert (answer.high_watermark, answer.log_start_offset) == (12, 7)
    with pytest.raises(CorruptRecordError, match="a leader of epoch 5 sent a batch of epoch 6"):
        checked_answer(FetchPartitionResponse(records=sound + header(6), **values), POSITION)
