"""A pipeline from a file, run by this process on the session's Spark and a real cluster."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from integration import connect_world, postgres
from integration.cluster import Cluster
from integration.test_spark_pipelines import forget_last_commit
from pyspark.sql import SparkSession

from barnabas.net.programs.pipeline.files import read_pipeline
from barnabas.net.programs.pipeline.state import StateFolder
from barnabas.spark_connector.pipeline.queries import Job
from barnabas.spark_connector.pipeline.sources import World


class Declared:
    """A pipeline's file in a folder of its own."""

    def __init__(self, spark: SparkSession, cluster: Cluster, folder: Path, text: str, suffix: str = ".toml") -> None:
        self._spark = spark
        self._cluster = cluster
        self.folder = folder
        self.file = folder / f"pipeline{suffix}"
        self.file.write_text(text)
        self.registry_login: dict[str, str] = {}

    @property
    def state(self) -> StateFolder:
        return read_pipeline(self.file).state_folder()

    def job(self) -> Job:
        found = read_pipeline(self.file)
        self.state.prepare()
        world = World(
            spark=self._spark,
            state=self.state,
            base=found.base,
            connection={"bootstrap.servers": self._cluster.bootstrap},
            is_batch=found.spec.is_batch,
            registry_login=self.registry_login,
        )
        return Job(world, found.spec, is_stopped=lambda: False)

    def run(self) -> None:
        self.job().run(is_once=True)

    def replay(self) -> None:
        """As after a driver that was killed behind the work of its last micro-batch."""
        for query in self.state.checkpoint.iterdir():
            forget_last_commit(query)
        self.run()


def empty_database(kind: str, name: str, request: pytest.FixtureRequest) -> str:
    """What `database` of a sink says: a file beside the pipeline's, or a new database on `server`. Skips without one."""
    if kind == "sqlite":
        return "sqlite:totals.db"
    if postgres.find()[0] is None:
        pytest.skip(postgres.find()[1])
    return f"postgresql:{connect_world.database(request.getfixturevalue('server').address, name)}"


def rows_in(database: str, folder: Path, select: str) -> list[tuple[Any, ...]]:
    """Of such a database; `folder`: of the pipeline's file."""
    kind, _, place = database.partition(":")
    if kind == "sqlite":
        with closing(sqlite3.connect(folder / place)) as connection:
            return connection.execute(select).fetchall()
    with psycopg.connect(place) as connection:
        return connection.execute(select).fetchall()
