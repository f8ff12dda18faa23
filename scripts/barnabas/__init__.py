"""Barnabas: the Kafka you can import.

    from barnabas import Producer, Consumer, Admin      # asyncio
    from barnabas.sync import Producer, Consumer, Admin  # blocking, for scripts and workers

Names are loaded on first use: importing the package alone costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from . import _sources as _sources  # first: it may choose how the other modules are loaded

if TYPE_CHECKING:
    from barnabas.errors import *  # noqa: F403 - all of them
    from barnabas.log.vocabulary.topic_partition import TopicPartition as TopicPartition
    from barnabas.net.client.admin.admin import Admin as Admin
    from barnabas.net.client.connection.records import ConsumerRecord as ConsumerRecord
    from barnabas.net.client.connection.records import OffsetAndMetadata as OffsetAndMetadata
    from barnabas.net.client.connection.records import OffsetAndTimestamp as OffsetAndTimestamp
    from barnabas.net.client.connection.records import RecordColumns as RecordColumns
    from barnabas.net.client.connection.records import RecordMetadata as RecordMetadata
    from barnabas.net.client.consumer.consumer import Consumer as Consumer
    from barnabas.net.client.consumer.process_once import process_once as process_once
    from barnabas.net.client.consumer.read_table import read_table as read_table
    from barnabas.net.client.group.assignors import Assignor as Assignor
    from barnabas.net.client.group.assignors import MemberSubscription as MemberSubscription
    from barnabas.net.client.processing.process_each import Processed as Processed
    from barnabas.net.client.processing.process_each import process_each as process_each
    from barnabas.net.client.producer.handles import BatchHandles as BatchHandles
    from barnabas.net.client.producer.handles import Handle as Handle
    from barnabas.net.client.producer.producer import Producer as Producer
    from barnabas.net.client.producer.transaction import Transaction as Transaction
    from barnabas.net.client.serde.avro_format import Avro as Avro
    from barnabas.net.client.serde.dead_letters import dead_letters as dead_letters
    from barnabas.net.client.serde.json_format import Json as Json
    from barnabas.net.client.serde.json_schema_format import JsonSchema as JsonSchema
    from barnabas.net.client.serde.protobuf_format import Protobuf as Protobuf
    from barnabas.net.client.serde.reading import DecodedRecord as DecodedRecord
    from barnabas.net.client.serde.registry import SchemaRegistry as SchemaRegistry
    from barnabas.net.client.serde.text_format import Text as Text
    from barnabas.net.client.share.share_consumer import ShareConsumer as ShareConsumer
    from barnabas.net.client.share.share_record import DecodedShareRecord as DecodedShareRecord
    from barnabas.net.client.share.share_record import ShareRecord as ShareRecord
    from barnabas.net.client.tracing.tracing import Tracing as Tracing
    from barnabas.net.client.transactions.prepared import PreparedTransaction as PreparedTransaction
    from barnabas.net.client.transactions.transform_once import transform_once as transform_once

_MODULES = {
    "errors": (  # the ones that programs catch most; `__getattr__` finds the others, too
        "BarnabasError",
        "BufferExhaustedError",
        "ClientClosedError",
        "DeliveryTimeoutError",
        "DeserializationError",
        "ErrorCode",
        "HandlerFailedError",
        "InvalidRecordStateError",
        "NetworkError",
        "NoBrokersAvailableError",
        "ProducerFencedError",
        "RecordGivenUpError",
        "RecordTooLargeError",
        "RetriableError",
        "SaslAuthenticationError",
        "SchemaNotFoundError",
        "SchemaRegistryError",
        "SchemaRegistryUnavailableError",
        "SerializationError",
        "TransactionAbortedError",
        "TransactionOutcomeUnknownError",
        "TransactionStateError",
        "TransactionTimedOutError",
        "UnreadableBatchError",
    ),
    "log.vocabulary.topic_partition": ("TopicPartition",),
    "net.client.admin.admin": ("Admin",),
    "net.client.group.assignors": ("Assignor", "MemberSubscription"),
    "net.client.consumer.consumer": ("Consumer",),
    "net.client.processing.process_each": ("Processed", "process_each"),
    "net.client.producer.handles": ("BatchHandles", "Handle"),
    "net.client.consumer.process_once": ("process_once",),
    "net.client.consumer.read_table": ("read_table",),
    "net.client.producer.producer": ("Producer",),
    "net.client.producer.transaction": ("Transaction",),
    "net.client.serde.dead_letters": ("dead_letters",),
    "net.client.serde.avro_format": ("Avro",),
    "net.client.serde.json_format": ("Json",),
    "net.client.serde.json_schema_format": ("JsonSchema",),
    "net.client.serde.protobuf_format": ("Protobuf",),
    "net.client.serde.registry": ("SchemaRegistry",),
    "net.client.serde.text_format": ("Text",),
    "net.client.serde.reading": ("DecodedRecord",),
    "net.client.share.share_consumer": ("ShareConsumer",),
    "net.client.share.share_record": ("DecodedShareRecord", "ShareRecord"),
    "net.client.tracing.tracing": ("Tracing",),
    "net.client.transactions.prepared": ("PreparedTransaction",),
    "net.client.transactions.transform_once": ("transform_once",),
    "net.client.connection.records": (
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
    if module is None and name.endswith("Error") and hasattr(import_module("barnabas.errors"), name):
        module = "errors"
    if module is None:
        raise AttributeError(f"module 'barnabas' has no attribute {name!r}")
    value: object = getattr(import_module(f"barnabas.{module}"), name)
    globals()[name] = value  # The next lookup finds it without calling this function.
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "errors", "sync", "testing"])
