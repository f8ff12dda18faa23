"""Every API of both protocols: without a permission, with those of another user, with all permissions, with a DENY, and for super
users."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from msgspec.structs import replace
from unit.net.access.access_world import ROOT, AccessWorld, everything
from unit.net.shell_world import Client
from unit.recorded_bytes import Samples

from barnabas.kraft.metadata.requests import BrokerHeartbeat, encode_request
from barnabas.log.vocabulary.access.acls import Permission
from barnabas.log.vocabulary.errors import ClusterAuthorizationError, ErrorCode
from barnabas.net.server.access.changes import ADMINISTRATIVE
from barnabas.net.server.access.guard import RULES, Guard
from barnabas.net.server.access.rules import free
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.apis import REQUEST_OF, api_name
from barnabas.net.wire.protocol.kafka.apis import SERVED, KafkaApi, KafkaRequest
from barnabas.net.wire.protocol.kafka.message_classes import class_of, types_of
from barnabas.net.wire.protocol.requests import ControllerCallRequest, KafkaMetadataRequest

REFUSED = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
# Those whose answers are filtered: everyone may ask, and sees what it may describe.
FILTERED = frozenset(
    {
        ApiKey.METADATA,
        ApiKey.LIST_GROUPS,
        ApiKey.LIST_TRANSACTIONS,
        KafkaApi.METADATA,
        KafkaApi.LIST_GROUPS,
        KafkaApi.LIST_TRANSACTIONS,
        KafkaApi.LIST_CONFIG_RESOURCES,
        KafkaApi.DESCRIBE_CLUSTER,
    }
)
_TOPIC_ID = b"\x0a" * 16
# One item of each list of a Kafka request that names resources, with the fields that matter.
_ITEMS: dict[str, Callable[[Any], Any]] = {
    "topics": lambda types: _topics(types),
    "v3_and_below_topics": lambda types: [types["AddPartitionsToTxnTopic"](name="t", partitions=[0])],
    "topic_names": lambda types: ["t"],
    "groups": lambda types: _groups(types),
    "group_ids": lambda types: ["g"],
    "groups_names": lambda types: ["g"],
    "coordinator_keys": lambda types: ["g"],
    "transactional_ids": lambda types: ["x"],
    "resources": lambda types: [_first(types, "Resource")(resource_type=2, resource_name="t")],
    "creations": lambda types: [types["AclCreation"]()],
    "filters": lambda types: [types["DeleteAclsFilter"]()],
    "markers": lambda types: [types["WritableTxnMarker"](topics=_topics(types))],
    "deletions": lambda types: [types["ScramCredentialDeletion"](name="bob", mechanism=1)],
    "upsertions": lambda types: [types["ScramCredentialUpsertion"](name=name, mechanism=2) for name in ("bob", "eve")],
    "entries": lambda types: [types["EntryData"]()],
}


def _first(types: dict[str, Any], ending: str) -> Any:
    return next(made for name, made in types.items() if name.endswith(ending))


def _topics(types: dict[str, Any]) -> list[Any]:
    made = next(
        made
        for name, made in types.items()
        if name in ("FetchTopic", "CreatableTopic", "DeleteTopicState", "CreatePartitionsTopic", "TopicRequest")
        or name in ("DeleteRecordsTopic", "OffsetDeleteRequestTopic", "TxnOffsetCommitRequestTopic")
        or name in ("OffsetFetchRequestTopic", "ReassignableTopic", "ListPartitionReassignmentsTopics")
        or name in ("DescribableLogDirTopic", "TopicData", "WritableTxnMarkerTopic", "AcknowledgeTopic")
        or name in ("AlterShareGroupOffsetsRequestTopic", "DeleteShareGroupOffsetsRequestTopic")
    )
    one = made()
    for field, value in (("name", "t"), ("topic_name", "t"), ("topic_id", _TOPIC_ID)):
        if hasattr(one, field):
            setattr(one, field, value)
    if hasattr(one, "partition_indexes"):
        one.partition_indexes = [0]
    elif hasattr(one, "partitions"):
        made = [item for name, item in types.items() if name.endswith("Partition")]
        one.partitions = [made[0]()] if made else [0]
    return [one]


def _groups(types: dict[str, Any]) -> list[Any]:
    made = types.get("OffsetFetchRequestGroup", types.get("DescribeShareGroupOffsetsRequestGroup"))
    return ["g"] if made is None else [made(group_id="g", topics=None)]


def kafka_request(api: int) -> KafkaRequest[Any]:
    key = api - 2000
    served = SERVED[key]
    types = types_of(f"{served.name}Request")
    body = class_of(f"{served.name}Request")()
    if api == KafkaApi.FETCH:
        body.replica_id = -1
    for field in getattr(type(body), "__dataclass_fields__", {}) or dir(body):
        if field in _ITEMS:
            setattr(body, field, _ITEMS[field](types))
    version = min(served.versions.last, 3) if api == KafkaApi.ADD_PARTITIONS_TO_TXN else served.versions.last
    return KafkaRequest(api_key=KafkaApi(api), version=version, body=body)


def request_of(api: int) -> Any:
    """A request that names resources, in the newest version that clients send."""
    if api == KafkaApi.METADATA:
        return KafkaMetadataRequest(topics=("t",), kafka_version=12)
    if api >= KafkaApi.FETCH:
        return kafka_request(api)
    if api == ApiKey.CONTROLLER_CALL:
        return ControllerCallRequest(body=encode_request(BrokerHeartbeat(node_id=1, broker_epoch=1, metadata_offset=1)))
    made = Samples().full(REQUEST_OF[api])
    of_a_client = {"replica_id": -1, "session_epoch": -1, "session_id": 0}
    return replace(made, **{name: value for name, value in of_a_client.items() if hasattr(made, name)})


def error_codes(answer: Any, depth: int = 0) -> set[int]:
    """All error codes in an answer, of whatever class it is."""
    found: set[int] = set()
    if depth > 10 or isinstance(answer, str | bytes | int | float | None):
        return found
    if isinstance(answer, list | tuple):
        return found.union(*(error_codes(item, depth + 1) for item in answer), set())
    names = getattr(answer, "__struct_fields__", None) or getattr(answer, "__slots__", ())
    for name in names:
        value = getattr(answer, name, None)
        if isinstance(value, int) and (name == "error" or name.endswith("error_code")):
            found.add(value)
        found |= error_codes(value, depth + 1)
    return found - {0}


every = pytest.mark.parametrize("api", sorted(RULES), ids=api_name)


def test_the_table_is_complete() -> None:
    assert set(RULES) == {int(api) for api in REQUEST_OF} | {int(api) for api in KafkaApi}


def test_an_api_without_a_rule_is_refused_to_everyone() -> None:
    world = AccessWorld(*everything())
    guard = Guard(world.control)
    for client in (world.client(), world.client(ROOT)):
        with pytest.raises(ClusterAuthorizationError, match="has no rule"):
            guard.admit(4711, None, client, client.reply)


@every
def test_without_a_permission_nothing_reaches_a_handler(api: int) -> None:
    check_refused(AccessWorld(), api)


@every
def test_a_denial_is_stronger_than_all_permissions(api: int) -> None:
    check_refused(AccessWorld(*everything(), *everything(Permission.DENY)), api)


@pytest.mark.parametrize("name", ["User:mallory", "User:alice2", "User:ALICE", "User:alic", "User:ANONYMOUS", "User:*"])
@every
def test_the_permissions_of_a_user_are_no_one_elses(api: int, name: str) -> None:
    world = AccessWorld(*everything())
    check_refused(world, api, world.client(name))


def check_refused(world: AccessWorld, api: int, client: Client | None = None) -> None:
    client = world.ask(request_of(api), client)
    if RULES[api] is free:
        assert world.reached and not client.replies
    elif api in FILTERED:
        assert len(world.reached) == 1
    else:
        assert not world.reached, "a handler was called"
        assert error_codes(client.answer()) & REFUSED and world.audit.denials


@every
def test_with_all_permissions_a_request_reaches_its_handler_as_it_is(api: int) -> None:
    if RULES[api] is free or api in FILTERED:
        return
    request = request_of(api)
    world = AccessWorld(*everything())
    client = world.ask(deepcopy(request))
    assert not client.replies, client.replies
    assert repr(world.reached) == repr([request]) and not world.audit.denials


@every
def test_super_users_and_brokers_may_do_everything(api: int) -> None:
    for name, node_id in ((ROOT, None), ("User:CN=node-1", 1)):
        world = AccessWorld(certified=False)
        client = world.ask(request_of(api), world.client(name, node_id))
        assert len(world.reached) == 1 and not client.replies


_VERBS = "CREATE DELETE ALTER INCREMENTAL_ALTER ELECT ASSIGN UNREGISTER DECOMMISSION FILL ABORT RESET UNDO BRING"
CHANGES = (*_VERBS.split(), "OFFSET_DELETE", "BROKER_SHUTDOWN", "ADD_PARTITIONS", "WRITE_TXN_MARKERS")
OF_PRODUCERS = ("ADD_PARTITIONS_TO_TXN",)


@pytest.mark.parametrize("api", [api for api in RULES if api_name(api).startswith(CHANGES)], ids=api_name)
def test_every_api_that_changes_the_cluster_is_in_the_audit(api: int) -> None:
    assert (api in ADMINISTRATIVE) is (api_name(api) not in OF_PRODUCERS)


def test_no_other_api_is_in_the_audit() -> None:
    """Clients send them all the time; their lines would hide changes."""
    assert not [api_name(api) for api in ADMINISTRATIVE if not api_name(api).startswith(CHANGES)]


def test_each_user_whose_secret_may_not_be_changed_has_its_own_error() -> None:
    """Without it, Java's Admin says that the response is incomplete."""
    answer = AccessWorld().ask(request_of(KafkaApi.ALTER_USER_SCRAM_CREDENTIALS)).answer()
    found = [(item.user, item.error_code) for item in answer.body.results]
    assert found == [("bob", ErrorCode.CLUSTER_AUTHORIZATION_FAILED), ("eve", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]
