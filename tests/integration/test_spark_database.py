"""scripts/pipelines/to_database: a topic into SQLite and PostgreSQL, each record once, whatever is replayed or forgotten."""

import argparse
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from integration import access_log_facts as facts
from integration import postgres
from integration.cluster import Cluster
from integration.spark_world import STREAM_DEADLINE_S, create_topic, send
from pyspark.sql import Row, SparkSession

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
        connection.execute("DROP TABLE IF EXISTS requests, requests_ledger")
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

    def __init__(self, spark: SparkSession, cluster: Cluster, topic: str, database: Any, checkpoint: Path) -> None:
        self._spark, self._database, self._checkpoint = spark, database, checkpoint
        command_line = facts.pipeline("job").command_line("A test.", topic=topic)
        self._options: argparse.Namespace = command_line.parse_args(
            ["--bootstrap", cluster.bootstrap, "--available-now", "--max-records", "70"]
        )

    def run(self) -> None:
        module, job = facts.pipeline("to_database"), facts.pipeline("job")
        found = module.rows(job.read(self._spark, self._options, columns=module.COLUMNS))
        stream = found.writeStream.foreachBatch(module.writer(self._database))
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


def test_a_transaction_that_breaks_off_leaves_nothing_and_is_made_up_for(database: Any) -> None:
    module = facts.pipeline("to_database")
    make = Row(*module.ROW)
    count = 2 * module.ROWS_AT_ONCE + 1
    rows = [make("t", 0, offset, "client", "time", "GET", f"/{offset}", 200, 1) for offset in range(count)]

    def break_off() -> Iterator[Any]:
        yield from rows[:-1]
        raise ConnectionError("the topic's broker is gone")

    with pytest.raises(ConnectionError):
        module.store(database, break_off())
    assert module.store(database, iter(rows[:10])) == 10
    assert module.store(database, reversed(rows)) == count - 10
    assert stored(database) == list(range(count))


def test_another_kind_of_database_is_refused() -> None:
    with pytest.raises(ValueError, match="write sqlite:FILE or postgresql:CONNECTION"):
        facts.pipeline("to_database").Database("mysql:web")
