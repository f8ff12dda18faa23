"""A campaign that is killed leaves neither mounts nor network namespaces on the machine."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from faults import disks, mounts, network

CAMPAIGN = """
import sys
from pathlib import Path

from faults.disks import LoopDisk
from faults.network import NamespaceNetwork

folder = Path(sys.argv[1])
with NamespaceNetwork(1) as hosts, hosts.entered():
    LoopDisk(folder / "disk.img", folder / "data")
    (folder / "data" / "file").touch()
    print(hosts.namespace(0), flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_campaign_has_mounted_is_gone(tmp_path: Path) -> None:
    if lacking := [why for check in (network.why_not, disks.why_not) if (why := check())]:
        pytest.skip("; ".join(lacking))
    process = subprocess.Popen(
        [sys.executable, "-c", CAMPAIGN, str(tmp_path)],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    namespace = process.stdout.readline().strip()
    own_table = Path(f"/proc/{process.pid}/mounts").read_text()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert namespace.startswith(f"bf{process.pid}")
    assert str(tmp_path) in own_table, "the disk was mounted"
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
    assert not (mounts.NAMESPACES / namespace).exists()
    shutil.rmtree(tmp_path / "data")
