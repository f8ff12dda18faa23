"""A broker with a bug: `python -m faults.planted BUG CONFIG` starts a real one that breaks one promise.

A campaign on three of them must say so; else its silence about the product means nothing. What is replaced is replaced
in the broker's own process, before it starts; the product knows nothing of this.
"""

import sys
from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

from barnabas.log.replication.partition import Partition
from barnabas.log.replication.partition_reads import PartitionReads
from barnabas.net.cli.main import main as barnabas
from barnabas.net.groups.group_appends import GroupAppends, SlotQueue, Waiting
from barnabas.net.handlers.records.produce import ProduceHandler
from barnabas.net.protocol.responses import ProduceResponse


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


BUGS: Final[dict[str, Callable[[], Any]]] = {
    bug.__name__: bug
    for bug in (
        acknowledges_alone,
        truncates_to_the_high_watermark,
        shows_what_is_not_committed,
        commits_before_the_quorum,
    )
}


def program(bug: str) -> tuple[str, ...]:
    """What starts such a broker; the path of its configuration is appended."""
    return (sys.executable, "-m", "faults.planted", bug)


def main() -> int:
    bug, config = sys.argv[1:]
    sys.argv = ["barnabas", "broker", "start", "--config", config]
    with BUGS[bug]():
        return barnabas()


if __name__ == "__main__":
    sys.exit(main())
