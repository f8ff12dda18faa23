"""Thousands of random requests, heartbeats, crashes and elections over several controllers; invariants after every event."""

from __future__ import annotations

import random

import pytest
from unit.kraft.group_state_fake import FakeGroupState
from unit.kraft.metadata_cluster import MetadataCluster

from barnabas.kraft.group_state.group_slots import GroupSlots
from barnabas.kraft.metadata.controller_settings import ControllerSettings
from barnabas.kraft.metadata.image import (
    FOLDER_FULL,
    FOLDER_OFFLINE,
    NO_LEADER,
    Endpoint,
    FolderTrouble,
    MetadataImage,
    PartitionImage,
)
from barnabas.kraft.metadata.records import BROKER_RESOURCE, TOPIC_RESOURCE, OffsetCommitRecord
from barnabas.kraft.metadata.requests import (
    AllocateProducerIds,
    AlterConfig,
    AlterPartition,
    AppendGroupRecords,
    BrokerHeartbeat,
    ConfigChange,
    ControllerRequest,
    CreateTopic,
    DeleteTopic,
    Done,
    HeartbeatAnswer,
    IsrMember,
    PartitionIsrProposal,
    ProducerIdBlock,
    RegisterBroker,
    Registered,
    ReportOfflineReplicas,
    SlotAppend,
    TopicCreated,
    TopicNumbers,
)
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.log.vocabulary.cluster_changes import (
    AddPartitionsRequest,
    AssignReplicasRequest,
    ElectLeaderRequest,
    UnregisterBrokerRequest,
)

VOTERS = 3
BROKERS = 5
EVENTS = 1500
SEEDS = range(12)


class Broker:
    """What a broker knows of itself."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.incarnation = 0
        self.epoch: int | None = None
        self.stopping = False
        self.lossy = False
        self.registering = False
        self.report = 0


class Simulation:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        settings = ControllerSettings(
            preferred_leader_check_interval_ms=self.rng.choice([500, 30_000]),
            partitions_per_step=(1, 3, 5_000)[seed % 3],  # brokers depart in pieces, between which anything may happen
        )
        groups = GroupSlots if seed % 2 else FakeGroupState
        self.cluster = MetadataCluster(VOTERS, seed=seed, settings=settings, new_groups=groups)
        self.cluster.on_publication = self.published
        self.now_ms = 0
        self.brokers = [Broker(node_id) for node_id in range(BROKERS)]
        self.by_offset: dict[int, MetadataImage] = {}
        self.latest = [MetadataImage() for _ in range(VOTERS)]
        self.producer_ids: set[int] = set()
        self.submitted = self.answered = 0
        self.open_answers: list[tuple[object, int]] = []
        self.unregistered: set[int] = set()
        self.names = 0

    # --- invariants --------------------------------------------------------------------------------------------------

    def published(self, node_id: int, publication: MetadataPublication) -> None:
        image = publication.image
        assert self.by_offset.setdefault(image.offset, image) == image
        before = self.latest[node_id]
        if image.offset >= before.offset:
            self.check_step(before, image)
        self.latest[node_id] = image
        for index, record in publication.group_records:
            assert index <= image.offset
            assert isinstance(record, OffsetCommitRecord)
        assert not publication.is_active_controller or publication.leader.is_self

    def check_step(self, before: MetadataImage, after: MetadataImage) -> None:
        if before is after:
            return
        assert after.controller_epoch >= before.controller_epoch
        assert after.next_producer_id >= before.next_producer_id
        assert not before.cluster_id or before.cluster_id == after.cluster_id
        for old_slot, new_slot in zip(before.slots, after.slots, strict=True):
            assert new_slot.coordinator_epoch >= old_slot.coordinator_epoch
            moved = old_slot.coordinator != new_slot.coordinator
            assert not moved or new_slot.coordinator_epoch > old_slot.coordinator_epoch
        for name, topic in after.topics.items():
            old_topic = before.topics.get(name)
            same = old_topic is not None and old_topic.topic_id == topic.topic_id
            assert after.topic_names[topic.topic_id] == name
            for number, partition in enumerate(topic.partitions):
                self.check_partition(partition, after)
                if same and old_topic is not None and number < len(old_topic.partitions):
                    self.check_partition_step(old_topic.partitions[number], partition)
        assert len(after.topic_names) == len(after.topics)
        assert set(after.topic_configs) <= set(after.topics)

    def check_partition(self, partition: PartitionImage, image: MetadataImage) -> None:
        assert partition.leader == NO_LEADER or partition.leader in partition.isr
        assert (partition.leader == NO_LEADER) == (partition.isr == ())
        assert len(set(partition.replicas)) == len(partition.replicas) > 0
        assert len(set(partition.isr)) == len(partition.isr)
        assert set(partition.isr) <= set(partition.replicas)
        assert set(partition.eligible_leader_replicas) <= set(partition.replicas) - set(partition.isr)
        assert set(partition.adding_replicas) <= set(partition.replicas)
        assert set(partition.removing_replicas) <= set(partition.replicas) - set(partition.adding_replicas)
        for node_id in partition.isr:
            assert image.brokers[node_id].is_active, "KIP-841: only active brokers are in an ISR"
            assert node_id not in partition.offline_replicas, "KIP-858: no failed disk is in an ISR"
        assert partition.leader not in partition.offline_replicas
        assert set(partition.offline_replicas) <= set(partition.replicas)

    def check_partition_step(self, old: PartitionImage, new: PartitionImage) -> None:
        assert new.leader_epoch >= old.leader_epoch
        assert new.partition_epoch >= old.partition_epoch
        if new.leader != old.leader:
            assert new.leader_epoch > old.leader_epoch
        if new != old:
            assert new.partition_epoch > old.partition_epoch

    def check_answer(self, request: ControllerRequest, answer: object) -> None:
        self.answered += 1
        last = self.cluster.log[-1][0].index if self.cluster.log else 0
        if isinstance(answer, Done | Registered | TopicCreated):
            assert answer.offset <= last
        if isinstance(answer, TopicCreated) and isinstance(request, CreateTopic):
            assert any(answer.topic_id in image.topic_names for image in self.by_offset.values())
        if isinstance(answer, ProducerIdBlock):
            block = set(range(answer.first, answer.first + answer.count))
            assert not block & self.producer_ids
            self.producer_ids |= block

    # --- events ------------------------------------------------------------------------------------------------------

    def run(self, count: int = EVENTS) -> None:
        events = [
            (30, self.heartbeat),
            (6, self.register),
            (10, self.alter_partition),
            (8, self.admin),
            (4, self.report_disks),
            (6, self.commit_offsets),
            (2, self.restart_broker),
            (1, self.elect),
            (1, self.restart_node),
            (20, self.deliver),
            (16, lambda: self.cluster.commit(self.rng.randint(1, 5))),
            (3, self.learn),
            (10, self.pass_time),
        ]
        weights = [weight for weight, _ in events]
        actions = [action for _, action in events]
        for action in self.rng.choices(actions, weights, k=count):
            action()
        self.quiesce()

    def quiesce(self) -> None:
        if self.cluster.leader is None:
            self.cluster.elect(0)
        for _ in range(6):
            self.cluster.run()
            self.cluster.tick(self.now_ms)
        self.cluster.run()
        assert not self.cluster.fatal
        assert self.submitted == self.answered + self.lost
        leader = next(node for node in self.cluster.nodes if node.is_active_controller)
        assert leader.controller.overlay.apply(leader.image.offset) == leader.image
        assert len({id(node) for node in self.cluster.nodes if node.image == leader.image}) == VOTERS
        slots = [[node.state.slot_snapshot(slot) for slot in range(50)] for node in self.cluster.nodes]
        assert slots[0] == slots[1] == slots[2]

    lost = 0  # answers that a crashed controller took with it

    def submit(self, request: ControllerRequest, then: object = None) -> None:
        node_id = self.rng.randrange(VOTERS)
        if self.cluster.leader is not None and self.rng.random() < 0.8:
            node_id = self.cluster.leader.node_id
        quorum = self.cluster.quorums[node_id]
        self.submitted += 1
        state = {"answers": 0}

        def answer(value: object) -> None:
            state["answers"] += 1
            assert state["answers"] == 1 and quorum.alive
            self.open_answers.remove((quorum, state["id"]))
            self.check_answer(request, value)
            if callable(then):
                then(value)

        state["id"] = self.submitted
        self.open_answers.append((quorum, self.submitted))
        self.cluster.nodes[node_id].submit(request, self.now_ms, answer)

    def image(self) -> MetadataImage:
        return self.rng.choice(self.latest)

    def heartbeat(self) -> None:
        broker = self.rng.choice(self.brokers)
        if broker.epoch is None:
            self.register()
            return
        if self.rng.random() < 0.02:
            broker.stopping = True
        incarnation = broker.incarnation

        def then(answer: object) -> None:
            may_stop = isinstance(answer, HeartbeatAnswer) and answer.may_shut_down
            if may_stop and broker.stopping and broker.incarnation == incarnation:
                self.crash(broker)

        request = BrokerHeartbeat(
            node_id=broker.node_id,
            broker_epoch=broker.epoch,
            metadata_offset=self.image().offset,
            want_shut_down=broker.stopping,
            want_fence=self.rng.random() < 0.02,
        )
        self.submit(request, then)

    def register(self) -> None:
        broker = self.rng.choice(self.brokers)
        if broker.epoch is not None and self.rng.random() < 0.8:
            return
        incarnation = broker.incarnation

        def then(answer: object) -> None:
            if isinstance(answer, Registered) and broker.incarnation == incarnation:
                same = broker.epoch in (None, answer.broker_epoch)
                assert same or broker.node_id in self.unregistered, "a retry gets the same epoch"
                broker.epoch = answer.broker_epoch

        request = RegisterBroker(
            node_id=broker.node_id,
            incarnation=f"{broker.node_id}/{broker.incarnation}",
            cluster_id="",
            endpoints=(Endpoint(listener="PLAINTEXT", host="localhost", port=9092),),
            rack=f"r{broker.node_id % 2}",
            lost_unflushed_data=broker.lossy,
        )
        self.submit(request, then)

    def crash(self, broker: Broker) -> None:
        broker.incarnation += 1
        broker.epoch = None
        broker.stopping = False
        broker.report = 0
        broker.lossy = self.rng.random() < 0.2

    def restart_broker(self) -> None:
        self.crash(self.rng.choice(self.brokers))

    def alter_partition(self) -> None:
        image = self.image()
        candidates = [
            (topic, number, partition)
            for topic in image.topics.values()
            for number, partition in enumerate(topic.partitions)
            if partition.leader != NO_LEADER
        ]
        if not candidates:
            return
        topic, number, partition = self.rng.choice(candidates)
        isr = [node for node in partition.replicas if node == partition.leader or self.rng.random() < 0.7]
        epochs = {node_id: broker.broker_epoch for node_id, broker in image.brokers.items()}
        proposal = PartitionIsrProposal(
            topic_id=topic.topic_id,
            partition=number,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=tuple(IsrMember(node_id=node, broker_epoch=epochs.get(node, -1)) for node in isr),
        )
        node_id = partition.leader
        self.submit(AlterPartition(node_id=node_id, broker_epoch=epochs.get(node_id, -1), partitions=(proposal,)))

    def report_disks(self) -> None:
        """A folder fails, comes back with or without losses, fills up; sometimes an old report arrives late."""
        broker = self.rng.choice(self.brokers)
        if broker.epoch is None:
            return
        broker.report += self.rng.choice([1, 1, 1, 0, -1])

        def some(share: float) -> tuple[TopicNumbers, ...]:
            return tuple(
                TopicNumbers(
                    topic_id=topic.topic_id,
                    partitions=tuple(n for n in range(len(topic.partitions)) if self.rng.random() < share),
                )
                for topic in self.image().topics.values()
            )

        state = self.rng.choice([FOLDER_OFFLINE, FOLDER_FULL, None])
        folder = FolderTrouble(path="/d", directory_id="i", state=state or "", cause="c", since_ms=self.now_ms)
        offline = some(self.rng.choice([0.2, 0.8])) if state == FOLDER_OFFLINE else ()
        request = ReportOfflineReplicas(
            node_id=broker.node_id,
            broker_epoch=broker.epoch,
            report=max(1, broker.report),
            troubled_folders=() if state is None else (folder,),
            offline=offline,
            lost=some(0.3) if self.rng.random() < 0.3 else (),
            hand_over=some(0.8) if state == FOLDER_FULL else (),
        )
        self.submit(request)

    def admin(self) -> None:
        image = self.image()
        names = sorted(image.topics) or ["none"]
        name = self.rng.choice(names)
        number = self.rng.randrange(4)
        some_replicas = tuple(self.rng.sample(range(BROKERS), self.rng.randint(0, 3)))
        broker = self.rng.choice(self.brokers)
        self.names += 1
        requests: list[ControllerRequest] = [
            CreateTopic(name=f"t.{self.names % 30}", partition_count=self.rng.randint(1, 4)),
            CreateTopic(
                name=f"u{self.names}",
                partition_count=2,
                replication_factor=self.rng.randint(1, 4),
                configs={"min.insync.replicas": str(self.rng.randint(1, 3))},
            ),
            DeleteTopic(name=name) if self.rng.random() < 0.3 else DeleteTopic(name="none"),
            AddPartitionsRequest(name=name, total_count=self.rng.randint(1, 6)),
            ElectLeaderRequest(topic=name, partition=number),
            ElectLeaderRequest(topic=name, partition=number, target=self.rng.randrange(BROKERS)),
            ElectLeaderRequest(topic=name, partition=number, unclean=True),
            AssignReplicasRequest(topic=name, partition=number, replicas=some_replicas),
            AssignReplicasRequest(topic=name, partition=number, replicas=some_replicas),
            AlterConfig(
                resource_type=TOPIC_RESOURCE,
                resource=name,
                changes=(
                    ConfigChange(key="min.insync.replicas", value=self.rng.choice(["1", "2", "3", None])),
                    ConfigChange(key="unclean.leader.election.enable", value=self.rng.choice(["true", "false"])),
                ),
            ),
            AlterConfig(
                resource_type=BROKER_RESOURCE,
                resource="",
                changes=(ConfigChange(key="min.insync.replicas", value=self.rng.choice(["1", "2", None])),),
            ),
            AllocateProducerIds(node_id=broker.node_id, broker_epoch=broker.epoch or 0),
        ]
        if self.rng.random() < 0.1:
            self.unregistered.add(broker.node_id)
            requests = [UnregisterBrokerRequest(node_id=broker.node_id)]
        self.submit(self.rng.choice(requests))

    def commit_offsets(self) -> None:
        image = self.image()
        slot = self.rng.randrange(50)
        owner = image.slots[slot]
        record = OffsetCommitRecord(
            slot=slot,
            coordinator_epoch=owner.coordinator_epoch,
            group_id="g",
            topic=self.rng.choice(sorted(image.topics) or ["t"]),
            partition=0,
            offset=self.submitted,
            leader_epoch=-1,
            metadata="",
            commit_timestamp_ms=self.now_ms,
        )
        part = SlotAppend.of(slot, owner.coordinator_epoch, (record,))
        self.submit(AppendGroupRecords(node_id=owner.coordinator, slots=(part,)))

    def elect(self) -> None:
        self.cluster.elect(self.rng.randrange(VOTERS))

    def restart_node(self) -> None:
        node_id = self.rng.randrange(VOTERS)
        quorum = self.cluster.quorums[node_id]
        self.latest[node_id] = MetadataImage()
        self.cluster.restart(node_id, from_snapshot=self.rng.random() < 0.5)
        mine = [item for item in self.open_answers if item[0] is quorum]
        self.lost += len(mine)
        self.open_answers[:] = [item for item in self.open_answers if item[0] is not quorum]
        if self.cluster.leader is None:
            self.elect()

    def deliver(self) -> None:
        self.cluster.deliver(self.rng.randrange(VOTERS), self.rng.choice([1, 3, None]))

    def learn(self) -> None:
        node_id = self.rng.randrange(VOTERS)
        self.cluster.notify(node_id)
        self.cluster.tell_outcomes(node_id)

    def pass_time(self) -> None:
        self.now_ms += self.rng.choice([10, 50, 200])
        self.cluster.tick(self.now_ms)


@pytest.mark.parametrize("seed", SEEDS)
def test_invariants_hold_whatever_happens(seed: int) -> None:
    simulation = Simulation(seed)
    if simulation.rng.random() < 0.9:
        simulation.elect()
    simulation.run()
    assert simulation.cluster.log
