"""`scripts/benchmark transactions`: transactions of 100 records at acks=all on three replicas, in one run, as ratios.

Each kind of client is compared with itself: the same records without transactions, where the wait for all acknowledgements takes
the place of the commit. Then the transactions of Barnabas with those of Apache Kafka, as `beside-kafka` does.
"""

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from beside_kafka import BROKERS, OURS, P50, P99, RATE, THEIRS, Compared, Found, Group, Side, described, measure, show
from clusters import Cluster
from kafka_brokers import KAFKA_VERSION, KafkaCluster
from measure import Metrics, Skipped

PARTITIONS = 3
TRANSACTIONS = 1_000  # of one sample
LANES = (1, 10)  # producers at the same time
COMMIT_AIM_US = {P50: 5_000, P99: 20_000}
PLAIN_AIM = 0.7


def groups(sides: dict[str, Side], count: int) -> Iterator[Group]:
    """`sides`: by the name of the client."""

    def runs(side: Side, api: str, producers: int) -> Callable[[], Metrics]:
        return lambda: side.on_new_topic(
            "transactions", partitions=PARTITIONS, replicas=0, acks="all", api=api, count=count, depth=producers
        )

    for producers in LANES:
        label = f"{producers} producer{'s' * (producers > 1)}"
        for name, side in sides.items():
            yield Group(
                name=f"{name}, {label}: without transactions, with",
                theirs=runs(side, "plain", producers),
                ours=[
                    Compared(
                        name="commit every 100 records",
                        run=runs(side, "transactional", producers),
                        metric=RATE,
                        at_least=PLAIN_AIM,
                        also=P50,
                    )
                ],
            )
        *ours, (_, kafka) = sides.items()
        if ON_KAFKA in sides:
            yield Group(
                name=f"transactions, {label}: Kafka, Barnabas",
                theirs=runs(kafka, "transactional", producers),
                ours=[
                    Compared(name=name, run=runs(side, "transactional", producers), metric=metric, also=also)
                    for name, side in ours
                    for metric, also in ((RATE, BROKERS), (P50, P99))
                ],
            )


ON_KAFKA = "confluent-kafka on Kafka"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark transactions", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a fifth of the transactions")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="repetitions of each group; default: 3")
    parser.add_argument("--only", default="", metavar="TEXT", help="only groups whose name contains this")
    parser.add_argument("--without-kafka", action="store_true", help="only Barnabas' brokers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples to this file")
    options = parser.parse_args(arguments)
    everything: dict[str, Found] = {}
    try:
        with contextlib.ExitStack() as running:
            barnabas = running.enter_context(Cluster(3))
            sides = {"SDK": Side(barnabas, OURS), "confluent-kafka": Side(barnabas, THEIRS)}
            if not options.without_kafka:
                sides[ON_KAFKA] = Side(running.enter_context(KafkaCluster(3, version=KAFKA_VERSION)), THEIRS)
            count = TRANSACTIONS // (5 if options.quick else 1)
            for side in sides.values():  # a JVM compiles what it has run for a while; the others get the same turn
                side.on_new_topic(
                    "transactions", partitions=PARTITIONS, replicas=0, acks="all", count=TRANSACTIONS, depth=LANES[-1]
                )
            for group in groups(sides, count):
                if options.only in group.name:
                    everything[group.name] = found = measure(group, group.ours, options.repeat)
                    show(group, group.ours, found)
    except Skipped as reason:
        print(f"skipped: {reason}")
        return 1
    _show_commits(everything)
    if options.json is not None:
        options.json.write_text(json.dumps(described(everything), indent=1) + "\n")
    return 0


def _show_commits(everything: dict[str, Found]) -> None:
    for name, found in everything.items():
        for row in found.ours.values():
            figures = [
                f"{metric} {value / 1000:.1f} ms aim <= {aim_us / 1000:g} {'met' if value <= aim_us else 'MISSED'}"
                for metric, aim_us in COMMIT_AIM_US.items()
                if (value := row.median(metric)) is not None
            ]
            if name.endswith("with"):
                print(f"{name}: commit {', '.join(figures)}")
