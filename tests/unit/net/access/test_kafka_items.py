"""Requests of Kafka's protocol with many items: a refused item is answered as what it was, and the others are served."""

from typing import Any

import pytest

from barnabas.log.vocabulary.access.acls import Operation, ResourceKind
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.protocol.kafka.apis import KafkaApi, KafkaRequest, KafkaResponse
from barnabas.net.protocol.kafka.message_classes import class_of, types_of

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
