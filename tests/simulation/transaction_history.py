"""One history of transactions: whole brokers, transactors in both versions of the protocol, faults. `run_transactions(seed)`.

On top of everything that `history` judges:

- readers of committed records get all of a committed transaction and nothing of another one, each input has one output, and the
  stable offset of an input is never older than what was acknowledged (`checkers.transactions`);
- after each event, the last stable offset of a leader has not gone back, and its open transactions are known to the coordinator;
- at the end, no transaction is open or decided, each last stable offset is the end of its log, each log has one marker behind the
  records of one transaction, and what each coordinator works with is what the quorum has.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from barnabas.kraft.group_state.group_slots import GroupSlots, slot_of
from barnabas.kraft.metadata.records import TransactionRecord
from barnabas.log.format.record_batch import iter_headers
from barnabas.log.format.record_codec import iter_records, read_marker
from barnabas.log.records.aborted import AbortedFilter
from barnabas.log.replication.partition import Partition
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode, error_for
from barnabas.net.testing.simulation.cluster import SimulatedNode, is_serving, voter_machine
from barnabas.net.testing.simulation.fault_room import FaultPlan
from barnabas.net.testing.simulation.process import NOBODY, SimulatedProcess
from barnabas.net.wire.protocol.requests import READ_COMMITTED, FetchPartition, FetchRequest

from .checkers.transactions import TransactionChecker
from .checkers.violation import Violation
from .faults import WEIGHTS
from .history import SETTLE_S, START_LIMIT_S, History, Result, Scenario, run_history
from .prepared_driver import Driver, Ledger, is_over_for
from .transactors import ASK_S, GROUP, INPUT, INPUTS, OUTPUT, OUTPUTS, TIMEOUT_MS, Transactor
from .workload import Client

COPIES = (0, 0, 1, 2)  # the input of each transactor: two share one, and fence each other
DECIDED_LIMIT_S = TIMEOUT_MS / 1000 + 5.0  # after the last fault, when all brokers are up
KILLED_BETWEEN = 0.06  # coordinators, of all decisions
COPY_LIMIT_S = 20.0
STOPPED_S = 12.0  # longer than the move of a group and a copy
KINDS = tuple(kind for kind in WEIGHTS if kind not in ("recreate", "compact", "wipe", "folder_failure"))


@dataclass(slots=True)
class _Led:
    """What was last seen of a partition on its leader."""

    leadership: int
    last_stable_offset: int = 0
    opened: frozenset[int] = field(default_factory=frozenset)  # producer ids


class TransactionHistory(History):
    def __init__(self, seed: int, scenario: Scenario, trace_line: Callable[[str], None] | None) -> None:
        super().__init__(seed, scenario, trace_line)
        self.checker = TransactionChecker()
        self.transactors: list[Transactor] = []
        self.ledger: Ledger | None = None
        self.positions = [0] * OUTPUTS  # of the reader of committed records
        self.prepared_takeovers = 0  # coordinators that found a decided transaction
        self._led: dict[tuple[SimulatedProcess, int], _Led] = {}
        self._hosts: set[SimulatedProcess] = set()  # whose slots tell of their start
        self._tasks: list[asyncio.Task[None]] = []
        self._dice = Random(f"{seed}/decided")
        self._decided: dict[str, int] = {}  # transactional id -> quorum index at which it was seen decided last
        self._looked_at = 0  # quorum index
        # The newest committed state that any node has had: the node that applied it first may be killed before the others do.
        self._seen: tuple[int, list[TransactionRecord]] = (0, [])

    def _draw_plan(self) -> FaultPlan:
        return FaultPlan.draw(self.rng, {kind: WEIGHTS[kind] for kind in KINDS})

    # --- after each event ---------------------------------------------------------------------------------------------

    def _observe(self, ran: list[SimulatedProcess]) -> None:
        super()._observe(ran)
        for process in ran:
            node = self._nodes[process.name]
            if node.process is process and is_serving(node):
                self._watch(node, process)
        self._maybe_kill_between()

    def _watch(self, node: SimulatedNode, process: SimulatedProcess) -> None:
        broker: Any = node.broker
        for number in range(OUTPUTS):
            partition = broker.replication.manager._partitions.get((OUTPUT, number))
            if partition is None or not partition.role.is_leader or partition.log.is_changing:
                self._led.pop((process, number), None)
            else:
                self._watch_leader(process, number, partition)
        if process not in self._hosts and hasattr(broker, "slots"):
            self._hosts.add(process)
            broker.slots.observe(self)

    def started(self, slot: Any) -> None:
        self.prepared_takeovers += bool(slot.machine.transactions.undecided_markers())

    def settled(self, slot: Any, records: Any) -> None:
        """What is decided in the course of a term is no takeover."""

    def _maybe_kill_between(self) -> None:
        """Between the decision and its markers there is little time: at times a coordinator dies just then."""
        groups = self._newest_groups()
        self._see(groups)
        if groups is None or groups.index == self._looked_at or not self.transactors or self.transactors[0].is_calm:
            return
        self._looked_at = groups.index
        for record in self._seen[1]:
            if not record.state.startswith("Prepare"):
                self._decided.pop(record.transactional_id, None)
            elif self._decided.setdefault(record.transactional_id, groups.index) == groups.index:
                self._strike(self.cluster.newest_image().slots[record.slot].coordinator)

    def _strike(self, node_id: int) -> None:
        if node_id < 0 or self._dice.random() >= KILLED_BETWEEN:
            return
        self.loop.call_later(self._dice.uniform(0.0, 0.01), self.cluster.kill, node_id, context=NOBODY)
        self.loop.call_later(self._dice.uniform(0.1, 2.0), self.cluster.start, node_id, context=NOBODY)

    def _watch_leader(self, process: SimulatedProcess, number: int, partition: Partition) -> None:
        log: Any = partition.log
        known = self._led.setdefault((process, number), _Led(partition.leadership))
        if known.leadership != partition.leadership:
            known = self._led[process, number] = _Led(partition.leadership)
        stable = log.last_stable_offset
        if stable < known.last_stable_offset:
            raise Violation(f"{process}: {OUTPUT}-{number} was stable up to {known.last_stable_offset}, now {stable}")
        known.last_stable_offset = stable
        opened = log.producers.transactions._opened
        if opened.keys() == known.opened:
            return
        added = opened.keys() - known.opened
        known.opened = frozenset(opened)
        newest = self.cluster.newest_image().partition(partition.topic_partition)
        if newest is not None and newest.leader_epoch == partition.leader_epoch:
            for producer_id in sorted(added):
                self._check_known(process, number, producer_id)

    def _check_known(self, process: SimulatedProcess, number: int, producer_id: int) -> None:
        """A partition has an open transaction only if the coordinator will write a marker there."""
        for record in self._transactions():
            if record.producer_id == producer_id and any(number in item.partitions for item in record.partitions):
                return
        raise Violation(
            f"{process}: {OUTPUT}-{number} has an open transaction of producer {producer_id} that its coordinator does not know: "
            f"{self._transactions()}"
        )

    def _transactions(self) -> list[TransactionRecord]:
        self._see(self._newest_groups())
        return self._seen[1]

    def _see(self, groups: GroupSlots | None) -> None:
        if groups is None or groups.index <= self._seen[0]:
            return
        names = (f"copier-{source}" for source in range(INPUTS))
        known = (groups.slot(slot_of(name)).transactions.get(name) for name in names)
        self._seen = (groups.index, [record for record in known if record is not None])

    def _state(self) -> str:
        told = [f"{it.client.name}: {it.told}" for it in self.transactors]
        return "\n  ".join([*told, *map(str, self._transactions()), super()._state()])

    def _newest_groups(self) -> GroupSlots | None:
        found: list[GroupSlots] = []
        for node in self.cluster.nodes:
            machine = voter_machine(node)
            if machine is not None:
                assert isinstance(machine.state.groups, GroupSlots)
                found.append(machine.state.groups)
        return max(found, key=lambda groups: groups.index, default=None)

    # --- the course ---------------------------------------------------------------------------------------------------

    async def _bring_up(self) -> None:
        for node in self.cluster.nodes:
            self.loop.call_later(self.rng.uniform(0, 0.3), self.cluster.start, node.node_id)
        await self._require(self._is_up, START_LIMIT_S, "the cluster did not come up")
        careful = {"min.insync.replicas": "2"}
        await self.workload.create_topics({"events": (1, 3, careful)})
        own = list(self.workload.partitions)
        await self.workload.create_topics({INPUT: (INPUTS, 3, careful), OUTPUT: (OUTPUTS, 3, careful)})
        self.workload.partitions = own

    async def run(self) -> None:
        rng = self.rng
        await self._bring_up()
        self._change_files()
        self.workload.start(producers=1, consumers=0, members=0, groups=(), admin=False)
        for number, source in enumerate(COPIES):
            client = self.workload.client(f"copier-{source}-{number}")
            transactor = Transactor(self.cluster, self.checker, client, Random(rng.getrandbits(64)), source=source)
            transactor.ledger = self.ledger
            self.transactors.append(transactor)
            self._run(transactor.run())
        if self.ledger is not None:
            driver = Driver(self.ledger, self.checker, self.workload.client("driver"), Random(rng.getrandbits(64)))
            self._run(driver.run())
        self._run(self._read_all(self.workload.client("reader")))
        self._run(self._audit(self.workload.client("auditor")))
        await self.faults.run(self.scenario.faults_s or rng.choice((4.0, 8.0)))
        self.faults.heal()
        await self._settle()

    def _run(self, work: Any) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    def _checked(self, condition: Callable[[], bool]) -> bool:
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()
        return super()._checked(condition)

    async def _settle(self) -> None:
        for transactor in self.transactors:
            transactor.is_calm = True
        if self.ledger is not None:
            self.ledger.is_calm = True
        await self._require(self._is_up, SETTLE_S, "not every broker was unfenced again")
        await self._give_back()
        await self._require(self._all_in_sync, SETTLE_S, "not every replica was in sync again")
        before = sum(transactor.counts["commits"] for transactor in self.transactors)
        await self._require(
            lambda: sum(transactor.counts["commits"] for transactor in self.transactors) > before + len(COPIES),
            SETTLE_S,
            "no transaction was committed after everything was healed",
        )
        for task in self._tasks[: len(self.transactors)]:
            task.cancel()
        await self._require(self._is_decided, DECIDED_LIMIT_S, "not every transaction came to its end")
        await self._require(self._is_read, SETTLE_S, "the reader did not come to the end")
        for task in self._tasks:
            task.cancel()
        await self.workload.stop()
        await self._compare("at the end")
        self._check_logs()
        self._check_working_copies()
        self.checker.check_end(await self._offsets())
        self._count()

    def _is_decided(self) -> bool:
        if any(
            record.state in ("Ongoing", "Prepared", "PrepareCommit", "PrepareAbort") for record in self._transactions()
        ):
            return False
        logs = [log for key, found in self._replicas() for _, log in found if log.topic_partition.topic == OUTPUT]
        return bool(logs) and all(log.last_stable_offset == log.log_end_offset for log in logs)

    def _is_read(self) -> bool:
        ends: dict[int, int] = {}
        for _, found in self._replicas():
            for _, log in found:
                if log.topic_partition.topic == OUTPUT:
                    number = log.topic_partition.partition
                    ends[number] = max(ends.get(number, 0), log.log_end_offset)  # of the leader: followers may lag
        return all(self.positions[number] >= end for number, end in ends.items())

    def _count(self) -> None:
        counts = self.workload.counts
        for transactor in self.transactors:
            for name, count in transactor.counts.items():
                counts[name] = counts.get(name, 0) + count
        counts |= self.ledger.counts if self.ledger is not None else {}
        counts |= {
            "transactions": len(self.checker.transactions),
            "shown": self.checker.reads,
            "prepared_takeovers": self.prepared_takeovers,
        }

    # --- readers ------------------------------------------------------------------------------------------------------

    async def _read_all(self, client: Client) -> None:
        while True:
            number = client.rng.randrange(OUTPUTS)
            try:
                await self._read(client, number)
            except (BarnabasError, TimeoutError):
                client.forget_leader((OUTPUT, number))
                await client.pause(0.01, 0.05)
            await client.pause(0.0, 0.03)
            if client.rng.random() < 0.01 and not self.transactors[0].is_calm:
                self.positions = [0] * OUTPUTS  # read everything again

    async def _read(self, client: Client, number: int) -> None:
        epoch, leader = await client.leader_of((OUTPUT, number))
        position = self.positions[number]
        item = FetchPartition(
            topic=OUTPUT,
            partition=number,
            fetch_offset=position,
            max_bytes=client.rng.choice((1, 500, 1 << 16)),
            current_leader_epoch=epoch,
        )
        request = FetchRequest(
            max_wait_ms=client.rng.choice((0, 50)),
            min_bytes=1,
            max_bytes=1 << 20,
            partitions=(item,),
            isolation_level=READ_COMMITTED,
        )
        answer = (await client.ask(leader, request)).partitions[0]
        if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise Violation(f"the reader is out of range at {position} of {OUTPUT}-{number}: {answer}")
        if answer.error:
            raise error_for(answer.error, answer.message)
        records = bytes(
            answer.records if isinstance(answer.records, (bytes, bytearray, memoryview)) else answer.records.read()
        )
        to_leave_out = AbortedFilter(answer.aborted)
        for header in iter_headers(records, verify_crc=True):
            is_left_out = to_leave_out.leaves_out(header, records)
            batch = records[header.position : header.position + header.size_bytes]
            for record in () if header.is_control else iter_records(batch):
                told = [int(part) for part in bytes(record.value or b"").split(b":")]
                place = (OUTPUT, number, header.base_offset)
                self.checker.read(told[0], told[1], told[2], place, is_left_out=is_left_out)
            if self.positions[number] == position:
                position = self.positions[number] = max(position, header.next_offset)

    async def _audit(self, client: Client) -> None:
        """Somebody else asks how far the inputs are done."""
        asker = Transactor(self.cluster, self.checker, client, Random(client.rng.getrandbits(64)), source=0)
        while True:
            source = client.rng.randrange(INPUTS)
            least = self.checker.committed_inputs.get(source, 0)
            await asker.committed_offset(source, least)
            await client.pause(0.0, 0.1)

    async def _offsets(self) -> dict[int, int]:
        """What the quorum has at the end."""
        groups = self._newest_groups()
        assert groups is not None
        state = groups.slot(slot_of(GROUP))
        if state.pending:
            left = list(state.pending.records(slot=0, coordinator_epoch=0))
            raise Violation(f"offsets of transactions are pending at the end: {left}")
        found = {source: state.offset(GROUP, (INPUT, source)) for source in range(INPUTS)}
        return {source: 0 if value is None else value[0] for source, value in found.items()}

    # --- the end ------------------------------------------------------------------------------------------------------

    def _check_logs(self) -> None:
        for _, found in self._replicas():
            for process, log in found:
                if log.topic_partition.topic == OUTPUT:
                    self.checker.check_log(f"{process} {log.topic_partition}", _batches(log))

    def _check_working_copies(self) -> None:
        groups = self._newest_groups()
        for node in self.cluster.nodes:
            broker: Any = node.broker
            for slot in broker.slots.slots():
                if slot.machine is not None and slot.machine.groups.state != groups.slot(slot.number):  # type: ignore[union-attr]
                    raise Violation(f"{node.process}: slot {slot.number} works with another state than the quorum's")


def _batches(log: Any) -> Iterator[tuple[int, int, int, list[int], bool | None]]:
    position = log.log_start_offset
    while position < log.log_end_offset:
        data = log.read(position, max_bytes=1 << 20, up_to_offset=log.log_end_offset).read()
        for header in iter_headers(data):
            batch = data[header.position : header.position + header.size_bytes]
            marker = read_marker(batch) if header.is_control else None
            numbers = (
                [] if marker is not None else [int(bytes(it.value or b"").split(b":")[0]) for it in iter_records(batch)]
            )
            is_commit = None if marker is None else marker.is_commit
            yield header.base_offset, header.producer_id, header.producer_epoch, numbers, is_commit
            position = header.next_offset


class CutOffHistory(TransactionHistory):
    """The coordinator of the group is cut off until the group moves, and clients reach it again before the other brokers do. A
    copier that cannot ask for stable offsets commits at the new one; its consumer still asks the former one."""

    async def run(self) -> None:
        await self._bring_up()
        client = self.workload.client("copier")
        copier = Transactor(self.cluster, self.checker, client, Random(self.rng.getrandbits(64)), source=0)
        copier.is_calm = True
        await self._copy(copier)
        await self._require(self._is_decided, DECIDED_LIMIT_S, "the transaction did not come to its end")
        former = await self._former_coordinator()
        pairs = await self._cut_off(former, client, GROUP)
        await self._copy(copier)
        self.cluster.world.mend(pairs[:2])
        await self._before_it_is_asked()
        self.workload.counts["former_answers"] = await copier.is_told_by(former)
        self.cluster.world.mend(pairs)
        await self.workload.stop()

    async def _former_coordinator(self) -> int:
        """The one that is cut off."""
        return self._coordinator(GROUP)

    async def _before_it_is_asked(self) -> None:
        """Its clients reach it again."""

    async def _cut_off(self, former: int, client: Client, name: str) -> list[tuple[str, str]]:
        """Return when the slot of the name has moved; the links that are cut, those of the client first."""
        pairs = self._cut_links(former, client.name)
        await self._require(lambda: self._coordinator(name) not in (former, -1), SETTLE_S, f"{name} did not move")
        return pairs

    def _cut_links(self, node_id: int, client: str) -> list[tuple[str, str]]:
        """Of a broker to the others and to a client, in both directions; those of the client first."""
        others = [node.name for node in self.cluster.nodes if node.node_id != node_id]
        pairs = [
            pair for other in (client, *others) for pair in ((f"node-{node_id}", other), (other, f"node-{node_id}"))
        ]
        for pair in pairs:
            self.cluster.world.cut(*pair)
        return pairs

    def _coordinator(self, name: str) -> int:
        return self.cluster.newest_image().slots[slot_of(name)].coordinator

    async def _copy(self, copier: Transactor) -> None:
        """In the first version of transactions, until one is committed."""
        before = self.checker.committed_inputs.get(copier.source, 0)
        async with asyncio.timeout(COPY_LIMIT_S):
            while self.checker.committed_inputs.get(copier.source, 0) == before:
                await copier.copy_once()


class CutOffDecisionHistory(CutOffHistory):
    """As above, with the coordinator of a transactional id: a transaction is prepared at the new one, and its driver asks the
    former one to commit it. That one knows an earlier producer, and must not say that this transaction is over."""

    async def run(self) -> None:
        await self._bring_up()
        client = self.workload.client("copier")
        copier = Transactor(self.cluster, self.checker, client, Random(self.rng.getrandbits(64)), source=0)
        if self.rng.random() < 0.7:  # else the former one knows no producer
            await self._copy(copier)
            await self._require(self._is_decided, DECIDED_LIMIT_S, "the transaction did not come to its end")
        former = self._coordinator(copier.transactional_id)
        pairs = await self._cut_off(former, client, copier.transactional_id)
        self.ledger = copier.ledger = Ledger()
        async with asyncio.timeout(COPY_LIMIT_S):
            while not any(record.state == "Prepared" for record in self._transactions()):
                await copier.copy_once(uses_v2=True)
        intent = self.ledger.intents[-1]
        self.cluster.world.mend(pairs[:2])
        self.workload.counts["former_answers"] = await is_over_for(client, intent, former)
        self.cluster.world.mend(pairs)
        await self.workload.stop()


class StoppedHistory(CutOffHistory):
    """The coordinator of the group, also the controller, is stopped (SIGSTOP) until the group has moved and its copier has
    committed again. What it is asked then waits in its sockets; when it goes on, it has heard of no successor."""

    async def _former_coordinator(self) -> int:
        former = await self._controller_with_the_group()
        self._resumed_s = self.loop.time() + STOPPED_S
        self.cluster.stall(former, STOPPED_S)
        return former

    async def _before_it_is_asked(self) -> None:
        await asyncio.sleep(max(0.0, self._resumed_s - self.loop.time() - self.rng.uniform(0, ASK_S)))

    async def _controller_with_the_group(self) -> int:
        """Stop controllers and coordinators in turn, until one broker is both."""
        while (controller := self.cluster.newest_image().controller_id) != self._coordinator(GROUP):
            coordinator = self._coordinator(GROUP)
            self.cluster.stall(self.rng.choice((controller, coordinator)), STOPPED_S)
            await asyncio.sleep(STOPPED_S)
            await self._require(self._is_up, SETTLE_S, "not every broker was unfenced again")
        return controller


class PreparedHistory(TransactionHistory):
    """Some transactions are prepared, and a driver decides them."""

    def __init__(self, seed: int, scenario: Scenario, trace_line: Callable[[str], None] | None) -> None:
        super().__init__(seed, scenario, trace_line)
        self.ledger = Ledger()

    def _is_decided(self) -> bool:
        assert self.ledger is not None
        return not any(self.ledger.undecided()) and super()._is_decided()


def run_transactions(
    seed: int, scenario: Scenario | None = None, *, trace_line: Callable[[str], None] | None = None
) -> Result:
    return run_history(seed, scenario, trace_line=trace_line, make=TransactionHistory)


def run_cut_off(
    seed: int, scenario: Scenario | None = None, *, trace_line: Callable[[str], None] | None = None
) -> Result:
    return run_history(seed, scenario or Scenario(brokers=3), trace_line=trace_line, make=CutOffHistory)


def run_stopped(
    seed: int, scenario: Scenario | None = None, *, trace_line: Callable[[str], None] | None = None
) -> Result:
    return run_history(seed, scenario or Scenario(brokers=3), trace_line=trace_line, make=StoppedHistory)


def run_cut_off_decision(
    seed: int, scenario: Scenario | None = None, *, trace_line: Callable[[str], None] | None = None
) -> Result:
    return run_history(seed, scenario or Scenario(brokers=3), trace_line=trace_line, make=CutOffDecisionHistory)


def run_prepared(
    seed: int, scenario: Scenario | None = None, *, trace_line: Callable[[str], None] | None = None
) -> Result:
    return run_history(seed, scenario, trace_line=trace_line, make=PreparedHistory)
