"""AlterVoters (1006) and QuorumRole (1007): the voters of the quorum, changed online; DescribeQuorum (55).

Versions: 0. Behaviour: the broker that is asked carries out the procedure: it makes the new voter open its quorum port, and
asks the quorum's leader repeatedly until the change is committed. The procedure may be abandoned at any point: a learner
expires.
"""

import asyncio
from collections.abc import Sequence

from barnabas.kraft.metadata.requests import AlterVoters, DescribeVoters, VotersAnswer
from barnabas.kraft.quorum.voters import QuorumStatus
from barnabas.log.vocabulary.errors import BarnabasError, InvalidRequestError, RequestTimedOutError
from barnabas.net.metadata.metadata_service import RoleSource
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.requests import (
    AlterVotersRequest,
    DescribeQuorumRequest,
    MetadataRequest,
    QuorumRoleRequest,
)
from barnabas.net.wire.protocol.responses import (
    AlterVotersResponse,
    DescribeQuorumResponse,
    QuorumRoleResponse,
)

from ..common.services import Services

POLL_S = 0.05
ROLE_TIMEOUT_MS = 5_000  # a broker opens its port and its journal in a few milliseconds
DESCRIBE_TIMEOUT_MS = 1_000  # without a leader the answer contains the rest
PROBE_TIMEOUT_MS = 1_000  # a live voter answers in milliseconds; all are asked in parallel


class VoterHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def alter(self, request: AlterVotersRequest, context: RequestContext) -> AlterVotersResponse:
        deadline_ms = self._services.clock.now_ms() + request.timeout_ms
        node_id = request.node_id
        await self._ask(AlterVoters(node_id=node_id, add=request.add, check_only=True), deadline_ms)
        host, port = await self._open_port(node_id) if request.add else ("", 0)
        change = AlterVoters(node_id=node_id, add=request.add, host=host, port=port)
        while not (progress := await self._ask(change, deadline_ms)).done:
            if self._services.clock.now_ms() >= deadline_ms:
                raise RequestTimedOutError(f"not done within {request.timeout_ms} ms: {progress.state}")
            await asyncio.sleep(POLL_S)
            if not request.add and node_id == self._services.node_id:
                # The new leader sends nothing to a former voter: until this broker observes, it knows no leader to ask, and its
                # heartbeats reach nobody.
                await self._role().look()
        if not request.add:
            await self._tell_removed(node_id)
        return AlterVotersResponse(state=progress.state)

    async def _ask(self, request: AlterVoters, deadline_ms: int) -> VotersAnswer:
        remaining_ms = max(1, deadline_ms - self._services.clock.now_ms())
        answer = await self._services.controller.call(request, timeout_ms=remaining_ms)
        assert isinstance(answer, VotersAnswer)
        return answer

    async def _open_port(self, node_id: int) -> tuple[str, int]:
        if node_id == self._services.node_id:
            return await self._join()
        answer = await self._services.controller.ask_broker(
            node_id, QuorumRoleRequest(node_id=node_id, join=True), timeout_ms=ROLE_TIMEOUT_MS
        )
        assert isinstance(answer, QuorumRoleResponse)
        return answer.host, answer.port

    async def _tell_removed(self, node_id: int) -> None:
        """Tell the removed voter. It also finds out by itself; a dead one need not."""
        try:
            if node_id == self._services.node_id:
                await self._role().look()
            else:
                request = QuorumRoleRequest(node_id=node_id, join=False)
                await self._services.controller.ask_broker(node_id, request, timeout_ms=ROLE_TIMEOUT_MS)
        except BarnabasError:
            pass

    def _role(self) -> RoleSource:
        return self._services.metadata.role

    async def role(self, request: QuorumRoleRequest, context: RequestContext) -> QuorumRoleResponse:
        if request.node_id != self._services.node_id:
            raise InvalidRequestError(f"this is broker {self._services.node_id}, not {request.node_id}")
        if not request.join:
            await self._role().look()
            return QuorumRoleResponse(host="", port=-1)
        host, port = await self._join()
        return QuorumRoleResponse(host=host, port=port)

    async def _join(self) -> tuple[str, int]:
        try:
            return await self._role().join()
        except OSError as error:
            raise InvalidRequestError(
                f"broker {self._services.node_id} cannot open its quorum port ({error}): set quorum.listener in its"
                " server.properties to a free address and start it again"
            ) from error

    async def describe(self, request: DescribeQuorumRequest, context: RequestContext) -> DescribeQuorumResponse:
        """The leader knows the live voters and their log ends; without an answer, use this broker's image."""
        metadata = self._services.metadata
        found: QuorumStatus | None = None
        if metadata.leadership.leader_id is not None:
            try:
                answer = await self._services.controller.call(DescribeVoters(), timeout_ms=DESCRIBE_TIMEOUT_MS)
                assert isinstance(answer, QuorumStatus)
                found = answer
            except BarnabasError:
                pass  # the leader is unreachable: answer from the image
        image, leader_id = metadata.image, (found or metadata.leadership).leader_id
        told = image.voters or self._services.config.voters()
        voters = tuple(
            sorted(item.node_id for item in (found.peers if found else told) if getattr(item, "is_voter", 1))
        )
        return DescribeQuorumResponse(
            leader_id=-1 if leader_id is None else leader_id,
            term=(found or metadata.leadership).term,
            committed_index=found.committed_index if found else image.offset,
            voters=voters,
            observers=tuple(sorted(set(image.brokers) - set(voters))),
            peers=found.peers if found else (),
            change=found.change if found else "",
            unconfirmed_ms=-1 if found else metadata.unconfirmed_ms(),
            unreachable_voters=() if found else await self._unreachable(voters),
            refused_brokers=found.refused if found else (),
            strangers=found.strangers if found else (),
        )

    async def _unreachable(self, voters: Sequence[int]) -> tuple[int, ...]:
        """The voters that do not answer this broker: a frozen process accepts connections, but does not answer."""
        others = [node_id for node_id in voters if node_id != self._services.node_id]
        answers = await asyncio.gather(*(self._answers(node_id) for node_id in others))
        return tuple(node_id for node_id, answered in zip(others, answers, strict=True) if not answered)

    async def _answers(self, node_id: int) -> bool:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_MS / 1000):
                request = MetadataRequest(topics=())
                await self._services.controller.ask_broker(node_id, request, timeout_ms=PROBE_TIMEOUT_MS)
        except (BarnabasError, TimeoutError):
            return False
        return True
