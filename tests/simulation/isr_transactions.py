"""The ISR simulation with transactions: real logs on simulated disks, and a model of the coordinator (`txn_coordinator`).

Beside what `isr_cluster` checks, after each event and at each read:

- a reader of committed records gets each record whose transaction was committed, and no other, also after a power loss;
- a marker that is committed in the log is one that the coordinator has decided on;
- the last stable offset of a replica lies before each transaction that is open or whose end is not replicated, and otherwise at
  its high watermark; it does not go back within a leadership, nor behind what earlier leaders have shown.
"""

from contextlib import AbstractContextManager, ExitStack
from typing import Any, cast
from unittest.mock import patch

from barnabas.log.format.record_batch import BatchHeader, iter_headers
from barnabas.log.format.record_codec import ProducerFields, encode_batch, iter_records
from barnabas.log.partition.aborted_transactions import AbortedTransactions
from barnabas.log.partition.pending_flush import PendingFlush
from barnabas.log.records.aborted import AbortedFilter
from barnabas.log.replication.leading import ACKS_ALL
from barnabas.log.replication.partition_reads import READ_COMMITTED
from barnabas.log.segment.producer_state import OpenTransactions, ProducerState
from barnabas.log.segment.segment import LogRead
from barnabas.log.segment.transaction_index import AbortedTransaction
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode
from barnabas.net.logs.purgatory import DelayedProduce
from barnabas.net.testing.simulation.disk import SimulatedDisk

from .disk_bugs import abort_index_is_not_rebuilt
from .isr_cluster import CLIENT, TP, IsrCluster, SimBroker
from .isr_disk_log import Contents, DiskLog
from .isr_log import MemoryLog, Value
from .isr_scenario import Scenario, Violation
from .planted import planted
from .txn_coordinator import NOW_MS, ModelTransactions, TransactionalProducer

FAULTS = ("kill", "power", "power_all", "pause", "cut", "one_way", "isolate")  # no bit rot: its model is MemoryLog's
READ_BYTES = (1, 300, 1_000, 1 << 20)
EVENTS = 1_500
NEVER = 2**63 - 1


class TransactionCluster(IsrCluster):
    fetch_bytes = 20 * 100  # some twenty batches

    def __init__(self, seed: int, scenario: Scenario | None = None) -> None:
        self.disks: dict[int, SimulatedDisk] = {}
        self.recovery_points: dict[int, int] = {}  # as in the checkpoint of each broker
        self.log_starts: dict[int, int] = {}  # as well
        self.deleted = Contents()  # everything before the highest log start
        self.deletions = self.deletions_into_transactions = 0
        self.shown: dict[int, int] = {}  # how far committed records were shown, by the leader epoch of who showed them
        self.stable: dict[
            int, tuple[int, int]
        ] = {}  # leader epoch and last stable offset of each broker, when last looked at
        self.checked_markers = 0
        self.reads = self.filtered = 0
        super().__init__(seed, scenario or Scenario(faults=FAULTS))
        self.transactions = ModelTransactions(self.rng)
        for producer in self.transactions.producers.values():
            self.at(0.05 * self.rng.random(), self._producer_tick, producer)
        self.at(0.5, self._replace_coordinator)
        self.at(0.4, self._delete_records)

    # --- logs on disks -----------------------------------------------------------------------------------------------

    def _new_log(self, node_id: int) -> MemoryLog:
        self.disks[node_id] = SimulatedDisk()
        self.recovery_points[node_id] = 0
        return self._open(node_id)

    def _open(self, node_id: int) -> MemoryLog:
        def lower(end_offset: int) -> None:
            self.recovery_points[node_id] = min(self.recovery_points[node_id], end_offset)

        log = DiskLog(
            self.disks[node_id],
            TP,
            flush_messages=1 if self.flush_first else NEVER,
            min_isr=self.scenario.min_isr,
            recovery_point=self.recovery_points[node_id],
            before_truncation=lower,
            log_start_offset=self.log_starts.get(node_id, 0),
            deleted=self.deleted,
        )
        return cast(MemoryLog, log)

    def _flush(self, broker: SimBroker) -> None:
        broker.is_flush_wanted = broker.is_flushing
        if broker.is_flushing:
            return
        broker.is_flushing = True
        pending = cast(DiskLog, broker.log).flushes.begin(self.now_ms)
        taken_s = self.flush_s * self.rng.expovariate(1)
        self.at(taken_s, self._on_platter, broker, broker.incarnation, pending)

    def _on_platter(self, broker: SimBroker, incarnation: int, pending: PendingFlush | None) -> None:
        if incarnation != broker.incarnation:
            return
        log = cast(DiskLog, broker.log)
        if pending is not None:
            pending.perform()
            log.flushes.finish(pending)
        if not log.is_changing and self.rng.random() < 0.5:
            log.tail.save(log.recovery_point)
            self.recovery_points[broker.node_id] = log.recovery_point
        self._deliver(broker.node_id, broker.node_id, self._on_flushed, ())

    def _crash_log(self, broker: SimBroker, is_power_loss: bool) -> None:
        high_watermark = broker.log.high_watermark
        disk = self.disks[broker.node_id]
        if is_power_loss:
            disk.power_loss(self.rng)
        else:
            disk.kill()
        broker.log = self._open(broker.node_id)
        broker.log.set_high_watermark(high_watermark if self.rng.random() < 0.5 else 0)
        self.stable.pop(broker.node_id, None)

    # --- clients -----------------------------------------------------------------------------------------------------

    def _on_produce(self, broker: SimBroker, value: Value) -> None:
        producer = ProducerFields(producer_id=value[0], producer_epoch=0, base_sequence=value[1] - 1)
        batch = encode_batch([b"%d" % value[1]], timestamps_ms=NOW_MS, producer=producer)
        self._append(broker, batch, value)

    def _producer_tick(self, producer: TransactionalProducer) -> None:
        batch, token, is_marker = self.transactions.step(producer)
        guess = self.controller.leader if self.rng.random() < 0.8 else self.rng.randrange(self.node_count)
        if guess >= 0:
            self.send(CLIENT, guess, self._append, batch, token, is_marker)
        if self.rng.random() < 0.1 and (zombie := self.transactions.of_a_zombie(producer)) is not None:
            self.send(CLIENT, max(guess, 0), self._append, zombie, (producer.producer_id, -1, -1), True)
        pause_s = 0.5 if self.is_healed else 0.1  # so that slow replicas catch up in the end
        self.at(0.02 + self.rng.random() * pause_s, self._producer_tick, producer)

    def _delete_records(self) -> None:
        """An administrator deletes records, also those of a transaction that is open; retention follows in its own time."""
        for broker in self.brokers:
            log = cast(DiskLog, broker.log)
            if not broker.is_up or log.is_changing:
                continue
            if broker.partition.role.is_leader and self.rng.random() < 0.5:
                self._delete_from(broker, log)
            if self.rng.random() < 0.5:
                log.delete_old_segments(NOW_MS)
            if self.rng.random() < 0.5:
                self.log_starts[broker.node_id] = log.log_start_offset
        self.at(0.4 + 0.4 * self.rng.random(), self._delete_records)

    def _delete_from(self, broker: SimBroker, log: DiskLog) -> None:
        before_offset = self.rng.randint(log.log_start_offset, log.high_watermark)
        if before_offset > len(self.deleted.records):
            known = log.contents().up_to(before_offset)
            self.deleted.records, self.deleted.hashes = known.records, known.hashes
            self.deleted.markers = known.markers
        undecided = log.producers.transactions.first_undecided_offset
        try:
            broker.partition.leading.delete_records(before_offset)
        except BarnabasError:
            return
        self.deletions += 1
        self.deletions_into_transactions += undecided is not None and undecided < before_offset

    def _replace_coordinator(self) -> None:
        self.transactions.replaced()
        self.at(0.5 + self.rng.random(), self._replace_coordinator)

    def _append(self, broker: SimBroker, batch: bytes, token: tuple[int, ...], is_marker: bool = False) -> None:
        try:
            info, required_offset, effects = broker.partition.leading.append(
                batch, acks=ACKS_ALL, now_ms=NOW_MS, from_coordinator=is_marker, transaction_version=2
            )
        except BarnabasError:
            return
        if info.duplicate and broker.log.records[info.last_offset][1] != token:
            return
        produce = DelayedProduce(token=(token, info.last_offset), client=CLIENT, timeout_ms=2_000)
        produce.wait_for(TP, required_offset=required_offset, leadership=broker.partition.leadership)
        if not broker.purgatory.park(produce, self.now_ms) and produce.errors[TP] == ErrorCode.NONE:
            self.send(broker.node_id, CLIENT, self._on_ack, token, info.last_offset)
        self._perform(broker, effects)

    def _on_ack(self, value: tuple[int, ...], offset: int) -> None:
        if len(value) == 3:
            self.transactions.marker_acknowledged(*value)
        elif value in self.transactions.fates:
            self.transactions.data_acknowledged(value)
        else:
            super()._on_ack(cast(Value, value), offset)

    # --- readers -----------------------------------------------------------------------------------------------------

    def _on_consume(self, broker: SimBroker, offset: int) -> None:
        try:
            read = broker.partition.reads.read_for_consumer(
                offset,
                max_bytes=self.rng.choice(READ_BYTES),
                isolation_level=READ_COMMITTED,
                allow_follower=self.rng.random() < 0.5,
            )
        except BarnabasError:
            return
        records = cast(Any, read.records)
        data = records if isinstance(records, bytes) else records.read()
        to_leave_out = AbortedFilter((found.producer_id, found.first_offset) for found in read.aborted)
        self.reads += 1
        for header in iter_headers(data):
            batch = data[header.position : header.position + header.size_bytes]
            self._check_shown(header, batch, to_leave_out.leaves_out(header, data), f"broker {broker.node_id}")
            epoch = broker.partition.role.leader_epoch
            if broker.partition.role.is_leader:
                self.shown[epoch] = max(self.shown.get(epoch, 0), header.next_offset)

    def _check_shown(self, header: BatchHeader, batch: bytes, is_left_out: bool, who: str) -> None:
        offset = header.base_offset
        if offset >= len(self.oracle.committed):
            raise Violation(f"{who} showed offset {offset}, which is not committed: {self.describe()}")
        if header.is_control:
            return
        (record,) = iter_records(batch)
        value = (header.producer_id, int(record.value or b""))
        if self.oracle.committed[offset] != value:
            raise Violation(f"{who} showed {value} at {offset}, which is not committed there")
        fate = self.transactions.fates.get(value)
        is_for_readers = fate is None or fate.is_commit is True
        self.filtered += is_left_out
        if is_left_out == is_for_readers:
            told = "left out" if is_left_out else "shown"
            decided = "open" if fate is None or fate.is_commit is None else f"decided, commit={fate.is_commit}"
            raise Violation(f"{who}: {value} at {offset} is {told}, and its transaction is {decided}")

    # --- what must hold ----------------------------------------------------------------------------------------------

    def _check_broker(self, broker: SimBroker) -> None:
        super()._check_broker(broker)
        self._check_markers(broker)
        log, role = cast(DiskLog, broker.log), broker.partition.role
        if not broker.is_up or log.is_changing:
            return
        stable, epoch = log.last_stable_offset, role.leader_epoch if role.is_leader else -1
        before = self.stable.get(broker.node_id)
        if before == (epoch, stable) and self.rng.random() < 0.9:
            return
        if before is not None and epoch >= 0 and before[0] == epoch and stable < before[1]:
            raise Violation(f"the last stable offset of {broker.node_id} went back from {before[1]} to {stable}")
        self.stable[broker.node_id] = (epoch, stable)
        replicated = max(log.high_watermark, len(self.oracle.committed))
        least = max(self._stable_end(log, log.high_watermark), log.log_start_offset)
        # A replica need not know of a transaction that began before its log.
        most = max(self._stable_end(log, replicated, log.log_start_offset), log.log_start_offset)
        if not least <= stable <= most:
            raise Violation(
                f"{broker.node_id} is stable up to {stable}, and not between {least} and {most}: {self.describe()}"
            )
        leading = role.leader_state
        if leading is not None and leading.knows_earlier_epochs_end:
            shown = max((end for known, end in self.shown.items() if known < epoch), default=0)
            if stable < shown:
                raise Violation(f"{broker.node_id} is stable up to {stable}, and {shown} was shown in an earlier epoch")

    def _check_markers(self, broker: SimBroker) -> None:
        end = len(self.oracle.committed)
        log = cast(DiskLog, broker.log)
        if self.checked_markers == end or broker.log.high_watermark < end:
            return
        for offset in range(self.checked_markers, end):
            if offset in log.markers:
                producer_id, epoch, is_commit = log.markers[offset]
                if self.transactions.decisions.get((producer_id, epoch)) is not is_commit:
                    raise Violation(f"the marker at {offset} of {producer_id} in epoch {epoch} was not decided on")
        self.checked_markers = end

    def _stable_end(self, log: DiskLog, replicated_end: int, since_offset: int = 0) -> int:
        """By the records alone: where the first transaction begins that has no end before `replicated_end`."""
        opened: dict[int, int] = {}
        for offset, (_, (producer_id, _)) in enumerate(log.records):
            if offset in log.markers:
                if offset < replicated_end:
                    opened.pop(producer_id, None)
            elif producer_id in self.transactions.producers and since_offset <= offset < log.high_watermark:
                opened.setdefault(producer_id, offset)
        return min([log.high_watermark, *opened.values()])

    def heal_and_finish(self, within_s: float = 40.0) -> None:
        """Longer than without transactions: there is more to copy."""
        super().heal_and_finish(within_s)
        for node_id in self.controller.isr:
            self._on_consume(self.brokers[node_id], self.brokers[node_id].log.log_start_offset)


def run_seed(seed: int, scenario: Scenario | None = None, *, events: int = EVENTS) -> TransactionCluster:
    """Raises what went wrong."""
    cluster = TransactionCluster(seed, scenario)
    cluster.run(events)
    cluster.heal_and_finish()
    return cluster


# --- planted bugs --------------------------------------------------------------------------------------------------------


def _list_of_the_request() -> AbstractContextManager[Any]:
    """The list is made when the request comes; what is read when it is answered has more."""
    genuine, known = AbortedTransactions.in_read, dict[tuple[int, int], tuple[AbortedTransaction, ...]]()

    def in_read(self: Any, read: LogRead, offset: int) -> tuple[AbortedTransaction, ...]:
        return known.setdefault((id(self), offset), genuine(self, read, offset))

    return patch.object(AbortedTransactions, "in_read", in_read)


def _stable_at_append() -> AbstractContextManager[Any]:
    """An end counts as soon as it is appended."""
    genuine = OpenTransactions.first_unstable_offset
    return patch.object(OpenTransactions, "first_unstable_offset", lambda self, high_watermark: genuine(self, NEVER))


def _takes_any_coordinator() -> AbstractContextManager[Any]:
    genuine = ProducerState.check_marker

    def check(self: Any, *arguments: Any, coordinator_epoch: int, **others: Any) -> None:
        genuine(self, *arguments, coordinator_epoch=NEVER, **others)

    return patch.object(ProducerState, "check_marker", check)


def _newer_epoch_ends_what_is_open() -> AbstractContextManager[Any]:
    genuine = ProducerState.update

    def update(self: Any, header: BatchHeader, **facts: Any) -> int | None:
        entry = dict(self.entries()).get(header.producer_id)
        if entry is not None and header.producer_epoch > entry.epoch and not header.is_control:
            self.transactions.end(header.producer_id, header.base_offset)
            entry.open_transaction_offset = -1
        return genuine(self, header, **facts)

    planted = ExitStack()
    planted.enter_context(patch.object(ProducerState, "update", update))
    planted.enter_context(patch.object(ProducerState, "_check_continues", staticmethod(lambda *_, **__: None)))
    return planted


BUGS = planted(
    "transactions",
    run_seed,
    {
        "the index of aborted transactions is not rebuilt after a crash": abort_index_is_not_rebuilt,
        "the list of aborted transactions is that of the request, and not of what was read": _list_of_the_request,
        "a transaction is stable when its marker is appended": _stable_at_append,
        "the marker of a replaced coordinator is taken": _takes_any_coordinator,
        "a newer epoch ends the open transaction of its producer": _newer_epoch_ends_what_is_open,
    },
)
