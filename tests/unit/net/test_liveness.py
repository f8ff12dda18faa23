"""A killed broker is noticed by its refused port; everything short of that is left to the session time-out."""

import asyncio
from collections.abc import Callable

import pytest

from barnabas.kraft.metadata.image import BrokerImage, Endpoint, MetadataChanges, MetadataImage
from barnabas.kraft.metadata.records import Record
from barnabas.kraft.metadata.requests import ControllerRequest, Done, FenceBroker
from barnabas.kraft.node.metadata_feed import MetadataFeed
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.kraft.quorum.quorum import Leadership
from barnabas.log.vocabulary.metadata_position import MetadataPosition
from barnabas.net.metadata.liveness import LivenessWatch, client_id_of
from barnabas.net.metadata.metadata_service import MetadataService, Subscriber
from barnabas.net.wire.network import Listener, ProtocolFactory

ACCEPTED = "accepted"


class Door:
    """A network on which the one broker's port answers knocks as the script says; the last answer is repeated."""

    def __init__(self, *answers: str | type[OSError]) -> None:
        self.answers = list(answers)
        self.knocks = 0

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listener:
        raise AssertionError("nobody listens here")

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.BaseProtocol:
        self.knocks += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, str):
            return factory()
        raise answer


class Source:
    """The controller of this node: notes who is fenced."""

    def __init__(self) -> None:
        self.fenced: asyncio.Queue[FenceBroker] = asyncio.Queue()
        self.publish: Subscriber | None = None

    async def start(self, publish: Subscriber) -> None:
        self.publish = publish

    async def submit(self, request: ControllerRequest) -> object:
        assert isinstance(request, FenceBroker)
        self.fenced.put_nowait(request)
        return Done()

    async def slot_snapshot(self, slot: int) -> tuple[int, list[Record]]:
        raise NotImplementedError

    async def feed(
        self, after_offset: int, max_bytes: int, *, node_id: int = -1, applied: MetadataPosition | None = None
    ) -> MetadataFeed:
        raise NotImplementedError

    def broker_address(self, node_id: int) -> tuple[str, int] | None:
        return None

    async def close(self) -> None:
        pass


def image() -> MetadataImage:
    endpoint = Endpoint(listener="PLAINTEXT", host="10.0.0.1", port=9)
    brokers = {
        node_id: BrokerImage(
            node_id=node_id, broker_epoch=node_id + 10, incarnation="i", endpoints=(endpoint,), fenced=False
        )
        for node_id in (0, 1)
    }
    return MetadataImage(brokers=brokers, offset=20)


async def watch_of(door: Door, *, is_active: bool) -> tuple[LivenessWatch, Source, Callable[[], None]]:
    source = Source()
    metadata = MetadataService(source)
    watch = LivenessWatch(node_id=0, metadata=metadata, network=door, listener="PLAINTEXT")
    await metadata.start()
    leader = Leadership(leader_id=0, term=1, is_self=True)

    def publish() -> None:
        assert source.publish is not None
        source.publish(
            MetadataPublication(
                image=image(),
                changes=MetadataChanges(),
                group_records=(),
                leader=leader,
                is_active_controller=is_active,
            )
        )

    return watch, source, publish


@pytest.mark.parametrize(
    "answers",
    [
        (ConnectionRefusedError,),
        # The port still accepts, or resets, for a moment after the first socket of the dying process was closed.
        (ACCEPTED, ConnectionResetError, ConnectionRefusedError),
    ],
)
async def test_a_refused_port_behind_a_lost_connection_is_a_dead_broker(
    answers: tuple[str | type[OSError], ...],
) -> None:
    door = Door(ACCEPTED)
    watch, source, publish = await watch_of(door, is_active=True)
    publish()
    await asyncio.gather(*watch.tasks)  # the knocks of a new controller: broker 1 lives
    door.answers = list(answers)
    watch.connection_lost(client_id_of(1))
    request = await asyncio.wait_for(source.fenced.get(), 5)
    assert (request.node_id, request.broker_epoch) == (1, 11)
    await watch.close()


async def test_a_new_controller_knocks_at_everybody_once() -> None:
    door = Door(ConnectionRefusedError)
    watch, source, publish = await watch_of(door, is_active=True)
    publish()
    assert (await asyncio.wait_for(source.fenced.get(), 5)).node_id == 1
    await asyncio.sleep(0)  # since Python 3.12, `wait_for` returns before the callback that drops the task
    publish()
    assert not watch.tasks
    await watch.close()


@pytest.mark.parametrize("answer", [ACCEPTED, TimeoutError, ConnectionResetError])
async def test_anything_but_a_refusal_proves_nothing(answer: str | type[OSError]) -> None:
    watch, source, publish = await watch_of(Door(answer), is_active=True)
    publish()
    await asyncio.gather(*watch.tasks)
    assert source.fenced.empty()


async def test_other_clients_other_nodes_and_other_roles_are_left_alone() -> None:
    door = Door(ConnectionRefusedError)
    watch, source, publish = await watch_of(door, is_active=False)
    publish()
    for client_id in (client_id_of(1), "broker-x", "producer-1", client_id_of(7), client_id_of(0)):
        watch.connection_lost(client_id)
    assert not watch.tasks and source.fenced.empty() and door.knocks == 0
