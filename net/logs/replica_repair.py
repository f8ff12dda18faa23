"""Sends the resignations of damaged replicas to the controller, and passes its consent back.

Each partition has at most one request in flight. While the damage exists, the replica asks again with every check, with a
pause between two attempts. Without another in-sync replica, the controller refuses: then the rest of the log is still served.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from barnabas.kraft.metadata.requests import ResignReplica
from barnabas.log.replication.effects import Resign
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..metadata.broker_to_controller import ControllerChannel

logger = logging.getLogger("barnabas.replication")

RESIGN_TIMEOUT_MS: Final = 10_000
RETRY_MS: Final = 2_000


class ReplicaRepair:
    """`resigned(topic_partition, leader_epoch)` is called in the loop once the resignation is committed."""

    def __init__(
        self,
        *,
        node_id: int,
        controller: ControllerChannel,
        broker_epoch: Callable[[], int],
        resigned: Callable[[TopicPartition, int], None],
    ) -> None:
        self._node_id = node_id
        self._controller = controller
        self._broker_epoch = broker_epoch
        self._resigned = resigned
        self._under_way: dict[TopicPartition, asyncio.Task[None]] = {}  # in flight, or pausing; at most all partitions

    def ask(self, effect: Resign) -> None:
        if effect.topic_partition in self._under_way:
            return
        name = f"resign-{effect.topic_partition}"
        task = asyncio.get_running_loop().create_task(self._ask(effect), name=name)
        self._under_way[effect.topic_partition] = task
        task.add_done_callback(lambda _: self._under_way.pop(effect.topic_partition, None))

    async def _ask(self, effect: Resign) -> None:
        request = ResignReplica(
            node_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            topic_id=effect.topic_id,
            partition=effect.topic_partition.partition,
            leader_epoch=effect.leader_epoch,
        )
        try:
            await self._controller.call(request, timeout_ms=RESIGN_TIMEOUT_MS)
        except BarnabasError as error:
            logger.warning("event=not_resigned partition=%s reason=%s", effect.topic_partition, error.message)
            await asyncio.sleep(RETRY_MS / 1000)
            return
        logger.warning("event=resigned partition=%s leader_epoch=%d", effect.topic_partition, effect.leader_epoch)
        self._resigned(effect.topic_partition, effect.leader_epoch)

    async def close(self) -> None:
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
