"""`Client`: shared by producer, consumer and admin: connections, metadata refresh, and retries.

Each broker gets two connections, one for control and produce and one for fetches: a fetch answer of many megabytes
must not delay an acknowledgement.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any, NamedTuple, Protocol, TypeVar, Unpack

from barnabas.log.vocabulary.node_address import NodeAddress
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.requests import MetadataRequest, Request
from barnabas.net.wire.protocol.responses import MetadataResponse

from ...base.clock import Clock, SystemClock
from ...base.retries import Backoff, Copies
from ...wire.network import Network
from ...wire.rpc import RpcPool
from ...wire.surroundings import SURROUNDINGS, new_random
from .addresses import Address, parse_bootstrap
from .coordinators import SLOW_CONNECT_S, Coordinators
from .errors import (
    BarnabasError,
    BrokerNotAvailableError,
    ClientClosedError,
    ConcurrentUseError,
    LeaderNotAvailableError,
    NetworkError,
    NoBrokersAvailableError,
    UnknownTopicOrPartitionError,
)
from .metadata import MetadataCache
from .ports import Connection, Pool
from .security import SecurityOptions, network_of
from .troubles import QUIET_MISSING_MS, QUIET_MS, Troubles

logger = logging.getLogger("barnabas.client")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

DEFAULT_BOOTSTRAP = "localhost:9092"
REQUEST_TIMEOUT_MS = 30_000  # Kafka's request.timeout.ms.
API_TIMEOUT_MS = 60_000  # Kafka's default.api.timeout.ms: a whole call with its retries.
CONNECT_TIMEOUT_MS = 5_000  # A dead address must not use up the time for the next one.
METADATA_MAX_AGE_MS = 300_000  # Kafka's metadata.max.age.ms: new partitions are noticed within this time.
RETRY_BACKOFF_MS = 50
RETRY_BACKOFF_MAX_MS = 1_000  # Kafka's retry.backoff.max.ms.


class Home(NamedTuple):
    """The broker that a client in the same process belongs to, and the address under which the pool knows it.

    It answers whatever any broker can answer. It also forwards changes to the controller, so that its own metadata shows the
    changes when the answer arrives; and it can be queried before the cluster knows it, or after the cluster has fenced it.
    """

    node_id: int
    address: Address


class Client:
    """Start it before use and close it afterwards. Call all methods on one event loop."""

    def __init__(
        self,
        bootstrap: str | Iterable[str] = DEFAULT_BOOTSTRAP,
        *,
        client_id: str = "barnabas",
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        retry_backoff_ms: float = RETRY_BACKOFF_MS,
        metadata_max_age_ms: int = METADATA_MAX_AGE_MS,
        network: Network | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        new_pool: Callable[[], Pool] | None = None,
        home: Home | None = None,
        **security: Unpack[SecurityOptions],
    ) -> None:
        """Raises InvalidConfigError (a security option)."""
        self.bootstrap = parse_bootstrap(bootstrap)
        self.client_id = client_id
        self.request_timeout_ms = request_timeout_ms
        self.metadata = MetadataCache()
        around = SURROUNDINGS.get()
        self.rng = rng or new_random()
        self.backoff = Backoff(first_ms=retry_backoff_ms, max_ms=max(retry_backoff_ms, RETRY_BACKOFF_MAX_MS))
        self.troubles = Troubles()
        self.coordinators = Coordinators(self)
        self._connecting: set[int] = set()  # Node ids.
        self._told_by = ""  # The source address of the newest metadata.
        self._changed_at: Address | None = None  # Of the broker that carried out the last change that we asked for.
        self._clock = clock or (around.clock if around else None)
        self._network = network or (around.network if around else network_of(security))
        self._home = home
        self._new_pool = new_pool or self._rpc_pool
        self.metadata_max_age_ms = metadata_max_age_ms
        self._topics: dict[str, bool] = {}  # Topics whose metadata is kept -> whether they may be created.
        self._wants_all = False
        self._listeners: list[Callable[[], None]] = []
        self._refreshing: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._is_closed = False

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect and fetch metadata. Raises NoBrokersAvailableError, which lists each address with its error."""
        if self._keeper is not None:
            return
        self._loop = asyncio.get_running_loop()
        self.clock: Clock = self._clock or SystemClock()
        self._stale = asyncio.Event()
        self._control = self._new_pool()
        self._bulk = self._new_pool()
        try:
            await self.refresh()
            self._check_open()
        except BaseException:
            await self._close_pools()
            raise
        self._keeper = asyncio.create_task(self._keep_fresh(), name="barnabas-metadata")

    async def close(self) -> None:
        """Raises ConcurrentUseError on another loop than that of the start: tasks of a loop that does not run never end."""
        if self._is_closed:
            return
        if self._keeper is not None:
            check_loop(self._loop, "client")
        self._is_closed = True
        tasks = [task for task in (self._keeper, self._refreshing) if task is not None]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            if self._keeper is not None:
                await self._close_pools()

    async def _close_pools(self) -> None:
        try:
            await self._control.close()
        finally:
            await self._bulk.close()

    def _rpc_pool(self) -> Pool:
        return RpcPool(
            self._network,
            client_id=self.client_id,
            random=self.rng,
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
        )

    # --- connections -------------------------------------------------------------------------------------------------

    def peek(self, node_id: int, *, bulk: bool = False) -> Connection | None:
        """Return the open connection to a broker, if there is one. For the hot path."""
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            return None
        return (self._bulk if bulk else self._control).peek(broker.host, broker.port)

    async def connect(self, node_id: int, *, bulk: bool = False) -> Connection:
        """Return the connection to a broker. Raises NetworkError, or BrokerNotAvailableError for an unknown broker."""
        self._check_open()
        if self._home is not None and node_id == self._home.node_id:
            return await self._control.get(*self._home.address)
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            raise BrokerNotAvailableError(f"broker {node_id} is not in the metadata: it is down or still starting")
        pool = self._bulk if bulk else self._control
        found = pool.peek(broker.host, broker.port)
        if found is not None:
            return found
        self._connecting.add(node_id)
        try:
            found = await self._open(pool, broker)
        except NetworkError as error:
            told = self._unreachable(error, broker)
            self.note_trouble(f"broker {node_id}", told)
            raise told from error
        finally:
            self._connecting.discard(node_id)
        self.troubles.works(f"broker {node_id}")
        return found

    async def connect_to(self, broker: NodeAddress) -> Connection:
        """Return the connection to a broker that another one has named. Raises NetworkError."""
        try:
            return await self._control.get(broker.host, broker.port)
        except NetworkError as error:
            raise self._unreachable(error, broker) from error

    def note_trouble(self, what: str, error: BarnabasError) -> None:
        """Record a failure that is retried; it is logged if it persists."""
        quiet_ms = QUIET_MISSING_MS if isinstance(error, UnknownTopicOrPartitionError) else QUIET_MS
        if self.troubles.failed(what, error, self.clock.now_ms(), quiet_ms=quiet_ms):
            logger.warning("%s: %s; retrying", what, error.message)

    def trouble(self) -> str:
        """The failure that has persisted longest, in words; "" if there is none."""
        oldest = self.troubles.oldest
        return "" if oldest is None else oldest.message

    def unanswered(self) -> str:
        """Brokers with unanswered requests, in words; "" if there are none."""
        silent = [
            f"broker {broker.node_id} at {broker.host}:{broker.port}"
            for broker in self.metadata.brokers.values()
            if broker.node_id in self._connecting
            or ((connection := self._control.peek(broker.host, broker.port)) is not None and connection.in_flight)
        ]
        return f"no answer yet from {', '.join(silent)}" if silent else ""

    def _unreachable(self, error: NetworkError, broker: NodeAddress) -> NetworkError:
        """The advertised address was not configured here: report its source, and how the operator can fix it."""
        if (broker.host, broker.port) in self.bootstrap:
            return error
        told_by = f", according to {self._told_by}" if self._told_by else ""  # a broker's own client asks nobody
        return NetworkError(
            f"{error.message}. Broker {broker.node_id} advertises {broker.host}:{broker.port}{told_by}: if"
            " the broker is up, set its advertised.listeners to an address that this machine can reach"
        )

    async def _open(self, pool: Pool, broker: NodeAddress) -> Connection:
        """Refresh metadata while a broker is slow: it may have lost its leaderships before the request times out."""
        opening = asyncio.ensure_future(pool.get(broker.host, broker.port))
        opening.add_done_callback(_look_at_error)
        try:
            while not (await asyncio.wait([opening], timeout=SLOW_CONNECT_S))[0]:
                self.request_refresh()
            return opening.result()
        finally:
            opening.cancel()

    async def call(self, node_id: int, request: Request, *, timeout_ms: int | None = None, bulk: bool = False) -> Any:
        """Send a request to one broker, once."""
        connection = await self.connect(node_id, bulk=bulk)
        return await connection.call(request, timeout_ms=timeout_ms or self.request_timeout_ms)

    async def call_leader(self, partition: TopicPartition, request: Request) -> Any:
        """Send a request to the leader of a partition, once. Raises LeaderNotAvailableError."""
        leader = self.metadata.leader(partition).node_id
        if leader < 0:
            raise LeaderNotAvailableError(f"{partition} has no leader")
        return await self.call(leader, request)

    async def call_any(self, request: Request) -> Any:
        """Try brokers in random order until one answers. Raises NoBrokersAvailableError if none does.

        Brokers that do not accept a connection soon are tried last: if the network is cut, that takes seconds to fail.
        """
        self._check_open()
        if self._home is not None:
            return await self.call(self._home.node_id, request)
        reasons: list[str] = []
        addresses = self._addresses()
        for patience_s in (SLOW_CONNECT_S, None):
            slow: list[Address] = []
            for host, port in addresses:
                try:
                    async with asyncio.timeout(patience_s):
                        connection = await self._control.get(host, port)
                except TimeoutError:
                    slow.append((host, port))
                    continue
                except BarnabasError as error:
                    self._note(error, host, port, reasons)
                    continue
                try:
                    response = await connection.call(request, timeout_ms=self.request_timeout_ms)
                    self._told_by = f"{host}:{port}"
                    return response
                except BarnabasError as error:
                    self._note(error, host, port, reasons)
            addresses = slow
        raise NoBrokersAvailableError("no broker answers: " + "; ".join(reasons))

    def _note(self, error: BarnabasError, host: str, port: int, reasons: list[str]) -> None:
        """Record the error and try another broker, unless the request itself is invalid."""
        if not error.retriable:
            raise error
        reasons.append(f"{host}:{port}: {error.message}")

    def _addresses(self) -> list[Address]:
        """Known brokers, those with an open connection first, then the bootstrap list. First of all the one that carried out our
        last change, as long as it is connected: others may hear of the change some milliseconds later."""
        known = [(broker.host, broker.port) for broker in self.metadata.brokers.values()]
        self.rng.shuffle(known)
        known.sort(key=lambda address: (self._control.peek(*address) is None, address != self._changed_at))
        return list(dict.fromkeys([*known, *self.bootstrap]))

    # --- the controller ----------------------------------------------------------------------------------------------

    async def call_controller(
        self,
        request: Request,
        *,
        timeout_ms: int = API_TIMEOUT_MS,
        final: tuple[type[BarnabasError], ...] = (),
        done_already: tuple[type[BarnabasError], ...] = (),
    ) -> Any:
        """Send a request to the controller, following its moves, for at most `timeout_ms`.

        `final` errors are not retried, even if they are retriable. An error in `done_already` counts as success (None is
        returned) if an earlier copy of the request may have been executed: its connection was lost after sending.
        """
        copies = Copies(NoBrokersAvailableError)  # whose connection may have been lost after sending

        async def attempt() -> Any:
            try:
                controller = self.metadata.brokers.get(self.metadata.controller_id)
                if self._home is not None or controller is None:
                    return await self.call_any(request)
                response = await self.call(controller.node_id, request, timeout_ms=timeout_ms)
                self._changed_at = (controller.host, controller.port)
                return response
            except final as error:
                return None if copies.is_done(error, done_already) else error
            except BarnabasError as error:
                copies.failed(error)
                raise

        outcome = await self.retrying(attempt, timeout_ms=timeout_ms, before_retry=self.refresh)
        if isinstance(outcome, BarnabasError):
            raise outcome
        return outcome

    async def retrying(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        timeout_ms: float,
        before_retry: Callable[[], Awaitable[None]] | None = None,
    ) -> T:
        """Call until success, an error that is not retriable, or the timeout; then raise the last error."""
        deadline_ms = self.clock.now_ms() + timeout_ms
        failures = 0
        while True:
            try:
                if failures and before_retry is not None:
                    await before_retry()
                return await attempt()
            except BarnabasError as error:
                failures += 1
                delay_ms = self.backoff.delay_ms(failures, self.rng.random)
                if not error.retriable or self.clock.now_ms() + delay_ms > deadline_ms:
                    raise
                await asyncio.sleep(delay_ms / 1000)

    # --- metadata ----------------------------------------------------------------------------------------------------

    def want_topic(self, topic: str, *, create: bool = False) -> None:
        """Keep metadata of this topic from now on."""
        self._topics[topic] = self._topics.get(topic, False) or create

    def want_all_topics(self) -> None:
        """Keep metadata of all topics, including future ones: a pattern is matched against them."""
        if not self._wants_all:
            self._wants_all = True
            self.request_refresh()

    def on_metadata(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each answer with metadata."""
        self._listeners.append(listener)

    def request_refresh(self) -> None:
        """The metadata is known to be outdated: refresh it in the background."""
        self._stale.set()

    async def refresh(self) -> None:
        """Refresh the metadata now; concurrent callers share one request."""
        self._check_open()
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
            self._refreshing.add_done_callback(_look_at_error)
        task = self._refreshing
        await asyncio.wait(
            [task]
        )  # Do not await the task itself: a cancelled caller must not cancel it for the others.
        if task.cancelled():
            raise ClientClosedError("the client was closed")
        task.result()

    async def wait_for_topic(self, topic: str, *, timeout_ms: float, create: bool = False) -> int:
        """Return the number of partitions once it is known. Raises the last error at the timeout."""
        if topic not in self._topics:
            self.want_topic(topic, create=create)

        async def attempt() -> int:
            if not self.metadata.partition_count(topic):
                await self.refresh()
            if not self.metadata.partition_count(topic):
                raise self.metadata.topic_failure(topic)
            return self.metadata.partition_count(topic)

        return await self.retrying(attempt, timeout_ms=timeout_ms)

    async def _refresh(self) -> None:
        request = MetadataRequest(
            topics=None if self._wants_all else tuple(sorted(self._topics)),
            allow_auto_topic_creation=any(self._topics.values()),
        )
        try:
            response: MetadataResponse = await self.call_any(request)
        except BarnabasError as error:
            self.note_trouble("metadata", error)
            raise
        self.troubles.works("metadata")
        self.metadata.update(response)
        self.troubles.keep("broker ", {f"broker {node_id}" for node_id in self.metadata.brokers})
        self._note_missing_topics()
        for listener in self._listeners:
            listener()

    def _note_missing_topics(self) -> None:
        for topic in self._topics:
            what = f"topic {topic}"
            if self.metadata.partition_count(topic):
                self.troubles.works(what)
            else:
                self.note_trouble(what, self.metadata.topic_failure(topic))

    async def _keep_fresh(self) -> None:
        """Refresh on request, at the maximum age, and repeatedly while a tracked topic has a partition without a leader."""
        attempts = 0
        if self.metadata.without_leader(self._topics):
            self._stale.set()
        while True:
            try:
                async with asyncio.timeout(self.metadata_max_age_ms / 1000):
                    await self._stale.wait()
            except TimeoutError:
                pass
            self._stale.clear()
            try:
                await self.refresh()
            except BarnabasError as error:
                logger.warning("metadata refresh failed: %s", error.message)
                self._stale.set()
            if self.metadata.without_leader(self._topics):
                self._stale.set()
            attempts = attempts + 1 if self._stale.is_set() else 1
            await asyncio.sleep(self.backoff.delay_ms(attempts, self.rng.random) / 1000)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosedError("the client is closed")
        check_loop(self._loop, "client")


def check_loop(loop: asyncio.AbstractEventLoop, what: str) -> None:
    """Raises ConcurrentUseError on any loop other than the one that the client was started on: its futures belong to that loop,
    and a call from another one would wait forever."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is not loop:
        raise ConcurrentUseError(
            f"this {what} was started on another event loop: call it on that loop (asyncio.run_coroutine_threadsafe), make one"
            " for each loop, or use barnabas.sync in threads"
        )


def _look_at_error(task: asyncio.Future[Any]) -> None:
    """Retrieve the exception: all waiters may be cancelled, and asyncio reports exceptions that are never retrieved."""
    if not task.cancelled():
        task.exception()


class HasInside(Protocol[T_co]):
    """`Producer` and `Consumer` show applications only what is meant for them. `_inside` is what the SDK's own modules use beside
    it, and may change in any version."""

    @property
    def _inside(self) -> T_co: ...


def inside_of(client: HasInside[T_co]) -> T_co:
    return client._inside
