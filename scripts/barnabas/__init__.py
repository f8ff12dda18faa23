"""Barnabas: the Kafka you can import.

    from barnabas import Producer, Consumer, Admin      # asyncio
    from barnabas.sync import Producer, Consumer, Admin  # blocking, for scripts and workers

Names are loaded when they are first used: importing the package alone costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.log.topic_partition import TopicPartition as TopicPartition
    from barnabas.net.client.admin import Admin as Admin
    from barnabas.net.client.assignors import Assignor as Assignor
    from barnabas.net.client.assignors import MemberSubscription as MemberSubscription
    from barnabas.net.client.consumer import Consumer as Consumer
    from barnabas.net.client.errors import BarnabasError as BarnabasError
    from barnabas.net.client.errors import BufferExhaustedError as BufferExhaustedError
    from barnabas.net.client.errors import ClientClosedError as ClientClosedError
    from barnabas.net.client.errors import DeliveryTimeoutError as DeliveryTimeoutError
    from barnabas.net.client.errors import ErrorCode as ErrorCode
    from barnabas.net.client.errors import NetworkError as NetworkError
    from barnabas.net.client.errors import NoBrokersAvailableError as NoBrokersAvailableError
    from barnabas.net.client.errors import RecordTooLargeError as RecordTooLargeError
    from barnabas.net.client.errors import RetriableError as RetriableError
    from barnabas.net.client.errors import UnreadableBatchError as UnreadableBatchError
    from barnabas.net.client.handles import BatchHandles as BatchHandles
    from barnabas.net.client.handles import Handle as Handle
    from barnabas.net.client.process_once import process_once as process_once
    from barnabas.net.client.producer import Producer as Producer
    from barnabas.net.client.records import ConsumerRecord as ConsumerRecord
    from barnabas.net.client.records import OffsetAndMetadata as OffsetAndMetadata
    from barnabas.net.client.records import OffsetAndTimestamp as OffsetAndTimestamp
    from barnabas.net.client.records import RecordColumns as RecordColumns
    from barnabas.net.client.records import RecordMetadata as RecordMetadata

_MODULES = {
    "log.topic_partition": ("TopicPartition",),
    "net.client.admin": ("Admin",),
    "net.client.assignors": ("Assignor", "MemberSubscription"),
    "net.client.consumer": ("Consumer",),
    "net.client.errors": (
        "BarnabasError",
        "BufferExhaustedError",
        "ClientClosedError",
        "DeliveryTimeoutError",
        "ErrorCode",
        "NetworkError",
        "NoBrokersAvailableError",
        "RecordTooLargeError",
        "RetriableError",
        "UnreadableBatchError",
    ),
    "net.client.handles": ("BatchHandles", "Handle"),
    "net.client.process_once": ("process_once",),
    "net.client.producer": ("Producer",),
    "net.client.records": (
        "ConsumerRecord",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "RecordColumns",
        "RecordMetadata",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'barnabas' has no attribute {name!r}")
    value: object = getattr(import_module(f"barnabas.{module}"), name)
    globals()[name] = value  # The next time it is found without us.
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
