"""`scripts/client_suites`: somebody else's client, or its own suite, against real brokers. Exit code 1: something failed.

Packages and sources lie in a temporary folder that goes at the end; mvn, go and npm keep their downloads in the
user's cache.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from integration.cluster import SESSION, Cluster

from . import connect, kafka_python, killed_leader, streams

KILLED_LEADER = {"java": killed_leader.java, "franz-go": killed_leader.franz_go, "kafkajs": killed_leader.kafkajs}
UNDER_HARM = {"streams": streams.run, "connect": connect.run}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/client_suites", description=__doc__)
    parser.add_argument("suite", choices=["kafka-python", *KILLED_LEADER, *UNDER_HARM])
    parser.add_argument(
        "--brokers", type=int, help="default: 1 for kafka-python, whose tests expect all from one; else 3"
    )
    parser.add_argument(
        "--records", type=int, default=10_000, help="that a client writes and reads (default: %(default)s)"
    )
    parser.add_argument("--kills", type=int, default=20, help="by -9, of programs and brokers (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the kills (default: %(default)s)")
    chosen, for_pytest = parser.parse_known_args()
    if for_pytest and chosen.suite != "kafka-python":
        parser.error(f"unknown arguments: {' '.join(for_pytest)}")
    with tempfile.TemporaryDirectory(prefix="barnabas-suites-") as name:
        folder = Path(name)
        brokers = chosen.brokers or (1 if chosen.suite == "kafka-python" else 3)
        with Cluster(folder / "cluster", brokers, overrides=SESSION) as cluster:
            if chosen.suite == "kafka-python":
                asyncio.run(cluster.ready())
                return kafka_python.run(folder / "suite", cluster, for_pytest)
            if chosen.suite in UNDER_HARM:
                suite = UNDER_HARM[chosen.suite]
                return asyncio.run(suite(folder / "suite", cluster, kills=chosen.kills, seed=chosen.seed))
            command = KILLED_LEADER[chosen.suite](folder / "client", chosen.records)
            return asyncio.run(killed_leader.run(cluster, command, chosen.records))


sys.exit(main())
