"""Brokers: registered, fenced, unfenced, drained, removed. Their sessions are in `broker_heartbeats`.

If a decision has more than one record, their order is such that it may stop anywhere: a broker loses its leaderships before it is
fenced, drained or registered again, and is unfenced before it gets any. So a controller that dies half-way leaves a valid state,
and the next attempt completes the rest.

A restart within a session keeps only what is useful. A new incarnation leaves the ISRs: the high watermark must not wait for a
process that has to load its logs first, and a leader may count only the incarnation whose fetches it has seen (KIP-903). It
returns to the ISRs by catching up, and its leaderships follow (`leader_balance`). What would otherwise be lost permanently is
kept: if no other replica is in sync, the broker stays eligible (KIP-966) and leads again as soon as it is unfenced, unless it
reports that it has lost unflushed records.
"""

from collections import deque
from collections.abc import Callable

from barnabas.log.vocabulary.cluster_changes import BrokerIdNotRegisteredError, UnregisterBrokerRequest
from barnabas.log.vocabulary.cluster_mismatch import cluster_mismatch
from barnabas.log.vocabulary.errors import (
    BrokerNotAvailableError,
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    InvalidRequestError,
    StaleBrokerEpochError,
    UnsupportedVersionError,
)

from ..metadata.broker_epochs import check_broker_epoch
from ..metadata.cluster_settings import file_settings_of
from ..metadata.controller_errors import DivergentMetadataError
from ..metadata.controller_result import ControllerResult, Respond, answer
from ..metadata.controller_settings import MAX_BROKERS, ControllerSettings
from ..metadata.delta import MetadataDelta
from ..metadata.image import BrokerImage, MetadataImage
from ..metadata.metadata_history import check_position
from ..metadata.records import BrokerChangeRecord, Record, RegisterBrokerRecord, UnregisterBrokerRecord
from ..metadata.requests import BrokerHeartbeat, FenceBroker, HeartbeatAnswer, RegisterBroker, Registered
from .group_control import slot_moves
from .memory.broker_heartbeats import BrokerHeartbeats
from .memory.departures import Departures
from .replication_control import ReplicationControl, leads_anything

# A registration is repeated if its outcome is not known, so a copy may arrive late: after its process has died and another one
# has registered. That copy must not replace the live process. There are never more copies than this in flight. If it is the first
# copy that arrives, it does replace the live one, which returns when nothing more is heard of the other.
_MAX_REPLACED = 8
MAX_REFUSED = 20  # listed by a health check: after an old backup, all brokers are refused for the same reason


class ClusterControl:
    """Decides on brokers. Its own state is soft: sessions, replaced incarnations, and the offset that other brokers must reach
    before a drained broker may stop."""

    def __init__(
        self, settings: ControllerSettings, heartbeats: BrokerHeartbeats, replication: ReplicationControl
    ) -> None:
        self._settings = settings
        self._heartbeats = heartbeats
        self._replication = replication
        self._shutdown_offsets: dict[int, int] = {}  # broker -> the committed offset at which its shutdown began
        self._departures = Departures()
        self._replaced: dict[int, deque[str]] = {}  # broker -> its last incarnations that another one has replaced
        self._former: frozenset[int] = frozenset()  # unfenced when the quorum was recovered, and not fenced since
        self.refused: dict[int, str] = {}  # broker -> how its metadata contradicts ours; at most MAX_REFUSED

    # --- registration ------------------------------------------------------------------------------------------------

    def register(self, view: MetadataDelta, request: RegisterBroker, now_ms: int) -> ControllerResult:
        self._check_registration(view, request)
        self._check_history(view, request)
        existing = view.broker(request.node_id)
        if existing is not None and existing.incarnation == request.incarnation:
            self._heartbeats.touch(request.node_id, now_ms=now_ms)
            return ControllerResult(respond=_registered(request))  # a retry: the response was lost
        if existing is not None and self._is_late(existing, request, now_ms):
            raise DuplicateBrokerRegistrationError(
                f"broker {request.node_id} has been registered by a newer process than incarnation "
                f"{request.incarnation}; give this one another node.id, or stop the other and start this one again"
            )
        if existing is not None and self._is_alive(existing, request, now_ms):
            raise DuplicateBrokerRegistrationError(
                f"broker {request.node_id} is registered by another live process (incarnation "
                f"{existing.incarnation}); give this one another node.id, or wait until the old process has stopped"
            )
        if existing is None and len(view.brokers()) >= MAX_BROKERS:
            raise InvalidRequestError(f"the cluster has the maximum of {MAX_BROKERS} brokers; unregister one first")
        lost = frozenset({request.node_id}) if request.lost_unflushed_data else frozenset[int]()
        registration = RegisterBrokerRecord(
            node_id=request.node_id,
            incarnation=request.incarnation,
            endpoints=request.endpoints,
            admin_endpoint=request.admin_endpoint,
            rack=request.rack,
            directories=request.directories,
            min_feature_level=request.min_feature_level,
            max_feature_level=request.max_feature_level,
            file_settings=file_settings_of(request.file_settings),
            machine=request.machine,
        )
        moved, is_last = self._moved_away(view, frozenset({request.node_id}), lost)
        if not is_last:
            if existing is not None:
                self._departures.begin(existing, has_lost_data=bool(lost))
            # Also without a registration: an unregistered broker may still be eligible, and have lost data since.
            return _must_wait(request.node_id, moved)
        if existing is not None:
            self._replaced.setdefault(request.node_id, deque(maxlen=_MAX_REPLACED)).append(existing.incarnation)
        self._heartbeats.touch(request.node_id, now_ms=now_ms)
        return ControllerResult(records=(*moved, registration), respond=_registered(request), atomic=False)

    def unregister(self, view: MetadataDelta, request: UnregisterBrokerRequest) -> ControllerResult:
        broker = view.broker(request.node_id)
        if broker is None:
            raise BrokerIdNotRegisteredError(
                f"broker {request.node_id} is not registered; see them all: barnabas cluster describe"
            )
        moved, is_last = self._moved_away(view, frozenset({request.node_id}))
        if not is_last:
            self._departures.begin_unregistration(broker)
            return _must_wait(broker.node_id, moved)
        self._departures.end_unregistration(broker.node_id)
        self.refused.pop(request.node_id, None)
        return ControllerResult(records=(*moved, UnregisterBrokerRecord(node_id=request.node_id)), atomic=False)

    def _check_registration(self, view: MetadataDelta, request: RegisterBroker) -> None:
        if request.node_id < 0 or not request.endpoints or not request.incarnation:
            raise InvalidRequestError(
                "the registration of a broker needs a node id of at least 0, an incarnation and an endpoint"
            )
        if request.cluster_id and request.cluster_id != view.cluster_id:
            broker = f"the data folder of broker {request.node_id}"
            raise InconsistentClusterIdError(
                cluster_mismatch(broker, request.cluster_id, ("the controller", view.cluster_id))
            )
        if not request.min_feature_level <= view.feature_level <= request.max_feature_level:
            raise UnsupportedVersionError(
                f"the cluster uses feature level {view.feature_level}; broker {request.node_id} supports "
                f"{request.min_feature_level} to {request.max_feature_level}: install a compatible version"
            )

    def _check_history(self, view: MetadataDelta, request: RegisterBroker | BrokerHeartbeat) -> None:
        """`barnabas cluster health` lists refused brokers until they are accepted or removed from the cluster."""
        known = request.known if isinstance(request, RegisterBroker) else None
        try:
            check_position(view, request.node_id, known=known, applied=request.applied)
        except DivergentMetadataError as error:
            if request.node_id in self.refused or len(self.refused) < MAX_REFUSED:
                self.refused[request.node_id] = error.message
            raise
        if isinstance(request, RegisterBroker):
            self.refused.pop(request.node_id, None)

    def _is_late(self, broker: BrokerImage, request: RegisterBroker, now_ms: int) -> bool:
        """Whether it is a process that `broker` has replaced, which has a session, or is heard of before its first one."""
        if request.incarnation not in self._replaced.get(request.node_id, ()):
            return False
        window_ms = self._settings.duplicate_window_ms
        return not broker.fenced or self._heartbeats.heard_within(broker.node_id, window_ms, now_ms=now_ms)

    def _is_alive(self, broker: BrokerImage, request: RegisterBroker, now_ms: int) -> bool:
        """A controller that has just taken over has received no heartbeats. If a broker registers with the address of the former
        process, that process has ended, because a port has one owner: so after kill -9 of all brokers, no broker has to wait."""
        if not self._heartbeats.is_heard(broker.node_id) and request.endpoints == broker.endpoints:
            return False
        window_ms = self._settings.duplicate_window_ms
        return broker.is_active and self._heartbeats.heard_within(broker.node_id, window_ms, now_ms=now_ms)

    # --- heartbeats --------------------------------------------------------------------------------------------------

    def heartbeat(self, view: MetadataDelta, request: BrokerHeartbeat, now_ms: int) -> ControllerResult:
        broker = check_broker_epoch(view, request.node_id, request.broker_epoch)
        self._check_history(view, request)
        self._heartbeats.touch(request.node_id, now_ms=now_ms, metadata_offset=request.metadata_offset)
        if request.want_shut_down:
            return self._shut_down(view, broker)
        if request.want_fence:
            records, is_fenced = ((), True) if broker.fenced else self._fence(view, broker)
            return _heartbeat_result(records, fenced=is_fenced)
        stays_away = self._departures.is_unregistering(broker)
        if not stays_away and self._departures.is_cancelled(broker):
            self._replication.begin_sweep(view)  # it may be the only one that can lead what it has left
        caught_up = request.metadata_offset >= broker.broker_epoch
        if broker.fenced and caught_up and not broker.in_controlled_shutdown and not stays_away:
            return _heartbeat_result(self._unfence(view, broker), fenced=False)
        return _heartbeat_result((), fenced=broker.fenced)

    def _fence(self, view: MetadataDelta, broker: BrokerImage) -> tuple[tuple[Record, ...], bool]:
        """The records that fence an unfenced broker, or (False) the first piece; the departure continues at every tick."""
        assert not broker.fenced
        moved, is_last = self._moved_away(view, frozenset({broker.node_id}))
        if is_last:
            return (*moved, _change(broker, fenced=True)), True
        self._departures.begin(broker)
        return moved, False

    def depart(self, view: MetadataDelta) -> tuple[Record, ...]:
        """The next piece of all departures; () if there are none. The last piece fences the brokers, or lets them shut down."""
        if not self._departures:
            return ()
        moved, is_last = self._moved_away(view, self._departures.node_ids, self._departures.lost)
        if not is_last:
            return moved
        ended: list[Record] = []
        for node_id, departure in self._departures.end().items():
            broker = view.broker(node_id)
            assert broker is not None  # `departing` has dropped the others
            if departure.drains:
                ended.append(_change(broker, in_controlled_shutdown=True))
            elif not broker.fenced:
                ended.append(_change(broker, fenced=True))
        return (*moved, *ended)

    def departing(self, view: MetadataDelta) -> frozenset[int]:
        """The brokers that no decision may give anything. To be read before every decision."""
        self._departures.drop_ended(view)
        return self._departures.node_ids

    @property
    def has_more(self) -> bool:
        """Is the next piece due?"""
        return bool(self._departures or self._former)

    def fence_gone(self, view: MetadataDelta, request: FenceBroker) -> ControllerResult:
        """Fence one incarnation; no records if it is fenced already, or another one has registered since."""
        broker = view.broker(request.node_id)
        if broker is None or broker.fenced or broker.broker_epoch != request.broker_epoch:
            return ControllerResult()
        # One command would be too large for the quorum from 20,000 partitions on. The broker is fenced by the last one.
        records, _ = self._fence(view, broker)
        return ControllerResult(records=records, atomic=False)

    def fence_former_processes(self, view: MetadataDelta, has_open_piece: Callable[[], bool]) -> tuple[Record, ...]:
        """After a recovery, the state of the processes that were registered before is not known, and many will never return.

        All are fenced at once, so that every member of an ISR stays eligible. If they were fenced one by one, the first to
        register again (most often on the machine where the quorum was recovered) would lose its place to brokers that are gone.
        Of many partitions, this is the next piece: nothing may be decided before the last one, see `is_fencing_former_processes`.
        """
        if not self._former:
            return ()
        former = self._former & frozenset(unfenced_brokers(view))
        if not former:
            self._former = former
            return ()
        if has_open_piece():
            return ()
        moved, is_last = self._moved_away(view, former)
        if not is_last:
            return moved
        self._former = frozenset()
        brokers = (broker for broker in view.brokers().values() if broker.node_id in former)
        return (*moved, *(_change(broker, fenced=True) for broker in brokers))

    @property
    def is_fencing_former_processes(self) -> bool:
        return bool(self._former)

    def note_expired(self, view: MetadataDelta, now_ms: int) -> None:
        """Begin the departure of unfenced brokers whose session is over."""
        unfenced = unfenced_brokers(view)
        self._heartbeats.begin_unknown(unfenced, now_ms=now_ms)
        for node_id in self._heartbeats.expired(unfenced, now_ms=now_ms):
            broker = view.broker(node_id)
            assert broker is not None
            self._departures.begin(broker)

    def _unfence(self, view: MetadataDelta, broker: BrokerImage) -> tuple[Record, ...]:
        active = view.active_brokers() | {broker.node_id}
        self._replication.begin_sweep(view)
        return (
            _change(broker, fenced=False),
            *slot_moves(view, active=active),
            *self._replication.settle(view, active=active),
        )

    def _shut_down(self, view: MetadataDelta, broker: BrokerImage) -> ControllerResult:
        if broker.fenced:
            return _heartbeat_result((), fenced=True, may_shut_down=True)
        if not broker.in_controlled_shutdown:
            return _heartbeat_result(self._drain(view, broker), fenced=False)
        if not self._may_stop(view, broker):
            return _heartbeat_result((), fenced=False)
        records, is_fenced = self._fence(view, broker)
        return _heartbeat_result(records, fenced=is_fenced, may_shut_down=is_fenced)

    def _drain(self, view: MetadataDelta, broker: BrokerImage) -> tuple[Record, ...]:
        if broker.node_id in self._departures.node_ids:
            self._departures.begin(broker, drains=True)
            return ()  # ticks do the rest
        moved, is_last = self._moved_away(view, frozenset({broker.node_id}))
        if is_last:
            return (*moved, _change(broker, in_controlled_shutdown=True))
        self._departures.begin(broker, drains=True)
        return moved

    def _may_stop(self, view: MetadataDelta, broker: BrokerImage) -> bool:
        """Its leaderships have moved, and every active broker knows this: clients are directed to the new leaders already."""
        moved_at = self._shutdown_offsets.get(broker.node_id)
        if moved_at is None or leads_anything(view, broker.node_id):
            return False
        known = self._heartbeats.lowest_metadata_offset(view.active_brokers())
        return known is None or known >= moved_at

    def _moved_away(
        self, view: MetadataDelta, node_ids: frozenset[int], lost: frozenset[int] = frozenset()
    ) -> tuple[tuple[Record, ...], bool]:
        """The next piece, at most MAX_PARTITIONS_PER_STEP partitions; True: it is the last one."""
        active = view.active_brokers() - node_ids
        moved, is_last = self._replication.move_away(view, node_ids, active=active, lost=lost)
        return (*moved, *slot_moves(view, active=active)), is_last

    # --- committed records -------------------------------------------------------------------------------------------

    def restart(self, image: MetadataImage) -> None:
        """Take over: brokers that are shutting down wait until all brokers have the current image."""
        draining = [broker.node_id for broker in image.brokers.values() if broker.in_controlled_shutdown]
        self._shutdown_offsets = dict.fromkeys(draining, image.offset)
        self._replaced = {}
        self._departures.restart()
        self._former = _registered_before_recovery(image)
        self.refused = {}

    def committed(self, record: Record, index: int) -> None:
        if isinstance(record, BrokerChangeRecord) and record.in_controlled_shutdown and not record.fenced:
            self._shutdown_offsets[record.node_id] = index
        elif isinstance(record, RegisterBrokerRecord | UnregisterBrokerRecord):
            self._shutdown_offsets.pop(record.node_id, None)


def _registered_before_recovery(image: MetadataImage) -> frozenset[int]:
    """As long as no broker has registered since the recovery: the controller fences the former brokers before it accepts any
    registration, so an earlier controller may have failed before it had fenced all. Later, every unfenced broker has registered
    since then."""
    if any(broker.broker_epoch > image.recovery_offset for broker in image.brokers.values()):
        return frozenset()
    return frozenset(image.brokers)


def unfenced_brokers(view: MetadataDelta) -> tuple[int, ...]:
    return tuple(broker.node_id for broker in view.brokers().values() if not broker.fenced)


def _change(
    broker: BrokerImage, *, fenced: bool | None = None, in_controlled_shutdown: bool | None = None
) -> BrokerChangeRecord:
    return BrokerChangeRecord(
        node_id=broker.node_id,
        broker_epoch=broker.broker_epoch,
        fenced=broker.fenced if fenced is None else fenced,
        in_controlled_shutdown=(
            broker.in_controlled_shutdown if in_controlled_shutdown is None else in_controlled_shutdown
        ),
    )


def _heartbeat_result(records: tuple[Record, ...], *, fenced: bool, may_shut_down: bool = False) -> ControllerResult:
    response = HeartbeatAnswer(fenced=fenced, may_shut_down=may_shut_down)
    return ControllerResult(records=records, respond=answer(response), atomic=False)


def _must_wait(node_id: int, moved: tuple[Record, ...]) -> ControllerResult:
    """A request that replaces or removes the broker must be repeated: its partitions are moved away in pieces first."""
    error = BrokerNotAvailableError(
        f"the partitions of broker {node_id} are being moved to other brokers first; try again in a moment"
    )
    return ControllerResult(records=moved, respond=answer(error), atomic=False)


def _registered(request: RegisterBroker) -> Respond:
    """The epoch is read from the image: it is the index of the registration, and a retry gets the same epoch."""

    def respond(index: int, image: MetadataImage) -> object:
        broker = image.brokers.get(request.node_id)
        if broker is None or broker.incarnation != request.incarnation:
            raise StaleBrokerEpochError(
                f"broker {request.node_id} has been registered by another process meanwhile; register again"
            )
        return Registered(
            broker_epoch=broker.broker_epoch,
            offset=index,
            recovery_epoch=image.recovery_epoch,
            recovery_offset=image.recovery_offset,
        )

    return respond
