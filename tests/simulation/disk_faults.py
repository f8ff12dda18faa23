"""Disks: full, slow, failing; and processes that die in the middle of a write or between two steps on the disk.

What a power loss leaves of unflushed writes (nothing, a part, a torn end) is the business of `disk.SimulatedDisk`.
"""

from typing import ClassVar

from barnabas.log.vocabulary.errors import DiskFullError, StorageError
from barnabas.net.testing.simulation.cluster import PLENTY_BYTES, SimulatedNode, is_serving
from barnabas.net.testing.simulation.disk import Write
from barnabas.net.testing.simulation.fault_room import FaultRoom
from barnabas.net.testing.simulation.process import ProcessDied

FAILING = ("append", "flush", "write", "rename")
FAILING_FILES = ("*.log", "*.index", "*.timeindex", "*checkpoint", "*quorum.journal", "*")
# Of a partition's own folder, and survived by the process: only what says that the disk has failed ends a broker of one folder.
REFUSED = ("rename", "rename", "remove", "open", "append", "sync_dir", "list")
REFUSALS = (StorageError, DiskFullError)  # EPERM, EMFILE; ENOSPC
PARTITION_FILES = "*-[0-9]/*"
MOST_REFUSALS = 4  # that wait for their operation
MOST_OPERATIONS = 60  # until a process dies in one of them


class DiskFaults(FaultRoom):
    WEIGHTS: ClassVar = {"disk_full": 1, "slow_disk": 1, "io_error": 1, "die_in_write": 1, "refusal": 2}

    def heal(self) -> None:
        super().heal()
        for node in self.cluster.nodes:
            node.slow_disk_s = 0.0
            node.disk.before_operation = None
            node.disk.capacity_bytes = PLENTY_BYTES
            node.disk.mend()
            if node.disk_may_refuse and node.is_running:
                self.cluster.kill(node.node_id)  # a log that failed takes no more writes until its broker starts again
            node.disk_may_refuse = False
            self.cluster.start(node.node_id)

    def _disk_full(self, node_id: int) -> None:
        """One node at a time; it gets room again after a while, and a new process, as its operator would do."""
        if any(node.disk_may_refuse for node in self.cluster.nodes):
            return
        node = self.cluster.nodes[node_id]
        node.disk_may_refuse = True
        node.disk.capacity_bytes = node.disk.used_bytes + self.rng.randrange(3_000)
        self.cluster.loop.note(f"DISK FULL {node.name}")
        self._later(self._duration(), self._mend, node_id)

    def _io_error(self, node_id: int) -> None:
        """EIO of one operation; the operator mends the disk and starts the broker again, as above."""
        if any(node.disk_may_refuse for node in self.cluster.nodes):
            return
        node = self.cluster.nodes[node_id]
        node.disk_may_refuse = True
        action, pattern = self.rng.choice(FAILING), self.rng.choice(FAILING_FILES)
        node.disk.fail_next(action, pattern)
        self.cluster.loop.note(f"IO ERROR {node.name} {action} {pattern}")
        self._later(self._duration(), self._mend, node_id)

    def _refusal(self, node_id: int) -> None:
        """Some operations are refused, each once, and the process goes on. It may end itself: what was in the midst of a change
        that cannot be taken back is offline until its broker starts again."""
        node = self.cluster.nodes[node_id]
        if any(it.disk_may_refuse for it in self.cluster.nodes if it is not node):
            return
        if node.disk.capacity_bytes < PLENTY_BYTES:  # a full disk refuses for longer than these operations
            return
        node.disk_may_refuse = True
        for _ in range(self.rng.randint(1, MOST_REFUSALS)):
            action, error = self.rng.choice(REFUSED), self.rng.choice(REFUSALS)
            node.disk.fail_next(action, PARTITION_FILES, message="refused", error=error)
            self.cluster.loop.note(f"REFUSAL {node.name} {action} {error.__name__}")
        self._later(self._duration(), self._end_refusals, node_id)

    def _end_refusals(self, node_id: int) -> None:
        node = self.cluster.nodes[node_id]
        if node.disk.capacity_bytes < PLENTY_BYTES:  # it has become full since, between two refusals; its end mends all
            return
        node.disk.mend()
        if node.is_running and self._may_be_offline(node):
            self.cluster.kill(node_id)
        node.disk_may_refuse = False
        self.cluster.start(node_id)

    @staticmethod
    def _may_be_offline(node: SimulatedNode) -> bool:
        """A log of it. One that is starting may have left out a log already, and has nothing yet that says so."""
        if not is_serving(node) or node.broker is None:
            return True
        logs = node.broker.logs
        return bool(logs.offline) or any(log.failed for log in logs.logs.values())

    def _mend(self, node_id: int) -> None:
        node = self.cluster.nodes[node_id]
        node.disk.capacity_bytes = PLENTY_BYTES
        node.disk.mend()
        if node.is_running:
            self.cluster.kill(node_id)
        node.disk_may_refuse = False
        self.cluster.start(node_id)

    def _slow_disk(self, node_id: int) -> None:
        """Flushes of the quorum take longer in their thread; a flush or write of the broker holds up its whole loop."""
        node = self.cluster.nodes[node_id]
        node.slow_disk_s = self.rng.choice((0.0, 0.01, 0.1, 0.5))
        self.cluster.loop.note(f"SLOW DISK {node.name} {node.slow_disk_s}")
        self._later(self._duration(), setattr, node, "slow_disk_s", 0.0)

    def _die_in_write(self, node_id: int) -> None:
        """kill -9 in the n-th operation from now: an append is in the file in part, anything else has not begun."""
        node = self.cluster.nodes[node_id]
        left = self.rng.randint(1, MOST_OPERATIONS)

        def before(action: str, path: str, write: Write | None) -> None:
            nonlocal left
            left -= 1
            if left > 0 or node.process is None:
                return
            node.disk.before_operation = None
            self.cluster.loop.note(f"DIES {node.process} in {action} {path}")
            if write is not None:
                write(self.rng.random())
            self.cluster.kill(node_id)
            self._later(self._duration(), self.cluster.start, node_id)
            raise ProcessDied

        node.disk.before_operation = before
