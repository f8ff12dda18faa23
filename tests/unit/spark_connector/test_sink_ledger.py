"""The ledger's state from its records: the first decision holds, whatever comes later, and whatever compaction leaves."""

from itertools import count

import pytest

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import ProducerIdentity
from barnabas.net.client.transactions.prepared import PreparedTransaction
from barnabas.spark_connector.common.sink_ledger import (
    Decision,
    ProducerEpoch,
    SinkLedger,
    StagedPartition,
    batch_of,
    ids_prefix,
    purpose_of,
)

Records = list[tuple[int, bytes, bytes | None]]


def prepared(name: str) -> PreparedTransaction:
    producer = ProducerIdentity(producer_id=77, producer_epoch=3)
    return PreparedTransaction(transactional_id=name, producer=producer)


def decision(batch_id: int, attempt: str, *, sink: str = "s") -> Decision:
    return Decision(
        sink_id=sink,
        batch_id=batch_id,
        attempt=attempt,
        transactions=(prepared(f"{attempt}-0"), prepared(f"{attempt}-1")),
    )


def staged_decision(batch_id: int, attempt: str) -> Decision:
    part = StagedPartition(target=TopicPartition("t", 1), batches=((5, 2), (9, 1)), not_before=7)
    producer = ProducerEpoch(producer_id=77, epoch=0)
    return Decision(sink_id="s", batch_id=batch_id, attempt=attempt, producer=producer, partitions=(part,))


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
    assert log.state().pending("other") is None


def test_decisions_of_versions_without_transactions_are_read() -> None:
    """And followed by new ones. These are the bytes that version 0.1.0 has written."""
    log = Log()
    written = (
        b'{"version":1,"sink":"s","batch":3,"attempt":"a","producer":[77,0],"partitions":[["t",1,7,[[5,2],[9,1]]]]}'
    )
    log.write((b"decided s 3 a", written))
    made = staged_decision(3, "a")
    assert log.state().pending("s") == made and made.to_bytes() == written
    assert made.partitions[0].stage == TopicPartition("__spark_stage.t", 1)
    log.publish(made)
    log.write((b"published s 4", b'{"version":1,"sink":"s","batch":4,"producer":[77,1]}'))
    log.decide(following := decision(5, "b"))
    for state in log.both():
        assert (published := state.published("s")) is not None and published.batch_id == 4
        assert state.pending("s") == following


def test_what_was_prepared_for_a_micro_batch_may_be_aborted_when_its_decision_does_not_name_it() -> None:
    log = Log()
    mine, other = prepared("a-0"), prepared("b-0")
    assert not log.state().may_abort("s", 0, mine), "it may be decided yet"
    log.decide(made := decision(0, "a"))
    log.decide(decision(0, "b"))
    log.decide(decision(1, "b"))
    for state in log.both():
        assert not state.may_abort("s", 0, mine) and state.may_abort("s", 0, other)
        assert not state.may_abort("s", 1, other) and state.may_abort("s", 1, mine)
        assert not state.may_abort("s", 2, mine) and not state.may_abort("other", 0, mine)
    log.publish(made)
    for state in log.both():
        assert state.may_abort("s", 0, other) and not state.may_abort("s", 1, other)


def test_a_transaction_says_which_micro_batch_it_is_of() -> None:
    assert batch_of(purpose_of("a:b", 17)) == 17
    assert batch_of("micro-batch x of Spark sink s") is None and batch_of("") is None
    assert not ids_prefix("a.b").startswith(ids_prefix("a"))


def test_a_sink_that_is_forgotten_holds_nothing_back() -> None:
    log = Log()
    log.decide(made := decision(0, "job"))
    log.decide(decision(4, "query", sink="other"))
    log.write(*log.state().records_of_forgetting(made))
    for state in log.both():
        assert state.pending("s") is None and state.pending("other") is not None
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
        log.decide(made := decision(batch_id, "driver"))
        log.publish(made)
    log.decide(decision(1, "zombie"))
    for state in log.both():
        assert state.pending("s") is None


def test_a_late_word_that_an_old_one_is_published_is_nothing() -> None:
    log = Log()
    log.decide(old := decision(0, "zombie"))
    late = log.state().records_of_publishing(old)
    for batch_id in range(3):
        log.decide(made := decision(batch_id, "driver"))
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


def test_a_forgotten_sink_leaves_deletions_only() -> None:
    log = Log()
    log.decide(made := decision(0, "job"))
    log.write(*log.state().records_of_forgetting(made))
    assert all(value is None for _, _, value in log.compacted())
    assert log.state(log.compacted()).pending("s") is None


def test_a_later_format_is_refused() -> None:
    with pytest.raises(ValueError, match="upgrade"):
        SinkLedger().replay(0, b"decided s 0 a", b'{"version": 3}')
