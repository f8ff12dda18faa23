"""The table and the ratios."""

from collections.abc import Iterable
from dataclasses import dataclass

from measure import Row

SHOWN = ("msg/s", "MB/s", "req/s", "client_ns", "brokers_ns", "p50_us", "p99_us", "cpu_percent", "rss_MB")


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A goal: a lower or an upper bound for `ours` divided by `theirs` (or for `ours` alone, in its own unit)."""

    ours: str
    theirs: str = ""
    metric: str = "msg/s"
    at_least: float | None = None
    at_most: float | None = None

    def value(self, rows: dict[str, Row]) -> float | None:
        ours = rows[self.ours].median(self.metric) if self.ours in rows else None
        if not self.theirs or ours is None:
            return ours
        theirs = rows[self.theirs].median(self.metric) if self.theirs in rows else None
        return None if not theirs else ours / theirs

    def is_met(self, value: float) -> bool | None:
        if self.at_least is not None:
            return value >= self.at_least
        return None if self.at_most is None else value <= self.at_most


RATIOS = (
    Ratio(ours="cleaner: clean", theirs="cleaner: copy", metric="MB/s"),
    Ratio(
        ours="cleaner: one at a time, beside load with keys checked",
        theirs="cleaner: one at a time, beside load",
        metric="p50_us",
    ),
    Ratio(
        ours="cleaner: one at a time, beside load and compaction",
        theirs="cleaner: one at a time, beside load with keys checked",
        metric="p50_us",
    ),
    Ratio(ours="1 broker, send acks=1 100 B", theirs="sketch, send 100 B", at_least=0.4),
    Ratio(ours="1 broker, send acks=1 100 B", theirs="confluent-kafka on its mock, 100 B", at_least=1.0),
    Ratio(ours="1 broker, send acks=1 1 KB", theirs="confluent-kafka on its mock, 1 KB"),
    Ratio(ours="1 broker, send key acks=1 100 B", theirs="sketch, send key 100 B"),
    Ratio(ours="1 broker, send_many acks=1 100 B", theirs="sketch, send_many 100 B"),
    Ratio(ours="1 broker, send acks=1 100 B", theirs="aiokafka on the mock, 100 B"),
    Ratio(
        ours="3 brokers, send acks=all 100 B, 1 partition",
        theirs="sketch, 3 brokers acks=all, 1 partition",
        at_least=0.3,
    ),
    Ratio(ours="3 brokers, send acks=all 100 B", theirs="sketch, 3 brokers acks=all, 1 partition", at_least=0.3),
    Ratio(ours="3 brokers, send_many acks=all 100 B", theirs="sketch, 3 brokers acks=all, 3 partitions"),
    Ratio(ours="1 broker, poll", theirs="sketch, getmany", at_least=0.4),
    Ratio(ours="1 broker, poll_batch", theirs="sketch, getmany", at_least=0.4),
    Ratio(ours="1 broker, async for", theirs="sketch, async for"),
    Ratio(ours="3 brokers, one at a time acks=all", metric="p50_us", at_most=500),
    Ratio(
        ours="3 brokers, one at a time acks=all", theirs="sketch, 3 brokers acks=all, one at a time", metric="p50_us"
    ),
    Ratio(ours="1 broker, end to end acks=1", theirs="sketch, end to end", metric="p50_us"),
    Ratio(ours="1 broker, raw 64 KB acks=1", theirs="machine: loopback TCP stream", metric="MB/s"),
    Ratio(ours="1 broker, raw fetch 1 MB", theirs="machine: loopback TCP stream", metric="MB/s"),
    *(
        Ratio(
            ours=f"3 brokers, flush.messages=1, {depth} in flight",
            theirs=f"3 brokers, flush by the system, {depth} in flight",
            metric="req/s",
        )
        for depth in (1, 64)
    ),
    Ratio(ours="3 brokers, raw 64 KB acks=all", theirs="1 broker, raw 64 KB acks=1", metric="MB/s"),
    Ratio(ours="1 broker, send acks=1 100 B", theirs="Redis Streams, produce"),
    Ratio(ours="1 broker, poll", theirs="Redis Streams, consume"),
    Ratio(ours="1 broker, one at a time acks=1", theirs="Redis Streams, one at a time", metric="p50_us"),
    Ratio(ours="1 broker, send acks=1 100 B", theirs="NATS JetStream, produce"),
    Ratio(ours="1 broker, poll", theirs="NATS JetStream, consume"),
    Ratio(ours="1 broker, one at a time acks=1", theirs="NATS JetStream, one at a time", metric="p50_us"),
    Ratio(ours="3 brokers, idle", metric="cpu_percent", at_most=2),
    Ratio(ours="3 brokers, idle", metric="rss_MB", at_most=60),
)


def print_row(name: str, row: Row) -> None:
    if row.problem:
        print(f"{name:<46} {row.problem}", flush=True)
        return
    figures = [f"{metric} {short(row.median(metric) or 0)}" for metric in _ordered(row.metrics)]
    mark = f" ! others {max(row.others_percent):.0f} %" if row.void else ""
    print(f"{name:<46} {'  '.join(f'{figure:<16}' for figure in figures).rstrip()}{mark}", flush=True)


def _ordered(metrics: Iterable[str]) -> list[str]:
    return sorted(metrics, key=lambda metric: SHOWN.index(metric) if metric in SHOWN else len(SHOWN))


def print_ratios(rows: dict[str, Row]) -> None:
    found = [(ratio, value) for ratio in RATIOS if (value := ratio.value(rows)) is not None]
    if found:
        print("\nratios and goals")
    for ratio, value in found:
        against = f" / {ratio.theirs}" if ratio.theirs else ""
        unit = " of p50" if ratio.theirs and ratio.metric == "p50_us" else "" if ratio.theirs else f" {ratio.metric}"
        goal = ""
        if ratio.at_least is not None or ratio.at_most is not None:
            bound = f"at least {ratio.at_least:g}" if ratio.at_least is not None else f"at most {ratio.at_most:g}"
            goal = f"   goal: {bound}  {'met' if ratio.is_met(value) else 'MISSED'}"
        print(f"{ratio.ours + against:<92} {value:8.2f}{unit}{goal}")


def describe(rows: dict[str, Row], ratios: Iterable[Ratio]) -> dict[str, object]:
    """Everything, for machines."""
    return {
        "cases": {
            name: {
                "medians": {metric: row.median(metric) for metric in row.metrics},
                "samples": row.samples,
                "others_percent": row.others_percent,
                "void": row.void,
                "problem": row.problem,
            }
            for name, row in rows.items()
        },
        "ratios": [
            {"ours": ratio.ours, "theirs": ratio.theirs, "metric": ratio.metric, "value": value}
            for ratio in ratios
            if (value := ratio.value(rows)) is not None
        ],
    }


def short(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    if value >= 1e4:
        return f"{value / 1e3:.0f} k"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
