"""DescribeStorage (1004), BringBackFolder (1005): the data folders of the broker that is asked.

Versions: 0. Behaviour: only the broker itself can examine its disks, so a request for another one is refused. Bringing a
folder back is answered when its replicas are online again in the metadata; they may still lag then.
"""

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.net.logs.storage_service import StorageService
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.requests import BringBackFolderRequest, DescribeStorageRequest
from barnabas.net.wire.protocol.responses import DescribeStorageResponse, PartitionSize


class StorageHandlers:
    def __init__(self, node_id: int, storage: StorageService) -> None:
        self._node_id = node_id
        self._storage = storage

    async def describe(self, request: DescribeStorageRequest, context: RequestContext) -> DescribeStorageResponse:
        self._check_node(request.node_id)
        described = await self._storage.describe()
        sizes = {
            place.partition: size_bytes
            for found in described
            for place, size_bytes in found.sizes.items()
            if request.topic and place.topic == request.topic
        }
        return DescribeStorageResponse(
            node_id=self._node_id,
            folders=tuple(found.folder for found in described),
            sizes=tuple(PartitionSize(partition=number, size_bytes=size) for number, size in sorted(sizes.items())),
        )

    async def bring_back(self, request: BringBackFolderRequest, context: RequestContext) -> DescribeStorageResponse:
        self._check_node(request.node_id)
        return DescribeStorageResponse(node_id=self._node_id, folders=(await self._storage.bring_back(request.path),))

    def _check_node(self, node_id: int) -> None:
        if node_id != self._node_id:
            raise InvalidRequestError(f"this is broker {self._node_id}, not {node_id}; send the request to that broker")
