"""`shared_producer`: the one producer of a process for each cluster and settings, so that it outlives tasks and micro-batches.

It stands on the process's `shared_client`. A Python worker of Spark runs one task at a time, so all that is in the producer's
batches belongs to that task, once what a failed one left is out of the way.
"""

import os
import threading

from barnabas.net.client.connection.client import Client
from barnabas.net.client.connection.loop_thread import LoopThread
from barnabas.net.client.producer.producer import Producer

from ..common.connection import shared_client
from ..common.options import ClientSettings
from .write_options import ProducerSettings

_producers: dict[tuple[ClientSettings, ProducerSettings], Producer] = {}
_lock = threading.Lock()


def shared_producer(client: ClientSettings, settings: ProducerSettings) -> tuple[LoopThread, Client, Producer]:
    """Return the loop, the started client and the started producer.

    Raises NoBrokersAvailableError, and not at once: whoever writes has been planned by a driver that had reached the cluster.
    """
    loop, connected = shared_client(client, patience_ms=client.api_timeout_ms)
    with _lock:
        producer = _producers.get((client, settings))
        if producer is None:
            producer = Producer(
                client=connected,
                acks="all",
                enable_idempotence=True,
                batch_size=settings.batch_size,
                buffer_memory=settings.buffer_memory,
                compression=settings.compression,
                delivery_timeout_ms=settings.delivery_timeout_ms,
                request_timeout_ms=client.request_timeout_ms,
                linger_ms=settings.linger_ms,
                max_block_ms=settings.max_block_ms,
                max_request_bytes=settings.max_request_bytes,
                on_error=_told_by_the_task,
            )
            loop.call(producer.start())
            _producers[client, settings] = producer
        return loop, connected, producer


def _told_by_the_task(*_: object) -> None:
    """Every handle is awaited, so a failure is told where it belongs; the log need not say it again."""


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _producers.clear()


os.register_at_fork(after_in_child=_after_fork)
