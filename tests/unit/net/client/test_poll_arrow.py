"""`poll_arrow`: the same records, positions and commits as with `poll`, as an Arrow table."""

import subprocess
import sys
from datetime import UTC, datetime

import pyarrow
import pytest
from unit.net.client.consumer_world import T0, T1, consumer, fill, filled

from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.arrow.extra import require
from barnabas.net.client.arrow.tables import SCHEMA
from barnabas.net.client.connection.errors import MissingExtraError, UnreadableBatchError


async def test_a_table_has_the_records_of_all_partitions() -> None:
    async with consumer(filled(100, partitions=2), "t") as reader:
        found: list[pyarrow.Table] = []
        while sum(table.num_rows for table in found) < 200:
            found.append(await reader.poll_arrow())
        table = pyarrow.concat_tables(found)
        table.validate(full=True)
        assert table.schema.equals(SCHEMA)
        rows = table.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
        assert [(row["topic"], row["partition"], row["offset"]) for row in rows] == [
            ("t", number, offset) for number in range(2) for offset in range(100)
        ]
        assert rows[7]["value"] == b"7"
        assert rows[7]["key"] is None
        assert rows[7]["headers"] == []
        assert rows[7]["timestamp"] == datetime.fromtimestamp(1.007, UTC)
        assert await reader.position(T0) == await reader.position(T1) == 100


async def test_keys_nulls_and_headers_are_columns() -> None:
    cluster = filled(0)
    values: list[bytes | None] = [b"a", None, b""]
    headers = [(("h", b"1"), ("h", None)), (), (("ü", b""),)]
    cluster.logs[T0].append(encode_batch(values, timestamps_ms=5, keys=[b"k", b"", None], headers=headers))
    async with consumer(cluster, "t") as reader:
        table = await reader.poll_arrow()
    assert table["key"].to_pylist() == [b"k", b"", None]
    assert table["value"].to_pylist() == values
    assert table["headers"].to_pylist() == [
        [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        [],
        [{"key": "ü", "value": b""}],
    ]


async def test_it_is_empty_at_the_timeout() -> None:
    async with consumer(filled(0), "t") as reader:
        table = await reader.poll_arrow(timeout_ms=10)
    assert table.num_rows == 0
    assert table.schema.equals(SCHEMA)


async def test_it_takes_about_as_many_bytes_as_asked_for() -> None:
    async with consumer(filled(100, per_batch=10), "t") as reader:
        first = await reader.poll_arrow(max_bytes=1)
        assert first["offset"].to_pylist() == list(range(10))  # One batch, whatever its size.
        assert (await reader.poll_arrow())["offset"].to_pylist() == list(range(10, 100))


async def test_it_begins_within_a_batch_after_a_seek() -> None:
    async with consumer(filled(100, per_batch=10), "t") as reader:
        await reader.poll(timeout_ms=1_000)
        reader.seek(T0, 37)
        assert (await reader.poll_arrow())["offset"].to_pylist() == list(range(37, 100))


async def test_records_that_poll_left_over_come_first() -> None:
    async with consumer(filled(40, per_batch=10), "t") as reader:
        assert len((await reader.poll(max_records=3))[T0]) == 3
        first = await reader.poll_arrow()
        assert first["offset"].to_pylist()[:7] == list(range(3, 10))
        assert first.schema.equals(SCHEMA)
        rest = [] if first.num_rows == 37 else (await reader.poll_arrow())["offset"].to_pylist()
        assert first["offset"].to_pylist() + rest == list(range(3, 40))


async def test_the_table_is_done_when_more_is_asked_for() -> None:
    cluster = filled(20, per_batch=10)
    async with consumer(cluster, group="g", auto_commit=False) as reader:
        reader.assign([T0])
        reader.seek(T0, 0)
        await reader.poll_arrow()
        assert await reader.committed(T0) == {}
        await reader.commit()
        assert await reader.committed(T0) == {T0: 20}


async def test_a_damaged_batch_is_named_after_the_records_before_it() -> None:
    cluster = filled(20, per_batch=10)
    log = cluster.logs[T0]
    base, following, data = log.batches[1]
    log.batches[1] = base, following, data[:-1] + bytes([data[-1] ^ 1])
    async with consumer(cluster, "t") as reader:
        assert (await reader.poll_arrow())["offset"].to_pylist() == list(range(10))
        with pytest.raises(UnreadableBatchError) as caught:
            await reader.poll_arrow()
        assert (caught.value.offset, caught.value.next_offset) == (10, 20)


async def test_all_chunks_share_one_dictionary_of_topics() -> None:
    cluster = filled(10)
    cluster.create("u", 1)
    fill(cluster, TopicPartition("u", 0), 10)
    async with consumer(cluster, "t", "u") as reader:
        seen: set[str] = set()
        while seen != {"t", "u"}:
            table = await reader.poll_arrow()
            seen |= set(table["topic"].to_pylist())
            chunks = table["topic"].chunks
            assert all(chunk.dictionary.equals(chunks[0].dictionary) for chunk in chunks)


def test_a_missing_library_names_its_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"poll_arrow needs no_such_library.*barnabas\[arrow\]"):
        require("no_such_library", extra="arrow", feature="poll_arrow")


def test_pandas_is_not_imported() -> None:
    """pyarrow imports it in the first `pyarrow.array`, if it is installed: 0.3 s."""
    pytest.importorskip("pandas")
    program = """
import sys
from barnabas.log.records.codec import decode, encode
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.arrow.extra import batch_builder
tables = batch_builder("a test")
batches = [tables.batch(TopicPartition("t", number), decode([encode([b"a"], timestamps_ms=1)])) for number in (0, 1)]
assert tables.table(batches).num_rows == 2
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
