"""Coordinators of transactions under random failures, with partitions that are models: one seed, one history.

The real parts are the machines of the slots and the state in the quorum. Producers of both versions of the protocol write
transactions over partitions and commit an offset of a group in each; messages are lost, repeated and overtaken, coordinators and
partition leaders fail, producers sleep until they are zombies. `run` raises Violation when an invariant breaks:

- all or nothing: the records and the offset of a transaction have one outcome, and the one that its producer was told;
- a decided outcome never changes, whatever markers arrive;
- in the second version, a producer id with an epoch names at most one transaction;
- a stable offset is that of a committed transaction, and never older than the last one that was acknowledged;
- the coordinator knows every partition in which a transaction is open;
- the working copy of a coordinator equals the replayed state;
- after the last failure, every transaction ends.
"""

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.model.messages import CoordinatorResult
from barnabas.consumer_groups.offsets.transactional_offsets import Permit
from barnabas.consumer_groups.slot_coordinator import SlotCoordinator
from barnabas.consumer_groups.transactions.settings import TransactionSettings
from barnabas.kraft.group_state.group_slots import GroupSlots, slot_of
from barnabas.kraft.metadata.records import TransactionRecord
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    NotEnoughReplicasError,
    ProducerFencedError,
    TransactionAbortableError,
)
from barnabas.log.vocabulary.group_messages import OffsetToCommit
from barnabas.log.vocabulary.transaction_messages import (
    AddToTransactionRequest,
    EndTransactionRequest,
    InitTransactionsRequest,
    ProducerIdentity,
    TransactionalOffsetCommitRequest,
    TransactionState,
    TransactionTopic,
)

from .transaction_log_model import LOST, Done, Log, Token, Violation

TRANSACTIONAL_IDS = ("payments", "orders")  # each with a group of its own
PARTITIONS = 3
TIMEOUT_MS = 2_000
STEP_MS = 5
LATE_MS = 1_000  # of messages that arrive late: several transactions have passed meanwhile
FAULTY_STEPS = 1_500
QUIET_STEPS = 40_000
FATAL = (ProducerFencedError, InvalidProducerIdMappingError, InvalidProducerEpochError, InvalidTxnStateError)

Call = Callable[[Done], None]  # what a request does where it arrives
Actor = Generator[Call, Any, None]


class Host:
    """The coordinator of one slot: its machine, and the decisions that wait for the quorum."""

    def __init__(self, simulation: "TransactionSimulation", slot: int) -> None:
        self.simulation = simulation
        self.slot = slot
        self.epoch = 0
        self.waiting: list[tuple[CoordinatorResult[Any], Done]] = []
        self.take_over()

    def take_over(self) -> None:
        simulation = self.simulation
        self.epoch += 1
        simulation.quorum.on_slot_moved(self.slot, self.epoch)
        failed, self.waiting = self.waiting, []
        groups = GroupCoordinator(
            slot=self.slot,
            coordinator_epoch=self.epoch,
            records=simulation.quorum.records_of(self.slot),
            rng=random.Random(1),
            topics={"t": PARTITIONS},
            now_ms=simulation.now_ms,
        )
        self.machine = SlotCoordinator(groups=groups, settings=TransactionSettings(), now_ms=simulation.now_ms)
        for _, done in failed:
            done(LOST)
        for record in self.machine.transactions.undecided_markers():
            simulation.send_markers(self, record)

    def decide(self, decision: Callable[[SlotCoordinator], CoordinatorResult[Any]], done: Done) -> None:
        try:
            result = decision(self.machine)
        except BarnabasError as error:
            result = CoordinatorResult(records=(), response=error)
        self.simulation.decided(self, result)
        self.waiting.append((result, done))

    def commit(self) -> None:
        result, done = self.waiting.pop(0)
        quorum = self.simulation.quorum
        for record in result.records:
            if not quorum.replay(record, quorum.index + 1):
                raise Violation("a record of the current coordinator is void")
        if not self.waiting and self.machine.groups.state != quorum.slot(self.slot):
            raise Violation("the working copy differs from the replayed state")
        done(result.response)
        self.simulation.committed(self, result)

    def tick(self) -> None:
        deadline_ms = self.machine.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.simulation.now_ms:
            self.decide(lambda machine: machine.tick(self.simulation.now_ms), lambda _: None)


class TransactionSimulation:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1_000
        self.quorum = GroupSlots()
        self.logs = [Log() for _ in range(PARTITIONS)]
        self.tokens: list[Token] = []
        self.messages: list[Callable[[], None]] = []  # in flight: any may arrive next
        self.sleepers: list[tuple[int, Callable[[], None]]] = []
        self.last_producer_id = 0
        self.is_faulty = True
        self.names: dict[tuple[int, int], Token] = {}  # of transactions of the second version
        self.uses_v2 = {name: self.draw_version() for name in TRANSACTIONAL_IDS}
        self.acknowledged = dict.fromkeys(TRANSACTIONAL_IDS, -1)  # the newest offset whose commit was acknowledged
        self.running = dict.fromkeys(TRANSACTIONAL_IDS, 0)
        slots = {slot_of(name) for name in TRANSACTIONAL_IDS} | {slot_of(group_of(name)) for name in TRANSACTIONAL_IDS}
        self.hosts = {slot: Host(self, slot) for slot in sorted(slots)}

    def draw_version(self) -> bool:
        """Whether a transactional id uses the second version of the protocol."""
        return self.rng.random() < 0.5

    # --- running ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        for name in TRANSACTIONAL_IDS:
            self.start_producer(name)
        for _ in range(FAULTY_STEPS):
            self.step()
        self.is_faulty = False
        for _ in range(QUIET_STEPS):
            self.step()
            if self.is_settled():
                break
        else:
            raise Violation(
                f"not every transaction ends: {self.quorum.slot(slot_of(TRANSACTIONAL_IDS[0])).transactions}"
            )
        self.check_outcomes()

    def step(self) -> None:
        self.now_ms += STEP_MS
        rng = self.rng
        for host in self.hosts.values():
            self.step_host(host)
        for log in self.logs:
            if rng.random() < 0.5:
                log.replicate()
            if self.is_faulty and rng.random() < 0.004:
                log.elect()
        self.wake()
        for _ in range(2):
            if self.messages:
                self.messages.pop(rng.randrange(len(self.messages)))()
        if self.is_faulty and rng.random() < 0.003:
            self.start_producer(rng.choice(TRANSACTIONAL_IDS))
        self.check_open()
        if rng.random() < 0.1:
            self.read_offset(rng.choice(TRANSACTIONAL_IDS))

    def step_host(self, host: Host) -> None:
        host.tick()
        if host.waiting and self.rng.random() < 0.6:
            host.commit()
        if self.is_faulty and self.rng.random() < 0.004:
            for _ in range(self.rng.randrange(len(host.waiting) + 1)):
                host.commit()
            host.take_over()

    def wake(self) -> None:
        due = [work for at_ms, work in self.sleepers if at_ms <= self.now_ms]
        self.sleepers = [item for item in self.sleepers if item[0] > self.now_ms]
        for work in due:
            work()

    def is_settled(self) -> bool:
        known = [item for host in self.hosts.values() for item in self.quorum.slot(host.slot).transactions.values()]
        return not (
            self.messages
            or any(host.waiting for host in self.hosts.values())
            or any(log.waiting or any(item.token for item in log.producers.values()) for log in self.logs)
            or any(self.running.values())
            or any(TransactionState(item.state) is TransactionState.ONGOING for item in known)
            or any(TransactionState(item.state).is_decided for item in known)
            or any(self.quorum.slot(slot).pending for slot in self.hosts)
        )

    # --- messages -----------------------------------------------------------------------------------------------------

    def send(self, call: Call, answer: Done) -> None:
        """`call` happens at the receiver never, once or twice; the sender hears of it at most once."""
        heard: list[bool] = []

        def hear(value: Any) -> None:
            if not heard:
                heard.append(True)
                answer(value)

        def reply(value: Any) -> None:
            if self.is_faulty and self.rng.random() < 0.05:
                self.messages.append(lambda: hear(LOST))
            else:
                self.messages.append(lambda: hear(value))

        if self.is_faulty and self.rng.random() < 0.05:
            self.messages.append(lambda: hear(LOST))
            return
        self.messages.append(lambda: call(reply))
        if self.is_faulty and self.rng.random() < 0.05:
            self.messages.append(lambda: call(lambda _: None))

    def later(self, delay_ms: int, work: Callable[[], None]) -> None:
        self.sleepers.append((self.now_ms + delay_ms, work))

    # --- producers ----------------------------------------------------------------------------------------------------

    def start_producer(self, name: str) -> None:
        self.running[name] += 1
        self.resume(name, self.producer(name), None)

    def resume(self, name: str, actor: Actor, value: Any) -> None:
        try:
            call = actor.send(value)
        except StopIteration:
            self.running[name] -= 1
            return
        except FATAL:
            self.running[name] -= 1
            if self.is_faulty and not self.running[name]:
                self.start_producer(name)
            return
        self.send(call, lambda answer: self.resume(name, actor, answer))

    def producer(self, name: str) -> Actor:
        who: ProducerIdentity = yield from self.retried(lambda: self.initialize(name))
        while self.is_faulty:
            who = yield from self.transaction(name, who)

    def retried(self, make: Callable[[], Call]) -> Generator[Call, Any, Any]:
        while True:
            answer = yield make()
            if isinstance(answer, (*FATAL, TransactionAbortableError)):
                raise answer
            if not isinstance(answer, BarnabasError):
                return answer
            yield self.pause(self.rng.randrange(60))

    def pause(self, delay_ms: int) -> Call:
        return lambda done: self.later(delay_ms, lambda: done(None))

    def transaction(self, name: str, who: ProducerIdentity) -> Generator[Call, Any, ProducerIdentity]:
        token = Token(number=len(self.tokens), transactional_id=name, wants_commit=self.rng.random() < 0.6)
        self.tokens.append(token)
        yield from self.parts(name, who, token)
        try:
            after: ProducerIdentity = yield from self.retried(lambda: self.end(name, who, token.wants_commit))
            token.told = token.wants_commit
        except TransactionAbortableError:  # it has timed out; the producer goes on
            token.told = False
            after = yield from self.retried(lambda: self.end(name, who, commit=False))
        self.acknowledge_offset(token)
        return after

    def acknowledge_offset(self, token: Token) -> None:
        if token.told and token.has_offset:
            name = token.transactional_id
            self.acknowledged[name] = max(self.acknowledged[name], token.number)

    def parts(self, name: str, who: ProducerIdentity, token: Token) -> Generator[Call, Any, None]:
        """The records and offsets of one transaction."""
        partitions = self.rng.sample(range(PARTITIONS), self.rng.randrange(1, PARTITIONS + 1))
        if not self.uses_v2[name]:
            yield from self.retried(lambda: self.add(name, who, partitions=partitions))
        for number in partitions:
            yield from self.retried(partial(self.produce, name, who, number, token))
            token.written.add(number)
            yield from self.sometimes_asleep()
        if self.rng.random() < 0.7:
            if not self.uses_v2[name]:
                yield from self.retried(lambda: self.add(name, who, groups=(group_of(name),)))
            yield from self.retried(lambda: self.commit_offset(name, who, token.number))
            token.has_offset = True
            yield from self.sometimes_asleep()

    def sometimes_asleep(self) -> Generator[Call, Any, None]:
        if self.is_faulty and self.rng.random() < 0.03:
            yield self.pause(self.rng.randrange(2 * TIMEOUT_MS))

    # --- what producers ask -------------------------------------------------------------------------------------------

    def fresh(self) -> int:
        self.last_producer_id += 1
        return self.last_producer_id

    def host_of(self, name: str) -> Host:
        return self.hosts[slot_of(name)]

    def initialize(self, name: str) -> Call:
        request = InitTransactionsRequest(transactional_id=name, timeout_ms=TIMEOUT_MS)
        return lambda done: self.host_of(name).decide(
            lambda machine: machine.transactions.init(request, fresh_producer_id=self.fresh(), now_ms=self.now_ms), done
        )

    def add(
        self,
        name: str,
        who: ProducerIdentity,
        *,
        partitions: list[int] | None = None,
        groups: tuple[str, ...] = (),
        is_check: bool = False,
    ) -> Call:
        topics = (
            (TransactionTopic(topic="t", topic_id="t", partitions=tuple(sorted(partitions))),) if partitions else ()
        )
        request = AddToTransactionRequest(
            transactional_id=name,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            topics=topics,
            groups=groups,
            is_check=is_check,
            uses_v2=self.uses_v2[name],
        )

        def ask(done: Done) -> None:
            def told(answer: Any) -> None:
                if isinstance(answer, BarnabasError):
                    done(answer)
                    return
                outcomes, started_ms = answer
                faults = [item for item in outcomes if item.error]
                done(InvalidTxnStateError(faults[0].message) if faults else started_ms)

            def decision(machine: SlotCoordinator) -> CoordinatorResult[Any]:
                added: CoordinatorResult[Any] = machine.transactions.add(request, now_ms=self.now_ms)
                return replace(added, response=(added.response, machine.transactions.started_ms(name)))

            self.host_of(name).decide(decision, told)

        return ask

    def end(self, name: str, who: ProducerIdentity, commit: bool) -> Call:
        request = EndTransactionRequest(
            transactional_id=name,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            is_commit=commit,
            uses_v2=self.uses_v2[name],
        )
        return lambda done: self.host_of(name).decide(
            lambda machine: machine.transactions.end(request, fresh_producer_id=self.fresh(), now_ms=self.now_ms), done
        )

    def produce(self, name: str, who: ProducerIdentity, number: int, token: Token) -> Call:
        """To the leader, which asks the coordinator before the first record of a transaction (KIP-890)."""

        def arrive(done: Done) -> None:
            log = self.logs[number]
            known = log.open_token(who.producer_id, who.producer_epoch)
            if known is not None:
                log.write(who, token, done) if known is token else done(InvalidTxnStateError("another transaction"))
                return
            permit = log.take_permit(who.producer_id)

            def verified(answer: Any) -> None:
                if isinstance(answer, BarnabasError):
                    done(answer)
                elif permit < log.permits.get(who.producer_id, permit + 1):
                    done(NotEnoughReplicasError("a transaction has ended meanwhile"))
                elif log.open_token(who.producer_id, who.producer_epoch) not in (None, token):
                    done(InvalidTxnStateError("another transaction"))
                else:
                    self.note_name(name, who, token)
                    log.write(who, token, done, started_ms=answer)

            is_check = not self.uses_v2[name]
            self.send(self.add(name, who, partitions=[number], is_check=is_check), verified)

        return arrive

    def note_name(self, name: str, who: ProducerIdentity, token: Token) -> None:
        if self.uses_v2[name]:
            key = (who.producer_id, who.producer_epoch)
            if self.names.setdefault(key, token) is not token:
                raise Violation(f"producer id and epoch {key} name transactions {self.names[key]} and {token}")

    def commit_offset(self, name: str, who: ProducerIdentity, offset: int) -> Call:
        group_id = group_of(name)
        request = TransactionalOffsetCommitRequest(
            transactional_id=name,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            group_id=group_id,
            member_id="",
            member_epoch=-1,
            partitions=(OffsetToCommit(topic="t", partition=0, offset=offset),),
        )

        def arrive(done: Done) -> None:
            host = self.host_of(group_id)
            host.decide(
                lambda machine: machine.offsets.permit(group_id=group_id, producer_id=who.producer_id),
                lambda permit: done(permit) if isinstance(permit, BarnabasError) else verify(permit, done),
            )

        def verify(permit: Permit, done: Done) -> None:
            def verified(answer: Any) -> None:
                if isinstance(answer, BarnabasError):
                    done(answer)
                    return
                self.host_of(group_id).decide(
                    lambda machine: machine.offsets.commit(
                        request, permit=permit, started_ms=answer, now_ms=self.now_ms
                    ),
                    done,
                )

            is_check = not self.uses_v2[name]
            ask = self.add(name, who, groups=(group_id,), is_check=is_check)
            if (
                self.is_faulty and self.rng.random() < 0.1
            ):  # the client gives up, and the coordinator's answer comes late
                ask(lambda answer: self.later(self.rng.randrange(LATE_MS), lambda: verified(answer)))
                done(LOST)
            else:
                self.send(ask, verified)

        return arrive

    # --- markers ------------------------------------------------------------------------------------------------------

    def decided(self, host: Host, result: CoordinatorResult[Any]) -> None:
        """A decision was made, and is not committed yet: nothing may follow from it."""

    def committed(self, host: Host, result: CoordinatorResult[Any]) -> None:
        for record in result.records:
            if isinstance(record, TransactionRecord) and TransactionState(record.state).is_decided:
                self.send_markers(host, record)

    def send_markers(self, host: Host, record: TransactionRecord) -> None:
        waiting: set[tuple[str, Any]] = {("log", number) for item in record.partitions for number in item.partitions}
        waiting |= {("group", group_id) for group_id in record.offset_groups}
        work = _Markers(self, host, record, waiting)
        for target in sorted(waiting, key=str):
            work.send(target)

    def acknowledge_marker(self, log: Log, record: TransactionRecord, done: Done) -> None:
        """The marker has arrived in time: see `_Markers.is_late`."""
        commit = record.state == TransactionState.PREPARE_COMMIT
        log.mark(record.producer_id, record.producer_epoch, commit, record.uses_v2, done)

    # --- checks -------------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """An open transaction of a partition is known to a coordinator (invariant 9), or its leader asked a former one."""
        known: dict[int, set[int]] = {}
        for host in self.hosts.values():
            for record in host.machine.groups.state.transactions.values():
                numbers = {number for item in record.partitions for number in item.partitions}
                known.setdefault(record.producer_id, set()).update(numbers)
        for number, log in enumerate(self.logs):
            for producer_id, producer in log.producers.items():
                if producer.token is not None and number not in known.get(producer_id, ()):
                    raise Violation(f"no coordinator knows the transaction {producer.token} in partition {number}")

    def read_offset(self, name: str) -> None:
        group_id = group_of(name)
        newest = self.acknowledged[name]

        def told(answer: Any) -> None:
            if isinstance(answer, BarnabasError) or answer.unstable:
                return
            found = max((item.offset for item in answer.offsets), default=-1)
            if found < newest:
                raise Violation(f"group {group_id} is at {found}, and offset {newest} was acknowledged before")
            if found >= 0 and (not self.tokens[found].wants_commit or False in self.tokens[found].outcomes):
                raise Violation(f"offset {found} of an aborted transaction is told")

        self.host_of(group_id).decide(
            lambda machine: machine.offsets.fetch_stable(group_id=group_id, partitions=None), told
        )

    def check_outcomes(self) -> None:
        outcomes = [log.outcomes() for log in self.logs]
        committed: dict[str, int] = dict.fromkeys(TRANSACTIONAL_IDS, -1)
        for token in self.tokens:
            found = {number: outcomes[number].get(token) for number in token.written}
            if len(set(found.values())) > 1:
                raise Violation(f"transaction {token} is {found}")
            if token.told is not None and found and set(found.values()) != {token.told}:
                raise Violation(f"transaction {token} was told {token.told} and is {found}")
            if True in found.values() and token.has_offset:
                committed[token.transactional_id] = token.number
        for name in TRANSACTIONAL_IDS:
            value = self.quorum.slot(slot_of(group_of(name))).offset(group_of(name), ("t", 0))
            if (-1 if value is None else value[0]) != committed[name]:
                raise Violation(
                    f"the group of {name} is at {value}, the last committed transaction had {committed[name]}"
                )


@dataclass
class _Markers:
    """The shell's work for one decided transaction, as long as its coordinator is the same."""

    simulation: TransactionSimulation
    host: Host
    record: TransactionRecord
    waiting: set[tuple[str, Any]]

    def __post_init__(self) -> None:
        self.epoch = self.host.epoch

    def send(self, target: tuple[str, Any]) -> None:
        simulation = self.simulation
        if self.host.epoch != self.epoch:
            return
        epoch = self.epoch_of(target)
        simulation.send(lambda done: self.arrive(target, epoch, done), lambda answer: self.told(target, answer))
        if simulation.is_faulty and simulation.rng.random() < 0.1:  # once more, late
            simulation.later(simulation.rng.randrange(LATE_MS), lambda: self.arrive(target, epoch, lambda _: None))

    def epoch_of(self, target: tuple[str, Any]) -> int:
        """Of the partition's leader, or of the group's coordinator."""
        simulation = self.simulation
        return simulation.logs[target[1]].leader_epoch if target[0] == "log" else simulation.host_of(target[1]).epoch

    def is_late(self, target: tuple[str, Any], epoch: int) -> bool:
        record, simulation = self.record, self.simulation
        if simulation.host_of(record.transactional_id).epoch != self.epoch:
            return True
        if target[0] == "group":
            return self.epoch_of(target) != epoch
        log: Log = simulation.logs[target[1]]
        return log.is_late(record.producer_id, leader_epoch=epoch, started_ms=record.started_ms)

    def arrive(self, target: tuple[str, Any], epoch: int, done: Done) -> None:
        record, simulation = self.record, self.simulation
        if self.is_late(target, epoch):
            done(LOST)
            return
        if target[0] == "log":
            simulation.acknowledge_marker(simulation.logs[target[1]], record, done)
            return
        group_id = target[1]
        simulation.host_of(group_id).decide(
            lambda machine: machine.offsets.end(
                group_id=group_id,
                producer_id=record.producer_id,
                marker_epoch=record.producer_epoch,
                uses_v2=record.uses_v2,
                is_commit=record.state == TransactionState.PREPARE_COMMIT,
                started_ms=record.started_ms,
                now_ms=simulation.now_ms,
            ),
            done,
        )

    def told(self, target: tuple[str, Any], answer: Any) -> None:
        if isinstance(answer, BarnabasError):
            self.simulation.later(30, lambda: self.send(target))
            return
        self.waiting.discard(target)
        if not self.waiting and self.host.epoch == self.epoch:
            self.host.decide(
                lambda machine: machine.transactions.markers_done(self.record, now_ms=self.simulation.now_ms),
                lambda _: None,
            )


def group_of(transactional_id: str) -> str:
    return f"group-of-{transactional_id}"
