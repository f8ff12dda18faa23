"""`SlotWatch`: the health of a connector's slot, as log lines that name the cure, and as values for `barnabas connect status`.

A slot makes the server keep its log until the connector has confirmed it. A connector that stands still fills the server's disk.
`waits_told` does the same for the time before the stream: a snapshot waits for open transactions, and a reader for its table.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from barnabas.net.programs.copying.reporting import beside

from .catalog import PublishedTable, Slot, slot_of
from .changes.lsn import NO_LSN, lsn_text
from .changes.pgoutput import Identity
from .changes.position import Position
from .changes.settings import SourceSettings
from .server import Connection, close, connect, first_line

logger = logging.getLogger("barnabas.connect")

FIRST_LOOK_S: Final = 5.0  # a wait that is shorter is no news
MAX_LOOK_S: Final = 60.0  # between two lines about a wait that goes on
# The table is the one that is waited for; a snapshot waits for a transaction, which is shown by the tables that it has locked.
_WAITS: Final = """
    SELECT COALESCE(l.relation::regclass::text, (SELECT string_agg(held.relation::regclass::text, ', ') FROM pg_locks held
            WHERE held.pid = blocking.pid AND held.locktype = 'relation' AND held.mode = 'AccessExclusiveLock'), ''),
        COALESCE(extract(epoch FROM clock_timestamp() - l.waitstart), 0)::bigint,
        blocking.pid, COALESCE(b.usename, ''), COALESCE(b.application_name, ''), COALESCE(b.state, '')
    FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid AND NOT l.granted
    CROSS JOIN LATERAL unnest(pg_blocking_pids(a.pid)) AS blocking(pid)
    LEFT JOIN pg_stat_activity b ON b.pid = blocking.pid
    WHERE a.datname = current_database() AND a.application_name = %s AND b.application_name IS DISTINCT FROM %s
    ORDER BY 2 DESC LIMIT 10"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockWait:
    """A session of the connector waits for one of another program."""

    tables: str  # "": a transaction that has not locked any for itself
    waited_s: int
    pid: int  # of the other session; 0: a prepared transaction
    user: str
    application: str
    state: str  # "": the role of the dsn may not see it

    def __str__(self) -> str:
        what = f"a lock of {self.tables}" if self.tables else "a transaction that was open when the snapshot began"
        if self.pid == 0:
            return (
                f"waits for {what} for {self.waited_s} s: a prepared transaction has it (SELECT * FROM pg_prepared_xacts):"
                " COMMIT PREPARED or ROLLBACK PREPARED it"
            )
        return (
            f"waits for {what} for {self.waited_s} s: session {self.pid} has it (user {self.user}, application"
            f" {self.application!r}, {self.state or 'state not visible'}). It goes on when that session ends its transaction;"
            f" SELECT pg_terminate_backend({self.pid}) ends it"
        )


async def lock_waits(connection: Connection, dsn: str) -> list[LockWait]:
    """`dsn`: as `named` makes it."""
    application = conninfo_to_dict(dsn).get("application_name", "")
    rows = await (await connection.execute(_WAITS, (application, application))).fetchall()
    return [
        LockWait(
            tables=str(tables),
            waited_s=int(str(waited_s)),
            pid=int(str(pid)),
            user=str(user),
            application=str(name),
            state=str(state),
        )
        for tables, waited_s, pid, user, name, state in rows
    ]


def waits_told(settings: SourceSettings) -> AbstractAsyncContextManager[None]:
    """Log what sessions of the connector wait for, while the context is open."""
    return beside(_tell_waits(settings))


async def _tell_waits(settings: SourceSettings) -> None:
    pause_s = FIRST_LOOK_S
    while True:
        await asyncio.sleep(pause_s)
        try:
            connection = await connect(settings.dsn)
            try:
                found = await lock_waits(connection, settings.dsn)
            finally:
                await close(connection)
        except psycopg.Error as error:
            logger.info("waits not seen connector=%s reason=%s", settings.name, first_line(error))
            found = []
        for wait in found:
            logger.warning("connector=%s %s", settings.name, wait)
        pause_s = min(pause_s * 2, MAX_LOOK_S) if found else FIRST_LOOK_S


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
