"""The usual Produce request, one batch for one partition without a transactional id, in one step each way. Pure.

The compiled schema makes three objects of such a request, which `data_apis` then translates, and as many of its answer. This is
the same in two functions, for the versions with compact strings. What is not as usual is None and goes the general way, which
also raises the errors.
"""

import struct
from typing import Any, Final

from ..codec import DecodedRequest
from ..requests import KafkaProduceRequest, ProducePartition
from ..responses import ProduceResponse

# Of the same layout, here and back, where there is no tagged field. From 13 on, topics have ids.
VERSIONS: Final = range(9, 13)
_PRODUCE: Final = 0
_CLIENT_ID: Final = 10  # its position, behind the API key, the version, the correlation id, and its own length
_CLIENT_ID_SIZE = struct.Struct(">h")
# No tags of the header, no transactional id, acks, the time limit, one topic, the length of its name: counts are one more.
_FRONT = struct.Struct(">BBhiBB")
_PARTITION = struct.Struct(">Bi")  # one partition, its number
_END: Final = b"\0\0\0"  # no tags of the partition, of the topic, of the request
_ONE: Final = 2
_LARGEST_NAME: Final = 126  # whose length is one byte
# Size, correlation id, no tags of the header, one topic, the length of its name.
_ANSWER = struct.Struct(">iiBBB")
# One partition, its number, no error, base offset, append time, log start, no errors of records, no message, no tags of the
# partition and of the topic, the throttle time, no tags.
_RESULT = struct.Struct(">BihqqqBBBBiB")
_SIZE_WITHOUT_NAME: Final = _ANSWER.size - 4 + _RESULT.size  # the size itself does not count


def decode_single(frame: memoryview, correlation_id: int, version: int) -> DecodedRequest | None:
    """The frame of a Produce request of one of VERSIONS; None if it is not a usual one. The records are a view into it."""
    try:
        (client_id_size,) = _CLIENT_ID_SIZE.unpack_from(frame, _CLIENT_ID - 2)
        at = _CLIENT_ID + client_id_size
        header_tags, transactional_id, acks, timeout_ms, topics, name_size = _FRONT.unpack_from(frame, at)
        name_at = at + _FRONT.size
        at = name_at + name_size - 1
        partitions, number = _PARTITION.unpack_from(frame, at)
        at += _PARTITION.size
        size = frame[at]
        at += 1
        if size >= 0x80:
            size += (frame[at] - 1) << 7
            at += 1
            if size >= 0x4000:
                size += (frame[at] - 1) << 14
                at += 1
        end = at + size - 1
        is_usual = (
            client_id_size >= 0
            and header_tags == transactional_id == 0
            and topics == partitions == _ONE
            and 2 <= name_size <= _LARGEST_NAME + 1
            and 1 < size < 0x200000  # three bytes, of which the last one is no part of a longer number
            and end + len(_END) == len(frame)
            and bytes(frame[end:]) == _END
        )
        if not is_usual:
            return None
        topic = str(frame[name_at : name_at + name_size - 1], "utf-8")
        client_id = str(frame[_CLIENT_ID : _CLIENT_ID + client_id_size], "utf-8")
    except (struct.error, IndexError, ValueError):
        return None
    item = ProducePartition(topic=topic, partition=number, records=frame[at:end])
    request: Any = KafkaProduceRequest(acks=acks, timeout_ms=timeout_ms, partitions=(item,), kafka_version=version)
    return DecodedRequest(correlation_id, _PRODUCE, version, request, client_id)


def encode_single(correlation_id: int, response: ProduceResponse, throttle_ms: int) -> bytes | None:
    """The whole frame that answers a request of one of VERSIONS; None if there are several partitions, or an error."""
    partitions = response.partitions
    if len(partitions) != 1:
        return None
    (found,) = partitions
    name = found.topic.encode()
    if found.error or found.message or len(name) > _LARGEST_NAME:
        return None
    head = _ANSWER.pack(_SIZE_WITHOUT_NAME + len(name), correlation_id, 0, _ONE, len(name) + 1)
    result = _RESULT.pack(
        _ONE,
        found.partition,
        0,
        found.base_offset,
        found.log_append_time_ms,
        found.log_start_offset,
        1,
        0,
        0,
        0,
        throttle_ms,
        0,
    )
    return b"".join((head, name, result))
