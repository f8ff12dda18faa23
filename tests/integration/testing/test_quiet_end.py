"""The end of a cluster in a program that has not configured logging: Python prints warnings and errors of all loggers there."""

import subprocess
import sys

PROGRAM = """
from barnabas.testing import Cluster
for _ in range(3):
    with Cluster(brokers=3) as cluster:
        cluster.create_topic("orders", partitions=6)
"""


def test_a_cluster_ends_without_a_word() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
