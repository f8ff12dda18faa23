"""What a campaign asks of the clients that load its cluster. `workload` has producers and groups, `transactions` transactions."""

from collections.abc import Mapping
from typing import Protocol

from .checker import Report
from .history import Partition
from .injector import Kind


class Load(Protocol):
    """Runs between `start` and `cancel`. What the clients see goes into the history that the load was made with."""

    topics: Mapping[str, int]  # partitions of each; the campaign creates them and waits for their replicas
    topic_config: Mapping[str, Mapping[str, str]]
    progressing: tuple[Partition, ...]  # what must move on after a fault
    faults: Mapping[str, Kind]  # of its own clients, beside those of brokers

    @property
    def acked(self) -> Mapping[Partition, int]:
        """How far each partition has moved on."""

    def start(self) -> None: ...

    def failure(self) -> BaseException | None:
        """The bug that ended a client; a campaign ends with it."""

    async def stop_producing(self) -> None:
        """No record after this, except those that `drain` waits for."""

    async def drain(self, ends: Mapping[Partition, int]) -> None:
        """Whoever consumes has consumed everything, and stops."""

    async def read_all(self, name: str, ends: Mapping[Partition, int]) -> None:
        """Everything that the partitions hold, as FinalRead events of this name."""

    async def cancel(self) -> None: ...

    def errors(self) -> Mapping[str, Mapping[str, int]]:
        """Errors that clients may see during faults, counted."""

    def judge(self, fault_kinds: frozenset[str]) -> Report: ...
