"""Bugs of whole brokers, found by `history`: each replaces a part of the product, and names the faults that bring it out."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from barnabas.kraft import controller, group_control
from barnabas.kraft.controller_result import ControllerResult
from barnabas.kraft.group_slots import GroupSlots
from barnabas.kraft.records import OffsetCommitRecord, SlotRecord
from barnabas.log import partition_log, retention
from barnabas.log.errors import BarnabasError
from barnabas.log.log_folder import LogFolder
from barnabas.log.replication.isr import CommittedIsr, PendingIsrShrink
from barnabas.log.replication.leader import LeaderState
from barnabas.log.replication.partition import Partition
from barnabas.log.replication.replica_manager import ReplicaManager
from barnabas.net.group_service import GroupService
from barnabas.net.handlers.produce import ProduceHandler
from barnabas.net.protocol.responses import ProduceResponse

from .history import Scenario, run_history
from .planted import Planted


Plant = Callable[[], AbstractContextManager[Any]]


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


@contextlib.contextmanager
def _successor_takes_the_log() -> Iterator[None]:
    """A deleted topic's log stays where it is, and the topic that is made under its name goes on with it."""

    def opened(self: Any, assignment: Any) -> Any:
        partition = self._partitions.get(assignment.topic_partition)
        if partition is not None and partition.topic_id == assignment.topic_id:
            return partition, []
        log = self._logs.create_log(assignment.topic_partition, assignment.topic_id)
        log.topic_id = assignment.topic_id
        partition = Partition(log, self.node_id, replica_lag_time_max_ms=self._replica_lag_time_max_ms)
        self._partitions[assignment.topic_partition] = partition
        return partition, []

    def kept(self: Any, topic_partition: Any) -> list[Any]:
        partition = self._partitions.pop(topic_partition, None)
        return [] if partition is None else partition.stop()

    with patch.object(ReplicaManager, "_open", opened), patch.object(ReplicaManager, "_remove", kept):
        yield


@contextlib.contextmanager
def _any_coordinator_epoch() -> Iterator[None]:
    """Records of a coordinator that is none any more are taken, and replayed."""

    def append(view: Any, request: Any) -> ControllerResult:
        return ControllerResult(records=group_control._checked_records(request))

    def replay(self: Any, record: Any, index: int) -> bool:
        self.index = index
        slot = self._writable(record.slot)
        if isinstance(record, SlotRecord):
            return bool(slot.moved(record.coordinator_epoch))
        return bool(
            slot.replay(replace(record, coordinator_epoch=max(record.coordinator_epoch, slot.coordinator_epoch)))
        )

    with patch.object(controller, "append_records", append), patch.object(GroupSlots, "replay", replay):
        yield


@contextlib.contextmanager
def _commits_out_of_order() -> Iterator[None]:
    """An append of group records is repeated a while later, whatever was committed meanwhile."""
    genuine = GroupService._append_batch

    async def append_batch(self: Any, slot: Any, batch: Any) -> None:
        await genuine(self, slot, batch)

        async def again() -> None:
            await asyncio.sleep(0.3)
            with contextlib.suppress(BarnabasError, TimeoutError):
                await genuine(self, slot, [item for item in batch if _commits_only(item.records)])

        self._spawn(again())

    with patch.object(GroupService, "_append_batch", append_batch):
        yield


def _commits_only(records: Any) -> bool:
    return all(isinstance(record, OffsetCommitRecord) for record in records)


@contextlib.contextmanager
def _answers_before_the_quorum() -> Iterator[None]:
    """The controller grants an ISR change before its record is committed."""
    genuine = LeaderState._propose

    def propose(self: Any, isr: Any, now_ms: int) -> Any:
        effects = genuine(self, isr, now_ms)
        self.isr = CommittedIsr(isr=frozenset(isr), partition_epoch=self.isr.partition_epoch)
        return effects

    with patch.object(LeaderState, "_propose", propose):
        yield


@contextlib.contextmanager
def _consumers_read_the_log_end() -> Iterator[None]:
    with patch.object(Partition, "_visible_end", lambda self, isolation_level: self.log.log_end_offset):
        yield


@contextlib.contextmanager
def _retention_passes_the_high_watermark() -> Iterator[None]:
    """Retention does not look at what is committed."""
    genuine = retention.expired_segments

    def expired(segments: Any, *, config: Any, log_start_offset: int, high_watermark: int, now_ms: int) -> int:
        count = genuine(
            segments, config=config, log_start_offset=log_start_offset, high_watermark=1 << 60, now_ms=now_ms
        )
        return max(count, len(segments) - 1)

    with patch.object(partition_log, "expired_segments", expired):
        yield


BUGS: dict[str, tuple[Plant, tuple[str, ...]]] = {
    "acks=all by the leader alone": (_acks_by_the_leader_alone, ("kill", "isolate")),
    "truncation to the high watermark": (_truncation_to_the_high_watermark, ("kill", "stop", "stall", "cut")),
    "a shrink before its commit": (_shrink_before_its_commit, ("cut_one_way", "isolate", "stall")),
    "group answers before their commit": (_commits_before_the_quorum, ("kill", "kill_all", "isolate")),
    "a power loss that is not noticed": (_forgotten_loss, ("power_loss", "kill")),
    "a deleted topic's log goes to its successor": (_successor_takes_the_log, ("recreate", "kill")),
    "records of a stale group coordinator are taken": (
        _any_coordinator_epoch,
        ("stall", "isolate", "slow", "late_reset"),
    ),
    "offset commits applied out of order": (_commits_out_of_order, ("late_reset", "slow")),
    "an ISR change counts when it is proposed": (
        _answers_before_the_quorum,
        ("isolate", "stall", "cut_one_way", "kill"),
    ),
    "consumers read up to the log end": (_consumers_read_the_log_end, ("kill", "isolate")),
    "retention deletes what nobody allowed": (_retention_passes_the_high_watermark, ("delete_records", "stall")),
}
FAULTS_S = 6.0


def bugs() -> list[Planted]:
    return [
        Planted(level="cluster", name=name, plant=plant, run=_runner(kinds)) for name, (plant, kinds) in BUGS.items()
    ]


def _runner(kinds: tuple[str, ...]) -> Callable[[int], bool]:
    def run(seed: int) -> bool:
        result = run_history(seed, Scenario(kinds=kinds, faults_s=FAULTS_S))
        assert not result.failure, result.failure
        return False

    return run
