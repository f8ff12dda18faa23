"""The orders to a broker under test: the faults that hold now, as one value, and single acts. The same values go to a broker in
this process and, as JSON, to one in another process."""

from typing import Final

import msgspec

UNLIMITED: Final = ""  # as `tokens`: the fault hits every request


class RequestFault(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of clients that fail, or whose answer is lost. Brokers' own requests are never hit."""

    api: int
    error: int | None = None  # None: the request is carried out, and its answer is lost
    client_id: str | None = None  # None: of any client
    tokens: str = UNLIMITED  # a folder: each hit removes a file of it, and without files there are no more hits


class Faults(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All faults of one broker; the newest value replaces the one before it."""

    cut: tuple[tuple[str, int], ...] = ()  # addresses of other brokers that it neither reaches nor hears
    network_delay_ms: int = 0  # of every packet that arrives
    disk_delay_ms: int = 0  # of every write and flush
    is_disk_full: bool = False
    clock_offset_ms: int = 0  # of the wall clock
    requests: tuple[RequestFault, ...] = ()


class DropConnections(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Close the connections of a client, or of all. The answer is their number."""

    client_id: str | None = None


class AskReady(msgspec.Struct, frozen=True, tag=True):
    """Does the broker take part in the cluster? The answer is 1 or 0."""


class AskController(msgspec.Struct, frozen=True, tag=True):
    """Which broker leads the quorum, as this one knows? The answer is its id, or -1."""


class EndSession(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """For the coordinator of the group: remove a member as if its heartbeats had stopped a session ago."""

    group: str
    member_id: str


Order = Faults | DropConnections | AskReady | AskController | EndSession


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`failed` says why an order was not carried out; empty: it was."""

    result: int = 0
    failed: str = ""


_ENCODER: Final = msgspec.json.Encoder()
_ORDER_DECODER: Final = msgspec.json.Decoder(Order)
_ANSWER_DECODER: Final = msgspec.json.Decoder(Answer)


def encode(message: Order | Answer) -> bytes:
    """One line."""
    return _ENCODER.encode(message) + b"\n"


def decode_order(line: bytes) -> Order:
    order: Order = _ORDER_DECODER.decode(line)
    return order


def decode_answer(line: bytes) -> Answer:
    return _ANSWER_DECODER.decode(line)
