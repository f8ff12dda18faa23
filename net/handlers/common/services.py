"""The services of a broker that handlers use; `net.broker` creates them and passes them to every handler."""

import random
from dataclasses import dataclass, field
from typing import Protocol

from barnabas.log.vocabulary.errors import UnsupportedVersionError
from barnabas.net.base.clock import Clock
from barnabas.net.base.figures.producer_samples import ProducerSamples
from barnabas.net.base.figures.request_measures import RequestMeasures
from barnabas.net.base.settings.config import BrokerConfig
from barnabas.net.base.settings.group_config import GroupTimes, times_of
from barnabas.net.coordination.groups.group_service import GroupService
from barnabas.net.coordination.shares.share_service import ShareService
from barnabas.net.coordination.transactions.marker_writer import MarkerWriter
from barnabas.net.coordination.transactions.transaction_operations import TransactionOperations
from barnabas.net.coordination.transactions.transaction_service import TransactionService
from barnabas.net.coordination.transactions.verification import TransactionVerification
from barnabas.net.logs.following.replication_throttle import ReplicationThrottle
from barnabas.net.logs.replication_service import ReplicationService
from barnabas.net.metadata.broker_to_controller import ControllerChannel
from barnabas.net.metadata.events.event_log import EventLog
from barnabas.net.metadata.metadata_service import MetadataService
from barnabas.net.metadata.producer_ids import ProducerIds
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.server.logins.authenticator import Authenticator
from barnabas.net.server.memory_budget import MemoryBudget
from barnabas.net.server.quotas.client_quotas import ClientQuotas
from barnabas.net.wire.protocol.broker_figures import DescribeBrokerRequest, DescribeBrokerResponse
from barnabas.net.wire.protocol.group_responses import LagPoint
from barnabas.net.wire.protocol.lag import GroupLagsRequest, GroupLagsResponse


class Figures(Protocol):
    """What a broker measures of itself."""

    @property
    def measures(self) -> RequestMeasures: ...
    @property
    def producers(self) -> ProducerSamples: ...
    async def describe(self, request: DescribeBrokerRequest, context: RequestContext) -> DescribeBrokerResponse: ...
    async def lags_of(self, group_id: str) -> tuple[tuple[LagPoint, ...], tuple[str, ...]]: ...
    async def group_lags_request(self, request: GroupLagsRequest, context: RequestContext) -> GroupLagsResponse: ...


class NoFigures:
    """Measures for nobody."""

    def __init__(self) -> None:
        self.measures = RequestMeasures()
        self.producers = ProducerSamples()

    async def describe(self, request: DescribeBrokerRequest, context: RequestContext) -> DescribeBrokerResponse:
        raise UnsupportedVersionError("this broker does not measure itself")

    async def lags_of(self, group_id: str) -> tuple[tuple[LagPoint, ...], tuple[str, ...]]:
        return (), ()

    async def group_lags_request(self, request: GroupLagsRequest, context: RequestContext) -> GroupLagsResponse:
        raise UnsupportedVersionError("this broker does not measure groups")


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    node_id: int
    config: BrokerConfig
    clock: Clock
    metadata: MetadataService
    controller: ControllerChannel
    replication: ReplicationService
    groups: GroupService
    rng: random.Random
    throttle: ReplicationThrottle
    producer_ids: ProducerIds
    transactions: TransactionService
    markers: MarkerWriter
    transaction_operations: TransactionOperations
    verification: TransactionVerification
    shares: ShareService
    authenticator: Authenticator
    events: EventLog
    memory: MemoryBudget = field(default_factory=MemoryBudget)
    quotas: ClientQuotas = field(default_factory=lambda: ClientQuotas({}))
    figures: Figures = field(default_factory=NoFigures)

    def group_times(self, group_id: str) -> GroupTimes:
        """The settings for members in the configuration of a group."""
        return times_of(self.metadata.image.group_configs.get(group_id, {}))
