"""What `barnabas doctor` finds in the figures of brokers: machines, clocks, hot partitions, producers, software, certificates."""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.net.wire.protocol.broker_figures import DescribeBrokerResponse, PartitionRate, ProducerHabits
from barnabas.net.wire.protocol.responses import DescribeClusterResponse, TopicMetadata

from .cluster_health import some
from .finding import Finding, Weight

if TYPE_CHECKING:
    from .admin import Admin

CLOCKS_APART_MS: Final = 1_000
DESCRIPTORS_USED: Final = 0.8
MEMORY_USED: Final = 0.9
CONNECTIONS_USED: Final = 0.8
STORM_PER_S: Final = 50.0  # new connections; a client keeps its connections
STANDSTILL_MS: Final = 1_000  # of the event loop of a broker whose replicas are behind
HOT_BYTES_PER_S: Final = 1 << 20  # less is no load
HOT_SHARE: Final = 3.0  # times the share that each partition of the topic would have
MANY_REQUESTS_PER_S: Final = 100.0
TINY_RECORDS: Final = 3.0  # per batch
TINY_BYTES: Final = 4_096  # of a batch
SOON_MS: Final = 30 * 86_400_000
VERY_SOON_MS: Final = 7 * 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLook:
    """The figures of a broker, and when they were asked for and received, by the clock of who looks."""

    figures: DescribeBrokerResponse
    asked_ms: int
    received_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFault:
    """Of versions of a client below `mended`."""

    software: re.Pattern[str]
    mended: tuple[int, ...]
    fault: str


# Only faults that lose, repeat or invent records.
KNOWN_FAULTS: Final = (
    KnownFault(
        software=re.compile(r"librdkafka|confluent-kafka-.*"),
        mended=(1, 5, 3),
        fault="consumers show records of aborted transactions if these are compressed (librdkafka issue 3020)",
    ),
)
_LIBRDKAFKA: Final = re.compile(r"librdkafka-v?(\d+(?:\.\d+)*)")
_NUMBERS: Final = re.compile(r"v?(\d+(?:\.\d+)*)")


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


async def look_at_broker(admin: "Admin", node_id: int) -> BrokerLook:
    asked_ms = wall_ms()
    figures = await admin.describe_broker(node_id)
    return BrokerLook(figures=figures, asked_ms=asked_ms, received_ms=wall_ms())


def of_figures(looks: Sequence[BrokerLook], topics: Sequence[TopicMetadata], now_ms: int) -> Iterator[Finding]:
    yield from _clocks(looks)
    every = [look.figures for look in looks]
    for figures in every:
        yield from _limits(figures)
        yield from _certificates(figures, now_ms)
    yield from _hot_partitions([rate for figures in every for rate in figures.busiest], topics)
    yield from _producers([habits for figures in every for habits in figures.producers])
    yield from _software(every)


def _clocks(looks: Sequence[BrokerLook]) -> Iterator[Finding]:
    """The answer was written between question and answer, so each clock is known within a range."""
    if len(looks) < 2:
        return
    first = min(looks, key=lambda look: look.figures.wall_ms - look.asked_ms)  # the latest that it can be behind
    last = max(looks, key=lambda look: look.figures.wall_ms - look.received_ms)
    apart_ms = (last.figures.wall_ms - last.received_ms) - (first.figures.wall_ms - first.asked_ms)
    if apart_ms > CLOCKS_APART_MS:
        yield Finding(
            weight=Weight.PROBLEM,
            key=f"clocks differ: brokers {first.figures.node_id}, {last.figures.node_id}",
            what=f"the clock of broker {last.figures.node_id} is {apart_ms / 1000:.1f} s ahead of that of broker"
            f" {first.figures.node_id}",
            costs="records get wrong times, retention deletes too early or too late, and events are in a wrong order",
            cure="look at the time service (NTP) of both machines",
        )


def _limits(figures: DescribeBrokerResponse) -> Iterator[Finding]:
    name = f"broker {figures.node_id}"
    for what, used, limit, share, cure in (
        (
            "file descriptors",
            figures.descriptors,
            figures.descriptor_limit,
            DESCRIPTORS_USED,
            "raise ulimit -n (LimitNOFILE of systemd), or lower max.connections",
        ),
        (
            "connections",
            figures.connections,
            figures.max_connections,
            CONNECTIONS_USED,
            "raise max.connections, or find the clients that open so many: `barnabas cluster events --kind login`, ss -tn",
        ),
    ):
        if used >= 0 and limit > 0 and used > share * limit:
            yield Finding(
                weight=Weight.PROBLEM,
                key=f"{what}: {name}",
                what=f"{name} has {used} {what} open, and its limit is {limit}",
                costs="beyond the limit it refuses clients",
                cure=cure,
            )
    used, limit = figures.memory_bytes, figures.memory_limit_bytes
    if used >= 0 and limit > 0 and used > MEMORY_USED * limit:
        yield Finding(
            weight=Weight.PROBLEM,
            key=f"memory: {name}",
            what=f"{name} uses {used >> 20} MiB of the {limit >> 20} MiB of its machine or container",
            costs="the system kills it when the memory is used up",
            cure="give it more memory, or lower network.memory.max.bytes and max.connections",
        )
    if figures.connections_per_s > STORM_PER_S:
        yield Finding(
            weight=Weight.PROBLEM,
            key=f"connection storm: {name}",
            what=f"{name} is asked for {figures.connections_per_s:.0f} new connections per second",
            costs="each costs it as much as many requests, and all clients wait",
            cure="let programs keep one client instead of making one for each record; a quota of connections"
            " (connection_creation_rate) limits an address",
        )


def _certificates(figures: DescribeBrokerResponse, now_ms: int) -> Iterator[Finding]:
    for item in figures.certificates:
        left_ms = item.ends_ms - now_ms
        if left_ms >= SOON_MS:
            continue
        days = left_ms // 86_400_000
        weight = Weight.CRITICAL if left_ms < 0 else Weight.PROBLEM if left_ms < VERY_SOON_MS else Weight.RISK
        told = "has expired" if left_ms < 0 else f"expires in {days} days"
        yield Finding(
            weight=weight,
            key=f"certificate: broker {figures.node_id}, {item.path}, {item.subject}",
            what=f"a certificate of broker {figures.node_id} {told}: {item.subject} in {item.path}",
            costs="clients and other brokers refuse it from then on",
            cure="`barnabas security broker` and `barnabas security client` make new ones; brokers take new files within seconds",
            since_ms=item.ends_ms if left_ms < 0 else -1,
        )


def _hot_share(partitions: int) -> float:
    """The share of the topic's bytes from which a partition is hot. In small topics, half way between an equal share and all:
    three times an equal share would be more than there is."""
    equal = 1 / partitions
    return min(HOT_SHARE * equal, (equal + 1) / 2)


def _hot_partitions(rates: Sequence[PartitionRate], topics: Sequence[TopicMetadata]) -> Iterator[Finding]:
    counts = {topic.name: len(topic.partitions) for topic in topics}
    by_topic: dict[str, list[PartitionRate]] = {}
    for rate in rates:
        if counts.get(rate.topic, 1) > 1:
            by_topic.setdefault(rate.topic, []).append(rate)
    for topic, found in by_topic.items():
        for way in ("written", "read"):
            sizes = {rate.partition: rate.in_per_s if way == "written" else rate.out_per_s for rate in found}
            total, hottest = sum(sizes.values()), max(sizes, key=lambda number: sizes[number])
            if sizes[hottest] >= max(HOT_BYTES_PER_S, _hot_share(counts[topic]) * total):
                yield Finding(
                    weight=Weight.RISK,
                    key=f"hot partition: {topic}-{hottest}, {way}",
                    what=f"{topic}-{hottest} is hot: {sizes[hottest] / 2**20:.1f} of the {total / 2**20:.1f} MiB/s that"
                    f" are {way} in the {counts[topic]} partitions of the topic",
                    costs=f"its leader and its reader do {100 * sizes[hottest] // total} % of the topic's work",
                    cure="choose keys that spread the records, or send those of the largest key without a key",
                )


def _producers(found: Sequence[ProducerHabits]) -> Iterator[Finding]:
    merged: dict[str, list[ProducerHabits]] = {}
    for habits in found:
        merged.setdefault(habits.client_id, []).append(habits)
    few = [_named(items) for items in merged.values() if any(item.few_acks for item in items)]
    bare = [_named(items) for items in merged.values() if any(item.not_idempotent for item in items)]
    for items in merged.values():
        batches, records = sum(item.batches for item in items), sum(item.record_count for item in items)
        per_s, size = sum(item.requests_per_s for item in items), sum(item.size_bytes for item in items)
        if (
            batches
            and per_s >= MANY_REQUESTS_PER_S
            and records < TINY_RECORDS * batches
            and size < TINY_BYTES * batches
        ):
            yield Finding(
                weight=Weight.RISK,
                key=f"tiny batches: {items[0].client_id}",
                what=f"producer {_named(items)} sends {per_s:.0f} requests per second with {records / batches:.1f} records each",
                costs="a request costs brokers as much as a hundred records in one batch",
                cure="raise its linger.ms (5 to 20), and let one producer serve the whole program",
            )
    if few:
        yield Finding(
            weight=Weight.RISK,
            key="producers with acks=0 or acks=1",
            what=f"{len(few)} producers send with acks=0 or acks=1: {some(few)}",
            costs="records that they count as sent are lost if a leader fails",
            cure="acks=all, unless these records may be lost",
        )
    if bare:
        yield Finding(
            weight=Weight.RISK,
            key="producers without idempotence",
            what=f"{len(bare)} producers send without idempotence: {some(bare)}",
            costs="a batch whose answer is lost is stored twice, or behind later ones",
            cure="enable.idempotence=true",
        )


def _named(items: Sequence[ProducerHabits]) -> str:
    return f"{items[0].client_id or '(no client id)'} on {items[0].client_host}"


def _software(every: Sequence[DescribeBrokerResponse]) -> Iterator[Finding]:
    seen = sorted({(item.name, item.version) for figures in every for item in figures.software})
    for name, version in seen:
        for known in KNOWN_FAULTS:
            if known.software.fullmatch(name) and _is_below(version, known.mended):
                yield Finding(
                    weight=Weight.RISK,
                    what=f"clients use {name} {version}, which has a known fault: {known.fault}",
                    costs="their users get wrong records",
                    cure=f"update it to {'.'.join(map(str, known.mended))} or later",
                )


def _is_below(version: str, mended: tuple[int, ...]) -> bool:
    """Languages around librdkafka name its version behind their own. A version without numbers is not judged."""
    told = _LIBRDKAFKA.search(version) or _NUMBERS.match(version)
    return told is not None and tuple(map(int, told[1].split("."))) < mended


def slow_followers(
    cluster: DescribeClusterResponse, topics: Sequence[TopicMetadata], looks: Sequence[BrokerLook]
) -> Iterator[Finding]:
    """Brokers that are there, and whose replicas are out of sync all the same; with the likely reason."""
    figures = {look.figures.node_id: look.figures for look in looks}
    if not figures:
        return  # no broker could be asked: there is nothing to compare
    behind: dict[int, int] = {}
    for topic in topics:
        for item in topic.partitions:
            for node in set(item.replicas) - set(item.isr) if item.leader >= 0 else ():
                behind[node] = behind.get(node, 0) + 1
    for broker in cluster.brokers:
        count = behind.get(broker.node_id, 0)
        if not count or broker.fenced:
            continue
        found = figures.get(broker.node_id)
        if found is None:
            why, cure = (
                "it does not answer: it is frozen, or its network is broken",
                "look at its process and its network",
            )
        elif broker.troubled_folders:
            why, cure = "one of its data folders is in trouble", f"barnabas broker storage {broker.node_id}"
        elif found.loop_delay_ms >= STANDSTILL_MS:
            why = (
                f"its process stood still for {found.loop_delay_ms / 1000:.1f} s: it was paused, or has too much to do"
            )
            cure = "look at the load of its machine, and at its log"
        else:
            why = "its disk, or the network between it and the leaders, is slower than what is written"
            cure = "iostat -x and the throughput of its network show which; quotas limit producers meanwhile"
        yield Finding(
            weight=Weight.PROBLEM,
            key=f"slow follower: broker {broker.node_id}",
            what=f"broker {broker.node_id} is there, and does not keep up in {count} partitions: {why}",
            costs="these partitions bear fewer failures of brokers",
            cure=cure,
        )
