"""The machines that are simulated alone, by the thousand seeds: each is a function of a seed that raises what it finds.

`run(name, seed)` returns how many events there were.
"""

from collections.abc import Callable

from . import isr_cluster, journal_machine, log_machine, raft_cluster

CONTROLLER_EVENTS = 150


def _partition(seed: int) -> int:
    return isr_cluster.run_seed(seed, events=800).events


def _controller(seed: int) -> int:
    from unit.kraft.test_controller_simulation import Simulation

    Simulation(seed).run(CONTROLLER_EVENTS)
    return CONTROLLER_EVENTS


def _groups(seed: int) -> int:
    from unit.consumer_groups.simulation import FAULTY_STEPS, Simulation

    Simulation(seed).run()
    return FAULTY_STEPS


def _journal(seed: int) -> int:
    return journal_machine.run_seed(seed).events


def _log(seed: int) -> int:
    return log_machine.run_seed(seed).events


def _quorum(seed: int) -> int:
    return raft_cluster.checked_seed(seed).acked


MACHINES: dict[str, Callable[[int], int]] = {
    "partition": _partition,
    "log": _log,
    "journal": _journal,
    "controller": _controller,
    "groups": _groups,
    "quorum": _quorum,
}


def run(name: str, seed: int) -> int:
    return MACHINES[name](seed)
