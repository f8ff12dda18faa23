"""What an operator asks of a source connector from outside: its status, and a reset."""

from dataclasses import dataclass, field, replace

import psycopg

from barnabas.net.client.connection.security import SecurityOptions

from .catalog import Slot, slot_of
from .changes.faults import ConfigFileError, ConnectorError
from .changes.lsn import lsn_text
from .changes.position import Position
from .changes.settings import SourceSettings
from .delivery import TopicWriter, read_position
from .health import lock_waits, troubles
from .server import close, connect, first_line, named


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    row: dict[str, object]
    troubles: list[str] = field(default_factory=list)


async def status(settings: SourceSettings, bootstrap: str, security: SecurityOptions) -> Status:
    """Raises BarnabasError, ConnectorError. It does not disturb the connector."""
    position = await read_position(settings, bootstrap, security)
    try:
        connection = await connect(settings.dsn)
        try:
            slot = await slot_of(connection, settings.slot)
            waits = await lock_waits(connection, named(settings.dsn, settings.slot))
        finally:
            await close(connection)
    except psycopg.Error as error:
        raise ConnectorError(f"the server of the dsn does not answer: {first_line(error)}") from error
    row: dict[str, object] = {"connector": settings.name, "slot": settings.slot}
    found = [] if slot is None else troubles(slot, settings.health.warn_lag_bytes, is_running=False)
    if slot is None:
        found.append(f"slot {settings.slot} does not exist: `barnabas connect run FILE` creates it at its first start")
    found += [f"the connector {wait}" for wait in waits]
    return Status(row=row | _of_position(position) | _of_slot(slot), troubles=found)


def _of_position(position: Position | None) -> dict[str, object]:
    if position is None:
        return {"position": None, "tables": 0, "tables_to_read": 0}
    to_read = [name for name, table in position.tables.items() if not table.coverage.is_complete]
    return {"position": lsn_text(position.lsn), "tables": len(position.tables), "tables_to_read": len(to_read)}


def _of_slot(slot: Slot | None) -> dict[str, object]:
    if slot is None:
        return {"is_active": False, "wal_status": None, "lag_bytes": None, "retained_bytes": None, "safe_bytes": None}
    return {
        "is_active": slot.active_pid is not None,
        "wal_status": slot.wal_status,
        "lag_bytes": slot.lag_bytes,
        "retained_bytes": slot.retained_bytes,
        "safe_bytes": slot.safe_bytes,
    }


async def reset(
    settings: SourceSettings, bootstrap: str, security: SecurityOptions, tables: list[str] | None
) -> list[str]:
    """Read tables (None: all, and the stream from a new start) again with the next run. A process that runs is ended.

    Returns the names of the tables. Raises BarnabasError, ConnectorError.
    """
    writer = TopicWriter(settings, bootstrap, security)
    try:
        await writer.start()
        position = await writer.committed_position()
        if position is None:
            raise ConfigFileError(
                f"connector {settings.name} has not committed a position yet: there is nothing to reset"
            )
        unknown = sorted(set(tables or ()) - position.tables.keys())
        if unknown:
            raise ConfigFileError(f"table {unknown[0]} is unknown; the connector has {', '.join(position.tables)}")
        chosen = None if tables is None else frozenset(tables)
        after = position.reset(chosen)
        await writer.commit(after if chosen is not None else replace(after, slot=settings.slot))
    finally:
        await writer.close()
    return sorted(position.tables if chosen is None else chosen)
