"""`barnabas pipeline --master sc://...`: the driver is a client without a JVM, whose queries are in a Spark Connect server. It is
killed (kill -9) in the middle; the next one takes the queries over, and what sinks have is exact."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from integration.cluster import Cluster
from integration.declared_pipeline import empty_database, rows_in
from integration.spark_daemons import connect_server
from integration.spark_world import create_topic, send
from integration.test_spark_pipeline_kills import Command, run_with_a_killed_driver
from integration.test_spark_pipeline_standalone import FILE, KEYS, RECORDS, STEP, parquet_rows
from integration.test_spark_sink import read

pytest.importorskip("grpc", reason="a client of Spark Connect needs pip install 'pyspark[connect]'")
pytestmark = pytest.mark.timeout(1_000)
PER_BATCH = 90


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("connect")) as (address, _):
        yield address


@pytest.fixture(scope="module")
def numbers(driver_cluster: Cluster) -> str:
    topic = create_topic(driver_cluster, "remote-numbers", partitions=2)
    values = [json.dumps({"id": number, "key": number % KEYS}).encode() for number in range(RECORDS)]
    send(driver_cluster, topic, [*values, b"poison"])
    return topic


def command(cluster: Cluster, folder: Path, address: str, **words: str) -> Command:
    named = {"statement": "SELECT id, key, double FROM input", "errors": "skip", "most": str(PER_BATCH), **words}
    (folder / "doubling.py").write_text(STEP)
    (folder / "factors.py").write_text("FACTOR, ONE = 2, 1\n")
    text = FILE.format(**named) + '[restarts]\nfirst_ms = 100\n[spark]\n"spark.sql.shuffle.partitions" = "2"\n'
    return Command(cluster, folder, text, master=address)


def test_each_record_is_in_the_topic_once_and_bad_ones_are_set_aside(
    driver_cluster: Cluster, tmp_path: Path, address: str, numbers: str
) -> None:
    target, dead = (create_topic(driver_cluster, f"remote-{name}", partitions=2) for name in ("target", "dead"))
    found = command(
        driver_cluster, tmp_path, address, name="remote-topic", topic=numbers, errors=f'dead-letter"\ntopic = "{dead}',
        sink=f'topic = "{target}"\nkey = "key"',
    )  # fmt: skip
    run_with_a_killed_driver(found)
    rows = [json.loads(bytes(record.value or b"")) for record in read(driver_cluster, target)]
    assert Counter(row["id"] for row in rows) == Counter(range(RECORDS)), "each once"
    assert all(row["double"] == 2 * row["id"] for row in rows)
    assert [bytes(record.value or b"") for record in read(driver_cluster, dead)] == [b"poison"]
    state = found.state.read_run()
    assert state is not None and (state.state, state.restarts) == ("finished", 1), state


def test_a_table_has_the_totals(
    driver_cluster: Cluster, tmp_path: Path, address: str, numbers: str, request: pytest.FixtureRequest
) -> None:
    """The client writes what the server sends it, so the server does not see which database it is."""
    database = empty_database("sqlite", "remote", request)
    statement = "SELECT key, count(*) AS count, sum(double) AS total FROM input GROUP BY key"
    sink = f'table = "totals"\ndatabase = "{database}"\nwrite = "upsert"\nkey = ["key"]'
    found = command(
        driver_cluster, tmp_path, address, name="remote-table", topic=numbers, statement=statement, sink=sink
    )
    run_with_a_killed_driver(found)
    select = "SELECT key, count, total FROM totals ORDER BY 1"
    expected = [(key, len(range(key, RECORDS, KEYS)), 2 * sum(range(key, RECORDS, KEYS))) for key in range(KEYS)]
    assert rows_in(database, tmp_path, select) == expected


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_files_have_each_row_once(
    driver_cluster: Cluster, tmp_path: Path, address: str, numbers: str, kind: str
) -> None:
    found = command(driver_cluster, tmp_path, address, name=f"remote-{kind}", topic=numbers, sink=f'{kind} = "rows"')
    run_with_a_killed_driver(found)
    if kind == "parquet":
        rows = parquet_rows(tmp_path / "rows")
    else:
        rows = DeltaTable(str(tmp_path / "rows")).to_pyarrow_table().to_pylist()
    assert Counter(row["id"] for row in rows) == Counter(range(RECORDS)), "each once"
    assert all(row["double"] == 2 * row["id"] for row in rows)


def test_a_plan_a_batch_with_inferred_fields_and_a_stream_that_is_stopped(
    driver_cluster: Cluster, tmp_path: Path, address: str, numbers: str
) -> None:
    target = create_topic(driver_cluster, "remote-stopped", partitions=1)
    found = command(driver_cluster, tmp_path, address, name="stopped", topic=numbers, sink=f'topic = "{target}"')
    told = found.run_to_end("plan", "--master", address)
    assert "double: bigint" in told and "does not show the plan of a stream" in told, told
    process = found.start("run")
    try:
        found.until_batches(2)
        assert "stopped stopped" in found.run_to_end("stop", "--timeout", "200")
        assert "stopped: " in found.ended(process)
    finally:
        found.kill(process)
    found.run_to_end("run", "--once")
    rows = [json.loads(bytes(record.value or b"")) for record in read(driver_cluster, target)]
    assert Counter(row["id"] for row in rows) == Counter(range(RECORDS)), "each once"

    batch = tmp_path / "batch"
    batch.mkdir()
    text = f"""
        name = "remote-batch"
        mode = "batch"
        source = {{ topics = ["{numbers}"], value = {{ format = "json" }} }}
        sink = {{ parquet = "rows" }}
        errors = {{ action = "skip" }}
    """
    Command(driver_cluster, batch, text, master=address).run_to_end("run")
    names = [path.as_posix() for path in (batch / "rows").glob("*.parquet")]
    assert Counter(row["id"] for row in parquet_rows(batch / "rows", names)) == Counter(range(RECORDS))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"sink": "console = true"}, "sink.console: a Spark Connect server would print the rows of a stream there"),
        ({"statement": "SELECT nothing FROM input"}, "A column, variable, or function parameter with name `nothing`"),
        ({"errors": "stop"}, "the value is not valid JSON (topic remote-numbers partition"),
    ],
)
def test_what_is_wrong_is_told_without_the_words_of_the_server(
    driver_cluster: Cluster, tmp_path: Path, address: str, numbers: str, words: dict[str, str], told: str
) -> None:
    named = {"sink": 'parquet = "rows"', "most": "1000", **words}
    found = command(driver_cluster, tmp_path, address, name="wrong", topic=numbers, **named)
    said = found.run_to_end("run", "--once", code=1)
    assert told in said and "org.apache" not in said, said
    state = found.state.read_run()
    assert state is not None and state.restarts == 0
