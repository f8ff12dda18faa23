"""`process_once` on PostgreSQL: the table that several make at once, the row's lock, the fence, both kinds of connection."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from integration import postgres
from unit.net.client.once_world import P0, EndOfLogError, FakeConsumer, Log, store

from barnabas import sync
from barnabas.net.client.connection.errors import InvalidRequestError
from barnabas.net.client.consumer.process_once import process_once

if postgres.find()[0] is None:
    pytest.skip(postgres.find()[1], allow_module_level=True)
psycopg = pytest.importorskip("psycopg")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres.running() as address:
        yield address


@pytest.fixture
def address(server: str) -> str:
    with psycopg.connect(server) as connection:
        connection.execute("DROP TABLE IF EXISTS effects, barnabas_offsets")
        connection.execute("CREATE TABLE effects (place TEXT, record_offset BIGINT)")
    return server


def effects(address: str) -> list[int]:
    with psycopg.connect(address) as connection:
        return [offset for (offset,) in connection.execute("SELECT record_offset FROM effects ORDER BY 1").fetchall()]


def work(consumer: FakeConsumer, connection: Any, max_records: int = 7) -> None:
    with pytest.raises(EndOfLogError), sync.process_once(consumer, connection, max_records=max_records) as records:
        for record, cursor in records:
            store(cursor, record, "%s")


def test_threads_that_all_believe_to_own_the_partition_write_each_effect_once(
    address: str, expected: range = range(200)
) -> None:
    """They also all make the table at the same time."""
    log = Log().add(P0, 200)
    start, failed = threading.Barrier(4), []

    def run() -> None:
        with psycopg.connect(address) as connection:
            start.wait()
            try:
                work(FakeConsumer(log, P0), connection, max_records=3)
            except BaseException as error:
                failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert effects(address) == list(expected)


def test_a_table_of_before_is_given_its_new_column_by_several_at_once(address: str) -> None:
    with psycopg.connect(address) as connection:
        connection.execute(
            "CREATE TABLE barnabas_offsets (group_id TEXT NOT NULL, topic TEXT NOT NULL, partition_id INTEGER NOT NULL,"
            " last_offset BIGINT NOT NULL, PRIMARY KEY (group_id, topic, partition_id))"
        )
        connection.execute("INSERT INTO barnabas_offsets VALUES ('g', 't', 0, 9)")
    test_threads_that_all_believe_to_own_the_partition_write_each_effect_once(address, expected=range(10, 200))
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT * FROM barnabas_offsets").fetchall() == [("g", "t", 0, 199, "id-1")]


def test_who_comes_while_a_transaction_is_open_waits_for_its_end_and_goes_on_behind_it(address: str) -> None:
    log = Log().add(P0, 12)
    first, second = psycopg.connect(address), psycopg.connect(address)
    with sync.process_once(FakeConsumer(log, P0), first, max_records=5) as records:
        for _ in range(5):
            record, cursor = next(records)
            store(cursor, record, "%s")
        other = threading.Thread(target=work, args=(FakeConsumer(log, P0), second))
        other.start()
        with psycopg.connect(address, autocommit=True) as watching:
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while watching.execute(waits).fetchone() == (0,):
                assert other.is_alive()
    other.join()
    assert effects(address) == list(range(12))
    first.close()
    second.close()


def test_the_connections_of_asyncio(address: str) -> None:
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(address) as connection:
            with pytest.raises(EndOfLogError):
                async with process_once(FakeConsumer(Log().add(P0, 20), P0), connection, max_records=6) as records:
                    async for record, cursor in records:
                        await cursor.execute("INSERT INTO effects VALUES (%s, %s)", (record.topic, record.offset))

    asyncio.run(main())
    assert effects(address) == list(range(20))


def test_autocommit_is_refused(address: str) -> None:
    with (
        psycopg.connect(address, autocommit=True) as connection,
        pytest.raises(InvalidRequestError, match="autocommit"),
    ):
        process_once(FakeConsumer(Log(), P0), connection)
