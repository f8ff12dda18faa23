"""What is wrong with a cluster and what may go wrong, the gravest first: `barnabas doctor`.

`look` asks the cluster, and `diagnose`, which is pure, judges what it answered. A healthy cluster has no findings.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import TYPE_CHECKING, Final, TypeVar

from barnabas.log.vocabulary.group_messages import UnownedPartition
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import TransactionState
from barnabas.net.wire.protocol.event_messages import MAX_PAGE, ClusterEvent, EventKind
from barnabas.net.wire.protocol.group_responses import DescribeGroupResponse
from barnabas.net.wire.protocol.lag import Lag
from barnabas.net.wire.protocol.responses import (
    DescribeClusterResponse,
    DescribeMovesResponse,
    DescribeQuorumResponse,
    DescribeStorageResponse,
    PartitionMetadata,
    TopicMetadata,
)
from barnabas.net.wire.protocol.transaction_operations import ListedTransaction, ListTransactionsResponse

from ..connection.errors import BarnabasError
from ..positions.slot_reports import SlotReport
from .cluster_health import (
    ignored_settings,
    partitions_by_name,
    problems,
    slot_problems,
    slot_reports,
    some,
    transaction_problems,
    unclean_elections,
    without_newcomers,
)
from .doctor_figures import BrokerLook, look_at_broker, of_figures, slow_followers, wall_ms
from .finding import Finding, Weight

if TYPE_CHECKING:  # commands import this module without importing a client
    from .admin import Admin
    from .events import EventPage

MAX_TOPICS: Final = 1_000  # whose configuration is read
MAX_GROUPS: Final = 200  # that are asked
AT_ONCE: Final = 16  # requests on the way
AGAIN_SHARE: Final = 0.25  # of the limit of a look: for a second answer of the cluster
ALMOST_FULL: Final = 0.10  # of a disk is free, and no room for the logs to double
LITTLE_BYTES: Final = 10 << 30  # free: little also for a broker that stores less
LAGGING_ENTRIES: Final = 1_000  # of the quorum's log
UNREAD_AFTER_MS: Final = 30_000  # a partition of a group with members; a rebalance takes less
LONG_TRANSACTION_MS: Final = 600_000
BEHIND_MS: Final = 300_000  # of a group with members
SOON: Final = 0.8  # of the retention time has passed for the oldest unread record
LEADERS_AWAY: Final = 0.2  # of all partitions; fewer are on their way back
FEW_PARTITIONS: Final = 10  # whose leaders may be anywhere

K = TypeVar("K")
T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    min_insync_replicas: int
    retention_ms: int  # -1: no record is deleted for its age


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What a cluster says of itself. What cannot be asked at the moment is left out."""

    cluster: DescribeClusterResponse
    quorum: DescribeQuorumResponse
    topics: Sequence[TopicMetadata]
    limits: Mapping[str, TopicLimits] = field(default_factory=dict)  # by topic
    storage: Sequence[DescribeStorageResponse] = ()
    groups: Sequence[DescribeGroupResponse] = ()
    lags: Mapping[str, Mapping[TopicPartition, Lag]] = field(default_factory=dict)  # by group
    long_transactions: Sequence[ListedTransaction] = ()
    transaction_problems: Sequence[Finding] = ()
    unanswered: Sequence[str] = ()  # questions without an answer in time
    figures: Sequence[BrokerLook] = ()
    events: Sequence[ClusterEvent] = ()  # the oldest first
    now_ms: int = -1  # wall clock of who looks
    slots: Sequence[SlotReport] = ()  # of PostgreSQL, as the programs say that capture changes with them
    unreachable: Sequence[str] = ()  # what is wrong with brokers' addresses, as seen by who looks


# --- asking -----------------------------------------------------------------------------------------------------------


async def look(admin: "Admin", *, limit_s: float) -> Picture:
    """Raises BarnabasError if no broker answers. What has no answer after `limit_s` is left out, and named."""
    questions = _Questions(limit_s)
    cluster, quorum, topics = await _frame(admin)
    user_topics = [topic.name for topic in topics if not topic.internal][:MAX_TOPICS]
    present = [broker.node_id for broker in cluster.brokers if not broker.fenced]
    (figures, events), moves, limits, storage, (groups, lags), (long_ones, found, slots) = await asyncio.gather(
        _figures_and_events(admin, questions, present),
        questions.one("moves of partitions", admin.describe_moves, DescribeMovesResponse(moves=())),
        questions.each("configuration of", user_topics, lambda name: _limits(admin, name)),
        questions.each("data folders of broker", present, admin.describe_storage),
        _groups_and_lags(admin, questions),
        _transactions_and_slots(admin, questions, topics),
    )
    if questions.unanswered:  # the cluster may have noticed the cause meanwhile
        cluster, quorum, topics = await _Questions(AGAIN_SHARE * limit_s).one(
            "the cluster again", lambda: _frame(admin), (cluster, quorum, topics)
        )
    return Picture(
        cluster=cluster,
        quorum=quorum,
        topics=without_newcomers(topics, moves.moves),
        limits=limits,
        storage=list(storage.values()),
        figures=list(figures.values()),
        events=() if events is None else [item.event for item in events.events],
        now_ms=wall_ms(),
        groups=groups,
        lags=lags,
        long_transactions=() if long_ones is None else long_ones.transactions,
        transaction_problems=found,
        slots=slots,
        unanswered=sorted(questions.unanswered),
    )


async def _frame(admin: "Admin") -> tuple[DescribeClusterResponse, DescribeQuorumResponse, Sequence[TopicMetadata]]:
    return await admin.describe_cluster(), await admin.describe_quorum(), await admin.describe_topics()


async def _figures_and_events(
    admin: "Admin", questions: "_Questions", present: Sequence[int]
) -> tuple[Mapping[int, BrokerLook], "EventPage | None"]:
    return await asyncio.gather(
        questions.each("figures of broker", present, lambda node_id: look_at_broker(admin, node_id)),
        questions.one("events", lambda: admin.events(kinds=_DATED, limit=MAX_PAGE), None),
    )


async def _transactions_and_slots(
    admin: "Admin", questions: "_Questions", topics: Sequence[TopicMetadata]
) -> tuple["ListTransactionsResponse | None", Sequence[Finding], Sequence[SlotReport]]:
    return await asyncio.gather(
        questions.one("long transactions", lambda: admin.transactions.list(longer_than_ms=LONG_TRANSACTION_MS), None),
        questions.one("transactions that hang", lambda: transaction_problems(admin), ()),
        questions.one("slots of PostgreSQL", lambda: slot_reports(admin, topics), ()),
    )


async def _limits(admin: "Admin", topic: str) -> TopicLimits:
    values = {entry.key: entry.value for entry in await admin.describe_configs(topic)}
    is_deleted = "delete" in (values.get("cleanup.policy") or "delete")
    return TopicLimits(
        min_insync_replicas=int(values.get("min.insync.replicas") or 1),
        retention_ms=int(values.get("retention.ms") or -1) if is_deleted else -1,
    )


async def _groups_and_lags(
    admin: "Admin", questions: "_Questions"
) -> tuple[Sequence[DescribeGroupResponse], Mapping[str, Mapping[TopicPartition, Lag]]]:
    names = [group.group_id for group in await questions.one("groups", admin.list_groups, ())][:MAX_GROUPS]
    groups, lags = await asyncio.gather(
        questions.each("group", names, admin.explain_group),
        questions.each("group", names, lambda name: admin.group_offsets(name, only_reachable=True)),
    )
    return list(groups.values()), lags


class _Questions:
    """They end at one time, so that one silent broker does not hide what the others say."""

    def __init__(self, limit_s: float) -> None:
        self._end_s = asyncio.get_running_loop().time() + limit_s
        self._gate = asyncio.Semaphore(AT_ONCE)
        self.unanswered: set[str] = set()

    async def one(self, name: str, ask: Callable[[], Awaitable[T]], otherwise: D) -> T | D:
        """`otherwise`: it is refused, or has no answer in time."""
        try:
            async with asyncio.timeout_at(self._end_s):
                return await ask()
        except TimeoutError:
            self.unanswered.add(name)
        except (BarnabasError, OSError):
            pass
        return otherwise

    async def each(self, name: str, keys: Sequence[K], ask: Callable[[K], Awaitable[T]]) -> dict[K, T]:
        """The answers; what cannot be asked is left out."""

        async def answer(key: K) -> T | None:
            async def gated() -> T:
                async with self._gate:
                    return await ask(key)

            return await self.one(f"{name} {key}", gated, None)

        answers = await asyncio.gather(*map(answer, keys))
        return {key: found for key, found in zip(keys, answers, strict=True) if found is not None}


# --- judging ----------------------------------------------------------------------------------------------------------


def diagnose(picture: Picture) -> list[Finding]:
    """The gravest first."""
    found = [
        *problems(picture.cluster, picture.quorum, picture.topics),
        *picture.transaction_problems,
        *_writes(picture),
        *_voters(picture),
        *_disks(picture),
        *_groups(picture),
        *_retention(picture),
        *_single_copies(picture),
        *_leaders(picture),
        *_long_transactions(picture),
        *slot_problems(picture.slots, picture.now_ms),
        *_past(picture),
        *_unanswered(picture),
        *_addresses(picture),
        *_behind(picture),
        *of_figures(picture.figures, picture.topics, picture.now_ms),
        *slow_followers(picture.cluster, picture.topics, picture.figures),
    ]
    return sorted((_dated(item, picture) for item in found), key=lambda item: -item.weight)


def _dated(item: Finding, picture: Picture) -> Finding:
    """Since when, from the events that the brokers have kept."""
    since_ms = item.since_ms
    if item.key == "the quorum has no leader" and picture.quorum.unconfirmed_ms >= 0:
        since_ms = picture.now_ms - picture.quorum.unconfirmed_ms
    for pattern, name, key in _BEGINNINGS:
        told = pattern.match(item.what)
        if told and since_ms < 0:
            subject = told.groupdict().get("node")
            newest = [
                event.at_ms
                for event in picture.events
                if event.name == name and (subject is None or event.fields.get(key) == subject)
            ]
            since_ms = max(newest, default=-1)
    return item if since_ms == item.since_ms else replace(item, since_ms=since_ms)


_DATED: Final = (EventKind.BROKER.value, EventKind.ELECTION.value, EventKind.ISR.value)
_BEGINNINGS: Final = (
    (re.compile(r"broker (?P<node>\d+) is fenced"), "fenced", "broker"),
    (re.compile(r"\d+ partitions have no leader"), "leaderless", ""),
    (re.compile(r"\d+ partitions have (replicas out of sync|fewer replicas in sync)"), "isr", ""),
)


def _writes(picture: Picture) -> Iterator[Finding]:
    """min.insync.replicas that refuse records with acks=all. More than the replicas counts as all of them (KIP-966)."""
    few: list[str] = []
    for topic in picture.topics:
        limits = picture.limits.get(topic.name)
        if limits is None or not topic.partitions:
            continue
        wanted, most = limits.min_insync_replicas, max(len(item.replicas) for item in topic.partitions)
        if wanted > most:
            yield Finding(
                weight=Weight.RISK,
                what=f"topic {topic.name!r} has {most} replicas and min.insync.replicas={wanted}",
                costs="a record has one copy, whatever the setting says"
                if most == 1
                else f"it counts as {most}: if one replica is missing, no record with acks=all is written",
                cure=f"barnabas topic alter {topic.name} -c min.insync.replicas={max(1, most - 1)}, or give it more replicas",
            )
        few += [
            f"{topic.name}-{number} ({len(item.isr)} of {least})"
            for number, item in enumerate(topic.partitions)
            if item.leader >= 0 and len(item.isr) < (least := min(wanted, len(item.replicas)))
        ]
    if few:
        yield Finding(
            weight=Weight.CRITICAL,
            what=f"{len(few)} partitions have fewer replicas in sync than min.insync.replicas: {some(few)}",
            costs="their leaders refuse records with acks=all",
            cure="bring the brokers of the other replicas back; `barnabas cluster describe` shows their states",
        )


def _voters(picture: Picture) -> Iterator[Finding]:
    quorum = picture.quorum
    voters = len(quorum.voters)
    present = sum(not broker.fenced for broker in picture.cluster.brokers)
    dead = [peer.node_id for peer in quorum.peers if peer.is_voter and not peer.is_live]
    slow = [peer for peer in quorum.peers if peer.is_voter and peer.is_live and peer.lag_entries > LAGGING_ENTRIES]
    if dead:
        left = (voters - 1) // 2 - len(dead)
        yield Finding(
            weight=Weight.PROBLEM if left >= 0 else Weight.CRITICAL,
            what=f"voters {dead} of the quorum do not answer",
            costs=_bears(left),
            cure="start these brokers"
            + (", or `barnabas cluster voters remove NODE` and add another one" if left >= 0 else ""),
        )
    for peer in slow:
        yield Finding(
            weight=Weight.PROBLEM,
            key=f"voter {peer.node_id} is behind the quorum",
            what=f"voter {peer.node_id} is {peer.lag_entries} entries behind the quorum",
            costs="it cannot take over, and an even slower one delays all changes",
            cure="look at its disk, its network and its load",
        )
    for stranger in quorum.strangers:
        yield Finding(
            weight=Weight.RISK,
            key=f"a broker of another cluster at {stranger.host}",
            what=f"a broker at {stranger.host} has the data folder of another cluster ({stranger.cluster_id}): it asked for this"
            f" cluster's quorum {stranger.age_ms // 1000} s ago",
            costs="it does not take part in this cluster",
            cure="on its machine, mount the right data folder, use an empty one, or correct controller.quorum.voters",
            since_ms=picture.now_ms - stranger.age_ms,
        )
    if voters % 2 == 0 and voters:
        yield Finding(
            weight=Weight.RISK,
            what=f"the quorum has {voters} voters, an even number",
            costs="one of them adds no safety: it must be asked, and bears no further failure",
            cure="barnabas cluster voters add NODE, or remove one",
        )
    if voters == 1 and present >= 3:
        yield Finding(
            weight=Weight.RISK,
            what=f"the quorum has one voter, and the cluster {present} brokers",
            costs=f"the cluster stands still without broker {quorum.voters[0]}",
            cure="barnabas cluster voters add NODE, twice",
        )


def _bears(losses: int) -> str:
    if losses < 0:
        return "the quorum has no majority"
    return f"the quorum survives the loss of {losses} more" if losses else "one more loss stops the quorum"


def _disks(picture: Picture) -> Iterator[Finding]:
    for node in picture.storage:
        for folder in node.folders:
            enough = min(ALMOST_FULL * folder.total_bytes, max(folder.size_bytes, LITTLE_BYTES))
            if folder.state == "online" and 0 <= folder.free_bytes < enough:
                yield Finding(
                    weight=Weight.RISK,
                    key=f"free space: broker {node.node_id}, {folder.path}",
                    what=f"broker {node.node_id}: {folder.free_bytes / 2**30:.1f} GiB are free for data folder {folder.path},"
                    f" {100 * folder.free_bytes / folder.total_bytes:.0f} % of the disk",
                    costs="a full disk refuses records",
                    cure="lower retention.bytes or retention.ms, add a folder to log.dirs, or move partitions away",
                )


def _groups(picture: Picture) -> Iterator[Finding]:
    for group in picture.groups:
        waiting = [item for item in group.unowned if item.since_ms >= UNREAD_AFTER_MS] if group.members else []
        if waiting:
            names = [f"{item.topic}-{item.partition}" for item in waiting]
            longest: UnownedPartition = max(waiting, key=lambda item: item.since_ms)
            yield Finding(
                weight=Weight.PROBLEM,
                key=f"no reader: group {group.group_id!r}, {', '.join(names)}",
                what=f"{len(names)} partitions of group {group.group_id!r} have no reader, for up to"
                f" {longest.since_ms // 1000} s: {some(names)}; {longest.text}",
                costs="their records wait",
                cure=f"barnabas group explain {quote(group.group_id)}",
            )


def _retention(picture: Picture) -> Iterator[Finding]:
    committed = (
        (group, place, lag) for group, lags in picture.lags.items() for place, lag in lags.items() if lag.has_committed
    )
    for group, place, lag in committed:
        limits = picture.limits.get(place.topic)
        if lag.committed < lag.log_start_offset:
            yield Finding(
                weight=Weight.CRITICAL,
                key=f"deleted before it was read: group {group!r}, {place}",
                what=f"group {group!r} has read {place} up to offset {lag.committed}, and the log begins at"
                f" {lag.log_start_offset} now",
                costs=f"{lag.log_start_offset - lag.committed} records were deleted before it read them",
                cure="make retention longer than the longest stop of the readers",
            )
        elif limits is not None and limits.retention_ms > 0 and lag.lag_ms >= SOON * limits.retention_ms:
            yield Finding(
                weight=Weight.PROBLEM,
                key=f"soon deleted: group {group!r}, {place}",
                what=f"group {group!r} lags in {place}: the oldest record that it has not read is {lag.lag_ms // 1000} s"
                f" old, and retention deletes after {limits.retention_ms // 1000} s",
                costs="records are deleted before they are read",
                cure=f"start more readers, or barnabas topic alter {place.topic} -c retention.ms=MS",
            )


def _behind(picture: Picture) -> Iterator[Finding]:
    """Groups whose members have partitions, and do not keep up with them."""
    readers = {
        (group.group_id, TopicPartition(owned.topic, number)): member
        for group in picture.groups
        for member in group.members
        for owned in member.assigned
        for number in owned.partitions
    }
    late: dict[tuple[str, str], list[tuple[TopicPartition, Lag]]] = {}
    for group_id, lags in picture.lags.items():
        for place, lag in lags.items():
            member = readers.get((group_id, place))
            if member is not None and lag.lag and lag.lag_ms >= BEHIND_MS:
                late.setdefault((group_id, member.member_id), []).append((place, lag))
    for (group_id, member_id), places in late.items():
        member = readers[group_id, places[0][0]]
        longest = max(lag.lag_ms for _, lag in places)
        yield Finding(
            weight=Weight.RISK,
            key=f"reads too slowly: group {group_id!r}, member {member_id}",
            what=f"member {member.client_id or member_id} on {member.client_host} of group {group_id!r} reads too slowly, is"
            f" stuck, or catches up: it is {longest // 1000} s behind in {some([str(place) for place, _ in places])}",
            costs=f"{sum(lag.lag for _, lag in places)} records wait for it",
            cure=f"`barnabas group describe {quote(group_id)}` twice shows whether it advances; make it faster, restart it,"
            " or add members",
            since_ms=picture.now_ms - longest,
        )
    for group in picture.groups:
        for member in group.members:
            if member.slow_ms >= UNREAD_AFTER_MS:
                yield Finding(
                    weight=Weight.PROBLEM,
                    key=f"does not follow its assignment: group {group.group_id!r}, member {member.member_id}",
                    what=f"member {member.client_id or member.member_id} on {member.client_host} of group {group.group_id!r} has"
                    f" not followed its new assignment for {member.slow_ms // 1000} s",
                    costs="the partitions that it must give up have no other reader",
                    cure="it polls too rarely: shorten what it does between two polls, or restart it",
                    since_ms=picture.now_ms - member.slow_ms,
                )


def _single_copies(picture: Picture) -> Iterator[Finding]:
    if len(picture.cluster.brokers) < 2:
        return
    names = [
        topic.name
        for topic in picture.topics
        if not topic.internal and any(len(item.replicas) == 1 for item in topic.partitions)
    ]
    if names:
        yield Finding(
            weight=Weight.RISK,
            what=f"{len(names)} topics have partitions with one replica: {some(names)}",
            costs="without its broker such a partition is gone, for a while or for ever",
            cure="`barnabas partition move TOPIC PARTITION --to BROKER,BROKER,BROKER` gives a partition these replicas",
        )


def _leaders(picture: Picture) -> Iterator[Finding]:
    active = {broker.node_id for broker in picture.cluster.brokers if not broker.fenced}
    named: list[tuple[str, PartitionMetadata]] = [
        (name, item)
        for name, item in partitions_by_name([topic for topic in picture.topics if not topic.internal])
        if item.leader >= 0
    ]
    away = [name for name, item in named if item.leader != item.replicas[0] and item.replicas[0] in active]
    if len(named) >= FEW_PARTITIONS and len(away) > LEADERS_AWAY * len(named):
        most, count = Counter(item.leader for _, item in named).most_common(1)[0]
        yield Finding(
            weight=Weight.RISK,
            key="leaders are not their partitions' preferred replicas",
            what=f"{len(away)} of {len(named)} partitions are not led by their preferred replica; broker {most} leads {count}",
            costs="that broker does more than its share of the work",
            cure="auto.leader.rebalance.enable=true returns them by itself; `barnabas partition transfer-leadership TOPIC"
            " PARTITION --to BROKER` does it now",
        )


def _long_transactions(picture: Picture) -> Iterator[Finding]:
    open_ones = [item for item in picture.long_transactions if TransactionState(item.state).is_open]
    names = [f"{item.transactional_id} ({item.duration_ms // 60_000} min)" for item in open_ones]
    if names:
        yield Finding(
            weight=Weight.RISK,
            key=f"open for long: {', '.join(item.transactional_id for item in open_ones)}",
            what=f"{len(names)} transactions are open for more than {LONG_TRANSACTION_MS // 60_000} minutes: {some(names)}",
            costs="readers of committed records wait for them, and their partitions are not compacted",
            cure="commit more often; `barnabas transaction describe ID` shows the partitions",
        )


def _past(picture: Picture) -> Iterator[Finding]:
    unclean = unclean_elections(picture.topics)
    if unclean:
        yield Finding(
            weight=Weight.RISK,
            what=f"leaders were elected that did not have all records: {some(unclean)} (how often)",
            costs="acknowledged records may be lost, once and for all",
            cure="compare with the sources; unclean.leader.election.enable=false prevents it",
        )
    ignored = ignored_settings(picture.cluster)
    if ignored:
        yield Finding(
            weight=Weight.RISK,
            what=f"settings in brokers' files have no effect: {some(ignored)}",
            cure="remove them from the files; `barnabas cluster alter` changes the cluster's values",
        )


def _unanswered(picture: Picture) -> Iterator[Finding]:
    if picture.unanswered:
        yield Finding(
            weight=Weight.RISK,
            what=f"not everything could be examined, no answer came in time: {some(list(picture.unanswered))}",
            costs="what is wrong there is not in this list",
            cure="mend what is above, and look again; --timeout SECONDS gives more time",
        )


def _addresses(picture: Picture) -> Iterator[Finding]:
    for cause in picture.unreachable:
        yield Finding(weight=Weight.PROBLEM, what=cause, costs="clients cannot use this broker")
