"""Bugs that are planted to prove that the checkers bite. Each replaces a part of the product, in a test only.

The value of an entry is a context manager under which histories are run, and the kinds of fault that bring the bug out.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from barnabas.log.log_folder import LogFolder
from barnabas.log.replication.isr import PendingIsrShrink
from barnabas.log.replication.partition import Partition
from barnabas.net.group_service import GroupService
from barnabas.net.handlers.produce import ProduceHandler
from barnabas.net.protocol.responses import ProduceResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedBug:
    plant: Callable[[], AbstractContextManager[Any]]
    kinds: tuple[str, ...]
    faults_s: float = 6.0


@contextlib.contextmanager
def _acks_by_the_leader_alone() -> Iterator[None]:
    """acks=all is answered when the leader has the batch."""

    def answer(self: Any, delayed: Any, responses: list[Any], context: Any, reply: Any) -> None:
        reply(ProduceResponse(partitions=tuple(responses)))

    with patch.object(ProduceHandler, "_answer_when_committed", answer):
        yield


@contextlib.contextmanager
def _truncation_to_the_high_watermark() -> Iterator[None]:
    """A follower of a new leader cuts its log to its own high watermark, as Kafka did before KIP-101."""
    genuine = Partition.make_follower

    def make_follower(self: Any, assignment: Any, now_ms: int) -> Any:
        is_new = assignment.leader_epoch > self.leader_epoch
        effects = genuine(self, assignment, now_ms)
        if is_new and self.storage_error is None:
            self.log.truncate_to(self.log.high_watermark)
        return effects

    with patch.object(Partition, "make_follower", make_follower):
        yield


@contextlib.contextmanager
def _shrink_before_its_commit() -> Iterator[None]:
    """The leader does not wait for members that it has only proposed to leave out."""
    genuine = PendingIsrShrink.__init__

    def init(self: Any, **fields: Any) -> None:
        genuine(self, **(fields | {"maximal_isr": fields["proposed"]}))

    with patch.object(PendingIsrShrink, "__init__", init):
        yield


@contextlib.contextmanager
def _commits_before_the_quorum() -> Iterator[None]:
    """The coordinator answers an OffsetCommit as soon as it has decided; its records follow."""
    genuine = GroupService._decided

    async def decided(self: Any, slot: Any, records: Any, response: object) -> object:
        task = asyncio.get_running_loop().create_task(genuine(self, slot, records, response))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return response

    with patch.object(GroupService, "_decided", decided):
        yield


@contextlib.contextmanager
def _forgotten_loss() -> Iterator[None]:
    """A broker does not notice that its machine went down."""
    genuine = LogFolder._open

    def opened(self: Any, node_id: int, new_directory_id: str) -> None:
        genuine(self, node_id, new_directory_id)
        self.may_have_lost_writes = False

    with patch.object(LogFolder, "_open", opened):
        yield


PLANTED = {
    "acks=all by the leader alone": PlantedBug(plant=_acks_by_the_leader_alone, kinds=("kill", "isolate")),
    "truncation to the high watermark": PlantedBug(
        plant=_truncation_to_the_high_watermark, kinds=("kill", "stop", "stall", "cut")
    ),
    "a shrink before its commit": PlantedBug(
        plant=_shrink_before_its_commit, kinds=("cut_one_way", "isolate", "stall")
    ),
    "group answers before their commit": PlantedBug(
        plant=_commits_before_the_quorum, kinds=("kill", "kill_all", "isolate")
    ),
    "a power loss that is not noticed": PlantedBug(plant=_forgotten_loss, kinds=("power_loss", "kill")),
}
