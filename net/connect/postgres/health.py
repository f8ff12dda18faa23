"""`SlotWatch`: the health of a connector's slot, as log lines that name the cure, and as values for `barnabas connect status`.

A slot makes the server keep its log until the connector has confirmed it. A connector that stands still fills the server's disk.
"""

import asyncio
import logging
from collections.abc import Mapping

import psycopg

from .catalog import PublishedTable, Slot, slot_of
from .changes.lsn import NO_LSN, lsn_text
from .changes.pgoutput import Identity
from .changes.position import Position
from .changes.settings import SourceSettings
from .server import close, connect, first_line

logger = logging.getLogger("barnabas.connect")


class SlotWatch:
    """What one run of a source connector tells the operator."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self.committed_lsn = NO_LSN
        self._records = 0  # committed since the last line

    def started(
        self, position: Position, tables: Mapping[str, PublishedTable], topic_configs: Mapping[str, str]
    ) -> None:
        self.committed_lsn = position.lsn
        for name, table in tables.items():
            if topic_configs.get("cleanup.policy") == "compact" and lacks_large_values(table):
                logger.warning(
                    "table=%s may have large values (TOAST) that an UPDATE does not send again: compaction then loses them from"
                    " the topic; run ALTER TABLE %s REPLICA IDENTITY FULL",
                    name,
                    name,
                )

    def committed(self, lsn: int, records: int) -> None:
        self.committed_lsn = lsn
        self._records += records

    async def run(self, dsn: str) -> None:
        """Look at the slot again and again. Errors of its own connection are only logged."""
        while True:
            await asyncio.sleep(self._settings.health.interval_s)
            try:
                connection = await connect(dsn)
                try:
                    self._report(await slot_of(connection, self._settings.slot))
                finally:
                    await close(connection)
            except psycopg.Error as error:
                logger.info("slot not seen slot=%s reason=%s", self._settings.slot, first_line(error))

    def _report(self, slot: Slot | None) -> None:
        if slot is None:
            return  # the stream fails, too, and says what to do
        logger.info(
            "slot=%s committed=%s lag_bytes=%d retained_bytes=%d wal_status=%s records=%d",
            slot.name,
            lsn_text(self.committed_lsn),
            slot.lag_bytes,
            slot.retained_bytes,
            slot.wal_status,
            self._records,
        )
        self._records = 0
        for trouble in troubles(slot, self._settings.health.warn_lag_bytes, is_running=True):
            logger.warning("slot=%s %s", slot.name, trouble)


def lacks_large_values(table: PublishedTable) -> bool:
    return table.has_large_values and table.relation.identity is not Identity.FULL


def troubles(slot: Slot, warn_lag_bytes: int, *, is_running: bool) -> list[str]:
    """What an operator should act on, with the cure."""
    found = []
    if slot.wal_status == "lost":
        found.append(
            "the server has discarded log that the slot needs: drop the slot, raise max_slot_wal_keep_size, and run"
            " `barnabas connect reset FILE`"
        )
    if slot.wal_status in ("unreserved", "extended") and slot.safe_bytes is not None:
        found.append(
            f"the slot is lost after {slot.safe_bytes} more bytes of log: raise max_slot_wal_keep_size, or find out why the"
            " connector does not follow"
        )
    if slot.lag_bytes > warn_lag_bytes:
        found.append(
            f"the connector is {slot.lag_bytes} bytes behind (more than health.warn_lag_bytes): the server keeps its log for it."
            " Look at the brokers and at long transactions of the source"
        )
    if slot.active_pid is None and not is_running:
        found.append(
            "no connector uses the slot, and the server keeps its log for it until one does: start `barnabas connect run FILE`,"
            f" or SELECT pg_drop_replication_slot('{slot.name}') if it is not needed any more"
        )
    return found
