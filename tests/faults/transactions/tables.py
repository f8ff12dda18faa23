"""Records as Arrow tables."""

from collections import defaultdict
from typing import Any

from ..history import Partition


def by_partition(table: Any) -> dict[Partition, list[tuple[int, str]]]:
    """The values of an Arrow table of records."""
    found: dict[Partition, list[tuple[int, str]]] = defaultdict(list)
    columns = [table.column(name).to_pylist() for name in ("topic", "partition", "offset", "value")]
    for topic, number, offset, value in zip(*columns, strict=True):
        found[topic, number].append((offset, value.decode()))
    return found
