"""What is not to be had here is refused so that clients stop: SASL; and what ApiVersions promises instead."""

import asyncio
from typing import Any

import pytest
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.handlers.kafka_client import KafkaClient, made, versions_of
from unit.net.shell_world import Client, partition, simulated, topic

from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.handlers.kafka.group_admin import KafkaGroupAdminHandlers
from barnabas.net.handlers.kafka.versions import api_versions
from barnabas.net.handlers.own.groups import GroupHandlers
from barnabas.net.handlers.security.sasl import KafkaSaslHandlers
from barnabas.net.server.dispatcher import Dispatcher, answering
from barnabas.net.wire.protocol.kafka.apis import LISTED, SERVED, KafkaApi
from barnabas.net.wire.protocol.kafka.versions_api import FEATURES, versions_response

HANDSHAKE, VERSIONS, AUTHENTICATE, DESCRIBE_GROUPS = 17, 18, 36, 15


def client(metadata_offset: int = 0) -> KafkaClient:
    nobody: Any = None  # there is no SASL: logins are refused before anything is asked
    sasl = KafkaSaslHandlers(nobody)
    return KafkaClient(
        Dispatcher(
            {
                KafkaApi.SASL_HANDSHAKE: sasl.handshake,
                KafkaApi.SASL_AUTHENTICATE: answering(sasl.authenticate),
                KafkaApi.API_VERSIONS: api_versions(lambda: metadata_offset),
            }
        )
    )


def ask(key: int, version: int, body: Any) -> Any:
    return asyncio.run(client().ask(key, version, body))


# --- SASL -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(HANDSHAKE))
def test_a_sasl_handshake_is_answered_with_no_mechanism(version: int) -> None:
    answer = ask(HANDSHAKE, version, made("SaslHandshakeRequest", mechanism="PLAIN"))
    assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, [])


@pytest.mark.parametrize("version", versions_of(AUTHENTICATE))
def test_credentials_are_not_looked_at(version: int) -> None:
    answer = ask(AUTHENTICATE, version, made("SaslAuthenticateRequest", auth_bytes=b"\0u\0p"))
    assert (answer.error_code, answer.auth_bytes) == (ErrorCode.ILLEGAL_SASL_STATE, b"")
    assert "without SASL" in answer.error_message


# --- ApiVersions ------------------------------------------------------------------------------------------------------


async def versions(version: int, metadata_offset: int) -> Any:
    return await client(metadata_offset).ask(VERSIONS, version, made("ApiVersionsRequest"))


@pytest.mark.parametrize("version", [3, 4])
def test_features_are_told_as_kafka_tells_them(version: int) -> None:
    answer = asyncio.run(_unflexible(version, 9))
    supported = {item.name: (item.min_version, item.max_version) for item in answer.supported_features}
    finalized = {item.name: (item.min_version_level, item.max_version_level) for item in answer.finalized_features}
    assert answer.finalized_features_epoch == 9
    told = {"metadata.version": 25, "group.version": 1, "share.version": 1, "transaction.version": 2}
    assert finalized == {name: (level, level) for name, level in told.items()}, "what is at 0 is absent"
    if version < 4:  # clients of then fail at a range that begins at 0
        assert supported == {"metadata.version": (7, 25)}
    else:
        assert supported == {name: (first, last) for name, (first, last, _) in FEATURES.items()}
        assert supported["transaction.version"] == (0, 2), "KIP-890"


def test_a_broker_without_metadata_tells_no_finalized_features() -> None:
    answer = asyncio.run(_unflexible(4, 0))
    assert (answer.finalized_features_epoch, tuple(answer.finalized_features)) == (-1, ())


async def _unflexible(version: int, offset: int) -> Any:
    """The header of this one answer has no tags, whatever the version: the handler's body is looked at as it is."""
    replied: list[Any] = []
    request = made("ApiVersionsRequest")
    handler = api_versions(lambda: offset)
    handler(type("Request", (), {"version": version, "body": request}), Client(), replied.append)  # type: ignore[arg-type]
    return replied[0].body


def test_a_refused_version_is_told_the_ranges_and_no_features() -> None:
    answer = versions_response(int(ErrorCode.UNSUPPORTED_VERSION))
    assert {item.api_key for item in answer.api_keys} == set(LISTED)
    assert not answer.supported_features and not answer.finalized_features


def test_sasl_is_answered_and_not_promised() -> None:
    assert {HANDSHAKE, AUTHENTICATE} == SERVED.keys() - LISTED.keys()


# --- authorized operations of groups ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(DESCRIBE_GROUPS))
@simulated
async def test_all_operations_on_a_group_are_authorized_and_told_to_who_asks(version: int) -> None:
    world = await HandlerWorld.start(topic("t", partition(0)), slots=(slot_of("g"),))
    admin = KafkaGroupAdminHandlers(world.services, GroupHandlers(world.services))
    asker = KafkaClient(Dispatcher({KafkaApi.DESCRIBE_GROUPS: answering(admin.describe)}))
    for asks in (False, True) if version >= 3 else (False,):
        asked = made("DescribeGroupsRequest", groups=["g"])
        asked.include_authorized_operations = asks
        (group,) = (await asker.ask(DESCRIBE_GROUPS, version, asked)).groups
        # READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: what Kafka 4.1 answers without an authorizer
        assert (group.error_code, group.authorized_operations) == (0, 0b110101001000 if asks else -(2**31))
