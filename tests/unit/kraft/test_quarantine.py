"""What is set aside, and what must end the process: a record of a newer version would be applied by other brokers."""

import pytest

from barnabas.kraft.metadata.records import TopicRecord, UnknownRecordError
from barnabas.kraft.node.quarantine import MAX_LISTED, Quarantine

RECORD = TopicRecord(name="t", topic_id="0" * 32)


def test_a_record_of_a_newer_version_is_never_set_aside() -> None:
    """It may hide in another one (the parts of a staged decision), so that only its replay meets it."""

    def replay() -> None:
        raise UnknownRecordError("opcode 99")

    quarantine = Quarantine(1)
    with pytest.raises(UnknownRecordError):
        quarantine.guard(replay, RECORD, 7)
    assert (quarantine.count, quarantine.listed) == (0, ())


def test_the_list_is_bounded_and_the_count_is_not() -> None:
    quarantine = Quarantine(1)
    for index in range(MAX_LISTED + 5):
        quarantine.guard(lambda: 1 // 0, RECORD, index)  # type: ignore[arg-type, return-value]
    assert quarantine.count == MAX_LISTED + 5 and len(quarantine.listed) == MAX_LISTED
    assert "index 0" in quarantine.listed[0] and "ZeroDivisionError" in quarantine.listed[0]
