"""Every list of every request of both protocols, longer than any limit: the codecs refuse it, before they have made its items.

The requests are made from the types (`crowds`), so a new API with a list that has no limit fails here.
"""

import time
from typing import Any, Final

import msgspec
import pytest
from fuzz.crowds import (
    Crowd,
    Filling,
    World,
    crowded_paths,
    depth,
    kafka_crowd,
    kafka_shape,
    own_crowd,
    own_shape,
    own_values,
    shared,
)

from barnabas.kraft.metadata.requests import REQUESTS, decode_request
from barnabas.log.vocabulary.errors import BarnabasError, InvalidRequestError
from barnabas.log.vocabulary.message import MAX_ARRAY_LENGTH, check_items
from barnabas.net.base.limits import MAX_ENVELOPE_BYTES
from barnabas.net.wire.protocol.apis import REQUEST_OF
from barnabas.net.wire.protocol.apis import max_items as own_max_items
from barnabas.net.wire.protocol.kafka.apis import SERVED
from barnabas.net.wire.protocol.kafka.codec import KafkaCodec
from barnabas.net.wire.protocol.kafka.compiler import max_items as kafka_max_items
from barnabas.net.wire.protocol.kafka.schema import messages
from barnabas.net.wire.protocol.msgpack import MsgpackCodec
from barnabas.net.wire.protocol.requests import ControllerCallRequest, FetchRequest, ForgottenTopic, Request

WORLD: Final = World(topics=("many-0",), topic_ids=("1" * 32,))
OTHER_LISTS: Final = 16  # more than a request has beside the crowd, each with one item
MAX_DECODE_S: Final = (
    0.5  # of the processor; it takes a tenth of that, and the worst request took 2 s before there was a limit
)
OWN: Final = sorted((api, path) for api, cls in REQUEST_OF.items() for path in crowded_paths(own_shape("", cls)))
NESTED: Final = [(api, path) for api, path in OWN if depth(own_shape("", REQUEST_OF[api]), path) > 1]
CONTROLLER: Final = sorted(
    (kind, path) for kind, (cls, _) in REQUESTS.items() for path in crowded_paths(own_shape("", cls))
)
KAFKA: Final = sorted(
    (key, version, path)
    for key, served in SERVED.items()
    for version in {max(served.versions.first, served.taken_from), served.versions.last}
    for path in crowded_paths(kafka_shape(messages()[f"{served.name}Request"].body, version))
)


def decoded(crowd: Crowd) -> Any:
    """What the codec makes of it, within the time that is allowed."""
    frame = memoryview(bytearray(crowd.frame[4:]))
    begun_s = time.process_time()
    found = MsgpackCodec().decode_request(frame).payload
    assert time.process_time() - begun_s < MAX_DECODE_S, f"{crowd} held the loop"
    return found


def own_crowds(api: int, path: tuple[str, ...], items: int) -> list[Crowd]:
    levels = depth(own_shape("", REQUEST_OF[api]), path)
    return [own_crowd(api, path, lengths, Filling.EMPTY, WORLD) for lengths in shared(levels, items)]


@pytest.mark.parametrize(("api", "path"), OWN, ids=str)
def test_each_list_of_our_own_requests_has_a_limit(api: int, path: tuple[str, ...]) -> None:
    for crowd in own_crowds(api, path, own_max_items(api) * 5 // 4):
        assert crowd.items > own_max_items(api)
        found = decoded(crowd)
        assert isinstance(found, InvalidRequestError), f"{crowd} was taken"
        assert len(found.message) < 300


@pytest.mark.parametrize(("api", "path"), OWN, ids=str)
def test_a_list_may_be_as_long_as_its_limit(api: int, path: tuple[str, ...]) -> None:
    """Unless its items have lists of their own, which count, too."""
    shape = own_shape("", REQUEST_OF[api])
    if not any(other[: len(path)] == path for other in crowded_paths(shape) if other != path):
        found = decoded(own_crowds(api, path, own_max_items(api) - OTHER_LISTS)[0])
        assert isinstance(found, Request), f"{api} {path} was refused: {found}"


@pytest.mark.parametrize(("api", "path"), NESTED, ids=str)
def test_the_largest_envelope_that_a_stranger_can_fill_with_items(api: int, path: tuple[str, ...]) -> None:
    """Inner lists that fill the envelope, in an outer one that is as long as its type allows, or a sixteenth of that."""
    levels = depth(own_shape("", REQUEST_OF[api]), path)
    for outer_length in (MAX_ARRAY_LENGTH, MAX_ARRAY_LENGTH // 16):
        outer = (outer_length, *(1,) * (levels - 2))
        empty, four = (
            len(own_crowd(api, path, (16, *outer[1:], count), Filling.EMPTY, WORLD).frame) for count in (1, 5)
        )
        item_bytes, around_bytes = max(1, (four - empty) // 64), empty // 16 + 8
        inner = min((MAX_ENVELOPE_BYTES * 9 // 10 // outer_length - around_bytes) // item_bytes, MAX_ARRAY_LENGTH)
        crowd = own_crowd(api, path, (*outer, max(inner, 1)), Filling.EMPTY, WORLD)
        assert isinstance(decoded(crowd), InvalidRequestError), f"{crowd} was taken"


@pytest.mark.parametrize(("kind", "path"), CONTROLLER, ids=str)
def test_each_list_of_a_brokers_request_to_the_controller_has_a_limit(kind: int, path: tuple[str, ...]) -> None:
    """Anyone can send one where brokers do not prove who they are."""
    cls = REQUESTS[kind][0]
    for items, is_taken in ((MAX_ARRAY_LENGTH * 5 // 4, False), (10_000, True)):
        for lengths in shared(depth(own_shape("", cls), path), items):
            body = msgspec.msgpack.encode((kind, own_values(cls, path, lengths, Filling.EMPTY, WORLD)))
            if is_taken:
                assert isinstance(decode_request(body), cls)
                continue
            with pytest.raises(InvalidRequestError):
                decode_request(body)


@pytest.mark.parametrize(("key", "version", "path"), KAFKA, ids=str)
def test_each_list_of_kafkas_requests_has_a_limit(key: int, version: int, path: tuple[str, ...]) -> None:
    name = f"{SERVED[key].name}Request"
    levels = depth(kafka_shape(messages()[name].body, version), path)
    for lengths in shared(levels, kafka_max_items(name) * 5 // 4):
        frame = memoryview(kafka_crowd(key, version, path, lengths, Filling.EMPTY, WORLD).frame[4:])
        with pytest.raises(InvalidRequestError):
            KafkaCodec().decode_request(frame)


def test_what_is_no_list_is_left_to_the_decoder() -> None:
    body = msgspec.msgpack.encode([1, 2, 3, "no list", *[0] * 10])
    check_items(FetchRequest, body, 0)
    with pytest.raises(InvalidRequestError, match="cannot be decoded"):
        check_items(FetchRequest, b"\x94\x01", 0)
    with pytest.raises(InvalidRequestError, match="cannot be decoded"):
        check_items(FetchRequest, b"\x81\x01\x02", 0)
    check_items(ControllerCallRequest, b"\xc1", 0)  # it has no lists


def test_items_of_all_lists_count_together() -> None:
    forgotten = (ForgottenTopic(topic="t", partitions=(1, 2, 3)),) * 4
    body = msgspec.msgpack.encode(
        FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=0, partitions=(), forgotten=forgotten)
    )
    check_items(FetchRequest, body, 16)
    with pytest.raises(InvalidRequestError, match="more than 15 items"):
        check_items(FetchRequest, body, 15)
    assert issubclass(InvalidRequestError, BarnabasError)
