"""The states of share partitions at the coordinators of their groups: here, or at another broker."""

from barnabas.log.vocabulary.errors import BrokerNotAvailableError
from barnabas.log.vocabulary.share.messages import (
    LoadShareStatesRequest,
    LoadShareStatesResponse,
    WriteShareStatesRequest,
    WriteShareStatesResponse,
)
from barnabas.net.metadata.broker_to_controller import ControllerChannel

from ..groups.group_service import GroupService

ASK_TIMEOUT_MS = 5_000  # of one attempt; a request that a cut has swallowed is repeated after it


class ShareStateStore:
    """All methods raise what the coordinator answers. After a NetworkError, a RequestTimedOutError or a
    CoordinatorNotAvailableError, the outcome of a write is not known."""

    def __init__(self, *, node_id: int, groups: GroupService, controller: ControllerChannel) -> None:
        self._node_id = node_id
        self._groups = groups
        self._controller = controller

    async def load(self, request: LoadShareStatesRequest) -> LoadShareStatesResponse:
        node_id = self._groups.place_of(request.group_id).coordinator
        if node_id == self._node_id:
            return await self.load_here(request)
        answer = await self._ask(node_id, request)
        assert isinstance(answer, LoadShareStatesResponse)
        return answer

    async def write(self, request: WriteShareStatesRequest) -> WriteShareStatesResponse:
        node_id = self._groups.place_of(request.group_id).coordinator
        if node_id == self._node_id:
            return await self.write_here(request)
        answer = await self._ask(node_id, request)
        assert isinstance(answer, WriteShareStatesResponse)
        return answer

    async def load_here(self, request: LoadShareStatesRequest) -> LoadShareStatesResponse:
        groups = self._groups
        return await groups.handle_slot(
            request.group_id, lambda machine: machine.shares.states.load(request, groups.topic_ids, groups.now_ms())
        )

    async def write_here(self, request: WriteShareStatesRequest) -> WriteShareStatesResponse:
        groups = self._groups
        return await groups.handle_slot(
            request.group_id, lambda machine: machine.shares.states.write(request, groups.now_ms())
        )

    async def _ask(self, node_id: int, request: LoadShareStatesRequest | WriteShareStatesRequest) -> object:
        try:
            return await self._controller.ask_broker(node_id, request, timeout_ms=ASK_TIMEOUT_MS)
        except OSError as error:
            raise BrokerNotAvailableError(f"broker {node_id} cannot be reached: {error}") from error
