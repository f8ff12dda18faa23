"""FindCoordinator (10), ConsumerGroupHeartbeat (68), OffsetCommit (8), OffsetFetch (9), ListGroups (16), DescribeGroups (15),
DeleteGroup (42), ResetOffsets (1002): consumer groups.

Versions: 0. Behaviour: KIP-848's, with the coordinator of the group's slot; any other broker answers NOT_COORDINATOR. A reply
leaves once the quorum has committed what it tells. Differs from Kafka: ResetOffsets works on a group that is running.
"""

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.log.errors import CoordinatorNotAvailableError
from barnabas.net.dispatcher import RequestContext
from barnabas.net.protocol.requests import (
    ConsumerGroupHeartbeatRequest,
    DeleteGroupRequest,
    DescribeGroupRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ResetOffsetsRequest,
)
from barnabas.net.protocol.responses import FindCoordinatorResponse

from .services import Services


class GroupHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def find_coordinator(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        node_id = self._services.groups.coordinator_of(request.group_id)
        broker = self._services.metadata.image.brokers.get(node_id)
        if broker is None:
            raise CoordinatorNotAvailableError(f"the coordinator of {request.group_id!r} is leaving the cluster; try again")
        endpoint = broker.endpoint(context.listener_name)
        return FindCoordinatorResponse(node_id=node_id, host=endpoint.host, port=endpoint.port)
