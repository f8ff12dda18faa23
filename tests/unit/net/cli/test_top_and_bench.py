"""`top` and `bench`, with a cluster in memory."""

import json
from typing import Any

import pytest
from unit.net.cli.fake_cluster import FakeCluster

from barnabas.log.vocabulary.errors import NetworkError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.cli.streams import top
from barnabas.net.cli.streams.bench import percentiles_ms
from barnabas.net.cli.streams.top import Picture, rates

P0, P1 = TopicPartition("a", 0), TopicPartition("b", 0)


def picture(at_s: float, **ends: int) -> Picture:
    places = {TopicPartition(name, 0): end for name, end in ends.items()}
    return Picture(at_s, [{"topic": "a"}, {"topic": "b"}], places, (), 0)


def test_the_busiest_topic_is_first() -> None:
    found = rates(picture(1, a=5, b=0), picture(3, a=6, b=100))
    assert [(row["topic"], row["records_per_s"], row["end"]) for row in found] == [("b", 50.0, 100), ("a", 0.5, 6)]


def test_a_partition_that_did_not_answer_is_not_a_burst() -> None:
    assert [row["records_per_s"] for row in rates(picture(1), picture(2, a=1_000))] == [0.0, None]


def test_percentiles_by_nearest_rank() -> None:
    assert percentiles_ms([number / 1000 for number in range(1_000, 0, -1)]) == {
        "p50_ms": 501.0,
        "p95_ms": 951.0,
        "p99_ms": 991.0,
        "p99.9_ms": 1_000.0,
        "max_ms": 1_000.0,
        "samples": 1_000,
    }
    assert percentiles_ms([])["max_ms"] is None


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    async def now(_: float) -> None: ...

    monkeypatch.setattr("asyncio.sleep", now)


def test_top_prints_plain_lines_where_no_terminal_is(run: Any, cluster: FakeCluster, quick: None) -> None:
    cluster.committed["g"] = {TopicPartition("t", 0): 1}
    code, out, _ = run("top", "-n", "2")
    assert code == 0 and out.count("topic=t records_per_s=0.0 end=4\n") == 2
    assert out.count("group=g lag=2 lag_seconds=None\n") == 2 and "\x1b" not in out
    (row,) = json.loads(run("top", "-n", "1", "-f", "json")[1])["topics"]
    assert row["under_replicated"] == 0


def test_top_says_what_it_leaves_out(
    run: Any, cluster: FakeCluster, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "MAX_PARTITIONS", 1)
    _, out, err = run("top", "-n", "1")
    assert "end=3" in out and err == "1 partitions are left out: rates are shown for 1\n"


def test_bench_produce_counts_every_record(run: Any, cluster: FakeCluster) -> None:
    code, out, _ = run(
        "bench", "produce", "t", "-n", "1000", "--size", "7", "--in-flight", "10", "-z", "lz4", "-f", "json"
    )
    told = json.loads(out)
    assert code == 0 and told["records"] == told["samples"] == 1_000
    assert told["max_ms"] >= told["p99_ms"] >= told["p50_ms"] > 0
    sent = cluster.logs[TopicPartition("t", 0)][3:]
    assert len(sent) == 1_000 and {len(record.value or b"") for record in sent} == {7}
    assert cluster.compression == "lz4"


def test_bench_consume_reads_what_is_there(run: Any) -> None:
    assert json.loads(run("bench", "consume", "t", "-f", "json")[1])["records"] == 4
    assert json.loads(run("bench", "consume", "t", "-n", "2", "-f", "json")[1])["records"] == 2


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ("bench produce u", 1, "topic u does not exist"),
        ("bench produce t --size 1000001", 2, "1000001: give an integer of at most 1000000"),
        ("bench produce t -n 0", 2, "0: give an integer of at least 1"),
        ("bench consume t -n 100000001", 2, "give an integer of at most 100000000"),
        ("top -i 0", 2, "0: give an integer of at least 1"),
    ],
)
def test_faults(run: Any, arguments: str, code: int, told: str) -> None:
    found, out, err = run(*arguments.split())
    assert (found, out) == (code, "") and told in err


def test_a_cluster_that_stands_still_ends_the_bench_in_time(run: Any, cluster: FakeCluster) -> None:
    cluster.trouble = "frozen"
    code, _, err = run("bench", "produce", "t", "-n", "10", "--timeout", "1")
    assert code == 4 and "waited 1 s for acknowledgements" in err
    cluster.failure = NetworkError("away")
    assert run("top", "-n", "1")[0] == 4
