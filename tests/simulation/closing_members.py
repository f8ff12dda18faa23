"""A consumer of the SDK that closes while the coordinator of its group stands still: it leaves at the successor.

A member that has not left keeps its partitions until its session is over, and the other members wait for that.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.net.base.clock import SimulatedClock
from barnabas.net.client.connection.client import Client
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.consumer.consumer_config import CLOSE_TIMEOUT_MS
from barnabas.net.testing.simulation.cluster import CLIENT_PORT

from .checkers.violation import Violation
from .history import Result, Scenario, run_history
from .transaction_history import CutOffHistory
from .transactors import GROUP, INPUT

MEMBER: Final = "reader"
SESSION_TIMEOUT_MS: Final = 45_000
# Kafka's default, ten times that of other histories: the first attempts to leave are over before there is a successor.
SETTINGS: Final = {"broker.session.timeout.ms": "9000"}
JOIN_LIMIT_S: Final = 20.0
LONGEST_WAIT_S: Final = 4.0  # from the fault to the close: heartbeats fail meanwhile, or not yet
CLOSE_LIMIT_S: Final = CLOSE_TIMEOUT_MS / 1000 + 1.0
STANDS_STILL_S: Final = LONGEST_WAIT_S + CLOSE_LIMIT_S + 1.0


class ClosingMemberHistory(CutOffHistory):
    async def run(self) -> None:
        await self._bring_up()
        consumer = self._make_consumer()
        async with asyncio.timeout(JOIN_LIMIT_S):
            await self._join(consumer)
        former = self._coordinator(GROUP)
        if self.rng.random() < 0.5:
            self.cluster.stall(former, STANDS_STILL_S)  # SIGSTOP: its kernel still accepts connections
        else:
            self._cut_links(former, MEMBER)  # as if its machine stood still: nothing answers an attempt to connect
        await asyncio.sleep(self.rng.uniform(0, LONGEST_WAIT_S))
        began_s = self.loop.time()
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await consumer.close()
        except TimeoutError:
            raise Violation(f"a close has not ended after {CLOSE_LIMIT_S} s") from None
        took_s = self.loop.time() - began_s
        self.workload.counts["close_ms"] = int(took_s * 1000)
        if members := self._members():
            raise Violation(f"{members} closed within {took_s:.1f} s, and the group waits for the end of its session")
        await self.workload.stop()

    async def _join(self, consumer: Consumer) -> None:
        await consumer.start()
        while not self._members() or not consumer.assignment:
            await consumer.poll(timeout_ms=100)

    def _members(self) -> list[str]:
        """As the quorum has them."""
        slots = self._newest_groups()
        group = None if slots is None else slots.slot(slot_of(GROUP)).groups.get(GROUP)
        return [] if group is None else sorted(group.members)

    def _make_consumer(self) -> Consumer:
        client = Client(
            [f"node-{node.node_id}:{CLIENT_PORT}" for node in self.cluster.nodes],
            client_id=MEMBER,
            network=self.cluster.world.node(MEMBER),
            clock=SimulatedClock(self.cluster.loop),
            rng=Random(self.rng.getrandbits(64)),
        )
        return Consumer(
            INPUT,
            group=GROUP,
            auto_offset_reset="earliest",
            auto_commit=self.rng.random() < 0.5,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            client=client,
        )


def run_closing_member(
    seed: int, scenario: Scenario | None = None, *, trace_line: Callable[[str], None] | None = None
) -> Result:
    scenario = scenario or Scenario(brokers=3, settings=SETTINGS)
    return run_history(seed, scenario, trace_line=trace_line, make=ClosingMemberHistory)
