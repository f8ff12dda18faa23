"""Quotas over the wire of both protocols: translated, decided by the real control, and described again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace
from unit.kraft.single_controller import SingleController
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.handlers.kafka_client import KafkaClient, made
from unit.net.shell_world import Client, simulated

from barnabas.kraft.metadata.feature_levels import NEWEST_LEVEL
from barnabas.kraft.metadata.requests import ControllerRequest
from barnabas.log.vocabulary.access.quotas import DEFAULT, QuotaEntity, QuotaFilter, QuotaKind, QuotaPart
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    ErrorCode,
    InvalidRequestError,
    RequestTimedOutError,
    ThrottlingQuotaExceededError,
)
from barnabas.log.vocabulary.principal import Principal
from barnabas.net.handlers.common.mutations import mutations
from barnabas.net.handlers.registry import build_handlers
from barnabas.net.handlers.security.quotas import QuotaHandlers
from barnabas.net.server.dispatcher import Dispatcher
from barnabas.net.server.quotas.client_quotas import ClientQuotas
from barnabas.net.wire.protocol.requests import DescribeQuotasRequest

DESCRIBE, ALTER = 48, 49
EXACT, THE_DEFAULT, ANY = range(3)


class QuotaWorld:
    """A broker whose controller decides for real."""

    def __init__(self, world: HandlerWorld) -> None:
        self.world = world
        self.handlers = QuotaHandlers(world.services)
        handlers = build_handlers(world.services, shut_down=lambda: None, storage=cast(Any, None))
        self.kafka = KafkaClient(Dispatcher(handlers))
        self._controller = SingleController(0)
        self._controller.ask(replace(self._controller.registration(0), max_feature_level=NEWEST_LEVEL))
        world.source.decide = self._decide

    @classmethod
    async def start(cls) -> QuotaWorld:
        return cls(await HandlerWorld.start())

    @property
    def held(self) -> dict[QuotaEntity, dict[str, float]]:
        return self.world.source.image.quotas

    def _decide(self, request: ControllerRequest) -> object:
        answer = self._controller.ask(request)
        if isinstance(answer, BarnabasError):
            raise answer
        shown, decided = self.world.source.image, self._controller.image
        self.world.source.publish(replace(shown, quotas=decided.quotas, offset=shown.offset + 100))
        return answer

    async def alter(self, version: int, *entries: Any, validate_only: bool = False) -> list[tuple[int, Any]]:
        body = made("AlterClientQuotasRequest", entries=list(entries), validate_only=validate_only)
        answer = await self.kafka.ask(ALTER, version, body)
        return [
            (entry.error_code, [(part.entity_type, part.entity_name) for part in entry.entity])
            for entry in answer.entries
        ]

    async def describe(self, version: int, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
        parts = [
            made("DescribeClientQuotasRequest", "ComponentData", entity_type=kind, match_type=match, match=name)
            for kind, match, name in components
        ]
        body = made("DescribeClientQuotasRequest", components=parts, strict=strict)
        return await self.kafka.ask(DESCRIBE, version, body)


def entry(entity: list[tuple[str, str | None]], **values: float | None) -> Any:
    request = "AlterClientQuotasRequest"
    return made(
        request,
        "EntryData",
        entity=[made(request, "EntityData", entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[
            made(request, "OpData", key=key, value=value or 0.0, remove=value is None) for key, value in values.items()
        ],
    )


ALICE: list[tuple[str, str | None]] = [("user", "alice")]
ANY_CLIENT: list[tuple[str, str | None]] = [("client-id", None)]
HOST: list[tuple[str, str | None]] = [("ip", "10.0.0.1")]


@pytest.mark.parametrize("version", range(2))
@simulated
async def test_quotas_are_set_described_and_removed_by_kafkas_clients(version: int) -> None:
    world = await QuotaWorld.start()
    done = await world.alter(
        version,
        entry(ALICE, producer_byte_rate=1000.0, request_percentage=2.5),
        entry(ANY_CLIENT, consumer_byte_rate=7.0),
        entry(HOST, connection_creation_rate=3.0),
    )
    assert done == [(0, ALICE), (0, ANY_CLIENT), (0, HOST)]
    assert world.held == {
        QuotaEntity(user="alice"): {"producer_byte_rate": 1000.0, "request_percentage": 2.5},
        QuotaEntity(client_id=DEFAULT): {"consumer_byte_rate": 7.0},
        QuotaEntity(ip="10.0.0.1"): {"connection_creation_rate": 3.0},
    }
    answer = await world.describe(version)
    assert answer.error_code == 0 and len(answer.entries) == 3
    (one,) = (await world.describe(version, ("client-id", THE_DEFAULT, None))).entries
    assert [(part.entity_type, part.entity_name) for part in one.entity] == ANY_CLIENT
    assert [(value.key, value.value) for value in one.values] == [("consumer_byte_rate", 7.0)]
    assert (await world.describe(version, ("user", EXACT, "bob"))).entries == []
    assert len((await world.describe(version, ("user", ANY, None), strict=True)).entries) == 1
    assert await world.alter(version, entry(ALICE, producer_byte_rate=None, request_percentage=None)) == [(0, ALICE)]
    assert QuotaEntity(user="alice") not in world.held


@simulated
async def test_a_wrong_entry_is_refused_alone_and_a_check_changes_nothing() -> None:
    world = await QuotaWorld.start()
    wrong = entry(ALICE, connection_creation_rate=1.0)
    good = entry(ANY_CLIENT, producer_byte_rate=1.0)
    assert await world.alter(1, wrong, good, validate_only=True) == [(42, ALICE), (0, ANY_CLIENT)]
    assert world.held == {}
    other = entry([("group", "g")], producer_byte_rate=1.0)
    twice = entry([*ALICE, *ALICE], producer_byte_rate=1.0)
    empty = entry([("user", "")], producer_byte_rate=1.0)
    assert [code for code, _ in await world.alter(1, wrong, good, other, twice, empty)] == [42, 0, 42, 42, 42]
    assert list(world.held) == [QuotaEntity(client_id=DEFAULT)]


@pytest.mark.parametrize(
    "components",
    [
        (("ip", ANY, None), ("user", ANY, None)),
        (("group", ANY, None),),
        (("user", ANY, None), ("user", EXACT, "a")),
        (("user", 3, None),),
        (("user", EXACT, None),),
        (("user", EXACT, ""),),
    ],
)
@simulated
async def test_a_filter_that_could_find_nothing_is_refused(components: tuple[Any, ...]) -> None:
    answer = await (await QuotaWorld.start()).describe(1, *components)
    assert answer.error_code == ErrorCode.INVALID_REQUEST and answer.error_message


@simulated
async def test_our_own_request_describes_what_its_filter_finds() -> None:
    world = await QuotaWorld.start()
    await world.alter(1, entry(ALICE, producer_byte_rate=1.0), entry(HOST, connection_creation_rate=3.0))
    users = QuotaFilter(parts=(QuotaPart(kind="user"),))
    (one,) = (await world.handlers.describe(DescribeQuotasRequest(wanted=users), Client())).quotas
    assert (one.entity, one.values) == (QuotaEntity(user="alice"), {"producer_byte_rate": 1.0})
    with pytest.raises(InvalidRequestError, match="at most 3 parts"):
        await world.handlers.describe(DescribeQuotasRequest(wanted=QuotaFilter(parts=users.parts * 4)), Client())


def test_partitions_that_are_refused_do_not_count() -> None:
    """A mistake in a number would lock out all clients of the user for years."""
    quotas = ClientQuotas(dict.fromkeys(QuotaKind, 1.0))
    quotas.follow({QuotaEntity(user=DEFAULT): {QuotaKind.MUTATION: 1.0}})
    services: Any = SimpleNamespace(quotas=quotas, clock=SimpleNamespace(now_ms=lambda: 0))
    client: Any = SimpleNamespace(principal=Principal(name="alice"), client_id="c", certified_node=None)
    with pytest.raises(InvalidRequestError), mutations(services, client, 2**31):
        raise InvalidRequestError("too many partitions")
    with pytest.raises(RequestTimedOutError), mutations(services, client, 2):
        raise RequestTimedOutError("perhaps they are created")
    with pytest.raises(ThrottlingQuotaExceededError), mutations(services, client, 1):
        pass
    with mutations(services, client, 0):
        pass
