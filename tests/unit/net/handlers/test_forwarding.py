"""The table of requests that are handed on: whatever stands in it is decoded, handed to the controller, decided and answered."""

import asyncio
from typing import Any, cast, get_args

import pytest
from msgspec.structs import replace
from unit.kraft.single_controller import SingleController
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.shell_world import Client, partition, simulated, topic
from unit.recorded_bytes import Samples, fields_of

from barnabas.kraft.metadata.requests import REQUESTS, ControllerRequest, Done
from barnabas.log.vocabulary.access.scram import LoginSecret
from barnabas.log.vocabulary.cluster_changes import FORWARDED, AlterUsersRequest, ForwardedRequest, Forwarding
from barnabas.net.handlers.registry import build_handlers
from barnabas.net.server.dispatcher import Dispatcher
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.apis import APIS, api_name
from barnabas.net.wire.protocol.msgpack import MsgpackCodec
from barnabas.net.wire.protocol.responses import EmptyResponse

T = topic("t", partition(0))
each = pytest.mark.parametrize("row", FORWARDED, ids=lambda row: row.request.__name__)


def test_no_number_is_given_twice() -> None:
    keys = [*map(int, ApiKey), *(row.api_key for row in FORWARDED)]
    assert len(set(keys)) == len(keys) == len(APIS)
    others = set(get_args(ControllerRequest)) - {ForwardedRequest}
    assert {request for request, _ in REQUESTS.values()} == others | {row.request for row in FORWARDED}


def test_metrics_and_errors_name_it_by_its_class() -> None:
    assert [api_name(row.api_key) for row in FORWARDED[:2]] == ["DECOMMISSION_BROKER", "FILL_BROKER"]


@each
def test_a_client_gets_the_answer_of_the_controller_without_its_offset(row: Forwarding) -> None:
    assert fields_of(row.answer or Done) == [*fields_of(row.response or EmptyResponse), ("offset", False)]


@each
def test_the_controller_decides_on_each(row: Forwarding) -> None:
    answer = SingleController().ask(Samples().full(row.request))
    assert "does not decide" not in str(answer)


@each
@simulated
async def test_it_reaches_the_controller_and_the_answer_waits_for_this_broker(row: Forwarding) -> None:
    world = await HandlerWorld.start(T, authorizer_class_name="acl")
    dispatcher = Dispatcher(build_handlers(world.services, shut_down=lambda: None, storage=cast(Any, None)))
    codec, request = MsgpackCodec(), Samples().full(row.request)
    if isinstance(request, AlterUsersRequest):  # its handler draws a secret, which is in no request of a client
        world.source.publish(replace(world.source.image, login_secret=LoginSecret(value=b"of the cluster")))
        request = replace(request, login_secret=None)
    answer = replace(Samples().full(row.answer or Done), offset=15)
    world.source.script(answer)
    decoded = codec.decode_request(frame_of(codec.encode_request(7, request)))
    replies: list[Any] = []
    dispatcher.dispatch(cast(Any, decoded.payload), cast(Any, Client()), replies.append)
    await asyncio.sleep(1)
    assert world.source.requests == [request] and replies == []
    world.show(T, offset=15)
    await asyncio.sleep(1)
    told = codec.response_body(row.request, codec.decode_response(frame_of(codec.encode_response(decoded, replies[0]))))
    assert type(told) is (row.response or EmptyResponse)
    assert all(getattr(told, name) == getattr(answer, name) for name, _ in fields_of(type(told)))


def frame_of(chunks: list[Any]) -> memoryview:
    return memoryview(b"".join(map(bytes, chunks)))[4:]
