"""What is not to be had here is refused so that clients stop: transactions and SASL; and what ApiVersions promises instead."""

import asyncio
from typing import Any

import pytest
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.handlers.kafka_client import KafkaClient, made, versions_of
from unit.net.shell_world import partition, simulated, topic

from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.handlers.kafka import sasl as kafka_sasl
from barnabas.net.handlers.kafka import transactions as kafka_transactions
from barnabas.net.handlers.kafka.group_admin import KafkaGroupAdminHandlers
from barnabas.net.handlers.kafka.groups import KafkaGroupHandlers
from barnabas.net.handlers.kafka.versions import api_versions
from barnabas.net.handlers.own.classic_groups import ClassicGroupHandlers
from barnabas.net.handlers.own.groups import GroupHandlers
from barnabas.net.protocol.kafka.apis import LISTED, SERVED, KafkaApi
from barnabas.net.protocol.kafka.versions_api import FEATURES, versions_response
from barnabas.net.server.dispatcher import Dispatcher, answering

FIND, HANDSHAKE, VERSIONS, ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT, AUTHENTICATE = 10, 17, 18, 24, 25, 26, 28, 36
DESCRIBE, LIST, DESCRIBE_GROUPS = 65, 66, 15
REFUSED = int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def client(metadata_offset: int = 0) -> KafkaClient:
    return KafkaClient(
        Dispatcher(
            {
                **kafka_transactions.HANDLERS,
                KafkaApi.SASL_HANDSHAKE: kafka_sasl.handshake,
                KafkaApi.SASL_AUTHENTICATE: kafka_sasl.authenticate,
                KafkaApi.API_VERSIONS: api_versions(lambda: metadata_offset),
            }
        )
    )


def ask(key: int, version: int, body: Any) -> Any:
    return asyncio.run(client().ask(key, version, body))


# --- transactions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(ADD_PARTITIONS))
def test_partitions_are_refused_one_by_one(version: int) -> None:
    message = "AddPartitionsToTxnRequest"
    asked = made(message, "AddPartitionsToTxnTopic", name="t", partitions=[0, 2])
    answer = ask(ADD_PARTITIONS, version, made(message, v3_and_below_topics=[asked]))
    (result,) = answer.results_by_topic_v3_and_below
    found = [(item.partition_index, item.partition_error_code) for item in result.results_by_partition]
    assert (result.name, found) == ("t", [(0, REFUSED), (2, REFUSED)])


@pytest.mark.parametrize("version", versions_of(COMMIT))
def test_offsets_of_a_transaction_are_refused_one_by_one(version: int) -> None:
    message = "TxnOffsetCommitRequest"
    item = made(message, "TxnOffsetCommitRequestPartition", partition_index=3)
    asked = made(message, "TxnOffsetCommitRequestTopic", name="t", partitions=[item])
    (result,) = ask(COMMIT, version, made(message, topics=[asked])).topics
    assert [(item.partition_index, item.error_code) for item in result.partitions] == [(3, REFUSED)]


@pytest.mark.parametrize(
    ("key", "version"), [(key, version) for key in (ADD_OFFSETS, END) for version in versions_of(key)]
)
def test_the_other_steps_of_a_transaction_are_refused(key: int, version: int) -> None:
    assert ask(key, version, made(f"{SERVED[key].name}Request")).error_code == REFUSED


@pytest.mark.parametrize("version", versions_of(FIND))
@simulated
async def test_there_is_no_coordinator_of_transactions_and_that_is_final(version: int) -> None:
    world = await HandlerWorld.start(topic("t", partition(0)))
    groups = KafkaGroupHandlers(world.services, GroupHandlers(world.services), ClassicGroupHandlers(world.services))
    finder = KafkaClient(Dispatcher({KafkaApi.FIND_COORDINATOR: answering(groups.find_coordinator)}))
    for key_type, error in ((1, REFUSED), (2, ErrorCode.INVALID_REQUEST)):
        if version == 0 and key_type:
            continue  # asks for groups only
        named = {"coordinator_keys": ["tx"]} if version >= 4 else {"key": "tx"}
        answer = await finder.ask(FIND, version, made("FindCoordinatorRequest", key_type=key_type, **named))
        found = answer.coordinators[0] if version >= 4 else answer
        assert (found.error_code, found.node_id) == (error, -1)
        assert error != REFUSED or "transactions are not supported" in found.error_message


def test_no_transaction_is_listed_or_described() -> None:
    listed = ask(LIST, 1, made("ListTransactionsRequest", state_filters=["Ongoing", "Odd"]))
    assert (listed.error_code, listed.transaction_states, listed.unknown_state_filters) == (0, [], ["Odd"])
    (state,) = ask(DESCRIBE, 0, made("DescribeTransactionsRequest", transactional_ids=["tx"])).transaction_states
    assert (state.transactional_id, state.error_code) == ("tx", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)


# --- SASL -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(HANDSHAKE))
def test_a_sasl_handshake_is_answered_with_no_mechanism(version: int) -> None:
    answer = ask(HANDSHAKE, version, made("SaslHandshakeRequest", mechanism="PLAIN"))
    assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, [])


@pytest.mark.parametrize("version", versions_of(AUTHENTICATE))
def test_credentials_are_not_looked_at(version: int) -> None:
    answer = ask(AUTHENTICATE, version, made("SaslAuthenticateRequest", auth_bytes=b"\0u\0p"))
    assert (answer.error_code, answer.auth_bytes) == (ErrorCode.ILLEGAL_SASL_STATE, b"")
    assert "PLAINTEXT" in answer.error_message


# --- ApiVersions ------------------------------------------------------------------------------------------------------


async def versions(version: int, metadata_offset: int) -> Any:
    return await client(metadata_offset).ask(VERSIONS, version, made("ApiVersionsRequest"))


@pytest.mark.parametrize("version", [3, 4])
def test_features_are_told_as_kafka_tells_them(version: int) -> None:
    answer = asyncio.run(_unflexible(version, 9))
    supported = {item.name: (item.min_version, item.max_version) for item in answer.supported_features}
    finalized = {item.name: (item.min_version_level, item.max_version_level) for item in answer.finalized_features}
    assert answer.finalized_features_epoch == 9
    assert finalized == {"metadata.version": (25, 25), "group.version": (1, 1)}, "what is at 0 is absent"
    if version < 4:  # clients of then fail at a range that begins at 0
        assert supported == {"metadata.version": (7, 25)}
    else:
        assert supported == {name: (first, last) for name, (first, last, _) in FEATURES.items()}
        assert supported["transaction.version"] == (0, 0), "nobody may try KIP-890"


def test_a_broker_without_metadata_tells_no_finalized_features() -> None:
    answer = asyncio.run(_unflexible(4, 0))
    assert (answer.finalized_features_epoch, tuple(answer.finalized_features)) == (-1, ())


async def _unflexible(version: int, offset: int) -> Any:
    """The header of this one answer has no tags, whatever the version: the handler's body is looked at as it is."""
    replied: list[Any] = []
    request = made("ApiVersionsRequest")
    handler = api_versions(lambda: offset)
    handler(type("Request", (), {"version": version, "body": request}), None, replied.append)  # type: ignore[arg-type]
    return replied[0].body


def test_a_refused_version_is_told_the_ranges_and_no_features() -> None:
    answer = versions_response(int(ErrorCode.UNSUPPORTED_VERSION))
    assert {item.api_key for item in answer.api_keys} == set(LISTED)
    assert not answer.supported_features and not answer.finalized_features


def test_transactions_and_sasl_are_answered_and_not_promised() -> None:
    assert {ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT, HANDSHAKE, AUTHENTICATE} == SERVED.keys() - LISTED.keys()


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
