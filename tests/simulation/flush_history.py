"""Whole clusters whose topics have flush.messages=1, and whose power goes everywhere at once.

A flush takes virtual time here, and unflushed writes may be lost, on every node. What was acknowledged must
be there all the same: the comparison at the end of a history knows no exception.
"""

import asyncio
from random import Random
from typing import Any, ClassVar

from barnabas.log.partition.pending_flush import PendingFlush
from barnabas.net.broker.broker import Broker
from barnabas.net.logs.flusher import Flusher
from barnabas.net.testing.simulation.node_faults import NodeFaults

from .history import Result, Scenario, run_history

KINDS = ("kill", "power_loss", "power_loss_of_all", "stall", "isolate")
SLOWEST_FLUSH_S = 0.03


class SlowFlusher(Flusher):
    """The disk takes its time: a power loss may come before what was begun is durable."""

    rng = Random(0)
    flushes: ClassVar = 0

    async def _perform(self, group: list[PendingFlush]) -> None:
        SlowFlusher.flushes += len(group)
        await asyncio.sleep(self.rng.uniform(0.0002, SLOWEST_FLUSH_S))
        await super()._perform(group)


class FlushingBroker(Broker):
    def _build_flusher(self) -> Flusher:
        flusher = super()._build_flusher()
        flusher.__class__ = SlowFlusher
        flusher.rng = Random(self.ports.rng.getrandbits(64))  # type: ignore[attr-defined]
        return flusher


class PowerFaults(NodeFaults):
    WEIGHTS = {**NodeFaults.WEIGHTS, "power_loss_of_all": 1}

    def _power_loss_of_all(self, _: int) -> None:
        """One after the other within the same moment; they come back in any order."""
        if self.rng.random() < 0.5:
            for node in self.cluster.nodes:
                if node.is_running:
                    self.cluster.power_loss(node.node_id)
                    self._later(self._duration(), self.cluster.start, node.node_id)

    def _power_loss(self, node_id: int) -> None:
        """However many have lost theirs: nothing that counts was only in memory."""
        if self.cluster.nodes[node_id].is_running:
            self.cluster.power_loss(node_id)
            self._later(self._duration(), self.cluster.start, node_id)


def run_flush_history(seed: int, **facts: Any) -> Result:
    """The number of flushes that something waited for is among the counts."""
    scenario = Scenario(
        kinds=KINDS,
        make_broker=FlushingBroker,
        settings={"log.flush.interval.messages": "1"},
        node_faults=PowerFaults,
        **facts,
    )
    SlowFlusher.flushes = 0
    result = run_history(seed, scenario)
    result.counts["flushes"] = SlowFlusher.flushes
    return result
