"""Each fault of `barnabas.testing`, on both backends, seen by clients: what they notice, and that it ends."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaProducer

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.base.local.local_cluster import ClusterError
from barnabas.net.testing.cluster import Cluster
from barnabas.sync import Admin, Consumer, Producer  # type: ignore[import-not-found]  # not in the tree that mypy sees

DEADLINE_S = 60.0
VALUES = [b"%d" % number for number in range(20)]


def until(condition: Callable[[], Any], what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {DEADLINE_S:g} s: {what}"
        time.sleep(0.02)


def isr_of(cluster: Cluster, topic: str, known_to: int | None = None) -> set[int]:
    with Admin(cluster.bootstrap_servers if known_to is None else cluster.address(known_to)) as admin:
        return set(admin.describe_topic(topic).partitions[0].isr)


def send(cluster: Cluster, topic: str, values: list[bytes], **options: Any) -> None:
    with Producer(cluster.bootstrap_servers, **options) as producer:
        producer.send_many(topic, values).result(DEADLINE_S)


def test_a_killed_leader_is_replaced_and_comes_back(cluster: Cluster, topic: str) -> None:
    leader = cluster.leader(topic)
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send_many(topic, VALUES[:10]).result(DEADLINE_S)
        with cluster.kill(leader):
            assert not cluster.is_running(leader)
            producer.send_many(topic, VALUES[10:]).result(DEADLINE_S)
            assert cluster.leader(topic) != leader
        assert cluster.is_running(leader)
    cluster.assert_delivered(topic, VALUES, exactly_once=True)
    until(lambda: isr_of(cluster, topic) == {0, 1, 2}, "the killed broker is in sync again")


def test_all_brokers_are_killed_and_keep_what_they_wrote(cluster: Cluster, topic: str) -> None:
    send(cluster, topic, VALUES)
    with cluster.kill(0, 1, 2):
        assert [cluster.is_running(broker) for broker in cluster.brokers] == [False] * 3
    cluster.assert_delivered(topic, VALUES, exactly_once=True)


def test_a_paused_leader_answers_nobody_and_is_replaced(cluster: Cluster, topic: str) -> None:
    leader = cluster.leader(topic)
    with cluster.pause(leader):
        assert cluster.is_running(leader)
        send(cluster, topic, VALUES, request_timeout_ms=1_000)  # taken by another leader
        assert cluster.leader(topic) != leader
    cluster.assert_delivered(topic, VALUES, exactly_once=True)
    until(lambda: isr_of(cluster, topic) == {0, 1, 2}, "the paused broker is in sync again")


def test_a_broker_that_was_hit_twice_comes_back_when_both_faults_are_undone(cluster: Cluster, topic: str) -> None:
    with cluster.pause(1, 2) as first, cluster.pause(1) as second:
        first.undo()
        send(cluster, topic, VALUES[:10])
        assert second.holds
    with cluster.kill(1, 2) as first, cluster.kill(2) as second:
        first.undo()
        assert (cluster.is_running(1), cluster.is_running(2)) == (True, False)
        second.undo()
        assert cluster.is_running(2)
    send(cluster, topic, VALUES[10:])
    cluster.assert_delivered(topic, VALUES, exactly_once=True)


def test_a_paused_broker_that_is_killed_leaves_the_others_paused(cluster: Cluster, topic: str) -> None:
    with cluster.pause(1, 2), cluster.kill(1), pytest.raises(BarnabasError, match="did not answer within"):
        Admin(cluster.address(2))
    send(cluster, topic, VALUES)
    cluster.assert_delivered(topic, VALUES, exactly_once=True)


def test_a_pause_of_a_dead_broker_pauses_no_other_one(cluster: Cluster, topic: str) -> None:
    with cluster.kill(1):
        with pytest.raises(ClusterError, match="broker 1 does not run"):
            cluster.pause(0, 1)
        send(cluster, topic, VALUES)
        cluster.assert_delivered(topic, VALUES, exactly_once=True)


def test_several_threads_kill_brokers_and_start_them_again(cluster: Cluster, topic: str) -> None:
    async def kill_and_restart(broker: int) -> None:
        async with cluster.aio.kill(broker):
            pass

    async def all_at_once() -> None:
        await asyncio.gather(*(kill_and_restart(broker) for broker in (0, 1, 1, 2)))

    asyncio.run(all_at_once())
    with cluster.kill(0, 0):
        pass
    assert [cluster.is_running(broker) for broker in cluster.brokers] == [True] * 3
    send(cluster, topic, VALUES)


def test_a_broker_that_a_coroutine_starts_outlives_its_event_loop(cluster: Cluster) -> None:
    async def kill_and_restart() -> None:
        async with cluster.aio.kill(1):
            pass

    asyncio.run(kill_and_restart())
    time.sleep(0.5)  # for a signal that must not come
    assert cluster.is_running(1)


def test_a_call_that_fails_names_the_faults() -> None:
    with Cluster(3, timeout_s=4) as cluster:
        killed = cluster.kill(0, 1)
        with pytest.raises(BarnabasError) as refused:
            cluster.create_topic("undecided")
        assert refused.value.__notes__ == ["faults of this cluster that hold: <kill(0, 1)>"]
        killed.undo()


def test_a_broker_that_faults_keep_out_is_not_waited_for(cluster: Cluster, topic: str) -> None:
    others = [broker for broker in cluster.brokers if broker != 0]
    began_s = time.monotonic()
    with cluster.partition(0, others):
        with cluster.kill(0):
            pass
        assert cluster.is_running(0)
    with cluster.kill(0, 1):
        with cluster.kill(2):
            pass
        assert cluster.is_running(2)
    with cluster.lose_quorum():
        killed = cluster.kill(1)
    killed.undo()
    with cluster.lose_quorum(), cluster.kill(1):
        pass
    assert time.monotonic() - began_s < DEADLINE_S, "no wait that ends with its limit"
    send(cluster, topic, VALUES)
    cluster.assert_delivered(topic, VALUES, exactly_once=True)


def test_a_follower_behind_a_partition_leaves_the_isr_and_returns(cluster: Cluster, topic: str) -> None:
    leader = cluster.leader(topic)
    follower = next(broker for broker in cluster.brokers if broker not in (leader, cluster.controller))
    others = [broker for broker in cluster.brokers if broker != follower]
    with cluster.partition(follower, others):
        send(cluster, topic, VALUES)  # once the ISR is smaller
        assert follower not in isr_of(cluster, topic, known_to=leader)
    until(lambda: follower in isr_of(cluster, topic), "the follower is in sync again")
    cluster.assert_delivered(topic, VALUES, exactly_once=True)


def test_a_slow_network_delays_each_answer(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap_servers) as producer:  # acks=all: a slow leader may be replaced
        producer.send(topic, b"first").result(DEADLINE_S)
        with cluster.slow_network(300, brokers=cluster.leader(topic)):
            began_s = time.monotonic()
            producer.send(topic, b"slow").result(DEADLINE_S)
            assert time.monotonic() - began_s >= 0.3
        cluster.assert_delivered(topic, [b"first", b"slow"], exactly_once=True)


def test_a_slow_disk_delays_each_write(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap_servers, acks=1) as producer:
        producer.send(topic, b"first").result(DEADLINE_S)
        with cluster.slow_disk(300, brokers=cluster.leader(topic)):
            began_s = time.monotonic()
            producer.send(topic, b"slow").result(DEADLINE_S)
            assert time.monotonic() - began_s >= 0.3


def test_a_full_disk_refuses_records_until_there_is_room(cluster: Cluster, topic: str) -> None:
    until(lambda: isr_of(cluster, topic) == {0, 1, 2}, "all replicas exist")
    with (
        cluster.full_disk(),
        Producer(cluster.bootstrap_servers, delivery_timeout_ms=4_000, request_timeout_ms=3_000) as producer,
    ):
        handle = producer.send(topic, b"no room")
        with pytest.raises(BarnabasError, match="No space left on device"):
            handle.result(DEADLINE_S)
    send(cluster, topic, VALUES)
    cluster.assert_delivered(topic, VALUES, exactly_once=True)


def test_requests_fail_as_often_as_asked(cluster: Cluster, topic: str) -> None:
    with cluster.fail("PRODUCE", "NOT_LEADER_OR_FOLLOWER", times=3):
        send(cluster, topic, VALUES[:10])  # retried
    with cluster.fail("PRODUCE", "POLICY_VIOLATION", client_id="billing"):
        send(cluster, topic, VALUES[10:])
        with Producer(cluster.bootstrap_servers, client_id="billing") as producer:
            for _ in range(2):  # without `times`: each of them
                with pytest.raises(BarnabasError, match="as its test asked"):
                    producer.send(topic, b"refused").result(DEADLINE_S)
    cluster.assert_delivered(topic, VALUES, exactly_once=True)


def test_a_lost_answer_doubles_the_records_of_those_who_are_not_idempotent(cluster: Cluster, topic: str) -> None:
    with cluster.lose_answer("PRODUCE"):
        send(cluster, topic, [b"idempotent"])
    with cluster.lose_answer("PRODUCE"):
        producer = KafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, acks="all", enable_idempotence=False, retries=10
        )
        producer.send(topic, b"not idempotent").get(DEADLINE_S)
        producer.close()
    cluster.assert_delivered(topic, [b"idempotent", b"not idempotent", b"not idempotent"], exactly_once=True)
    with pytest.raises(AssertionError, match=r"stored more than once: 1: b'not idempotent'$"):
        cluster.assert_delivered(topic, [b"idempotent", b"not idempotent"], exactly_once=True)


def test_dropped_connections_are_those_of_the_client(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap_servers, client_id="billing") as producer:
        producer.send(topic, b"one").result(DEADLINE_S)
        assert cluster.drop_connections("nobody") == 0
        assert cluster.drop_connections("billing") >= 1
        producer.send(topic, b"two").result(DEADLINE_S)
    cluster.assert_delivered(topic, [b"one", b"two"], exactly_once=True)


def test_without_a_quorum_nothing_is_decided_and_records_flow(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send(topic, VALUES[0]).result(DEADLINE_S)  # a new producer's id is from the quorum
        with cluster.lose_quorum():
            assert cluster.controller == -1
            producer.send_many(topic, VALUES[1:]).result(DEADLINE_S)
            with Admin(cluster.bootstrap_servers, timeout_ms=500) as admin, pytest.raises(BarnabasError):
                admin.create_topic("undecided")
    assert cluster.controller in cluster.brokers
    cluster.create_topic("decided")
    cluster.assert_delivered(topic, VALUES, exactly_once=True)


def test_an_advanced_clock_lets_retention_pass(cluster: Cluster) -> None:
    cluster.create_topic("kept", configs={"retention.ms": "3600000"})
    send(cluster, "kept", VALUES)
    with cluster.advance_clock(2 * 3600):
        until(lambda: cluster.records("kept") == [], "the records have expired")
    send(cluster, "kept", [b"new"])
    cluster.assert_delivered("kept", [b"new"], exactly_once=True)


def test_a_forced_rebalance_and_an_expired_session(cluster: Cluster, topic: str) -> None:
    send(cluster, topic, VALUES)
    with Consumer(
        topic, bootstrap=cluster.bootstrap_servers, group="billing", auto_offset_reset="earliest", client_id="reader"
    ) as consumer:
        read: list[bytes] = []

        def read_on(count: int) -> None:
            while len(read) < count:
                read.extend(bytes(record.value) for batch in consumer.poll().values() for record in batch)

        read_on(len(VALUES))
        consumer.commit()
        cluster.wait_until_caught_up("billing", topic)
        before = len(cluster.rebalances("billing"))
        cluster.force_rebalance("billing")
        assert len(cluster.rebalances("billing")) > before
        member = cluster.expire_session("billing", "reader")
        assert member not in {event.member_id for event in cluster.rebalances("billing")[:before]} or before
        send(cluster, topic, [b"after"])
        read_on(len(VALUES) + 1)
        consumer.commit()
    assert sum(cluster.committed("billing").values()) == len(VALUES) + 1
    assert sum(cluster.lag("billing").values()) == 0


def test_reset_leaves_nothing(cluster: Cluster, topic: str) -> None:
    send(cluster, topic, VALUES)
    with Consumer(
        topic, bootstrap=cluster.bootstrap_servers, group="billing", auto_offset_reset="earliest"
    ) as consumer:
        assert consumer.poll(timeout_ms=10_000)
        producer = Producer(cluster.bootstrap_servers, transactional_id="open")
        transaction = producer.transaction()
        transaction.begin()
        transaction.send(topic, b"never committed").result(DEADLINE_S)
        cluster.kill(cluster.brokers[2])
        cluster.reset()
    with Admin(cluster.bootstrap_servers) as admin:
        assert (admin.list_topics(), admin.list_groups()) == ([], [])
    assert [cluster.is_running(broker) for broker in cluster.brokers] == [True] * 3
    with pytest.raises(BarnabasError):
        transaction.commit()
    producer.close()


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda cluster: cluster.kill(7), "there is no broker 7; this cluster has the brokers 0, 1, 2"),
        (lambda cluster: cluster.fail("PRODUCES", "NOT_LEADER_OR_FOLLOWER"), "did you mean PRODUCE"),
        (lambda cluster: cluster.fail("PRODUCE", "NOT_LEADER"), "did you mean NOT_LEADER_OR_FOLLOWER"),
        (lambda cluster: cluster.fail("PRODUCE", "NOT_LEADER_OR_FOLLOWER", times=0), "times=0"),
        (lambda cluster: cluster.slow_disk(-1), "delay_ms=-1"),
        (lambda cluster: cluster.kill(), r"kill\(\) without brokers does nothing: name them, as in kill\(0\)"),
        (lambda cluster: cluster.pause(), r"pause\(\) without brokers"),
        (lambda cluster: cluster.kill("0"), "'0' is no broker: give their numbers"),
        (lambda cluster: cluster.kill([0]), r"\[0\] is no broker"),
        (lambda cluster: cluster.kill(True), "True is no broker"),
        (lambda cluster: cluster.partition("0", 1), "'0' is no broker"),
        (lambda cluster: cluster.slow_disk(1, brokers="0"), "'0' is no broker"),
    ],
)
def test_what_cannot_be_asked_is_explained(cluster: Cluster, ask: Callable[[Cluster], object], told: str) -> None:
    with pytest.raises((ValueError, TypeError), match=told):
        ask(cluster)


def test_a_dead_broker_cannot_be_paused(cluster: Cluster) -> None:
    with cluster.kill(2), pytest.raises(ClusterError, match="broker 2 does not run"):
        cluster.pause(2)
