"""Every API of both protocols with exactly the permissions that docs/security.md names, without each of them, and with the same
permissions for other resources.

The table of the documentation is written by hand, after Kafka's own one, so a wrong rule is found. `test_matrix` has other users,
and all permissions at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace
from unit.net.access.access_world import KINDS, TOPICS, AccessWorld, allow
from unit.net.access.test_matrix import FILTERED, REFUSED, error_codes, request_of

from barnabas.log.vocabulary.access.acls import OPERATIONS, Acl, Operation, ResourceKind
from barnabas.log.vocabulary.share.messages import ShareFetchResponse
from barnabas.net.server.access.guard import RULES
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.apis import REQUEST_OF
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import SERVED, KafkaApi, KafkaRequest, KafkaResponse
from barnabas.net.wire.protocol.kafka.message_classes import types_of
from barnabas.net.wire.protocol.requests import KafkaMetadataRequest, MetadataRequest
from barnabas.net.wire.protocol.responses import MetadataResponse

DOCUMENT = Path(__file__).parents[4] / "docs/security.md"
HEADING = "### What each request needs\n"
OF_KAFKA, OWN = "Kafka", "Barnabas"
FIRST_OF_KAFKA = 2000  # API keys from here on are those of Kafka's requests that have rules of their own
# READ, WRITE, DELETE and ALTER include DESCRIBE, ALTER_CONFIGS includes DESCRIBE_CONFIGS, as in Kafka.
INCLUDED_IN = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
A_REPLICA, TOPIC, GROUP, BROKER = 1, 2, 32, 4  # the last three by Kafka's numbers of configured resources
Permission = tuple[Operation, ResourceKind]
Needs = tuple[tuple[Permission, ...], ...]
"""All of them, each by one of its alternatives."""


class Row(NamedTuple):
    protocol: str
    api: str  # as the table writes it
    kind: str  # of request: "of topics"; "": any

    def __str__(self) -> str:
        return f"{self.protocol} {self.api} {self.kind}".strip()


# --- the documentation ------------------------------------------------------------------------------------------------


def documented() -> dict[Row, Needs]:
    """A request in two rows is an error."""
    section = DOCUMENT.read_text(encoding="utf-8").split(HEADING)[1].split("\n##")[0]
    found: dict[Row, Needs] = {}
    for words, *cells in re.findall(r"^\| (none|[A-Z_a-z ]+) \| (.*) ?\| (`.*) \|$", section, re.MULTILINE):
        needs = () if words == "none" else tuple(alternatives(one) for one in words.split(" and "))
        for protocol, cell in zip((OF_KAFKA, OWN), cells, strict=True):
            for api, kind in re.findall(r"`(\w+)`((?: [a-z]+)*)", cell):
                row = Row(protocol, api, kind.strip())
                assert row not in found, f"{row} is in two rows"
                found[row] = needs
    return found


def alternatives(words: str) -> tuple[Permission, ...]:
    return tuple((Operation[one.split()[0]], ResourceKind[one.split()[1]]) for one in words.split(" or "))


TABLE = documented()
every = pytest.mark.parametrize("row", TABLE, ids=str)


# --- requests ---------------------------------------------------------------------------------------------------------


def apis_of(row: Row) -> list[int]:
    """Older versions of Kafka's requests become our own ones."""
    if row.protocol == OWN:
        return [key for key, made in REQUEST_OF.items() if made.__name__ == f"{row.api}Request"]
    key = next(key for key, served in SERVED.items() if served.name == row.api)
    if (row.api, row.kind) == ("InitProducerId", "in transactions"):
        return [int(ApiKey.INIT_TRANSACTIONS)]
    if row.api == "Fetch":
        return [int(ApiKey.FETCH), int(KafkaApi.FETCH)]
    return [FIRST_OF_KAFKA + key if FIRST_OF_KAFKA + key in RULES else key]


def requests(row: Row) -> Iterator[tuple[int, Any]]:
    for api in apis_of(row):
        request = request_of(api)
        if api >= FIRST_OF_KAFKA and isinstance(request, KafkaRequest):
            yield api, of_kafka(request, row)
        else:
            yield api, own(request, row)


def own(request: Any, row: Row) -> Any:
    by_kind: dict[str, dict[str, Any]] = {
        "of replicas": {"replica_id": A_REPLICA},
        "of topics": {"resource_type": TOPIC, "groups": ()},
        "of groups": {"resource_type": GROUP, "topics": ()},
        "of brokers": {"resource_type": BROKER},
        "of all topics": {"partitions": None, "topics": None, "topic_ids": ()},
        "that creates topics": {"allow_auto_topic_creation": True, "topics": ("new",), "topic_ids": ()},
    }
    changes = by_kind.get(row.kind, {})
    if row.api == "Produce":
        changes = {"transactional_id": "x" if row.kind else None, "acks": -1}
    if row.api in ("ShareFetch", "ShareAcknowledge"):
        changes = {"partitions": tuple(replace(item, topic_id=TOPICS["t"]) for item in request.partitions)}
    if row.api == "UndoOffsetReset":
        changes = {"validate_only": False}
    return replace(request, **{name: value for name, value in changes.items() if hasattr(request, name)})


def of_kafka(request: KafkaRequest[Any], row: Row) -> KafkaRequest[Any]:
    body = request.body
    for name, value in (
        ("group_id", "g"),
        ("transactional_id", "x"),
        ("v3_and_below_transactional_id", "x"),
        ("subscribed_topic_names", ["t"]),
    ):
        if hasattr(body, name):
            setattr(body, name, value)
    if row.kind == "of replicas":
        body.replica_id = A_REPLICA
    if row.api.endswith("Configs"):
        body.resources[0].resource_type = {"of topics": TOPIC, "of groups": GROUP, "of brokers": BROKER}[row.kind]
    if row.api == "FindCoordinator":
        body.key_type = int(row.kind == "of transactional ids")
    if row.api == "OffsetFetch" and not row.kind:
        made = types_of("OffsetFetchRequest")["OffsetFetchRequestTopics"]
        body.groups[0].topics = [made(name="t", partition_indexes=[0])]
    if (row.api, row.kind) == ("AddPartitionsToTxn", "of brokers"):
        return replace(request, version=SERVED[KafkaApi.ADD_PARTITIONS_TO_TXN - FIRST_OF_KAFKA].versions.last)
    return request


# --- what is asked with it --------------------------------------------------------------------------------------------


def granted(permissions: Iterable[Permission], name: str = "*") -> tuple[Acl, ...]:
    return tuple(allow(operation, kind, name) for operation, kind in permissions)


def all_but(left_out: Sequence[Permission]) -> tuple[Acl, ...]:
    """Every permission that there is, but for these and those that include them."""
    without = {(more, kind) for one, kind in left_out for more in {one, *INCLUDED_IN.get(one, ())}}
    return granted((one, kind) for kind in KINDS for one in OPERATIONS[kind] if (one, kind) not in without)


# Their handlers are asked in any case, and get no topic that the client may not read: the session goes on, the group exists.
EMPTIED: dict[int, Callable[[], Any]] = {
    ApiKey.METADATA: lambda: MetadataResponse(cluster_id="c", controller_id=0, offset=1, brokers=(), topics=()),
    KafkaApi.METADATA: lambda: KafkaResponse(body=bodies.MetadataResponse(brokers=[], topics=[])),
    ApiKey.SHARE_FETCH: lambda: ShareFetchResponse(partitions=(), lock_duration_ms=1),
    ApiKey.SHARE_ACKNOWLEDGE: lambda: ShareFetchResponse(partitions=(), lock_duration_ms=1),
    KafkaApi.SHARE_FETCH: lambda: KafkaResponse(body=bodies.ShareFetchResponse(responses=[])),
    KafkaApi.SHARE_ACKNOWLEDGE: lambda: KafkaResponse(body=bodies.ShareAcknowledgeResponse(responses=[])),
    KafkaApi.OFFSET_FETCH: lambda: KafkaResponse(
        body=bodies.OffsetFetchResponse(
            groups=[bodies.OffsetFetchResponse.OffsetFetchResponseGroup(group_id="g", topics=[])]
        )
    ),
}


def topics_of(request: Any) -> Any:
    """Of those that are emptied."""
    if isinstance(request, MetadataRequest | KafkaMetadataRequest):
        return request.topics
    if not isinstance(request, KafkaRequest):
        return request.partitions
    return request.body.groups[0].topics if request.api_key == KafkaApi.OFFSET_FETCH else request.body.topics


def check_refused(api: int, request: Any, acls: Iterable[Acl], lacking: Sequence[Permission]) -> None:
    respond = EMPTIED.get(api)
    world = AccessWorld(*acls, respond=lambda asked: None if respond is None else respond())
    client = world.ask(deepcopy(request))
    assert error_codes(client.answer()) & REFUSED
    assert {denial[:2] for denial in world.audit.denials} & {(one.name, kind.name) for one, kind in lacking}
    for reached in world.reached:
        assert api in EMPTIED and not topics_of(reached), "a handler was called"


def test_the_documentation_names_every_request_and_no_other() -> None:
    assert {row.api for row in TABLE if row.protocol == OF_KAFKA} == {served.name for served in SERVED.values()}
    assert {f"{row.api}Request" for row in TABLE if row.protocol == OWN} == {
        made.__name__ for made in REQUEST_OF.values()
    }
    asked = {api for row in TABLE for api in apis_of(row)}
    assert asked == set(RULES), "of every API there is a request"


@every
def test_what_the_documentation_names_suffices(row: Row) -> None:
    needs = TABLE[row]
    for api, request in requests(row):
        for chosen in range(max((len(one) for one in needs), default=1)):
            world = AccessWorld(*granted(one[min(chosen, len(one) - 1)] for one in needs))
            client = world.ask(deepcopy(request))
            assert not client.replies and not world.audit.denials
            assert len(world.reached) == 1
            is_filtered = api in FILTERED and not needs
            assert is_filtered or repr(world.reached) == repr([request])


@every
def test_without_one_of_its_permissions_a_request_is_refused(row: Row) -> None:
    for api, request in requests(row):
        for one in TABLE[row]:
            check_refused(api, request, all_but(one), one)


@every
def test_the_same_permissions_for_other_resources_do_not_help(row: Row) -> None:
    """All else is given for every resource."""
    for api, request in requests(row):
        for one in TABLE[row]:
            named = [(operation, kind) for operation, kind in one if kind is not ResourceKind.CLUSTER]
            if (Operation.WRITE, ResourceKind.TOPIC) in one and len(one) > 1:
                continue  # an idempotent producer names no topic: WRITE of any suffices
            check_refused(api, request, (*all_but(one), *granted(named, "other")), one)
