"""The ports on which a broker serves clients and other brokers, and the addresses at which they reach it."""

import asyncio
import logging
from collections.abc import Callable

from barnabas.kraft.metadata.image import Endpoint

from ..base.figures.request_measures import RequestMeasures
from ..base.settings.config import BrokerConfig
from ..base.settings.listeners import mechanisms_of
from ..base.turn import Turn
from ..server.dispatcher import Dispatcher
from ..server.memory_budget import MemoryBudget
from ..server.quotas.client_quotas import ClientQuotas
from ..server.server import Server
from ..wire.network import Network
from ..wire.protocol.kafka.codec import KafkaCodec
from ..wire.protocol.msgpack import ServerHello
from .core_settings import server_limits
from .logins import believes_certificates, broker_users

logger = logging.getLogger("barnabas.broker")


class BrokerListeners:
    """One server for each client listener. The real addresses are known after `listen`."""

    def __init__(self, config: BrokerConfig, network_of: Callable[[str], Network], *, max_descriptor: int) -> None:
        self.servers: dict[str, Server] = {}  # By the name of the listener.
        self.addresses: dict[str, tuple[str, int]] = {}  # Likewise: those that are bound.
        self._config = config
        self._network_of = network_of
        self._max_descriptor = max_descriptor

    async def listen(
        self,
        dispatcher: Dispatcher,
        *,
        hello: Callable[[], ServerHello],
        client_gone: Callable[[str], None],
        turn: Turn,
        memory: MemoryBudget,
        quotas: ClientQuotas,
        measures: RequestMeasures,
    ) -> None:
        """Raises OSError (a port)."""
        limits = server_limits(self._config, max_descriptor=self._max_descriptor)
        node_id = self._config.node_id
        has_several = len(self._config.client_listeners()) > 1
        inter_broker = self._config.inter_broker_listener()
        for listener in self._config.client_listeners():
            server = Server(
                self._network_of(listener.name),
                dispatcher,
                hello=hello,
                listener_name=listener.name,
                limits=limits,
                client_gone=client_gone,
                turn=turn,
                memory=memory,
                kafka_codec=KafkaCodec(),
                mechanisms=mechanisms_of(self._config, listener.name),
                principal_rules=self._config.for_listener(listener.name).ssl_principal_mapping_rules,
                brokers_are_certified=believes_certificates(self._config, listener.name),
                broker_users=broker_users(self._config, listener.name),
                quotas=quotas,
                measures=measures,
                serves_brokers=listener.name == inter_broker,
                has_only_brokers=has_several and listener.name == inter_broker,
            )
            host, port = self.addresses[listener.name] = await server.start(listener.host, listener.port)
            self.servers[listener.name] = server
            logger.info("listening node=%d listener=%s address=%s:%d", node_id, listener.name, host, port)
        for endpoint in self.advertised():
            if (endpoint.host, endpoint.port) != self.addresses[endpoint.listener]:
                told = (node_id, endpoint.listener, endpoint.host, endpoint.port)
                logger.info("advertised node=%d listener=%s address=%s:%d", *told)

    async def close(self, hurried: asyncio.Event) -> None:
        """Let requests in flight finish, for some seconds at most, unless the stop is hurried."""
        hurrying = asyncio.ensure_future(self._abort_when(hurried))
        try:
            await asyncio.gather(*(server.close() for server in self.servers.values()))
        finally:
            hurrying.cancel()

    async def _abort_when(self, hurried: asyncio.Event) -> None:
        await hurried.wait()
        for server in self.servers.values():
            server.abort_connections()

    def advertised(self) -> tuple[Endpoint, ...]:
        """The addresses at which others reach this broker: the advertised ones, else those on which it listens."""
        advertised = {item.name: item for item in self._config.advertised_listeners}
        endpoints = []
        for name, (host, port) in self.addresses.items():
            item = advertised.get(name)
            if item is not None:
                endpoints.append(Endpoint(listener=name, host=item.host, port=item.port or port))
            else:
                endpoints.append(Endpoint(listener=name, host=host, port=port))
        return tuple(endpoints)

    def quorum_address(self) -> tuple[str, int]:
        """The address on which this broker listens if it becomes a voter: the port after the port for brokers."""
        configured = self._config.quorum_listener
        if configured is not None:
            return configured.host, configured.port
        inter_broker = self._config.inter_broker_listener()
        host = next(item.host for item in self.advertised() if item.listener == inter_broker)
        return host, self.addresses[inter_broker][1] + 1
