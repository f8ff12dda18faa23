"""A broker with bugs: `python -m faults.planted BUG,BUG... CONFIG` starts a real one that breaks a promise by each.

A campaign on three of them must say so; else its silence about the product means nothing. What is replaced is replaced
in the broker's own process, before it starts; the product knows nothing of this.
"""

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Final
from unittest.mock import patch

from msgspec.structs import replace

from barnabas.consumer_groups.offsets.transactional_offsets import TransactionalOffsets
from barnabas.consumer_groups.transactions.coordinator import TransactionCoordinator
from barnabas.log.partition.aborted_transactions import AbortedTransactions
from barnabas.log.replication.partition import Partition
from barnabas.log.replication.partition_reads import PartitionReads
from barnabas.net.cli.main import main as barnabas
from barnabas.net.coordination.groups.group_appends import GroupAppends, SlotQueue, Waiting
from barnabas.net.coordination.transactions.marker_writer import MarkerWriter
from barnabas.net.handlers.records.produce import ProduceHandler
from barnabas.net.wire.protocol.responses import ProduceResponse

from .transactions.layout import BANKS


def acknowledges_alone() -> Any:
    """acks=all is answered when the leader has the batch."""

    def answer(self: Any, delayed: Any, responses: list[Any], context: Any, reply: Any) -> None:
        reply(ProduceResponse(partitions=tuple(responses)))

    return patch.object(ProduceHandler, "_answer_when_committed", answer)


def truncates_to_the_high_watermark() -> Any:
    """A follower of a new leader cuts its log to its own high watermark, as Kafka did before KIP-101."""
    genuine = Partition.make_follower

    def make_follower(self: Any, assignment: Any, now_ms: int) -> Any:
        is_new = assignment.leader_epoch > self.leader_epoch
        effects = genuine(self, assignment, now_ms)
        if is_new and self.storage.error is None:
            self.log.truncate_to(self.log.high_watermark)
        return effects

    return patch.object(Partition, "make_follower", make_follower)


def shows_what_is_not_committed() -> Any:
    """Consumers read up to the end of the leader's log."""
    return patch.object(PartitionReads, "_visible_end", lambda self, isolation_level: self._storage.log.log_end_offset)


def commits_before_the_quorum() -> Any:
    """A commit of offsets is answered, and its records are never written."""

    def add(self: GroupAppends, queue: SlotQueue, item: Waiting) -> None:
        if item.result.records and all("Offset" in type(record).__name__ for record in item.result.records):
            item.answer.set_result(item.result.response)
        else:
            genuine(self, queue, item)

    genuine = GroupAppends.add
    return patch.object(GroupAppends, "add", add)


# --- transactions ----------------------------------------------------------------------------------------------------


def tells_no_aborted_transactions() -> Any:
    """Readers of committed records are not told what to leave out."""
    return patch.object(AbortedTransactions, "in_read", lambda self, read, offset: ())


def commits_in_part() -> Any:
    """Some partitions of a committed transaction get a marker that aborts it."""
    genuine = MarkerWriter._append_one

    def append_one(self: Any, marker: Any, topic_partition: Any, *places: Any) -> Any:
        is_commit = marker.is_commit and topic_partition.topic != BANKS[1]
        return genuine(self, replace(marker, is_commit=is_commit), topic_partition, *places)

    return patch.object(MarkerWriter, "_append_one", append_one)


def drops_the_offsets_of_transactions() -> Any:
    """The offsets of a committed transaction are dropped, as those of an aborted one."""
    genuine = TransactionalOffsets.end

    def end(self: Any, *, is_commit: bool, **values: Any) -> Any:
        return genuine(self, is_commit=False, **values)

    return patch.object(TransactionalOffsets, "end", end)


def never_times_out() -> Any:
    """A transaction whose producer is dead stays open."""
    return patch.object(TransactionCoordinator, "_arm", lambda self, record, now_ms: None)


BUGS: Final[dict[str, Callable[[], Any]]] = {
    bug.__name__: bug
    for bug in (
        acknowledges_alone,
        truncates_to_the_high_watermark,
        shows_what_is_not_committed,
        commits_before_the_quorum,
        tells_no_aborted_transactions,
        commits_in_part,
        drops_the_offsets_of_transactions,
        never_times_out,
    )
}


def program(bugs: Iterable[str]) -> tuple[str, ...]:
    """What starts such a broker; the path of its configuration is appended. The folder of tests is in PYTHONPATH."""
    return (sys.executable, "-P", "-m", "faults.planted", ",".join(bugs))


def main() -> int:
    bugs, config = sys.argv[1:]
    sys.argv = ["barnabas", "broker", "start", "--config", config]
    with ExitStack() as stack:
        for bug in bugs.split(","):
            stack.enter_context(BUGS[bug]())
        return barnabas()


if __name__ == "__main__":
    sys.exit(main())
