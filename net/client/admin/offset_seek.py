"""What a seek of a group would do, before it is done: for the command and for the admin API alike. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from barnabas.log.vocabulary.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class SeekStep:
    """One partition. `before` and `after` are what is committed; None: nothing is, and the group's reset policy decides."""

    place: TopicPartition
    before: int | None
    after: int | None
    log_start_offset: int
    log_end_offset: int
    asked: int | None = None  # the offset that was asked for, before it was held within the log

    @property
    def skipped(self) -> int:
        """Records that the group has not read and will not read."""
        return max(0, self._held(self.after) - self._held(self.before))

    @property
    def read_again(self) -> int:
        """Records that the group has read and will read again."""
        return max(0, self._held(self.before) - self._held(self.after))

    @property
    def lag_after(self) -> int:
        """Records to read from there on."""
        return self.log_end_offset - self._held(self.after)

    def _held(self, offset: int | None) -> int:
        """Within what the log has; a group that has committed nothing stands, for the count, at its start."""
        return min(max(offset if offset is not None else 0, self.log_start_offset), self.log_end_offset)

    def row(self) -> dict[str, object]:
        """As it is shown."""
        return {
            "topic": self.place.topic,
            "partition": self.place.partition,
            "before": self.before,
            "after": self.after,
            "skipped": self.skipped,
            "read_again": self.read_again,
            "lag_after": self.lag_after,
        }


COLUMNS = ("topic", "partition", "before", "after", "skipped", "read_again", "lag_after")


def steps(
    before: Mapping[TopicPartition, int | None],
    after: Mapping[TopicPartition, int | None],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    asked: Mapping[TopicPartition, int] | None = None,
) -> list[SeekStep]:
    """One step for each partition of `after` that has a log, in order."""
    return [
        SeekStep(
            place=place,
            before=before.get(place),
            after=offset,
            log_start_offset=starts[place],
            log_end_offset=ends[place],
            asked=None if asked is None else asked.get(place),
        )
        for place, offset in sorted(after.items())
        if place in starts and place in ends
    ]


def held_within(
    wanted: Mapping[TopicPartition, int], starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """New offsets, held within what the log has: a group behind either end would be reset by its own policy."""
    return {
        place: min(max(offset, starts[place]), ends[place])
        for place, offset in wanted.items()
        if place in starts and place in ends
    }
