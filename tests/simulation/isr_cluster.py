"""Some brokers with one partition, a model controller, clients and faults, on virtual time and from one seed.

The partitions, their machines and the purgatory are the real ones. Every invariant of ARCHITECTURE.md, What always holds, that
concerns one partition is checked after each event; a breach raises `Violation` (or an AssertionError of the machines
themselves).
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from barnabas.log.replication.effects import (
    ChangeLog,
    Effect,
    FlushLog,
    HighWatermarkAdvanced,
    IsrAnswer,
    LeadershipLost,
    LogEndAdvanced,
    LogFlushed,
    PartitionAssignment,
    ProposeIsr,
    Resign,
    ResumeFetching,
    StartFetching,
)
from barnabas.log.replication.follower import FetchAnswer, FetchPosition
from barnabas.log.replication.leading import ACKS_ALL
from barnabas.log.replication.partition import Partition
from barnabas.log.vocabulary.errors import BarnabasError, CorruptRecordError, ErrorCode, OffsetOutOfRangeError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.logs.purgatory import DelayedFetch, DelayedProduce, Operation, Purgatory, ReadUpTo

from .isr_committed import CommittedRecords
from .isr_controller import ModelController
from .isr_log import RECORD, MemoryLog, Value, batch
from .isr_scenario import Scenario, Violation

TP = TopicPartition("t", 0)
CONTROLLER, CLIENT = -10, -11
FETCH_BYTES = 20 * RECORD.size
LAG_MS = 800
CALL_TIMEOUT_S = 0.4
FAULTS = ("kill", "power", "power_all", "rot", "pause", "cut", "one_way", "isolate")


@dataclass(eq=False)
class SimBroker:
    node_id: int
    log: MemoryLog
    partition: Partition
    purgatory: Purgatory
    is_up: bool = True
    is_paused: bool = False
    incarnation: int = 0
    broker_epoch: int = 1
    lost_data: bool = False
    metadata_offset: int = 0
    registered_offset: int = 0
    fetch_sent_s: float = -1.0
    asked: FetchPosition | None = None
    inbox: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = field(default_factory=list)
    is_flushing: bool = False
    is_flush_wanted: bool = False
    seen_epoch: int = -1
    seen_high_watermark: int = 0


class IsrCluster:
    fetch_bytes = FETCH_BYTES

    def __init__(self, seed: int, scenario: Scenario | None = None) -> None:
        self.scenario = scenario or Scenario()
        self.rng = rng = Random(seed)
        self.now_s = 0.0
        self.events = 0
        self.trace = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = 0
        # Swarm testing: each seed turns faults on and off and weighs the others.
        self.loss = rng.choice([0.0, 0.02, 0.2])
        self.duplication = rng.choice([0.0, 0.05, 0.3])
        self.latency_s = rng.choice([0.001, 0.01, 0.1])
        self.flush_s = rng.choice([0.001, 0.02, 0.2])
        self.fault_weights = {kind: rng.random() if rng.random() < 0.6 else 0.0 for kind in FAULTS}
        if self.scenario.faults:
            self.fault_weights = {kind: float(kind in self.scenario.faults) for kind in FAULTS}
        if not any(self.fault_weights.values()):
            self.fault_weights["kill"] = 1.0
        flush = self.scenario.flush_first
        self.flush_first = rng.random() < 0.5 if flush is None else flush
        self.node_count = self.scenario.node_count or rng.choice([3, 3, 3, 5])
        self.cuts: set[tuple[int, int]] = set()
        self.is_healed = False
        self.rotten = 0  # records so far
        self.damaged: set[int] = set()  # has or had bit rot, and has not been back in the ISR with a sound log
        self.dirty: set[int] = set()  # lost data and have not been back in the ISR
        self.appended: dict[tuple[int, int], int] = {}
        self.oracle = CommittedRecords(self.describe)
        self.acked: dict[Value, int] = {}
        self.outstanding: list[Value | None] = [None, None]
        self.sequences = [0, 0]
        self.controller = ModelController(
            rng, self.node_count, self.scenario.min_isr, self.scenario.bugs, self.scenario.added
        )
        self.brokers = [self._new_broker(node_id) for node_id in range(self.node_count)]
        for broker in self.brokers:
            self.at(rng.random() * 0.05, self._tick, broker, broker.incarnation)
        self.at(0.01, self._controller_tick)
        self.at(0.02, self._client_tick, 0)
        self.at(0.03, self._client_tick, 1)
        self.at(0.5, self._fault)
        self.publish()

    def _new_broker(self, node_id: int) -> SimBroker:
        log = self._new_log(node_id)
        partition = self.scenario.partition_class(log, node_id, replica_lag_time_max_ms=LAG_MS)
        return SimBroker(node_id, log, partition, Purgatory(lambda _: partition))

    def _new_log(self, node_id: int) -> MemoryLog:
        own = self.scenario.min_isr_of_brokers
        log = MemoryLog(TP, min_insync_replicas=self.scenario.min_isr if own is None else own)
        if self.flush_first:
            log.config.flush_messages = 1
        log.appended_hashes = self.appended
        return log

    @property
    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    # --- the machine -------------------------------------------------------------------------------------------------

    def at(self, delay_s: float, action: Callable[..., None], *arguments: object) -> None:
        self._order += 1
        heapq.heappush(self._queue, (self.now_s + delay_s, self._order, action, arguments))

    def send(self, source: int, target: int, action: Callable[..., None], *arguments: object) -> None:
        if (source, target) in self.cuts or (not self.is_healed and self.rng.random() < self.loss):
            return
        for _ in range(2 if self.rng.random() < self.duplication else 1):
            delay_s = self.latency_s * (0.2 + self.rng.expovariate(1))
            self.at(delay_s, self._deliver, source, target, action, arguments)

    def _deliver(self, source: int, target: int, action: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if (source, target) in self.cuts:
            return
        if target < 0:
            action(*arguments)
            return
        broker = self.brokers[target]
        if broker.is_up and broker.is_paused:
            broker.inbox.append((source, target, action, arguments))
        elif broker.is_up:
            action(broker, *arguments)

    def run(self, events: int) -> None:
        queue = self._queue
        for _ in range(events):
            self.now_s, order, action, arguments = heapq.heappop(queue)
            self.events += 1
            action(*arguments)
            for broker in self.brokers:
                self._check_broker(broker)
            self.trace = hash((self.trace, self.now_s, order, len(self.oracle.committed), self.controller.offset))

    def heal_and_finish(self, within_s: float = 25.0) -> None:
        """The last fault is over: within the bound everybody is in sync again and new records are acknowledged."""
        self.is_healed = True
        self.cuts.clear()
        for broker in self.brokers:
            if broker.is_paused:
                self._resume(broker, broker.incarnation)
        deadline_s = self.now_s + within_s
        acked_before = len(self.acked)
        while self.now_s < deadline_s:
            self.run(50)
            whole = self.controller.isr == set(self.controller.replicas)
            whole &= not any(broker.log.damage.rotten for broker in self.brokers)
            if whole and len(self.acked) >= acked_before + 4:
                break
        else:
            raise Violation(f"no progress {within_s} s after the last fault: {self.describe()}")
        leader = self.brokers[self.controller.leader]
        for value, offset in self.acked.items():
            if leader.log.records[offset][1] != value or offset in leader.log.damage.rotten:
                raise Violation(f"acknowledged {value} is not at {offset}")

    def describe(self) -> str:
        control = self.controller
        head = f"t={self.now_s:.2f} leader {control.leader} e{control.leader_epoch} pe{control.partition_epoch}"
        brokers = "; ".join(f"{b.node_id}{'' if b.is_up else ' down'} {b.partition}" for b in self.brokers)
        return f"{head} isr {control.isr} elr {control.elr} fenced {control.fenced} | {brokers}"

    def _check_broker(self, broker: SimBroker) -> None:
        leading = broker.partition.role.leader_state
        if leading is None or not broker.is_up:
            return
        if leading.leader_epoch != broker.seen_epoch:
            me = (broker.node_id, broker.incarnation)
            self.oracle.check_new_leader(me, broker.log, leading.leader_epoch)
            broker.seen_epoch, broker.seen_high_watermark = leading.leader_epoch, 0
        high_watermark = broker.log.high_watermark
        if high_watermark < broker.seen_high_watermark:
            raise Violation(f"high watermark of {broker.node_id} went back to {high_watermark}: {self.describe()}")
        if high_watermark > broker.seen_high_watermark or leading.high_watermark != high_watermark:
            broker.seen_high_watermark = high_watermark
            self.oracle.note_committed(broker.node_id, broker.log, leading.leader_epoch)
            electable = (self.controller.isr | self.controller.elr) - self.dirty - self.damaged
            self.oracle.check_electable({node_id: self.brokers[node_id].log for node_id in electable})

    # --- controller --------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        assignment = self.controller.assignment(TP)
        for node_id in self.controller.replicas:
            self.send(CONTROLLER, node_id, self._on_metadata, self.controller.offset, assignment)

    def _controller_tick(self) -> None:
        self.controller.expire_sessions(self.now_s)
        self._forgive()
        self.publish()
        self.at(0.3, self._controller_tick)

    def _on_heartbeat(self, node_id: int, broker_epoch: int, incarnation: int, lost_data: bool) -> None:
        if broker_epoch == 0:
            epoch, offset = self.controller.register(node_id, incarnation, lost_data, self.now_s)
            self.send(CONTROLLER, node_id, self._on_registered, incarnation, epoch, offset)
        elif self.controller.heartbeat(node_id, broker_epoch, self.now_s):
            self.publish()

    def _on_proposal(self, node_id: int, broker_epoch: int, proposal: ProposeIsr) -> None:
        before = self.controller.offset
        answer = self.controller.alter_partition(node_id, broker_epoch, proposal)
        self.send(CONTROLLER, node_id, self._on_isr_answer, proposal, answer)
        if self.controller.offset != before:
            self._forgive()
            self.publish()

    def _forgive(self) -> None:
        """A broker that lost data has it all again once its new incarnation is in the ISR."""
        for node_id in self.dirty & self.controller.isr:
            if self.controller.incarnations.get(node_id) == self.brokers[node_id].incarnation:
                self.dirty.discard(node_id)
        self.damaged -= {node for node in self.controller.isr if not self.brokers[node].log.damage.rotten}

    # --- brokers -----------------------------------------------------------------------------------------------------

    def _on_registered(self, broker: SimBroker, incarnation: int, broker_epoch: int, offset: int) -> None:
        if incarnation == broker.incarnation and broker.broker_epoch == 0:
            broker.broker_epoch, broker.registered_offset = broker_epoch, offset

    def _on_metadata(self, broker: SimBroker, offset: int, assignment: PartitionAssignment) -> None:
        """In order, as the metadata feed is; and nothing from before our own registration."""
        if offset <= broker.metadata_offset or broker.broker_epoch == 0 or offset < broker.registered_offset:
            return
        broker.metadata_offset = offset
        change = broker.partition.make_leader if assignment.leader == broker.node_id else broker.partition.make_follower
        self._perform(broker, change(assignment, self.now_ms))

    def _on_isr_answer(self, broker: SimBroker, proposal: ProposeIsr, answer: IsrAnswer) -> None:
        self._perform(broker, broker.partition.leading.isr_answered(proposal, answer, self.now_ms))

    def _isr_time_out(self, broker: SimBroker, incarnation: int, proposal: ProposeIsr) -> None:
        if broker.incarnation == incarnation and broker.is_up:
            self._perform(broker, broker.partition.leading.isr_unanswered(proposal, self.now_ms))

    def _tick(self, broker: SimBroker, incarnation: int) -> None:
        if broker.incarnation != incarnation:
            return
        self.at(0.1, self._tick, broker, incarnation)
        if not broker.is_up or broker.is_paused:
            return
        heartbeat = (broker.node_id, broker.broker_epoch, broker.incarnation, broker.lost_data)
        self.send(broker.node_id, CONTROLLER, self._on_heartbeat, *heartbeat)
        if self.rng.random() < 0.1:
            self._flush(broker)  # upkeep
        if self.rng.random() < 0.1:
            broker.log.damage.verify(0, max_bytes=1 << 30)  # scrub
        self._perform(broker, broker.partition.leading.check_isr(self.now_ms))
        self._perform(broker, broker.partition.repair.resign_if_damaged())
        self._answer_all(broker, broker.purgatory.expire(self.now_ms))
        if broker.partition.role.is_follower and self.now_s - broker.fetch_sent_s > CALL_TIMEOUT_S:
            self._fetch(broker)

    def _perform(self, broker: SimBroker, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case ProposeIsr():
                    self.send(
                        broker.node_id, CONTROLLER, self._on_proposal, broker.node_id, broker.broker_epoch, effect
                    )
                    self.at(CALL_TIMEOUT_S, self._isr_time_out, broker, broker.incarnation, effect)
                case HighWatermarkAdvanced() | LogEndAdvanced() | LogFlushed() | LeadershipLost():
                    self._answer_all(broker, broker.purgatory.check(TP))
                case StartFetching() | ResumeFetching():
                    self._fetch(broker)
                case FlushLog():
                    self._flush(broker)
                case ChangeLog():  # it takes a while, and happens at some moment of it
                    taken_s = self.flush_s * self.rng.expovariate(1)
                    self.at(taken_s * self.rng.random(), self._change_log, broker, broker.incarnation, effect)
                    self.at(taken_s, self._on_log_changed, broker, broker.incarnation, effect)
                case Resign():
                    facts = (broker.node_id, broker.incarnation, broker.broker_epoch, effect.leader_epoch)
                    self.send(broker.node_id, CONTROLLER, self._on_resign, *facts)

    def _change_log(self, broker: SimBroker, incarnation: int, effect: ChangeLog) -> None:
        if incarnation == broker.incarnation:
            effect.change.perform()

    def _on_log_changed(self, broker: SimBroker, incarnation: int, effect: ChangeLog) -> None:
        if incarnation == broker.incarnation:
            told = broker.partition.log_changed(effect.change, now_ms=self.now_ms, wall_ms=self.now_ms)
            self._perform(broker, told)

    def _flush(self, broker: SimBroker) -> None:
        """A flush takes time and covers the data present when it began; a request during a flush waits for the next one."""
        broker.is_flush_wanted = broker.is_flushing
        if broker.is_flushing:
            return
        broker.is_flushing = True
        began = (broker.incarnation, broker.log.log_end_offset, broker.log.truncations)
        self.at(self.flush_s * self.rng.expovariate(1), self._on_disk, broker, *began)

    def _on_resign(self, node_id: int, incarnation: int, broker_epoch: int, leader_epoch: int) -> None:
        if self.controller.resign(node_id, broker_epoch, leader_epoch):
            self.send(CONTROLLER, node_id, self._on_resigned, incarnation, leader_epoch)
            self.publish()

    def _on_resigned(self, broker: SimBroker, incarnation: int, leader_epoch: int) -> None:
        if incarnation == broker.incarnation:
            self._perform(broker, broker.partition.repair.resigned(leader_epoch))

    def _on_disk(self, broker: SimBroker, incarnation: int, end_offset: int, truncations: int) -> None:
        if incarnation != broker.incarnation:
            return
        if truncations == broker.log.truncations:
            broker.log.recovery_point = max(broker.log.recovery_point, end_offset)
        self._deliver(broker.node_id, broker.node_id, self._on_flushed, ())

    def _on_flushed(self, broker: SimBroker) -> None:
        broker.is_flushing = False
        self._perform(broker, broker.partition.flushed(self.now_ms))
        if broker.is_flush_wanted:
            self._flush(broker)

    def _answer_all(self, broker: SimBroker, operations: list[Operation]) -> None:
        for operation in operations:
            if isinstance(operation, DelayedProduce):
                if operation.errors[TP] == ErrorCode.NONE:
                    self.send(broker.node_id, CLIENT, self._on_ack, *cast(tuple[Value, int], operation.token))
            else:
                node_id, arguments = cast(tuple[int, tuple[Any, ...]], operation.token)
                self._answer_fetch(broker, node_id, *arguments, is_first_read=False)

    # --- replication -------------------------------------------------------------------------------------------------

    def _is_held_back(self, broker: SimBroker) -> bool:
        return not self.is_healed and broker.node_id >= self.node_count - self.scenario.added

    def _fetch(self, broker: SimBroker) -> None:
        if self._is_held_back(broker):
            return
        position = broker.partition.following.next_fetch()
        if position is not None:
            broker.fetch_sent_s, broker.asked = self.now_s, position
            self.send(
                broker.node_id,
                position.leader,
                self._on_fetch,
                broker.node_id,
                broker.incarnation,
                broker.broker_epoch,
                position,
            )

    def _on_fetch(
        self, leader: SimBroker, node_id: int, incarnation: int, broker_epoch: int, position: FetchPosition
    ) -> None:
        self._answer_fetch(leader, node_id, incarnation, broker_epoch, position, is_first_read=True)

    def _answer_fetch(
        self,
        leader: SimBroker,
        node_id: int,
        incarnation: int,
        broker_epoch: int,
        position: FetchPosition,
        *,
        is_first_read: bool,
    ) -> None:
        effects: list[Effect] = []
        try:
            read, effects = leader.partition.leading.read_for_follower(
                node_id,
                broker_epoch=broker_epoch,
                offset=position.offset,
                max_bytes=self.fetch_bytes,
                current_leader_epoch=position.leader_epoch,
                last_fetched_epoch=position.last_fetched_epoch,
                now_ms=self.now_ms,
                is_first_read=is_first_read,
            )
        except BarnabasError as error:
            answer = FetchAnswer(error=error.code)
        else:
            answer = FetchAnswer(
                error=read.error,
                records=read.records if isinstance(read.records, bytes) else read.records.read(),
                high_watermark=read.high_watermark,
                log_start_offset=read.log_start_offset,
                diverging_epoch=read.diverging_epoch,
                diverging_end_offset=read.diverging_end_offset,
            )
            if is_first_read and not read.records and not read.error and read.diverging_end_offset < 0:
                parked = DelayedFetch(
                    token=(node_id, (incarnation, broker_epoch, position)),
                    client=node_id,
                    timeout_ms=100,
                    min_bytes=1,
                    read_up_to=ReadUpTo.LOG_END,
                    offsets={TP: (position.offset, leader.partition.leader_epoch)},
                )
                leader.purgatory.forget_client(node_id)
                if leader.purgatory.park(parked, self.now_ms):
                    self._perform(leader, effects)
                    return
        self.send(leader.node_id, node_id, self._on_fetched, incarnation, position, answer)
        self._perform(leader, effects)

    def _on_fetched(self, broker: SimBroker, incarnation: int, position: FetchPosition, answer: FetchAnswer) -> None:
        if incarnation != broker.incarnation:
            return  # connections die with the process
        try:
            effects = broker.partition.following.fetched(position, answer, self.now_ms)
        except (OffsetOutOfRangeError, CorruptRecordError):
            return  # what the log refuses is fetched again with the next tick
        self._perform(broker, effects)
        if answer.error == ErrorCode.NONE and position == broker.asked:  # one answer, one next fetch
            self._fetch(broker)

    # --- clients -----------------------------------------------------------------------------------------------------

    def _client_tick(self, client: int) -> None:
        if self.outstanding[client] is None:
            self.sequences[client] += 1
            self.outstanding[client] = (client, self.sequences[client])
        guess = self.controller.leader if self.rng.random() < 0.8 else self.rng.randrange(self.node_count)
        if guess >= 0:
            self.send(CLIENT, guess, self._on_produce, self.outstanding[client])
        if self.rng.random() < 0.3:
            self.send(
                CLIENT,
                self.rng.randrange(self.node_count),
                self._on_consume,
                self.rng.randrange(len(self.oracle.committed) + 3),
            )
        self.at(0.02 + self.rng.random() * 0.05, self._client_tick, client)

    def _on_produce(self, broker: SimBroker, value: Value) -> None:
        try:
            info, required_offset, effects = broker.partition.leading.append(
                batch(value), acks=ACKS_ALL, now_ms=self.now_ms
            )
        except BarnabasError:
            return
        if info.duplicate and broker.log.records[info.last_offset][1] != value:
            return  # an older sequence than the last
        produce = DelayedProduce(token=(value, info.last_offset), client=CLIENT, timeout_ms=2_000)
        produce.wait_for(TP, required_offset=required_offset, leadership=broker.partition.leadership)
        if not broker.purgatory.park(produce, self.now_ms) and produce.errors[TP] == ErrorCode.NONE:
            self.send(broker.node_id, CLIENT, self._on_ack, value, info.last_offset)
        self._perform(broker, effects)

    def _on_ack(self, value: Value, offset: int) -> None:
        if offset >= len(self.oracle.committed) or self.oracle.committed[offset] != value:
            raise Violation(f"acknowledged {value} at {offset}, which is not committed there: {self.describe()}")
        self.acked[value] = offset
        if self.outstanding[value[0]] == value:
            self.outstanding[value[0]] = None

    def _on_consume(self, broker: SimBroker, offset: int) -> None:
        try:
            read = broker.partition.reads.read_for_consumer(
                offset, max_bytes=self.fetch_bytes, allow_follower=self.rng.random() < 0.5
            )
        except BarnabasError:
            return
        self.oracle.check_read(bytes(read.records), f"broker {broker.node_id}")  # type: ignore[arg-type]

    # --- faults ------------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        if self.is_healed:
            return
        kind = self.rng.choices(FAULTS, [self.fault_weights[name] for name in FAULTS])[0]
        at_leader = self.controller.leader >= 0 and self.rng.random() < 0.5
        broker = self.brokers[self.controller.leader] if at_leader else self.rng.choice(self.brokers)
        if kind in ("kill", "power") and broker.is_up:
            self._crash(broker, kind == "power")
        elif kind == "power_all":
            for other in self.brokers:
                if other.is_up:
                    self._crash(other, self.flush_first)
        elif kind == "rot":
            self._rot(broker)
        elif kind == "pause" and broker.is_up and not broker.is_paused:
            broker.is_paused = True
            self.at(self.rng.choice([0.5, 2, 6]), self._resume, broker, broker.incarnation)
        else:
            self._cut(kind, broker.node_id)
        self.at(self.rng.expovariate(1 / self.rng.choice([0.2, 1, 3])), self._fault)

    def _rot(self, broker: SimBroker) -> None:
        """A record changes on one disk, and not on the others': every replica that is in sync has it.

        It counts as a lossy crash, of which the promise covers min.insync.replicas - 1 at a time: the replica gives up its log
        from there on.
        """
        others = self.controller.isr - {broker.node_id}
        if len(self.dirty | self.damaged | {broker.node_id}) > max(self.scenario.min_isr - 1, 1):
            return
        log = broker.log
        if any(other.log.damage.rotten for other in self.brokers) or len(others) < 1 or not log.high_watermark:
            return
        offset = self.rng.randrange(log.high_watermark)
        if all(self.brokers[other].log.log_end_offset > offset for other in others):
            log.damage.rotten.add(offset)
            self.damaged.add(broker.node_id)
            self.rotten += 1

    def _cut(self, kind: str, node_id: int) -> None:
        others = [other for other in range(self.node_count) if other != node_id]
        cuts: set[tuple[int, int]] = set()
        if kind in ("cut", "one_way"):
            other = self.rng.choice([*others, CONTROLLER])
            cuts = {(node_id, other)} | ({(other, node_id)} if kind == "cut" else set())
        elif kind == "isolate":
            targets = [*others, CONTROLLER] if self.rng.random() < 0.5 else others
            cuts = {(node_id, other) for other in targets} | {(other, node_id) for other in targets}
        self.cuts |= cuts
        self.at(self.rng.random() * 4, self.cuts.difference_update, cuts)

    def _resume(self, broker: SimBroker, incarnation: int) -> None:
        """A zombie wakes up with everything that queued in its sockets."""
        if broker.incarnation != incarnation:
            return
        broker.is_paused = False
        inbox, broker.inbox = broker.inbox, []
        for message in inbox:
            self.at(0.0001, self._deliver, *message)

    def _crash(self, broker: SimBroker, is_power_loss: bool) -> None:
        """Without flush before the acknowledgement the promise covers min.insync.replicas - 1 lossy crashes at a
        time."""
        if is_power_loss and not self.flush_first:
            if len(self.dirty | self.damaged | {broker.node_id}) > self.scenario.min_isr - 1:
                is_power_loss = False
            else:
                self.dirty.add(broker.node_id)
        broker.is_up, broker.is_paused, broker.inbox = False, False, []
        broker.incarnation += 1
        broker.is_flushing = broker.is_flush_wanted = False
        # A broker cannot know whether anything was lost; only that it may have been.
        broker.lost_data = is_power_loss or (broker.lost_data and broker.broker_epoch == 0)
        self._crash_log(broker, is_power_loss)
        self.at(self.rng.choice([0.05, 0.5, 3]), self._restart, broker)

    def _crash_log(self, broker: SimBroker, is_power_loss: bool) -> None:
        log = broker.log
        log.end_change()  # or never begun: its thread died with the process
        if is_power_loss:
            log.power_cut(self.rng.randint(log.recovery_point, log.log_end_offset))
        log.high_watermark = log.high_watermark if self.rng.random() < 0.5 else 0  # the checkpoint may be old

    def _restart(self, broker: SimBroker) -> None:
        partition = self.scenario.partition_class(broker.log, broker.node_id, replica_lag_time_max_ms=LAG_MS)
        broker.partition, broker.purgatory = partition, Purgatory(lambda _: partition)
        broker.is_up, broker.broker_epoch, broker.metadata_offset, broker.registered_offset = True, 0, 0, 0
        broker.seen_epoch = -1
        self.at(0.01, self._tick, broker, broker.incarnation)


def run_seed(seed: int, scenario: Scenario | None = None, *, events: int = 1_500) -> IsrCluster:
    """Raises what went wrong. The cluster that comes back has its counts and its trace."""
    cluster = IsrCluster(seed, scenario)
    cluster.run(events)
    cluster.heal_and_finish()
    return cluster
