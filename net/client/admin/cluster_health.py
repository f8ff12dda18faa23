"""The health of a cluster in words: the one place that decides which states are problems, and what to do about each.

The command (`cluster health`) and the HTTP API show the result of `cluster_health`; `doctor` weighs the same problems, and looks
for more.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import TransactionState
from barnabas.net.wire.protocol.doubt import doubt_in_words
from barnabas.net.wire.protocol.responses import (
    DescribeClusterResponse,
    DescribeQuorumResponse,
    PartitionMetadata,
    PartitionMove,
    TopicMetadata,
    TroubledFolder,
)

from ..connection.errors import BarnabasError
from ..positions.slot_reports import SLOTS_TOPIC, SlotReport, read_report
from .finding import Finding, Weight, utc_time

if TYPE_CHECKING:  # commands import this module without importing a client
    from .admin import Admin

logger = logging.getLogger("barnabas.client")

OVERDUE_AFTER_MS: Final = 5_000  # after its timeout a transaction is aborted at once; the markers take less than this
REPORTS_TIMEOUT_MS: Final = 5_000  # for each piece of a topic of reports
REPORTS_AT_ONCE_BYTES: Final = 1 << 20
# Offsets before the end at which reading begins. Compaction leaves few records there. A program that ended earlier is not seen.
REPORTS_WINDOW: Final = 500_000
MAX_PROGRAMS: Final = 10_000  # whose newest reports are kept while a topic is read
NAMES_SHOWN: Final = 10  # enough to see the problem; the count shows its size
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHealth:
    """`causes`: the problems that exist now. The others are facts to know that do not make a cluster unhealthy."""

    causes: tuple[str, ...]
    unclean_elections: tuple[str, ...]
    ignored_settings: tuple[str, ...]


async def cluster_health(admin: "Admin") -> ClusterHealth:
    """Problems that the cluster knows of. Whether the caller can reach the advertised addresses is the caller's to check."""
    cluster, quorum, topics = (
        await admin.describe_cluster(),
        await admin.describe_quorum(),
        await admin.describe_topics(),
    )
    settled = without_newcomers(topics, await _moves(admin, topics))
    found = [*problems(cluster, quorum, settled), *await transaction_problems(admin)]
    return ClusterHealth(
        causes=tuple(item.what for item in found),
        unclean_elections=tuple(unclean_elections(topics)),
        ignored_settings=tuple(ignored_settings(cluster)),
    )


async def _moves(admin: "Admin", topics: Sequence[TopicMetadata]) -> tuple[PartitionMove, ...]:
    """What is on the move, if it matters: if a replica is out of sync. A cluster that cannot say it has no moves."""
    if not any(len(item.isr) < len(item.replicas) for _, item in partitions_by_name(topics)):
        return ()
    try:
        return (await admin.describe_moves()).moves
    except BarnabasError as error:
        logger.warning("the moves of partitions are unknown: %s", error)
        return ()


def problems(
    cluster: DescribeClusterResponse, quorum: DescribeQuorumResponse, topics: Sequence[TopicMetadata]
) -> list[Finding]:
    return [*_of_quorum(quorum), *_of_brokers(cluster), *_of_partitions(topics), *_of_machines(cluster, topics)]


def _of_quorum(quorum: DescribeQuorumResponse) -> list[Finding]:
    """Do not use the controller in the metadata: it stays there when no quorum is left to elect another one."""
    if quorum.leader_id >= 0 and quorum.unconfirmed_ms < 0:
        return [Finding(weight=Weight.PROBLEM, what=item) for item in quorum.refused_brokers]
    cure = "most of its voters must be up; until then the state below is not confirmed"
    what = f"the quorum has no leader ({doubt_in_words(quorum)}): {cure}"
    costs = "no leader is elected, no topic is changed, and groups commit no offsets"
    return [Finding(weight=Weight.CRITICAL, what=what, costs=costs, key="the quorum has no leader")]


def _of_brokers(cluster: DescribeClusterResponse) -> list[Finding]:
    causes: list[str] = [
        f"a committed metadata record is quarantined: {item}; change or delete the object it describes"
        for item in cluster.quarantined
    ]
    since_ms: dict[str, int] = {}
    for broker in cluster.brokers:
        if broker.in_controlled_shutdown and not broker.fenced:
            causes.append(f"broker {broker.node_id} is shutting down")
        for folder in broker.troubled_folders:
            causes.append(folder_cause(broker.node_id, folder))
            since_ms[causes[-1]] = folder.since_ms
        if broker.decommissioning and not broker.replica_count:
            causes.append(
                f"broker {broker.node_id} is empty; finish with `barnabas broker decommission {broker.node_id}`"
            )
    found = [Finding(weight=Weight.PROBLEM, what=cause, since_ms=since_ms.get(cause, -1)) for cause in causes]
    return [*found, *(_fenced(broker.node_id) for broker in cluster.brokers if broker.fenced)]


def _fenced(node_id: int) -> Finding:
    return Finding(
        weight=Weight.PROBLEM,
        what=f"broker {node_id} is fenced: it is down, cut off, or not yet caught up",
        costs="clients cannot use it, and its replicas fall behind",
        cure="start it on its machine; if it stops again, the last line of its log says why",
    )


def folder_cause(node_id: int, folder: TroubledFolder) -> str:
    """The problem, since when, why, and what to do, in one line."""
    cure = (
        ""
        if folder.state in ("full", "hanging")
        else f"; then `barnabas broker bring-back {node_id} --folder {folder.path}`"
    )
    since = utc_time(folder.since_ms)
    return f"broker {node_id}: data folder {folder.path} is {folder.state} since {since}: {folder.cause}{cure}"


def _of_partitions(topics: Sequence[TopicMetadata]) -> list[Finding]:
    named = partitions_by_name(topics)
    offline = [name for name, item in named if item.leader < 0]
    short = [name for name, item in named if item.leader >= 0 and len(item.isr) < len(item.replicas)]
    found = []
    if offline:
        what = f"{len(offline)} partitions have no leader: {some(offline)}"
        found.append(
            Finding(
                weight=Weight.CRITICAL,
                what=what,
                costs="they can be neither written nor read",
                cure="start the brokers of their replicas: `barnabas topic describe` names those that hold all records",
            )
        )
    if short:
        what = f"{len(short)} partitions have replicas out of sync: {some(short)}"
        found.append(Finding(weight=Weight.PROBLEM, what=what, costs="they bear fewer failures of brokers"))
    return found


def _of_machines(cluster: DescribeClusterResponse, topics: Sequence[TopicMetadata]) -> list[Finding]:
    """Placement never does this; a machine that is named after partitions were placed does."""
    machines = {broker.node_id: broker.machine for broker in cluster.brokers if broker.machine}

    def shares(item: PartitionMetadata) -> bool:
        named = [machines[replica] for replica in item.replicas if replica in machines]
        return len(set(named)) < len(named)

    placed = [topic for topic in topics if not topic.internal]  # the quorum has those, on each of its voters
    shared = [name for name, item in partitions_by_name(placed) if shares(item)] if machines else []
    if not shared:
        return []
    what = f"{len(shared)} partitions have two replicas on one machine: {some(shared)}"
    cure = "move one of them: `barnabas partition move`"
    return [Finding(weight=Weight.PROBLEM, what=what, costs="the loss of one machine takes both", cure=cure)]


def without_newcomers(topics: Sequence[TopicMetadata], moves: Iterable[PartitionMove]) -> list[TopicMetadata]:
    """Partitions on the move with the replicas from before: one that is still being copied is no replica out of sync."""
    adding = {(item.topic, item.partition): set(item.adding) for item in moves}
    moving = {name for name, _ in adding}

    def settled(topic: str, number: int, item: PartitionMetadata) -> PartitionMetadata:
        newcomers = adding.get((topic, number), set()).difference(item.isr)
        return replace(item, replicas=tuple(node for node in item.replicas if node not in newcomers))

    return [
        replace(topic, partitions=tuple(settled(topic.name, *pair) for pair in enumerate(topic.partitions)))
        if topic.name in moving
        else topic
        for topic in topics
    ]


def partitions_by_name(topics: Sequence[TopicMetadata]) -> list[tuple[str, PartitionMetadata]]:
    return [(f"{topic.name}-{index}", item) for topic in topics for index, item in enumerate(topic.partitions)]


async def transaction_problems(admin: "Admin") -> list[Finding]:
    """Of the brokers that answer: what keeps the others from it is a problem of its own."""
    overdue = await admin.transactions.overdue(grace_ms=OVERDUE_AFTER_MS)
    found = []
    prepared = [item for item in overdue.transactions if item.state == TransactionState.PREPARED]
    others = [item for item in overdue.transactions if item.state != TransactionState.PREPARED]
    if prepared:
        names = [f"{item.transactional_id} ({item.prepared_for}, {item.duration_ms // 1000} s)" for item in prepared]
        what = (
            f"{len(names)} prepared transactions wait for their decision, and readers of committed records for them: "
            f"{some(names)}; run the program again that decides (the driver of a Spark query), or give them up: "
            "`barnabas transaction abort ID`"
        )
        key = f"undecided: {', '.join(item.transactional_id for item in prepared)}"
        found.append(Finding(weight=Weight.PROBLEM, what=what, key=key))
    if others:
        names = [f"{item.transactional_id} ({item.state}, {item.duration_ms // 1000} s)" for item in others]
        what = (
            f"{len(names)} transactions have outlived their timeout by more than {OVERDUE_AFTER_MS // 1000} s: {some(names)}; "
            "`barnabas transaction describe ID` shows which partitions they wait for"
        )
        key = f"overdue: {', '.join(item.transactional_id for item in others)}"
        found.append(Finding(weight=Weight.PROBLEM, what=what, key=key))
    with suppress(BarnabasError):  # a coordinator does not answer, so nothing is known to hang
        hanging = await admin.transactions.hanging()
        if hanging:
            names = [f"{item.topic}-{item.partition} (producer {item.producer_id})" for item in hanging]
            what = (
                f"{len(names)} transactions hang, and readers of committed records wait for them: {some(names)}; abort them: "
                "`barnabas transaction hanging` shows how"
            )
            found.append(Finding(weight=Weight.PROBLEM, what=what))
    return found


def unclean_elections(topics: Sequence[TopicMetadata]) -> list[str]:
    """Partitions whose leader was once neither in sync nor eligible: acknowledged records may be lost."""
    named = partitions_by_name(topics)
    return [f"{name} ({item.unclean_elections})" for name, item in named if item.unclean_elections]


def ignored_settings(cluster: DescribeClusterResponse) -> list[str]:
    """Settings whose value in a broker's file differs from the cluster's value, which is the effective one."""
    return [
        f"broker {broker.node_id}: {item.key}={item.of_file} in its configuration, {item.of_cluster} in the cluster"
        for broker in cluster.brokers
        for item in broker.ignored_settings
    ]


def some(names: list[str]) -> str:
    return ", ".join(names[:NAMES_SHOWN]) + (" ..." if len(names) > NAMES_SHOWN else "")


# --- slots of PostgreSQL --------------------------------------------------------------------------------------------------

_AGAIN: Final = (
    "drop the slot, if it is there, and run `barnabas connect reset FILE` or `barnabas pipeline reset FILE`: tables are read"
    " again"
)


async def slot_reports(admin: "Admin", topics: Sequence[TopicMetadata]) -> Sequence[SlotReport]:
    """The newest of each program; nothing is asked of a cluster into which none captures."""
    if all(topic.name != SLOTS_TOPIC for topic in topics):
        return ()
    return await newest_reports(admin, SLOTS_TOPIC, read_report)


async def newest_reports(admin: "Admin", topic: str, read: Callable[[bytes | None], R | None]) -> tuple[R, ...]:
    """By the keys of records; what `read` does not know is left out. The topic must exist."""
    from ..consumer.range_reader import RangeReader, batches_of
    from ..positions.offset_lookup import EARLIEST, LATEST, topic_id_of

    place = TopicPartition(topic, 0)
    await admin.client.wait_for_topic(topic, timeout_ms=REPORTS_TIMEOUT_MS)
    starts, ends = [await admin.list_offsets(topic, timestamp_ms=at) for at in (EARLIEST, LATEST)]
    start, end = starts[place].offset, ends[place].offset
    reader = RangeReader(
        admin.client,
        place,
        start=max(start, end - REPORTS_WINDOW),
        end=end,
        max_bytes=REPORTS_AT_ONCE_BYTES,
        is_committed_only=False,
        topic_id=topic_id_of(topic, [starts, ends]),
        timeout_ms=REPORTS_TIMEOUT_MS,
    )
    newest: dict[bytes | None, bytes | None] = {}  # the keys by their age
    while (chunk := await reader.next_chunk()) is not None:
        for _, records in batches_of(chunk, end=end):
            for record in records:
                newest.pop(record.key, None)
                newest[record.key] = record.value
                if len(newest) > MAX_PROGRAMS:
                    del newest[next(iter(newest))]
    return tuple(report for value in newest.values() if (report := read(value)) is not None)


def slot_problems(slots: Sequence[SlotReport], now_ms: int) -> Iterator[Finding]:
    for slot in slots:
        if slot.is_lost:
            what = (
                "does not exist any more" if not slot.exists else "is lost: the server has discarded log that it needs"
            )
            yield Finding(
                weight=Weight.CRITICAL,
                what=f"{slot.name} {what}",
                costs="changes of its tables since then are in no topic and in no table",
                cure=_AGAIN if not slot.exists else f"raise max_slot_wal_keep_size, {_AGAIN}",
                since_ms=slot.at_ms,
            )
        elif slot.is_silent(now_ms) or not slot.is_active:
            yield Finding(
                weight=Weight.PROBLEM,
                what=f"{slot.name} is not read",
                costs=f"the server keeps its log for it, {slot.retained_bytes} bytes at the last look, until its disk is full",
                cure=f"start {slot.program} again, or run SELECT pg_drop_replication_slot('{slot.slot}') if it is not needed",
                since_ms=slot.at_ms,
            )
        elif slot.retained_bytes > slot.warn_bytes:
            yield Finding(
                weight=Weight.RISK,
                what=f"{slot.name} retains {slot.retained_bytes} bytes of log, more than {slot.warn_bytes}",
                key=f"{slot.name} retains log",
                costs="the disk of the server fills"
                if slot.safe_bytes is None
                else f"the slot is lost after {slot.safe_bytes} more bytes",
                cure="look for long transactions of the source, and whether the sink or the brokers are slow",
            )
