"""Sends the ISR proposals of this broker's leaders to the controller, and passes the answers back.

At most one request is in flight; the next one takes all proposals that arrive meanwhile. A proposal without an answer stays
*unknown* in the leader's machine (its maximal ISR keeps it), until newer metadata or a later answer decides it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from barnabas.kraft.metadata.requests import (
    AlterPartition,
    AlterPartitionAnswer,
    IsrMember,
    PartitionIsrAnswer,
    PartitionIsrProposal,
)
from barnabas.log.replication.effects import ProposeIsr
from barnabas.log.vocabulary.errors import BarnabasError

from ..metadata.broker_to_controller import ControllerChannel

logger = logging.getLogger("barnabas.replication")

PROPOSAL_TIMEOUT_MS = 10_000
MAX_PROPOSALS_PER_REQUEST = 2_000  # keeps a request far below the size limit of a quorum command

AnswerReceived = Callable[[ProposeIsr, PartitionIsrAnswer | None], None]


class IsrProposer:
    """An answer of `None` means that the outcome is not known."""

    def __init__(
        self, *, node_id: int, controller: ControllerChannel, broker_epoch: Callable[[], int], answered: AnswerReceived
    ) -> None:
        self._node_id = node_id
        self._controller = controller
        self._broker_epoch = broker_epoch
        self._answered = answered
        self._waiting: dict[tuple[str, int], ProposeIsr] = {}
        self._work = asyncio.Event()

    def propose(self, proposals: Iterable[ProposeIsr]) -> None:
        """A newer proposal for a partition replaces one that has not been sent yet."""
        for proposal in proposals:
            self._waiting[proposal.topic_id, proposal.topic_partition.partition] = proposal
        self._work.set()

    async def run(self) -> None:
        while True:
            await self._work.wait()
            keys = list(self._waiting)[:MAX_PROPOSALS_PER_REQUEST]
            batch = [self._waiting.pop(key) for key in keys]
            if not self._waiting:
                self._work.clear()
            if batch:
                await self._send(batch)

    async def _send(self, batch: list[ProposeIsr]) -> None:
        request = AlterPartition(
            node_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            partitions=tuple(_as_proposal(proposal) for proposal in batch),
        )
        try:
            answer = await self._controller.call(request, timeout_ms=PROPOSAL_TIMEOUT_MS)
        except BarnabasError as error:
            logger.warning("isr proposals=%d unanswered: %s", len(batch), error)
            for proposal in batch:
                self._answered(proposal, None)
            return
        assert isinstance(answer, AlterPartitionAnswer)
        by_partition = {(item.topic_id, item.partition): item for item in answer.partitions}
        for proposal in batch:
            self._answered(proposal, by_partition.get((proposal.topic_id, proposal.topic_partition.partition)))


def _as_proposal(proposal: ProposeIsr) -> PartitionIsrProposal:
    return PartitionIsrProposal(
        topic_id=proposal.topic_id,
        partition=proposal.topic_partition.partition,
        leader_epoch=proposal.leader_epoch,
        partition_epoch=proposal.partition_epoch,
        isr=tuple(IsrMember(node_id=member.node_id, broker_epoch=member.broker_epoch) for member in proposal.isr),
    )
