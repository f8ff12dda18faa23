"""Errors that stop a connector until somebody acts. Each message names the cause and the cure; nothing is lost meanwhile.

What passes by itself (a server that restarts, a broker that is killed) is no error of these: the connector goes on from its
committed position.
"""


class ConnectorError(Exception):
    """A connector cannot go on."""

    @property
    def message(self) -> str:
        return str(self)


class ConfigFileError(ConnectorError):
    """The connector's file is wrong. `key`: the way to the key that is wrong, if it is one that the file has."""

    def __init__(self, message: str, *, key: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.key = key


class ServerSetupError(ConnectorError):
    """The database server or the role does not allow what the connector needs."""


class SlotLostError(ConnectorError):
    """Changes after the committed position are not available any more."""


class SlotInUseError(ConnectorError):
    """Another program has had the slot for too long."""


class KeyMissingError(ConnectorError):
    """The rows of a table cannot be distinguished."""


class SchemaConflictError(ConnectorError):
    """A table has changed in a way that its topic or its target does not follow."""


class ColumnMissingError(SchemaConflictError):
    """A target table lacks a column of its source, as far as the sink knows the target."""


class UnreadableMessageError(ConnectorError):
    """The server sent what is no valid message of the replication protocol or of pgoutput, or no valid value of its type."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}: does the dsn lead to a PostgreSQL server, without a proxy that changes the protocol? The connector has"
            " stopped before this message"
        )


class PositionFormatError(ConnectorError):
    """A record of the position topic that this version cannot read."""


class StoppedByOtherError(ConnectorError):
    """Another process has taken over this connector."""
