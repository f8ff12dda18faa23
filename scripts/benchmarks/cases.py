"""What is measured, phase by phase. A phase owns the servers that its cases share."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from clusters import Cluster
from measure import HERE, Case, Metrics, child
from peers import against_mock, against_nats, against_redis
from sketches import Sketches

MACHINE = HERE / "machine.py"
CLEANER = HERE / "cleaner.py"
SMALL, LARGE = 100, 1_000  # bytes of a record
BATCH = 65_536
PARTITIONS = 4  # of topics on one broker, as in the sketch
READ_TOPIC = "to-read"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much work a sample is."""

    factor: float

    def records(self, size: int) -> int:
        return int((2_000_000 if size == SMALL else 400_000) * self.factor)

    @property
    def round_trips(self) -> int:
        return int(5_000 * self.factor)

    @property
    def of_peers(self) -> int:
        return int(100_000 * self.factor)


@contextlib.contextmanager
def machine(scale: Scale, sketches: Sketches) -> Iterator[list[Case]]:
    folder = Path(tempfile.mkdtemp(prefix="barnabas-machine-"))
    roles = {
        "machine: loopback TCP stream": "tcp-stream",
        "machine: loopback TCP echo": "tcp-echo",
        "machine: sequential write": "write",
        "machine: 64 KB + fdatasync": "fdatasync",
        "machine: await of an empty coroutine": "await",
    }
    try:
        yield [Case(name=name, run=lambda role=role: child(MACHINE, role, folder)) for name, role in roles.items()]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def compaction(scale: Scale, sketches: Sketches) -> Iterator[list[Case]]:
    """The cleaner beside a copy of the same files; and what a broker's other clients notice of it."""
    folder = Path(tempfile.mkdtemp(prefix="barnabas-cleaner-"))
    try:
        with Cluster(1, log_cleaner_backoff_ms="100") as cluster:
            beside = {
                "cleaner: one at a time, beside load": {},
                "cleaner: one at a time, beside load with keys checked": {
                    "cleanup.policy": "compact",
                    "min.cleanable.dirty.ratio": "1.0",  # never more than that
                },
                "cleaner: one at a time, beside load and compaction": {
                    "cleanup.policy": "compact",
                    "min.cleanable.dirty.ratio": "0.01",
                },
            }
            yield [
                *(
                    Case(name=f"cleaner: {role}", run=lambda role=role: in_new_folder(CLEANER, role, folder))
                    for role in ("copy", "clean")
                ),
                *(
                    Case(
                        name=name,
                        run=lambda configs=configs: cluster.beside_load(
                            {"segment.bytes": "1000000", **configs}, scale.round_trips
                        ),
                        pids=cluster.pids,
                    )
                    for name, configs in beside.items()
                ),
            ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def in_new_folder(script: Path, role: str, parent: Path) -> Metrics:
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        return child(script, role, folder)


@contextlib.contextmanager
def one_broker(scale: Scale, sketches: Sketches) -> Iterator[list[Case]]:
    with Cluster(1) as cluster:
        _fill(cluster, scale)
        small = scale.records(SMALL)
        yield [
            *_produce_cases(cluster, scale, ("send", "send_key", "send_many"), PARTITIONS),
            *_cases_without_idempotence(cluster, scale, ("send", "send_many"), PARTITIONS),
            Case(name="sketch, send 100 B", run=lambda: sketches.produce(small, SMALL, "real")),
            Case(name="sketch, send key 100 B", run=lambda: sketches.produce(small, SMALL, "real-key")),
            Case(name="sketch, send_many 100 B", run=lambda: sketches.produce(small, SMALL, "many")),
            Case(name="sketch, send 1 KB", run=lambda: sketches.produce(scale.records(LARGE), LARGE, "real")),
            Case(
                name="confluent-kafka on its mock, 100 B", run=lambda: against_mock("confluent-produce", small, SMALL)
            ),
            Case(
                name="confluent-kafka on its mock, 1 KB",
                run=lambda: against_mock("confluent-produce", scale.records(LARGE), LARGE),
            ),
            Case(
                name="aiokafka on the mock, 100 B", run=lambda: against_mock("aiokafka-produce", scale.of_peers, SMALL)
            ),
            *_consume_cases(cluster, small),
            Case(name="sketch, getmany", run=lambda: sketches.consume(small, "many")),
            Case(name="sketch, async for", run=lambda: sketches.consume(small, "anext")),
            *_latency_cases(cluster, scale, ("1",)),
            Case(
                name="sketch, end to end",
                run=lambda: sketches.end_to_end(scale.round_trips),
            ),
            *_raw_cases(cluster, ("1",)),
        ]


@contextlib.contextmanager
def three_brokers(scale: Scale, sketches: Sketches) -> Iterator[list[Case]]:
    with Cluster(3) as cluster:
        seconds = 1.5 * max(scale.factor, 0.4)
        yield [
            Case(name="3 brokers, idle", run=cluster.idle, pids=cluster.pids),
            *_produce_cases(cluster, scale, ("send", "send_many"), 3),
            *_cases_without_idempotence(cluster, scale, ("send", "send_many"), 3),
            Case(
                name="3 brokers, send acks=all 100 B, 1 partition",
                run=lambda: cluster.on_new_topic(
                    "produce", partitions=1, api="send", acks="all", count=scale.records(SMALL)
                ),
                pids=cluster.pids,
            ),
            *(
                Case(
                    name=f"sketch, 3 brokers acks=all, {partitions} partition{'s' * (partitions > 1)}",
                    run=lambda partitions=partitions: sketches.replicated(
                        acks="all", size=BATCH, depth=5, seconds=seconds, partitions=partitions
                    ),
                )
                for partitions in (1, 3)
            ),
            *_latency_cases(cluster, scale, ("1", "all")),
            Case(
                name="sketch, 3 brokers acks=all, one at a time",
                run=lambda: sketches.replicated(acks="all", size=100, depth=1, seconds=seconds),
            ),
            *_raw_cases(cluster, ("1", "all")),
            *_flush_cases(cluster),
        ]


@contextlib.contextmanager
def peers(scale: Scale, sketches: Sketches) -> Iterator[list[Case]]:
    count = scale.of_peers
    yield [
        Case(name=f"{label}, {action.replace('-', ' ')}", run=_peer(run, f"{label_of_role}-{action}", count))
        for label, label_of_role, run in (
            ("Redis Streams", "redis", against_redis),
            ("NATS JetStream", "nats", against_nats),
        )
        for action in ("produce", "consume", "one-at-a-time")
    ]


def _peer(run: Callable[[str, int, int], Metrics], role: str, count: int) -> Callable[[], Metrics]:
    return lambda: run(role, count // 20 if role.endswith("time") else count, SMALL)


def _fill(cluster: Cluster, scale: Scale) -> None:
    cluster.create(READ_TOPIC, partitions=1)
    cluster.on_topic(READ_TOPIC, "produce", api="send_many", acks=1, count=scale.records(SMALL))


def _produce_cases(cluster: Cluster, scale: Scale, apis: tuple[str, ...], partitions: int) -> list[Case]:
    return [
        Case(
            name=f"{_of(cluster)}, {api.replace('_key', ' key')} acks={acks} {_size(size)}",
            run=lambda api=api, acks=acks, size=size: cluster.on_new_topic(
                "produce", partitions=partitions, api=api, acks=acks, count=scale.records(size), size=size
            ),
            pids=cluster.pids,
        )
        for api in apis
        for acks in ("0", "1", "all")
        for size in (SMALL, LARGE)
        if not (api == "send_key" and (acks, size) != ("1", SMALL))
    ]


def _consume_cases(cluster: Cluster, count: int) -> list[Case]:
    return [
        Case(
            name=f"{_of(cluster)}, {label}",
            run=lambda role=role, api=api: cluster.on_topic(READ_TOPIC, role, api=api, count=count),
            pids=cluster.pids,
        )
        for role, api, label in (
            ("consume", "poll", "poll"),
            ("consume", "poll_batch", "poll_batch"),
            ("consume", "iterate", "async for"),
            ("consume", "poll_arrow", "poll_arrow"),
            ("read-table", "table", "read_table"),
            ("read-table", "stream", "read_table, stream"),
            ("read-table", "values", "read_table, stream of values"),
        )
    ]


def _cases_without_idempotence(cluster: Cluster, scale: Scale, apis: tuple[str, ...], partitions: int) -> list[Case]:
    """What numbering the batches costs is the ratio to the cases of the same names."""
    return [
        Case(
            name=f"{_of(cluster)}, {api} acks=all {_size(SMALL)}, not idempotent",
            run=lambda api=api: cluster.on_new_topic(
                "produce", partitions=partitions, api=api, acks="all", count=scale.records(SMALL), idempotence="off"
            ),
            pids=cluster.pids,
        )
        for api in apis
    ]


def _latency_cases(cluster: Cluster, scale: Scale, all_acks: tuple[str, ...]) -> list[Case]:
    return [
        Case(
            name=f"{_of(cluster)}, {label} acks={acks}",
            run=lambda role=role, acks=acks: cluster.on_new_topic(
                role, partitions=1, acks=acks, count=scale.round_trips
            ),
            pids=cluster.pids,
        )
        for acks in all_acks
        for role, label in (("one-at-a-time", "one at a time"), ("end-to-end", "end to end"))
    ]


def _raw_cases(cluster: Cluster, all_acks: tuple[str, ...]) -> list[Case]:
    """A client without the SDK: what the brokers can do."""
    cases = [
        Case(
            name=f"{_of(cluster)}, raw {label} acks={acks}",
            run=lambda acks=acks, size=size, depth=depth: cluster.on_new_topic(
                "raw-produce", partitions=1, acks=acks, size=size, depth=depth
            ),
            pids=cluster.pids,
        )
        for acks in all_acks
        for label, size, depth in (("64 KB", BATCH, 5), ("one at a time", SMALL, 1))
    ]
    if cluster.size == 1:
        cases.append(
            Case(
                name=f"{_of(cluster)}, raw fetch 1 MB",
                run=lambda: cluster.on_topic(READ_TOPIC, "raw-fetch", size=1 << 20, depth=2),
                pids=cluster.pids,
            )
        )
    return cases


def _flush_cases(cluster: Cluster) -> list[Case]:
    """What it costs that every record is on every in-sync disk before it is acknowledged."""
    return [
        Case(
            name=f"{_of(cluster)}, {label}, {depth} in flight",
            run=lambda configs=configs, depth=depth: cluster.on_new_topic(
                "raw-produce", partitions=1, acks="all", size=SMALL, depth=depth, configs=configs
            ),
            pids=cluster.pids,
        )
        for depth in (1, 64)
        for label, configs in (("flush by the system", {}), ("flush.messages=1", {"flush.messages": "1"}))
    ]


def _of(cluster: Cluster) -> str:
    return "1 broker" if cluster.size == 1 else f"{cluster.size} brokers"


def _size(size: int) -> str:
    return "100 B" if size == SMALL else "1 KB"


PHASES = (machine, compaction, one_broker, three_brokers, peers)
