"""Which partition a record goes to: the one asked for, else murmur2 of its key as Kafka's, else the sticky one.
Pure."""

from collections.abc import Callable, Sequence

from barnabas.log.vocabulary.murmur2 import murmur2

_POSITIVE = 0x7FFFFFFF  # Kafka's toPositive: the sign bit is cut off, not negated.


def partition_of_key(key: bytes, partition_count: int) -> int:
    """Kafka's default partitioner, so that both kinds of client put a key into the same partition."""
    return (murmur2(key) & _POSITIVE) % partition_count


def next_sticky(current: int, available: Sequence[int], partition_count: int, random: Callable[[], float]) -> int:
    """Return the partition for the next batch without keys: any available one but the current (KIP-480).

    Where none is available, any at all: its records wait for a leader, as they would have to anyway.
    """
    choices = [number for number in (available or range(partition_count)) if number != current]
    if not choices:
        return available[0] if available else current
    return choices[int(random() * len(choices))]
