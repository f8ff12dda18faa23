"""The ledger's state from its records: the first decision holds, whatever comes later, and whatever compaction leaves."""

from itertools import count

import pytest

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.spark_connector.common.sink_ledger import (
    MAX_EPOCH,
    Decision,
    ProducerEpoch,
    SinkLedger,
    StagedPartition,
)

Records = list[tuple[int, bytes, bytes | None]]


def decision(batch_id: int, attempt: str, *, sink: str = "s", epoch: int = 0) -> Decision:
    part = StagedPartition(target=TopicPartition("t", 1), batches=((5, 2), (9, 1)), not_before=7)
    producer = ProducerEpoch(producer_id=77, epoch=epoch)
    return Decision(sink_id=sink, batch_id=batch_id, attempt=attempt, producer=producer, partitions=(part,))


class Log:
    """The ledger's topic, with all records that it ever had."""

    def __init__(self) -> None:
        self.records: Records = []
        self._offsets = count()

    def write(self, *records: tuple[bytes, bytes | None]) -> None:
        self.records += [(next(self._offsets), key, value) for key, value in records]

    def decide(self, made: Decision) -> None:
        self.write((made.key, made.to_bytes()))

    def publish(self, made: Decision) -> None:
        self.write(*self.state().records_of_publishing(made))

    def compacted(self) -> Records:
        last = {key: offset for offset, key, _ in self.records}
        return [record for record in self.records if last[record[1]] == record[0]]

    def state(self, records: Records | None = None) -> SinkLedger:
        ledger = SinkLedger()
        for offset, key, value in self.records if records is None else records:
            ledger.replay(offset, key, value)
        return ledger

    def both(self) -> tuple[SinkLedger, SinkLedger]:
        return self.state(), self.state(self.compacted())


def test_a_decision_survives_its_bytes() -> None:
    log = Log()
    log.decide(made := decision(3, "a"))
    assert log.state().pending("s") == made
    assert made.partitions[0].stage == TopicPartition("__spark_stage.t", 1) and made.partitions[0].record_count == 3
    assert log.state().pending("other") is None


def test_a_sink_that_is_forgotten_holds_nothing_back() -> None:
    """Stages are trimmed up to the oldest decision that is not published."""
    log = Log()
    log.decide(made := decision(0, "job"))
    log.decide(decision(4, "query", sink="other"))
    log.write(*log.state().records_of_forgetting(made))
    for state in log.both():
        assert [found.sink_id for found in state.all_pending()] == ["other"]
        assert state.published("s") is None


def test_the_first_decision_holds_compacted_or_not() -> None:
    log = Log()
    log.decide(first := decision(0, "first"))
    log.decide(decision(0, "second"))
    for state in log.both():
        assert state.pending("s") == first
    log.publish(first)
    for state in log.both():
        assert state.pending("s") is None
        assert (published := state.published("s")) is not None and published.batch_id == 0
    assert len(log.compacted()) == 3, "the word, and two deletions that compaction drops in time"


def test_a_late_decision_for_what_is_published_is_nothing() -> None:
    log = Log()
    for batch_id in range(3):
        log.decide(made := decision(batch_id, "driver", epoch=batch_id))
        log.publish(made)
    log.decide(decision(1, "zombie", epoch=1))
    for state in log.both():
        assert state.pending("s") is None
        assert state.next_epoch("s") == ProducerEpoch(producer_id=77, epoch=3)


def test_a_late_word_that_an_old_one_is_published_is_nothing() -> None:
    log = Log()
    log.decide(old := decision(0, "zombie"))
    late = log.state().records_of_publishing(old)
    for batch_id in range(3):
        log.decide(made := decision(batch_id, "driver", epoch=batch_id))
        log.publish(made)
    log.write(*late)
    for state in log.both():
        assert (published := state.published("s")) is not None and published.batch_id == 2


def test_sinks_do_not_see_each_other() -> None:
    log = Log()
    log.decide(left := decision(0, "a", sink="left"))
    log.decide(right := decision(0, "b", sink="right"))
    log.publish(left)
    for state in log.both():
        assert state.pending("left") is None and state.pending("right") == right
        assert state.all_pending() == [right]


def test_epochs_go_up_and_then_a_new_producer_is_needed() -> None:
    log = Log()
    assert log.state().next_epoch("s") is None
    log.decide(made := decision(0, "a", epoch=MAX_EPOCH - 1))
    log.publish(made)
    assert log.state().next_epoch("s") == ProducerEpoch(producer_id=77, epoch=MAX_EPOCH)
    log.decide(made := decision(1, "b", epoch=MAX_EPOCH))
    log.publish(made)
    assert log.state().next_epoch("s") is None


def test_a_forgotten_sink_leaves_deletions_only() -> None:
    log = Log()
    log.decide(made := decision(0, "job"))
    log.write(*log.state().records_of_forgetting(made))
    assert all(value is None for _, _, value in log.compacted())
    assert log.state(log.compacted()).pending("s") is None


def test_a_later_format_is_refused() -> None:
    with pytest.raises(ValueError, match="upgrade"):
        SinkLedger().replay(0, b"decided s 0 a", b'{"version": 2}')
