"""Requests of Kafka's protocol with many items: a refused item is answered as what it was, and the others are served."""

from typing import Any

import pytest

from barnabas.log.vocabulary.access.acls import Operation, ResourceKind
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.wire.protocol.kafka.apis import KafkaApi, KafkaRequest, KafkaResponse
from barnabas.net.wire.protocol.kafka.message_classes import class_of, types_of

from .access_world import AccessWorld, allow

GROUP = allow(Operation.DELETE, ResourceKind.GROUP)


def nothing(name: str) -> Any:
    return lambda _: KafkaResponse(body=class_of(name)())


def test_a_refused_quota_is_answered_with_its_entity() -> None:
    types = types_of("AlterClientQuotasRequest")
    entity = types["EntityData"](entity_type="user", entity_name="alice")
    body = class_of("AlterClientQuotasRequest")(entries=[types["EntryData"](entity=[entity], ops=[])])
    world = AccessWorld()
    answer: Any = world.ask(KafkaRequest(api_key=KafkaApi.ALTER_CLIENT_QUOTAS, version=1, body=body)).answer()
    (entry,) = answer.body.entries
    assert (entry.error_code, entry.entity[0].entity_type, entry.entity[0].entity_name) == (
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        "user",
        "alice",
    )
    assert world.reached == []


@pytest.mark.parametrize(
    ("api", "name", "topic", "operation"),
    [
        (KafkaApi.DELETE_RECORDS, "DeleteRecords", "DeleteRecordsTopic", Operation.DELETE),
        (KafkaApi.OFFSET_DELETE, "OffsetDelete", "OffsetDeleteRequestTopic", Operation.READ),
        (KafkaApi.DESCRIBE_PRODUCERS, "DescribeProducers", "TopicRequest", Operation.READ),
    ],
)
def test_each_partition_of_a_refused_topic_has_the_error(
    api: KafkaApi, name: str, topic: str, operation: Operation
) -> None:
    types = types_of(f"{name}Request")
    parts = next((types[kind] for kind in types if "Partition" in kind), None)

    def asked(topic_name: str, *numbers: int) -> Any:
        if parts is None:
            return types[topic](name=topic_name, partition_indexes=list(numbers))
        return types[topic](name=topic_name, partitions=[parts(partition_index=number) for number in numbers])

    body = class_of(f"{name}Request")(topics=[asked("secret", 3, 0), asked("t", 1)])
    world = AccessWorld(allow(operation, ResourceKind.TOPIC, "t"), GROUP, respond=nothing(f"{name}Response"))
    answer: Any = world.ask(KafkaRequest(api_key=api, version=0, body=body)).answer()
    (refused,) = answer.body.topics
    assert refused.name == "secret"
    assert [(item.partition_index, item.error_code) for item in refused.partitions] == [
        (3, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ]
    (reached,) = world.reached
    assert [item.name for item in reached.body.topics] == ["t"]


def test_the_configuration_of_a_new_topic_is_told_to_who_may_describe_it() -> None:
    """It shows what the cluster gives to topics. Kafka answers the same."""
    types = types_of("CreateTopicsResponse")
    told = types["CreatableTopicConfigs"](name="retention.ms", value="17")

    def create(request: Any) -> KafkaResponse[Any]:
        made = types["CreatableTopicResult"]
        topics = [
            made(name=item.name, num_partitions=3, replication_factor=2, configs=[told]) for item in request.body.topics
        ]
        return KafkaResponse(body=class_of("CreateTopicsResponse")(topics=topics))

    made = types_of("CreateTopicsRequest")["CreatableTopic"]
    body = class_of("CreateTopicsRequest")(topics=[made(name=name) for name in ("mine", "shown", "refused")])
    creates = (
        allow(Operation.CREATE, ResourceKind.TOPIC, "mine"),
        allow(Operation.CREATE, ResourceKind.TOPIC, "shown"),
    )
    world = AccessWorld(*creates, allow(Operation.DESCRIBE_CONFIGS, ResourceKind.TOPIC, "shown"), respond=create)
    answer: Any = world.ask(KafkaRequest(api_key=KafkaApi.CREATE_TOPICS, version=7, body=body)).answer()
    found = [
        (item.name, item.error_code, item.topic_config_error_code, item.num_partitions, item.configs)
        for item in answer.body.topics
    ]
    assert found == [
        ("mine", 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, []),
        ("shown", 0, 0, 3, [told]),
        ("refused", ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0, -1, []),
    ]
