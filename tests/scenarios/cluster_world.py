"""A world of one controller, brokers with one partition `t-0` each, and logs in memory. Nothing happens by itself.

Brokers that run hear of new metadata at once and heartbeat whenever time passes. Followers fetch when they are told to. A log
is shown as the leader epochs of its records; `hw` is the high watermark.

    cluster N                    N brokers, controller elected
    topic R,R,... [key=value]    partition t-0 on these replicas, the first one is preferred
    produce N [acks=1] [at=B]    N records, to the leader that the metadata names (or at broker B, whatever it believes)
    fetch B [B ...]              each of these followers fetches once and takes the answer
    kill B, restart B [lost=N]   kill -9, noticed at once; a restart with N records of its log lost by a power failure
    cut B, mend B                the broker hears nothing and reaches nobody, and is fenced; then it is back
    stop B                       asks for a controlled shutdown, and ends when it may
    pass MS                      time passes: leaders look at their ISRs, the controller at its sessions
    slots [B ...]                how many coordinator slots each broker has; those of B are shown with their epochs
"""

from collections.abc import Callable, Iterator

from simulation.isr_log import RECORD, MemoryLog, batch
from unit.kraft.single_controller import SingleController

from barnabas.kraft.metadata.image import NO_LEADER
from barnabas.kraft.metadata.requests import (
    AlterPartition,
    FenceBroker,
    IsrMember,
    PartitionIsrProposal,
)
from barnabas.log.replication.effects import ChangeLog, Effect, IsrAnswer, PartitionAssignment, ProposeIsr
from barnabas.log.replication.follower import FetchAnswer
from barnabas.log.replication.leading import ACKS_ALL
from barnabas.log.replication.partition import Partition
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition

T_0 = TopicPartition("t", 0)
LAG_MS = 10_000
BEAT_MS = 500


class Broker:
    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.log: MemoryLog | None = None
        self.partition: Partition | None = None
        self.is_up = True
        self.is_cut = False
        self.runs = 1

    @property
    def is_reached(self) -> bool:
        return self.is_up and not self.is_cut

    def __str__(self) -> str:
        partition = self.partition
        if self.log is None:
            return "no replica"
        log = ",".join(str(epoch) for epoch, _ in self.log.records) or "empty"
        if partition is None or not self.is_up:
            return f"down log {log}"
        role = (
            "leads"
            if partition.role.is_leader
            else f"follows {partition.role.leader}"
            if partition.role.leader >= 0
            else "waits"
        )
        return f"{role} in epoch {partition.leader_epoch} log {log} hw {partition.high_watermark}"


class ClusterWorld:
    def __init__(self) -> None:
        self._cluster = SingleController(0)
        self._brokers: dict[int, Broker] = {}
        self._shown: dict[str, str] = {}
        self._sequence = 0
        self._acks: list[tuple[int, int]] = []  # (offset that the high watermark must reach, leader epoch)

    def run(self, command: str, words: list[str]) -> Iterator[str]:
        act: Callable[..., Iterator[str]] = getattr(self, f"_do_{command}")
        try:
            yield from act(*words)
        except BarnabasError as error:
            yield f"{type(error).__name__}: {error.message}"
        yield from self._acknowledged()
        yield from self._changes()

    # --- commands ----------------------------------------------------------------------------------------------------

    def _do_cluster(self, count: str) -> Iterator[str]:
        for node_id in range(int(count)):
            self._brokers[node_id] = Broker(node_id)
            self._cluster.start(node_id, "run 1")
        self._cluster.tick()
        yield f"{count} brokers, controller epoch {self._cluster.image.controller_epoch}"

    def _do_topic(self, replicas: str, *configs: str) -> Iterator[str]:
        nodes = [int(node) for node in replicas.split(",")]
        keys = dict(config.split("=") for config in configs)
        self._cluster.topic(*nodes, **keys)
        minimum = int(keys.get("min.insync.replicas", "1"))
        for node in nodes:
            topic_id = self._cluster.image.topics["t"].topic_id
            log = MemoryLog(T_0, topic_id, min_insync_replicas=minimum)
            self._brokers[node].log = log
            self._brokers[node].partition = Partition(log, node, replica_lag_time_max_ms=LAG_MS)
        yield from self._publish()

    def _do_produce(self, count: str, *options: str) -> Iterator[str]:
        chosen = dict(option.split("=") for option in options)
        node_id = int(chosen.get("at", self._cluster.partition().leader))
        if node_id == NO_LEADER:
            yield "there is no leader to send to"
            return
        partition = self._partition(node_id)
        acks = ACKS_ALL if chosen.get("acks", "all") == "all" else int(chosen["acks"])
        for _ in range(int(count)):
            self._sequence += 1
            info, wanted, effects = partition.leading.append(
                batch((node_id, self._sequence)), acks=acks, now_ms=self._now_ms
            )
            if acks == ACKS_ALL:
                self._acks.append((wanted, partition.leader_epoch))
            yield from self._perform(node_id, effects)
            yield f"broker {node_id} appends offset {info.first_offset}" + (
                "" if acks == ACKS_ALL else ", acknowledged"
            )

    def _do_fetch(self, *nodes: str) -> Iterator[str]:
        for node in map(int, nodes):
            follower = self._partition(node)
            position = follower.following.next_fetch()
            if position is None or not (self._brokers[node].is_reached and self._brokers[position.leader].is_reached):
                yield f"broker {node} reaches no leader"
                continue
            try:
                read, effects = self._partition(position.leader).leading.read_for_follower(
                    node,
                    broker_epoch=self._cluster.epochs[node],
                    offset=position.offset,
                    max_bytes=100 * RECORD.size,
                    current_leader_epoch=position.leader_epoch,
                    last_fetched_epoch=position.last_fetched_epoch,
                    now_ms=self._now_ms,
                )
            except BarnabasError as error:
                follower.following.fetched(position, FetchAnswer(error=error.code), self._now_ms)
                yield f"broker {node} is refused: {type(error).__name__}"
                continue
            assert isinstance(read.records, bytes)
            if read.diverging_epoch >= 0 or read.diverging_end_offset >= 0:
                yield (
                    f"broker {node} at offset {position.offset} of epoch {position.last_fetched_epoch} is told: "
                    f"epoch {read.diverging_epoch} ends at {read.diverging_end_offset}"
                )
            answer = FetchAnswer(
                error=read.error,
                records=read.records,
                high_watermark=read.high_watermark,
                log_start_offset=read.log_start_offset,
                diverging_epoch=read.diverging_epoch,
                diverging_end_offset=read.diverging_end_offset,
            )
            yield from self._perform(node, follower.following.fetched(position, answer, self._now_ms))
            yield from self._perform(position.leader, effects)

    def _do_kill(self, node: str) -> Iterator[str]:
        self._brokers[int(node)].is_up = False
        yield from self._fence(int(node))

    def _do_cut(self, node: str) -> Iterator[str]:
        self._brokers[int(node)].is_cut = True
        yield from self._fence(int(node))

    def _do_mend(self, node: str) -> Iterator[str]:
        self._brokers[int(node)].is_cut = False
        self._cluster.beat(int(node))
        yield from self._publish()

    def _do_restart(self, node: str, lost: str = "lost=0") -> Iterator[str]:
        broker = self._brokers[int(node)]
        count = int(lost.removeprefix("lost="))
        broker.runs += 1
        broker.is_up = True
        if broker.log is not None:
            broker.log.truncate_to(broker.log.log_end_offset - count)
            broker.log.set_high_watermark(0)  # its checkpoint is older than everything that happens here
            broker.partition = Partition(broker.log, broker.node_id, replica_lag_time_max_ms=LAG_MS)
        self._cluster.start(broker.node_id, f"run {broker.runs}", lossy=count > 0)
        yield from self._publish()

    def _do_stop(self, node: str) -> Iterator[str]:
        for _ in range(3):
            answer = self._cluster.beat(int(node), stop=True)
            yield from self._publish()
            self._beat(without=int(node))
            if answer.may_shut_down:
                self._brokers[int(node)].is_up = False
                yield f"broker {node} may shut down"
                return
            yield f"broker {node} has to wait"

    def _do_pass(self, milliseconds: str) -> Iterator[str]:
        end_ms = self._now_ms + int(milliseconds)
        while self._now_ms < end_ms:
            self._cluster.now_ms = min(self._now_ms + BEAT_MS, end_ms)
            self._beat()
            self._cluster.tick()
            yield from self._publish()
            for broker in self._brokers.values():
                if broker.is_reached and broker.partition is not None:
                    yield from self._perform(broker.node_id, broker.partition.leading.check_isr(self._now_ms))

    def _do_slots(self, *nodes: str) -> Iterator[str]:
        slots = self._cluster.image.slots
        counts = {node: sum(slot.coordinator == node for slot in slots) for node in self._brokers}
        yield "slots of broker " + ", ".join(f"{node}: {count}" for node, count in counts.items())
        for node in map(int, nodes):
            owned = [
                f"{number}@{slot.coordinator_epoch}" for number, slot in enumerate(slots) if slot.coordinator == node
            ]
            yield f"slot@epoch of broker {node}: {' '.join(owned)}"

    # --- how ---------------------------------------------------------------------------------------------------------

    @property
    def _now_ms(self) -> int:
        return self._cluster.now_ms

    def _partition(self, node_id: int) -> Partition:
        partition = self._brokers[node_id].partition
        assert partition is not None, f"broker {node_id} has no replica"
        return partition

    def _beat(self, *, without: int = -1) -> None:
        for broker in self._brokers.values():
            if broker.is_reached and broker.node_id != without:
                self._cluster.beat(broker.node_id)

    def _fence(self, node_id: int) -> Iterator[str]:
        self._cluster.ask(FenceBroker(node_id=node_id, broker_epoch=self._cluster.epochs[node_id]))
        self._cluster.tick()
        yield from self._publish()

    def _publish(self) -> Iterator[str]:
        """The metadata reaches every broker that can hear."""
        if "t" not in self._cluster.image.topics:
            return
        image, partition = self._cluster.image, self._cluster.partition()
        assignment = PartitionAssignment(
            topic_partition=T_0,
            topic_id=image.topics["t"].topic_id,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            replicas=partition.replicas,
            isr=partition.isr,
            broker_epochs={node: broker.broker_epoch for node, broker in image.brokers.items() if broker.is_active},
        )
        for broker in self._brokers.values():
            if broker.is_reached and broker.partition is not None:
                make = (
                    broker.partition.make_leader
                    if partition.leader == broker.node_id
                    else broker.partition.make_follower
                )
                yield from self._perform(broker.node_id, make(assignment, self._now_ms))

    def _perform(self, node_id: int, effects: list[Effect]) -> Iterator[str]:
        """Proposals go to the controller at once; the other effects only wake somebody."""
        for effect in effects:
            if isinstance(effect, ChangeLog):
                effect.change.perform()
                follower = self._partition(node_id)
                told = follower.log_changed(effect.change, now_ms=self._now_ms, wall_ms=self._now_ms)
                yield from self._perform(node_id, told)
            if not isinstance(effect, ProposeIsr):
                continue
            members = tuple(IsrMember(node_id=item.node_id, broker_epoch=item.broker_epoch) for item in effect.isr)
            answer = self._cluster.propose(
                AlterPartition(
                    node_id=node_id,
                    broker_epoch=self._cluster.epochs[node_id],
                    partitions=(
                        PartitionIsrProposal(
                            topic_id=effect.topic_id,
                            partition=0,
                            leader_epoch=effect.leader_epoch,
                            partition_epoch=effect.partition_epoch,
                            isr=members,
                        ),
                    ),
                )
            )
            yield f"broker {node_id} proposes isr {_list(item.node_id for item in members)}: {_outcome(answer.error)}"
            told = IsrAnswer(
                error=answer.error,
                leader=answer.leader,
                leader_epoch=answer.leader_epoch,
                partition_epoch=answer.partition_epoch,
                isr=answer.isr,
            )
            yield from self._perform(node_id, self._partition(node_id).leading.isr_answered(effect, told, self._now_ms))
            yield from self._publish()

    def _acknowledged(self) -> Iterator[str]:
        """acks=all: the high watermark has passed the record while its leader led without a break."""
        for wanted, epoch in list(self._acks):
            for broker in self._brokers.values():
                partition = broker.partition
                if partition is None or not (
                    broker.is_reached and partition.role.is_leader and partition.leader_epoch == epoch
                ):
                    continue
                if partition.high_watermark >= wanted:
                    self._acks.remove((wanted, epoch))
                    yield f"offset {wanted - 1} is acknowledged"

    def _changes(self) -> Iterator[str]:
        """What is not as it was when it was last printed."""
        for name, state in self._states():
            if self._shown.get(name) != state:
                self._shown[name] = state
                yield f"{name} {state}"

    def _states(self) -> Iterator[tuple[str, str]]:
        if "t" not in self._cluster.image.topics:
            return
        partition = self._cluster.partition()
        leader = "none" if partition.leader == NO_LEADER else partition.leader
        eligible = (
            f" eligible {_list(partition.eligible_leader_replicas)}" if partition.eligible_leader_replicas else ""
        )
        yield "t-0", f"leader {leader} epoch {partition.leader_epoch} isr {_list(partition.isr)}{eligible}"
        for broker in self._brokers.values():
            if broker.log is not None:
                yield f"broker {broker.node_id}", str(broker)


def _list(nodes: Iterator[int] | tuple[int, ...]) -> str:
    return ",".join(map(str, nodes)) or "none"


def _outcome(error: int) -> str:
    return "committed" if error == 0 else f"refused, error {error}"
