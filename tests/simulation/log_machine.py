"""One partition's log with its manager on a disk that crashes: what is opened again is what was written, or a prefix of it.

Appends of a leader and of a follower, rolls, flushes, checkpoints, truncations, DeleteRecords, retention, a full disk; and
between them clean stops, kills, power losses and deaths in the middle of an operation. `run_seed(seed)` is one history.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from barnabas.log.folders.log_manager import LogManager
from barnabas.log.format.record_batch import iter_headers
from barnabas.log.format.record_codec import ProducerFields, encode_batch, encode_marker
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.segment.producer_state import REMEMBERED_BATCHES, is_behind
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import (
    DiskFailedError,
    DiskFullError,
    DuplicateSequenceError,
    OutOfOrderSequenceError,
    StorageError,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.testing.simulation.disk import DEFAULT_CAPACITY_BYTES, SimulatedDisk
from barnabas.net.testing.simulation.process import ProcessDied

from .checkers.logs import check_log
from .checkers.violation import Violation
from .log_building import retain

PARTITION = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000
STEPS = 40
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100, segment_index_bytes=512, file_delete_delay_ms=0)
RETENTION_BYTES = 1_500
READ_BYTES = 2_000
PLAIN_PRODUCERS, PRODUCERS = 3, 5  # the others write transactions
REFUSED = (
    "rename",
    "rename",
    "rename",
    "remove",
    "open",
    "append",
    "write",
    "truncate",
    "flush",
    "sync_dir",
    "list",
    "read",
)
REFUSALS = (StorageError, DiskFullError, DiskFailedError)  # EMFILE or EPERM, ENOSPC, EIO
_VALUES = [[b"%d" % number + b"x" * (number * 7 % 90)] * (1 + number % 3) for number in range(40)]

Known = tuple[int, int, int, int]  # base offset, next offset, leader epoch, CRC
State = tuple[Known, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogResult:
    seed: int
    events: int
    crashes: int
    lost_batches: int  # in power losses, as is allowed
    rolls_within_an_answer: int  # of a follower, which has batches of that answer on both sides


class LogMachine:
    """`states` are the contents of the log after each operation since all of it was last known to be on the disk: a power
    loss leaves one of them, or the beginning of one that holds all that was flushed."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self._repetitions = Random(~seed)  # apart, so that they leave the course of the history as it is
        self.disk = SimulatedDisk()
        self.epoch = 0
        self.now_ms = NOW_MS
        self.crashes = self.lost = self.written = self.events = self.rolls_within_an_answer = 0
        self.start = 0  # the highest log start that was asked for
        self.states: list[State] = [()]
        self.flushed_end = 0  # all below is on the disk, whatever was cut off and written since then
        self.start_again()

    @property
    def content(self) -> State:
        return self.states[-1]

    # --- life ---------------------------------------------------------------------------------------------------------

    def start_again(self) -> None:
        self.disk.capacity_bytes = DEFAULT_CAPACITY_BYTES
        self.disk.mend()
        self.manager = LogManager(self.disk, ["/data"], node_id=0, defaults=CONFIG)
        self.manager.load(now_ms=self.now_ms)
        self.log: PartitionLog = self.manager.get_or_create(PARTITION, topic_id="id", now_ms=self.now_ms, config=CONFIG)

    def read(self) -> State:
        with self.disk.undisturbed():
            return self._read()

    def _read(self) -> State:
        found: list[Known] = []
        log, offset = self.log, self.log.log_start_offset
        while offset < log.log_end_offset:
            data: Any = log.read(offset, max_bytes=READ_BYTES, up_to_offset=log.log_end_offset).slice
            headers = list(iter_headers(data if isinstance(data, bytes) else data.read(), verify_crc=True))
            if not headers or headers[-1].next_offset <= offset:
                raise Violation(f"nothing at {offset}, the log ends at {log.log_end_offset}")
            found += [(it.base_offset, it.next_offset, it.leader_epoch, it.crc) for it in headers]
            offset = headers[-1].next_offset
        return tuple(found)

    def crash(self, *, power: bool) -> None:
        self.crashes += 1
        if power:
            self.disk.power_loss(self.rng)
        else:
            self.disk.kill()
        self.start_again()
        self.check_opened(is_power_loss=power, after_power_loss=power)

    def stop(self) -> None:
        self.manager.close()
        self.disk.kill()
        self.start_again()
        self.check_equal("after a stop")
        if self.manager.was_stopped_cleanly:  # a full disk prevents that
            self.all_on_disk()

    # --- what must hold -----------------------------------------------------------------------------------------------

    def check_memory(self) -> None:
        """What the log knows of its segments and producers is what the disk says."""
        with self.disk.undisturbed():
            check_log(self.log, self.disk)

    def check_equal(self, when: str) -> None:
        self.check_memory()
        found = self.read()
        start = self.log.log_start_offset
        wanted = tuple(batch for batch in self.content if batch[1] > start)
        # A power loss may leave nothing but a log start, and that inside of a batch that is gone.
        end = max(self.content[-1][1], start) if self.content else self.log.log_end_offset
        if found != wanted or self.log.log_end_offset != end:
            raise Violation(f"{when}: the log holds {found}, written was {wanted}")

    def check_opened(self, *, is_power_loss: bool, after_power_loss: bool) -> None:
        self.check_memory()
        found = self.read()
        log_start = self.log.log_start_offset
        if log_start > self.start:
            raise Violation(f"the log begins at {log_start}, asked for was {self.start}")
        candidates = self.states if is_power_loss else self.states[-2:]
        matching = [state for state in candidates if self.is_beginning(found, state, whole=not is_power_loss)]
        if not matching:
            raise Violation(f"opened {found}, but written was {self.content}, flushed up to {self.flushed_end}")
        if is_power_loss and self.log.log_end_offset < self.flushed_end:
            raise Violation(f"opened up to {self.log.log_end_offset}, flushed was up to {self.flushed_end}")
        self.lost += max(len([b for b in self.content if b[1] > log_start]) - len(found), 0)
        epochs = [batch[2] for batch in found]
        if epochs and self.log.latest_epoch < epochs[-1]:
            raise Violation(f"the log holds epoch {epochs[-1]}, its epochs end at {self.log.latest_epoch}")
        self.epoch = max(self.epoch, self.log.latest_epoch)
        # A log start that was not on the disk may come back, with the batches below.
        below = found[0][0] if found else log_start
        opened = tuple(batch for batch in matching[-1] if batch[1] <= below) + found
        # After a kill nothing more is on the disk than before: a power loss may still bring back what was before it.
        self.states = [opened] if after_power_loss else [*self.states, opened]
        self.flushed_end = min(self.flushed_end, self.log.log_end_offset)

    def is_beginning(self, found: State, state: State, *, whole: bool) -> bool:
        wanted = tuple(batch for batch in state if batch[1] > self.log.log_start_offset)
        return found == wanted if whole else found == wanted[: len(found)]

    def all_on_disk(self) -> None:
        self.states = [self.content]
        self.flushed_end = self.log.log_end_offset

    # --- operations ---------------------------------------------------------------------------------------------------

    def write(self, count: int, *, as_follower: bool) -> None:
        batches = self.draw(count)
        self.written += count
        if as_follower:
            offset = self.log.log_end_offset
            for batch in batches:
                header = next(iter_headers(batch))
                batch[0:8] = offset.to_bytes(8, "big")
                batch[12:16] = max(self.epoch, 0).to_bytes(4, "big")
                offset += header.next_offset - header.base_offset
            self.states.append(self.content + self._as_known(b"".join(batches)))
            begin = self.log.log_end_offset
            self.log.append_as_follower(b"".join(batches), now_ms=self.now_ms)
            self.rolls_within_an_answer += self.log.segments.all[-1].base_offset > begin
            return
        for batch in batches:
            self.states.append(self.content)
            before = self.log.log_end_offset
            header = next(iter_headers(batch))
            length = header.next_offset - header.base_offset
            self.states[-1] = (*self.content, (before, before + length, self.epoch, header.crc))
            self.log.append_as_leader(
                batch, leader_epoch=self.epoch, now_ms=self.now_ms, from_coordinator=header.is_control
            )

    def draw(self, count: int) -> list[bytearray]:
        """Batches of some producers, each with the sequence that follows in this log as the log knows it. Some producers write
        transactions: data, and now and then the marker of what is open."""
        known = dict(self.log.producers.entries())
        following: dict[int, int] = {}
        opened = {producer_id for producer_id, entry in known.items() if entry.open_transaction_offset >= 0}
        batches = []
        for number in range(self.written, self.written + count):
            producer_id, values = number * 7 % PRODUCERS, _VALUES[number % len(_VALUES)]
            is_transactional = producer_id >= PLAIN_PRODUCERS
            if producer_id in opened and number % 3 == 0:
                opened.discard(producer_id)
                batches.append(self.marker(producer_id, number))
                continue
            if is_transactional:
                opened.add(producer_id)
            last = known[producer_id].batches[-1:] if producer_id in known else ()
            sequence = following.get(producer_id, (last[0].last_sequence + 1) if last else 0)
            following[producer_id] = sequence + len(values)
            producer = ProducerFields(
                producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=is_transactional
            )
            batches.append(bytearray(encode_batch(values, timestamps_ms=NOW_MS + number, producer=producer)))
        return batches

    def marker(self, producer_id: int, number: int) -> bytearray:
        commits = self.rng.random() < 0.3
        return bytearray(
            encode_marker(producer_id=producer_id, producer_epoch=0, is_commit=commits, coordinator_epoch=0,
                          timestamp_ms=NOW_MS + number)
        )  # fmt: skip

    @staticmethod
    def _as_known(data: bytes) -> State:
        return tuple((it.base_offset, it.next_offset, it.leader_epoch, it.crc) for it in iter_headers(data))

    def truncate(self) -> None:
        offset = self.rng.randint(self.log.log_start_offset, self.log.log_end_offset)
        kept = tuple(batch for batch in self.content if batch[1] <= offset)
        self.states.append(kept)
        self.flushed_end = min(self.flushed_end, kept[-1][1] if kept else 0)
        self.log.truncate_to(offset)
        if not kept and self.log.log_end_offset == offset:
            self.start = max(self.start, offset)  # cut off from the first segment's begin on: a log that begins there

    def step(self) -> None:
        dice, log = self.rng.random(), self.log
        self.now_ms += 10
        if dice < 0.45:
            self.write(self.rng.randint(1, 4), as_follower=self.rng.random() < 0.5)
        elif dice < 0.55:
            log.flush(now_ms=self.now_ms)
            self.all_on_disk()
        elif dice < 0.63:
            self.manager.checkpoints.take()
        elif dice < 0.68:
            self.epoch += 1
            log.assign_epoch_start(self.epoch, log.log_end_offset)
        elif dice < 0.74:
            self.truncate()
        elif dice < 0.78:
            log.set_high_watermark(log.log_end_offset)
            before = self.rng.randint(log.log_start_offset, log.high_watermark)
            self.start = max(self.start, before)
            log.delete_records_before(before)
        elif dice < 0.82:
            self.retain()
        elif dice < 0.86:
            log.tail.roll(self.now_ms, log.config)
        else:
            self.fault(dice)

    def retain(self) -> None:
        self.log.set_high_watermark(self.log.log_end_offset)
        self.log.config = replace(CONFIG, retention_bytes=RETENTION_BYTES)
        self.start = self.log.log_end_offset
        if retain(self.manager, self.now_ms):
            self.check_memory()
        for folder in self.manager.folders:
            self.manager.removals.remove_due(folder, self.now_ms)

    def repeat(self) -> None:
        """A producer that has lost an answer sends some batch of the log again, maybe long after those behind it, as librdkafka
        does. It must not hear that the batch is missing: then it would write the records twice. And what a marker has ended is
        never there already: records of the next transaction may have the same sequences."""
        log = self.log
        if log.failed or log.log_start_offset == log.log_end_offset:
            return
        offset = self._repetitions.randrange(log.log_start_offset, log.log_end_offset)
        with self.disk.undisturbed():
            data: Any = log.read(offset, max_bytes=1, up_to_offset=log.log_end_offset).slice
            batch = bytearray(data if isinstance(data, bytes) else data.read())
        (header, *_) = iter_headers(batch)
        entry = log.producers.find(header.producer_id)
        if header.is_control or entry is None or entry.next_sequence is None:
            return
        if not is_behind(entry.next_sequence, header.base_sequence):
            return  # of an earlier life of a producer that was forgotten: it is new
        before = log.log_end_offset
        try:
            log.append_as_leader(batch, leader_epoch=self.epoch, now_ms=self.now_ms)
            is_known = True
        except DuplicateSequenceError:
            is_known = True
        except OutOfOrderSequenceError:
            is_known = False
        if log.log_end_offset != before:
            raise Violation(f"the batch at {header.base_offset} of producer {header.producer_id} was written twice")
        if not header.is_transactional and not is_known and len(entry.batches) == REMEMBERED_BATCHES:
            raise Violation(f"the batch at {header.base_offset} of producer {header.producer_id} is called missing")
        if header.is_transactional and is_known and entry.open_transaction_offset < 0:
            raise Violation(f"the batch at {header.base_offset} repeats one of a transaction that has ended")

    def fault(self, dice: float) -> None:
        if dice < 0.89:
            self.stop()
        elif dice < 0.92:
            self.crash(power=False)
        elif dice < 0.96:
            self.crash(power=True)
        elif dice < 0.97:
            self.disk.capacity_bytes = self.disk.used_bytes + self.rng.randrange(400)
        elif dice < 0.975:
            self.disk.write_back()
        elif dice < 0.99:
            # The disk refuses once, and the process goes on.
            self.disk.fail_next(self.rng.choice(REFUSED), "/data/orders-0/*", error=self.rng.choice(REFUSALS))
        else:
            self.die_later()

    def die_later(self) -> None:
        self.disk.kill_within(self.rng, 12)

    def run(self) -> None:
        for _ in range(STEPS):
            self.events += 1
            try:
                self.step()
                self.repeat()
            except ProcessDied:
                self.die()
            except StorageError:
                self.make_room()
        self.disk.before_operation = None
        self.check_equal("at the end")

    def die(self) -> None:
        """In the middle of an operation: all of it, a part of it or nothing of it has happened."""
        power = self.rng.random() < 0.5
        self.crashes += 1
        self.flushed_end = min(self.flushed_end, *(state[-1][1] if state else 0 for state in self.states[-2:]))
        if power:
            self.disk.power_loss(self.rng)
        else:
            self.disk.kill()
        self.start_again()
        self.check_opened(is_power_loss=True, after_power_loss=power)

    def make_room(self) -> None:
        """The disk refused; nothing of what it refused may be there, and what was there must be."""
        self.disk.capacity_bytes = DEFAULT_CAPACITY_BYTES
        if self.log.failed:
            self.disk.before_operation = None
            self.disk.kill()
            self.start_again()
        self.check_opened(is_power_loss=True, after_power_loss=False)


class CutAndGrown(LogMachine):
    """A schedule: what a truncation cuts off is on the disk, with its snapshot of producers; the log grows again to behind it,
    and the machine goes down. Random steps hardly ever come to that."""

    ROUNDS = 4

    def run(self) -> None:
        for _ in range(self.ROUNDS):
            self.events += 1
            self.write(self.rng.randint(1, 3), as_follower=False)
            self.log.flush(now_ms=self.now_ms)
            self.write(self.rng.randint(1, 3), as_follower=False)
            self.log.flush(now_ms=self.now_ms)
            self.all_on_disk()
            self.manager.checkpoints.take()
            self.disk.write_back()
            end_offset = self.log.log_end_offset
            self.truncate()
            while self.log.log_end_offset <= end_offset:
                self.write(1, as_follower=True)
            self.log.flush(now_ms=self.now_ms)
            self.all_on_disk()
            self.manager.checkpoints.take()  # its snapshot may be lost, and what was removed may come back in its place
            self.crash(power=True)


def run_seed(seed: int, machine: type[LogMachine] = LogMachine) -> LogResult:
    found: Any = machine(seed)
    found.run()
    return LogResult(seed=seed, events=found.events, crashes=found.crashes, lost_batches=found.lost,
                     rolls_within_an_answer=found.rolls_within_an_answer)  # fmt: skip
