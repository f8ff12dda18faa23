"""One broker as a process: logging, signals, the admin API, `endpoints.json`, exit codes. The broker itself is `broker`.

Modules that a broker does not need for serving are imported later: a cluster must start in less than a second.
"""

import asyncio
import gc
import importlib
import logging
import os
import random
import signal
import socket
import ssl
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from barnabas.kraft.metadata.image import Endpoint
from barnabas.log.disk.files import RealFiles
from barnabas.log.disk.secret_files import open_to_all, refuse_links
from barnabas.log.vocabulary.errors import BarnabasError, InvalidConfigError

from ..base.clock import SystemClock
from ..base.descriptors import raise_descriptor_limit
from ..base.printable import JsonFormatter, PrintableFormatter, printable
from ..base.sasl.verifiers import UserFile, read_users
from ..base.settings.config import BrokerConfig
from ..base.settings.endpoints import Endpoints, remove_endpoints, write_endpoints
from ..base.settings.listeners import advertise_name, needs_name, own_names, reachable_host
from ..server.native_memory import return_freed_memory
from ..wire.greeting import Greeting, greet, mismatch
from ..wire.tcp import TcpNetwork
from .broker import Broker, Ports
from .metadata_sources import build_source
from .tls import tls_of
from .token_keys import keep_fresh, tokens_of

if TYPE_CHECKING:
    from ..admin.app import AdminServer

logger = logging.getLogger("barnabas.broker")

EXIT_OK = 0
EXIT_FAILED = 1
FATAL_EXIT_CODE = 70  # EX_SOFTWARE: the state in memory cannot be trusted, only that on disk
# At its default thresholds, the cyclic collector doubles the cost of decoding (hot path study). Young garbage of a broker is not
# cyclic, so collections may be rarer.
GC_THRESHOLDS = (50_000, 20, 100)
ENDPOINTS_RETRY_S = 5  # A full disk, or a full table of open files, often has room again soon.


def run(
    config: BrokerConfig,
    decommissioned: Callable[[], None] = lambda: None,
    *,
    adapt: Callable[[Ports], Ports] = lambda ports: ports,
) -> int:
    """Run a broker until SIGTERM or SIGINT, and return the exit code. `decommissioned` is called if the broker has left the
    cluster permanently; `adapt`, on the broker's loop, before the broker is built."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter()
        if config.log_format == "json"
        else PrintableFormatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    )
    logging.basicConfig(level=os.environ.get("BARNABAS_LOG_LEVEL", "INFO"), handlers=[handler])
    return_freed_memory()
    try:
        if needs_name(config):  # may ask a name server, so only if the name is needed
            config = advertise_name(config, socket.getfqdn())
        return asyncio.run(_serve(config, decommissioned, adapt))
    except (BarnabasError, OSError) as error:
        sys.stderr.write(f"barnabas: {printable(describe_start_failure(error, config))}\n")
        return EXIT_FAILED


async def _serve(config: BrokerConfig, decommissioned: Callable[[], None], adapt: Callable[[Ports], Ports]) -> int:
    descriptors = raise_descriptor_limit()
    if descriptors.for_clients < config.max_connections:
        logger.warning(
            "max.connections=%d is more than the limit of open files allows: about %d clients can connect; raise ulimit -n (%d)",
            config.max_connections, descriptors.for_clients, descriptors.total,
        )  # fmt: skip
    await asyncio.to_thread(_look_at_folders, config)
    tls = await asyncio.to_thread(tls_of, config)
    users = await asyncio.to_thread(users_of, config)
    tokens = await asyncio.to_thread(tokens_of, config)
    ports = Ports(
        network=tls.network(config.inter_broker_listener()) if tls else TcpNetwork(),
        network_of=tls.network if tls else None,
        quorum_tls=tls.quorum() if tls else None,
        files=RealFiles(),
        clock=SystemClock(),
        rng=random.Random(),
        make_source=build_source,
        fatal=_halt,
        incarnation=uuid.uuid4().hex,
        max_client_descriptor=descriptors.for_clients,
        max_strangers=descriptors.for_strangers,
        max_open_segments=descriptors.for_sealed_segments,
        users=users,
        tokens=tokens,
    )
    broker = Broker(config, adapt(ports))
    stop = broker.shutdown_requested
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _request_shutdown, broker)
    background: list[asyncio.Task[None]] = []
    starting = asyncio.ensure_future(_started(broker))
    if not await _ended_before(starting, stop):
        logger.info("stopped node=%d before the start was complete", broker.node_id)
        return EXIT_OK
    listening = starting.result()
    try:
        background.append(asyncio.create_task(publish_endpoints(lambda: _write_endpoints(broker))))
        await asyncio.sleep(0)  # The file is there before anything else happens.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        if listening is not None:
            background.append(asyncio.create_task(_serve_admin(broker, listening, tls.admin() if tls else None)))
        if tls is not None:
            background.append(asyncio.create_task(tls.keep_fresh()))
        if tokens is not None:
            background.append(asyncio.create_task(keep_fresh(config, tokens)))
        background.append(asyncio.create_task(_look_where_clients_are_sent(broker)))
        background.append(asyncio.create_task(broker.figures.run()))
        await stop.wait()
        if broker.metadata.image.is_emptied(broker.node_id):
            decommissioned()
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        for folder in config.data_folders():
            remove_endpoints(folder)
        await broker.stop()
    return EXIT_OK


def _look_at_folders(config: BrokerConfig) -> None:
    """Raises StorageError for a link in a data folder."""
    refuse_links(config.data_folders())
    for folder in open_to_all(config.data_folders()):
        logger.warning("every user of this machine may change the files in %s: chmod o-w %s", folder, folder)


def _request_shutdown(broker: Broker) -> None:
    """The first signal asks for a controlled shutdown; a second one, for a clean end without waiting for anybody."""
    if broker.shutdown_requested.is_set():
        broker.shutdown_hurried.set()
    broker.shutdown_requested.set()


def users_of(config: BrokerConfig) -> UserFile:
    """Those of `sasl.users.file`. Raises InvalidConfigError."""
    path = config.sasl_users_file
    if path is None:
        return {}
    try:
        return read_users(Path(path).read_bytes(), f"sasl.users.file={path}")
    except OSError as error:
        raise InvalidConfigError(f"sasl.users.file={path} cannot be read: {error.strerror}") from error


async def _ended_before(starting: "asyncio.Future[socket.socket | None]", stop: asyncio.Event) -> bool:
    """Wait for the start, unless a stop is requested first: recovery of a large disk may take minutes. Return whether the start
    has ended."""
    stopping = asyncio.ensure_future(stop.wait())
    waited: tuple[asyncio.Future[Any], ...] = (starting, stopping)
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        return True
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    return False


async def _started(broker: Broker) -> socket.socket | None:
    """Start the broker and return the socket of the admin API, if it has one. A failed start closes everything again."""
    listening: socket.socket | None = None
    try:
        listening = _take_admin_port(broker)
        await broker.start()
    except BaseException:
        broker.logs.close()  # also if it was never started
        if listening is not None:
            listening.close()
        raise
    return listening


def _take_admin_port(broker: Broker) -> socket.socket | None:
    """Bind the port of the admin API now, because the broker registers with it; clients that connect wait until it is served."""
    address = broker.config.admin_address()
    if address is None:
        return None
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.create_server((address.host, address.port), family=family)
    host, port = listening.getsockname()[:2]
    broker.admin_endpoint = Endpoint(listener=address.name, host=reachable_host(broker.config, host), port=port)
    return listening


async def _serve_admin(broker: Broker, listening: socket.socket, tls: Callable[[], ssl.SSLContext] | None) -> None:
    """Start the admin API at the first connection: unused, it does not cost the import of aiohttp (0.2 s and 15 MB).

    The import runs in a thread, so that the broker continues to serve its clients.
    """
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[None] = loop.create_future()
    loop.add_reader(listening, lambda: None if asked.done() else asked.set_result(None))
    try:
        await asked
    finally:
        loop.remove_reader(listening)
    app = await loop.run_in_executor(None, importlib.import_module, "barnabas.net.admin.app")
    from .admin_backend import BrokerBackend  # It needs the client, which the app has imported already.

    backend = BrokerBackend(broker, own_names(broker.config, socket.gethostname()))
    server: AdminServer = await app.start_admin(backend, listening, broker.ports.max_strangers, tls)
    try:
        await asyncio.Event().wait()
    finally:
        await server.close()


async def _look_where_clients_are_sent(broker: Broker) -> None:
    """Connect to each advertised address: a wrong one would otherwise show only in clients that hang. The check may fail for a
    correct address (behind a NAT without loopback), so it only logs a warning."""
    for endpoint in broker.listeners.advertised():
        if (endpoint.host, endpoint.port) == broker.listeners.addresses[endpoint.listener]:
            continue
        found: Greeting | BarnabasError
        try:
            found = await greet(
                broker.ports.listener_network(endpoint.listener),
                endpoint.host,
                endpoint.port,
                client_id="barnabas-broker",
            )
        except BarnabasError as error:
            found = error
        address = f"{endpoint.host}:{endpoint.port}"
        trouble = mismatch(broker.node_id, broker.metadata.image.cluster_id, address, found)
        if trouble:
            logger.warning("event=advertised_address_wrong listener=%s %s", endpoint.listener, trouble)


async def publish_endpoints(write: Callable[[], None]) -> None:
    """Write `endpoints.json`, and repeat it until it succeeds: the broker serves its clients without the file."""
    while True:
        try:
            write()
        except OSError as error:
            logger.error(
                "event=endpoints_not_written cause=%s; programs that look for the addresses of this broker in its data folder do"
                " not find them; repeated every %d s", error, ENDPOINTS_RETRY_S
            )  # fmt: skip
            await asyncio.sleep(ENDPOINTS_RETRY_S)
        else:
            return


def _write_endpoints(broker: Broker) -> None:
    voters = {voter.node_id: voter for voter in broker.config.voters()}
    own = voters.get(broker.node_id)
    admin = broker.admin_endpoint
    write_endpoints(
        broker.config.data_folders()[0],
        Endpoints(
            node_id=broker.node_id,
            pid=os.getpid(),
            listeners={name: f"{host}:{port}" for name, (host, port) in broker.listeners.addresses.items()},
            quorum=f"{own.host}:{own.port}" if own else None,
            admin=f"{admin.host}:{admin.port}" if admin else None,
        ),
    )


def _halt(reason: str) -> None:
    """Stop at once, without flushing state that may be wrong. All acknowledged records are on other brokers or on disk."""
    logger.critical("this broker stops: %s", reason)
    logging.shutdown()
    os._exit(FATAL_EXIT_CODE)


def describe_start_failure(error: Exception, config: BrokerConfig) -> str:
    """The cause and the solution in one line."""
    if isinstance(error, BarnabasError):
        return error.message
    listeners = ", ".join(str(listener) for listener in config.client_listeners())
    return (
        f"cannot listen ({listeners}, and the ports of the quorum and the admin API): {error}. "
        "Is another broker running on this port? Stop it, or set other ports with listeners, controller.quorum.voters and "
        "admin.listener"
    )
