import types
import typing
from enum import IntEnum
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from unit.net.wire_world import fetch_response, produce_request, produce_response

from barnabas.log.vocabulary.errors import InvalidRequestError, UnsupportedVersionError
from barnabas.log.vocabulary.message import MAX_ARRAY_LENGTH
from barnabas.net.base.limits import MAX_ENVELOPE_BYTES, MAX_WIDE_ITEMS
from barnabas.net.wire.protocol.apis import REQUEST_OF, RESPONSE_OF, key_of
from barnabas.net.wire.protocol.codec import DecodedRequest, size_of
from barnabas.net.wire.protocol.msgpack import (
    ClientHello,
    MsgpackCodec,
    ServerHello,
    read_hello,
    write_hello,
)
from barnabas.net.wire.protocol.requests import (
    FetchPartition,
    FetchRequest,
    ListGroupsRequest,
    MetadataRequest,
    ProduceRequest,
)
from barnabas.net.wire.protocol.responses import (
    EmptyResponse,
    ErrorResponse,
    FetchPartitionResponse,
    FetchResponse,
)

INT64 = st.integers(-(2**63), 2**63 - 1)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Any value that a field declared so may hold."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        hints = typing.get_type_hints(hint) | {"records": bytes}
        return st.builds(hint, **{field.name: values_of(hints[field.name]) for field in structs.fields(hint)})
    origin, arguments_of = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and len(arguments_of) > 1 and arguments_of[1] is not ...:
        return st.tuples(*map(values_of, arguments_of))
    if origin is tuple:
        return st.lists(values_of(arguments_of[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=5), values_of(arguments_of[1]), max_size=3)
    if origin in (typing.Union, types.UnionType):
        return st.none() | values_of(next(item for item in arguments_of if item is not type(None)))
    if issubclass(hint, IntEnum):
        return st.sampled_from(hint)
    plain = {
        int: INT64,
        str: st.text(max_size=8),
        bytes: st.binary(max_size=20),
        bool: st.booleans(),
        float: st.floats(allow_nan=False),
    }
    return plain[hint]


def joined(chunks: list[Any]) -> memoryview:
    """The frame as a server receives it: writable, and without its size, which is checked."""
    data = bytearray(b"".join(bytes(chunk) for chunk in chunks))
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    return memoryview(data)[4:]


def decoded_as(value: object) -> object:
    """What the receiver gets: views become comparable bytes."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, msgspec.Struct):
        return structs.replace(value, **{field: decoded_as(item) for field, item in structs.asdict(value).items()})
    return tuple(decoded_as(item) for item in value) if isinstance(value, tuple) else value


relaxed = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)


@pytest.mark.parametrize("cls", REQUEST_OF.values(), ids=lambda cls: cls.__name__)
def test_every_request_comes_back_as_it_was(cls: Any) -> None:
    @relaxed
    @given(values_of(cls), st.integers(0, 2**40))
    def check(request: Any, correlation_id: int) -> None:
        codec = MsgpackCodec()
        decoded = codec.decode_request(joined(codec.encode_request(correlation_id, request)))
        assert decoded.correlation_id == correlation_id
        assert decoded_as(decoded.payload) == request

    check()


@pytest.mark.parametrize("cls", RESPONSE_OF, ids=lambda cls: cls.__name__)
def test_every_response_comes_back_as_it_was(cls: Any) -> None:
    @relaxed
    @given(values_of(RESPONSE_OF[cls]))
    def check(response: Any) -> None:
        codec = MsgpackCodec()
        request = DecodedRequest(5, int(key_of(cls)), 1, InvalidRequestError())
        received = codec.decode_response(joined(codec.encode_response(request, response)))
        assert received.correlation_id == 5
        assert codec.response_body(cls, received) == response

    check()


@given(values_of(ProduceRequest))
def test_an_envelope_has_the_sizes_of_the_records_that_follow_it(request: ProduceRequest) -> None:
    frame = joined(MsgpackCodec().encode_request(1, request))
    end = 4 + int.from_bytes(frame[:4], "big")
    partitions = [[item.topic, item.partition, len(item.records)] for item in request.partitions]
    assert msgpack.unpackb(frame[4:end]) == [
        1, 0, 1, [request.acks, request.timeout_ms, partitions, request.transactional_id],
    ]  # fmt: skip
    assert frame[end:] == b"".join(bytes(item.records) for item in request.partitions)


def test_an_error_is_told_from_an_answer() -> None:
    codec = MsgpackCodec()
    error = ErrorResponse(error=42, message="no")
    received = codec.decode_response(joined(codec.encode_response(DecodedRequest(1, 16, 1, error), error)))  # type: ignore[arg-type]
    assert codec.response_body(ListGroupsRequest, received) == error


def test_records_of_a_request_are_views_of_the_frame_and_writable() -> None:
    codec = MsgpackCodec()
    frame = joined(codec.encode_request(1, produce_request(b"batch")))
    payload = codec.decode_request(frame).payload
    assert isinstance(payload, ProduceRequest)
    records = payload.partitions[0].records
    assert isinstance(records, memoryview) and not records.readonly
    records[0:1] = b"B"
    assert bytes(frame[-5:]) == b"Batch"


def test_records_of_an_answer_are_a_copy() -> None:
    codec = MsgpackCodec()
    frame = joined(codec.encode_response(DecodedRequest(1, 1, 1, InvalidRequestError()), fetch_response(b"abc", b"de")))
    response = codec.response_body(FetchRequest, codec.decode_response(frame))
    frame[:] = b"\0" * len(frame)
    assert isinstance(response, FetchResponse)
    assert [item.records for item in response.partitions] == [b"abc", b"de"]


def test_file_regions_are_passed_on_unread() -> None:
    class Region:
        position = 7
        size_bytes = 1000

        def fileno(self) -> int | None:
            return None

        def read(self) -> bytes:
            raise AssertionError("must not be read")

    region = Region()
    chunks = MsgpackCodec().encode_response(DecodedRequest(1, 1, 1, InvalidRequestError()), fetch_response(region))
    assert chunks[1] is region
    assert int.from_bytes(bytes(chunks[0])[:4], "big") == len(bytes(chunks[0])) - 4 + 1000  # type: ignore[arg-type]
    assert size_of(region) == 1000


def test_fields_of_later_versions_are_ignored_and_missing_ones_have_their_defaults() -> None:
    codec = MsgpackCodec()

    def frame(body: Any, raw: bytes = b"", api: int = 0) -> memoryview:
        envelope = msgpack.packb([1, api, 1, body])
        return memoryview(bytearray(len(envelope).to_bytes(4, "big") + envelope + raw))

    newer = codec.decode_request(frame([1, 5, [["t", 0, 3, "new"]], None, "newer"], b"abc")).payload
    older = codec.decode_request(frame([1, 5, [["t", 0, 3]]], b"abc")).payload
    assert decoded_as(newer) == decoded_as(older)
    assert isinstance(older, ProduceRequest) and bytes(older.partitions[0].records) == b"abc"
    fetch = codec.decode_request(frame([5, 1, 9, [["t", 0, 7, 8]]], api=1)).payload
    wanted = FetchPartition(topic="t", partition=0, fetch_offset=7, max_bytes=8)
    assert fetch == FetchRequest(max_wait_ms=5, min_bytes=1, max_bytes=9, partitions=(wanted,))


@pytest.mark.parametrize(
    ("body", "raw"),
    [
        ([1, 5, [["t", 0, 4]], None], b"abc"),
        ([1, 5, [["t", 0, 2]], None], b"abc"),
        ([1, 5, [["t", 0, -1]], None], b""),
        ([1, 5, [["t", 0, 2**62]], None], b"abc"),
        ([1, 5, [["t", 0, True]], None], b"a"),
        ([1, 5, [["t", 0]], None], b""),
        ([1, 5, [3], None], b""),
        ([1, 5, "xyz", None], b""),
        ([1, 5], b""),
        ({"a": 1}, b""),
        (None, b""),
        ([1, "5", [["t", 0, 3]], None], b"abc"),
        ([1, 5, [[b"t", 0, 3]], None], b"abc"),
        ([True, 5, [["t", 0, 3]], None], b"abc"),
    ],
)
def test_a_wrong_body_is_an_error_for_its_request_only(body: Any, raw: bytes) -> None:
    envelope = msgpack.packb([9, 0, 1, body])
    decoded = MsgpackCodec().decode_request(memoryview(len(envelope).to_bytes(4, "big") + envelope + raw))
    assert decoded.correlation_id == 9
    assert isinstance(decoded.payload, InvalidRequestError)


@pytest.mark.parametrize(("api", "version"), [(999, 1), (-1, 1), (0, 99), (2**40, 1)])
def test_unknown_apis_and_versions_are_told_so(api: int, version: int) -> None:
    envelope = msgpack.packb([9, api, version, []])
    decoded = MsgpackCodec().decode_request(memoryview(len(envelope).to_bytes(4, "big") + envelope))
    assert isinstance(decoded.payload, UnsupportedVersionError)


ENVELOPES = {
    "empty": b"",
    "array32 of everything": b"\xdd\xff\xff\xff\xff",
    "map32 of everything": b"\xdf\xff\xff\xff\xff",
    "bin32 of everything": b"\xc6\xff\xff\xff\xff",
    "str32 of everything": b"\xdb\xff\xff\xff\xff",
    "nesting": b"\x91" * 100_000,
    "nesting in maps": b"\x81\xa1a" * 50_000,
    "nesting of long lists": (b"\xdd" + (MAX_ARRAY_LENGTH).to_bytes(4, "big")) * 200_000,
    "ext": b"\xd4\x05\x00",
    "ext32": b"\xc9\xff\xff\xff\xff\x00",
    "timestamp": b"\xd6\xff\x00\x00\x00\x00",
    "invalid utf-8": b"\xa2\xff\xfe",
    "never used": b"\xc1",
    "trailing bytes": b"\x01\x02",
    "int as key": b"\x81\x01\x01",
    "list as key": b"\x81\x91\x01\x01",
    "cut": b"\x92\x01",
}


@pytest.mark.parametrize("name", ENVELOPES)
def test_hostile_msgpack_is_a_clear_error(name: str) -> None:
    frame = len(ENVELOPES[name]).to_bytes(4, "big") + ENVELOPES[name]
    with pytest.raises(InvalidRequestError, match="Envelope"):
        MsgpackCodec().decode_request(memoryview(frame))


BODIES = {
    "a list of everything": b"\x93\x01\x05\xdd\xff\xff\xff\xff",
    "strings of everything": b"\x93\x01\x05\x91\x93\xdb\xff\xff\xff\xff",
    "nesting": b"\x93\x01\x05" + b"\x91" * 100_000,
    "nesting in a field of later versions": b"\x95\x01\x05\x90\xc0" + b"\x91" * 100_000,
    "trailing bytes": b"\x93\x01\x05\x90\x00",
    "never used": b"\x93\x01\x05\xc1",
}


@pytest.mark.parametrize("name", BODIES)
def test_a_hostile_body_makes_its_whole_envelope_invalid(name: str) -> None:
    envelope = b"\x94\x09\x00\x01" + BODIES[name]
    with pytest.raises(InvalidRequestError, match="Envelope"):
        MsgpackCodec().decode_request(memoryview(len(envelope).to_bytes(4, "big") + envelope))


@pytest.mark.parametrize("topic", [b"\xa2\xff\xfe", b"\xd4\x05\x00", b"\xd6\xff\x00\x00\x00\x00"])
def test_a_hostile_string_is_an_error_for_its_request_only(topic: bytes) -> None:
    envelope = b"\x94\x09\x00\x01\x93\x01\x05\x91\x93" + topic + b"\x00\x00"
    decoded = MsgpackCodec().decode_request(memoryview(len(envelope).to_bytes(4, "big") + envelope))
    assert isinstance(decoded.payload, InvalidRequestError)


@pytest.mark.parametrize(("excess", "is_taken"), [(0, True), (1, False)])
def test_a_list_has_a_greatest_length(excess: int, is_taken: bool) -> None:
    topics = ("",) * (MAX_WIDE_ITEMS + excess)
    frame = joined(MsgpackCodec().encode_request(9, MetadataRequest(topics=topics)))
    payload = MsgpackCodec().decode_request(frame).payload
    assert payload == MetadataRequest(topics=topics) if is_taken else isinstance(payload, InvalidRequestError)


def test_an_envelope_has_a_greatest_size() -> None:
    envelope = MAX_ENVELOPE_BYTES + 1
    with pytest.raises(InvalidRequestError, match=str(MAX_ENVELOPE_BYTES)):
        MsgpackCodec().decode_request(memoryview(envelope.to_bytes(4, "big") + bytes(envelope)))


@pytest.mark.parametrize("cls", [*REQUEST_OF.values(), *RESPONSE_OF.values(), ClientHello, ServerHello])
def test_messages_are_frozen_lists_of_fields_that_are_named_where_one_is_made(cls: Any) -> None:
    config = cls.__struct_config__
    assert config.frozen and config.array_like and cls.__match_args__ == ()


def test_values_that_msgpack_cannot_carry_are_our_error() -> None:
    codec = MsgpackCodec()
    with pytest.raises(InvalidRequestError):
        codec.encode_request(1, produce_request(topic="\ud800"))
    with pytest.raises(InvalidRequestError):
        codec.encode_request(2**70, produce_request())
    assert codec.encode_request(1, produce_request())


def test_the_packer_is_clean_after_a_failure() -> None:
    codec = MsgpackCodec()
    whole = codec.encode_request(1, produce_request())
    with pytest.raises(InvalidRequestError):
        codec.encode_request(1, produce_request(topic="\ud800"))
    assert codec.encode_request(1, produce_request()) == whole


def test_an_answer_to_another_api_is_refused() -> None:
    codec = MsgpackCodec()
    frame = joined(codec.encode_response(DecodedRequest(1, 0, 1, InvalidRequestError()), produce_response(1)))
    with pytest.raises(InvalidRequestError, match="PRODUCE"):
        codec.response_body(FetchRequest, codec.decode_response(frame))


@given(values_of(ClientHello), values_of(ServerHello))
def test_hellos(client: ClientHello, server: ServerHello) -> None:
    assert read_hello(ClientHello, write_hello(client)[4:]) == client
    assert read_hello(ServerHello, write_hello(server)[4:]) == server


def test_empty_responses_have_a_body() -> None:
    codec = MsgpackCodec()
    frame = joined(codec.encode_response(DecodedRequest(1, 42, 1, InvalidRequestError()), EmptyResponse()))
    assert bytes(codec.decode_response(frame).body) == b"\x90"
    assert FetchPartitionResponse(topic="t", partition=0).records == b""
