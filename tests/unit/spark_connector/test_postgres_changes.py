"""The format "postgres-changes" without Spark and without a server: its options, its columns, and what Spark pickles."""

import datetime
import json
import pickle
import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.programs.connect.postgres.changes.envelope import EnvelopeNames, TableEncoder, reading_origin
from barnabas.net.programs.connect.postgres.changes.pgoutput import Column, Identity, Relation
from barnabas.net.programs.connect.postgres.changes.values import TypeRow, Types
from barnabas.net.programs.connect.postgres.segment import SpoolError
from barnabas.spark_connector.postgres.change_columns import COLUMNS, batches_of, check_projection
from barnabas.spark_connector.postgres.change_options import parse_change_options
from barnabas.spark_connector.postgres.change_source import PostgresChangesDataSource
from barnabas.spark_connector.postgres.change_stream_reader import SegmentPartition, SpoolOffset

BATCH = {"dsn": "host=none", "publication": "p"}
STREAM = {**BATCH, "slot": "s", "spoolLocation": "/tmp/none"}


def test_the_thin_package_is_harmless_where_pyspark_is_missing() -> None:
    script = (
        "import sys; sys.modules['pyspark.sql.datasource'] = None\n"
        "import pyspark_barnabas_postgres as p; print(hasattr(p, 'DefaultSource'), 'psycopg' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "False"]


def test_what_spark_makes_again_and_again_connects_to_nothing_and_can_be_pickled() -> None:
    source = pickle.loads(pickle.dumps(PostgresChangesDataSource(dict(STREAM))))
    assert source.name() == "postgres-changes" and source.schema() == COLUMNS
    for reader in (source.streamReader(COLUMNS), PostgresChangesDataSource(dict(BATCH)).reader(COLUMNS)):
        assert type(pickle.loads(pickle.dumps(reader))) is type(reader)
    assert pickle.loads(pickle.dumps(SegmentPartition([4, 5]))).numbers == [4, 5]


@pytest.mark.parametrize(
    ("given", "is_stream", "words"),
    [
        ({"dsn": "x"}, False, "the option publication is missing: CREATE PUBLICATION"),
        ({"publication": "p"}, False, "the option dsn is missing: such as host=localhost"),
        ({**BATCH, "slot": "s"}, False, "slot is an option of readStream"),
        ({**BATCH, "spoolLocation": "/s"}, True, "the option slot is missing"),
        ({**BATCH, "slot": "s"}, True, "the option spoolLocation is missing"),
        ({**STREAM, "spoolLocation": "s"}, True, "write an absolute path"),
        ({**STREAM, "snapshot": "later"}, True, 'snapshot.mode is \'later\': write "initial" or "never"'),
        ({**STREAM, "tables": "t"}, True, 'write "schema.table"'),
        ({**STREAM, "maxChangesPerTrigger": "0"}, True, "must be an integer of at least 1"),
        ({**STREAM, "subscribe": "t"}, True, "unknown option 'subscribe': see docs/connect.md"),
        ({**STREAM, "bootstrap.servers": "b"}, True, "unknown option 'bootstrap.servers'"),
    ],
)
def test_wrong_options_are_refused_with_the_cure(given: dict[str, str], is_stream: bool, words: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        parse_change_options(given, is_stream=is_stream)
    assert words in str(caught.value)


def test_options_become_the_settings_of_a_connector() -> None:
    found = parse_change_options({**STREAM, "tables": "a.b, c.*", "SNAPSHOTREADERS": "3"}, is_stream=True)
    assert (found.settings.tables, found.settings.slot, found.settings.snapshot.readers) == (["a.b", "c.*"], "s", 3)
    assert not found.settings.delivery.tombstones and found.max_changes is None


def encoder() -> TableEncoder:
    columns = (Column(name="id", type_oid=23, is_identity=True), Column(name="v", type_oid=25, is_identity=False))
    relation = Relation(oid=1, schema="public", name="t", identity=Identity.DEFAULT, columns=columns)
    types = Types({23: TypeRow(oid=23, name="int4"), 25: TypeRow(oid=25, name="text")})
    return TableEncoder(relation, ("id",), types, EnvelopeNames(prefix="p", database="d", has_tombstones=False))


def rows_of(schema: StructType = COLUMNS) -> list[dict[str, Any]]:
    made, origin = encoder(), reading_origin(7, 1_000, 2)
    given: dict[str, Any] = {"lsn": 7, "now_ms": 5}
    records = [
        *made.inserted(("1", 'a "b"'), origin, order=0, **given),
        *made.deleted(("2", None), origin, is_old_full=False, order=1, **given),
        *made.truncated(origin, order=2, **given),
    ]
    (batch,) = batches_of([(record.key, record.value or b"") for record in records], schema)
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def test_changes_become_columns() -> None:
    inserted, deleted, truncated = rows_of()
    assert json.loads(inserted.pop("value"))["after"] == {"id": 1, "v": 'a "b"'}
    time = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)
    place = {"change_generation": 2, "change_lsn": 7, "change_order": 0, "change_time": time}
    row = {"key": '{"id":1}', "before": None, "after": '{"id":1,"v":"a \\"b\\""}'}
    assert inserted == {"table": "public.t", "op": "r", **row, **place}
    assert (deleted["op"], deleted["before"], deleted["after"], deleted["change_order"]) == ("d", '{"id":2}', None, 1)
    assert (truncated["op"], truncated["key"], truncated["before"], truncated["after"]) == ("t", None, None, None)


def test_a_schema_may_name_some_columns_with_their_types() -> None:
    some = StructType([StructField("change_lsn", LongType()), StructField("op", StringType())])
    check_projection(some)
    assert rows_of(some)[1] == {"change_lsn": 7, "op": "d"}
    with pytest.raises(InvalidConfigError, match="a change has no column 'topic'; it has table, op"):
        check_projection(StructType([StructField("topic", StringType())]))


def test_an_offset_of_another_source_is_refused() -> None:
    offset = SpoolOffset(spool="a", segment=3)
    assert SpoolOffset.from_json(offset.to_json()) == offset
    with pytest.raises(SpoolError, match="a new checkpointLocation and a new spoolLocation"):
        SpoolOffset.from_json({"version": 1, "offsets": {}} | {"version": 9})
