"""The producer id of an idempotent producer: requested once, from any broker; partitions that need it wait here."""

import asyncio
import logging
from collections.abc import Callable

from barnabas.net.wire.protocol.requests import InitProducerIdRequest
from barnabas.net.wire.protocol.responses import InitProducerIdResponse

from ..connection.client import Client
from ..connection.errors import BarnabasError
from .idempotence import IdempotentQueue
from .record_accumulator import PartitionQueue

logger = logging.getLogger("barnabas.producer")


class ProducerIdentity:
    """`got` is called with each queue that has waited, once it has its id; `failed` when there will never be one."""

    def __init__(
        self,
        client: Client,
        *,
        got: Callable[[PartitionQueue], None],
        failed: Callable[[PartitionQueue, BarnabasError], None],
    ) -> None:
        self._client = client
        self._got = got
        self._failed = failed
        self._producer_id = -1
        self._waiting: dict[IdempotentQueue, None] = {}
        self._asking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Request the producer id before the first record arrives."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask(), name="barnabas-producer-id")

    def provides(self, queue: PartitionQueue) -> bool:
        """Whether the queue may send; if not, it is resumed when the producer id is known. Only idempotent queues need the id."""
        if not isinstance(queue, IdempotentQueue) or not queue.lacks_id:
            return True
        if self._producer_id >= 0 and self._producer_id != queue.spent_id:
            queue.adopt(self._producer_id)
            return True
        self._waiting[queue] = None
        self.start()
        return False

    async def close(self) -> None:
        self._waiting.clear()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        failures = 0
        while True:
            try:
                answer: InitProducerIdResponse = await self._client.call_any(InitProducerIdRequest())
                break
            except BarnabasError as error:
                if not error.retriable:
                    logger.warning("no producer id reason=%s", error.message)
                    self._give_up(error)
                    return
                failures += 1
                logger.info("no producer id yet reason=%s", error.message)
                for queue in self._waiting:
                    queue.last_error = error
                await asyncio.sleep(self._client.backoff.delay_ms(failures, self._client.rng.random) / 1000)
        self._asking = None
        self._producer_id = answer.producer_id
        waiting, self._waiting = self._waiting, {}
        for queue in waiting:
            self._got(queue)

    def _give_up(self, error: BarnabasError) -> None:
        self._asking = None
        waiting, self._waiting = self._waiting, {}
        for queue in waiting:
            self._failed(queue, error)
