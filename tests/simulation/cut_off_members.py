"""A static member whose coordinator is cut off: another process takes its place at the new one, and then asks the former one.

That one still knows the first process as the member. What it says of the second one must not end a client, as
FENCED_INSTANCE_ID does.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

from .checkers.violation import Violation
from .history import Result, Scenario, run_history
from .transaction_history import CutOffHistory
from .transactors import GROUP, INPUT
from .workload import Client

INSTANCE: Final = "a-machine"
INSISTING_S: Final = 20.0


class CutOffMemberHistory(CutOffHistory):
    async def run(self) -> None:
        await self._bring_up()
        client = self.workload.client("member")
        former = self._coordinator(GROUP)
        first = await self._insist(client, _heartbeat("", 0))
        has_left = self.rng.random() < 0.5
        if has_left:  # as a static member that will be back
            await self._insist(client, _heartbeat(first.member_id, -2))
        pairs = await self._cut_off(former, client, GROUP)
        if not has_left:
            await self._insist(client, _heartbeat(first.member_id, -2))
        second = await self._insist(client, _heartbeat("", 0))
        self.cluster.world.mend(pairs[:2])
        self.workload.counts["former_answers"] = await _is_told_by(former, client, second)
        self.cluster.world.mend(pairs)
        await self.workload.stop()

    async def _insist(self, client: Client, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        async with asyncio.timeout(INSISTING_S):
            while True:
                try:
                    answer: ConsumerGroupHeartbeatResponse = await client.ask(self._coordinator(GROUP), request)
                except (BarnabasError, TimeoutError):
                    await asyncio.sleep(0.1)
                else:
                    return answer


async def _is_told_by(node_id: int, client: Client, member: ConsumerGroupHeartbeatResponse) -> bool:
    """Whether this broker, which does not coordinate the group any more, says something to the member."""
    try:
        await client.ask(node_id, _heartbeat(member.member_id, member.member_epoch))
    except TimeoutError:
        return False
    except BarnabasError as error:
        if error.code == ErrorCode.FENCED_INSTANCE_ID:
            raise Violation(f"{member.member_id} is the member, and broker {node_id} ends it: {error!r}") from error
        return False
    return True


def _heartbeat(member_id: str, epoch: int) -> ConsumerGroupHeartbeatRequest:
    is_new = epoch == 0
    return ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id=member_id,
        member_epoch=epoch,
        instance_id=INSTANCE,
        subscribed_topics=(INPUT,) if is_new else None,
        rebalance_timeout_ms=5_000 if is_new else -1,
        owned=() if is_new else None,
    )


def run_cut_off_member(
    seed: int, scenario: Scenario | None = None, *, trace_line: Callable[[str], None] | None = None
) -> Result:
    return run_history(seed, scenario or Scenario(brokers=3), trace_line=trace_line, make=CutOffMemberHistory)
