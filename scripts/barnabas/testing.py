"""Clusters for tests, which can be broken on purpose.

    from barnabas.testing import Cluster

    with Cluster(brokers=3) as cluster:
        with cluster.kill(0): ...
        cluster.assert_delivered("orders", sent, exactly_once=True)

With pytest, the fixtures `barnabas`, `barnabas_topic` and `bootstrap_servers` need no import. `simulate` runs asyncio programs
against a cluster on virtual time. docs/testing.md has recipes. Names are loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.net.base.local.local_cluster import ClusterError as ClusterError
    from barnabas.net.testing.cluster import AsyncCluster as AsyncCluster
    from barnabas.net.testing.cluster import Cluster as Cluster
    from barnabas.net.testing.fault import Fault as Fault
    from barnabas.net.testing.simulation.simulate import Simulation as Simulation
    from barnabas.net.testing.simulation.simulate import SimulationFailed as SimulationFailed
    from barnabas.net.testing.simulation.simulate import SimulationResult as SimulationResult
    from barnabas.net.testing.simulation.simulate import simulate as simulate

_MODULE_OF = {
    "AsyncCluster": "testing.cluster",
    "Cluster": "testing.cluster",
    "ClusterError": "base.local.local_cluster",
    "Fault": "testing.fault",
    "Simulation": "testing.simulation.simulate",
    "SimulationFailed": "testing.simulation.simulate",
    "SimulationResult": "testing.simulation.simulate",
    "simulate": "testing.simulation.simulate",
}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'barnabas.testing' has no attribute {name!r}")
    value: object = getattr(import_module(f"barnabas.net.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
