"""`Controller`: turns requests into records, on top of all its earlier decisions.

Decide -> records -> appended -> committed -> replay. A decision reads the *overlay*: the committed image plus every record that
was appended but is not committed yet, so that two decisions never build on the same old state. Nothing here appends, waits or
knows about terms: `metadata_node` does, and discards the overlay when leadership is lost.

The decisions themselves are in the control managers, by noun.
"""

import random
from collections.abc import Callable, Container, Iterable
from typing import cast

from barnabas.log.vocabulary.cluster_changes import (
    AddPartitionsRequest,
    AlterQuotasRequest,
    AlterUsersRequest,
    AssignReplicasRequest,
    ElectLeaderRequest,
    UnregisterBrokerRequest,
)
from barnabas.log.vocabulary.errors import BrokerNotAvailableError, InvalidRequestError

from ..access.acl_control import DECISIONS as ACL_DECISIONS
from ..access.quota_control import alter_quotas
from ..access.user_control import alter_users
from ..group_state.group_state import GROUP_RECORDS
from ..metadata.cluster_settings import unset_values
from ..metadata.controller_result import ControllerResult
from ..metadata.controller_settings import ControllerSettings
from ..metadata.delta import MetadataDelta
from ..metadata.image import MetadataImage, TopicImage
from ..metadata.records import TOPIC_RESOURCE, ConfigRecord, Record
from ..metadata.replay import replay
from ..metadata.requests import (
    AllocateProducerIds,
    AlterConfig,
    AlterPartition,
    AppendGroupRecords,
    BrokerHeartbeat,
    ControllerRequest,
    CreateTopic,
    DeleteTopic,
    FenceBroker,
    RegisterBroker,
    RenewSlot,
    ReportLogEnds,
    ReportOfflineReplicas,
    ResignReplica,
)
from ..metadata.topic_settings import CLUSTER_DEFAULT, MIN_INSYNC_REPLICAS, UNCLEAN_LEADER_ELECTION, min_insync
from .cluster_control import ClusterControl, unfenced_brokers
from .configuration_control import ANY_CONFIG, ConfigRules, ConfigurationControl
from .decommission_control import DECISIONS, next_moves
from .group_control import append_records, balancing_moves, renew_slot, slot_moves
from .leader_balance import LeaderBalance
from .memory.broker_heartbeats import BrokerHeartbeats
from .memory.mutation_quota import MutationQuota
from .producer_id_control import allocate
from .reassignment_control import assign_replicas, end_throttle
from .replication_control import ReplicationControl
from .storage_control import report_storage
from .topic_control import TopicControl, changed_partitions

# In the overlay, the broker epoch of a registration that is not committed: no broker knows it, so none can use it. It never gets
# into a record, because only the epoch of an unfenced broker does, and a broker is registered fenced.
PROVISIONAL_INDEX = 2**63 - 1
_NEVER_MS = -(2**62)  # "the last check was long ago"

_Decide = Callable[[MetadataDelta, ControllerRequest, int], ControllerResult]


class Controller:
    """The decider. Active only between `activate` and `deactivate`."""

    def __init__(
        self,
        *,
        settings: ControllerSettings,
        rng: random.Random,
        config_rules: ConfigRules = ANY_CONFIG,
    ) -> None:
        self._settings = settings
        self._overlay: MetadataDelta | None = None
        self._heartbeats = BrokerHeartbeats(
            session_timeout_ms=settings.session_timeout_ms, takeover_grace_ms=settings.takeover_grace_ms
        )
        self._balance = LeaderBalance(settings)
        self._replication = ReplicationControl(settings)
        self._cluster = ClusterControl(settings, self._heartbeats, self._replication)
        self._configurations = ConfigurationControl(config_rules)
        self._topics = TopicControl(settings, rng, self._configurations)
        self._mutations = MutationQuota()
        self._sessions_begun = False
        self._last_check_ms: dict[str, int] = {}
        self._decide = self._decisions()

    # --- the lifetime of a controller ---------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        return self._overlay is not None

    @property
    def overlay(self) -> MetadataDelta:
        """The state on which the next decision is based."""
        assert self._overlay is not None, "only an active controller decides"
        return self._overlay

    @property
    def refused_brokers(self) -> tuple[str, ...]:
        """The reasons why brokers were refused whose metadata contradicts that of this quorum."""
        return tuple(self._cluster.refused[node_id] for node_id in sorted(self._cluster.refused))

    def activate(self, image: MetadataImage) -> None:
        """Take over, with everything that earlier controllers did committed in `image`.

        The time is not known here: every broker's session begins at the first `now_ms`.
        """
        self._overlay = MetadataDelta(image)
        self._heartbeats.restart()
        self._cluster.restart(image)
        self._replication.restart()
        self._balance.restart()
        self._sessions_begun = False
        self._last_check_ms = {}

    def deactivate(self) -> None:
        """Discard the overlay: appended records may be lost."""
        self._overlay = None

    def appended(self, records: Iterable[Record]) -> None:
        """These records were passed to the quorum: decisions are based on them from now on."""
        for record in records:
            if not isinstance(record, GROUP_RECORDS):
                replay(self.overlay, record, PROVISIONAL_INDEX)

    def committed(
        self, image: MetadataImage, records: Iterable[tuple[int, Record]], pending: Iterable[tuple[Record, ...]]
    ) -> None:
        """`records` (index, record) are part of `image` now; `pending` were appended and still wait."""
        for index, record in records:
            self._cluster.committed(record, index)
            self._balance.committed(record)
        self._overlay = MetadataDelta(image)
        for batch in pending:
            self.appended(batch)

    def unset_cluster_settings(self) -> tuple[Record, ...]:
        """The records that must be appended before anything is decided; () once the cluster has all its settings."""
        view = self.overlay
        unset = unset_values(view, self._settings)
        relieved: list[Record] = []
        for record in unset:
            if record.key == MIN_INSYNC_REPLICAS:  # an earlier controller may have used another value
                topics = [topic for topic in view.topics() if MIN_INSYNC_REPLICAS not in view.topic_config(topic.name)]
                relieved = self._relieved(view, topics, min_insync(record.value, self._settings))
        return (*unset, *relieved)

    def fence_former_processes(self, has_open_piece: Callable[[], bool]) -> tuple[Record, ...]:
        """The records that fence the brokers that registered before a recovery, to be appended before any decision; usually
        ()."""
        return self._cluster.fence_former_processes(self.overlay, has_open_piece)

    # --- decisions ---------------------------------------------------------------------------------------------------

    def decide(self, request: ControllerRequest, now_ms: int) -> ControllerResult:
        """Raises a BarnabasError to refuse; a refusal is based on the overlay, too, and must wait for it like any answer."""
        view = self._current(now_ms)
        if self._cluster.is_fencing_former_processes:
            raise BrokerNotAvailableError(
                "the controller is still fencing the brokers that were registered before the recovery; try again in a moment"
            )
        decide = self._decide.get(type(request))
        if decide is None:
            raise InvalidRequestError(f"the controller does not decide on {type(request).__name__}")
        return decide(view, request, now_ms)

    def _decisions(self) -> dict[type, _Decide]:
        return cast(
            dict[type, _Decide],
            {
                RegisterBroker: self._cluster.register,
                BrokerHeartbeat: self._cluster.heartbeat,
                UnregisterBrokerRequest: _timeless(self._cluster.unregister),
                AlterPartition: _timeless(self._replication.alter_partition),
                ResignReplica: _timeless(self._replication.resign),
                ReportLogEnds: self._replication.report_log_ends,
                ElectLeaderRequest: _timeless(self._replication.elect_leader),
                AssignReplicasRequest: self._with_settings(assign_replicas),
                CreateTopic: self._limited(self._topics.create),
                DeleteTopic: self._limited(self._topics.delete),
                AddPartitionsRequest: self._limited(self._topics.add_partitions),
                AlterConfig: _timeless(self._alter_config),
                AllocateProducerIds: _timeless(allocate),
                AppendGroupRecords: _timeless(append_records),
                RenewSlot: _timeless(renew_slot),
                FenceBroker: _timeless(self._cluster.fence_gone),
                AlterUsersRequest: _timeless(alter_users),
                AlterQuotasRequest: _timeless(alter_quotas),
                ReportOfflineReplicas: self._with_settings(report_storage),
                **{request: self._with_settings(decide) for request, decide in DECISIONS.items()},
                **{request: _timeless(decide) for request, decide in ACL_DECISIONS.items()},
            },
        )

    def _with_settings(self, decide: Callable[..., ControllerResult]) -> _Decide:
        return lambda view, request, now_ms: decide(view, self._settings, request)

    def _limited(self, decide: Callable[..., ControllerResult]) -> _Decide:
        """Refuse requests that create or remove partitions faster than the quota allows, before any work is done."""

        def limited(view: MetadataDelta, request: ControllerRequest, now_ms: int) -> ControllerResult:
            self._mutations.check(now_ms)
            result = decide(view, request)
            self._mutations.charge(changed_partitions(view, result.records))
            return result

        return limited

    def _alter_config(self, view: MetadataDelta, request: AlterConfig) -> ControllerResult:
        result = self._configurations.alter(view, request)
        changed = {record.key: record.value for record in result.records if isinstance(record, ConfigRecord)}
        if UNCLEAN_LEADER_ELECTION in changed:
            self._replication.begin_sweep(view)  # requests that wait for this need a leader at the next tick
        if MIN_INSYNC_REPLICAS not in changed:
            return result
        value = changed[MIN_INSYNC_REPLICAS]
        if value is None:
            value = view.broker_config(CLUSTER_DEFAULT).get(MIN_INSYNC_REPLICAS)
        relieved = self._relieved(view, _topics_of(view, request), min_insync(value, self._settings))
        return ControllerResult(records=(*result.records, *relieved), respond=result.respond)

    def _relieved(self, view: MetadataDelta, topics: Iterable[TopicImage], min_insync_replicas: int) -> list[Record]:
        return [
            record
            for topic in topics
            for record in self._replication.relieve_eligible(view, topic, min_insync_replicas=min_insync_replicas)
        ]

    # --- maintenance -------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int, *, occupied_slots: Container[int] = ()) -> tuple[Record, ...]:
        """The next piece of work without a request, or (). Call again after appending it: there may be more.

        `occupied_slots` have groups, or had groups: they never move only for balance.
        """
        if self._cluster.is_fencing_former_processes:
            return ()
        self._cluster.note_expired(self.overlay, now_ms)
        view = self._current(now_ms)
        urgent = self._cluster.depart(view) or slot_moves(view, active=view.active_brokers()) or self._swept(view)
        if urgent:
            return urgent
        for name, (interval_ms, work) in self._periodic(occupied_slots, now_ms).items():
            if now_ms - self._last_check_ms.get(name, _NEVER_MS) >= interval_ms:
                self._last_check_ms[name] = now_ms
                records = work(view)
                if records:
                    return records
        return ()

    @property
    def has_more_pieces(self) -> bool:
        """Is the next piece of a decision about very many partitions due?"""
        return self._cluster.has_more or self._replication.is_sweeping

    def next_deadline_ms(self, now_ms: int) -> int:
        """When `tick` is due again, unless something happens before."""
        if self.has_more_pieces:
            return now_ms
        deadlines = [
            self._last_check_ms.get(name, _NEVER_MS) + interval_ms
            for name, (interval_ms, _) in self._periodic((), now_ms).items()
        ]
        expiry_ms = self._heartbeats.next_expiry_ms(unfenced_brokers(self.overlay))
        if expiry_ms is not None:
            deadlines.append(expiry_ms)
        return max(now_ms, min(deadlines))

    def _periodic(
        self, occupied_slots: Container[int], now_ms: int
    ) -> dict[str, tuple[int, Callable[[MetadataDelta], tuple[Record, ...]]]]:
        work: dict[str, tuple[int, Callable[[MetadataDelta], tuple[Record, ...]]]] = {
            "leaderless": (self._settings.leaderless_check_interval_ms, self._begin_sweep),
            "slots": (
                self._settings.slot_balance_interval_ms,
                lambda view: balancing_moves(view, occupied=occupied_slots),
            ),
            "leaving": (self._settings.move_check_interval_ms, lambda view: next_moves(view, self._settings)),
            "throttle": (self._settings.move_check_interval_ms, end_throttle),
        }
        if self._settings.auto_preferred_leaders:
            interval_ms = self._settings.preferred_leader_check_interval_ms
            work["preferred"] = (interval_ms, self._balance.preferred_leaders)
            work["returned"] = (
                self._settings.returned_leader_check_interval_ms,
                lambda view: self._balance.returned_leaders(view, now_ms),
            )
        return work

    def _begin_sweep(self, view: MetadataDelta) -> tuple[Record, ...]:
        if not self._replication.is_sweeping:
            self._replication.begin_sweep(view)
        return self._swept(view)

    def _swept(self, view: MetadataDelta) -> tuple[Record, ...]:
        """The next piece of the sweep; () if it has found nothing, or there is none."""
        if not self._replication.is_sweeping:
            return ()
        return self._replication.settle(view, active=view.active_brokers())

    def _current(self, now_ms: int) -> MetadataDelta:
        """The overlay, with what decisions must know of brokers."""
        view = self.overlay
        self._begin_sessions(view, now_ms)
        view.departing = self._cluster.departing(view)
        return view

    def _begin_sessions(self, view: MetadataDelta, now_ms: int) -> None:
        if not self._sessions_begun:
            self._heartbeats.begin_unknown(unfenced_brokers(view), now_ms=now_ms)
            # A new controller does not at once move back a leader that has just been moved.
            self._last_check_ms["preferred"] = now_ms
            self._sessions_begun = True


def _topics_of(view: MetadataDelta, request: AlterConfig) -> list[TopicImage]:
    """The topics whose effective configuration a change affects."""
    if request.resource_type == TOPIC_RESOURCE:
        topic = view.topic(request.resource)
        return [] if topic is None else [topic]
    if request.resource != CLUSTER_DEFAULT:
        return []
    return [topic for topic in view.topics() if MIN_INSYNC_REPLICAS not in view.topic_config(topic.name)]


def _timeless(decide: Callable[..., ControllerResult]) -> _Decide:
    return lambda view, request, now_ms: decide(view, request)
