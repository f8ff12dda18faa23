"""Detects at once that a broker's process has ended, instead of waiting for the end of its session.

When a process is killed, its connections close. A closed connection is only a hint, so the active controller then connects to the
broker's port. If the connection is refused, no process listens there any more, and the broker is fenced. Any other result
(accepted, no answer, no route) proves nothing, and the session timeout decides as usual. A broker that was fenced by mistake is
unfenced by its next heartbeat: fencing is always safe.
"""

import asyncio
import logging

from barnabas.kraft.metadata.image import BrokerImage
from barnabas.kraft.metadata.requests import FenceBroker
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.log.vocabulary.errors import BarnabasError

from ..base.figures.broker_clients import BROKER_PREFIX
from ..wire.network import Network, stream_transport
from .metadata_service import MetadataService

logger = logging.getLogger("barnabas.lifecycle")

KNOCK_TIMEOUT_S = 0.5
# A process that ends closes its sockets one by one. The loss of a connection may arrive before its port refuses connections, so
# an accepted connection does not prove that the broker lives.
REFUSALS = 2  # in a row
KNOCK_INTERVALS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
MAX_KNOCKING = 64  # brokers that are probed at a time


def client_id_of(node_id: int) -> str:
    """The client id of a broker on its connections to the controller."""
    return f"{BROKER_PREFIX}{node_id}"


class _Knock(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream_transport(transport).abort()


class LivenessWatch:
    """Works only while this broker's controller is the active one."""

    def __init__(self, *, node_id: int, metadata: MetadataService, network: Network, listener: str) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._network = network
        self._listener = listener
        self._was_active = False
        self._tasks: dict[int, asyncio.Task[None]] = {}
        metadata.subscribe(self._published)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The probes that are running."""
        return list(self._tasks.values())

    def connection_lost(self, client_id: str) -> None:
        """A client's connection to this broker was closed; only connections of brokers matter."""
        suffix = client_id.removeprefix(BROKER_PREFIX)
        if client_id != suffix and suffix.isdigit():
            self._look_at(int(suffix))

    def _published(self, publication: MetadataPublication) -> None:
        """A new controller has no connections that could close: it probes every broker once."""
        became_active = publication.is_active_controller and not self._was_active
        self._was_active = publication.is_active_controller
        if became_active:
            for node_id in publication.image.brokers:
                self._look_at(node_id)

    def _look_at(self, node_id: int) -> None:
        broker = self._metadata.image.brokers.get(node_id)
        if not self._metadata.is_active_controller or broker is None or broker.fenced or node_id == self._node_id:
            return
        if node_id in self._tasks or len(self._tasks) >= MAX_KNOCKING:
            return
        task = asyncio.get_running_loop().create_task(self._fence_if_gone(broker))
        self._tasks[node_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(node_id, None))

    async def _fence_if_gone(self, broker: BrokerImage) -> None:
        if not await self._stays_refused(broker):
            return
        logger.warning("broker=%d has ended, its port refuses connections: fencing it", broker.node_id)
        request = FenceBroker(node_id=broker.node_id, broker_epoch=broker.broker_epoch)
        try:
            await self._metadata.source.submit(request)
        except BarnabasError as error:
            logger.info("cannot fence broker=%d: %s", broker.node_id, error)

    async def _stays_refused(self, broker: BrokerImage) -> bool:
        refusals = 0
        for pause_s in (*KNOCK_INTERVALS_S, 0.0):
            refusals = refusals + 1 if await self._is_refused(broker) else 0
            if refusals == REFUSALS:
                return True
            await asyncio.sleep(pause_s)
        return False

    async def _is_refused(self, broker: BrokerImage) -> bool:
        endpoint = broker.endpoint(self._listener)
        try:
            async with asyncio.timeout(KNOCK_TIMEOUT_S):
                await self._network.connect(_Knock, endpoint.host, endpoint.port)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        return False

    async def close(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
