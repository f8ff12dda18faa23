"""`shared_client`: one client per process and cluster, so that its connections outlive tasks and micro-batches.

Spark reuses its Python workers for many tasks; a client per task would connect to every broker each time. The cache works
because this module is imported by name: objects pickled by value (classes of a notebook) cannot use it.
A forked worker starts with an empty cache: the sockets of its parent are not its own.
"""

import asyncio
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from barnabas.net.base.settings.properties import parse_properties
from barnabas.net.client.connection.client import Client
from barnabas.net.client.connection.errors import BarnabasError
from barnabas.net.client.connection.kafka_options import SECURITY_KEYS
from barnabas.net.client.connection.loop_thread import LoopThread, loop_thread
from barnabas.net.client.connection.security import SecurityOptions

from .options import ClientSettings

WORKER_METADATA_MAX_AGE_MS = (
    300_000  # Kafka's default: a worker learns of changes from errors, the driver polls for them.
)
PAUSE_S = 0.2  # Between attempts to reach a broker.

_clients: dict[ClientSettings, Client] = {}
_lock = threading.Lock()


def shared_client(settings: ClientSettings, *, patience_ms: int = 0) -> tuple[LoopThread, Client]:
    """Return the loop and the started client.

    Raises NoBrokersAvailableError, which names each address with the reason: immediately, because the addresses may be wrong, or
    after `patience_ms` in a task, whose driver has reached the cluster before.
    """
    loop = loop_thread()
    with _lock:
        client = _clients.get(settings)
        if client is None:
            client = Client(
                settings.bootstrap,
                client_id=settings.client_id,
                request_timeout_ms=settings.request_timeout_ms,
                retry_backoff_ms=settings.retry_backoff_ms,
                metadata_max_age_ms=settings.metadata_max_age_ms,
                **SecurityOptions(**dict(settings.security)),  # type: ignore[typeddict-item]
            )
            loop.call(_start(client, patience_ms))
            _clients[settings] = client
        return loop, client


async def _start(client: Client, patience_ms: int) -> None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + patience_ms / 1000
    while True:
        try:
            return await client.start()
        except BarnabasError as error:
            if not error.retriable or loop.time() > deadline_s:
                raise
        await asyncio.sleep(PAUSE_S)


def worker_settings(settings: ClientSettings) -> ClientSettings:
    """The settings for a task: the same cluster, but an idle worker sends almost no metadata requests."""
    return replace(settings, metadata_max_age_ms=WORKER_METADATA_MAX_AGE_MS)


def properties_of(file: Path | None) -> Mapping[str, str]:
    """Of `--command-config`."""
    return {} if file is None else parse_properties(file.read_text(encoding="utf-8"))


def security_of(properties: Mapping[str, str]) -> Mapping[str, str]:
    """TLS and the login of the brokers, as options of the format."""
    return {name: text for name, text in properties.items() if name in SECURITY_KEYS}


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_after_fork)
