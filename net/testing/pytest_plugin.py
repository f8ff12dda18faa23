"""The pytest plugin: fixtures `barnabas`, `barnabas_topic` and `bootstrap_servers`, and the mark `barnabas`.

Clusters live as long as the session: one for each combination of arguments of a mark. Each test begins with an empty, healthy
one. With xdist, each worker has its own clusters, so workers cannot disturb each other. Every pytest run of an environment with
Barnabas imports this module, so it imports nothing but pytest; the first cluster imports the rest.
"""

import json
import re
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from .cluster import Cluster

MARK: Final = "barnabas"
_MAX_NAME: Final = 60  # characters of a test's name in that of its topic; 249 are allowed


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("barnabas")
    group.addoption(
        "--barnabas-backend",
        choices=("in-process", "processes"),
        help="where brokers of tests run, unless a test is marked otherwise; default: in-process",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARK}(brokers=3, backend='in-process', voters=None, config={{}}, broker_config={{}}, tls=False, users=None,"
        " permissions=None, partitions=1, reset=True): the cluster of the fixtures `barnabas`, `barnabas_topic` and"
        " `bootstrap_servers`; `partitions` of `barnabas_topic`; `reset=False` leaves topics and groups for the next test",
    )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Show what the brokers say where a test fails."""
    report = (yield).get_result()
    cluster = getattr(item, "funcargs", {}).get("barnabas")
    if report.failed and cluster is not None:
        report.sections.append((f"brokers of barnabas.testing, {cluster.backend}", cluster.logs()))


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """What a mark says; `Cluster` checks most of it."""

    brokers: int = 3
    backend: str = "in-process"
    voters: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    broker_config: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    tls: bool = False
    users: Mapping[str, str] | None = None
    permissions: Mapping[str, Sequence[str]] | None = None
    partitions: int = 1
    reset: bool = True

    @property
    def of_cluster(self) -> dict[str, Any]:
        """The arguments of `Cluster`."""
        return {name: value for name, value in vars(self).items() if name not in ("partitions", "reset")}

    @property
    def key(self) -> str:
        return json.dumps(self.of_cluster, sort_keys=True, default=repr)


def _wanted(request: pytest.FixtureRequest) -> _Wanted:
    chosen: dict[str, Any] = {}
    if backend := request.config.getoption("--barnabas-backend"):
        chosen["backend"] = backend
    for mark in reversed(list(request.node.iter_markers(MARK))):  # the closest one has the last word
        if mark.args:
            raise TypeError(f"pytest.mark.barnabas{mark.args}: name the arguments, as in brokers=1")
        chosen |= mark.kwargs
    return _checked(chosen)


def _checked(chosen: Mapping[str, Any]) -> _Wanted:
    """Raises TypeError, which names the argument."""
    known = [argument.name for argument in fields(_Wanted)]
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise TypeError(f"pytest.mark.barnabas has no argument {unknown[0]!r}; it has {', '.join(known)}")
    wanted = _Wanted(**chosen)
    if isinstance(wanted.partitions, bool) or not isinstance(wanted.partitions, int):
        raise TypeError(f"pytest.mark.barnabas(partitions={wanted.partitions!r}): give an integer")
    if not isinstance(wanted.reset, bool):
        raise TypeError(f"pytest.mark.barnabas(reset={wanted.reset!r}): give True or False")
    return wanted


class _Clusters:
    """The clusters of the session."""

    def __init__(self) -> None:
        self._running: dict[str, Cluster] = {}

    def get(self, wanted: _Wanted) -> "Cluster":
        cluster = self._running.get(wanted.key)
        if cluster is None:
            from .cluster import Cluster

            cluster = self._running[wanted.key] = Cluster(**wanted.of_cluster).start()
        return cluster

    def drop(self, wanted: _Wanted) -> None:
        """A cluster that a test has left beyond repair, or with other brokers: the next test has a new one."""
        self._running.pop(wanted.key).close()

    def close(self) -> None:
        for cluster in self._running.values():
            cluster.close()


@pytest.fixture(scope="session")
def _barnabas_clusters() -> Iterator[_Clusters]:
    clusters = _Clusters()
    yield clusters
    clusters.close()


@pytest.fixture
def barnabas(request: pytest.FixtureRequest, _barnabas_clusters: _Clusters) -> Iterator["Cluster"]:
    """A cluster (barnabas.testing.Cluster) without topics and groups, on which no fault holds. It is shared with other tests, and
    healed and emptied after each. `@pytest.mark.barnabas(brokers=1)` asks for another one."""
    wanted = _wanted(request)
    cluster = _barnabas_clusters.get(wanted)
    yield cluster
    # The next test has all brokers again, and no other ones; a test may have closed its cluster.
    if not cluster.is_started or list(cluster.brokers) != list(range(wanted.brokers)):
        _barnabas_clusters.drop(wanted)
        return
    members_left: list[str] = []
    try:
        if wanted.reset:
            members_left = cluster.reset()
        else:
            cluster.heal()
    except BaseException:
        _barnabas_clusters.drop(wanted)
        raise
    if members_left:  # consumers that are still open would take part in the next test
        _barnabas_clusters.drop(wanted)


@pytest.fixture
def barnabas_topic(request: pytest.FixtureRequest, barnabas: "Cluster") -> str:
    """The name of a new topic for this test alone; `@pytest.mark.barnabas(partitions=6)` sets its partitions."""
    name = re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name)[:_MAX_NAME]
    topic = f"{name}-{uuid.uuid4().hex[:8]}"
    barnabas.create_topic(topic, partitions=_wanted(request).partitions)
    return topic


@pytest.fixture
def bootstrap_servers(barnabas: "Cluster") -> str:
    """The addresses of the cluster's brokers, "127.0.0.1:23456,...", for any Kafka client."""
    return barnabas.bootstrap_servers
