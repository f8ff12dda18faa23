"""Which faults hold now: those that were requested and not undone yet. Pure: it decides which orders each broker gets."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .orders import Faults, RequestFault

Address = tuple[str, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """One fault that was asked for. `brokers`: those that it hits; a cut hits the connections between the two sides."""

    brokers: frozenset[int] = frozenset()
    cut_from: frozenset[int] = frozenset()
    is_of_quorum: bool = False  # a cut of the connections between voters only
    network_delay_ms: int = 0
    disk_delay_ms: int = 0
    clock_offset_ms: int = 0
    is_disk_full: bool = False
    request: RequestFault | None = None


@dataclass(kw_only=True)
class FaultPlan:
    """`addresses`: of each broker, those at which others reach it, the quorum's last."""

    addresses: dict[int, Sequence[Address]]
    asked: list[Asked] = field(default_factory=list)

    def of(self, node_id: int) -> Faults:
        """All faults of one broker: delays add up."""
        own = [fault for fault in self.asked if node_id in fault.brokers]
        return Faults(
            cut=tuple(sorted(self._cut(node_id))),
            network_delay_ms=sum(fault.network_delay_ms for fault in own),
            disk_delay_ms=sum(fault.disk_delay_ms for fault in own),
            is_disk_full=any(fault.is_disk_full for fault in own),
            clock_offset_ms=sum(fault.clock_offset_ms for fault in own),
            requests=tuple(fault.request for fault in own if fault.request is not None),
        )

    def is_cut(self, one: int, other: int) -> bool:
        """Whether they do not hear each other, of the quorum at least."""
        pair = (one, other), (other, one)
        return any(a in fault.brokers and b in fault.cut_from for fault in self.asked for a, b in pair)

    @property
    def has_no_quorum(self) -> bool:
        return any(fault.is_of_quorum for fault in self.asked)

    def _cut(self, node_id: int) -> set[Address]:
        cut: set[Address] = set()
        for fault in self.asked:
            peers: set[int] = set()
            if node_id in fault.cut_from:
                peers |= fault.brokers
            if node_id in fault.brokers:
                peers |= fault.cut_from
            for peer in peers - {node_id}:
                cut |= set(self.addresses[peer][-1:] if fault.is_of_quorum else self.addresses[peer])
        return cut
