"""Administrative requests, as the audit tells them: what was to be changed, and how it ended. Names only, never values: a
configuration may be a password.
"""

from typing import Any, Final

from barnabas.log.vocabulary.access.quotas import QuotaEntity
from barnabas.log.vocabulary.cluster_changes import FORWARDED
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.kafka.apis import KafkaApi, KafkaRequest, KafkaResponse
from barnabas.net.wire.protocol.responses import ErrorResponse

DONE: Final = "done"
MAX_NAMES: Final = 20  # of one request, in one line
_MAX_DEPTH: Final = 6  # of a response; error codes lie higher

ADMINISTRATIVE: Final = frozenset(
    {
        ApiKey.CREATE_TOPIC,
        ApiKey.DELETE_TOPIC,
        ApiKey.ADD_PARTITIONS,
        ApiKey.DELETE_RECORDS,
        ApiKey.ALTER_CONFIG,
        ApiKey.ELECT_LEADER,
        ApiKey.ASSIGN_REPLICAS,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ALTER_VOTERS,
        ApiKey.BROKER_SHUTDOWN,
        ApiKey.BRING_BACK_FOLDER,
        ApiKey.DELETE_GROUP,
        ApiKey.RESET_OFFSETS,
        ApiKey.DELETE_OFFSETS,
        ApiKey.UNDO_OFFSET_RESET,
        ApiKey.ABORT_TRANSACTION,
        ApiKey.ABORT_HANGING,
        *(row.api_key for row in FORWARDED),
        KafkaApi.CREATE_TOPICS,
        KafkaApi.DELETE_TOPICS,
        KafkaApi.CREATE_PARTITIONS,
        KafkaApi.DELETE_RECORDS,
        KafkaApi.ALTER_CONFIGS,
        KafkaApi.INCREMENTAL_ALTER_CONFIGS,
        KafkaApi.ELECT_LEADERS,
        KafkaApi.ALTER_PARTITION_REASSIGNMENTS,
        KafkaApi.DELETE_GROUPS,
        KafkaApi.OFFSET_DELETE,
        KafkaApi.ALTER_SHARE_GROUP_OFFSETS,
        KafkaApi.DELETE_SHARE_GROUP_OFFSETS,
        KafkaApi.WRITE_TXN_MARKERS,
        KafkaApi.CREATE_ACLS,
        KafkaApi.DELETE_ACLS,
        KafkaApi.ALTER_CLIENT_QUOTAS,
        KafkaApi.ALTER_USER_SCRAM_CREDENTIALS,
    }
)
# Fields that name what a request is about, and those that hold several such things.
_NAMES: Final = (
    "name",
    "topic",
    "resource",
    "resource_name",
    "resource_name_filter",
    "entity_name",
    "group_id",
    "transactional_id",
    "user",
    "principal",
    "node_id",
    "path",
    "client_id",
    "ip",
)
_LISTS: Final = (
    "topics",
    "topic_names",
    "topic_partitions",
    "resources",
    "groups_names",
    "creations",
    "filters",
    "acls",
    "entries",
    "entity",
    "deletions",
    "upsertions",
    "credentials",
    "removals",
    "changes",
)


def target_of(request: Any) -> str:
    """What a request names, separated by commas."""
    body = request.body if isinstance(request, KafkaRequest) else request
    names = list(dict.fromkeys(_names(body)))
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{','.join(names[:MAX_NAMES])}{more}"


def _names(value: Any) -> list[str]:
    if isinstance(value, str | int):
        return [str(value)]
    found = [str(name) for field in _NAMES if isinstance(name := getattr(value, field, None), str | int) and name != ""]
    for field in _LISTS:
        items = getattr(value, field, None)
        if isinstance(items, list | tuple):
            found += [name for item in items for name in _names(item)]
        elif isinstance(items, QuotaEntity):
            found += _names(items)
    return found


def outcome_of(response: Any) -> str:
    """DONE, or the names of the errors; of a request with several parts, both."""
    codes = {response.error} if isinstance(response, ErrorResponse) else set()
    if isinstance(response, KafkaResponse):
        codes = _codes(response.body, 0)
    return ",".join(sorted(_name(code) for code in codes)) or DONE


def _codes(value: Any, depth: int) -> set[int]:
    if depth > _MAX_DEPTH:
        return set()
    if isinstance(value, list | tuple):
        return set().union(*(_codes(item, depth + 1) for item in value))
    found: set[int] = set()
    for field in getattr(value, "__slots__", ()):
        part = getattr(value, field, None)
        if isinstance(part, list | tuple):
            found |= _codes(part, depth + 1)
        elif field == "error_code" or (field.endswith("error_code") and part):  # others may say nothing beside an error
            found.add(int(part or 0))
    return found


def _name(code: int) -> str:
    if code == ErrorCode.NONE:
        return DONE
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
