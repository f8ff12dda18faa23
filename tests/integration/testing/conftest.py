"""One cluster of each backend for the tests of a module; each test begins with an empty, healthy cluster."""

from collections.abc import Iterator

import pytest

from barnabas.net.testing.cluster import Cluster


@pytest.fixture(scope="module", params=["in-process", "processes"])
def backend_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(brokers=3, backend=request.param) as cluster:
        yield cluster


@pytest.fixture
def cluster(backend_cluster: Cluster) -> Iterator[Cluster]:
    yield backend_cluster
    backend_cluster.reset()


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """Three replicas, two of which must be in sync."""
    cluster.create_topic("orders", configs={"min.insync.replicas": "2"})
    return "orders"
