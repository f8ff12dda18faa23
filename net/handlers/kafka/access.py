"""The operations that exist for each resource (KIP-430), as clients without an authorizer are told them: one bit each."""

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = range(3, 9)  # Kafka's codes of operations
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = range(9, 13)


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


ALL_CLUSTER_OPERATIONS = _bits(
    _CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE
)
ALL_GROUP_OPERATIONS = _bits(_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
ALL_TOPIC_OPERATIONS = _bits(_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
