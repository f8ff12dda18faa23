"""Looks at transactions from time to time, for metrics and for a line in the log when one outlives its timeout.

A coordinator knows the timeout of its transactions. The leader of a partition asks all coordinators about the old ones in it:
what none of them knows hangs. `cluster health` shows both for the whole cluster.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final

from barnabas.consumer_groups.slot_coordinator import SlotCoordinator
from barnabas.kraft.metadata.records import Record, TransactionRecord
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import NOT_STARTED, TransactionState
from barnabas.net.base.clock import Clock
from barnabas.net.base.slices import sliced
from barnabas.net.logs.replication_service import ReplicationService
from barnabas.net.wire.protocol.transaction_operations import OpenTransaction

from ..groups.hosted_slot import HostedSlot
from .transaction_operations import TransactionOperations
from .transaction_service import TransactionService

logger = logging.getLogger("barnabas.transactions")

INTERVAL_S: Final = 5.0
HANGING_AFTER_MS: Final = 10_000  # younger ones in a partition are normal
GRACE_MS: Final = 5_000  # after its timeout a transaction is aborted at once; the markers take less than this
SHOWN_PARTITIONS: Final = 20  # with a last stable offset that lags; monitoring systems keep every label
MAX_LOGGED: Final = 100  # transactions and partitions of one look: many wait for one cause


@dataclass(slots=True, kw_only=True)
class TransactionTotals:
    """What was decided here since the start, and what the last look has found."""

    committed: int = 0
    aborted: int = 0
    open: int = 0
    oldest_ms: int = 0
    waiting_for_markers: int = 0
    overdue: int = 0
    hanging: int = 0  # in partitions led here, and known to no coordinator
    lagging: int = 0  # partitions led here
    lags: tuple[tuple[TopicPartition, int], ...] = field(default=())  # the largest ones, in offsets


class TransactionWatch:
    """An observer of the slots that this broker hosts (`SlotHosting.observe`)."""

    def __init__(
        self,
        *,
        clock: Clock,
        replication: ReplicationService,
        service: TransactionService,
        operations: TransactionOperations,
    ) -> None:
        self._clock = clock
        self._replication = replication
        self._service = service
        self._operations = operations
        # At the last look, so that each is logged once.
        self._told: frozenset[tuple[str, int]] = frozenset()
        self._told_hanging: frozenset[tuple[str, int, int, int]] = frozenset()
        self.totals = TransactionTotals()

    # --- decisions ----------------------------------------------------------------------------------------------------

    def started(self, slot: HostedSlot[SlotCoordinator]) -> None:
        """What was decided before counts at the broker that decided it."""

    def settled(self, slot: HostedSlot[SlotCoordinator], records: Iterable[Record]) -> None:
        for record in records:
            if isinstance(record, TransactionRecord):
                self._count(record)

    def _count(self, record: TransactionRecord) -> None:
        match TransactionState(record.state):
            case TransactionState.COMPLETE_COMMIT:
                self.totals.committed += 1
            case TransactionState.COMPLETE_ABORT:
                self.totals.aborted += 1

    # --- looking ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        now_ms = self._service.now_ms()
        known = [item for machine in self._service.machines() for item in machine.list().response]
        begun = [item async for item in sliced(known, self._clock.now_ms) if item.started_ms != NOT_STARTED]
        overdue = [item for item in begun if now_ms - item.started_ms > item.timeout_ms + GRACE_MS]
        lags = [
            (partition.topic_partition, lag)
            async for partition in sliced(self._replication.manager.led(), self._clock.now_ms)
            if (lag := partition.log.high_watermark - partition.log.last_stable_offset) > 0
        ]
        totals = self.totals
        totals.open = len(begun)
        totals.oldest_ms = max((now_ms - item.started_ms for item in begun), default=0)
        totals.waiting_for_markers = sum(TransactionState(item.state).is_decided for item in begun)
        totals.overdue = len(overdue)
        totals.lagging = len(lags)
        totals.lags = tuple(nlargest(SHOWN_PARTITIONS, lags, key=lambda item: item[1]))
        if lags or totals.hanging:
            self._tell_of_hanging(await self._hanging())
        self._tell(overdue, now_ms)

    async def _hanging(self) -> Sequence[OpenTransaction]:
        try:
            return await self._operations.hanging_here(older_than_ms=HANGING_AFTER_MS)
        except BarnabasError as error:
            logger.debug("coordinators were not asked about hanging transactions reason=%s", error.message)
            return ()

    def _tell_of_hanging(self, hanging: Sequence[OpenTransaction]) -> None:
        self.totals.hanging = len(hanging)
        names = {(item.topic_id, item.partition, item.producer_id, item.first_offset): item for item in hanging}
        for key in sorted(names.keys() - self._told_hanging)[:MAX_LOGGED]:
            item = names[key]
            logger.warning(
                "a transaction hangs partition=%s-%d producer=%d offset=%d age_ms=%d: no coordinator knows it, and readers of "
                "committed records wait for it; abort it: barnabas transaction abort --topic %s --partition %d --producer-id %d",
                item.topic,
                item.partition,
                item.producer_id,
                item.first_offset,
                item.age_ms,
                item.topic,
                item.partition,
                item.producer_id,
            )
        self._told_hanging = frozenset(names)

    def _tell(self, overdue: list[TransactionRecord], now_ms: int) -> None:
        names = {(item.transactional_id, item.started_ms): item for item in overdue}
        for key in sorted(names.keys() - self._told)[:MAX_LOGGED]:
            item = names[key]
            logger.warning(
                "transaction=%s state=%s has outlived its timeout timeout_ms=%d age_ms=%d partitions=%d groups=%d; "
                "`barnabas transaction describe` shows what it waits for%s",
                item.transactional_id,
                item.state,
                item.timeout_ms,
                now_ms - item.started_ms,
                sum(len(topic.partitions) for topic in item.partitions),
                len(item.offset_groups),
                f"; prepared for {item.prepared_for!r}: who decides that must return, or an operator aborts it"
                if item.state == TransactionState.PREPARED
                else "",
            )
        self._told = frozenset(names)
