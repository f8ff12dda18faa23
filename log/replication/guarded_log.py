"""The log of a replica, and whether the replica may use it.

Every access of the parts of a `Partition` is inside `with` of its guard. If the log has failed (memory and disk may differ), the
guard refuses with StorageError from then on, and the broker learns of it through `error`. A write that a full disk refused
cleanly does not have this effect. While another thread changes the log (see `log_change`), the guard refuses, too.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Final

from ..vocabulary.errors import NotLeaderOrFollowerError, StorageError
from .effects import ChangeLog, Effect, FlushLog
from .log_change import LogChange
from .ports import ReplicatedLog

FLUSH_FIRST: Final = 1  # flush.messages: every record must be on the disk before it counts

StorageTrouble = Callable[[ReplicatedLog, StorageError], None]


class GuardedLog:
    """A class with `__enter__`, not a generator, because it is entered for every request."""

    def __init__(self, log: ReplicatedLog, node_id: int) -> None:
        self.log = log
        self._node_id = node_id
        self.error: StorageError | None = None
        self.trouble: StorageTrouble | None = None  # called at once, only as a notification
        self.change: LogChange | None = None  # pending: another thread uses the log, and no role may access it
        self.disk_hangs = False  # the disk of the log does not respond

    def __enter__(self) -> ReplicatedLog:
        if self.error is not None:
            raise StorageError(str(self.error))
        if self.change is not None:
            raise self._is_busy(self.change)
        return self.log

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, StorageError):
            self._refused(error)

    def _is_busy(self, change: LogChange) -> NotLeaderOrFollowerError:
        """The refusal while the log is changed: all clients retry after this error."""
        return NotLeaderOrFollowerError(
            f"broker {self._node_id} must first complete a change of its log of {self.log.topic_partition} "
            f"({change.what}); refresh the metadata and try again"
        )

    def _refused(self, error: StorageError) -> None:
        if self.log.failed:
            self.error = error
        if self.trouble is not None:
            self.trouble(self.log, error)

    @property
    def is_usable(self) -> bool:
        return self.error is None and self.change is None

    # --- changes that wait for the disk (see log_change) ---------------------------------------------------------------

    def begin_change(self, what: str, work: Callable[[], object]) -> list[Effect]:
        assert self.change is None
        self.log.begin_change()
        self.change = LogChange(what=what, work=work)
        return [ChangeLog(topic_partition=self.log.topic_partition, change=self.change)]

    def end_change(self, change: LogChange) -> None:
        assert change is self.change
        self.change = None
        self.log.end_change()

    # --- flushing ----------------------------------------------------------------------------------------------------

    @property
    def flushes_first(self) -> bool:
        return self.log.config.flush_messages == FLUSH_FIRST

    @property
    def durable_end_offset(self) -> int:
        """Up to where the own log counts: its end, or, with flush.messages=1, the end of its flushed part."""
        log = self.log
        return log.recovery_point if log.config.flush_messages == FLUSH_FIRST else log.log_end_offset

    @property
    def awaits_flush(self) -> bool:
        """Are there records that do not count before they are flushed, and that can be flushed?"""
        return self.is_usable and self.durable_end_offset < self.log.log_end_offset

    def flush_what_counts(self) -> list[Effect]:
        return [FlushLog(topic_partition=self.log.topic_partition)] if self.awaits_flush else []

    @property
    def is_flush_due(self) -> bool:
        """Are flush.messages records not on the disk?"""
        log = self.log
        return log.log_end_offset - log.recovery_point >= log.config.flush_messages

    def flush_failed(self, error: StorageError) -> None:
        """Records that were not flushed are not acknowledged any more: a second flush would wrongly succeed ("fsyncgate")."""
        if self.error is None:
            self._refused(error)
