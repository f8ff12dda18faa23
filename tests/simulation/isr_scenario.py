"""What a simulation of one partition is made of (see `isr_cluster`), and what it raises."""

from dataclasses import dataclass

from barnabas.log.replication.partition import Partition


class Violation(AssertionError):
    """Something that must always hold does not."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What a run is made of; the rest comes from the seed."""

    node_count: int | None = None
    min_isr: int = 2
    min_isr_of_brokers: int | None = None  # what the brokers take it for, where that differs from the controller's
    flush_first: bool | None = None  # flush.messages=1: nothing counts before it is on the disk
    faults: tuple[str, ...] = ()  # only these; (): drawn from the seed
    # Replicas that a reassignment adds, under a throttle that lets nothing through before the faults are over.
    added: int = 0
    bugs: frozenset[str] = frozenset()  # of the model controller
    partition_class: type[Partition] = Partition
