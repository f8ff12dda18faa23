"""What the tests of a broker's shells share: virtual time, a scripted source of metadata, images, and a client that asks."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from random import Random
from typing import Any

from barnabas.kraft.group_state.offsets_log import SlotLog
from barnabas.kraft.metadata.image import (
    BrokerImage,
    Endpoint,
    MetadataChanges,
    MetadataImage,
    PartitionImage,
    SlotImage,
    TopicImage,
)
from barnabas.kraft.metadata.records import Record
from barnabas.kraft.metadata.requests import ControllerRequest
from barnabas.kraft.node.metadata_feed import MetadataFeed
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.kraft.quorum.quorum import Leadership
from barnabas.log.replication.effects import (
    FlushLog,
    ProposeIsr,
    Resign,
    ResumeFetching,
    StartFetching,
    StopFetching,
    StorageFailed,
)
from barnabas.log.replication.log_change import LogChange
from barnabas.log.vocabulary.errors import NotControllerError
from barnabas.log.vocabulary.metadata_position import MetadataPosition
from barnabas.log.vocabulary.principal import ANONYMOUS, Principal
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.clock import SimulatedClock
from barnabas.net.base.folder_writers import ended_future
from barnabas.net.metadata.broker_to_controller import ControllerChannel
from barnabas.net.metadata.metadata_service import MetadataService, Subscriber
from barnabas.net.server.logins.login import Login
from barnabas.net.testing.simulation.loop import run_simulated
from barnabas.net.testing.simulation.network import SimulatedNetwork
from barnabas.net.wire.protocol.kafka.apis import KafkaResponse
from barnabas.net.wire.protocol.responses import Response
from barnabas.net.wire.rpc import RpcPool

LISTENER = "PLAINTEXT"
LIMIT_S = 300  # of virtual time: what waits for longer will not come


def simulated(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run the test on virtual time. No wait takes real time, and one without end fails."""

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        async def main(loop: asyncio.AbstractEventLoop) -> None:
            async with asyncio.timeout(LIMIT_S):
                await test(*args, **kwargs)

        run_simulated(main)

    return run


async def turns(count: int = 10) -> None:
    """Let everything happen that needs no time."""
    for _ in range(count):
        await asyncio.sleep(0)


def now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


# --- images -----------------------------------------------------------------------------------------------------------


def broker(node_id: int, *, epoch: int | None = None, fenced: bool = False) -> BrokerImage:
    return BrokerImage(
        node_id=node_id,
        broker_epoch=100 + node_id if epoch is None else epoch,
        incarnation="i",
        endpoints=(
            Endpoint(listener=LISTENER, host=f"host-{node_id}", port=9092),
            Endpoint(listener="CLIENTS", host=f"public-{node_id}", port=19092),
        ),
        fenced=fenced,
    )


class NoEffects:
    """`ReplicationEffects` that do nothing; logs in memory are changed at once."""

    def propose(self, proposals: list[ProposeIsr]) -> None: ...
    def start_fetching(self, effect: StartFetching) -> None: ...
    def stop_fetching(self, effect: StopFetching) -> None: ...
    def resume_fetching(self, effect: ResumeFetching) -> None: ...
    def storage_failed(self, effect: StorageFailed) -> None: ...
    def flush(self, effect: FlushLog) -> None: ...
    def resign(self, effect: Resign) -> None: ...
    def took_up(self, image: MetadataImage) -> None: ...
    def progressed(self) -> None: ...

    def change_log(self, topic_partition: TopicPartition, change: LogChange) -> "asyncio.Future[None]":
        change.perform()
        return ended_future()

    def made_ready(self, topic_partition: TopicPartition, topic_id: str) -> "asyncio.Future[None] | None":
        return None


def partition(
    leader: int, *, epoch: int = 1, replicas: tuple[int, ...] = (0, 1), isr: tuple[int, ...] | None = None
) -> PartitionImage:
    return PartitionImage(
        replicas=replicas,
        isr=replicas if isr is None else isr,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=epoch,
    )


def topic(name: str, *partitions: PartitionImage, topic_id: str | None = None) -> TopicImage:
    return TopicImage(name=name, topic_id=topic_id or f"id-{name}", partitions=partitions)


def image_of(
    *brokers: BrokerImage,
    topics: Iterable[TopicImage] = (),
    slots: dict[int, SlotImage] | None = None,
    offset: int = 10,
    cluster_id: str = "cluster",
    topic_configs: dict[str, dict[str, str]] | None = None,
    broker_configs: dict[str, dict[str, str]] | None = None,
    group_configs: dict[str, dict[str, str]] | None = None,
) -> MetadataImage:
    empty = MetadataImage().slots
    return MetadataImage(
        cluster_id=cluster_id,
        offset=offset,
        controller_id=0,
        controller_epoch=1,
        brokers={item.node_id: item for item in brokers},
        topics={item.name: item for item in topics},
        topic_names={item.topic_id: item.name for item in topics},
        topic_configs=topic_configs or {},
        broker_configs=broker_configs or {},
        group_configs=group_configs or {},
        slots=tuple((slots or {}).get(number, slot) for number, slot in enumerate(empty)),
    )


def changes_between(old: MetadataImage, new: MetadataImage) -> MetadataChanges:
    def changed(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> frozenset[Any]:
        return frozenset(key for key in {*before, *after} if before.get(key) != after.get(key))

    return MetadataChanges(
        brokers=changed(old.brokers, new.brokers),
        topics=changed(old.topics, new.topics),
        topic_configs=changed(old.topic_configs, new.topic_configs),
        broker_configs=changed(old.broker_configs, new.broker_configs),
        slots=frozenset(number for number, slot in enumerate(new.slots) if slot != old.slots[number]),
    )


# --- ports ------------------------------------------------------------------------------------------------------------


class ScriptedSource:
    """A MetadataSource. What it publishes and what its controller answers is the test's word; it notes what was asked."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.requests: list[ControllerRequest] = []
        self.asked_at_ms: list[int] = []
        self.decide: Callable[[ControllerRequest], object] = lambda request: NotControllerError("nobody decides")
        self.addresses: dict[int, tuple[str, int]] = {}
        self.slots: dict[int, tuple[int, list[Record]]] = {}
        self.slots_asked: list[int] = []
        self.feeds: list[MetadataFeed | Exception] = []
        self.is_closed = False
        self._publish: Subscriber | None = None

    async def start(self, publish: Subscriber) -> None:
        self._publish = publish

    def publish_group_records(self, records: tuple[tuple[int, Record], ...]) -> None:
        """Nothing but groups has changed."""
        self.publish(group_records=records)

    def publish(
        self,
        image: MetadataImage | None = None,
        *,
        leader: int | None = 0,
        term: int = 1,
        restored: bool = False,
        group_records: tuple[tuple[int, Record], ...] = (),
    ) -> None:
        """The image None is that of before: only the leadership may have changed."""
        before, self.image = self.image, image or self.image
        assert self._publish is not None
        self._publish(
            MetadataPublication(
                image=self.image,
                changes=changes_between(before, self.image),
                group_records=group_records,
                leader=Leadership(leader_id=leader, term=term, is_self=leader == 0),
                is_active_controller=leader == 0,
                restored=restored,
            )
        )

    def script(self, *answers: object) -> None:
        """Answer in this order, the last one for ever. An exception is raised, a future is waited for."""
        left = list(answers)
        self.decide = lambda request: left.pop(0) if len(left) > 1 else left[0]

    async def submit(self, request: ControllerRequest) -> object:
        self.requests.append(request)
        self.asked_at_ms.append(now_ms())
        answer = self.decide(request)
        if isinstance(answer, asyncio.Future):
            return await answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def asked(self, kind: type) -> list[Any]:
        return [request for request in self.requests if isinstance(request, kind)]

    async def slot_log(self, slot: int, log_offset: int, limit: int) -> SlotLog:
        raise AssertionError("no test asks for it")

    async def slot_snapshot(self, slot: int) -> tuple[int, list[Record]]:
        self.slots_asked.append(slot)
        return self.slots.get(slot, (self.image.offset, []))

    async def feed(
        self, after_offset: int, max_bytes: int, *, node_id: int = -1, applied: MetadataPosition | None = None
    ) -> MetadataFeed:
        feed = self.feeds.pop(0) if self.feeds else MetadataFeed()
        if isinstance(feed, Exception):
            raise feed
        return feed

    def broker_address(self, node_id: int) -> tuple[str, int] | None:
        return self.addresses.get(node_id)

    async def close(self) -> None:
        self.is_closed = True


class Shell:
    """Node 0 with its metadata and its way to the controller, which is its own unless the test says otherwise."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.source = ScriptedSource()
        self.clock = SimulatedClock(loop)
        self.world = SimulatedNetwork(loop, Random(1))
        self.metadata = MetadataService(self.source)
        self.pool = RpcPool(self.world.node("host-0"), client_id="broker-0", random=Random(2))
        self.controller = ControllerChannel(
            node_id=0,
            metadata=self.metadata,
            pool=self.pool,
            clock=self.clock,
            rng=Random(3),
            listener=LISTENER,
        )

    @classmethod
    async def start(cls, *, broker_epoch: int = 0) -> "Shell":
        shell = cls()
        await shell.metadata.start()
        shell.source.publish()
        shell.metadata.registered(broker_epoch)
        return shell


class Client:
    """A RequestContext, and where the reply goes."""

    def __init__(self, *, listener: str = LISTENER) -> None:
        self.client_host = "10.0.0.9"
        self.client_id = "tester"
        self.listener_name = listener
        self.principal = ANONYMOUS
        self.certified_node: int | None = None
        self.login: Login | None = None
        self.is_drained = False
        self.is_connected = True
        self.connection: object = self
        self.replies: list[Any] = []
        self.wants_no_reply = False
        self.is_hung_up = False
        self._on_disconnect: list[Callable[[], object]] = []

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        self._on_disconnect.append(callback)

    def logged_in(self, principal: Principal) -> None:
        self.principal = principal

    def drain(self) -> None:
        self.is_drained = True

    def no_reply(self) -> None:
        self.wants_no_reply = True

    def hang_up(self) -> None:
        self.is_hung_up = True

    def reply(self, response: Response | KafkaResponse[object]) -> None:
        assert not self.wants_no_reply
        self.replies.append(response)

    def disconnect(self) -> None:
        self.is_connected = False
        for callback in self._on_disconnect:
            callback()

    def answer(self) -> Any:
        """The one reply."""
        assert len(self.replies) == 1, self.replies
        return self.replies[0]
