"""Who gets a place at a server that is full, and who has to leave for it."""

import asyncio
from typing import Any

import pytest
from unit.net.wire_world import RawClient, World, raw_client, run_in_simulation, serve

from barnabas.net.base.settings.server_limits import UNLIMITED_DESCRIPTORS, ServerLimits
from barnabas.net.server.admission import RESERVED_PLACES, RESERVED_PLACES_OF_HOST, Admission, Place, is_reserved_for
from barnabas.net.server.server import Server
from barnabas.net.wire.protocol.msgpack import PREAMBLE, ClientHello, write_hello

ADMISSION = Admission(max_connections=10, max_descriptor=100)


@pytest.mark.parametrize(
    ("ordinary", "reserved", "of_host", "descriptor", "place"),
    [
        (0, 0, 0, -1, Place.ORDINARY),
        (9, 0, 0, 99, Place.ORDINARY),
        (10, 0, 0, 99, Place.RESERVED),
        (0, 0, 0, 100, Place.RESERVED),
        (10, RESERVED_PLACES - 1, 1, 500, Place.RESERVED),
        (10, RESERVED_PLACES, 0, 500, Place.REFUSED),
        (0, RESERVED_PLACES, 0, 100, Place.REFUSED),
        (9, RESERVED_PLACES, 0, 99, Place.ORDINARY),
        (10, 60, RESERVED_PLACES_OF_HOST - 1, 99, Place.RESERVED),
        (10, 60, RESERVED_PLACES_OF_HOST, 99, Place.REFUSED),
        (9, 60, RESERVED_PLACES_OF_HOST, 99, Place.ORDINARY),
    ],
)
def test_places(ordinary: int, reserved: int, of_host: int, descriptor: int, place: Place) -> None:
    found = ADMISSION.place(ordinary=ordinary, reserved=reserved, reserved_of_host=of_host, descriptor=descriptor)
    assert found is place


def test_brokers_and_operators_are_known_by_their_names() -> None:
    for name in ("broker-1", "replica-12", "barnabas-cli", "barnabas-admin", "adminclient-1"):
        assert is_reserved_for(name)
    for name in ("", "billing", "barnabas-consumer", "my-broker-1"):
        assert not is_reserved_for(name)


async def greeted(world: World, server: Server, client_id: str) -> RawClient:
    client = await raw_client(world, server.address, greet=False)
    client.transport.write(PREAMBLE + write_hello(ClientHello(versions=(1,), client_id=client_id)))
    return client


def crowd(server_limits: ServerLimits) -> Any:
    async def body(world: World) -> None:
        server = await serve(world, {}, limits=server_limits)
        strangers = [await raw_client(world, server.address) for _ in range(3)]
        stranger = await greeted(world, server, "billing")
        await stranger.closed
        silent = await raw_client(world, server.address, greet=False)
        before = asyncio.get_running_loop().time()
        await silent.closed
        assert asyncio.get_running_loop().time() - before < 4, "a reserved place is not for those who say nothing"
        assert not any(client.closed.done() for client in strangers), "nobody left who was there before"
        await asyncio.sleep(10)
        broker = await greeted(world, server, "broker-2")
        await broker.frame()
        await strangers[0].closed  # silent for longest, as the first of equals
        assert server.connection_count == 3
        assert not server._reserved, "the broker has the place of the stranger now"
        assert (server.metrics.connections_refused, server.metrics.connections_expired) == (2, 1)
        for client in (*strangers[1:], broker):
            client.transport.close()
        await server.close()

    return body


def test_a_full_server_takes_brokers_and_refuses_strangers() -> None:
    run_in_simulation(crowd(ServerLimits(max_connections=3, max_descriptor=UNLIMITED_DESCRIPTORS)))


def test_an_active_client_never_leaves_for_a_broker() -> None:
    async def body(world: World) -> None:
        server = await serve(world, {}, limits=ServerLimits(max_connections=1))
        active = await raw_client(world, server.address)
        broker = await greeted(world, server, "replica-2")
        await broker.frame()
        assert not active.closed.done() and server.connection_count == 2 and len(server._reserved) == 1
        for client in (active, broker):
            client.transport.close()
        await server.close()

    run_in_simulation(body)


def test_a_crowd_that_says_nothing_keeps_no_broker_out() -> None:
    """It takes every reserved place that is left to its address, again and again; each ends only after a second."""

    async def body(world: World) -> None:
        server = await serve(world, {}, limits=ServerLimits(max_connections=1))
        first = await raw_client(world, server.address)
        crowd = [await raw_client(world, server.address, greet=False) for _ in range(2 * RESERVED_PLACES)]
        assert server.connection_count == 1 + RESERVED_PLACES_OF_HOST
        broker = await greeted(world, server, "broker-2")
        await broker.frame()
        assert not broker.closed.done() and not first.closed.done()
        assert server.connection_count == 1 + RESERVED_PLACES_OF_HOST
        for client in (first, *crowd, broker):
            client.transport.close()
        await server.close()

    run_in_simulation(body)


def test_forged_names_from_one_address_leave_places_to_other_addresses() -> None:
    async def body(world: World) -> None:
        server = await serve(world, {}, limits=ServerLimits(max_connections=1))
        first = await raw_client(world, server.address)
        forged = [await greeted(world, server, f"broker-{number}") for number in range(2 * RESERVED_PLACES)]
        for client in forged[:RESERVED_PLACES_OF_HOST]:
            await client.frame()
        for client in forged[RESERVED_PLACES_OF_HOST:]:
            await client.closed
        assert len(server._reserved) == RESERVED_PLACES_OF_HOST < RESERVED_PLACES
        for client in (first, *forged):
            client.transport.close()
        await server.close()

    run_in_simulation(body)
