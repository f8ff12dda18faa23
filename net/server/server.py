"""A port of the broker: accepts connections, detects their protocol, and passes requests to a dispatcher.

`Server` counts, limits and drains connections; `connection.ServerConnection` is one client; codecs implement the protocols.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from msgspec.structs import replace

from barnabas.log.settings.principal_rules import DEFAULT_RULES, PrincipalRules
from barnabas.log.vocabulary.principal import Principal

from ..base.figures.request_measures import RequestMeasures
from ..base.limits import (
    LOG_AGAIN_AFTER_MS,
    LONG_STALL_MS,
    MAX_LOGGED_PEERS,
    SHORT_STALL_MS,
    SWEEP_INTERVAL_MS,
)
from ..base.settings.server_limits import ServerLimits
from ..base.turn import Turn
from ..wire.network import Listener, Network
from ..wire.protocol.codec import Codec
from ..wire.protocol.msgpack import MsgpackCodec, ServerHello
from ..wire.protocol.user_messages import SASL_FEATURE
from .admission import IDLE_TO_CLOSE_MS, RESERVED_PLACES_OF_HOST, Admission, Place, is_reserved_for
from .connection import ServerConnection
from .dispatcher import Dispatcher
from .memory_budget import MemoryBudget
from .quotas.client_quotas import ClientQuotas
from .receive_buffer import SharedMemory

logger = logging.getLogger("barnabas.network")


@dataclass(slots=True)
class ServerMetrics:
    """Plain counters, read by /metrics."""

    requests: dict[int, int] = field(default_factory=dict)  # By API; bounded, because only existing APIs are counted.
    bytes_in: int = 0
    bytes_out: int = 0
    connections_accepted: int = 0
    connections_refused: int = 0  # Beyond max_connections.
    connections_expired: int = 0  # Idle, silent or not reading.
    strangers: int = 0  # Neither Barnabas's protocol nor Kafka's.


class Server:
    """One listener. `hello` is called for each connection: the cluster id is not known before the cluster is formed."""

    def __init__(
        self,
        network: Network,
        dispatcher: Dispatcher,
        *,
        hello: Callable[[], ServerHello] = ServerHello,
        listener_name: str = "PLAINTEXT",
        limits: ServerLimits | None = None,
        kafka_codec: Codec | None = None,
        turn: Turn | None = None,
        memory: MemoryBudget | None = None,
        client_gone: Callable[[str], None] | None = None,
        mechanisms: tuple[str, ...] = (),
        principal_rules: PrincipalRules = DEFAULT_RULES,
        brokers_are_certified: bool = True,
        broker_users: Collection[Principal] = (),
        quotas: ClientQuotas | None = None,
        serves_brokers: bool = True,
        has_only_brokers: bool = False,
        measures: RequestMeasures | None = None,
    ) -> None:
        self.dispatcher = dispatcher
        self.principal_rules = principal_rules
        # False: certificates that brokers do not show to each other name none; the authority may have signed a machine's name.
        self.brokers_are_certified = brokers_are_certified
        self.broker_users = broker_users  # who, after a login, are the brokers that their certificates name
        self.hello = hello
        self.listener_name = listener_name
        self.mechanisms = mechanisms  # of SASL; (): clients need not log in
        self.limits = limits or ServerLimits()
        self.codec: Codec = MsgpackCodec()
        self.kafka_codec = kafka_codec
        self.turn = turn or Turn()
        self.memory = memory or MemoryBudget()
        self.shared = SharedMemory(self.memory)
        self.quotas = quotas or ClientQuotas({})
        self.serves_brokers = serves_brokers  # they connect to each other here
        # Another listener serves clients: quotas of addresses do not count here.
        self._has_only_brokers = has_only_brokers
        self._client_gone = client_gone
        self.metrics = ServerMetrics()
        self.measures = measures or RequestMeasures()
        self.now_s: Callable[[], float] = time.monotonic  # of measures
        self.is_draining = False
        self._network = network
        self._connections: dict[ServerConnection, None] = {}  # in order of arrival
        self._reserved: dict[ServerConnection, None] = {}  # those on reserved places
        self._admission = Admission(
            max_connections=self.limits.max_connections, max_descriptor=self.limits.max_descriptor
        )
        self._listener: Listener | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._logged_at: dict[str, float] = {}
        self._idle: asyncio.Event | None = None  # Set when the last connection has gone.

    @property
    def address(self) -> tuple[str, int]:
        assert self._listener is not None, "the server has not been started"
        return self._listener.address

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the real address. Raises OSError."""
        self._listener = await self._network.listen(lambda: ServerConnection(self), host, port)
        self._idle = asyncio.Event()
        loop = asyncio.get_running_loop()
        if type(loop).time is not asyncio.BaseEventLoop.time:  # Otherwise it is time.monotonic with a call around it.
            self.now_s = loop.time
        self._schedule_sweep()
        return self.address

    async def close(self, drain_timeout_ms: int = 5_000) -> None:
        """Accept no more connections and requests, let those in flight finish within the timeout, then close."""
        self.is_draining = True
        if self._listener is not None:
            await self._listener.close()
        for connection in list(self._connections):
            connection.drain()
        if self._connections and self._idle is not None:
            self._idle.clear()
            try:
                async with asyncio.timeout(drain_timeout_ms / 1000):
                    await self._idle.wait()
            except TimeoutError:
                logger.warning("closing connections with requests in flight connections=%d", len(self._connections))
        for connection in list(self._connections):
            connection.abort()
        await self.dispatcher.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        await asyncio.sleep(0)  # Transports report the loss in the next turn of the loop.

    def abort_connections(self, client_id: str | None = None) -> int:
        """Close the connections of this client, or all, at once and without the answers in flight; return their number."""
        chosen = [one for one in self._connections if client_id is None or one.client_id == client_id]
        for connection in chosen:
            connection.abort()
        return len(chosen)

    def greeting(self) -> ServerHello:
        """The hello, with the ways to log in here."""
        hello = self.hello()
        if not self.mechanisms:
            return hello
        return replace(hello, features=hello.features | {f"{SASL_FEATURE}{name}": 1 for name in self.mechanisms})

    # --- called by connections ---------------------------------------------------------------------------------------

    def admit(self, connection: ServerConnection, descriptor: int) -> Place:
        """`descriptor` is the number of the connection's socket, -1 without one."""
        place = Place.REFUSED
        if self.quotas.limits_connections and not self._is_within_quota(connection):
            return place
        if not self.is_draining:
            place = self._place_for(connection, descriptor)
            if place is Place.REFUSED and self._end_probation(connection.client_host):
                place = self._place_for(connection, descriptor)
        if place is Place.REFUSED:
            self._refused()
            return place
        self._connections[connection] = None
        if place is Place.RESERVED:
            self._reserved[connection] = None
        self.metrics.connections_accepted += 1
        return place

    def _is_within_quota(self, connection: ServerConnection) -> bool:
        """KIP-612. Differs from Kafka: the connection is closed at once, so that it holds no descriptor."""
        host = connection.client_host
        if self._has_only_brokers or self.quotas.admit_connection(host, connection.now_ms()):
            return True
        self.metrics.connections_refused += 1
        self.log_once(f"quota {host}", "connection refused peer=%s reason=connection_creation_rate", host)
        return False

    def _place_for(self, connection: ServerConnection, descriptor: int) -> Place:
        return self._admission.place(
            ordinary=len(self._connections) - len(self._reserved),
            reserved=len(self._reserved),
            reserved_of_host=self._reserved_of(connection.client_host),
            descriptor=descriptor,
        )

    def _reserved_of(self, client_host: str) -> int:
        return sum(other.client_host == client_host for other in self._reserved)

    def _end_probation(self, client_host: str) -> bool:
        """Make room for a connection from this address, and return whether that succeeded: close the oldest connection that has
        not sent its client id yet; one of the same address, if the address has its share already. A broker sends its client id
        at once, so clients that send nothing cannot lock it out."""
        has_share = self._reserved_of(client_host) >= RESERVED_PLACES_OF_HOST
        silent = (other for other in self._reserved if other.is_on_probation)
        victim = next((other for other in silent if other.client_host == client_host or not has_share), None)
        if victim is None:
            return False
        del self._reserved[victim], self._connections[victim]
        self._refused()
        victim.abort()
        return True

    def identified(self, connection: ServerConnection) -> bool:
        """Return whether a connection on a reserved place may stay, now that its client id is known."""
        if not is_reserved_for(connection.client_id):
            self._refused()
            return False
        idle = max(self._connections, key=lambda other: 0 if other in self._reserved else other.pace.quiet_ms)
        if idle not in self._reserved and idle.pace.quiet_ms >= IDLE_TO_CLOSE_MS:
            self.metrics.connections_expired += 1
            idle.abort()
            del self._reserved[connection]  # It has the place of the idle connection now.
        return True

    def _refused(self) -> None:
        self.metrics.connections_refused += 1
        self.log_once(
            "connections", "too many connections limit=%d open=%d; raise max.connections and ulimit -n, or close some",
            self.limits.max_connections, len(self._connections),
        )  # fmt: skip

    def forget(self, connection: ServerConnection) -> None:
        self._connections.pop(connection, None)
        self._reserved.pop(connection, None)
        if self._client_gone is not None and connection.client_id and not self.is_draining:
            self._client_gone(connection.client_id)
        if not self._connections and self._idle is not None:
            self._idle.set()

    def log_once(self, subject: str, message: str, *arguments: object) -> None:
        """Log a warning, at most once a minute for each subject: unknown clients must not be able to fill the disk."""
        now = asyncio.get_running_loop().time()
        last = self._logged_at.get(subject)
        if last is not None and now - last < LOG_AGAIN_AFTER_MS / 1000:
            return
        if len(self._logged_at) >= MAX_LOGGED_PEERS:
            self._logged_at.clear()
        self._logged_at[subject] = now
        logger.warning(message, *arguments)

    # --- time --------------------------------------------------------------------------------------------------------

    def _schedule_sweep(self) -> None:
        self._sweep_timer = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_MS / 1000, self._sweep)

    def _sweep(self) -> None:
        """One timer for all connections: a timer per connection, set at each wake-up, would cost more than the wake-up."""
        for connection in list(self._connections):
            is_stuck = connection.pace.stalled_ms >= LONG_STALL_MS and connection.intake.has_unfinished_request
            if connection.has_expired(SWEEP_INTERVAL_MS) or is_stuck:
                self._expire(connection)
        if self.memory.is_short:
            self._make_room()
        self._schedule_sweep()

    def _make_room(self) -> None:
        """Others wait for memory: close connections that hold memory and make no progress, the largest first."""
        wanted_bytes = self.memory.least_wanted_bytes
        holders = sorted(self._connections, key=lambda connection: connection.held_bytes, reverse=True)
        stalled = [one for one in holders if one.held_bytes and _may_be_closed(one)]
        for connection in stalled:
            if wanted_bytes <= 0:
                return
            wanted_bytes -= connection.held_bytes
            self._expire(connection)
        if not stalled:
            self._end_standstill()

    def _end_standstill(self) -> None:
        """All connections that hold memory may wait for more. Then the one that holds the most is closed: not the last one that
        arrived, which may need only little while a few others hold everything."""
        holders = [one for one in self._connections if one.held_bytes]
        if holders and all(one.intake.waits_for_memory for one in holders):
            self._expire(max(holders, key=lambda one: one.held_bytes))

    def _expire(self, connection: ServerConnection) -> None:
        if connection.is_on_probation:
            self._refused()
        else:
            self.metrics.connections_expired += 1
        connection.abort()


def _may_be_closed(connection: ServerConnection) -> bool:
    """Others wait for the memory that it holds: it makes no progress, or is not read because of its quota."""
    return connection.pace.stalled_ms >= SHORT_STALL_MS or connection.is_slow or connection.intake.is_muted
