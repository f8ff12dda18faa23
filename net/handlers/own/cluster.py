"""DescribeCluster (60), UnregisterBroker (64), BrokerShutdown (1003), Events (1023): the cluster as a whole.

Versions: 0. Behaviour: descriptions come from the image of the broker that is asked; changes go to the active controller. Events
are those that the asked broker keeps, with or without a quorum; a question may wait for the next one.
"""

from collections import Counter
from collections.abc import Callable

from barnabas.kraft.metadata.image import BrokerImage, MetadataImage
from barnabas.log.vocabulary.cluster_changes import BrokerIdNotRegisteredError, UnregisterBrokerRequest
from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.net.base.settings.cluster_settings import cluster_values, differing
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.event_messages import EventsRequest, EventsResponse
from barnabas.net.wire.protocol.requests import BrokerShutdownRequest, DescribeClusterRequest
from barnabas.net.wire.protocol.responses import (
    ClusterBroker,
    DescribeClusterResponse,
    EmptyResponse,
    IgnoredSetting,
    TroubledFolder,
)

from ..common.changes import decided
from ..common.services import Services
from .metadata import KNOWN_WITHIN_MS


class ClusterHandlers:
    def __init__(self, services: Services, *, shut_down: Callable[[], None]) -> None:
        self._services = services
        self._shut_down = shut_down

    async def describe_cluster(
        self, request: DescribeClusterRequest, context: RequestContext
    ) -> DescribeClusterResponse:
        if not self._services.metadata.image.brokers:
            await self._services.metadata.wait_until_known(timeout_ms=KNOWN_WITHIN_MS)
        image = self._services.metadata.image
        replicas = Counter(
            replica
            for topic in image.topics.values()
            for partition in topic.partitions
            for replica in partition.replicas
        )
        slots = Counter(slot.coordinator for slot in image.slots)
        brokers = []
        for broker in sorted(image.brokers.values(), key=lambda broker: broker.node_id):
            endpoint = broker.endpoint(context.listener_name)
            admin = broker.admin_endpoint
            brokers.append(
                ClusterBroker(
                    node_id=broker.node_id,
                    host=endpoint.host,
                    port=endpoint.port,
                    rack=broker.rack,
                    machine=broker.machine,
                    fenced=broker.fenced,
                    in_controlled_shutdown=broker.in_controlled_shutdown,
                    broker_epoch=broker.broker_epoch,
                    admin_host=admin.host if admin else "",
                    admin_port=admin.port if admin else -1,
                    troubled_folders=tuple(
                        TroubledFolder(path=item.path, state=item.state, cause=item.cause, since_ms=item.since_ms)
                        for item in broker.troubled_folders
                    ),
                    decommissioning=broker.decommissioning,
                    replica_count=replicas[broker.node_id],
                    slot_count=slots[broker.node_id],
                    ignored_settings=_ignored_settings(broker, image),
                )
            )
        return DescribeClusterResponse(
            cluster_id=image.cluster_id,
            controller_id=image.controller_id,
            offset=image.offset,
            brokers=tuple(brokers),
            settings=cluster_values(image),
            quarantined=self._services.metadata.quarantined,
        )

    async def events(self, request: EventsRequest, context: RequestContext) -> EventsResponse:
        services = self._services
        return await services.events.wait_and_select(request, services.metadata.unconfirmed_ms)

    async def unregister(self, request: UnregisterBrokerRequest, context: RequestContext) -> EmptyResponse:
        await decided(self._services, request, done_already=(BrokerIdNotRegisteredError,))
        return EmptyResponse()

    async def shut_down(self, request: BrokerShutdownRequest, context: RequestContext) -> EmptyResponse:
        if request.node_id != self._services.node_id:
            raise InvalidRequestError(
                f"this is broker {self._services.node_id}, not {request.node_id}; send the shutdown to that broker"
            )
        self._shut_down()
        return EmptyResponse()


def _ignored_settings(broker: BrokerImage, image: MetadataImage) -> tuple[IgnoredSetting, ...]:
    found = differing(broker.file_settings, cluster_values(image))
    return tuple(
        IgnoredSetting(key=key, of_file=of_file, of_cluster=of_cluster) for key, (of_file, of_cluster) in found.items()
    )
