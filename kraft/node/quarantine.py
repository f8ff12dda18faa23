"""Committed records whose replay fails: set aside with an error in the log, instead of stopping every broker at every start.

Replay is a pure function of the state and the record, so a record that one broker cannot apply, no broker of the same version
can: all of them void it alike, and their images stay equal. Only that record is void, and a record that was applied in part
would be a bug of its replay as well. What cannot be decoded, or has an opcode that this version does not know, is never set
aside: a newer version would apply it, so this process must stop.

The way out for an operator: change or delete the object of the record (its topic, broker or group) with an ordinary request; the
next snapshot no longer has the record. Until then, `barnabas cluster health` lists it.
"""

import logging
from collections.abc import Callable

from ..metadata.records import Record, UnknownRecordError

logger = logging.getLogger("barnabas.quorum")

MAX_LISTED = 100  # of them; more would not help, and the list is published with every change
MAX_SHOWN_LENGTH = 300  # characters of a record: enough to identify its object


class Quarantine:
    """The records that were set aside since this process began to replay; equal on brokers that replayed the same."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self.count = 0
        self.listed: tuple[str, ...] = ()

    def guard(self, replay: Callable[[], None], record: Record, index: int) -> None:
        """Replay, or set the record aside. Raises UnknownRecordError, and MemoryError: that is a problem of this process and not
        of the record, so the other brokers have applied it."""
        try:
            replay()
        except (UnknownRecordError, MemoryError):
            raise
        except Exception as error:
            self.count += 1
            told = f"index {index}: {record!r}"[:MAX_SHOWN_LENGTH] + f": {type(error).__name__}: {error}"
            if len(self.listed) < MAX_LISTED:
                self.listed = (*self.listed, told)
            logger.critical(
                "node=%d record quarantined %s. It is void on every broker of this version; change or delete its object (topic,  "
                "broker or group), and report this bug",
                self._node_id,
                told,
                exc_info=error,
            )
