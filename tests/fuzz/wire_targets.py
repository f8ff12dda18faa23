"""What is read from the wire: requests and answers of every kind, hellos, the quorum's messages, record batches."""

import contextlib
import dataclasses
import itertools
import struct
import types
import typing
import zlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from math import inf
from random import Random
from typing import Any

import msgpack
import msgspec
from crc32c import crc32c
from fuzz.mutations import mutated
from simulation.log_building import NOW_MS, append, open_log, read_all
from unit.log.records.record_world import decode_columns

from barnabas.kraft.quorum.snapshot_format import DamagedSnapshot, pack_snapshot, unpack_snapshot
from barnabas.kraft.quorum.voters import VoterSet
from barnabas.kraft.raft.net.message_codec import read_message
from barnabas.kraft.raft.net.wire import (
    MAX_HELLO_BYTES,
    Directory,
    Hello,
    WireError,
    decode_directory,
    decode_hello,
    encode_directory,
    encode_hello,
    frame,
    split_frames,
    unpack,
)
from barnabas.kraft.raft.protocol.snapshot_transfer import SnapshotReceiver
from barnabas.log.format.compression import Compression
from barnabas.log.format.record_batch import CRC_COVERS_FROM, CRC_POSITION, HEADER_SIZE
from barnabas.log.format.record_codec import ProducerFields, encode_batch, iter_records
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.node_address import NodeAddress
from barnabas.net.testing.simulation.disk import SimulatedDisk
from barnabas.net.wire.protocol.apis import REQUEST_OF, RESPONSE_OF, key_of
from barnabas.net.wire.protocol.codec import DecodedRequest
from barnabas.net.wire.protocol.msgpack import ClientHello, MsgpackCodec, ServerHello, read_hello, write_hello
from barnabas.net.wire.protocol.requests import BrokerShutdownRequest, Request

CODEC: typing.Final = MsgpackCodec()
REQUEST_TYPES: typing.Final[tuple[Any, ...]] = tuple(REQUEST_OF.values())
# For brokers that shall live: a damaged request to stop is often still one, and does what it says.
ODD_REQUESTS: typing.Final = tuple(kind for kind in REQUEST_TYPES if kind is not BrokerShutdownRequest)
_NUMBERS: typing.Final = (-1, 0, 1, 7, 2**31 - 1, 2**40)


def sample(rng: Random, hint: Any) -> Any:
    """Some value that a field declared so may hold."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        hints = typing.get_type_hints(hint) | {"records": bytes}
        return hint(**{field.name: sample(rng, hints[field.name]) for field in msgspec.structs.fields(hint)})
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(sample(rng, argument) for argument in arguments)
    if origin is tuple:
        return tuple(sample(rng, arguments[0]) for _ in range(rng.randrange(3)))
    if origin is dict:
        return {f"key{number}": sample(rng, arguments[1]) for number in range(rng.randrange(3))}
    if origin in (typing.Union, types.UnionType):
        if memoryview in arguments:
            return rng.randbytes(rng.randrange(40))
        return None if rng.random() < 0.3 else sample(rng, next(one for one in arguments if one is not type(None)))
    if issubclass(hint, IntEnum):
        return rng.choice(list(hint))
    makers: dict[Any, Callable[[], Any]] = {
        int: lambda: rng.choice(_NUMBERS),
        str: lambda: rng.choice(("", "orders", "group-1", "naïve")),
        bytes: lambda: rng.randbytes(rng.randrange(9)),
        bool: lambda: rng.random() < 0.5,
        float: lambda: rng.choice((0.0, -1.0, 0.5, 1e300, inf)),  # no nan: it equals nothing,
    }
    return makers[hint]()


def request_frame(rng: Random, kinds: Sequence[Any] = REQUEST_TYPES) -> bytes:
    """A valid request of any of these kinds, as a whole frame."""
    request = sample(rng, rng.choice(kinds))
    chunks = CODEC.encode_request(rng.randrange(2**31), request)
    return b"".join(bytes(chunk) for chunk in chunks)  # type: ignore[arg-type]  # no files here


def requests(rng: Random) -> None:
    frame_of_it = memoryview(bytearray(mutated(rng, request_frame(rng)[4:])))
    try:
        decoded = CODEC.decode_request(frame_of_it)
    except BarnabasError:
        return
    assert isinstance(decoded.payload, BarnabasError | Request)


def responses(rng: Random) -> None:
    request_type = rng.choice(REQUEST_TYPES)
    response = sample(rng, RESPONSE_OF[request_type])
    asked = DecodedRequest(3, int(key_of(request_type)), 1, BarnabasError())
    chunks = CODEC.encode_response(asked, response)
    data = b"".join(bytes(chunk) for chunk in chunks)  # type: ignore[arg-type]  # no files here
    try:
        CODEC.response_body(request_type, CODEC.decode_response(memoryview(bytearray(mutated(rng, data[4:])))))
    except BarnabasError:
        pass


def hellos(rng: Random) -> None:
    hint: Any = rng.choice((ClientHello, ServerHello))
    try:
        read_hello(hint, mutated(rng, write_hello(sample(rng, hint))[4:]))
    except BarnabasError:
        pass


_ENTRY: typing.Final = (b"\x00command", 8, 3)
MESSAGES: typing.Final[tuple[dict[str, Any], ...]] = (
    {"type": "append_entries", "term": 3, "commit_index": 7, "prevLogIdx": 7, "prevLogTerm": 3, "entries": (_ENTRY,)},
    {"type": "append_entries", "term": 3, "commit_index": 7, "serialized": ((100, 0, b"piece"), True, False)},
    {"type": "next_node_idx", "term": 3, "next_node_idx": 8, "reset": False, "success": True},
    {"type": "request_vote", "term": 3, "last_log_index": 7, "last_log_term": 3},
    {"type": "form_state", "nonce": 5, "state": 0},
    {"type": "welcome", "term": 3, "index": 9},
)


def quorum_messages(rng: Random) -> None:
    """Whatever comes out of `read_message` has the fields that the core relies on, with numbers that fit the journal."""
    buffer = bytearray(mutated(rng, b"".join(frame(rng.choice(MESSAGES)) for _ in range(3))))
    try:
        for body in split_frames(buffer, MAX_HELLO_BYTES):
            message = dataclasses.asdict(read_message(unpack(body)))
            assert all(0 <= value < 2**63 for value in message.values() if type(value) is int)
    except WireError:
        pass


def quorum_hellos(rng: Random) -> None:
    hello = Hello(voter_id=1, cluster_id="cluster", voters_hash=77, endpoint=b"host:1")
    directory = Directory(
        node_id=1,
        cluster_id="cluster",
        leader_id=None,
        endpoints={0: b"a", 1: b"b"},
        voters=VoterSet(voters=(NodeAddress(node_id=1, host="a", port=9093),), index=4),
    )
    for decode, data in ((decode_hello, encode_hello(hello)), (decode_directory, encode_directory(directory))):
        try:
            decode(mutated(rng, data[4:]))
        except WireError:
            pass


def snapshot_transfers(rng: Random) -> None:
    """A leader's snapshot with a right checksum over wrong bytes: a stranger can compute one as well."""
    chunks = [msgpack.packb([number, "x" * rng.randrange(99)]) for number in range(rng.randrange(4))]
    whole = pack_snapshot((b"\x01", 9, 2), (b"\x01", 8, 2), chunks)
    head, body = whole[:10], mutated(rng, whole[10:])
    if rng.random() < 0.8:
        head = head[:6] + struct.pack("<I", zlib.crc32(body))
    try:
        snapshot = unpack_snapshot(head + body)
        assert type(snapshot.last_index) is int
        for chunk in snapshot.chunks():
            assert isinstance(chunk, bytes)
    except DamagedSnapshot:
        pass
    receiver = SnapshotReceiver()
    data = head + body
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    for start, end in itertools.pairwise((0, *cuts, len(data))):
        with contextlib.suppress(DamagedSnapshot):
            receiver.receive(((len(data), start, data[start:end]), start == 0, end == len(data)))


# --- record batches ---------------------------------------------------------------------------------------------------

_CODECS: typing.Final = tuple(Compression)


def _valid_batch(rng: Random) -> bytes:
    values = [rng.choice((None, b"", b"value", rng.randbytes(300))) for _ in range(rng.randint(1, 8))]
    keys = [rng.choice((None, b"key")) for _ in values] if rng.random() < 0.5 else None
    headers = [((("h", b"v"),) if rng.random() < 0.3 else ()) for _ in values]
    producer = (
        ProducerFields(producer_id=4, producer_epoch=0, base_sequence=0) if rng.random() < 0.3 else ProducerFields()
    )
    stamps = [NOW_MS + number for number in range(len(values))]
    return encode_batch(
        values, timestamps_ms=stamps, keys=keys, headers=headers, compression=rng.choice(_CODECS), producer=producer
    )


def with_crc(batch: bytes) -> bytes:
    """As a stranger would send it: what is wrong is not told by the checksum."""
    if len(batch) < HEADER_SIZE:
        return batch
    changed = bytearray(batch)
    struct.pack_into(">I", changed, CRC_POSITION, crc32c(changed[CRC_COVERS_FROM:]))
    return bytes(changed)


def record_batches(rng: Random) -> None:
    """A hostile batch is refused, or appended whole; what is in the log can be looked up by time without harm."""
    batch = mutated(rng, _valid_batch(rng))
    if rng.random() < 0.7:
        batch = with_crc(batch)
    for read in (decode_columns, lambda data: list(iter_records(data))):
        try:
            read(batch)
        except BarnabasError:
            pass
    log = open_log(SimulatedDisk())
    append(log, b"before")
    for append_bytes in (
        lambda: log.append_as_leader(bytearray(batch), leader_epoch=0, now_ms=NOW_MS),
        lambda: log.append_as_follower(batch),
    ):
        end, size = log.log_end_offset, log.size_bytes
        try:
            append_bytes()  # type: ignore[no-untyped-call]
        except BarnabasError:
            assert (log.log_end_offset, log.size_bytes) == (end, size)
    assert len(read_all(log)) == log.size_bytes
    for timestamp_ms in (0, NOW_MS, NOW_MS + 3, 2**62):
        try:
            log.offset_for_timestamp(timestamp_ms)
        except BarnabasError:
            pass


TARGETS: typing.Final = (
    requests,
    responses,
    hellos,
    quorum_messages,
    quorum_hellos,
    snapshot_transfers,
    record_batches,
)
