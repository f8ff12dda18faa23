"""`process_once` beside the blocking SDK, whose loop is another thread's: a group's reset may come between any two calls."""

import sqlite3
from contextlib import closing
from random import Random

import pytest
from unit.net.client.once_world import P0, EndOfLogError, FakeConsumer, Log, store

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.records import ConsumerRecord, ReadingOrigin
from barnabas.net.client.consumer.process_once import BlockingProcessOnce

RECORDS = 60


class Disturbed(FakeConsumer):
    """Between two calls it may jump, as a member does that the coordinator tells to begin elsewhere."""

    def __init__(self, log: Log, rng: Random, jumps_left: int) -> None:
        super().__init__(log, P0)
        self.rng = rng
        self.jumps_left = jumps_left
        self.after_seek: list[int] = []  # where the next seeks are followed by a jump

    def disturb(self) -> None:
        if self.jumps_left and self.rng.random() < 0.3:
            self.jumps_left -= 1
            self.jump(P0, self.rng.randrange(RECORDS))

    def poll_with_origins(
        self, *, max_records: int, timeout_ms: float
    ) -> tuple[dict[TopicPartition, list[ConsumerRecord]], dict[TopicPartition, ReadingOrigin]]:
        found = super().poll_with_origins(max_records=max_records, timeout_ms=timeout_ms)
        self.disturb()
        return found

    def position(self, place: TopicPartition) -> int:
        found = super().position(place)
        self.disturb()
        return found

    def seek(self, place: TopicPartition, offset: int, *, topic_id: str = "") -> None:
        super().seek(place, offset, topic_id=topic_id)
        if self.after_seek:
            self.jump(place, self.after_seek.pop())
        self.disturb()

    def origin(self, place: TopicPartition) -> ReadingOrigin:
        found = super().origin(place)
        self.disturb()
        return found

    def beginning_offsets(self, place: TopicPartition) -> dict[TopicPartition, int]:
        found = super().beginning_offsets(place)
        self.disturb()
        return found


def effects_of(consumer: FakeConsumer, jump_at: int = -1, jump_to: int = -1) -> list[int]:
    """What has an effect, in order, when the application reads to the end of the log."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE effects (place TEXT, offset INTEGER)")
        connection.commit()
        with pytest.raises(EndOfLogError), BlockingProcessOnce(consumer, connection, max_records=7) as records:
            for record, cursor in records:
                store(cursor, record)
                if record.offset == jump_at:
                    consumer.jump(P0, jump_to)
        return [offset for (offset,) in connection.execute("SELECT offset FROM effects ORDER BY rowid")]


def test_a_reset_right_behind_our_own_seek_is_not_taken_for_it() -> None:
    """The consumer is sent back to what is processed, and a reset moves it on before its origin is asked for."""
    consumer = Disturbed(Log().add(P0, RECORDS), Random(0), jumps_left=0)
    consumer.after_seek = [40]
    assert effects_of(consumer, jump_at=10, jump_to=30) == list(range(RECORDS))


@pytest.mark.parametrize("first_seed", range(0, 200, 50))
def test_jumps_between_any_two_calls_leave_each_record_one_effect(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        consumer = Disturbed(Log().add(P0, RECORDS), Random(seed), jumps_left=9)
        assert effects_of(consumer) == list(range(RECORDS)), seed
