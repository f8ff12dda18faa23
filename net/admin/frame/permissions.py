"""What each route of the HTTP API needs, where the cluster has an authorizer: the counterpart of net/server/access for requests.

A route is looked up by its method and its path, and refused without an entry. Handlers ask the cluster with the rights of their
broker; therefore a call is checked before its body is read, and what its caller may not describe is taken from the answer. Where
the body names resources, they are checked before the handler runs.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from barnabas.log.settings.principal_rules import PrincipalRules
from barnabas.log.vocabulary.access.acls import Operation, ResourceKind
from barnabas.log.vocabulary.errors import ClusterAuthorizationError, LeaderNotAvailableError
from barnabas.log.vocabulary.principal import Principal
from barnabas.net.client.positions.pipeline_reports import PIPELINES_TOPIC
from barnabas.net.server.access.access import Access
from barnabas.net.wire.peer import peer_of

from .call import Call, Reply

Needs = Callable[[Access, Call], None]
"""Raises an AuthorizationError."""

_METRICS: Final = "/metrics"
_CLUSTER: Final = "/v3/clusters/{cluster_id}"
_TOPIC: Final = f"{_CLUSTER}/topics/{{topic_name}}"
_PARTITION: Final = f"{_TOPIC}/partitions/{{partition_id}}"
_BROKER: Final = f"{_CLUSTER}/brokers/{{broker_id}}"
_GROUP: Final = f"{_CLUSTER}/consumer-groups/{{consumer_group_id}}"
_TRANSACTION: Final = f"{_CLUSTER}/transactions/{{transactional_id}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls the API, as a decision and the audit need it."""

    principal: Principal
    client_host: str
    certified_node: int | None


def caller_of(transport: asyncio.BaseTransport, rules: PrincipalRules) -> Caller:
    """Who calls, by the certificate of the connection. Raises InvalidConfigError, like `peer_of`."""
    who = peer_of(transport, rules)
    peer = transport.get_extra_info("peername")
    return Caller(principal=who.principal, client_host=str(peer[0]) if peer else "", certified_node=who.node_id)


def check_call(access: Access, method: str, path: str, call: Call) -> None:
    """By what the path names. Raises an AuthorizationError."""
    needs = NEEDS.get(f"{method} {path}")
    if needs is None:
        raise ClusterAuthorizationError(f"{method} {path} has no rule for permissions, so it is refused to everyone")
    if path == _METRICS and call.backend.are_metrics_public:
        return
    if needs is not _free and not access.is_known:
        raise LeaderNotAvailableError(
            "this broker has just started, and does not know the newest permissions yet: try again, or ask another broker"
        )
    needs(access, call)


def check_body_of(access: Access, method: str, path: str, call: Call) -> None:
    """By what the body names. Raises an AuthorizationError."""
    needs = NEEDS_OF_BODY.get(f"{method} {path}")
    if needs is not None:
        needs(access, call)


def _free(access: Access, call: Call) -> None:
    """Everyone may know it."""


def _cluster(operation: Operation) -> Needs:
    return lambda access, call: access.require_cluster(operation)


def _named(operation: Operation, kind: ResourceKind, parameter: str) -> Needs:
    return lambda access, call: access.require(operation, kind, call.path[parameter])


def _topic(operation: Operation) -> Needs:
    return _named(operation, ResourceKind.TOPIC, "topic_name")


def _group(operation: Operation) -> Needs:
    return _named(operation, ResourceKind.GROUP, "consumer_group_id")


def _transaction(operation: Operation) -> Needs:
    return _named(operation, ResourceKind.TRANSACTIONAL_ID, "transactional_id")


def _create_some(access: Access, call: Call) -> None:
    if not access.may_cluster(Operation.CREATE) and not access.may_any(Operation.CREATE, ResourceKind.TOPIC):
        raise access.refusal(Operation.CREATE, ResourceKind.TOPIC, "*")


def _create_topic(access: Access, call: Call) -> None:
    name = str(call.body["topic_name"])
    if not access.may_create(name):
        raise access.refusal(Operation.CREATE, ResourceKind.TOPIC, name)


def _seek(access: Access, call: Call) -> None:
    """As a commit. Without topics, all that the group has read are meant."""
    topics = call.body.get("topics")
    if not topics and not access.may_all(Operation.READ, ResourceKind.TOPIC, ""):
        raise access.refusal(Operation.READ, ResourceKind.TOPIC, "*")
    for name in topics or ():
        access.require(Operation.READ, ResourceKind.TOPIC, str(name))


def _partition_of_key(access: Access, call: Call) -> None:
    """The schema of keys, whose fields errors name, is for those who may read them."""
    operation = Operation.READ if "key_json" in call.query else Operation.DESCRIBE
    access.require(operation, ResourceKind.TOPIC, call.path["topic_name"])


def _read_reports_of_pipelines(access: Access, call: Call) -> None:
    """They are records, and may quote those of other topics."""
    access.require(Operation.READ, ResourceKind.TOPIC, PIPELINES_TOPIC)


def _forget(access: Access, call: Call) -> None:
    """As Kafka's OffsetDelete."""
    access.require(Operation.DELETE, ResourceKind.GROUP, call.path["consumer_group_id"])
    access.require(Operation.READ, ResourceKind.TOPIC, call.path["topic_name"])


_DESCRIBE, _ALTER = _cluster(Operation.DESCRIBE), _cluster(Operation.ALTER)


def _configs(path: str, describe: Needs, alter: Needs) -> dict[str, Needs]:
    return {
        f"GET {path}": describe,
        f"GET {path}/{{name}}": describe,
        f"POST {path}:alter": alter,
        f"PUT {path}/{{name}}": alter,
        f"DELETE {path}/{{name}}": alter,
    }


NEEDS: Final[Mapping[str, Needs]] = {
    "GET /healthz": _free,
    "GET /readyz": _free,
    "GET /openapi.json": _free,
    f"GET {_METRICS}": _DESCRIBE,
    "GET /v3/clusters": _free,
    f"GET {_CLUSTER}": _free,
    "GET /": _free,
    "GET /console/{file}": _free,  # the program, without any data
    "GET /console/settings": _free,
    f"GET {_CLUSTER}/health": _DESCRIBE,
    f"GET {_CLUSTER}/doctor": _DESCRIBE,
    f"GET {_CLUSTER}/quorum": _DESCRIBE,
    f"GET {_CLUSTER}/overview": _DESCRIBE,
    f"GET {_CLUSTER}/overview/stream": _DESCRIBE,
    f"GET {_CLUSTER}/events": _DESCRIBE,
    f"GET {_CLUSTER}/brokers": _DESCRIBE,
    f"GET {_BROKER}": _DESCRIBE,
    f"DELETE {_BROKER}": _ALTER,
    f"POST {_BROKER}/barnabas/drain": _ALTER,
    f"POST {_BROKER}/barnabas/decommission": _ALTER,
    f"DELETE {_BROKER}/barnabas/decommission": _ALTER,
    f"POST {_BROKER}/barnabas/fill": _ALTER,
    f"GET {_CLUSTER}/barnabas/moves": _DESCRIBE,
    f"PUT {_CLUSTER}/quorum/voters/{{broker_id}}": _ALTER,
    f"DELETE {_CLUSTER}/quorum/voters/{{broker_id}}": _ALTER,
    f"GET {_CLUSTER}/users": _DESCRIBE,
    f"PUT {_CLUSTER}/users/{{user}}": _ALTER,
    f"DELETE {_CLUSTER}/users/{{user}}": _ALTER,
    f"GET {_CLUSTER}/barnabas/pipelines": _read_reports_of_pipelines,
    f"GET {_BROKER}/partition-replicas": _DESCRIBE,
    f"GET {_BROKER}/barnabas/folders": _DESCRIBE,
    f"GET {_BROKER}/barnabas/history": _DESCRIBE,
    f"POST {_BROKER}/barnabas/folders:bring-back": _ALTER,
    **_configs(f"{_BROKER}/configs", _cluster(Operation.DESCRIBE_CONFIGS), _cluster(Operation.ALTER_CONFIGS)),
    **_configs(f"{_CLUSTER}/broker-configs", _cluster(Operation.DESCRIBE_CONFIGS), _cluster(Operation.ALTER_CONFIGS)),
    f"GET {_CLUSTER}/topics": _free,  # those that the caller may describe
    f"POST {_CLUSTER}/topics": _create_some,
    f"GET {_CLUSTER}/topics/-/partitions/-/reassignment": _free,
    f"GET {_TOPIC}": _topic(Operation.DESCRIBE),
    f"PATCH {_TOPIC}": _topic(Operation.ALTER),
    f"DELETE {_TOPIC}": _topic(Operation.DELETE),
    f"GET {_TOPIC}/overview": _topic(Operation.DESCRIBE),
    f"GET {_TOPIC}/barnabas/partition": _partition_of_key,
    f"GET {_TOPIC}/partitions": _topic(Operation.DESCRIBE),
    f"GET {_TOPIC}/partitions/-/reassignment": _topic(Operation.DESCRIBE),
    f"GET {_PARTITION}": _topic(Operation.DESCRIBE),
    f"GET {_PARTITION}/records": _topic(Operation.READ),
    f"GET {_PARTITION}/replicas": _topic(Operation.DESCRIBE),
    f"GET {_PARTITION}/replicas/{{broker_id}}": _topic(Operation.DESCRIBE),
    f"GET {_PARTITION}/reassignment": _topic(Operation.DESCRIBE),
    f"POST {_PARTITION}/reassignment": _ALTER,
    f"DELETE {_PARTITION}/reassignment": _ALTER,
    f"POST {_PARTITION}/leader": _ALTER,
    f"DELETE {_PARTITION}/records": _topic(Operation.DELETE),
    f"DELETE {_PARTITION}/hanging-transactions/{{producer_id}}": _ALTER,
    f"POST {_TOPIC}/records": _topic(Operation.WRITE),
    f"POST {_TOPIC}/records:batch": _topic(Operation.WRITE),
    **_configs(f"{_TOPIC}/configs", _topic(Operation.DESCRIBE_CONFIGS), _topic(Operation.ALTER_CONFIGS)),
    f"GET {_CLUSTER}/consumer-groups": _free,  # those that the caller may describe
    f"GET {_GROUP}": _group(Operation.DESCRIBE),
    f"DELETE {_GROUP}": _group(Operation.DELETE),
    f"GET {_GROUP}/consumers": _group(Operation.DESCRIBE),
    f"GET {_GROUP}/consumers/{{consumer_id}}": _group(Operation.DESCRIBE),
    f"DELETE {_GROUP}/consumers/{{consumer_id}}": _group(Operation.READ),
    f"DELETE {_GROUP}/offsets/{{topic_name}}": _forget,
    f"GET {_GROUP}/consumers/{{consumer_id}}/assignments": _group(Operation.DESCRIBE),
    f"GET {_GROUP}/lags": _group(Operation.DESCRIBE),
    f"GET {_GROUP}/lags/{{topic_name}}/partitions/{{partition_id}}": _group(Operation.DESCRIBE),
    f"GET {_GROUP}/lag-summary": _group(Operation.DESCRIBE),
    f"GET {_GROUP}/lag-history": _group(Operation.DESCRIBE),
    f"GET {_GROUP}/share-partitions": _group(Operation.DESCRIBE),
    f"GET {_GROUP}/explain": _group(Operation.DESCRIBE),
    f"GET {_GROUP}/rebalances": _group(Operation.DESCRIBE),
    f"POST {_GROUP}/seek": _group(Operation.READ),
    f"POST {_GROUP}/seek/undo": _group(Operation.READ),
    f"GET {_CLUSTER}/transactions": _free,  # those that the caller may describe
    f"GET {_TRANSACTION}": _transaction(Operation.DESCRIBE),
    f"DELETE {_TRANSACTION}": _transaction(Operation.WRITE),
    f"GET {_CLUSTER}/hanging-transactions": _DESCRIBE,
    f"GET {_CLUSTER}/acls": _DESCRIBE,
    f"POST {_CLUSTER}/acls": _ALTER,
    f"DELETE {_CLUSTER}/acls": _ALTER,
    f"GET {_CLUSTER}/quotas": _cluster(Operation.DESCRIBE_CONFIGS),
    f"POST {_CLUSTER}/quotas": _cluster(Operation.ALTER_CONFIGS),
    f"DELETE {_CLUSTER}/quotas": _cluster(Operation.ALTER_CONFIGS),
}

NEEDS_OF_BODY: Final[Mapping[str, Needs]] = {
    f"POST {_CLUSTER}/topics": _create_topic,
    f"POST {_GROUP}/seek": _seek,
}

# Fields of listed objects that name a resource, which the caller must be allowed to describe.
_NAMES: Final = {
    "topic_name": ResourceKind.TOPIC,
    "consumer_group_id": ResourceKind.GROUP,
    "transactional_id": ResourceKind.TRANSACTIONAL_ID,
}
_LISTS: Final = ("data", "partitions")


def shown(access: Access, reply: Reply) -> Reply:
    """The answer without the listed objects that the caller may not describe."""
    body = reply.body
    if access.is_super or access.may_cluster(Operation.ALTER) or not isinstance(body, dict):
        return reply
    lists: dict[str, Any] = {
        field: [item for item in body[field] if _may_see(access, item)]
        for field in _LISTS
        if isinstance(body.get(field), Sequence) and not isinstance(body[field], str)
    }
    return replace(reply, body={**body, **lists})


def _may_see(access: Access, item: Any) -> bool:
    if not isinstance(item, Mapping):
        return True
    return all(
        access.may(Operation.DESCRIBE, kind, str(item[field])) for field, kind in _NAMES.items() if field in item
    )
