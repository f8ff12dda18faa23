"""Users with passwords, as Kafka's administrators ask for them: which change is refused, and what reaches the controller."""

from types import SimpleNamespace
from typing import Any

import pytest
from unit.net.handlers.test_kafka_cluster import over_the_wire
from unit.net.handlers.test_kafka_configs import request
from unit.net.shell_world import Client

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.requests import Done
from barnabas.log.vocabulary.access.scram import LoginSecret, ScramMechanism
from barnabas.log.vocabulary.cluster_changes import AlterUsersRequest
from barnabas.log.vocabulary.errors import BarnabasError, UnsupportedVersionError
from barnabas.net.base.sasl.scram import credential_for, salted_password
from barnabas.net.handlers.security.kafka_users import KafkaUserHandlers
from barnabas.net.wire.protocol.kafka.message_classes import types_of

SALT = b"some salt"
SHA_256, SHA_512 = ScramMechanism
CREDENTIAL = credential_for(SHA_256, "secret", salt=SALT, iterations=4096)
DELETION = types_of("AlterUserScramCredentialsRequest")["ScramCredentialDeletion"]
UPSERTION = types_of("AlterUserScramCredentialsRequest")["ScramCredentialUpsertion"]
NAME = types_of("DescribeUserScramCredentialsRequest")["UserName"]


class World:
    """A broker whose image has users, and a controller that takes what it is asked."""

    def __init__(self, error: BarnabasError | None = None) -> None:
        users = {"alice": {int(SHA_256): CREDENTIAL}, "bob": {int(SHA_256): CREDENTIAL, int(SHA_512): CREDENTIAL}}
        self.asked: list[AlterUsersRequest] = []
        self.image = MetadataImage(users=users)
        self._error = error
        here: Any = self
        self.handlers = KafkaUserHandlers(SimpleNamespace(metadata=here, controller=here))  # type: ignore[arg-type]

    async def call(self, request: AlterUsersRequest, **_: object) -> Done:
        self.asked.append(request)
        if self._error is not None:
            raise self._error
        return Done(offset=1)

    async def wait_for_offset(self, offset: int, *, timeout_ms: int) -> None:
        assert offset == 1

    async def altered(self, deletions: tuple[Any, ...] = (), upsertions: tuple[Any, ...] = ()) -> dict[str, int]:
        asked = request(51, 0, deletions=list(deletions), upsertions=list(upsertions))
        answer = over_the_wire(asked, (await self.handlers.alter(asked, Client())).body)
        assert all(item.error_message for item in answer.results if item.error_code)
        return {item.user: item.error_code for item in answer.results}


def upsertion(name: str = "carol", mechanism: int = SHA_256, iterations: int = 4096, **values: Any) -> Any:
    salted = salted_password(SHA_256, "secret", SALT, 4096)
    return UPSERTION(
        **(
            {"name": name, "mechanism": mechanism, "iterations": iterations, "salt": SALT, "salted_password": salted}
            | values
        )
    )


@pytest.mark.parametrize("names", [None, []])
async def test_all_users_are_described(names: list[str] | None) -> None:
    asked = request(50, 0, users=names)
    answer = over_the_wire(asked, (await World().handlers.describe(asked, Client())).body)
    found = {item.user: [(one.mechanism, one.iterations) for one in item.credential_infos] for item in answer.results}
    assert found == {"alice": [(1, 4096)], "bob": [(1, 4096), (2, 4096)]}


async def test_named_users_are_described_and_unknown_and_doubled_ones_refused() -> None:
    asked = request(50, 0, users=[NAME(name=name) for name in ("nobody", "alice", "bob", "bob")])
    answer = over_the_wire(asked, (await World().handlers.describe(asked, Client())).body)
    assert [(item.user, item.error_code) for item in answer.results] == [("nobody", 91), ("alice", 0), ("bob", 92)]


async def test_a_change_reaches_the_controller_without_the_salted_password() -> None:
    world = World()
    assert await world.altered((DELETION(name="alice", mechanism=1),), (upsertion(),)) == {"alice": 0, "carol": 0}
    (asked,) = world.asked
    assert [(item.user, item.mechanism, item.credential) for item in asked.credentials] == [("carol", 1, CREDENTIAL)]
    assert [(item.user, item.mechanism) for item in asked.removals] == [("alice", 1)]
    assert asked.login_secret is not None and len(asked.login_secret.value) == 32


async def test_the_secret_of_the_cluster_stays() -> None:
    world = World()
    world.image = MetadataImage(login_secret=LoginSecret(value=b"x"))
    await world.altered(upsertions=(upsertion(),))
    assert world.asked[0].login_secret is None


@pytest.mark.parametrize(
    ("deletions", "upsertions", "code"),
    [
        ((DELETION(name="carol", mechanism=1),), (), 91),
        ((DELETION(name="alice", mechanism=2),), (), 91),
        ((DELETION(name="alice", mechanism=7),), (), 33),
        ((DELETION(name="", mechanism=1),), (), 93),
        ((DELETION(name="alice", mechanism=1),) * 2, (), 92),
        ((DELETION(name="alice", mechanism=1),), (upsertion("alice"),), 92),
        ((), (upsertion(), upsertion()), 92),
        ((), (upsertion(mechanism=0),), 33),
        ((), (upsertion(mechanism=2),), 93),
        ((), (upsertion(iterations=4095),), 93),
        ((), (upsertion(iterations=100_001),), 93),
        ((), (upsertion(salt=b""),), 93),
        ((), (upsertion(salted_password=b""),), 93),
        ((), (upsertion("a\nb"),), 93),
    ],
)
async def test_a_change_that_is_refused_does_not_prevent_the_others(
    deletions: tuple[Any, ...], upsertions: tuple[Any, ...], code: int
) -> None:
    world = World()
    found = await world.altered(deletions, (*upsertions, upsertion("other")))
    assert found.pop("other") == 0
    assert list(found.values()) == [code]
    (asked,) = world.asked
    assert [item.user for item in asked.credentials] == ["other"] and not asked.removals


async def test_nothing_is_asked_of_the_controller_if_all_is_refused() -> None:
    world = World()
    assert await world.altered((DELETION(name="nobody", mechanism=1),)) == {"nobody": 91}
    assert not world.asked


async def test_an_error_of_the_controller_is_that_of_every_change() -> None:
    world = World(UnsupportedVersionError("an old broker"))
    found = await world.altered((DELETION(name="nobody", mechanism=1),), (upsertion(),))
    assert found == {"nobody": 91, "carol": 35}
