"""Changes of a PostgreSQL table through a topic and a declared pipeline into a table of another database."""

from collections.abc import Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from integration import postgres
from integration.cluster import Cluster, until
from integration.declared_pipeline import Declared
from pyspark.sql import SparkSession

if postgres.find()[0] is None:
    pytest.skip(postgres.find()[1], allow_module_level=True)
psycopg = pytest.importorskip("psycopg")

from integration import connect_world as world  # noqa: E402 - needs psycopg
from integration.whole_topic import messages  # noqa: E402 - as above

pytestmark = pytest.mark.timeout(300)
PIPELINE = """
name = "changed"

[source]
topics = ["changed.public.items"]
value = {{ format = "changes", fields = {{ id = "bigint", name = "string", price = "decimal(12,2)" }} }}

[[steps]]
sql = '''
SELECT id, upper(name) AS name, price * 2 AS double_price, change_op, change_generation, change_lsn, change_order FROM input
'''

[sink]
table = "copies"
database = "postgresql:{dsn}"
write = "changes"
key = ["id"]
"""


@pytest.fixture
def source(server: postgres.Server, spark_cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """A database whose table `items` is captured into a topic of three partitions."""
    dsn = world.database(server.address, "changed")
    world.execute(
        dsn,
        "CREATE TABLE items (id bigint PRIMARY KEY, name text, price numeric)",
        "INSERT INTO items SELECT i, 'item ' || i, i + 0.25 FROM generate_series(1, 500) i",
        "CREATE PUBLICATION changed FOR TABLE items",
    )
    topics = "{ partitions = 3, replication_factor = 1 }"
    with ExitStack() as stack:
        connector = world.Connector(world.source_file(tmp_path, dsn, "changed", topics=topics), spark_cluster.bootstrap)
        stack.callback(connector.kill)
        yield dsn


def copied(dsn: str) -> list[Any]:
    with psycopg.connect(dsn) as connection:
        found: list[Any] = connection.execute("SELECT id, name, double_price FROM copies ORDER BY id").fetchall()
    return found


def expected(dsn: str) -> list[Any]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT id, name, price FROM items ORDER BY id").fetchall()
    return [(number, name.upper(), price * 2) for number, name, price in rows]


async def captured(cluster: Cluster, dsn: str, marker: int) -> None:
    """Until the topic has everything up to now: a row comes last."""
    world.execute(dsn, f"INSERT INTO items VALUES ({marker}, 'marker', 0)")

    def has_marker() -> bool:
        try:
            found = list(messages(cluster.bootstrap, "changed.public.items"))
        except AssertionError:
            return False
        return any(message.key() == f'{{"id":{marker}}}'.encode() for message in found)

    await until(has_marker, "the topic has the last row", timeout_s=60)


async def test_a_table_becomes_equal_to_what_the_steps_make_of_its_source(
    spark: SparkSession, spark_cluster: Cluster, server: postgres.Server, source: str, tmp_path: Path
) -> None:
    target = world.database(server.address, "changed_copy")
    pipeline = Declared(spark, spark_cluster, tmp_path, PIPELINE.format(dsn=target))
    await captured(spark_cluster, source, 10_001)
    pipeline.run()
    assert copied(target) == expected(source) and len(copied(target)) == 501
    world.execute(
        source,
        "UPDATE items SET name = 'new ' || id WHERE id < 100",
        "UPDATE items SET price = 7.5, name = 'twice' WHERE id < 50",
        "DELETE FROM items WHERE id BETWEEN 200 AND 300",
        "INSERT INTO items VALUES (250, 'back', 1)",
        "UPDATE items SET id = id + 5000 WHERE id BETWEEN 400 AND 450",
    )
    await captured(spark_cluster, source, 10_002)
    pipeline.run()
    assert copied(target) == expected(source)
    world.execute(source, "TRUNCATE items", "INSERT INTO items VALUES (3, 'after', 1.5), (600, 'more', 2)")
    await captured(spark_cluster, source, 10_003)
    pipeline.run()
    assert copied(target) == expected(source) and copied(target)[0] == (3, "AFTER", Decimal("3.00"))
    pipeline.replay()
    assert copied(target) == expected(source)
