"""What `barnabas doctor` finds in the figures of brokers: each fault alone, on both sides of its limit."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from unit.net.client.test_doctor import BROKERS, HEALTHY, partition, topic

from barnabas.net.base.figures.producer_samples import EVERY, MAX_CLIENTS, WINDOW_S, ProducerSamples
from barnabas.net.client.admin.doctor_figures import BrokerLook, of_figures, slow_followers
from barnabas.net.client.admin.finding import Weight
from barnabas.net.wire.protocol.broker_figures import (
    CertificateEnd,
    ClientSoftware,
    DescribeBrokerResponse,
    PartitionRate,
    ProducerHabits,
)

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
MIB = 1 << 20
USUAL = DescribeBrokerResponse(
    node_id=0, version="0.1", python="3.11", wall_ms=NOW_MS, started_ms=1, cpu_s=1.0,
    memory_bytes=90, memory_limit_bytes=100, descriptors=80, descriptor_limit=100, loop_delay_ms=20,
    connections=80, max_connections=100, connections_per_s=50.0, in_per_s=0, out_per_s=0,
)  # fmt: skip
HABITS = ProducerHabits(
    client_id="shop", client_host="h", requests_per_s=100.0, batches=10, record_count=30, size_bytes=90_000,
    few_acks=0, not_idempotent=0,
)  # fmt: skip
TOPICS = (
    topic("t", *[partition() for _ in range(6)]),
    topic("one", partition()),
    topic("two", partition(), partition()),
    topic("three", *[partition() for _ in range(3)]),
)


def rates(*sizes: int, name: str = "t") -> tuple[PartitionRate, ...]:
    return tuple(PartitionRate(topic=name, partition=n, in_per_s=size, out_per_s=0) for n, size in enumerate(sizes))


def found(*figures: DescribeBrokerResponse) -> list[tuple[Weight, str]]:
    looks = [BrokerLook(figures=item, asked_ms=NOW_MS - 5, received_ms=NOW_MS + 5) for item in figures]
    return [(item.weight, item.what) for item in of_figures(looks, TOPICS, NOW_MS)]


@pytest.mark.parametrize(
    "usual",
    [
        {},
        {"descriptors": -1, "memory_bytes": -1},
        {"producers": (HABITS,)},
        {"producers": (replace(HABITS, record_count=10),)},  # large ones
        {"producers": (replace(HABITS, record_count=10, size_bytes=900, requests_per_s=99.0),)},  # few requests
        {"busiest": rates(MIB - 1, 0, 0)},
        {"busiest": rates(MIB, MIB, MIB)},
        {"busiest": rates(9 * MIB, name="one")},  # the only one
        {"busiest": rates(7 * MIB, 3 * MIB, name="two")},
        {"busiest": rates(6 * MIB, 3 * MIB, MIB, name="three")},
        {"certificates": (CertificateEnd(path="/c", subject="CN=x", ends_ms=NOW_MS + 30 * DAY_MS),)},
        {"software": (ClientSoftware(name="librdkafka", version="1.5.3", greetings=1),)},
        {"software": (ClientSoftware(name="apache-kafka-java", version="0.1", greetings=1),)},
        {"software": (ClientSoftware(name="confluent-kafka-python", version="2.0-librdkafka-2.0.2", greetings=1),)},
        {"software": (ClientSoftware(name="librdkafka", version="unknown", greetings=1),)},
    ],
)
def test_usual_figures_are_no_findings(usual: dict[str, Any]) -> None:
    assert found(replace(USUAL, **usual)) == []


@pytest.mark.parametrize(
    ("sick", "weight", "words"),
    [
        ({"memory_bytes": 91 * MIB, "memory_limit_bytes": 100 * MIB}, Weight.PROBLEM, "uses 91 MiB of the 100 MiB"),
        ({"descriptors": 81}, Weight.PROBLEM, "81 file descriptors open, and its limit is 100"),
        ({"connections": 81}, Weight.PROBLEM, "81 connections open, and its limit is 100"),
        ({"connections_per_s": 51.0}, Weight.PROBLEM, "51 new connections per second"),
        ({"busiest": rates(3 * MIB, MIB, 0)}, Weight.RISK, "t-0 is hot: 3.0 of the 4.0 MiB/s that are written"),
        ({"busiest": rates(8 * MIB, 2 * MIB, name="two")}, Weight.RISK, "two-0 is hot: 8.0 of the 10.0 MiB/s"),
        ({"busiest": rates(MIB, 8 * MIB, MIB, name="three")}, Weight.RISK, "three-1 is hot: 8.0 of the 10.0 MiB/s"),
        ({"producers": (replace(HABITS, record_count=10, size_bytes=900),)}, Weight.RISK, "100 requests per second with 1.0"),
        ({"producers": (replace(HABITS, few_acks=1),)}, Weight.RISK, "acks=0 or acks=1: shop on h"),
        ({"producers": (replace(HABITS, not_idempotent=1),)}, Weight.RISK, "without idempotence: shop on h"),
        (
            {"certificates": (CertificateEnd(path="/c", subject="CN=x", ends_ms=NOW_MS + 30 * DAY_MS - 1),)},
            Weight.RISK,
            "expires in 29 days: CN=x in /c",
        ),
        (
            {"certificates": (CertificateEnd(path="/c", subject="CN=x", ends_ms=NOW_MS + 7 * DAY_MS - 1),)},
            Weight.PROBLEM,
            "expires in 6 days",
        ),
        ({"certificates": (CertificateEnd(path="/c", subject="x", ends_ms=NOW_MS - 1),)}, Weight.CRITICAL, "has expired"),
        (
            {"software": (ClientSoftware(name="confluent-kafka-python", version="1.6-librdkafka-1.5.2", greetings=1),)},
            Weight.RISK,
            "known fault: consumers show records of aborted transactions",
        ),
    ],
)  # fmt: skip
def test_each_is_found_alone(sick: dict[str, Any], weight: Weight, words: str) -> None:
    ((told_weight, what),) = found(replace(USUAL, **sick))
    assert told_weight == weight and words in what


@pytest.mark.parametrize(("ahead_ms", "is_told"), [(1_010, False), (1_011, True), (-1_010, False), (-1_011, True)])
def test_clocks_differ_by_more_than_transport_explains(ahead_ms: int, is_told: bool) -> None:
    told = found(USUAL, replace(USUAL, node_id=1, wall_ms=NOW_MS + ahead_ms))
    assert bool(told) == is_told
    if told:
        leads, follows = (1, 0) if ahead_ms > 0 else (0, 1)
        assert told[0][1] == f"the clock of broker {leads} is 1.0 s ahead of that of broker {follows}"


def reasons(brokers: Sequence[Any], *figures: DescribeBrokerResponse) -> list[str]:
    looks = [BrokerLook(figures=item, asked_ms=0, received_ms=0) for item in figures]
    cluster = replace(HEALTHY.cluster, brokers=tuple(brokers))
    return [item.what for item in slow_followers(cluster, [topic("t", partition(isr=(0, 1)))], looks)]


def test_why_a_follower_is_slow() -> None:
    (what,) = reasons(BROKERS, USUAL)
    assert what == "broker 2 is there, and does not keep up in 1 partitions: it does not answer: it is frozen, or its" \
        " network is broken"  # fmt: skip
    (what,) = reasons(BROKERS, USUAL, replace(USUAL, node_id=2, loop_delay_ms=1_500))
    assert "its process stood still for 1.5 s" in what
    (what,) = reasons(BROKERS, USUAL, replace(USUAL, node_id=2))
    assert "its disk, or the network" in what
    fenced = [replace(item, fenced=item.node_id == 2) for item in BROKERS]
    assert reasons(fenced, USUAL) == [], "that it is fenced says it already"


def batch(count: int, producer_id: int) -> bytes:
    head = bytearray(70)
    head[43:51] = producer_id.to_bytes(8, "big", signed=True)
    head[57:61] = count.to_bytes(4, "big")
    return bytes(head)


def test_samples_of_producers() -> None:
    samples = ProducerSamples()
    samples.note("a", "h", -1, [batch(3, 7), batch(5, -1)], 0.0)
    samples.note("a", "h", 1, [batch(1, -1), b"short"], 30.0)
    seconds, habits = samples.habits(40.0)
    item = habits["a"]
    assert seconds == 40.0 and samples.turn == EVERY
    assert (item.requests, item.batches, item.records, item.size_bytes) == (2, 3, 9, 210)
    assert (item.few_acks, item.not_idempotent) == (1, 1)
    assert "a" in samples.habits(WINDOW_S + 1)[1] and "a" in samples.habits(2 * WINDOW_S)[1]
    assert samples.habits(4 * WINDOW_S)[1] == {}, "they are forgotten"


def test_old_samples_are_forgotten_also_if_nobody_looked_meanwhile() -> None:
    samples = ProducerSamples()
    samples.note("a", "h", 1, [batch(1, -1)], 0.0)
    assert samples.habits(3 * WINDOW_S)[1] == {}


def test_samples_are_bounded() -> None:
    samples = ProducerSamples()
    for number in range(MAX_CLIENTS + 5):
        samples.note(str(number), "h", 1, [], 0.0)
    assert len(samples.habits(1.0)[1]) == MAX_CLIENTS
