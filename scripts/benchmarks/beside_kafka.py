"""`scripts/benchmark beside-kafka`: Apache Kafka with confluent-kafka, and Barnabas with its SDK, in one run, as ratios.

Both clusters run all the time, each on three brokers, and the samples of a group alternate: first Kafka's, then those of
Barnabas that are compared with it; in the next repetition in the opposite order. Every repetition gives a ratio, of which the
median counts. Nothing is asserted: the aims stand beside the figures. Kafka comes from Maven Central (kafka_brokers.py).
"""

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clusters import Cluster
from kafka_brokers import KAFKA_VERSION, KafkaCluster
from measure import HERE, Case, Metrics, Row, Skipped, child, take_sample
from report import short

SMALL, LARGE = 100, 1_000  # bytes of a record
PARTITIONS = 3
READ_TOPIC = "to-read"
OURS, THEIRS = HERE / "client.py", HERE / "kafka_client.py"
RATE, CLIENT, BROKERS, P50, P99, REQUESTS = "msg/s", "client_ns", "brokers_ns", "p50_us", "p99_us", "req/s"
LABELS = {CLIENT: "client µs"}  # of a record, processor time; the others are named as they are
WARM_UP_RECORDS = 500_000  # before the first group: until then a JVM interprets


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A line of the table: a sample of ours, and what is compared with the other side's sample of the same repetition."""

    name: str
    run: Callable[[], Metrics]
    metric: str
    at_least: float | None = None
    at_most: float | None = None
    also: str = ""  # another metric whose ratio is a line of its own


@dataclass(frozen=True, kw_only=True)
class Group:
    name: str
    theirs: Callable[[], Metrics]
    ours: Sequence[Compared]


@dataclass(kw_only=True)
class Found:
    theirs: Row = field(default_factory=Row)
    ours: dict[str, Row] = field(default_factory=dict)


class Side:
    """The clients of one kind, and the brokers that they work with."""

    def __init__(self, brokers: "Cluster | KafkaCluster", client: Path) -> None:
        self.brokers = brokers
        self._client = client
        self._numbers = itertools.count()

    def on_new_topic(self, role: str, *, partitions: int, replicas: int, **options: object) -> Metrics:
        topic = f"compared-{self._client.stem}-{next(self._numbers)}"
        self.brokers.create(topic, partitions=partitions, replicas=replicas)
        try:
            return self.on_topic(topic, role, **options)
        finally:
            self.brokers.delete(topic)

    def on_topic(self, topic: str, role: str, **options: object) -> Metrics:
        named = itertools.chain.from_iterable((f"--{name}", value) for name, value in options.items())
        servers = ",".join(map(str, self.brokers.pids()))
        return child(
            self._client, role, "--bootstrap", self.brokers.bootstrap, "--topic", topic, "--servers", servers, *named
        )


@dataclass(frozen=True, kw_only=True)
class Scale:
    factor: float

    def records(self, size: int) -> int:
        return int((1_000_000 if size == SMALL else 200_000) * self.factor)

    @property
    def round_trips(self) -> int:
        return int(3_000 * self.factor)


def groups(ours: Side, theirs: Side, ours_by_their_client: Side, scale: Scale) -> Iterator[Group]:
    yield from _sending(ours, theirs, scale)
    yield from _reading(ours, theirs, scale)
    yield from _replicating(ours, theirs, ours_by_their_client, scale)
    yield from _one_by_one(ours, theirs, ours_by_their_client, scale)


def _sending(ours: Side, theirs: Side, scale: Scale) -> Iterator[Group]:
    """What a record costs the client; acks=1, one replica."""
    count = scale.records(SMALL)

    def sends(side: Side, api: str, role: str = "produce") -> Callable[[], Metrics]:
        return lambda: side.on_new_topic(role, partitions=PARTITIONS, replicas=1, api=api, acks=1, count=count)

    yield Group(
        name="produce acks=1 100 B",
        theirs=sends(theirs, "send"),
        ours=[
            Compared(name="send", run=sends(ours, "send"), metric=CLIENT, at_most=0.25, also=RATE),
            Compared(name="send_many", run=sends(ours, "send_many"), metric=RATE, at_least=5, also=CLIENT),
            Compared(name="send_table", run=sends(ours, "send_table"), metric=RATE, at_least=10, also=CLIENT),
            Compared(name="sync send", run=sends(ours, "", "sync-send"), metric=RATE, at_least=0.5, also=CLIENT),
        ],
    )
    yield Group(
        name="produce with key acks=1 100 B",
        theirs=sends(theirs, "send_key"),
        ours=[Compared(name="send with key", run=sends(ours, "send_key"), metric=CLIENT, at_most=0.30, also=RATE)],
    )
    yield Group(
        name="produce_batch acks=1 100 B",
        theirs=sends(theirs, "send_many"),
        ours=[Compared(name="send_many", run=sends(ours, "send_many"), metric=RATE, also=CLIENT)],
    )


def _reading(ours: Side, theirs: Side, scale: Scale) -> Iterator[Group]:
    """Of a topic of one partition, which is filled when the group is first measured."""
    count = scale.records(SMALL)
    filled: set[str] = set()

    def reads(side: Side, api: str) -> Callable[[], Metrics]:
        def run() -> Metrics:
            topic = f"{READ_TOPIC}-{side is ours}"
            if topic not in filled:
                side.brokers.create(topic, partitions=1, replicas=1)
                side.on_topic(topic, "produce", api="send", acks=1, count=count)
                filled.add(topic)
            return side.on_topic(topic, "consume", api=api, count=count)

        return run

    yield Group(
        name="consume(n) 100 B",
        theirs=reads(theirs, ""),
        ours=[
            Compared(name="poll", run=reads(ours, "poll"), metric=CLIENT, at_most=0.3, also=RATE),
            Compared(name="poll_batch", run=reads(ours, "poll_batch"), metric=CLIENT, also=RATE),
            Compared(name="async for", run=reads(ours, "iterate"), metric=CLIENT, at_most=0.4, also=RATE),
            Compared(name="poll_arrow", run=reads(ours, "poll_arrow"), metric=RATE, also=CLIENT),
        ],
    )


def _replicating(ours: Side, theirs: Side, ours_by_their_client: Side, scale: Scale) -> Iterator[Group]:
    """acks=all, on all brokers, with the clients' defaults."""

    def sends(side: Side, api: str, size: int) -> Callable[[], Metrics]:
        return lambda: side.on_new_topic(
            "produce", partitions=PARTITIONS, replicas=0, api=api, acks="all", count=scale.records(size), size=size
        )

    for size, label, aim in ((SMALL, "100 B", 3.0), (LARGE, "1 KB", 2.0)):
        yield Group(
            name=f"produce acks=all rf=3 {label}",
            theirs=sends(theirs, "send", size),
            ours=[
                Compared(name="send", run=sends(ours, "send", size), metric=RATE, at_least=aim),
                Compared(name="send_many", run=sends(ours, "send_many", size), metric=RATE, at_least=aim),
                Compared(
                    name="confluent-kafka on Barnabas", run=sends(ours_by_their_client, "send", size), metric=RATE
                ),
            ],
        )


def _one_by_one(ours: Side, theirs: Side, ours_by_their_client: Side, scale: Scale) -> Iterator[Group]:
    def trips(side: Side, role: str) -> Callable[[], Metrics]:
        return lambda: side.on_new_topic(role, partitions=1, replicas=0, acks="all", count=scale.round_trips)

    def asks(side: Side, connections: int) -> Callable[[], Metrics]:
        return lambda: side.on_new_topic("requests", partitions=1, replicas=1, depth=connections)

    yield Group(
        name="one at a time acks=all rf=3",
        theirs=trips(theirs, "one-at-a-time"),
        ours=[
            Compared(name="send", run=trips(ours, "one-at-a-time"), metric=P50, at_most=0.5, also=P99),
            Compared(
                name="confluent-kafka on Barnabas",
                run=trips(ours_by_their_client, "one-at-a-time"),
                metric=P50,
                also=P99,
            ),
        ],
    )
    yield Group(
        name="end to end acks=all rf=3",
        theirs=trips(theirs, "end-to-end"),
        ours=[Compared(name="send, poll", run=trips(ours, "end-to-end"), metric=P50, at_most=0.6, also=P99)],
    )
    for connections in (50, 500):
        yield Group(
            name=f"one-record requests acks=1, {connections} connections",
            theirs=asks(theirs, connections),
            ours=[
                Compared(
                    name="the same client", run=asks(ours_by_their_client, connections), metric=REQUESTS, at_least=1
                )
            ],
        )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark beside-kafka", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a fifth of the records")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="repetitions of each group; default: 3")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only groups or lines whose name contains one of these, by commas"
    )
    parser.add_argument("--brokers", type=int, default=3, help="of each side; default: 3")
    parser.add_argument("--version", default=KAFKA_VERSION, help=f"of Kafka; default: {KAFKA_VERSION}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples to this file")
    options = parser.parse_args(arguments)
    wanted = [text.strip() for text in options.only.split(",") if text.strip()]
    scale = Scale(factor=0.2 if options.quick else 1.0)
    everything: dict[str, Found] = {}
    try:
        with Cluster(options.brokers) as barnabas, KafkaCluster(options.brokers, version=options.version) as kafka:
            ours, theirs, mixed = Side(barnabas, OURS), Side(kafka, THEIRS), Side(barnabas, THEIRS)
            print("figures: Kafka, ours = ratio, median of the repetitions (from-to)", flush=True)
            for side in (ours, theirs):
                _warm_up(side)
            for group in groups(ours, theirs, mixed, scale):
                chosen = [
                    line
                    for line in group.ours
                    if not wanted or any(text in f"{group.name}: {line.name}" for text in wanted)
                ]
                if chosen:
                    for run in (group.theirs, chosen[0].run):  # first steps of this group's code and files
                        take_sample(Case(name=group.name, run=run), Row(), retries=0)
                    everything[group.name] = found = measure(group, chosen, options.repeat)
                    show(group, chosen, found)
    except Skipped as reason:
        print(f"skipped: {reason}")
        return 1
    if options.json is not None:
        options.json.write_text(json.dumps(described(everything), indent=1) + "\n")
    return 0


def _warm_up(side: Side) -> None:
    """A JVM compiles what it has run for a while; ours gets the same turn."""
    for role, acks, count in (
        ("produce", "1", WARM_UP_RECORDS),
        ("produce", "all", WARM_UP_RECORDS),
        ("one-at-a-time", "all", WARM_UP_RECORDS // 500),
    ):
        side.on_new_topic(role, partitions=PARTITIONS, replicas=0, api="send", acks=acks, count=count)


def measure(group: Group, chosen: Sequence[Compared], repeat: int) -> Found:
    found = Found(ours={line.name: Row() for line in chosen})
    cases = [
        (Case(name=group.name, run=group.theirs), found.theirs),
        *((Case(name=line.name, run=line.run), found.ours[line.name]) for line in chosen),
    ]
    for number in range(repeat):
        for case, row in cases if number % 2 == 0 else reversed(cases):
            take_sample(case, row, retries=0)
    return found


def ratios(ours: Row, theirs: Row, metric: str) -> list[float]:
    pairs = zip(ours.samples, theirs.samples, strict=False)
    return [mine[metric] / other[metric] for mine, other in pairs if other.get(metric) and metric in mine]


def show(group: Group, chosen: Sequence[Compared], found: Found) -> None:
    print(group.name, flush=True)
    for line in chosen:
        row = found.ours[line.name]
        if found.theirs.problem or row.problem:
            print(f"  {line.name:<30} {found.theirs.problem or row.problem}", flush=True)
            continue
        parts = [_main_figures(line, found.theirs, row)]
        for metric, label in ((line.also, ""), (CLIENT, "client µs"), (BROKERS, "brokers µs")):
            each = ratios(row, found.theirs, metric)
            if each and metric != line.metric:
                pair = " ".join(_figure(metric, side.median(metric) or 0) for side in (found.theirs, row))
                parts.append(f"{label or metric} {pair} = {statistics.median(each):.2f}")
        print(f"  {line.name:<30} {' | '.join(parts)}", flush=True)


def _main_figures(line: Compared, theirs: Row, ours: Row) -> str:
    each = ratios(ours, theirs, line.metric)
    figures = " ".join(f"{_figure(line.metric, side.median(line.metric) or 0):>6}" for side in (theirs, ours))
    value = statistics.median(each)
    spread = f" ({min(each):.2f}-{max(each):.2f})" if len(each) > 1 else ""
    return f"{LABELS.get(line.metric, line.metric):<9} {figures} = {value:.2f}{spread}{_aim(line, value)}"


def _figure(metric: str, value: float) -> str:
    return f"{value / 1000:.2f}" if metric in (CLIENT, BROKERS) else short(value)


def _aim(line: Compared, value: float) -> str:
    if line.at_least is not None:
        return f" aim >= {line.at_least:g} {'met' if value >= line.at_least else 'MISSED'}"
    if line.at_most is not None:
        return f" aim <= {line.at_most:g} {'met' if value <= line.at_most else 'MISSED'}"
    return ""


def described(everything: dict[str, Found]) -> dict[str, object]:
    """Everything, for machines."""
    return {
        name: {
            "theirs": found.theirs.samples,
            "ours": {line: {"samples": row.samples, "problem": row.problem} for line, row in found.ours.items()},
        }
        for name, found in everything.items()
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
