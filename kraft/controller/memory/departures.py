"""Brokers that are departing: their leaderships and places in ISRs move away in pieces, before they are fenced or may stop.

A broker can be in 200,000 partitions. To decide on all of them at once would hold the quorum's thread for longer than an election
timeout. Soft state of the active controller: what has moved already is in the image, so a new controller begins again with the
rest (when the session ends there, or when the request is repeated). Until the last piece, the broker is unfenced, but no decision
gives it anything: see `MetadataDelta.departing`.
"""

from dataclasses import dataclass

from ...metadata.delta import MetadataDelta
from ...metadata.image import BrokerImage

HEARTBEATS_OF_AN_UNREGISTRATION = 60  # half a minute: a client that still wants it has asked again


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    broker_epoch: int
    drains: bool = False  # it ends with a controlled shutdown; otherwise the broker is fenced
    has_lost_data: bool = False  # no replica of it stays eligible


class Departures:
    """By broker; at most one of each registered broker."""

    def __init__(self) -> None:
        self._by_broker: dict[int, Departure] = {}
        self._unregistering: dict[int, tuple[int, int]] = {}  # broker epoch, and heartbeats until it is given up

    def __bool__(self) -> bool:
        return bool(self._by_broker)

    def restart(self) -> None:
        """Forget everything: another controller was active meanwhile."""
        self._by_broker.clear()
        self._unregistering.clear()

    def begin(self, broker: BrokerImage, *, drains: bool = False, has_lost_data: bool = False) -> None:
        """Begin, or go on. A broker that must be fenced does not return to a mere shutdown, and lost data stays lost."""
        known = self._by_broker.get(broker.node_id)
        if known is not None and known.broker_epoch == broker.broker_epoch:
            drains = drains and known.drains
            has_lost_data = has_lost_data or known.has_lost_data
        self._by_broker[broker.node_id] = Departure(
            broker_epoch=broker.broker_epoch, drains=drains, has_lost_data=has_lost_data
        )

    def begin_unregistration(self, broker: BrokerImage) -> None:
        """Heartbeats of a live broker do not cancel it, and do not unfence the broker before the request is repeated."""
        self.begin(broker)
        self._unregistering[broker.node_id] = (broker.broker_epoch, HEARTBEATS_OF_AN_UNREGISTRATION)

    def end_unregistration(self, node_id: int) -> None:
        self._unregistering.pop(node_id, None)

    def is_unregistering(self, broker: BrokerImage) -> bool:
        """Asked for each heartbeat of this broker."""
        epoch, left = self._unregistering.pop(broker.node_id, (broker.broker_epoch, 0))
        if epoch != broker.broker_epoch or not left:
            return False
        self._unregistering[broker.node_id] = (epoch, left - 1)
        return True

    def is_cancelled(self, broker: BrokerImage) -> bool:
        """A live process has sent a heartbeat: it is not fenced after all. A shutdown goes on, and lost data stays lost."""
        known = self._by_broker.get(broker.node_id)
        if known is None or known.drains or known.has_lost_data:
            return False
        del self._by_broker[broker.node_id]
        return True

    def drop_ended(self, view: MetadataDelta) -> None:
        """A departure is over with the registration that it is of, however that has ended."""
        for node_id, departure in tuple(self._by_broker.items()):
            broker = view.broker(node_id)
            if broker is None or broker.broker_epoch != departure.broker_epoch or _has_ended(departure, broker):
                del self._by_broker[node_id]

    def is_draining(self, node_id: int) -> bool:
        departure = self._by_broker.get(node_id)
        return departure is not None and departure.drains

    @property
    def node_ids(self) -> frozenset[int]:
        return frozenset(self._by_broker)

    @property
    def lost(self) -> frozenset[int]:
        return frozenset(node_id for node_id, departure in self._by_broker.items() if departure.has_lost_data)

    def end(self) -> dict[int, Departure]:
        """All of them: the last piece has been decided."""
        ended, self._by_broker = self._by_broker, {}
        return ended


def _has_ended(departure: Departure, broker: BrokerImage) -> bool:
    if departure.drains and broker.in_controlled_shutdown:
        return True
    return broker.fenced and not departure.has_lost_data
