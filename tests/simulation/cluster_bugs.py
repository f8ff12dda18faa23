"""Bugs of whole brokers, found by `history`: each replaces a part of the product, and names the faults that bring it out."""

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

from barnabas.kraft.controller.topic_control import TopicControl, new_topic_id
from barnabas.kraft.group_state.group_slots import SlotState
from barnabas.kraft.metadata import partition_change
from barnabas.kraft.metadata.records import OffsetCommitRecord
from barnabas.log.compaction.cleaner_offset_map import OffsetMap
from barnabas.log.folders.log_folder import LogFolder
from barnabas.log.partition import partition_log
from barnabas.log.replication.isr import PendingIsrShrink
from barnabas.log.replication.partition import Partition
from barnabas.log.replication.partition_reads import PartitionReads
from barnabas.log.replication.replica_manager import ReplicaManager
from barnabas.log.segment import retention
from barnabas.net.coordination.groups.group_appends import GroupAppends, SlotQueue, Waiting
from barnabas.net.handlers.records.produce import ProduceHandler
from barnabas.net.logs.log_service import LogService
from barnabas.net.wire.protocol.responses import ProduceResponse

from .history import run_history
from .planted import in_histories


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
        before, log = self.role.follower_state, self.log
        effects = genuine(self, assignment, now_ms)
        if self.role.follower_state is not before and self.storage.is_usable:
            work = partial(log.truncate_to, log.high_watermark)
            effects += self.storage.begin_change("truncation to the high watermark", work)
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
    genuine = GroupAppends.add

    def add(self: GroupAppends, queue: SlotQueue, item: Waiting) -> None:
        if not item.answer.done():
            item.answer.set_result(item.result.response)
        genuine(self, queue, item)

    with patch.object(GroupAppends, "add", add):
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

    with (
        patch.object(ReplicaManager, "_open", opened),
        patch.object(ReplicaManager, "remove", kept),
        patch.object(LogService, "made_ready", lambda self, topic_partition, topic_id: None),
    ):
        yield


@contextlib.contextmanager
def commits_out_of_order() -> Iterator[None]:
    """Of two offset commits that follow each other, the second is applied first."""
    genuine = SlotState.replay
    held: dict[int, tuple[Any, ...]] = {}

    def replay(self: Any, record: Any, *log_offset: int) -> bool:
        if not isinstance(record, OffsetCommitRecord):
            return genuine(self, record, *log_offset)
        before = held.pop(id(self), None)
        if before is None:
            held[id(self)] = (record, *log_offset)
            return True
        genuine(self, record, *log_offset)
        return genuine(self, *before)

    with patch.object(SlotState, "replay", replay):
        yield


@contextlib.contextmanager
def _consumers_read_the_log_end() -> Iterator[None]:
    with patch.object(PartitionReads, "_visible_end", lambda self, isolation_level: self._storage.log.log_end_offset):
        yield


@contextlib.contextmanager
def _followers_show_their_log_end() -> Iterator[None]:
    """A follower does not know what is committed, and takes everything that it has for committed."""
    genuine = PartitionReads._visible_end

    def visible_end(self: Any, isolation_level: int) -> int:
        return genuine(self, isolation_level) if self._role.is_leader else self._storage.log.log_end_offset

    with patch.object(PartitionReads, "_visible_end", visible_end):
        yield


@contextlib.contextmanager
def _retention_passes_the_high_watermark() -> Iterator[None]:
    """Retention does not look at what is committed."""
    genuine = retention.expired_segments

    def expired(segments: Iterable[Any], **known: Any) -> int:
        ages = list(segments)
        return max(genuine(ages, **{**known, "high_watermark": 1 << 60}), len(ages) - 1)

    with patch.object(partition_log, "expired_segments", expired):
        yield


@contextlib.contextmanager
def _last_leader_before_eligible() -> Iterator[None]:
    """Who led last is elected although other replicas are eligible."""
    genuine = partition_change._outside_isr

    def outside(partition: Any, rules: Any) -> int | None:
        able = rules.able(partition).intersection(partition.replicas)
        last = partition.last_known_leader
        return last if not partition.isr and last in able else genuine(partition, rules)

    with patch.object(partition_change, "_outside_isr", outside):
        yield


@contextlib.contextmanager
def _last_leader_whatever_it_lost() -> Iterator[None]:
    """Of replicas of which nothing is known, who led last leads, without looking at their logs."""

    def outside(partition: Any, rules: Any) -> int | None:
        able = rules.able(partition).intersection(partition.replicas)
        eligible = [node for node in partition.eligible_leader_replicas if node in able]
        if eligible or partition.isr or partition.eligible_leader_replicas:
            return eligible[0] if eligible else None
        return partition.last_known_leader if partition.last_known_leader in able else None

    with patch.object(partition_change, "_outside_isr", outside):
        yield


@contextlib.contextmanager
def _ids_of_requests() -> Iterator[None]:
    """A topic gets the id that its request has drawn, so a late repetition behind its deletion gets it again."""

    def as_asked(self: Any, view: Any, request: Any) -> str:
        return str(request.topic_id or new_topic_id(self._rng))

    with patch.object(TopicControl, "_fresh_topic_id", as_asked):
        yield


@contextlib.contextmanager
def _compaction_takes_the_newest_too() -> Iterator[None]:
    """A record that is the last one of its key is taken for superseded by itself."""

    def is_superseded(self: Any, key: bytes, offset: int) -> bool:
        return bool(self._offsets.get(key, -1) >= offset)

    with patch.object(OffsetMap, "is_superseded", is_superseded):
        yield


BUGS = in_histories(
    "cluster",
    run_history,
    {
        "acks=all by the leader alone": (_acks_by_the_leader_alone, ("kill", "isolate")),
        "truncation to the high watermark": (_truncation_to_the_high_watermark, ("kill", "stop", "stall", "cut")),
        "a shrink before its commit": (_shrink_before_its_commit, ("cut_one_way", "isolate", "stall")),
        "group answers before their commit": (_commits_before_the_quorum, ("kill", "kill_all", "isolate")),
        "a power loss that is not noticed": (_forgotten_loss, ("power_loss", "kill")),
        "a deleted topic's log goes to its successor": (_successor_takes_the_log, ("recreate", "kill")),
        "a repeated creation has the deleted topic's id": (
            _ids_of_requests,
            ("recreate", "slow", "stall", "die_in_write"),
        ),
        "the last leader before eligible ones": (_last_leader_before_eligible, ("power_loss", "stop", "min_insync")),
        "the last leader leads whatever it has lost": (_last_leader_whatever_it_lost, ("wipe", "io_error", "kill_all")),
        "offset commits applied out of order": (commits_out_of_order, ("slow",)),
        "consumers read up to the log end": (_consumers_read_the_log_end, ("kill", "isolate")),
        "followers show consumers their log end": (_followers_show_their_log_end, ("kill", "isolate", "stall")),
        "compaction takes a key's last value": (_compaction_takes_the_newest_too, ("compact", "kill")),
        "retention deletes what nobody allowed": (_retention_passes_the_high_watermark, ("delete_records", "stall")),
    },
)
