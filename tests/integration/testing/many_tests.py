"""What `plugin_runs` runs as a user's tests, from a copy in an empty folder."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from barnabas import BarnabasError  # type: ignore[attr-defined]  # the tree that mypy sees has no such names
from barnabas.sync import Admin, Consumer, Producer  # type: ignore[import-not-found]
from barnabas.testing import Cluster  # type: ignore[import-not-found]

TESTS = int(os.environ["TESTS_IN_ALL"])
LIMIT_S = 60
Act = Callable[[Cluster, str, list[bytes]], None]


def values_of(number: int) -> list[bytes]:
    return [b"%d-%d" % (number, value) for value in range(number % 50 + 1)]


def send(cluster: Cluster, topic: str, values: list[bytes], **options: Any) -> None:
    with Producer(cluster.bootstrap_servers, **options) as producer:
        producer.send_many(topic, values).result(LIMIT_S)


def group(cluster: Cluster, topic: str) -> Any:
    return Consumer(
        topic, bootstrap=cluster.bootstrap_servers, group="billing", auto_offset_reset="earliest", auto_commit=False
    )


def read(consumer: Any, count: int) -> list[bytes]:
    found: list[bytes] = []
    for _ in range(LIMIT_S):
        found += [bytes(record.value) for batch in consumer.poll(timeout_ms=1_000).values() for record in batch]
        if len(found) >= count:
            return sorted(found)
    raise AssertionError(f"{len(found)} of {count} records within {LIMIT_S} s")


def topic_of_all_tests(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    """Also in a topic whose name other tests use, on other workers at the same time."""
    send(cluster, "shared-name", values)
    send(cluster, topic, values)
    cluster.assert_delivered("shared-name", values, exactly_once=True)


def groups(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    assert cluster.committed("billing") == {}
    send(cluster, topic, values)
    with group(cluster, topic) as consumer:
        assert read(consumer, len(values)) == sorted(values)
        consumer.commit()
        cluster.wait_until_caught_up("billing", topic)
    assert sum(cluster.committed("billing").values()) == len(values)
    assert sum(cluster.lag("billing").values()) == 0


def transactions(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    with Producer(cluster.bootstrap_servers, transactional_id="orders") as producer:
        with pytest.raises(LookupError), producer.transaction() as transaction:
            transaction.send(topic, b"aborted").result(LIMIT_S)
            raise LookupError
        with producer.transaction() as transaction:
            for value in values:
                transaction.send(topic, value)


def lost_answers(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    with cluster.lose_answer("PRODUCE", times=2):
        send(cluster, topic, values)


def failures(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    with cluster.fail("PRODUCE", "NOT_LEADER_OR_FOLLOWER", times=2):
        send(cluster, topic, values)


def dropped_connections(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    with Producer(cluster.bootstrap_servers, client_id="shop") as producer:
        producer.send_many(topic, values[:1]).result(LIMIT_S)
        assert cluster.drop_connections("shop") >= 1
        producer.send_many(topic, values[1:]).result(LIMIT_S)


def slow_things(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    with cluster.slow_network(20), cluster.slow_disk(5):
        send(cluster, topic, values)


def full_disks(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    with cluster.full_disk(), pytest.raises(BarnabasError):
        send(cluster, topic, values, delivery_timeout_ms=300, request_timeout_ms=200)
    send(cluster, topic, values)


def clocks(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    with cluster.advance_clock(3_600):
        send(cluster, topic, values)


def rebalances(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    send(cluster, topic, values)
    with group(cluster, topic) as consumer:
        assert read(consumer, len(values)) == sorted(values)
        consumer.commit()
        cluster.force_rebalance("billing")
        assert cluster.rebalances("billing")
        cluster.expire_session("billing")
        send(cluster, topic, [b"late"])
        assert b"late" in read(consumer, 1)
    values.append(b"late")


def kills(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    with Producer(cluster.bootstrap_servers) as producer, cluster.kill(cluster.leader(topic)):
        producer.send_many(topic, values).result(LIMIT_S)


def pauses(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    paused = next(broker for broker in cluster.brokers if broker not in (cluster.leader(topic), cluster.controller))
    with cluster.pause(paused):
        send(cluster, topic, values)


def partitions(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    alone = next(broker for broker in cluster.brokers if broker not in (cluster.leader(topic), cluster.controller))
    with cluster.partition(alone, [broker for broker in cluster.brokers if broker != alone]):
        send(cluster, topic, values)


def quorums(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    with cluster.lose_quorum():
        send(cluster, topic, values, enable_idempotence=False)


def left_behind(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    """Clients that nobody closes, an open transaction, a dead broker, and faults: the fixture ends all of it."""
    send(cluster, topic, values)
    consumer = group(cluster, topic)
    consumer.__enter__()
    assert read(consumer, len(values)) == sorted(values)
    producer = Producer(cluster.bootstrap_servers, transactional_id="open")
    producer.__enter__()
    transaction = producer.transaction()
    transaction.begin()
    transaction.send(topic, b"never committed").result(LIMIT_S)
    cluster.assert_delivered(topic, values, exactly_once=True)
    cluster.kill(cluster.brokers[-1])
    cluster.fail("METADATA", "LEADER_NOT_AVAILABLE")
    cluster.slow_disk(20)
    values.clear()


EACH: list[Act] = [
    topic_of_all_tests,
    groups,
    transactions,
    lost_answers,
    failures,
    dropped_connections,
    slow_things,
    clocks,
    groups,
    transactions,
]
SOME: list[Act] = [rebalances, full_disks]  # of ten tests, one
OF_THREE: list[Act] = [kills, pauses, partitions, quorums, left_behind]  # of 25 tests, one
CASES: list[tuple[int, Act]] = []
for number in range(TESTS):
    if number % 25 == 24:
        CASES.append((3, OF_THREE[number // 25 % len(OF_THREE)]))
    elif number % 10 == 9:
        CASES.append((1, SOME[number // 10 % len(SOME)]))
    else:
        CASES.append((3 if number % 2 else 1, EACH[number % len(EACH)]))


def check(cluster: Cluster, topic: str, act: Act, number: int) -> None:
    """The cluster is as the documents promise at the start of a test, and `act` loses and doubles nothing."""
    with Admin(cluster.bootstrap_servers) as admin:
        assert (admin.list_topics(), admin.list_groups()) == ([topic], [])
    assert all(cluster.is_running(broker) for broker in cluster.brokers)
    values = values_of(number)
    act(cluster, topic, values)
    if values:
        cluster.assert_delivered(topic, values, exactly_once=True)


def cases_of(brokers: int) -> pytest.MarkDecorator:
    found = [(number, act) for number, (wanted, act) in enumerate(CASES) if wanted == brokers]
    return pytest.mark.parametrize(("number", "act"), found, ids=[f"{number}-{act.__name__}" for number, act in found])


@pytest.mark.barnabas(brokers=1)
@cases_of(1)
def test_with_one_broker(barnabas: Cluster, barnabas_topic: str, worker_id: str, number: int, act: Act) -> None:
    check(barnabas, barnabas_topic, act, number)
    print("cluster of", worker_id, barnabas.bootstrap_servers)


@cases_of(3)
def test_with_three_brokers(barnabas: Cluster, barnabas_topic: str, worker_id: str, number: int, act: Act) -> None:
    check(barnabas, barnabas_topic, act, number)
    print("cluster of", worker_id, barnabas.bootstrap_servers)
