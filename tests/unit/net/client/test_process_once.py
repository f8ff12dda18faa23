"""`process_once` on a scripted consumer and a real SQLite: owners that come and go, also two at once, and ends of all kinds."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from unit.net.client.once_world import P0, P1, EndOfLogError, FakeConsumer, Log, store

from barnabas import sync
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import InvalidRequestError, OffsetOutOfRangeError, TopicRecreatedError
from barnabas.net.client.consumer.process_once import process_once


@pytest.fixture
def path(tmp_path: Path) -> str:
    found = str(tmp_path / "effects.db")
    with closing(sqlite3.connect(found)) as connection, connection:
        connection.execute("CREATE TABLE effects (place TEXT, offset_ INTEGER)")
    connection.close()
    return found


@pytest.fixture
def opened(path: str) -> Iterator:
    connections = []

    def connect() -> sqlite3.Connection:
        connections.append(sqlite3.connect(path, timeout=0))
        connections[-1].execute("PRAGMA synchronous = OFF")
        return connections[-1]

    yield connect
    for connection in connections:
        connection.close()


def effects(connection: sqlite3.Connection, place: TopicPartition = P0) -> list[int]:
    rows = connection.execute("SELECT offset_ FROM effects WHERE place = ? ORDER BY rowid", (str(place),))
    return [offset for (offset,) in rows]


def work(consumer: FakeConsumer, connection: sqlite3.Connection, count: int = 10_000, **options: int) -> None:
    """Process so many records, or all."""
    try:
        with sync.process_once(consumer, connection, **options) as records:
            for record, cursor in records:
                store(cursor, record)
                count -= 1
                if not count:
                    break
    except EndOfLogError:
        pass


def test_every_record_has_one_effect_and_the_table_says_how_far_it_is(opened) -> None:
    connection = opened()
    work(FakeConsumer(Log().add(P0, 25).add(P1, 7), P0, P1), connection, max_records=10)
    assert effects(connection) == list(range(25)) and effects(connection, P1) == list(range(7))
    stored = connection.execute("SELECT * FROM barnabas_offsets ORDER BY partition_id").fetchall()
    assert stored == [("g", "t", 0, 24, "id-1"), ("g", "t", 1, 6, "id-1")]


def test_the_next_owner_goes_on_where_the_database_is_whatever_the_group_has_committed(opened) -> None:
    connection, log = opened(), Log().add(P0, 30)
    work(FakeConsumer(log, P0), connection, max_records=10)
    for committed in (0, 12, 30):
        log.committed[P0] = committed
        log.add(P0, 5)
        work(FakeConsumer(log, P0), connection)
    assert effects(connection) == list(range(45))


def test_leaving_in_the_middle_of_a_poll_keeps_what_was_processed_and_the_rest_comes_next(opened) -> None:
    connection = opened()
    consumer = FakeConsumer(Log().add(P0, 10).add(P1, 10), P0, P1)
    work(consumer, connection, 4)
    assert consumer.positions == {P0: 4, P1: 0}
    work(consumer, opened(), 9)
    assert effects(connection) == list(range(10)) and effects(connection, P1) == [0, 1, 2]
    work(consumer, connection)
    assert effects(connection, P1) == list(range(10))


def test_an_application_that_never_waits_for_a_whole_poll_is_led_back_too(opened) -> None:
    """Its reader was moved to the end of the log, so that no record shows where it is."""
    connection = opened()

    class Impatient(FakeConsumer):
        def poll(self, *, max_records: int, timeout_ms: float) -> dict:
            found = super().poll(max_records=max_records, timeout_ms=timeout_ms)
            if not found and timeout_ms:
                raise TimeoutError
            return found

    consumer = Impatient(Log().add(P0, 10), P0)
    work(consumer, connection, 5)
    consumer.jump(P0, 10)
    for _ in range(2):
        with suppress(TimeoutError):
            work(consumer, connection)
    assert effects(connection) == list(range(10))


def test_an_error_undoes_the_whole_transaction_and_it_comes_again(opened) -> None:
    connection = opened()
    consumer = FakeConsumer(Log().add(P0, 10), P0)
    with pytest.raises(ZeroDivisionError), sync.process_once(consumer, connection, max_records=4) as records:
        for record, cursor in records:
            store(cursor, record)
            if record.offset == 6:
                raise ZeroDivisionError
    assert effects(connection) == [0, 1, 2, 3]
    assert consumer.positions == {P0: 4}
    work(consumer, connection)
    assert effects(connection) == list(range(10))


def test_an_owner_that_does_not_know_that_it_is_none_any_more_writes_nothing(opened) -> None:
    log = Log().add(P0, 20)
    zombie, owner, connection = FakeConsumer(log, P0), FakeConsumer(log, P0), opened()
    with sync.process_once(zombie, connection, max_records=5) as records:
        for _ in range(5):
            store(*reversed(next(records)))
        # It hangs with a transaction in hand: whoever comes waits for it (here not for long), and writes nothing.
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            work(owner, opened())
    assert effects(connection) == [0, 1, 2, 3, 4]
    work(FakeConsumer(log, P0), opened(), 10)
    # Now it goes on as if nothing had been: it has read what the owner has processed meanwhile.
    assert zombie.positions == {P0: 5}
    work(zombie, connection, max_records=4)
    assert effects(connection) == list(range(20))


def test_two_owners_at_once_in_any_order_have_every_effect_once(opened) -> None:
    """Each claims in turn, at random; a claim that comes too late is refused and goes on behind the other's."""
    for seed in range(30):
        rng, log = Random(seed), Log().add(P0, 40).add(P1, 40)
        connection = opened()
        connection.execute("DELETE FROM effects")
        connection.commit()
        FakeConsumer.group = f"g{seed}"
        sides = [iter(sync.process_once(FakeConsumer(log, P0, P1), opened(), max_records=3)) for _ in range(2)]
        for side in sides:
            side.__enter__()
        running = list(sides)
        while running:
            side = rng.choice(running)
            try:
                # A whole transaction at a time: the file's lock would hold up the other in the middle of one.
                for _ in range(rng.randrange(1, 4)):
                    record, cursor = next(side)
                    store(cursor, record)
                side.__exit__(None, None, None)
            except EndOfLogError:
                side.__exit__(EndOfLogError, None, None)
                running.remove(side)
        assert sorted(effects(connection)) == list(range(40)), seed
        assert sorted(effects(connection, P1)) == list(range(40)), seed
    FakeConsumer.group = "g"


def test_partitions_that_go_and_come_back_are_looked_up_again(opened) -> None:
    connection, log = opened(), Log().add(P0, 6)
    first, second = FakeConsumer(log, P0), FakeConsumer(log)
    records = sync.process_once(first, connection, max_records=2)
    records.__enter__()
    for _ in range(2):
        store(*reversed(next(records)))
    records.__exit__(None, None, None)
    first.give()
    second.give(P0)
    work(second, opened(), 2)
    log.committed[P0] = 0
    first.give(P0)
    for _ in range(2):
        store(*reversed(next(records)))
    records.__exit__(None, None, None)
    assert effects(connection) == list(range(6))


def test_a_rebalance_that_undoes_a_seek_is_no_reason_to_give_up(opened) -> None:
    """The partition goes and comes back within one poll, which then begins where the group has committed, again and again."""
    connection, log = opened(), Log().add(P0, 10)
    work(FakeConsumer(log, P0), connection)
    log.add(P0, 10)
    consumer = FakeConsumer(log, P0)
    seek, undone = consumer.seek, []

    def undo(place: TopicPartition, offset: int, **_: str) -> None:
        undone.append(offset)
        seek(place, 4 if len(undone) < 5 else offset)

    log.committed[P0] = 4
    consumer.jump(P0, 4)
    consumer.seek = undo
    work(consumer, connection)
    assert effects(connection) == list(range(20)) and undone == [10] * 5


def test_a_topic_that_was_made_anew_is_an_error_with_its_cure_and_not_silence(opened) -> None:
    log = Log().add(P0, 10)
    work(FakeConsumer(log, P0), opened())
    again = FakeConsumer(Log().add(P0, 3), P0)
    again.seek = lambda place, offset, **_: again.jump(place, 0)  # the reset policy leads back from out of range
    with (
        pytest.raises(OffsetOutOfRangeError, match="delete the rows of group 'g'"),
        sync.process_once(again, opened()) as records,
    ):
        next(records)


@pytest.mark.parametrize("jump", [0, 12, 30])
def test_whatever_moves_the_consumer_it_is_sent_back_to_where_the_database_is(opened, jump: int) -> None:
    """`group seek`, a reset, a seek of the application: in the middle, and forward, too."""
    connection, log = opened(), Log().add(P0, 40)
    consumer = FakeConsumer(log, P0)
    with sync.process_once(consumer, connection, max_records=5) as records:
        for record, cursor in records:
            store(cursor, record)
            if record.offset == 9:
                consumer.jump(P0, jump)
            if record.offset == 39:
                break
    assert effects(connection) == list(range(40))


def test_a_partition_that_goes_and_comes_back_within_one_poll_is_compared_with_the_table(opened) -> None:
    connection, log = opened(), Log().add(P0, 20)
    consumer = FakeConsumer(log, P0)
    with sync.process_once(consumer, connection, max_records=5) as records:
        for record, cursor in records:
            store(cursor, record)
            if (
                record.offset == 4
            ):  # Meanwhile somebody sets the group to 15; the member gets the partition back, from there.
                log.committed[P0] = 15
                consumer.give()
                consumer.give(P0)
            if record.offset == 19:
                break
    assert effects(connection) == list(range(20))


def test_what_compaction_has_removed_is_no_jump(opened) -> None:
    connection, log = opened(), Log().add(P0, 40)
    log.removed = {0, 1, 7, 8, 9, 10, 22, 23, 39}
    consumer = FakeConsumer(log, P0)
    work(consumer, connection, max_records=3)
    assert effects(connection) == [offset for offset in range(40) if offset not in log.removed]
    assert consumer.jumps == 1, "it was read without a seek"


@pytest.mark.parametrize("has_records", [True, False])
def test_what_retention_has_removed_is_an_error_before_anything_is_skipped(opened, has_records: bool) -> None:
    """The reset policy, "latest" say, has led the consumer to the end; also where no record comes any more."""
    connection, log = opened(), Log().add(P0, 10)
    work(FakeConsumer(log, P0), connection)
    log.add(P0, 20)
    log.starts[P0] = 25
    late = FakeConsumer(log, P0, P1)
    late.jump(P0, 26 if has_records else 30)
    log.add(P1, 1)
    with (
        pytest.raises(OffsetOutOfRangeError, match="up to offset 9, and the log begins at 25.*set last_offset to 24"),
        sync.process_once(late, connection) as records,
    ):
        next(records)
    connection.execute("UPDATE barnabas_offsets SET last_offset = 24 WHERE partition_id = 0")
    connection.commit()
    work(late, connection)
    assert effects(connection) == [*range(10), *range(25, 30)]
    assert effects(connection, P1) == [0], "it came with the poll that failed"


@pytest.mark.parametrize("count", [3, 10, 25])
def test_a_topic_that_was_made_anew_is_told_by_its_id_however_many_records_it_has(opened, count: int) -> None:
    connection = opened()
    work(FakeConsumer(Log().add(P0, 10), P0), connection)
    anew = Log().add(P0, count)
    anew.topic_id = "id-2"
    with (
        pytest.raises(TopicRecreatedError, match="of topic id id-1, and the topic's id is id-2 now.*delete the rows"),
        sync.process_once(FakeConsumer(anew, P0), connection) as records,
    ):
        next(records)
    connection.execute("DELETE FROM effects")
    connection.execute("DELETE FROM barnabas_offsets WHERE group_id = 'g' AND topic = 't'")
    connection.commit()
    work(FakeConsumer(anew, P0), connection)
    assert effects(connection) == list(range(count))


def test_a_topic_that_is_made_anew_meanwhile_gets_no_claim(opened) -> None:
    """Another owner has begun with the new topic; this one still reads what it had of the old one."""
    log = Log().add(P0, 20)
    with sync.process_once(FakeConsumer(log, P0), opened(), max_records=5) as records:
        store(*reversed(next(records)))
        records.__exit__(None, None, None)
        other = opened()
        other.execute("UPDATE barnabas_offsets SET topic_id = 'id-2'")
        other.commit()
        with pytest.raises(TopicRecreatedError):
            next(records)


def test_a_table_of_before_gets_the_column_of_topic_ids(opened) -> None:
    connection = opened()
    connection.execute(
        "CREATE TABLE barnabas_offsets (group_id TEXT NOT NULL, topic TEXT NOT NULL, partition_id INTEGER NOT NULL,"
        " last_offset BIGINT NOT NULL, PRIMARY KEY (group_id, topic, partition_id))"
    )
    connection.execute("INSERT INTO barnabas_offsets VALUES ('g', 't', 0, 9)")
    connection.commit()
    log = Log().add(P0, 20).add(P1, 3)
    for _ in range(2):
        work(FakeConsumer(log, P0, P1), connection)
    assert effects(connection) == list(range(10, 20)) and effects(connection, P1) == [0, 1, 2]
    stored = connection.execute("SELECT * FROM barnabas_offsets ORDER BY partition_id").fetchall()
    assert stored == [("g", "t", 0, 19, "id-1"), ("g", "t", 1, 2, "id-1")]


def test_connections_that_cannot_do_it_are_refused(path: str) -> None:
    consumer = FakeConsumer(Log(), P0)
    connection = sqlite3.connect(path, isolation_level=None)
    with pytest.raises(InvalidRequestError, match="autocommit"):
        process_once(consumer, connection)
    connection.close()
    with pytest.raises(InvalidRequestError, match="use sqlite3 or psycopg"):
        process_once(consumer, SimpleNamespace())
    with (
        closing(sqlite3.connect(":memory:")) as memory,
        pytest.raises(InvalidRequestError, match="needs a consumer with a group"),
    ):
        process_once(SimpleNamespace(group=None), memory)  # type: ignore[arg-type]


def test_the_asyncio_face(opened) -> None:
    class AsyncConsumer(FakeConsumer):
        async def poll_with_origins(self, **options) -> tuple[dict, dict]:
            await asyncio.sleep(0)
            return super().poll_with_origins(**options)

        async def position(self, place: TopicPartition) -> int:
            return super().position(place)

    async def main() -> None:
        async with process_once(AsyncConsumer(Log().add(P0, 12), P0), connection, max_records=5) as records:
            async for record, cursor in records:
                store(cursor, record)
                if record.offset == 10:
                    break

    connection = opened()
    asyncio.run(main())
    assert effects(connection) == list(range(11))
    with pytest.raises(InvalidRequestError, match="async with"):
        work(AsyncConsumer(Log().add(P0, 1), P0), connection)
