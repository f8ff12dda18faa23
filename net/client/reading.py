"""`Reading`: the partitions that a consumer has, served in turn, and how far the application is in each. Pure."""

from collections.abc import Iterable

from barnabas.log.topic_partition import TopicPartition

from .offset_lookup import LATEST
from .partition_state import Cursor, PartitionState
from .records import OffsetAndMetadata


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

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            if (state := self.states.pop(partition, None)) is not None:
                self.stop_cursor(state)
                state.seek_to_time(LATEST)  # A new version: what is on its way is thrown away.

    def next_ready(self) -> PartitionState | None:
        """The next partition with records; it goes to the end of the line, so that all are served in turn."""
        for partition, state in self.states.items():
            if state.has_records:
                self.states[partition] = self.states.pop(partition)
                return state
        return None

    def finish_handed_out(self) -> None:
        """The application asks for more, so it is done with what it has."""
        self.stop_cursor()
        for state in self.handed_out:
            state.processed = state.position
        self.handed_out.clear()

    # --- the walk of `async for` -------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """The walk ends behind the record in hand, and the application asks anew; the rest comes next again."""
        if self.cursor is not None:
            self.cursor.state.put_back(self.cursor.stop())

    def stop_cursor(self, state: PartitionState | None = None) -> None:
        """End the walk (of one partition) for good."""
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

    def offsets(self, *, is_clean: bool) -> dict[TopicPartition, OffsetAndMetadata]:
        """What there is to commit: positions (`is_clean`), or only what the application is certainly done with."""
        found = {}
        for partition, state in self.states.items():
            offset = self.position(state) if is_clean else self.processed(state)
            if offset >= 0 and offset != state.committed:
                found[partition] = OffsetAndMetadata(offset, leader_epoch=state.position_epoch)
        return found

    def committed(self, partition: TopicPartition, offset: int) -> None:
        if (state := self.states.get(partition)) is not None:
            state.committed = offset
