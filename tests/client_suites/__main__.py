"""`scripts/client_suites`: somebody else's client, or its own suite, against real brokers. Exit code 1: something failed.

Nothing of theirs is kept: packages, sources and caches lie in a temporary folder that goes at the end.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from integration.cluster import SESSION, Cluster

from . import kafka_python, killed_leader

KILLED_LEADER = {"java": killed_leader.java, "franz-go": killed_leader.franz_go, "kafkajs": killed_leader.kafkajs}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/client_suites", description=__doc__)
    parser.add_argument("suite", choices=["kafka-python", *KILLED_LEADER])
    parser.add_argument(
        "--brokers", type=int, help="default: 1 for kafka-python, whose tests expect all from one; else 3"
    )
    parser.add_argument(
        "--records", type=int, default=10_000, help="that a client writes and reads (default: %(default)s)"
    )
    chosen, for_pytest = parser.parse_known_args()
    if for_pytest and chosen.suite in KILLED_LEADER:
        parser.error(f"unknown arguments: {' '.join(for_pytest)}")
    with tempfile.TemporaryDirectory(prefix="barnabas-suites-") as name:
        folder = Path(name)
        brokers = chosen.brokers or (3 if chosen.suite in KILLED_LEADER else 1)
        with Cluster(folder / "cluster", brokers, overrides=SESSION) as cluster:
            if chosen.suite == "kafka-python":
                asyncio.run(cluster.ready())
                return kafka_python.run(folder / "suite", cluster, for_pytest)
            command = KILLED_LEADER[chosen.suite](folder / "client", chosen.records)
            return asyncio.run(killed_leader.run(cluster, command, chosen.records))


sys.exit(main())
