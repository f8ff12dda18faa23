"""Administrative requests in the audit: what was to be changed, and how it ended."""

from __future__ import annotations

from typing import Any

from unit.net.access.access_world import ALICE, AccessWorld, allow, everything

from barnabas.log.vocabulary.access.acls import Operation, ResourceKind
from barnabas.log.vocabulary.access.quotas import QuotaChange, QuotaEntity
from barnabas.log.vocabulary.cluster_changes import AlterConfigRequest, AlterQuotasRequest, ConfigEntryChange
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.wire.protocol import requests as q
from barnabas.net.wire.protocol import responses as r
from barnabas.net.wire.protocol.kafka.apis import KafkaApi, KafkaRequest, KafkaResponse
from barnabas.net.wire.protocol.kafka.message_classes import class_of, types_of


def test_administrative_changes_are_told_with_their_outcome() -> None:
    refused = r.ErrorResponse(error=int(ErrorCode.INVALID_CONFIG), message="no")
    answers: list[Any] = [r.EmptyResponse(), refused]
    world = AccessWorld(*everything(), respond=lambda request: answers.pop(0))
    change = ConfigEntryChange(key="sasl.password", value="hidden")
    for _ in range(2):
        world.ask(AlterConfigRequest(resource_type=2, resource="t", changes=(change,)))
    assert world.audit.changes == [("ALTER_CONFIG", "t", "done"), ("ALTER_CONFIG", "t", "INVALID_CONFIG")]
    world.set()
    world.ask(q.DeleteTopicRequest(name="t"))
    assert world.audit.changes[2:] == [], "a refusal is told as such"
    assert world.audit.denials == [("DELETE", "TOPIC", "t")]
    world.ask(q.DeleteTopicRequest(name="t"), world.client(ALICE, 1))
    assert world.audit.changes[2:] == [], "a broker carries out what another client has asked for"


def test_a_change_that_is_refused_as_a_whole_is_not_told_as_done() -> None:
    world = AccessWorld()
    types = types_of("CreateTopicsRequest")
    body = class_of("CreateTopicsRequest")(topics=[types["CreatableTopic"](name="t")])
    world.ask(KafkaRequest(api_key=KafkaApi.CREATE_TOPICS, version=5, body=body))
    assert world.audit.changes == [("CREATE_TOPICS", "t", "TOPIC_AUTHORIZATION_FAILED")]


def test_changes_of_many_things_are_one_line() -> None:
    types = types_of("CreateTopicsRequest")
    result = types_of("CreateTopicsResponse")["CreatableTopicResult"]

    def created(request: KafkaRequest[Any]) -> KafkaResponse[Any]:
        results = [result(name=topic.name, error_code=36 * (topic.name == "t1")) for topic in request.body.topics]
        return KafkaResponse(body=class_of("CreateTopicsResponse")(topics=results))

    world = AccessWorld(*everything(), respond=created)
    topics = [types["CreatableTopic"](name=f"t{number}") for number in range(22)]
    world.ask(
        KafkaRequest(api_key=KafkaApi.CREATE_TOPICS, version=5, body=class_of("CreateTopicsRequest")(topics=topics))
    )
    ((change, target, outcome_),) = world.audit.changes
    assert (change, outcome_) == ("CREATE_TOPICS", "TOPIC_ALREADY_EXISTS,done")
    assert target.startswith("t0,t1,t2,") and target.endswith("t19 and 2 more")


def test_changes_of_quotas_name_their_entities_in_both_protocols() -> None:
    entity = QuotaEntity(user="bob", client_id="app")
    rate = QuotaChange(entity=entity, kind="producer_byte_rate", value=1.0)
    address = QuotaChange(entity=QuotaEntity(ip="10.0.0.1"), kind="connection_creation_rate", value=1.0)
    alter = allow(Operation.ALTER_CONFIGS, ResourceKind.CLUSTER)
    world = AccessWorld(alter, respond=lambda request: r.EmptyResponse())
    world.ask(AlterQuotasRequest(changes=(rate, address)))
    assert world.audit.changes == [("ALTER_QUOTAS", "bob,app,10.0.0.1", "done")]
    types = types_of("AlterClientQuotasRequest")
    parts = [types["EntityData"](entity_type=kind, entity_name=name) for kind, name in entity.parts.items()]
    body = class_of("AlterClientQuotasRequest")(entries=[types["EntryData"](entity=parts, ops=[])])
    answer = KafkaResponse(body=class_of("AlterClientQuotasResponse")(entries=[]))
    world = AccessWorld(alter, respond=lambda request: answer)
    world.ask(KafkaRequest(api_key=KafkaApi.ALTER_CLIENT_QUOTAS, version=1, body=body))
    assert world.audit.changes == [("ALTER_CLIENT_QUOTAS", "bob,app", "done")]
    world = AccessWorld(allow(Operation.ALTER, ResourceKind.CLUSTER))
    refused = world.ask(AlterQuotasRequest(changes=(rate,))).answer()
    assert refused.error == ErrorCode.CLUSTER_AUTHORIZATION_FAILED and world.reached == []
    assert world.audit.denials == [("ALTER_CONFIGS", "CLUSTER", "kafka-cluster")]
