"""What was committed in a simulation of one partition, and what must hold because of it. It knows logs, not brokers."""

from collections.abc import Callable, Mapping

from .isr_log import BAD_CRC, RECORD, MemoryLog, Value
from .isr_scenario import Violation


class CommittedRecords:
    """`committed` grows only: what a leader has shown below its high watermark is there for ever."""

    def __init__(self, describe: Callable[[], str]) -> None:
        self.committed: list[Value] = []
        self._epochs: list[int] = []  # of the leader that committed it
        self._hashes = [0]
        self._position_of: dict[Value, int] = {}
        self._leaders: dict[int, tuple[int, int]] = {}
        self._describe = describe

    def check_new_leader(self, me: tuple[int, int], log: MemoryLog, leader_epoch: int) -> None:
        """`me`: node id and incarnation."""
        if self._leaders.setdefault(leader_epoch, me) != me:
            raise Violation(f"two leaders in epoch {leader_epoch}: {self._leaders[leader_epoch]} and {me}")
        count = len(self.committed)
        while count and self._epochs[count - 1] >= leader_epoch:
            count -= 1
        if log.log_end_offset < count or log.hash_at(count) != self._hashes[count]:
            raise Violation(
                f"leader {me[0]} of epoch {leader_epoch} lacks what was committed before: {self._describe()}"
            )

    def note_committed(self, node_id: int, log: MemoryLog, leader_epoch: int) -> None:
        """What a leader shows below its high watermark never changes."""
        end, known = log.high_watermark, len(self.committed)
        if log.hash_at(min(end, known)) != self._hashes[min(end, known)]:
            raise Violation(f"{node_id} shows other data than was committed: {self._describe()}")
        for offset in range(known, end):
            value = log.records[offset][1]
            if value in self._position_of:
                raise Violation(f"{value} stands at {self._position_of[value]} and at {offset}")
            self._position_of[value] = offset
            self.committed.append(value)
            self._epochs.append(leader_epoch)
            self._hashes.append(log.hash_at(offset + 1))

    def check_electable(self, logs: Mapping[int, MemoryLog]) -> None:
        """Every replica that the controller may elect holds everything committed: ISR and ELR alike (KIP-966)."""
        end = len(self.committed)
        for node_id, log in logs.items():
            if log.log_end_offset < end or log.hash_at(end) != self._hashes[end]:
                raise Violation(f"{node_id} may be elected and lacks what is committed: {self._describe()}")

    def check_read(self, records: bytes, who: str) -> None:
        for offset, _, producer, sequence in RECORD.iter_unpack(records):
            if producer == BAD_CRC:
                return  # what a client refuses, it has not been shown
            if offset >= len(self.committed) or self.committed[offset] != (producer, sequence):
                raise Violation(f"{who} showed {(producer, sequence)} at {offset}, which is not committed there")
