"""A process with a cluster of `barnabas.testing` and open clients forks: what is the parent's stays the parent's."""

import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest

from barnabas.net.testing.cluster import Cluster
from barnabas.sync import Consumer, Producer  # type: ignore[import-not-found]  # not in the tree that mypy sees

LIMIT_S = 30.0
FORKS = multiprocessing.get_context("fork")

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12


@pytest.fixture(params=["in-process", "processes"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(3, backend=request.param) as started:
        started.create_topic("orders")
        yield started


def answer_of(work: Callable[[], object]) -> object:
    """What the function returns in a forked child, or the text of its error."""
    ours, theirs = FORKS.Pipe(duplex=False)

    def run() -> None:
        try:
            theirs.send(work())
        except Exception as error:
            theirs.send(f"{type(error).__name__}: {error}")

    child = FORKS.Process(target=run)
    child.start()
    try:
        assert ours.poll(LIMIT_S), "the child does not end"
        return ours.recv()
    finally:
        child.kill()
        child.join()


def begin_sleeper(stack: ExitStack) -> BaseProcess:
    """A child that lives until the end of the block, with whatever a fork copies."""
    ours, theirs = FORKS.Pipe()

    def sleep(end: Connection) -> None:
        end.send("lives")
        end.poll(None)

    child = FORKS.Process(target=sleep, args=(theirs,))
    child.start()
    stack.callback(child.join)
    stack.callback(child.kill)
    assert ours.poll(LIMIT_S) and ours.recv() == "lives"
    return child


def test_a_child_that_leaves_the_block_leaves_the_cluster_alone(cluster: Cluster) -> None:
    dead = cluster.kill(2)

    def leave() -> str:
        dead.undo()
        cluster.close()
        return "left" if dead.holds else "undone by the child"

    with (
        Producer(cluster.bootstrap_servers) as producer,
        Consumer("orders", bootstrap=cluster.bootstrap_servers, group="g", auto_offset_reset="earliest") as consumer,
    ):
        producer.send("orders", b"1").result(LIMIT_S)
        assert consumer.poll(timeout_ms=10_000)
        assert answer_of(leave) == "left"
        assert cluster._started.folder.is_dir()
        assert dead.holds and not cluster.is_running(2)
        dead.undo()
        producer.send("orders", b"2").result(LIMIT_S)
        assert consumer.poll(timeout_ms=10_000)
    cluster.assert_delivered("orders", [b"1", b"2"], exactly_once=True)


def test_a_cluster_that_a_child_starts_is_the_childs() -> None:
    cluster = Cluster(1)

    def use() -> tuple[list[int], bool]:
        with cluster:
            cluster.create_topic("orders")
            led, folder = cluster.leader("orders"), cluster._started.folder
        return [led], folder.exists()

    assert answer_of(use) == ([0], False)


def test_a_child_connects_to_its_parents_cluster_and_cannot_break_it(cluster: Cluster) -> None:
    def send() -> int:
        with Producer(cluster.bootstrap_servers, **cluster.login()) as producer:
            return int(producer.send("orders", b"of a child").result(LIMIT_S).offset)

    assert answer_of(send) == 0
    for act in (
        lambda: cluster.kill(0),
        lambda: cluster.pause(0),
        lambda: cluster.leader("orders"),
        cluster.add_broker,
    ):
        assert str(answer_of(act)).startswith("RuntimeError: this cluster was started before a fork")
    with Producer(cluster.bootstrap_servers) as producer:
        for act in (lambda: producer.send("orders", b"of the parent"), producer.flush):
            assert str(answer_of(act)).startswith("ClientClosedError: this Producer was made before a fork")


def peers() -> list[int]:
    """The ports that sockets of this process are connected to."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as copy:
            if copy.family == socket.AF_INET:
                found.append(copy.getpeername()[1])
    return found


@pytest.mark.parametrize(
    "cluster", ["processes"], indirect=True
)  # in-process brokers have connections among themselves
def test_a_child_keeps_no_connection_of_its_parents_clients(cluster: Cluster) -> None:
    """A broker would not see the end of the parent as long as the child lives."""
    ports = {int(address.rpartition(":")[2]) for address in cluster.bootstrap_servers.split(",")}
    with (
        Producer(cluster.bootstrap_servers) as producer,
        Consumer("orders", bootstrap=cluster.bootstrap_servers, group="g", auto_offset_reset="earliest") as consumer,
    ):
        producer.send("orders", b"1" * 1_000_000).result(LIMIT_S)
        assert ports & set(peers())
        kept = answer_of(peers)
        assert isinstance(kept, list) and not ports & set(kept)
        assert consumer.poll(timeout_ms=10_000), "the connections of the parent stay"
        producer.send("orders", b"2").result(LIMIT_S)


def test_a_child_that_lives_does_not_hold_what_a_killed_broker_held(cluster: Cluster) -> None:
    """Its lock, its ports and its connections."""
    with Producer(cluster.bootstrap_servers) as producer, ExitStack() as stack:
        producer.send("orders", b"1").result(LIMIT_S)
        child = begin_sleeper(stack)
        with cluster.kill(cluster.leader("orders")):
            producer.send("orders", b"2").result(LIMIT_S)
        producer.send("orders", b"3").result(LIMIT_S)
        assert child.is_alive()
    cluster.assert_delivered("orders", [b"1", b"2", b"3"], exactly_once=True)
