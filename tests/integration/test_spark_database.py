"""scripts/pipelines/to_database: a topic into SQLite and PostgreSQL, each record once, whatever is replayed or forgotten."""

import argparse
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from integration import access_log_facts as facts
from integration import postgres
from integration.cluster import Cluster
from integration.spark_world import STREAM_DEADLINE_S, create_topic, in_admin, send
from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)  # The first to use the session also waits for it; two cores may be busy.


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    if postgres.find()[0] is None:
        pytest.skip(postgres.find()[1])
    with postgres.running() as address:
        yield f"postgresql:{address}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """One that has no tables."""
    module = facts.pipeline("to_database")
    if request.param == "sqlite":
        return module.Database(f"sqlite:{tmp_path / 'requests.db'}")
    found = module.Database(request.getfixturevalue("server"))
    with closing(found.connect()) as connection:
        connection.execute("DROP TABLE IF EXISTS requests, lines, barnabas_offsets")
    return found


def lines(start: int, end: int) -> list[bytes]:
    request = '10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET /page/{} HTTP/1.1" 200 512 "-" "-"'
    return [request.format(number).encode() for number in range(start, end)]


def stored(database: Any) -> list[int]:
    """The numbers of all pages, in order."""
    with closing(database.connect()) as connection:
        rows = connection.execute("SELECT path FROM requests").fetchall()
    return sorted(int(path.rpartition("/")[2]) for (path,) in rows)


class Job:
    """The pipeline as a stream that ends at the topic's present end."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        topic: str,
        database: Any,
        checkpoint: Path,
        *,
        columns: list[str] | None = None,
        **more: Any,
    ) -> None:
        """`more` goes to `writer`."""
        self._spark, self._database, self._checkpoint = spark, database, checkpoint
        self._columns, self._more = columns, more
        command_line = facts.pipeline("job").command_line("A test.", topic=topic)
        self._options: argparse.Namespace = command_line.parse_args(
            ["--bootstrap", cluster.bootstrap, "--available-now", "--max-records", "70"]
        )

    def run(self) -> None:
        module, job = facts.pipeline("to_database"), facts.pipeline("job")
        found = module.rows(job.read(self._spark, self._options, columns=module.COLUMNS), self._columns)
        stream = found.writeStream.foreachBatch(module.writer(self._database, found, **self._more))
        stream = stream.option("checkpointLocation", str(self._checkpoint))
        assert job.triggered(stream, self._options).start().awaitTermination(STREAM_DEADLINE_S)

    def forget_last_commit(self) -> None:
        """As a driver that was killed after the transaction and before Spark's own note of it."""
        last = max((item for item in (self._checkpoint / "commits").glob("[0-9]*")), key=lambda item: int(item.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def test_what_is_replayed_is_not_stored_again(
    spark: SparkSession, spark_cluster: Cluster, database: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    topic = create_topic(spark_cluster, f"database-{request.node.callspec.id}")
    job = Job(spark, spark_cluster, topic, database, tmp_path / "checkpoint")
    for partition in range(2):
        send(spark_cluster, topic, lines(50 * partition, 50 * partition + 50), partition=partition)
    job.run()
    assert stored(database) == list(range(100))

    job.forget_last_commit()
    send(spark_cluster, topic, lines(100, 120), partition=0)
    job.run()
    assert stored(database) == list(range(120))

    # A new query reads all from the start, in batches of its own.
    shutil.rmtree(tmp_path / "checkpoint")
    send(spark_cluster, topic, lines(120, 130), partition=1)
    job.run()
    assert stored(database) == list(range(130))


def test_a_topic_that_is_made_again_under_its_name_begins_at_its_start(
    spark: SparkSession, spark_cluster: Cluster, database: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    name = f"made-again-{request.node.callspec.id}"
    send(spark_cluster, create_topic(spark_cluster, name), lines(0, 30), partition=0)
    Job(spark, spark_cluster, name, database, tmp_path / "checkpoint").run()
    in_admin(spark_cluster, lambda admin: admin.delete_topic(name))
    send(spark_cluster, create_topic(spark_cluster, name), lines(30, 50), partition=0)
    Job(spark, spark_cluster, name, database, tmp_path / "new-checkpoint").run()
    assert stored(database) == list(range(50)), "by its name, the ledger is at offset 30"


def test_any_table_by_several_connections(
    spark: SparkSession, spark_cluster: Cluster, database: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    topic = create_topic(spark_cluster, f"lines-{request.node.callspec.id}", partitions=8)
    for partition in range(8):
        send(spark_cluster, topic, [b"%d of %d" % (number, partition) for number in range(12)], partition=partition)
    if not database.is_sqlite:  # the table notes who writes
        with closing(database.connect()) as connection:
            made = "topic_id TEXT, partition_id INTEGER, record_offset BIGINT, topic TEXT, line TEXT, size INTEGER"
            connection.execute(f"CREATE TABLE lines ({made}, writer INTEGER DEFAULT pg_backend_pid())")
    columns = ["CAST(value AS STRING) AS line", "length(value) AS size"]
    for checkpoint in ("checkpoint", "another"):
        job = Job(spark, spark_cluster, topic, database, tmp_path / checkpoint, columns=columns, table="lines")
        job.run()
    with closing(database.connect()) as connection:
        found = connection.execute("SELECT partition_id, record_offset, line, size FROM lines ORDER BY 1, 2").fetchall()
        writers = [] if database.is_sqlite else connection.execute("SELECT DISTINCT writer FROM lines").fetchall()
    expected = [(partition, number, f"{number} of {partition}") for partition in range(8) for number in range(12)]
    assert found == [(*item, len(item[2])) for item in expected], "each record once"
    assert database.is_sqlite or len(writers) > 1


def table(database: Any) -> Any:
    module = facts.pipeline("to_database")
    kinds = ("VARCHAR(50)", "INTEGER", "BIGINT", "VARCHAR(250)", "VARCHAR(250)")
    made = module.Table(database, "requests", dict(zip((*module.PLACE, "path"), kinds, strict=True)))
    made.create()
    return made


def test_two_attempts_of_a_task_at_once_store_its_rows_once(database: Any) -> None:
    """The ledger has their places already, so that no attempt waits for another one to add them."""
    target, together = table(database), Barrier(4)
    rows = [
        ("id", partition, offset, "t", f"/{500 * partition + offset}") for partition in (0, 1) for offset in range(500)
    ]
    assert target.store([rows[0], rows[500]]) == 2

    def attempt(_: int) -> int:
        def as_they_come() -> Iterator[Any]:
            together.wait(60)
            yield from rows

        count: int = target.store(as_they_come())
        return count

    with ThreadPoolExecutor(4) as attempts:
        assert sum(attempts.map(attempt, range(4))) == 998
    assert stored(database) == list(range(1_000))


def test_a_transaction_that_breaks_off_leaves_nothing_and_is_made_up_for(database: Any) -> None:
    module = facts.pipeline("to_database")
    target = table(database)
    count = 2 * module.ROWS_AT_ONCE + 1
    rows = [("id", 0, offset, "t", f"/{offset}") for offset in range(count)]

    def break_off() -> Iterator[Any]:
        yield from rows[:-1]
        raise ConnectionError("the topic's broker is gone")

    with pytest.raises(ConnectionError):
        target.store(break_off())
    assert target.store(iter(rows[:10])) == 10
    assert target.store(reversed(rows)) == count - 10
    assert stored(database) == list(range(count))


def test_another_kind_of_database_is_refused() -> None:
    with pytest.raises(ValueError, match="write sqlite:FILE or postgresql:CONNECTION"):
        facts.pipeline("to_database").Database("mysql:web")
