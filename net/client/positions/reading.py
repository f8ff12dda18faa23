"""`Reading`: the partitions that a consumer has, served in turn, and how far the application is in each. Pure.

One rule tells all that commits by itself (the interval, a revocation, `close`, the end of `async with`) when a record is done:
what was handed out is done when the application asks for more, by the next `poll` or the next step of `async for`. An
application that leaves without asking, because a handler failed for example, has not finished what it has in its hands. It says
otherwise by `commit()`.
"""

from collections.abc import Callable, Iterable, Mapping

from barnabas.log.vocabulary.group_messages import CommittedOffset
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.errors import NotAssignedError
from ..connection.records import OffsetAndMetadata
from .offset_lookup import LATEST
from .partition_state import Cursor, PartitionState


class Reading:
    def __init__(self, *, partition_max_bytes: int) -> None:
        self.states: dict[TopicPartition, PartitionState] = {}  # In the order in which they are served.
        self.cursor: Cursor | None = None  # The batch that `async for` walks through.
        self.handed_out: list[PartitionState] = []  # By the last poll: done when the next one comes.
        self._partition_max_bytes = partition_max_bytes

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Those that we have already are left as they are."""
        for partition in partitions:
            if partition not in self.states:
                self.states[partition] = PartitionState(partition, max_bytes=self._partition_max_bytes)

    def tell(self, committed: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Committed offsets of partitions that have just been added."""
        for partition, item in committed.items():
            self.states[partition].told = item

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            if (state := self.states.pop(partition, None)) is not None:
                self.stop_cursor(state)
                state.seek_to_time(LATEST)  # A new version: what is on its way is thrown away.

    def state(self, partition: TopicPartition) -> PartitionState:
        """Raises NotAssignedError."""
        state = self.states.get(partition)
        if state is None:
            raise NotAssignedError(f"{partition} is not assigned to this consumer")
        return state

    def lag(self, state: PartitionState) -> int | None:
        """Records after the position, as of the last fetch; None before the first fetch."""
        if state.high_watermark < 0 or state.position < 0:
            return None
        return max(0, state.high_watermark - self.position(state))

    def next_ready(self) -> PartitionState | None:
        """The next partition with records; it goes to the end of the line, so that all are served in turn."""
        for partition, state in self.states.items():
            if state.has_records:
                self.states[partition] = self.states.pop(partition)
                return state
        return None

    def has_gathered(self, count: int) -> bool:
        """Whether so many records are ready, or the buffer of a partition has no room for more."""
        found = 0
        for state in self.states.values():
            if state.has_records:
                found += state.buffered_records(count - found)
                if found >= count or state.is_full:
                    return True
        return False

    def finish_handed_out(self) -> None:
        """The application asks for more, so it is done with what it has."""
        self.stop_cursor()
        for state in self.handed_out:
            state.processed = state.position
        self.handed_out.clear()

    # --- the walk of `async for` -------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """End the iteration after the current record, and the application asks again; the other records are returned next."""
        if self.cursor is not None:
            self.cursor.state.put_back(self.cursor.stop())

    def stop_cursor(self, state: PartitionState | None = None) -> None:
        """End the iteration (of one partition) permanently."""
        cursor = self.cursor
        if cursor is None or (state is not None and cursor.state is not state):
            return
        self.cursor = None
        processed = cursor.processed
        cursor.state.put_back(cursor.stop())
        cursor.state.processed = processed
        self.handed_out.append(cursor.state)

    def position(self, state: PartitionState) -> int:
        """The next record for the application."""
        cursor = self.cursor
        return cursor.position if cursor is not None and cursor.state is state else state.position

    def processed(self, state: PartitionState) -> int:
        """Behind the last record that the application is certainly done with."""
        cursor = self.cursor
        return cursor.processed if cursor is not None and cursor.state is state else state.processed

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What `commit()` commits: with it, the application says that all that was handed out is done."""
        return self._offsets(self.position)

    def done(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What auto-commit may commit: what the application is certainly done with, where that is more than is committed. After a
        jump that is not known, so that a seek backwards is committed."""
        found = self._offsets(self.processed)
        return {partition: item for partition, item in found.items() if item.offset > self.states[partition].committed}

    def _offsets(self, offset_of: Callable[[PartitionState], int]) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            partition: OffsetAndMetadata(offset, leader_epoch=state.position_epoch, topic_id=state.topic_id)
            for partition, state in self.states.items()
            if (offset := offset_of(state)) >= 0
        }

    def committed(self, partition: TopicPartition, offset: int, *, version: int | None) -> None:
        """This is committed, of the partition as it was in that version."""
        if (state := self.states.get(partition)) is not None and state.version == version:
            state.committed = offset
