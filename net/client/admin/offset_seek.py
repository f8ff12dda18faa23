"""The effect of a group seek, computed beforehand for the command and the admin API. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from barnabas.log.vocabulary.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class SeekStep:
    """One partition. `before` and `after` are committed offsets; None: no commit, the group's reset policy applies."""

    place: TopicPartition
    before: int | None
    after: int | None
    log_start_offset: int
    log_end_offset: int
    asked: int | None = None  # the requested offset, before it was limited to the log

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
        """Records to read from `after` on."""
        return self.log_end_offset - self._held(self.after)

    def _held(self, offset: int | None) -> int:
        """Limit an offset to the log; a group without a commit counts from the log start."""
        return min(max(offset if offset is not None else 0, self.log_start_offset), self.log_end_offset)

    def row(self) -> dict[str, object]:
        """The form for output."""
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
    """Return one step for each partition of `after` that has a log, in order."""
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
    """Limit new offsets to the log: outside of it, the group's reset policy would apply."""
    return {
        place: min(max(offset, starts[place]), ends[place])
        for place, offset in wanted.items()
        if place in starts and place in ends
    }
