"""Clusters of real processes, and the ends of their logs where a test fails."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from integration import postgres
from integration.cluster import RUNNING, SESSION, SHARED_SESSION, Cluster
from integration.small_disk import SmallDisk, small_disks
from lifeline import hold_all

from barnabas.net.base.local.local_cluster import LAUNCHER
from barnabas.spark_connector.java import JavaMissingError, require_java

if TYPE_CHECKING:
    from integration.connect_world import Connector
    from pyspark.sql import SparkSession


@pytest.hookimpl(tryfirst=True)  # before fixtures; one of the session would bring all tests into one group (`two_ends`)
def pytest_runtest_setup() -> None:
    hold_all()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed:
        for cluster in RUNNING:
            report.sections.append((f"broker logs of {cluster.folder}", cluster.tails()))
    return report


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Make clusters for one test, which may do to them whatever it likes."""
    with ExitStack() as stack:

        def make(
            brokers: int = 3,
            *,
            name: str = "cluster",
            voters: int | None = None,
            machines: int | None = None,
            launcher: tuple[str, ...] = LAUNCHER,
            secure: bool = False,
            **overrides: str,
        ) -> Cluster:
            keys = {key.replace("_", "."): value for key, value in overrides.items()}
            cluster = Cluster(
                tmp_path / name,
                brokers,
                voters=voters,
                machines=machines,
                overrides={**SESSION, **keys},
                launcher=launcher,
                secure=secure,
            )
            return stack.enter_context(cluster)

        yield make


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers for all tests of a module; who uses it leaves all of them running."""
    overrides = {**SHARED_SESSION, "log.retention.check.interval.ms": "500", "log.segment.delete.delay.ms": "100"}
    with Cluster(tmp_path_factory.mktemp("shared"), 3, overrides=overrides) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    """A PostgreSQL server whose changes can be captured."""
    with postgres.server(**postgres.LOGICAL) as started:
        yield started


@pytest.fixture
def connectors(shared_cluster: Cluster) -> Iterator[Callable[[Path], "Connector"]]:
    """Start connectors, which end with the test."""
    from integration.connect_world import Connector  # needs psycopg

    with ExitStack() as stack:

        def start(file: Path) -> Connector:
            connector = Connector(file, shared_cluster.bootstrap)
            stack.callback(connector.kill)
            return connector

        yield start


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """The one Spark session of a run."""
    try:
        require_java()
    except JavaMissingError as error:
        pytest.skip(str(error))
    pytest.importorskip("pyspark", reason="the Spark connector's tests need barnabas[spark]: scripts/setup.sh")
    from integration.spark_world import start_session

    session = start_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers for all tests with Spark; who uses it leaves all of them running."""
    with Cluster(tmp_path_factory.mktemp("spark_cluster"), 3, overrides=SHARED_SESSION) as cluster:
        asyncio.run(cluster.ready())
        yield cluster


@pytest.fixture(scope="module")
def driver_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers for a module whose drivers are processes of their own; who uses it leaves all of them running. Tests with
    `spark_cluster` are one group with those of the session, a quarter of an hour in one process (`two_ends`)."""
    with Cluster(tmp_path_factory.mktemp("driver_cluster"), 3, overrides=SHARED_SESSION) as cluster:
        asyncio.run(cluster.ready())
        yield cluster


@pytest.fixture
def declared(spark: "SparkSession", spark_cluster: Cluster, tmp_path: Path) -> Iterator[Any]:
    """`declared(text, suffix=".toml")` is a pipeline from a file with this text."""
    from integration.declared_pipeline import Declared

    yield lambda text, suffix=".toml": Declared(spark, spark_cluster, tmp_path, text, suffix)
    for view in spark.catalog.listTables():
        spark.catalog.dropTempView(view.name)


@pytest.fixture
def mounts() -> Iterator[Callable[[Path, int], SmallDisk]]:
    with small_disks() as mount:
        yield mount
