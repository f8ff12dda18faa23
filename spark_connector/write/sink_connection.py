"""`shared_producer`, `transactional_producer`: one producer per process, cluster and settings, so that it outlives tasks and
micro-batches. The transactional one takes over another transactional id for each task.

It uses the process's `shared_client`. A Python worker of Spark runs one task at a time, so all records in the producer's
batches belong to that task, once the records that a failed task left have been flushed.
"""

import os
import threading

from barnabas.net.client.connection.client import Client
from barnabas.net.client.connection.loop_thread import LoopThread
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.producer.producer_config import TAKEN_OVER_LATER

from ..common.connection import shared_client
from ..common.options import ClientSettings
from .write_options import ProducerSettings

_producers: dict[tuple[ClientSettings, ProducerSettings, bool], Producer] = {}
_lock = threading.Lock()


def shared_producer(client: ClientSettings, settings: ProducerSettings) -> tuple[LoopThread, Client, Producer]:
    """Return the loop, the started client and the started producer.

    Raises NoBrokersAvailableError, but only after retries: the driver that planned the task has reached the cluster before.
    """
    return _producer(client, settings, is_transactional=False)


def transactional_producer(client: ClientSettings, settings: ProducerSettings) -> tuple[LoopThread, Client, Producer]:
    """As `shared_producer`. It has no transactional id yet: `take_over` gives it one."""
    return _producer(client, settings, is_transactional=True)


def _producer(
    client: ClientSettings, settings: ProducerSettings, *, is_transactional: bool
) -> tuple[LoopThread, Client, Producer]:
    loop, connected = shared_client(client, patience_ms=client.api_timeout_ms)
    with _lock:
        producer = _producers.get((client, settings, is_transactional))
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
                transactional_id=TAKEN_OVER_LATER if is_transactional else None,
                transaction_timeout_ms=settings.transaction_timeout_ms,
                on_error=_told_by_the_task,
            )
            loop.call(producer.start())
            _producers[client, settings, is_transactional] = producer
        return loop, connected, producer


def _told_by_the_task(*_: object) -> None:
    """The task awaits every handle and reports its failure, so the producer need not log it as well."""


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _producers.clear()


os.register_at_fork(after_in_child=_after_fork)
