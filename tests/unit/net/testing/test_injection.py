"""Which brokers faults stop and start, and what a user is told about one that does not come back."""

from collections.abc import Sequence
from threading import Thread
from typing import cast

import pytest

from barnabas.net.base.local.local_cluster import ClusterError
from barnabas.net.testing.brokers.backends import Address, Backend
from barnabas.net.testing.faults.orders import AskController, AskReady, Faults, Order
from barnabas.net.testing.injection import Injection


class Deaf:
    """A process that runs, and whose socket for orders is gone."""

    def addresses(self, node_id: int) -> Sequence[Address]:
        return [("127.0.0.1", node_id)]

    def is_running(self, node_id: int) -> bool:
        return True

    def order(self, node_id: int, order: Order) -> int:
        raise FileNotFoundError(2, "No such file or directory")


def test_a_broker_that_takes_no_orders_is_told_apart_from_one_that_is_fenced() -> None:
    injection = Injection(cast(Backend, Deaf()), [0], timeout_s=0)
    with pytest.raises(
        ClusterError, match="broker 0 takes part; it takes no orders: .*No such file.*; faults that hold: none"
    ):
        injection.wait_until_ready([0])


class Obedient:
    """Brokers that do at once what they are told, and what they were told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.dead: set[int] = set()
        self.cut: set[int] = set()
        self.steps_to_ready = 0  # questions that a broker answers with no after its faults have ended

    def addresses(self, node_id: int) -> Sequence[Address]:
        return [("127.0.0.1", node_id)]

    def is_running(self, node_id: int) -> bool:
        return node_id not in self.dead

    def order(self, node_id: int, order: Order) -> int:
        if isinstance(order, Faults):
            (self.cut.add if order.cut else self.cut.discard)(node_id)
        if isinstance(order, AskReady) and node_id not in self.cut and self.steps_to_ready:
            self.steps_to_ready -= 1
            return 0
        return 0 if isinstance(order, AskController) or node_id in self.cut else 1

    def kill(self, node_id: int) -> None:
        self.told.append(("kill", node_id))
        self.dead.add(node_id)

    def restart(self, node_id: int) -> None:
        self.told.append(("restart", node_id))
        self.dead.discard(node_id)

    def pause(self, node_id: int) -> None:
        self.told.append(("pause", node_id))

    def resume(self, node_id: int) -> None:
        self.told.append(("resume", node_id))


def injection_of(backend: Obedient) -> Injection:
    return Injection(cast(Backend, backend), range(3), timeout_s=5)


def test_a_broker_that_two_faults_have_killed_starts_when_both_are_undone() -> None:
    backend = Obedient()
    injection = injection_of(backend)
    first, second = injection.kill([0]), injection.kill([0, 1])
    first.undo()
    assert backend.dead == {0, 1}
    second.undo()
    assert [item for item in backend.told if item[0] == "restart"] == [("restart", 0), ("restart", 1)]


def test_a_broker_that_two_faults_have_paused_goes_on_when_both_are_undone() -> None:
    backend = Obedient()
    injection = injection_of(backend)
    first, second = injection.pause([0]), injection.pause([0, 1])
    assert backend.told == [("pause", 0), ("pause", 1)], "one that stands still would never answer"
    first.undo()
    assert ("resume", 0) not in backend.told
    second.undo()
    assert backend.told[2:] == [("resume", 0), ("resume", 1)]


def test_the_end_of_a_kill_waits_while_another_thread_changes_what_is_dead() -> None:
    """Coroutines of `aio` run in threads: a hold that is made meanwhile must not get lost."""
    backend = Obedient()
    injection = injection_of(backend)
    fault = injection.kill([0])
    undoing = Thread(target=fault.undo)
    with injection._lock:
        undoing.start()
        undoing.join(0.05)
        assert 0 in injection._dead
    undoing.join()
    assert 0 not in injection._dead and backend.dead == set()


def test_a_broker_that_a_cut_keeps_out_is_waited_for_when_the_cut_ends() -> None:
    backend = Obedient()
    injection = injection_of(backend)
    cut = injection.cut([0], [1, 2], "partition")
    injection.kill([0]).undo()
    assert backend.dead == set() and 0 in backend.cut, "it runs, and is not waited for"
    backend.steps_to_ready = 3
    cut.undo()
    assert backend.steps_to_ready == 0
    backend.steps_to_ready = 3
    injection.cut([0], [1, 2], "partition").undo()
    assert backend.steps_to_ready == 3, "it is late no more"
