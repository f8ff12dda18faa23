"""A cluster on a system that has not what Linux has for disks (macOS): a process takes these functions away before it starts."""

import subprocess
import sys
from pathlib import Path

MISSING = ("fdatasync", "posix_fallocate", "posix_fadvise")
CLUSTER = """
import errno, os, sys
for name in {missing!r}:
    delattr(os, name)
for name in ("EUCLEAN", "EREMOTEIO"):
    delattr(errno, name)
from barnabas.sync import Consumer, Producer
from barnabas.testing import Cluster

if __name__ == "__main__":
    with Cluster(brokers=3, config={{"log.flush.interval.messages": "1"}}, folder=sys.argv[1]) as cluster:
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send("t", b"before").result(30)
            with cluster.kill(0, 1, 2):
                pass
            producer.send("t", b"after").result(30)
        print([bytes(record.value) for record in cluster.records("t")])
"""


def test_a_cluster_runs_on_what_is_left(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(CLUSTER.format(missing=MISSING))
    ran = subprocess.run(
        [sys.executable, "-P", str(program), str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "[b'before', b'after']\n"), ran.stderr
