"""ShareGroupHeartbeat (76), ShareFetch (78), ShareAcknowledge (79), LoadShareStates (1030), WriteShareStates (1031), ShareViews
(1033): share groups.

Versions: 0. Behaviour: KIP-932's. The coordinator of the group's slot keeps its members and states, leaders of partitions give
records out. Leaders load states from the coordinator and write them there; it asks leaders for the locks, which only they know.
An acknowledgement is answered when the quorum has its effect. Differs from Kafka: the start of a group in a partition is stored
at the first read, so that a new leader begins at the same record; a session belongs to its connection and its user.
"""

from barnabas.kraft.metadata.feature_levels import SHARE_GROUPS_LEVEL, brokers_below
from barnabas.log.vocabulary.errors import UnsupportedVersionError
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatResponse
from barnabas.log.vocabulary.share.messages import (
    LoadShareStatesRequest,
    LoadShareStatesResponse,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
    ShareViewsRequest,
    ShareViewsResponse,
    WriteShareStatesRequest,
    WriteShareStatesResponse,
)
from barnabas.net.base.limits import check_count, check_number
from barnabas.net.base.settings.group_config import share_times_of
from barnabas.net.server.dispatcher import RequestContext

from ..common.services import Services


class ShareHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._groups = services.groups
        self._shares = services.shares

    async def heartbeat(
        self, request: ShareGroupHeartbeatRequest, context: RequestContext
    ) -> ConsumerGroupHeartbeatResponse:
        image = self._services.metadata.image
        below = (
            ()
            if image.feature_level >= SHARE_GROUPS_LEVEL
            else brokers_below(SHARE_GROUPS_LEVEL, image.brokers.values())
        )
        if below:
            raise UnsupportedVersionError(f"brokers {list(below)} do not support share groups: upgrade them first")
        groups = self._groups
        times = share_times_of(image.group_configs.get(request.group_id, {}))
        asked = ShareGroupHeartbeatRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            subscribed_topics=request.subscribed_topics,
            rack=request.rack,
            client_id=request.client_id or context.client_id,
        )
        return await groups.handle_slot(
            request.group_id,
            lambda machine: machine.shares.heartbeat(
                asked,
                groups.now_ms(),
                client_host=context.client_host,
                principal=str(context.principal),
                session_timeout_ms=times.session_timeout_ms,
                interval_ms=times.heartbeat_interval_ms,
            ),
        )

    async def fetch(self, request: ShareFetchRequest, context: RequestContext) -> ShareFetchResponse:
        check_count(request.partitions)
        return await self._shares.fetch(request, context)

    async def acknowledge(self, request: ShareAcknowledgeRequest, context: RequestContext) -> ShareFetchResponse:
        check_count(request.partitions)
        return await self._shares.acknowledge(request, context)

    async def load_states(self, request: LoadShareStatesRequest, context: RequestContext) -> LoadShareStatesResponse:
        return await self._shares.store.load_here(request)

    async def write_states(self, request: WriteShareStatesRequest, context: RequestContext) -> WriteShareStatesResponse:
        return await self._shares.store.write_here(request)

    async def views(self, request: ShareViewsRequest, context: RequestContext) -> ShareViewsResponse:
        check_number(sum(len(item.partitions) for item in request.partitions))
        return await self._shares.views.here(request)
