"""The faults of one broker, wherever it runs: its ports with faults behind them, and the orders that set them."""

import random
import uuid
from collections.abc import Callable
from dataclasses import replace

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.net.base.sasl.verifiers import UserFile
from barnabas.net.base.settings.config import BrokerConfig

from ...base.clock import Clock, SystemClock
from ...broker.broker import Broker, Ports
from ...broker.metadata_sources import QuorumPorts, build_source
from ...broker.tls import BrokerTls, QuorumNetwork
from ...metadata.metadata_service import MetadataSource
from ...metadata.quorum_source import SameLoopHost
from ...wire.tcp import TcpNetwork
from .disk_faults import DiskRules, FaultyFiles
from .link_faults import BrokerLinks, FaultyNetwork, FaultyQuorumNetwork
from .orders import AskController, AskReady, EndSession, Faults, Order
from .request_faults import RequestFaults


class ShiftedClock:
    """Wall time with an offset; deadlines and timers are not touched."""

    def __init__(self, inner: Clock) -> None:
        self._inner = inner
        self.offset_ms = 0

    def now_ms(self) -> int:
        return self._inner.now_ms()

    def wall_ms(self) -> int:
        return self._inner.wall_ms() + self.offset_ms


class FaultBoard:
    """Made on the broker's loop; `carry_out` runs there, too."""

    def __init__(self) -> None:
        self.links = BrokerLinks()
        self.disk = DiskRules()
        self.requests = RequestFaults()
        self.clock = ShiftedClock(SystemClock())
        self.broker: Broker | None = None
        self._quorum_host = SameLoopHost()  # of a broker in this process

    def ports(
        self, fatal: Callable[[str], None], config: BrokerConfig, tls: BrokerTls | None, users: UserFile
    ) -> Ports:
        """Of a broker in this process: its quorum shares its loop, and reserves no space for the journal."""
        return self.with_faults(
            Ports(
                network=tls.network(config.inter_broker_listener()) if tls else TcpNetwork(),
                network_of=tls.network if tls else None,
                quorum_tls=tls.quorum() if tls else None,
                users=users,
                files=FaultyFiles(self.disk),
                clock=self.clock,
                rng=random.Random(),
                make_source=lambda broker: self._source(
                    broker, QuorumPorts(host=lambda: self._quorum_host, network=self._quorum_network, ballast_bytes=0)
                ),
                fatal=fatal,
                incarnation=uuid.uuid4().hex,
            )
        )

    def adapted(self, ports: Ports) -> Ports:
        """The same ports with faults behind them, of a broker that has its process for itself."""
        return self.with_faults(
            replace(
                ports,
                files=FaultyFiles(self.disk),
                clock=self.clock,
                make_source=lambda broker: self._source(broker, QuorumPorts(network=self._quorum_network)),
            )
        )

    def with_faults(self, ports: Ports) -> Ports:
        network_of = ports.network_of
        return replace(
            ports,
            network=FaultyNetwork(ports.network, self.links),
            network_of=None if network_of is None else lambda name: FaultyNetwork(network_of(name), self.links),
            intercept=self.requests.wrap,
        )

    def _source(self, broker: Broker, quorum: QuorumPorts) -> MetadataSource:
        self.broker = broker
        return build_source(broker, quorum)

    def _quorum_network(self) -> FaultyQuorumNetwork:
        return FaultyQuorumNetwork(self.links, QuorumNetwork())

    async def carry_out(self, order: Order) -> int:
        """The answer of the order; 0 where it has none."""
        if isinstance(order, Faults):
            self._set(order)
            return 0
        broker = self.broker
        if isinstance(order, AskReady):
            return int(broker is not None and hasattr(broker, "lifecycle") and broker.is_ready)
        if broker is None:
            raise InvalidRequestError("the broker is not built yet")
        if isinstance(order, AskController):
            leader_id = broker.metadata.leadership.leader_id
            return -1 if leader_id is None else leader_id
        if isinstance(order, EndSession):
            await self._end_session(broker, order)
            return 0
        return sum(server.abort_connections(order.client_id) for server in broker.listeners.servers.values())

    async def _end_session(self, broker: Broker, order: EndSession) -> None:
        key = (order.group, order.member_id)
        await broker.groups.handle(order.group, lambda machine: machine.tick(broker.groups.now_ms(), ended=key))

    def _set(self, faults: Faults) -> None:
        self.clock.offset_ms = faults.clock_offset_ms
        self.disk.delay_s = faults.disk_delay_ms / 1000
        self.disk.is_full = faults.is_disk_full
        self.requests.active = faults.requests
        self.links.change(cut=frozenset(faults.cut), delay_s=faults.network_delay_ms / 1000)

    def die(self) -> None:
        """From now on nothing that this broker does has an effect outside of its memory."""
        self._quorum_host.kill()  # first: it would report that its disk refuses the next write
        self.disk.die()
        self.links.die()
