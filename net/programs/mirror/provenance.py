"""Where a mirrored record comes from: a header with the cluster and the offset of each place where it was. Pure.

    barnabas-mirror: CLUSTER/OFFSET;CLUSTER/OFFSET

The last part is the cluster that the record was mirrored from. A record is not mirrored into a cluster where it was already, so
two clusters may mirror the same topics into each other. The offset translates committed offsets of groups exactly.
"""

from collections.abc import Sequence
from typing import Final

HEADER: Final = "barnabas-mirror"
MAX_PLACES: Final = 16  # a longer chain of clusters is more likely a mistake
_SEPARATOR: Final = b";"
_MAX_DIGITS: Final = 19  # of an offset; Python refuses to read numbers of more than 4,300

Headers = Sequence[tuple[str, bytes | None]]


def places(headers: Headers | None) -> list[tuple[str, int]]:
    """(cluster id, offset) from the origin on; [] for a record that was not mirrored, or a header of another program."""
    if headers is None:
        return []
    for name, value in reversed(headers):
        if name == HEADER and value is not None:
            return _parsed(value)
    return []


def _parsed(value: bytes) -> list[tuple[str, int]]:
    found = []
    for part in value.split(_SEPARATOR):
        cluster, _, offset = part.rpartition(b"/")
        if not cluster or not offset.isdigit() or len(offset) > _MAX_DIGITS:
            return []
        found.append((cluster.decode("utf-8", "replace"), int(offset)))
    return found


def was_in(headers: Headers | None, cluster_id: str) -> bool:
    known = places(headers)
    return len(known) >= MAX_PLACES or any(cluster == cluster_id for cluster, _ in known)


def with_place(headers: Headers | None, cluster_id: str, offset: int) -> list[tuple[str, bytes | None]]:
    """The headers of the copy: those of the record, and one that names this place after the former ones."""
    before = places(headers)
    path = _SEPARATOR.join(b"%s/%d" % (cluster.encode(), at) for cluster, at in [*before, (cluster_id, offset)])
    kept = [item for item in headers or () if not (before and item[0] == HEADER)]
    return [*kept, (HEADER, path)]


def offset_in(headers: Headers | None, cluster_id: str) -> int | None:
    """The offset of the original, if the record was mirrored from this cluster."""
    known = places(headers)
    return known[-1][1] if known and known[-1][0] == cluster_id else None
