"""Requests of Kafka's protocol with many items: the permitted ones go to the handler, each of the others gets an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from barnabas.log.vocabulary.access.acls import CLUSTER_NAME, Operation, ResourceKind
from barnabas.log.vocabulary.errors import AuthorizationError
from barnabas.net.wire.protocol.kafka.apis import KafkaResponse
from barnabas.net.wire.protocol.kafka.compiler import decoder
from barnabas.net.wire.protocol.kafka.message_classes import class_of

from .access import Access
from .rules import Partly, Rule

May = Callable[[Access, Any], AuthorizationError | None]
"""The error of an item that is refused."""


def opened(response: KafkaResponse[Any] | None, name: str, version: int) -> Any:
    """The body as an object; an empty one if the handler was not asked."""
    if response is None:
        return class_of(name)()
    if isinstance(response.body, bytes):
        return decoder(name, version)(memoryview(response.body), 0)[0]
    return response.body


def items(api: str, field: str, results: str, may: May, refused: Callable[[Any, AuthorizationError], Any]) -> Rule:
    """`field` of the request has the items, and `results` of the response has one entry for each."""

    def rule(request: Any, access: Access) -> Partly | None:
        if access.is_super:
            return None
        left, failed = [], []
        for item in getattr(request.body, field):
            error = may(access, item)
            if error is None:
                left.append(item)
            else:
                failed.append(refused(item, error))
        if not failed:
            return None
        setattr(request.body, field, left)

        def finish(response: KafkaResponse[Any] | None) -> KafkaResponse[Any]:
            body = opened(response, f"{api}Response", request.version)
            setattr(body, results, [*getattr(body, results), *failed])
            return KafkaResponse(body=body)

        return Partly(request if left else None, finish)

    return rule


def of_partitions(
    api: str,
    operation: Operation,
    topic: Callable[..., Any],
    partition: Callable[[int, AuthorizationError], Any],
    numbers: Callable[[Any], list[int]] | None = None,
) -> Rule:
    """The items are topics with partitions; each partition of a refused topic has the error. `numbers` of a topic in the
    request: by default, those of its entries."""
    numbers_of = numbers or (lambda item: [one.partition_index for one in item.partitions])

    def refused(item: Any, error: AuthorizationError) -> Any:
        return topic(name=item.name, partitions=[partition(number, error) for number in numbers_of(item)])

    return items(api, "topics", "topics", needs(operation, ResourceKind.TOPIC, name_of), refused)


def needs(operation: Operation, kind: ResourceKind, name: Callable[[Any], str]) -> May:
    def may(access: Access, item: Any) -> AuthorizationError | None:
        found = name(item)
        return None if access.may(operation, kind, found) else access.refusal(operation, kind, found)

    return may


def itself(item: Any) -> str:
    return str(item)


def name_of(item: Any) -> str:
    return str(item.name)


def of_cluster(operation: Operation) -> May:
    def may(access: Access, item: Any) -> AuthorizationError | None:
        if access.may_cluster(operation):
            return None
        return access.refusal(operation, ResourceKind.CLUSTER, CLUSTER_NAME)

    return may
