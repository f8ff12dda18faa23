"""What must hold of partitions after every event: leaders, high watermarks, logs (ARCHITECTURE.md, What always holds).

For every replica a view of its log is kept (which batches it holds), and brought up to date when its log has changed;
across all replicas and all time: which batch stood at (leader epoch, offset), and which batches are committed. A batch is
known by its CRC, which no broker changes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from barnabas.log.format.record_batch import BatchHeader, iter_headers
from barnabas.log.replication.partition import Partition
from barnabas.log.segment.producer_state import ProducerState
from barnabas.log.vocabulary.errors import StorageError
from barnabas.net.testing.simulation.cluster import SimulatedCluster, SimulatedNode, is_serving
from barnabas.net.testing.simulation.process import SimulatedProcess

from .logs import check_producer, check_segments
from .violation import Violation

READ_BYTES = 1 << 20
Key = tuple[str, int]  # topic id, partition
Shape = tuple[int, int, int]  # number of segments, where the first one begins, log start


class Batch(NamedTuple):
    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int
    size_bytes: int
    producer: tuple[int, int, int] | None = None  # id, epoch and first sequence, of an idempotent one


class Committed(NamedTuple):
    batch: Batch
    in_epoch: int  # of the leader whose high watermark passed it


@dataclass(eq=False)
class History:
    """One partition, over all replicas and restarts."""

    name: str
    leaders: dict[int, SimulatedProcess] = field(default_factory=dict)
    written: dict[tuple[int, int], Batch] = field(default_factory=dict)  # by leader epoch and base offset
    committed: dict[int, Committed] = field(default_factory=dict)  # by base offset
    committed_end: int = 0
    produced: dict[tuple[int, int, int], int] = field(default_factory=dict)  # idempotent batches -> base offset


@dataclass(eq=False)
class View:
    """One replica of one incarnation, as it was when it was looked at last."""

    log: Any
    batches: dict[int, Batch] = field(default_factory=dict)
    log_end: int = 0
    log_start: int = 0
    truncations: int = 0
    high_watermark: int = 0
    was_empty: bool = True  # nothing below the high watermark could be read
    leader_epoch: int = -1
    led_epoch: int = -1
    isr: Any = None
    partition: Partition | None = None
    replay: ProducerState = field(default_factory=ProducerState)  # of what was read
    shape: Shape | None = None


class PartitionChecker:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.histories: dict[Key, History] = {}
        self.named: dict[tuple[str, int], list[History]] = {}  # by topic name: more than one if it was made again
        self.compacted: set[str] = set()  # topics whose batches each replica rewrites in its own time
        self.start_limits: dict[tuple[str, int], float] = {}  # the highest log start that anybody asked for; else 0
        self.views: dict[SimulatedProcess, dict[Key, View]] = {}
        self.given_up: dict[SimulatedProcess, dict[Key, View]] = {}  # what replicas held when their folder failed
        self.rolls_within_an_answer = 0  # of followers: some of its batches lie before the new segment, some behind
        self.truncations = 0  # of replicas that a checker has looked at before
        self.appends = 0  # batches, on whatever replica
        self.concerned: dict[Key, None] = {}  # committed something since `checkers.eligible` has judged
        cluster.ended.append(self._ended)

    def _ended(self, node: SimulatedNode, process: SimulatedProcess, power: bool) -> None:
        self.views.pop(process, None)
        self.given_up.pop(process, None)

    def check(self, node: SimulatedNode, *, is_between_operations: bool = True) -> None:
        """A process may die in the middle of an operation: then its memory is not expected to agree with its disk."""
        broker, process = node.broker, node.process
        if process is None or broker is None or not is_serving(node):
            return
        views = self.views.setdefault(process, {})
        for partition in broker.replication.manager._partitions.values():
            log: Any = partition.log
            view = views.get((partition.topic_id, partition.topic_partition.partition))
            leading = partition.role.leader_state
            if (
                view is not None
                and view.log_end == log.log_end_offset
                and view.high_watermark == log.high_watermark
                and view.isr is (None if leading is None else leading.isr)
                and view.leader_epoch == partition.leader_epoch
                and view.truncations == log.truncations
                and view.log is log
                and view.shape == _shape_of(log)
            ):
                continue
            with node.disk.undisturbed():
                try:
                    self._changed(node, process, partition, views)
                except StorageError:
                    if is_between_operations:
                        raise
                    continue  # it is just being replaced: its old files are no longer, its new ones not yet there
                if is_between_operations:
                    self._check_memory(node, views.get((partition.topic_id, partition.topic_partition.partition)))
        if len(views) > len(broker.replication.manager._partitions):
            self._gone(node, process, broker.replication.manager._partitions.values(), views)

    def _gone(
        self, node: SimulatedNode, process: SimulatedProcess, partitions: Iterable[Partition], views: dict[Key, View]
    ) -> None:
        present = {(partition.topic_id, partition.topic_partition.partition) for partition in partitions}
        for key in views.keys() - present:
            last = views.pop(key)
            self._ends(process, last, self.histories[key])
            self.given_up.setdefault(process, {})[key] = last

    def _ends(self, process: SimulatedProcess, view: View, history: History) -> None:
        """A leader may have committed something in the very event with which its folder failed."""
        if view.isr is not None and view.partition is not None:
            is_compacted = view.partition.topic_partition.topic in self.compacted
            self._follow_high_watermark(process, view.partition, view, history, is_compacted, leads=True)

    def _changed(
        self, node: SimulatedNode, process: SimulatedProcess, partition: Partition, views: dict[Key, View]
    ) -> None:
        key = (partition.topic_id, partition.topic_partition.partition)
        history = self.histories.get(key)
        if history is None:
            history = self.histories[key] = History(name=f"{partition.topic_partition}")
            self.named.setdefault(partition.topic_partition, []).append(history)
        is_compacted = partition.topic_partition.topic in self.compacted
        if partition.storage.error is not None or partition.log.failed:
            last = views.pop(key, None)
            if last is not None:
                self._ends(process, last, history)
                self.given_up.setdefault(process, {})[key] = last
            return
        view = views.get(key)
        if view is None or view.log is not partition.log:
            view = views[key] = View(log=partition.log, truncations=partition.log.truncations)  # type: ignore[attr-defined]
        self._check_log_start(process, partition)
        _check_waits(process, partition, view, history)
        self._follow_log(process, view, history, is_compacted)
        self._follow_high_watermark(process, partition, view, history, is_compacted, leads=partition.role.is_leader)
        self._follow_leadership(node, process, partition, view, history, key)
        view.leader_epoch = partition.leader_epoch
        view.partition = partition

    def _check_memory(self, node: SimulatedNode, view: View | None) -> None:
        """What the log says of its segments and producers is what its files say."""
        if view is None or view.log.failed:
            return
        shape = _shape_of(view.log)
        if view.shape != shape:
            check_segments(view.log, node.disk)
            view.shape = shape
        known = dict(view.log.producers.entries())
        for producer_id, entry in view.replay.entries():
            check_producer(view.log, producer_id, known.get(producer_id), entry)

    def permit_start(self, topic: str, partition: int, highest_offset: float) -> None:
        key = (topic, partition)
        self.start_limits[key] = max(self.start_limits.get(key, 0), highest_offset)

    def _check_log_start(self, process: SimulatedProcess, partition: Partition) -> None:
        start, name = partition.log.log_start_offset, partition.topic_partition
        if start > self.start_limits.get(name, 0):
            raise Violation(f"{name}: the log of {process} begins at {start}, and nobody deleted so much")

    # --- the log ------------------------------------------------------------------------------------------------------

    def _follow_log(self, process: SimulatedProcess, view: View, history: History, is_compacted: bool) -> None:
        log = view.log
        view.was_empty = view.log_start >= view.high_watermark
        if log.truncations != view.truncations:
            view.truncations = log.truncations
            self.truncations += 1
            # An empty log is started over before a batch in which its start lies (DeleteRecords): it holds nothing to lose.
            if log.log_end_offset < view.high_watermark and not view.was_empty:
                raise Violation(
                    f"{history.name}: {process} cut its log to {log.log_end_offset}, below its high watermark "
                    f"{view.high_watermark}"
                )
            view.batches = {}
            view.replay = ProducerState()
            view.log_end = log.segments.all[0].base_offset
        elif log.log_end_offset < view.log_end:
            raise Violation(f"{history.name}: the log of {process} shrank to {log.log_end_offset} without a truncation")
        if not view.batches:
            view.log_end = max(log.segments.all[0].base_offset, log.log_start_offset)
        view.log_start = log.log_start_offset
        if is_compacted:  # see checkers.compacted
            view.log_end = log.log_end_offset
            return
        former_end = view.log_end if view.batches else -1
        for header in read_headers(log, view.log_end):
            batch = _batch_of(header)
            if view.batches and batch.base_offset != view.log_end:
                raise Violation(f"{history.name}: {process} has nothing from {view.log_end} to {batch}")
            view.log_end = batch.next_offset
            self.appends += 1
            view.batches[batch.base_offset] = batch
            view.replay.update(header, first_offset=header.base_offset)
            known = history.written.setdefault((batch.leader_epoch, batch.base_offset), batch)
            if known != batch:
                raise Violation(
                    f"{history.name}: {process} holds {batch} where another replica holds {known}: one epoch, two logs"
                )
        view.log_end = log.log_end_offset
        if view.partition is not None and view.partition.role.is_follower:
            self.rolls_within_an_answer += 0 <= former_end < log.segments.all[-1].base_offset < log.log_end_offset

    # --- the high watermark -------------------------------------------------------------------------------------------

    def _follow_high_watermark(
        self,
        process: SimulatedProcess,
        partition: Partition,
        view: View,
        history: History,
        is_compacted: bool,
        *,
        leads: bool,
    ) -> None:
        log, before = view.log, view.high_watermark
        now = log.high_watermark
        if now > log.log_end_offset:
            raise Violation(f"{history.name}: {process} has high watermark {now} beyond its log end")
        if now < before and partition.leader_epoch == view.leader_epoch and not view.was_empty:
            raise Violation(f"{history.name}: the high watermark of {process} fell from {before} to {now}")
        offset = max(before if before in view.batches else 0, view.log_start)
        if offset not in view.batches:  # a log start inside of a batch
            offset = max((base for base in view.batches if base <= offset), default=offset)
        while offset < now and not is_compacted:
            batch = view.batches.get(offset)
            if batch is None:
                break
            self._commit(process, partition, batch, history, leads=leads)
            offset = batch.next_offset
        view.high_watermark = now

    def _commit(
        self, process: SimulatedProcess, partition: Partition, batch: Batch, history: History, *, leads: bool
    ) -> None:
        known = history.committed.get(batch.base_offset)
        if known is not None:
            if known.batch != batch:
                raise Violation(
                    f"{history.name}: {process} has {batch} below its high watermark, committed is {known.batch}"
                )
            return
        if batch.base_offset < history.committed_end:
            raise Violation(f"{history.name}: {process} commits {batch} over what is committed")
        if not leads:
            raise Violation(f"{history.name}: {process} follows, and takes {batch} for committed before any leader did")
        if batch.producer is not None:
            first = history.produced.setdefault(batch.producer, batch.base_offset)
            if first != batch.base_offset:
                raise Violation(f"{history.name}: {batch} of an idempotent producer is committed at {first} too")
        history.committed[batch.base_offset] = Committed(batch, partition.leader_epoch)
        history.committed_end = batch.next_offset
        self.concerned[partition.topic_id, partition.topic_partition.partition] = None

    # --- leadership ---------------------------------------------------------------------------------------------------

    def _follow_leadership(
        self,
        node: SimulatedNode,
        process: SimulatedProcess,
        partition: Partition,
        view: View,
        history: History,
        key: Key,
    ) -> None:
        leading = partition.role.leader_state
        if leading is None:
            view.isr = None
            return
        epoch = partition.leader_epoch
        known = history.leaders.setdefault(epoch, process)
        if known is not process:
            raise Violation(f"{history.name}: leader epoch {epoch} has two leaders, {known} and {process}")
        if view.led_epoch != epoch:
            view.led_epoch = epoch
            self._check_complete(process, epoch, view, history)
        view.isr = leading.isr
        for replica_id in leading.isr.maximal_isr:
            if replica_id != node.node_id:
                self._check_holds(replica_id, process, view.high_watermark, history, key)

    def _check_complete(self, process: SimulatedProcess, epoch: int, view: View, history: History) -> None:
        for base_offset, committed in history.committed.items():
            if base_offset >= view.log_start and committed.in_epoch < epoch:
                if view.batches.get(base_offset) != committed.batch:
                    raise Violation(
                        f"{history.name}: {process} leads epoch {epoch} without {committed.batch}, which was committed "
                        f"in epoch {committed.in_epoch}; it has {view.batches.get(base_offset)}, end {view.log_end}"
                    )

    def _check_holds(
        self, replica_id: int, leader: SimulatedProcess, high_watermark: int, history: History, key: Key
    ) -> None:
        """A member of the maximal ISR must have all below the leader's high watermark, unless its disk lost it."""
        node = self.cluster.nodes[replica_id]
        if node.process is None or replica_id in self.cluster.lossy:
            return
        view = self.views.get(node.process, {}).get(key)
        if view is not None and view.log.log_end_offset < high_watermark:
            raise Violation(
                f"{history.name}: the high watermark {high_watermark} of {leader} passed the log end "
                f"{view.log.log_end_offset} of {node.process}, which is in its maximal ISR"
            )


def _check_waits(process: SimulatedProcess, partition: Partition, view: View, history: History) -> None:
    """A leader commits nothing while it knows of an eligible replica outside of its ISR."""
    leading = partition.role.leader_state
    if leading is None or view.isr is not leading.isr or not leading.isr.eligible:
        return
    if partition.log.high_watermark > view.high_watermark:
        raise Violation(
            f"{history.name}: {process} commits up to {partition.log.high_watermark} while "
            f"{sorted(leading.isr.eligible)} are eligible outside of its ISR {leading.isr}"
        )


def read_headers(log: Any, offset: int) -> list[BatchHeader]:
    """Of everything from the batch that holds `offset` to the log end."""
    found: list[BatchHeader] = []
    while offset < log.log_end_offset:
        found_slice = log.read(offset, max_bytes=READ_BYTES, up_to_offset=log.log_end_offset).slice
        data = found_slice if isinstance(found_slice, bytes) else found_slice.read()
        if not data:
            raise Violation(
                f"{log.topic_partition}: nothing at offset {offset}, but the log ends at {log.log_end_offset}"
            )
        found += iter_headers(data)
        offset = found[-1].next_offset
    return found


def read_batches(log: Any, offset: int) -> list[Batch]:
    return [_batch_of(header) for header in read_headers(log, offset)]


def _batch_of(header: BatchHeader) -> Batch:
    producer = (header.producer_id, header.producer_epoch, header.base_sequence)
    return Batch(header.base_offset, header.next_offset, header.leader_epoch, header.crc, header.size_bytes,
                 None if header.producer_id < 0 or header.is_control else producer)  # fmt: skip


def _shape_of(log: Any) -> Shape:
    segments = log.segments.all
    return len(segments), segments[0].base_offset, log.log_start_offset
