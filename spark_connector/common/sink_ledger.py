"""`SinkLedger`: the decisions of effectively-once sinks, as records of a compacted topic. Pure.

A decision names the prepared transactions of a micro-batch, one a task. Until it is made, all of them may be aborted; from then
on, all of them are committed, by this driver or the next one.

A micro-batch goes through three states, each a record of its own:

    (nothing)   tasks write their rows in transactions and prepare them; after a failure in this state they are aborted
    decided     which prepared transactions make up the micro-batch
    published   all of them are committed

The *first* decision for a sink and a micro-batch is valid, by offset order: if two drivers run the same query, both find the
same decision and commit the same transactions. Every decision has its own key, so compaction keeps it until it is deleted after
the record that says that it is published. These records have their own keys, too; the one of the latest micro-batch counts.

A transaction may be aborted if no valid decision can name it any more (`may_abort`): it belongs to a micro-batch that is
published, or whose first decision does not name it. So it says what it was prepared for (`purpose_of`).

Before there were transactions, tasks staged their rows, and a decision named the staged batches, which were copied. Such a
decision is still finished (`staged_publishing`), but no longer made.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import ProducerIdentity
from barnabas.net.client.transactions.prepared import PreparedTransaction

SINKS_PREFIX = "__spark_"  # Of the topics in which sinks store staged batches and decisions.
LEDGER_TOPIC = f"{SINKS_PREFIX}sinks"
STAGE_PREFIX = f"{SINKS_PREFIX}stage."  # Precedes the name of the target topic; partition numbers correspond.
STAGED_VERSION = 1  # of decisions about staged rows, and of their records of publication
FORMAT_VERSION = 2
_PURPOSE = re.compile(r"micro-batch ([0-9]+) of Spark sink (.+)")
_DECIDED = "decided"
_PUBLISHED = "published"


def stage_of(topic: str) -> str:
    return STAGE_PREFIX + topic


def ids_prefix(sink_id: str) -> str:
    """Of the transactional ids of a sink. No sink id contains a slash."""
    return f"{SINKS_PREFIX}sink/{sink_id}/"


def job_id(sink_id: str) -> str:
    """A transactional id that exists while a job without a sinkId runs: only then, attempts of its tasks prepare."""
    return ids_prefix(sink_id) + "job"


def purpose_of(sink_id: str, batch_id: int) -> str:
    """What the tasks of a micro-batch prepare their transactions for."""
    return f"micro-batch {batch_id} of Spark sink {sink_id}"


def batch_of(purpose: str) -> int | None:
    found = _PURPOSE.fullmatch(purpose)
    return None if found is None else int(found[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerEpoch:
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPartition:
    """The batches for one partition: whole batches in the partition with the same number of the topic's stage."""

    target: TopicPartition
    batches: tuple[tuple[int, int], ...]  # (base offset, number of records), ascending
    not_before: int  # The end of the target's log before any of these batches was written to it.

    @property
    def stage(self) -> TopicPartition:
        return TopicPartition(stage_of(self.target.topic), self.target.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    sink_id: str
    batch_id: int
    attempt: str  # Unique: identifies the driver's run that decided.
    transactions: tuple[PreparedTransaction, ...] = ()
    # Of a decision about staged rows:
    producer: ProducerEpoch | None = None
    partitions: tuple[StagedPartition, ...] = ()

    @property
    def key(self) -> bytes:
        return f"{_DECIDED} {self.sink_id} {self.batch_id} {self.attempt}".encode()

    def to_bytes(self) -> bytes:
        found = {"sink": self.sink_id, "batch": self.batch_id, "attempt": self.attempt}
        if self.producer is None:
            named = [
                [item.transactional_id, item.producer.producer_id, item.producer.producer_epoch]
                for item in self.transactions
            ]
            return _dump({"version": FORMAT_VERSION, **found, "transactions": named})
        staged = [[item.target.topic, item.target.partition, item.not_before, item.batches] for item in self.partitions]
        producer = [self.producer.producer_id, self.producer.epoch]
        return _dump({"version": STAGED_VERSION, **found, "producer": producer, "partitions": staged})


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    sink_id: str
    batch_id: int

    @property
    def key(self) -> bytes:
        return f"{_PUBLISHED} {self.sink_id} {self.batch_id}".encode()

    def to_bytes(self) -> bytes:
        return _dump({"version": FORMAT_VERSION, "sink": self.sink_id, "batch": self.batch_id})


@dataclass(slots=True)
class _Sink:
    published: Published | None = None  # The latest.
    decisions: dict[int, list[Decision]] = field(default_factory=dict)  # By micro-batch, in the order of the log.


class SinkLedger:
    """The state after all records up to `position`, which is the next offset to read."""

    def __init__(self) -> None:
        self.position = 0
        self._sinks: dict[str, _Sink] = {}

    def replay(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Apply the next record. Raises ValueError if a later version has written it."""
        assert offset >= self.position
        self.position = offset + 1
        if key is None:
            return
        if value is None:
            self._forget(key)
            return
        found = json.loads(value)
        if found.get("version") not in (STAGED_VERSION, FORMAT_VERSION):
            raise ValueError(f"offset {offset} of {LEDGER_TOPIC} was written by a later version of barnabas: upgrade")
        if key.startswith(_DECIDED.encode()):
            self._replay_decision(_decision(found))
        else:
            self._replay_published(_published(found))

    def _forget(self, key: bytes) -> None:
        """Apply a tombstone: published decisions are deleted; for a sink that will not write again, everything is."""
        kind, sink_id, number, *_ = key.decode().split(" ")
        sink, batch_id = self._sinks.get(sink_id), int(number)
        if sink is None:
            return
        if kind == _DECIDED:
            kept = [found for found in sink.decisions.pop(batch_id, []) if found.key != key]
            if kept:
                sink.decisions[batch_id] = kept
        elif sink.published is not None and sink.published.batch_id == batch_id:
            sink.published = None
        if sink.published is None and not sink.decisions:
            del self._sinks[sink_id]

    def _replay_decision(self, decision: Decision) -> None:
        sink = self._sinks.setdefault(decision.sink_id, _Sink())
        if sink.published is None or decision.batch_id > sink.published.batch_id:
            sink.decisions.setdefault(decision.batch_id, []).append(decision)

    def _replay_published(self, published: Published) -> None:
        sink = self._sinks.setdefault(published.sink_id, _Sink())
        if sink.published is None or published.batch_id >= sink.published.batch_id:
            sink.published = published
            sink.decisions = {number: found for number, found in sink.decisions.items() if number > published.batch_id}

    def published(self, sink_id: str) -> Published | None:
        return self._sinks[sink_id].published if sink_id in self._sinks else None

    def pending(self, sink_id: str) -> Decision | None:
        """The first decision of the oldest micro-batch without a record of publication, although it may be published."""
        decisions = self._sinks[sink_id].decisions if sink_id in self._sinks else {}
        return decisions[min(decisions)][0] if decisions else None

    def may_abort(self, sink_id: str, batch_id: int, transaction: PreparedTransaction) -> bool:
        """Whether no decision that is valid, or may become so, names this transaction of the micro-batch."""
        published = self.published(sink_id)
        if published is not None and batch_id <= published.batch_id:
            return True  # What its decision names was committed before that record.
        decisions = self._sinks[sink_id].decisions.get(batch_id) if sink_id in self._sinks else None
        return decisions is not None and transaction not in decisions[0].transactions

    def records_of_publishing(self, decision: Decision) -> list[tuple[bytes, bytes | None]]:
        """The record that the decision is published, and tombstones for records that it makes obsolete."""
        sink = self._sinks.get(decision.sink_id, _Sink())
        word = Published(sink_id=decision.sink_id, batch_id=decision.batch_id)
        keys = [item.key for found in sink.decisions.values() for item in found if item.batch_id <= word.batch_id]
        if sink.published is not None and sink.published.batch_id < word.batch_id:
            keys.append(sink.published.key)
        return [(word.key, word.to_bytes()), *((key, None) for key in dict.fromkeys(keys))]

    def records_of_forgetting(self, decision: Decision) -> list[tuple[bytes, bytes | None]]:
        """Tombstones for all records of a sink that will not write again."""
        keys = [key for key, _ in self.records_of_publishing(decision)]
        return [(key, None) for key in keys]


def _decision(found: dict[str, Any]) -> Decision:
    if found["version"] == FORMAT_VERSION:
        return Decision(
            sink_id=found["sink"],
            batch_id=found["batch"],
            attempt=found["attempt"],
            transactions=tuple(
                PreparedTransaction(
                    transactional_id=name, producer=ProducerIdentity(producer_id=producer_id, producer_epoch=epoch)
                )
                for name, producer_id, epoch in found["transactions"]
            ),
        )
    return Decision(
        sink_id=found["sink"],
        batch_id=found["batch"],
        attempt=found["attempt"],
        producer=_producer(found["producer"]),
        partitions=tuple(
            StagedPartition(
                target=TopicPartition(topic, number),
                not_before=not_before,
                batches=tuple((offset, count) for offset, count in batches),
            )
            for topic, number, not_before, batches in found["partitions"]
        ),
    )


def _published(found: dict[str, Any]) -> Published:
    return Published(sink_id=found["sink"], batch_id=found["batch"])


def _producer(found: Sequence[int]) -> ProducerEpoch:
    producer_id, epoch = found
    return ProducerEpoch(producer_id=producer_id, epoch=epoch)


def _dump(found: dict[str, Any]) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()
