"""Frames between voters, the hello and the directory. Pure. Messages behind the hello: see `messages`.

A frame is its length (4 bytes, big endian) and msgpack; never pickle, nothing else is ever decoded. What comes from
the network is checked here, once.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgpack

from ...quorum.formation import VoterState
from ...quorum.voters import VoterSet, decode_voters, encode_voters

PROTOCOL = "BNBQ"
PROTOCOL_VERSION = 2
# Two of the largest batches of entries (config.BATCH_BYTES plus one command) fit; more is a foreign protocol.
MAX_FRAME_BYTES = 16 * 1024 * 1024
# Before its hello, a connection gets little memory. HTTP, TLS and Kafka's frames all appear as a far greater length.
MAX_HELLO_BYTES = 64 * 1024
_LENGTH_BYTES = 4
_TLS_HANDSHAKE = 0x1603  # how a ClientHello begins
_HELLO_FIELDS = 8
NO_TOKEN = 0
_MAX_NUMBER = 1 << 63
_MAX_ELEMENTS = 1 << 20  # of one array: msgpack would allocate it from its announced length


class WireError(Exception):
    """These bytes are not our protocol: the peer's fault, and the end of the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first frame of each side. `voter_id` None: an observer, which asks for the directory.

    `voters_hash` is the hash of a configuration from server.properties, 0 for one from the journal. `token`: the dialing side
    draws it for this connection; in an observer's hello, it names the connection that the receiver should confirm.
    """

    voter_id: int | None
    cluster_id: str = ""
    voters_hash: int = 0
    state: VoterState = VoterState.BLANK
    endpoint: bytes = b""
    token: int = NO_TOKEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """The answer to an observer: the id of the node that answers, the (opaque) endpoints of the voters' brokers, and the voters
    of the newest configuration that this node knows to be committed."""

    node_id: int
    cluster_id: str
    leader_id: int | None
    endpoints: dict[int, bytes]
    voters: VoterSet


def voters_hash(voter_ids: Iterable[int]) -> int:
    """Of the ids only: each voter may know the others by other names."""
    return zlib.crc32(",".join(map(str, sorted(voter_ids))).encode())


def frame(value: Any) -> bytes:
    body: bytes = msgpack.packb(value)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def split_frames(buffer: bytearray, max_frame_bytes: int) -> list[bytes]:
    """Take the whole frames out of `buffer`. Raises WireError for one that is too long."""
    frames: list[bytes] = []
    position = 0
    while len(buffer) - position >= _LENGTH_BYTES:
        length = int.from_bytes(buffer[position : position + _LENGTH_BYTES], "big")
        if length > max_frame_bytes and length >> 16 == _TLS_HANDSHAKE:
            raise WireError(
                "it speaks TLS, this node does not: a cluster changes to TLS in three rounds of restarts (tls.transition)"
            )
        if length > max_frame_bytes:
            raise WireError(f"a frame has {length} bytes; at most {max_frame_bytes} are allowed")
        end = position + _LENGTH_BYTES + length
        if end > len(buffer):
            break
        frames.append(bytes(memoryview(buffer)[position + _LENGTH_BYTES : end]))
        position = end
        max_frame_bytes = MAX_FRAME_BYTES
    if position:
        del buffer[:position]
    return frames


def unpack(body: bytes) -> Any:
    try:
        return msgpack.unpackb(body, use_list=False, max_array_len=_MAX_ELEMENTS, max_map_len=64, max_ext_len=0)
    except (ValueError, msgpack.UnpackException, RecursionError, TypeError) as error:
        raise WireError(f"not msgpack: {error}") from error


def encode_hello(hello: Hello) -> bytes:
    return frame(
        [
            PROTOCOL,
            PROTOCOL_VERSION,
            hello.voter_id,
            hello.cluster_id,
            hello.voters_hash,
            int(hello.state),
            hello.endpoint,
            hello.token,
        ]
    )


def decode_hello(body: bytes) -> Hello:
    value = unpack(body)
    if not isinstance(value, tuple) or len(value) < 2 or value[0] != PROTOCOL:
        raise WireError("no hello of a quorum")
    if value[1] != PROTOCOL_VERSION:
        raise WireError(
            f"quorum protocol version {value[1]}, ours is {PROTOCOL_VERSION}: all voters need the same version"
        )
    if len(value) != _HELLO_FIELDS:
        raise WireError("no hello of a quorum")
    _, _, voter_id, cluster_id, hashed, state, endpoint, token = value
    if not (voter_id is None or _is_int(voter_id)) or not isinstance(cluster_id, str) or not _is_int(hashed):
        raise WireError("a hello with fields of the wrong type")
    if state not in VoterState.__members__.values() or not isinstance(endpoint, bytes) or not _is_int(token):
        raise WireError("a hello with fields of the wrong type")
    return Hello(
        voter_id=voter_id,
        cluster_id=cluster_id,
        voters_hash=hashed,
        state=VoterState(state),
        endpoint=endpoint,
        token=token,
    )


def encode_confirmation(confirmed: bool) -> bytes:
    return frame([PROTOCOL, confirmed])


def decode_confirmation(body: bytes) -> bool:
    value = unpack(body)
    if not isinstance(value, tuple) or len(value) != 2 or value[0] != PROTOCOL:
        raise WireError("no confirmation of a quorum")
    return value[1] is True


def encode_directory(directory: Directory) -> bytes:
    endpoints = sorted(directory.endpoints.items())
    voters = directory.voters
    return frame(
        [
            PROTOCOL,
            directory.node_id,
            directory.cluster_id,
            directory.leader_id,
            endpoints,
            voters.index,
            encode_voters(voters.voters),
        ]
    )


def decode_directory(body: bytes) -> Directory:
    value = unpack(body)
    try:
        protocol, node_id, cluster_id, leader_id, endpoints, voters_index, packed = value
        known = {int(peer): bytes(endpoint) for peer, endpoint in endpoints}
        voters = decode_voters(packed, int(voters_index))
    except (TypeError, ValueError) as error:
        raise WireError("no directory of a quorum") from error
    if protocol != PROTOCOL or not _is_int(node_id) or not isinstance(cluster_id, str):
        raise WireError("no directory of a quorum")
    return Directory(node_id=node_id, cluster_id=cluster_id, leader_id=leader_id, endpoints=known, voters=voters)


def _is_int(value: Any) -> bool:
    """A number that fits the journal's fields."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_NUMBER
