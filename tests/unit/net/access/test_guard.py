"""Requests of which a client may do a part, answers of which it may see a part, and brokers that speak for others."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from unit.net.access.access_world import ALICE, ROOT, TOPICS, AccessWorld, allow, everything
from unit.net.shell_world import Client

from barnabas.kraft.metadata.requests import (
    REQUESTS,
    AlterPartition,
    FenceBroker,
    encode_request,
)
from barnabas.log.format.record_codec import ProducerFields, encode_batch
from barnabas.log.vocabulary.access.acls import Operation, PatternKind, Permission, ResourceKind
from barnabas.log.vocabulary.cluster_changes import (
    FORWARDED,
    AddPartitionsRequest,
    AssignReplicasRequest,
    CreateAclsRequest,
    ElectLeaderRequest,
    UnregisterBrokerRequest,
)
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.group_messages import (
    CommittedOffset,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from barnabas.log.vocabulary.transaction_messages import AddToTransactionRequest, TransactionMarker, TransactionTopic
from barnabas.net.server.access.access import MAX_CLIENTS, MAX_DECISIONS
from barnabas.net.server.access.identity import OF_ANY_BROKER, OF_THE_SENDER
from barnabas.net.server.access.own_rules import literal_prefix
from barnabas.net.wire.protocol import group_responses as g
from barnabas.net.wire.protocol import requests as q
from barnabas.net.wire.protocol import responses as r
from barnabas.net.wire.protocol.kafka.apis import OPERATIONS_NOT_ASKED, KafkaApi, KafkaRequest, KafkaResponse
from barnabas.net.wire.protocol.kafka.compiler import decoder, encoder
from barnabas.net.wire.protocol.kafka.message_classes import class_of, types_of

TOPIC, GROUP, TRANSACTION = ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.TRANSACTIONAL_ID
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
WRITE_T, READ_T = allow(Operation.WRITE, TOPIC, "t"), allow(Operation.READ, TOPIC, "t")


def outcome(client: Client) -> list[tuple[str, int]]:
    answer: Any = client.answer()
    return [(item.topic, item.error) for item in answer.partitions]


def produced(*topics: str, acks: int = 1) -> q.ProduceRequest:
    partitions = tuple(q.ProducePartition(topic=name, partition=0, records=b"") for name in topics)
    return q.ProduceRequest(acks=acks, timeout_ms=1, partitions=partitions)


def written(request: q.ProduceRequest) -> r.ProduceResponse:
    partitions = (r.ProducePartitionResponse(topic=item.topic, partition=0) for item in request.partitions)
    return r.ProduceResponse(partitions=tuple(partitions))


def fetched(request: q.FetchRequest) -> r.FetchResponse:
    partitions = (r.FetchPartitionResponse(topic=item.topic, partition=0, records=b"x") for item in request.partitions)
    return r.FetchResponse(partitions=tuple(partitions))


def fetching(*topics: str, **fields: Any) -> q.FetchRequest:
    partitions = tuple(q.FetchPartition(topic=name, partition=0, fetch_offset=0, max_bytes=1) for name in topics)
    return q.FetchRequest(max_wait_ms=9, min_bytes=1, max_bytes=1, partitions=partitions, **fields)


# --- parts ------------------------------------------------------------------------------------------------------------


def test_a_producer_writes_what_it_may() -> None:
    world = AccessWorld(WRITE_T, respond=written)
    assert outcome(world.ask(produced("t", "secret"))) == [("t", 0), ("secret", DENIED)]
    assert [item.topic for item in world.reached[0].partitions] == ["t"]
    assert world.audit.denials == [("WRITE", "TOPIC", "secret")]
    assert outcome(world.ask(produced("secret"))) == [("secret", DENIED)]
    assert len(world.reached) == 1


def test_a_refusal_without_an_answer_ends_the_connection() -> None:
    world = AccessWorld(WRITE_T, respond=written)
    client = world.ask(produced("t", "secret", acks=0))
    assert client.is_hung_up and not client.replies and not world.reached


def test_transactional_records_need_the_transactional_id() -> None:
    world = AccessWorld(WRITE_T, respond=written)
    request = replace(produced("t"), transactional_id="x")
    answer = world.ask(request).answer()
    assert isinstance(answer, r.ErrorResponse)
    assert answer.error == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    world.set(WRITE_T, allow(Operation.WRITE, TRANSACTION, "x"))
    assert outcome(world.ask(request)) == [("t", 0)]


@pytest.mark.parametrize("kind", [TRANSACTION, GROUP])
def test_a_coordinator_is_found_by_those_who_use_the_transactional_id_or_the_group(kind: ResourceKind) -> None:
    answer = g.FindCoordinatorResponse(node_id=0, host="h", port=9)
    world = AccessWorld(
        allow(Operation.WRITE if kind is TRANSACTION else Operation.READ, kind, "x"), respond=lambda _: answer
    )
    assert world.ask(q.FindCoordinatorRequest(group_id="x")).answer() == answer
    refused = world.ask(q.FindCoordinatorRequest(group_id="y")).answer()
    assert isinstance(refused, r.ErrorResponse) and refused.error == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_transactional_records_without_an_id_are_refused() -> None:
    """They would become part of the open transaction of another producer, whose id and epoch anybody can guess."""
    world = AccessWorld(WRITE_T, allow(Operation.WRITE, TRANSACTION, "x"), respond=written)
    producer = ProducerFields(producer_id=7, producer_epoch=0, base_sequence=1, is_transactional=True)
    batch = encode_batch([b"v"], timestamps_ms=0, producer=producer)
    partitions = (q.ProducePartition(topic="t", partition=0, records=bytes(batch)),)
    request = replace(produced("t"), partitions=partitions)
    answer = world.ask(request).answer()
    assert isinstance(answer, r.ErrorResponse)
    assert answer.error == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert not world.reached
    assert world.ask(replace(request, acks=0)).is_hung_up and not world.reached
    assert outcome(world.ask(replace(request, transactional_id="x"))) == [("t", 0)]
    plain = replace(partitions[0], records=bytes(encode_batch([b"v"], timestamps_ms=0)))
    assert outcome(world.ask(replace(request, partitions=(plain,)))) == [("t", 0)]


def test_permissions_that_change_hold_for_the_next_request() -> None:
    world = AccessWorld(respond=written)
    client = world.client()
    for acls, error in (((), DENIED), ((WRITE_T,), 0), ((), DENIED)):
        world.set(*acls)
        client.replies.clear()
        assert outcome(world.ask(produced("t"), client)) == [("t", error)]


def test_a_broker_that_has_just_started_decides_nothing_by_the_permissions_of_an_earlier_time() -> None:
    """With `allow.everyone.if.no.acl.found`, no permissions at all would allow everything."""
    change = CreateAclsRequest(acls=everything())
    world = AccessWorld(respond=written, everyone=True, certified=True)
    world.is_current = False
    for request in (change, produced("t")):
        client = world.ask(request)
        assert client.is_hung_up and not client.replies and not world.reached
    world.ask(change, world.client(ROOT))
    world.ask(change, world.client(node_id=1))
    assert world.reached == [change, change], "who needs no permissions"
    assert not world.audit.denials
    world.is_current = True
    assert outcome(world.ask(produced("t"))) == [("t", 0)]


def test_hosts_are_compared() -> None:
    world = AccessWorld(replace(WRITE_T, host="10.0.0.9"), respond=written)
    client = world.client()
    assert outcome(world.ask(produced("t"), client)) == [("t", 0)]
    other = world.client()
    other.client_host = "10.0.0.8"
    assert outcome(world.ask(produced("t"), other)) == [("t", DENIED)]


@pytest.mark.parametrize("host", ["0:0:0:0:0:0:0:1", "::1", "::0001", "0000:0000:0000:0000:0000:0000:0000:0001"])
def test_an_address_counts_in_every_notation(host: str) -> None:
    world = AccessWorld(WRITE_T, replace(WRITE_T, permission=Permission.DENY, host=host), respond=written)
    client = world.client()
    client.client_host = "::1"
    assert outcome(world.ask(produced("t"), client)) == [("t", DENIED)]
    other = world.client()
    other.client_host = "::2"
    assert outcome(world.ask(produced("t"), other)) == [("t", 0)]


# --- fetch ------------------------------------------------------------------------------------------------------------


def test_a_fetch_with_a_refused_topic_gets_no_session() -> None:
    world = AccessWorld(READ_T, respond=fetched)
    client = world.ask(fetching("t", "secret", session_epoch=0, session_id=7))
    assert outcome(client) == [("t", 0), ("secret", DENIED)]
    (reached,) = world.reached
    assert (reached.session_epoch, reached.session_id, reached.max_wait_ms) == (-1, 7, 0)
    answer = world.ask(fetching("secret", session_epoch=5, session_id=7)).answer()
    assert isinstance(answer, r.ErrorResponse) and answer.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_what_a_session_holds_is_looked_at_when_it_is_answered() -> None:
    """The session may be older than a change of permissions, or another client's."""
    news = r.FetchResponse(
        session_id=7,
        partitions=tuple(r.FetchPartitionResponse(topic=name, partition=0, records=b"x") for name in ("t", "secret")),
    )
    world = AccessWorld(READ_T, respond=lambda request: news)
    answer: Any = world.ask(fetching(session_epoch=5, session_id=7)).answer()
    assert [(item.topic, item.error, item.records) for item in answer.partitions] == [
        ("t", 0, b"x"),
        ("secret", DENIED, b""),
    ]
    world.set(*everything())
    assert world.ask(fetching(session_epoch=5, session_id=7)).answer() == news


def test_a_fetch_by_topic_id_is_refused_by_its_name() -> None:
    types = types_of("FetchRequest")

    def asked(*names: str, epoch: int = -1) -> KafkaRequest[Any]:
        topics = [
            types["FetchTopic"](topic_id=bytes.fromhex(TOPICS[name]), partitions=[types["FetchPartition"](partition=0)])
            for name in names
        ]
        body = class_of("FetchRequest")(topics=topics, session_epoch=epoch, replica_id=-1)
        return KafkaRequest(api_key=KafkaApi.FETCH, version=13, body=body)

    def answered(request: KafkaRequest[Any]) -> KafkaResponse[Any]:
        made = types_of("FetchResponse")
        topics = [
            made["FetchableTopicResponse"](
                topic_id=bytes.fromhex(topic_id), partitions=[made["PartitionData"](partition_index=0, records=b"x")]
            )
            for topic_id in TOPICS.values()
        ]
        return KafkaResponse(body=class_of("FetchResponse")(responses=topics, session_id=9))

    def seen(client: Client) -> dict[str, list[int]]:
        answer: Any = client.answer()
        return {topic.topic_id.hex(): [one.error_code for one in topic.partitions] for topic in answer.body.responses}

    world = AccessWorld(READ_T, respond=answered)
    assert seen(world.ask(asked("t", epoch=4))) == {TOPICS["t"]: [0], TOPICS["secret"]: [DENIED]}
    assert seen(world.ask(asked("secret"))) == {TOPICS["secret"]: [DENIED]}
    assert len(world.reached) == 1
    answer = world.ask(asked("secret", epoch=4)).answer()
    assert isinstance(answer, r.ErrorResponse) and answer.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


# --- what exists ------------------------------------------------------------------------------------------------------


def described(request: q.MetadataRequest) -> r.MetadataResponse:
    names = TOPICS if request.topics is None else request.topics
    topics = tuple(
        r.TopicMetadata(error=0 if name in TOPICS else 3, name=name, topic_id=TOPICS.get(name, "")) for name in names
    ) + tuple(r.TopicMetadata(error=0, name="of an id", topic_id=topic_id) for topic_id in request.topic_ids)
    return r.MetadataResponse(cluster_id="c", controller_id=0, offset=1, brokers=(), topics=topics)


def topics_of(client: Client) -> list[tuple[str, int]]:
    answer: Any = client.answer()
    return [(topic.name, topic.error) for topic in answer.topics]


def test_metadata_does_not_tell_what_exists() -> None:
    world = AccessWorld(READ_T, respond=described)
    assert topics_of(world.ask(q.MetadataRequest())) == [("t", 0)]
    told = topics_of(world.ask(q.MetadataRequest(topics=("t", "secret", "missing"))))
    assert told == [("t", 0), ("secret", DENIED), ("missing", DENIED)]
    ids = q.MetadataRequest(topics=(), topic_ids=(TOPICS["t"], TOPICS["secret"]))
    assert topics_of(world.ask(ids)) == [("of an id", 0), ("", ErrorCode.UNKNOWN_TOPIC_ID)]


@pytest.mark.parametrize(
    "creates", [allow(Operation.CREATE, TOPIC, "new"), allow(Operation.CREATE, ResourceKind.CLUSTER)]
)
def test_a_topic_is_created_in_passing_by_those_who_may_create_it(creates: Any) -> None:
    asked = q.MetadataRequest(topics=("new", "t"), allow_auto_topic_creation=True)
    world = AccessWorld(allow(Operation.WRITE, TOPIC, "*"), respond=described)
    assert topics_of(world.ask(asked)) == [("t", 0), ("new", DENIED)]
    world.set(allow(Operation.WRITE, TOPIC, "*"), creates)
    assert topics_of(world.ask(asked)) == [("new", 3), ("t", 0)]


def kafka_metadata(request: q.KafkaMetadataRequest) -> KafkaResponse[bytes]:
    types = types_of("MetadataResponse")
    names = TOPICS if request.topics is None else request.topics
    topics = [types["MetadataResponseTopic"](name=name, partitions=[]) for name in names]
    body = class_of("MetadataResponse")(topics=topics, brokers=[], cluster_id="c")
    chunks: list[Any] = []
    encoder("MetadataResponse", request.kafka_version)(body, chunks)
    return KafkaResponse(body=b"".join(chunks))


def body_of(client: Client, version: int = 12) -> Any:
    answer: Any = client.answer()
    if isinstance(answer.body, bytes):
        return decoder("MetadataResponse", version)(memoryview(answer.body), 0)[0]
    return answer.body


@pytest.mark.parametrize("version", [1, 8, 12])
def test_kafkas_clients_see_as_much(version: int) -> None:
    world = AccessWorld(READ_T, respond=kafka_metadata)
    everywhere = world.ask(q.KafkaMetadataRequest(kafka_version=version))
    assert [topic.name for topic in body_of(everywhere, version).topics] == ["t"]
    named = world.ask(q.KafkaMetadataRequest(topics=("t", "secret"), kafka_version=version))
    assert [(topic.name, topic.error_code) for topic in body_of(named, version).topics] == [
        ("t", 0),
        ("secret", DENIED),
    ]


def test_operations_are_those_of_the_client() -> None:
    world = AccessWorld(READ_T, respond=kafka_metadata)
    asked = q.KafkaMetadataRequest(
        topics=("t",), kafka_version=10, tells_topic_operations=True, tells_cluster_operations=True
    )
    found = body_of(world.ask(asked), 10)
    assert found.topics[0].topic_authorized_operations == 1 << Operation.READ | 1 << Operation.DESCRIBE
    assert found.cluster_authorized_operations == 0, "the cluster may not be described"
    world.set(READ_T, allow(Operation.DESCRIBE, ResourceKind.CLUSTER), allow(Operation.CREATE, ResourceKind.CLUSTER))
    bits = 1 << Operation.CREATE | 1 << Operation.DESCRIBE
    assert body_of(world.ask(asked), 10).cluster_authorized_operations == bits


def test_groups_are_listed_and_described_as_far_as_they_may_be() -> None:
    groups = tuple(g.ListedGroup(group_id=name, state="", protocol="", member_count=0) for name in ("mine", "other"))
    world = AccessWorld(
        allow(Operation.READ, GROUP, "mine"), respond=lambda request: g.ListGroupsResponse(groups=groups)
    )
    answer: Any = world.ask(q.ListGroupsRequest()).answer()
    assert [item.group_id for item in answer.groups] == ["mine"]
    world.set(allow(Operation.DESCRIBE, ResourceKind.CLUSTER))
    answer = world.ask(q.ListGroupsRequest()).answer()
    assert [item.group_id for item in answer.groups] == ["mine", "other"]


def test_a_described_group_tells_its_operations() -> None:
    make = types_of("DescribeGroupsResponse")["DescribedGroup"]

    def answered(request: KafkaRequest[Any]) -> KafkaResponse[Any]:
        groups = [make(group_id=name, authorized_operations=1) for name in request.body.groups]
        return KafkaResponse(body=class_of("DescribeGroupsResponse")(groups=groups))

    world = AccessWorld(allow(Operation.READ, GROUP, "mine"), respond=answered)
    body = class_of("DescribeGroupsRequest")(groups=["mine", "other"], include_authorized_operations=True)
    answer: Any = world.ask(KafkaRequest(api_key=KafkaApi.DESCRIBE_GROUPS, version=5, body=body)).answer()
    assert [(one.group_id, one.error_code, one.authorized_operations) for one in answer.body.groups] == [
        ("mine", 0, 1 << Operation.READ | 1 << Operation.DESCRIBE),
        ("other", ErrorCode.GROUP_AUTHORIZATION_FAILED, OPERATIONS_NOT_ASKED),
    ]


def test_committed_offsets_of_topics_that_may_not_be_described_are_not_told() -> None:
    offsets = tuple(CommittedOffset(topic=name, partition=0, offset=1) for name in TOPICS)
    group = allow(Operation.DESCRIBE, GROUP, "g")
    world = AccessWorld(READ_T, group, respond=lambda request: g.OffsetFetchResponse(partitions=offsets))
    answer: Any = world.ask(q.OffsetFetchRequest(group_id="g")).answer()
    assert [item.topic for item in answer.partitions] == ["t"]


@pytest.mark.parametrize("version", [7, 9])
def test_nor_by_kafkas_protocol(version: int) -> None:
    types = types_of("OffsetFetchResponse")

    def answered(request: KafkaRequest[Any]) -> KafkaResponse[Any]:
        response = class_of("OffsetFetchResponse")
        if version == 7:
            topics = [types["OffsetFetchResponseTopic"](name=item.name, partitions=[]) for item in request.body.topics]
            return KafkaResponse(body=response(topics=topics))
        topics = [types["OffsetFetchResponseTopics"](name=name, partitions=[]) for name in TOPICS]
        groups = [
            types["OffsetFetchResponseGroup"](group_id=one.group_id, topics=topics) for one in request.body.groups
        ]
        return KafkaResponse(body=response(groups=groups))

    world = AccessWorld(READ_T, allow(Operation.DESCRIBE, GROUP, "g"), respond=answered)
    asked = types_of("OffsetFetchRequest")
    body = class_of("OffsetFetchRequest")(group_id="g")
    if version == 7:
        body.topics = [asked["OffsetFetchRequestTopic"](name=name, partition_indexes=[0]) for name in TOPICS]
    else:
        body.groups = [asked["OffsetFetchRequestGroup"](group_id=name, topics=None) for name in ("g", "other")]
    answer: Any = world.ask(KafkaRequest(api_key=KafkaApi.OFFSET_FETCH, version=version, body=body)).answer()
    if version == 7:
        told = [(topic.name, [one.error_code for one in topic.partitions]) for topic in answer.body.topics]
        assert told == [("t", []), ("secret", [DENIED])]
        return
    told = [(one.group_id, one.error_code, [topic.name for topic in one.topics]) for one in answer.body.groups]
    assert told == [("g", 0, ["t"]), ("other", ErrorCode.GROUP_AUTHORIZATION_FAILED, [])]


# --- groups, transactions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("log-.*", "log-"),
        ("^log-[0-9]+$", "log-"),
        ("log|secret", ""),
        ("logs?", "log"),
        ("log{0,1}x", "lo"),
        (".*", ""),
        ("", ""),
        ("a*", ""),
        (r"log\.x", "log"),
        ("(?i)log", ""),
        ("log", "log"),
    ],
)
def test_the_literal_part_of_a_pattern(pattern: str, prefix: str) -> None:
    assert literal_prefix(pattern) == prefix


def test_members_subscribe_to_what_they_may_describe() -> None:
    member = ConsumerGroupHeartbeatRequest(group_id="g", member_id="", member_epoch=0)
    group = allow(Operation.READ, GROUP, "g")
    logs = replace(READ_T, name="log-", pattern=PatternKind.PREFIXED)
    world = AccessWorld(group, READ_T, logs)

    def is_let_in(**fields: Any) -> bool:
        world.reached.clear()
        world.ask(replace(member, **fields))
        return bool(world.reached)

    assert is_let_in() and is_let_in(subscribed_topics=("t",)) and is_let_in(subscribed_pattern="log-[a-z]+")
    assert not is_let_in(subscribed_topics=("t", "secret"))
    assert not is_let_in(subscribed_pattern=".*")
    world.set(group, logs, replace(logs, name="log-secret", permission=Permission.DENY, operation=Operation.ALL))
    assert not is_let_in(subscribed_pattern="log-[a-z]+")


def test_a_transaction_takes_all_partitions_or_none() -> None:
    topics = tuple(TransactionTopic(topic=name, topic_id="", partitions=(0,)) for name in TOPICS)
    request = AddToTransactionRequest(transactional_id="x", producer_id=1, producer_epoch=0, topics=topics)
    world = AccessWorld(WRITE_T, allow(Operation.WRITE, TRANSACTION, "x"))
    assert outcome(world.ask(request)) == [("t", ErrorCode.OPERATION_NOT_ATTEMPTED), ("secret", DENIED)]
    assert not world.reached


def test_idempotent_producers_need_some_topic_or_the_cluster() -> None:
    world = AccessWorld()
    for acls, is_allowed in (
        ((), False),
        ((READ_T,), False),
        ((WRITE_T,), True),
        ((allow(Operation.IDEMPOTENT_WRITE, ResourceKind.CLUSTER),), True),
    ):
        world.reached.clear()
        world.set(*acls)
        world.ask(q.InitProducerIdRequest())
        assert bool(world.reached) == is_allowed, acls


# --- brokers ----------------------------------------------------------------------------------------------------------


def call(request: Any) -> q.ControllerCallRequest:
    return q.ControllerCallRequest(body=encode_request(request))


AS_BROKER_1 = (
    call(AlterPartition(node_id=1, broker_epoch=1, partitions=())),
    fetching("t", replica_id=1),
    q.ListOffsetsRequest(partitions=(), replica_id=1),
    q.OffsetForLeaderEpochRequest(partitions=(), replica_id=1),
    q.MetadataFeedRequest(node_id=1, after_offset=0, max_bytes=1, max_wait_ms=0),
    q.WriteMarkersRequest(
        markers=(
            TransactionMarker(
                transactional_id="x", producer_id=1, producer_epoch=0, coordinator_epoch=3, is_commit=True
            ),
        )
    ),
)


@pytest.mark.parametrize("request_", AS_BROKER_1, ids=lambda request: type(request).__name__)
def test_a_broker_speaks_for_itself_only(request_: Any) -> None:
    for principal, node_id, is_allowed in (
        (ALICE, 1, True),
        (ALICE, 0, False),
        (ALICE, None, False),
        ("User:root", None, False),  # no super user is a broker
    ):
        world = AccessWorld(*everything(), certified=True)
        client = world.ask(request_, world.client(principal, node_id))
        assert bool(world.reached) == is_allowed, (principal, node_id)
        if not is_allowed:
            answer = client.answer()
            assert isinstance(answer, r.ErrorResponse)
            assert answer.error == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert world.audit.denials == [("CLUSTER_ACTION", "CLUSTER", "kafka-cluster")]


@pytest.mark.parametrize("request_", AS_BROKER_1, ids=lambda request: type(request).__name__)
def test_without_certificates_a_permission_makes_a_broker(request_: Any) -> None:
    for acls, is_allowed in (((), False), ((allow(Operation.CLUSTER_ACTION, ResourceKind.CLUSTER),), True)):
        world = AccessWorld(*acls)
        world.ask(request_)
        assert bool(world.reached) == is_allowed


def test_each_request_to_the_controller_says_who_sends_it() -> None:
    """Or it is a change that a client has asked for, and any broker hands it on."""
    handed_on = {row.request for row in FORWARDED} | {
        AddPartitionsRequest,
        AssignReplicasRequest,
        ElectLeaderRequest,
        UnregisterBrokerRequest,
    }
    rest = {cls for cls, _ in REQUESTS.values()} - OF_THE_SENDER - OF_ANY_BROKER - handed_on
    assert {cls.__name__ for cls in rest} == {"CreateTopic", "DeleteTopic", "AlterConfig"}
    world = AccessWorld(certified=True)
    world.ask(call(FenceBroker(node_id=1, broker_epoch=1)), world.client(ALICE, 0))
    assert world.reached, "another broker's process is gone"


def test_markers_of_epochs_that_are_not_known_are_left_to_their_handler() -> None:
    world = AccessWorld(certified=True)
    marker = TransactionMarker(
        transactional_id="x", producer_id=1, producer_epoch=0, coordinator_epoch=4, is_commit=True
    )
    world.ask(q.WriteMarkersRequest(markers=(marker,)), world.client(ALICE, 0))
    assert world.reached


def test_an_internal_error_in_an_answer_is_no_answer() -> None:
    """What could not be looked at is not sent."""
    world = AccessWorld(READ_T, respond=lambda request: r.EmptyResponse())
    answer = world.ask(q.MetadataRequest()).answer()
    assert isinstance(answer, r.ErrorResponse) and answer.error == ErrorCode.UNKNOWN_SERVER_ERROR


# --- memory -----------------------------------------------------------------------------------------------------------


def test_what_is_remembered_is_bounded() -> None:
    """Clients choose the names of topics, and come from any address."""
    world = AccessWorld(allow(Operation.READ, TOPIC, "t"))
    control = world.control
    client = world.client()
    first = control.of(client)
    assert control.of(world.client()) is first, "connections of the same user share it"
    for number in range(MAX_DECISIONS + 10):
        assert first.may_topic(Operation.READ, f"x{number}") is False
    assert first.remembered <= 10
    assert first.may_topic(Operation.READ, "t")
    for number in range(MAX_CLIENTS + 10):
        other = world.client()
        other.client_host = f"host-{number}"
        control.of(other)
    assert control.client_count <= 11
    assert control.of(client) is not first and control.of(client).may_topic(Operation.READ, "t")


def test_decisions_about_prefixes_are_bounded_too() -> None:
    world = AccessWorld(allow(Operation.READ, TOPIC, "t"))
    access = world.control.of(world.client())
    for number in range(MAX_DECISIONS + 10):
        access.may_all(Operation.DESCRIBE, TOPIC, f"x{number}")
    assert access.remembered <= 10


# --- topics of groups -------------------------------------------------------------------------------------------------


def test_a_described_group_shows_topics_that_may_be_described() -> None:
    of_both = tuple(TopicPartitions(topic=name, partitions=(0,)) for name in TOPICS)
    member = g.GroupMember(
        member_id="m",
        instance_id=None,
        client_id="c",
        client_host="h",
        member_epoch=1,
        subscribed_topics=tuple(TOPICS),
        assigned=of_both,
        target=of_both,
    )
    described_group = g.DescribeGroupResponse(
        group_id="g", state="stable", group_epoch=1, assignment_epoch=1, assignor="", coordinator=0, members=(member,)
    )
    world = AccessWorld(allow(Operation.DESCRIBE, GROUP, "g"), READ_T, respond=lambda request: described_group)
    answer: Any = world.ask(q.DescribeGroupRequest(group_id="g")).answer()
    (shown,) = answer.members
    assert (shown.subscribed_topics, shown.assigned, shown.target) == (("t",), of_both[:1], of_both[:1])


@pytest.mark.parametrize(("topics", "error"), [(("t",), 0), (("t", "secret"), DENIED)])
def test_a_group_of_the_new_protocol_is_described_whole_or_not(topics: tuple[str, ...], error: int) -> None:
    types = types_of("ConsumerGroupDescribeResponse")
    assignment = types["Assignment"](topic_partitions=[types["TopicPartitions"](topic_name=topics[-1], partitions=[0])])
    member = types["Member"](
        member_id="m", subscribed_topic_names=["t"], assignment=assignment, target_assignment=assignment
    )

    def answered(request: KafkaRequest[Any]) -> KafkaResponse[Any]:
        groups = [types["DescribedGroup"](group_id="g", members=[member], authorized_operations=OPERATIONS_NOT_ASKED)]
        return KafkaResponse(body=class_of("ConsumerGroupDescribeResponse")(groups=groups))

    world = AccessWorld(allow(Operation.DESCRIBE, GROUP, "g"), READ_T, respond=answered)
    body = class_of("ConsumerGroupDescribeRequest")(group_ids=["g"])
    answer: Any = world.ask(KafkaRequest(api_key=KafkaApi.CONSUMER_GROUP_DESCRIBE, version=1, body=body)).answer()
    assert [(one.error_code, len(one.members)) for one in answer.body.groups] == [(error, int(not error))]
