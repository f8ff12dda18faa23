"""One active controller over a quorum that commits everything at once, and brokers that do what a test says."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from unit.kraft.metadata_cluster import MetadataCluster

from barnabas.kraft.metadata.controller_settings import ControllerSettings
from barnabas.kraft.metadata.image import Endpoint, MetadataImage, PartitionImage
from barnabas.kraft.metadata.records import TOPIC_RESOURCE
from barnabas.kraft.metadata.requests import (
    AlterConfig,
    AlterPartition,
    AlterPartitionAnswer,
    BrokerHeartbeat,
    ConfigChange,
    ControllerRequest,
    CreateTopic,
    HeartbeatAnswer,
    IsrMember,
    PartitionIsrAnswer,
    PartitionIsrProposal,
    RegisterBroker,
    Registered,
)
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition

NO_BALANCING = ControllerSettings(auto_preferred_leaders=False)


class SingleController:
    def __init__(
        self,
        brokers: int = 3,
        settings: ControllerSettings = NO_BALANCING,
        seed: int = 0,
        machines: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self.machines = dict(machines)  # by broker; the others have one of their own
        self.cluster = MetadataCluster(1, settings=settings, seed=seed)
        self.now_ms = 1_000
        self.epochs: dict[int, int] = {}
        self.cluster.elect(0)
        self.cluster.run()
        for node_id in range(brokers):
            self.start(node_id)
        self.tick()

    @property
    def image(self) -> MetadataImage:
        return self.cluster.nodes[0].image

    def ask(self, request: ControllerRequest) -> object:
        return self.cluster.ask(request, self.now_ms)

    def refused(self, request: ControllerRequest, error: type[BarnabasError]) -> str:
        answer = self.ask(request)
        assert isinstance(answer, error), answer
        return answer.message

    def tick(self) -> None:
        self.cluster.tick(self.now_ms)
        self.cluster.run()

    def registration(self, node_id: int, incarnation: str = "first", *, lossy: bool = False) -> RegisterBroker:
        return RegisterBroker(
            node_id=node_id,
            incarnation=incarnation,
            cluster_id=self.image.cluster_id,
            endpoints=(Endpoint(listener="PLAINTEXT", host="localhost", port=9092 + 10 * node_id),),
            lost_unflushed_data=lossy,
            machine=self.machines.get(node_id),
        )

    def register(self, node_id: int, incarnation: str = "first", *, lossy: bool = False) -> int:
        answer = self.ask(self.registration(node_id, incarnation, lossy=lossy))
        assert isinstance(answer, Registered), answer
        self.epochs[node_id] = answer.broker_epoch
        return answer.broker_epoch

    def beat(
        self, node_id: int, *, fence: bool = False, stop: bool = False, offset: int | None = None
    ) -> HeartbeatAnswer:
        request = BrokerHeartbeat(
            node_id=node_id,
            broker_epoch=self.epochs[node_id],
            metadata_offset=self.image.offset if offset is None else offset,
            want_fence=fence,
            want_shut_down=stop,
        )
        answer = self.ask(request)
        assert isinstance(answer, HeartbeatAnswer), answer
        return answer

    def start(self, node_id: int, incarnation: str = "first", *, lossy: bool = False) -> None:
        self.register(node_id, incarnation, lossy=lossy)
        assert not self.beat(node_id).fenced

    def topic(self, *replicas: int, name: str = "t", **configs: str) -> None:
        """A topic of one partition."""
        keys = {key.replace("_", "."): value for key, value in configs.items()}
        answer = self.ask(CreateTopic(name=name, assignment=(replicas,), configs=keys))
        assert not isinstance(answer, BarnabasError), answer

    def partition(self, name: str = "t", number: int = 0) -> PartitionImage:
        partition = self.image.partition(TopicPartition(name, number))
        assert partition is not None
        return partition

    def configure(self, key: str, value: str | None, name: str = "t") -> None:
        change = ConfigChange(key=key, value=value)
        answer = self.ask(AlterConfig(resource_type=TOPIC_RESOURCE, resource=name, changes=(change,)))
        assert not isinstance(answer, BarnabasError), answer

    def proposal(
        self,
        *isr: int,
        leader_epoch: int | None = None,
        partition_epoch: int | None = None,
        member_epochs: dict[int, int] | None = None,
        sender: int | None = None,
    ) -> AlterPartition:
        partition = self.partition()
        epochs = {**self.epochs, **(member_epochs or {})}
        node_id = partition.leader if sender is None else sender
        return AlterPartition(
            node_id=node_id,
            broker_epoch=self.epochs[node_id],
            partitions=(
                PartitionIsrProposal(
                    topic_id=self.image.topics["t"].topic_id,
                    partition=0,
                    leader_epoch=partition.leader_epoch if leader_epoch is None else leader_epoch,
                    partition_epoch=partition.partition_epoch if partition_epoch is None else partition_epoch,
                    isr=tuple(IsrMember(node_id=member, broker_epoch=epochs.get(member, 0)) for member in isr),
                ),
            ),
        )

    def propose(self, request: AlterPartition) -> PartitionIsrAnswer:
        answer = self.ask(request)
        assert isinstance(answer, AlterPartitionAnswer), answer
        return answer.partitions[0]

    def set_isr(self, *isr: int) -> None:
        assert self.propose(self.proposal(*isr)).error == 0
