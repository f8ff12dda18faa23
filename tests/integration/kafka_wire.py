"""Requests of Kafka's protocol over raw sockets, one by one, for tests that look at what a client library hides."""

import socket
import struct
from typing import Any

from integration.wire import SIZE, connected, read_frame

from barnabas.net.wire.protocol.kafka.apis import SERVED, is_flexible
from barnabas.net.wire.protocol.kafka.compiler import decoder, encoder
from barnabas.net.wire.protocol.kafka.message_classes import types_of

PRODUCE, FETCH, LIST_OFFSETS, METADATA, FIND_COORDINATOR, JOIN_GROUP = 0, 1, 2, 3, 10, 11
API_VERSIONS, CONSUMER_GROUP_HEARTBEAT = 18, 68
_HEAD = struct.Struct(">hhih")


def make(message: str, struct_name: str = "", **values: Any) -> Any:
    """An object of a message's struct; of the message itself without a name."""
    return types_of(message)[struct_name or message](**values)


def asked(key: int, version: int, body: Any, *, correlation_id: int, client_id: bytes = b"raw") -> bytes:
    """A whole frame."""
    name = f"{SERVED[key].name}Request"
    chunks: list[Any] = [_HEAD.pack(key, version, correlation_id, len(client_id)) + client_id]
    if is_flexible(name, version):
        chunks.append(b"\0")
    encoder(name, version)(body, chunks)
    joined = b"".join(map(bytes, chunks))
    return SIZE.pack(len(joined)) + joined


def answered(sock: socket.socket, key: int, version: int) -> tuple[int, Any]:
    """The correlation id and the body of the next answer, which is to be of this API."""
    frame = read_frame(sock)
    (correlation_id,) = struct.unpack_from(">i", frame)
    name = f"{SERVED[key].name}Response"
    start = 5 if is_flexible(name, version) and key != API_VERSIONS else 4
    body, end = decoder(name, version)(memoryview(frame), start)
    assert end == len(frame), "the answer is another one, or has something behind it"
    return correlation_id, body


def call(sock: socket.socket, key: int, version: int, body: Any) -> Any:
    sock.sendall(asked(key, version, body, correlation_id=99))
    correlation_id, answer = answered(sock, key, version)
    assert correlation_id == 99
    return answer


def produce(topic: str, records: bytes, *, acks: int = 1) -> Any:
    data = make("ProduceRequest", "PartitionProduceData", index=0, records=records)
    topics = [make("ProduceRequest", "TopicProduceData", name=topic, partition_data=[data])]
    return make("ProduceRequest", acks=acks, timeout_ms=10_000, topic_data=topics)


def fetch(topic: str, offset: int, *, max_wait_ms: int = 0, max_bytes: int = 1 << 20) -> Any:
    partition = make("FetchRequest", "FetchPartition", partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    topics = [make("FetchRequest", "FetchTopic", topic=topic, partitions=[partition])]
    return make("FetchRequest", max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=max_bytes, topics=topics)


def end_offset(topic: str) -> Any:
    partition = make("ListOffsetsRequest", "ListOffsetsPartition", partition_index=0, timestamp=-1)
    topics = [make("ListOffsetsRequest", "ListOffsetsTopic", name=topic, partitions=[partition])]
    return make("ListOffsetsRequest", topics=topics)


def metadata(*topics: str) -> Any:
    return make(
        "MetadataRequest", topics=[make("MetadataRequest", "MetadataRequestTopic", name=name) for name in topics]
    )


def join_group(group_id: str) -> Any:
    protocols = [make("JoinGroupRequest", "JoinGroupRequestProtocol", name="range", metadata=b"")]
    return make(
        "JoinGroupRequest",
        group_id=group_id,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=protocols,
    )


GROUP, TRANSACTION = 0, 1


def coordinator_of(address: tuple[str, int], key: str, key_type: int) -> int:
    """The broker that coordinates a group or a transactional id; -1: none yet."""
    with connected(address) as sock:
        answer = call(
            sock, FIND_COORDINATOR, 4, make("FindCoordinatorRequest", key_type=key_type, coordinator_keys=[key])
        )
    (found,) = answer.coordinators
    return found.node_id if not found.error_code else -1
