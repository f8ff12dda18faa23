"""Connections to PostgreSQL: how values are written there, what an error means, and whether it passes by itself."""

import asyncio
from typing import Final

import psycopg
from psycopg import conninfo, errors

from .changes.faults import ServerSetupError

# The text of values must not depend on the settings of the server, the role or the database: it is compared and parsed.
OPTIONS: Final = (
    "-c DateStyle=ISO -c TimeZone=UTC -c IntervalStyle=iso_8601 -c extra_float_digits=1 -c bytea_output=hex"
    " -c statement_timeout=0 -c idle_in_transaction_session_timeout=0"
)
APPLICATION: Final = "barnabas connect"
MAX_APPLICATION: Final = 63  # bytes of a name that the server keeps
CONNECT_TIMEOUT_S: Final = 10  # of one attempt; the connector makes another one
# A server whose machine or network is gone sends no reset. By the defaults of the system, a query that waits for its answer would
# notice that after two hours, and a stream after a quarter of one; with these, both do within half a minute.
LIVENESS: Final = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}
Connection = psycopg.AsyncConnection[tuple[object, ...]]
# Classes of SQLSTATE that pass by themselves: connection, resources, shutdown, a slot in use, serialization, system errors.
_PASSING: Final = ("08", "40", "53", "55", "57", "58")


async def connect(dsn: str, *, is_replication: bool = False) -> Connection:
    """Raises psycopg.Error, and ServerSetupError for a DSN that cannot be read."""
    try:
        given = conninfo.conninfo_to_dict(with_liveness(dsn))
    except psycopg.ProgrammingError as error:
        raise ServerSetupError(f"the dsn cannot be read: {' '.join(str(error).split())}") from error
    given["options"] = f"{given.get('options') or ''} {OPTIONS}".strip()
    given.setdefault("fallback_application_name", APPLICATION)
    given.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
    given["client_encoding"] = "utf8"
    if is_replication:
        given["replication"] = "database"
    text = conninfo.make_conninfo("", **given)
    try:
        return await psycopg.AsyncConnection.connect(text, autocommit=True)
    except psycopg.OperationalError as error:
        if is_replication and "must be superuser or replication role" in str(error):
            raise _no_replication(error) from error
        raise


def with_liveness(dsn: str) -> str:
    """The DSN with LIVENESS, where it does not say otherwise. Raises psycopg.ProgrammingError."""
    given = conninfo.conninfo_to_dict(dsn)
    return conninfo.make_conninfo("", **{**LIVENESS, **given})


def named(dsn: str, slot: str) -> str:
    """The DSN with a name by which the server shows sessions of this connector, unless it has one. One that cannot be read is
    returned as it is: `connect` tells why."""
    try:
        given = conninfo.conninfo_to_dict(dsn)
        return conninfo.make_conninfo("", **{"application_name": f"{APPLICATION} {slot}"[:MAX_APPLICATION], **given})
    except psycopg.ProgrammingError:
        return dsn


def _no_replication(error: Exception) -> ServerSetupError:
    return ServerSetupError(
        f"the role of the dsn may not replicate ({first_line(error)}): run as a superuser: ALTER ROLE name REPLICATION"
    )


def setup_error(error: psycopg.Error) -> ServerSetupError:
    """An error of the server that does not pass by itself."""
    if isinstance(error, errors.UndefinedObject) and "publication" in str(error):
        return ServerSetupError(
            f"{first_line(error)} where the stream is: it was dropped, or created after the slot. Create it (CREATE PUBLICATION"
            " name FOR TABLE ...), then run `barnabas connect reset FILE`: topics get a truncation, and all tables are read again"
        )
    if isinstance(error, errors.InsufficientPrivilege):
        if "replication" in str(error):
            return _no_replication(error)
        return ServerSetupError(
            f"the role of the dsn lacks a privilege: {first_line(error)}; run GRANT SELECT ON the tables TO the role (and GRANT"
            " USAGE ON SCHEMA), as their owner"
        )
    code = f" (SQLSTATE {error.sqlstate})" if error.sqlstate else ""
    return ServerSetupError(f"PostgreSQL refused a request{code}: {first_line(error)}")


def passes(error: psycopg.Error) -> bool:
    """Whether the same may succeed later: the server restarts, is not reachable, or another connection holds the slot."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state[:2] in _PASSING and not isinstance(error, errors.ObjectNotInPrerequisiteState)


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


async def close(connection: Connection) -> None:
    """Without waiting for a server that does not answer."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await connection.close()
    except TimeoutError:
        pass
