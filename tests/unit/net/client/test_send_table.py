"""`send_table`: rows become the records that `send` would make of them, in the partitions of their keys."""

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import polars
import pyarrow
import pytest
from unit.net.client.fake_cluster import FakeCluster

from barnabas.log.format.record_codec import iter_records
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.arrow.json_rows import json_objects
from barnabas.net.client.arrow.outgoing import STICKY, partitions_of_keys
from barnabas.net.client.connection.errors import InvalidRequestError, RecordTooLargeError
from barnabas.net.client.producer.partitioner import partition_of_key
from barnabas.net.client.producer.producer import Producer

UNNAMED = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))


def stored(cluster: FakeCluster, partition: int) -> list[Any]:
    return [
        record for _, _, data in cluster.logs[TopicPartition("t", partition)].batches for record in iter_records(data)
    ]


async def send(cluster: FakeCluster, table: Any, *, producer: dict[str, Any] | None = None, **columns: Any) -> int:
    async with Producer(client=cluster.client(), **(producer or {})) as sender:
        handle = await sender.send_table("t", table, **columns)
        assert sum(extent.record_count for extent in await handle) == len(handle)
        return len(handle)


async def test_rows_go_to_the_partitions_of_their_keys_in_order() -> None:
    cluster = FakeCluster(topics={"t": 5})
    keys = [f"key-{number % 37}" for number in range(5_000)]
    table = pyarrow.table({"k": keys, "v": [b"%d" % number for number in range(5_000)]})
    assert await send(cluster, table, key="k", value="v") == 5_000
    for partition in range(5):
        expected = [
            (key.encode(), b"%d" % number)
            for number, key in enumerate(keys)
            if partition_of_key(key.encode(), 5) == partition
        ]
        assert [(record.key, record.value) for record in stored(cluster, partition)] == expected


@pytest.mark.parametrize("count", [1, 3, 12])
def test_a_column_of_keys_goes_where_each_of_them_goes(count: int) -> None:
    random = Random(count)
    keys = [random.randbytes(length) for length in [*range(40), *(random.randrange(300) for _ in range(300))]]
    random.shuffle(keys)
    expected = [partition_of_key(key, count) for key in keys]
    assert partitions_of_keys(pyarrow.array(keys), count).to_pylist() == expected


def test_null_keys_and_parts_of_a_column_of_keys() -> None:
    keys = ["a", None, "", "abcdefgh", None, "last"]
    expected = [STICKY if key is None else partition_of_key(key.encode(), 5) for key in keys]
    column = pyarrow.array(keys)
    assert partitions_of_keys(column, 5).to_pylist() == expected
    for start in range(len(keys)):
        assert partitions_of_keys(column.slice(start, 2), 5).to_pylist() == expected[start : start + 2]


async def test_all_columns_of_a_record() -> None:
    cluster = FakeCluster(topics={"t": 2})
    headers = pyarrow.array(
        [[("a", b"1"), ("b", None)], None, []],
        pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])),
    )
    table = pyarrow.table(
        {
            "k": pyarrow.array([b"k", None, b""], pyarrow.large_binary()),
            "v": pyarrow.array(["x", None, ""], pyarrow.string()),
            "t": pyarrow.array([datetime.fromtimestamp(n, UTC) for n in (5, 1, 7)], pyarrow.timestamp("us", "UTC")),
            "h": headers,
            "p": pyarrow.array([1, 0, 1], pyarrow.int64()),
        }
    ).slice(0)
    await send(cluster, table, key="k", value="v", headers="h", timestamp="t", partition="p")
    first, last = stored(cluster, 1)
    assert (first.key, first.value, first.timestamp_ms, tuple(first.headers)) == (
        b"k",
        b"x",
        5_000,
        (("a", b"1"), ("b", None)),
    )
    assert (last.key, last.value, last.timestamp_ms, tuple(last.headers)) == (b"", b"", 7_000, ())
    (only,) = stored(cluster, 0)
    assert (only.key, only.value, only.timestamp_ms) == (None, None, 1_000)


async def test_a_slice_sends_its_own_rows() -> None:
    cluster = FakeCluster(topics={"t": 1})
    headers = [[{"key": "n", "value": b"%d" % number}] for number in range(100)]
    table = pyarrow.table({"v": [str(number) for number in range(100)], "n": range(100), "h": headers}).slice(40, 20)
    await send(cluster, table, value="v", timestamp="n", headers="h")
    assert [(int(record.value), record.timestamp_ms) for record in stored(cluster, 0)] == [
        (n, n) for n in range(40, 60)
    ]
    assert [record.headers[0][1] for record in stored(cluster, 0)] == [b"%d" % n for n in range(40, 60)]


async def test_headers_whose_pairs_are_a_slice_of_others() -> None:
    cluster = FakeCluster(topics={"t": 1})
    pairs = pyarrow.array(
        [{"key": f"n{number}", "value": b"%d" % number} for number in range(6)],
        pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]),
    )
    headers = pyarrow.ListArray.from_arrays(pyarrow.array([0, 1, 1, 3], pyarrow.int32()), pairs.slice(2, 3))
    await send(cluster, pyarrow.table({"v": ["a", "b", "c"], "h": headers}), headers="h")
    assert [tuple(record.headers) for record in stored(cluster, 0)] == [
        (("n2", b"2"),),
        (),
        (("n3", b"3"), ("n4", b"4")),
    ]


async def test_a_null_row_of_headers_hides_the_pairs_under_it() -> None:
    cluster = FakeCluster(topics={"t": 1})
    pairs = pyarrow.array([("a", b"1"), ("b", b"2")], UNNAMED.value_type)
    hidden = pyarrow.ListArray.from_arrays(
        pyarrow.array([0, 1, 2], pyarrow.int32()), pairs, mask=pyarrow.array([True, False])
    )
    await send(cluster, pyarrow.table({"v": ["x", "y"], "h": hidden}), headers="h")
    assert [tuple(record.headers) for record in stored(cluster, 0)] == [(), (("b", b"2"),)]


async def test_columns_without_any_value_and_of_categories() -> None:
    cluster = FakeCluster(topics={"t": 1})
    await send(cluster, pyarrow.table({"k": pyarrow.nulls(1), "v": pyarrow.nulls(1)}), key="k", value="v")
    frame = polars.DataFrame(
        {"k": ["x", None], "c": ["u", "v"]}, schema={"k": polars.Categorical, "c": polars.Categorical}
    )
    await send(cluster, frame, key="k")
    await send(cluster, frame, key="k", value=["c"])
    assert [(record.key, record.value) for record in stored(cluster, 0)] == [
        (None, None),
        *((None, b"v"), (b"x", b"u")),
        *((None, b'{"c":"v"}'), (b"x", b'{"c":"u"}')),
    ]


async def test_several_columns_become_json() -> None:
    cluster = FakeCluster(topics={"t": 1})
    await send(cluster, pyarrow.table({"k": ["a"], "n": [1], "s": ["x"]}), key="k")
    await send(cluster, polars.DataFrame({"k": ["a"], "n": [1], "s": ["é"]}), key="k")
    assert [json.loads(record.value) for record in stored(cluster, 0)] == [{"n": 1, "s": "x"}, {"n": 1, "s": "é"}]
    assert {record.key for record in stored(cluster, 0)} == {b"a"}


async def test_a_single_column_of_text_is_the_value() -> None:
    cluster = FakeCluster(topics={"t": 1})
    await send(cluster, polars.DataFrame({"s": ["x", None]}))
    assert [record.value for record in stored(cluster, 0)] == [b"x", None]


async def test_large_tables_become_batches_of_bounded_size() -> None:
    cluster = FakeCluster(topics={"t": 1})
    await send(cluster, pyarrow.table({"v": [b"x" * 1_000] * 3_000}), value="v", producer={"buffer_memory": 1 << 20})
    sizes = [len(data) for _, _, data in cluster.logs[TopicPartition("t", 0)].batches]
    assert len(sizes) > 4
    assert max(sizes) <= 512 * 1024
    assert len(stored(cluster, 0)) == 3_000


async def test_without_keys_batches_are_spread() -> None:
    cluster = FakeCluster(topics={"t": 3})
    await send(cluster, pyarrow.table({"v": [b"x" * 1_000] * 3_000}), value="v")
    assert sum(bool(stored(cluster, number)) for number in range(3)) >= 2


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
async def test_batches_are_compressed(compression: str) -> None:
    cluster = FakeCluster(topics={"t": 1})
    await send(cluster, pyarrow.table({"v": [b"x" * 100] * 1_000}), producer={"compression": compression})
    assert sum(len(data) for _, _, data in cluster.logs[TopicPartition("t", 0)].batches) < 20_000
    assert len(stored(cluster, 0)) == 1_000


@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [
        ({"v": [1]}, {"value": "v"}, "must be bytes or text, not int64"),
        ({"v": ["x"]}, {"key": "k"}, "no column 'k'; its columns are v"),
        ({"v": ["x"], "p": [7]}, {"partition": "p"}, "partitions 7 to 7; the topic has 0 to 0"),
        ({"v": ["x"]}, {"partition": 3}, "partitions 0 to 0, not 3"),
        ({"v": ["x"], "t": ["y"]}, {"timestamp": "t"}, "column 't' has the type string"),
        ({"v": ["x"], "h": ["y"]}, {"headers": "h"}, "column 'h' has the type string; headers are list"),
        (
            {"v": ["x"], "t": pyarrow.array([2**61], pyarrow.timestamp("s"))},
            {"timestamp": "t"},
            "no milliseconds of 64 bits",
        ),
        ({"v": ["x"], "t": pyarrow.array([2**63], pyarrow.uint64())}, {"timestamp": "t"}, "no milliseconds of 64 bits"),
        ({"v": ["x"], "h": pyarrow.array([[None]], UNNAMED)}, {"headers": "h"}, "a header without a name"),
        ({"k": ["x"]}, {"key": "k"}, "no column for the values"),
        ({"v": [b"x"], "w": [1]}, {}, "column 'v' has the type binary, which JSON cannot express"),
    ],
)
async def test_what_cannot_be_sent(table: Any, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        await send(FakeCluster(topics={"t": 1}), pyarrow.table(table), **columns)


async def test_a_header_without_a_name_outside_of_a_slice_is_not_sent() -> None:
    headers = pyarrow.array([[None], [{"key": "h", "value": b"1"}], [None]], UNNAMED)
    table = pyarrow.table({"v": ["x", "y", "z"], "h": headers})
    cluster = FakeCluster(topics={"t": 1})
    await send(cluster, table.slice(1, 1), value="v", headers="h")
    with pytest.raises(InvalidRequestError, match="a header without a name"):
        await send(cluster, table.slice(1, 2), value="v", headers="h")


async def test_what_is_no_table_and_what_is_too_large() -> None:
    with pytest.raises(InvalidRequestError, match="Series is no table"):
        await send(FakeCluster(topics={"t": 1}), polars.Series(["x"]))
    twice = pyarrow.Table.from_arrays([pyarrow.array(["x"])] * 2, names=["v", "v"])
    with pytest.raises(InvalidRequestError, match="several columns 'v'"):
        await send(FakeCluster(topics={"t": 1}), twice, value="v")
    with pytest.raises(InvalidRequestError, match="not list"):
        await send(FakeCluster(topics={"t": 1}), [1])
    with pytest.raises(RecordTooLargeError):
        await send(FakeCluster(topics={"t": 1}), pyarrow.table({"v": [b"x" * (3 << 20)]}))
    with pytest.raises(RecordTooLargeError):
        await send(
            FakeCluster(topics={"t": 1}), pyarrow.table({"k": [b"x" * (3 << 20)], "v": [b""]}), key="k", value="v"
        )


HALF = b"x" * (600 << 10)  # More than half of the largest request.


async def test_the_size_of_a_row_is_that_of_its_own_key_value_and_headers() -> None:
    cluster = FakeCluster(topics={"t": 1})
    headers = pyarrow.array([None, [("h", HALF)], [], None, [("a", b"1"), ("b", None)]], UNNAMED)
    columns = {"k": pyarrow.array([HALF, b"k", None, b"", b"k"]), "v": pyarrow.array([b"v", b"", HALF, None, b"v"])}
    table = pyarrow.table({**columns, "h": headers})
    assert await send(cluster, table, key="k", value="v", headers="h") == 5
    for start in range(5):  # Parts of a table share the columns of all.
        assert await send(cluster, table.slice(start, 2), key="k", value="v", headers="h") == min(2, 5 - start)


@pytest.mark.parametrize("row", [0, 1, 2])
async def test_headers_count_for_the_size_of_a_row(row: int) -> None:
    """Brokers would refuse it, or close the connection again and again."""
    headers = pyarrow.array([[("h", HALF)] * (2 if number == row else 1) for number in range(3)], UNNAMED)
    table = pyarrow.table({"v": [b"v"] * 3, "h": headers})
    for part in (table, table.slice(row)):
        with pytest.raises(RecordTooLargeError, match="a row of about 1228"):
            await send(FakeCluster(topics={"t": 1}), part, value="v", headers="h")


def test_json_is_that_of_the_standard_library() -> None:
    rows: list[dict[str, Any]] = [
        {
            "i": 1,
            "f": 0.5,
            "b": True,
            "s": 'quote " back \\ new\nline\t\r \x00 \x1f é 😀',
            "o": {"x": [1, None, 3], "y": "a,b"},
            "l": [{"z": "]"}],
            'na"me': None,
            "e": [],
        },
        {"i": None, "f": None, "b": None, "s": None, "o": None, "l": None, 'na"me': None, "e": None},
        {
            "i": -(2**63),
            "f": 1e300,
            "b": False,
            "s": "",
            "o": {"x": None, "y": None},
            "l": [None],
            'na"me': None,
            "e": [],
        },
    ]
    batch = pyarrow.RecordBatch.from_pylist(rows)
    for piece, expected in ((batch, rows), (batch.slice(1), rows[1:])):
        found = json_objects(piece.schema.names, piece.columns)
        assert [json.loads(text) for text in found.to_pylist()] == expected


def test_json_of_what_json_does_not_have() -> None:
    batch = pyarrow.RecordBatch.from_pylist(
        [{"n": math.nan, "t": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "d": date(2026, 1, 2), "c": Decimal("1.50")}]
    )
    (text,) = json_objects(batch.schema.names, batch.columns).to_pylist()
    assert text == '{"n":null,"t":"2026-01-02T03:04:05.000000Z","d":"2026-01-02","c":1.50}'
