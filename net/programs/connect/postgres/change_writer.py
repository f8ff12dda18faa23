"""`ChangeWriter`: where a source connector writes changes, and what it asks of that place.

Topics are one place (`TopicWriter` of `delivery`), a folder that a stream of Spark reads is another one (`Spool` of `spool`).
"""

from collections.abc import Iterable
from typing import Protocol

from .changes.envelope import Outgoing
from .changes.position import Position


class ChangeWriter(Protocol):
    """`send` opens a transaction, `commit` ends it: readers see all of its records and its position, or nothing of it."""

    @property
    def is_open(self) -> bool:
        """Whether records wait for a commit."""

    @property
    def count(self) -> int:
        """Records that wait for a commit."""

    @property
    def is_full(self) -> bool:
        """Whether they take so much memory that they should be committed now, also within a transaction of the source."""

    @property
    def confirmable_lsn(self) -> int:
        """The server may discard its log before this LSN. It never goes back; not after the last committed position."""

    @property
    def idle_commit_s(self) -> float:
        """How often the position follows the log of a server whose captured tables are idle."""

    async def start(self) -> None:
        """Take over from a predecessor. What was sent and not committed is gone."""

    async def close(self) -> None: ...

    async def create_topics(self, names: Iterable[str]) -> None:
        """Make room for tables, by the names of their topics."""

    async def send(self, records: Iterable[Outgoing]) -> None: ...

    async def commit(self, position: Position) -> None: ...

    async def committed_position(self) -> Position | None:
        """The last one; None before the first."""
