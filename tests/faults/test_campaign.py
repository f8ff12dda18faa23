"""A short campaign on three real brokers: a mix of everything that this machine can do. The long ones: `scripts/faults`."""

import asyncio
import errno
import os
from pathlib import Path

import pytest
from faults import disks, network, shim
from faults.campaign import MakeLoad, Outcome, plain_load, run
from faults.cluster import BROKERS, SHIM_NEED, FaultCluster
from faults.injections import FAULTS
from faults.report import table

from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.errors import BarnabasError
from barnabas.net.client.producer.producer import Producer

SECONDS = float(os.environ.get("BARNABAS_FAULT_SECONDS", "25"))  # of each campaign; 0: every kind of fault once
LEAST_FAULTS = 5  # also on a machine that needs longer for them
# Of the load, which is most of a campaign's work. `scripts/faults` has the usual one, and all kinds of faults.
SLOWNESS = 2.5
SEED = int(os.environ.get("BARNABAS_FAULT_SEED", "1"))
PROCESSES = (
    "kill_leader",
    "kill_controller",
    "kill_all",
    "bounce",
    "pause_leader",
    "transfer",
    "reassign_and_kill",
    "bombs",
)
MACHINES = (
    "isolate_leader",
    "isolate_inside",
    "isolate_from_quorum",
    "one_way_mute",
    "lossy_link",
    "reordering_link",
    "lost_power",
    "torn_write",
    "clock_jump",
)


def campaign(folder: Path, kinds: tuple[str, ...], make: MakeLoad = plain_load) -> Outcome:
    return run(
        folder / "cluster",
        seed=SEED,
        seconds=SECONDS,
        kinds=kinds,
        say=print,
        make=make,
        least_faults=LEAST_FAULTS,
        slowness=SLOWNESS,
    )


def judge(outcome: Outcome, folder: Path) -> None:
    print(table(outcome))
    if outcome.report.violations:
        outcome.history.write(folder / "history.jsonl")
        pytest.fail(f"{outcome.report.text()}\nhistory and logs: {folder}")


def test_a_leader_whose_log_fails_leaves_at_once(tmp_path: Path) -> None:
    """EIO for a partition, not for the quorum's journal. It once stayed the leader, and refused, until it was restarted."""
    if lacking := shim.why_not():
        pytest.skip(lacking)
    asyncio.run(fail_the_log_of_a_leader(tmp_path))


async def fail_the_log_of_a_leader(folder: Path) -> None:
    with FaultCluster(folder / "cluster", needs=frozenset({SHIM_NEED})) as cluster:
        cluster.start()
        async with await connected(cluster) as admin, Producer(cluster.bootstrap) as producer:
            await admin.create_topic("campaign", partitions=1, replication_factor=3)
            assert (await (await producer.send("campaign", b"before"))).offset == 0
            leader = cluster.brokers[(await admin.describe_topic("campaign")).partitions[0].leader]
            assert leader.shim is not None
            leader.shim.order(write_errno=errno.EIO, logs_only=1)
            async with asyncio.timeout(30):  # the order reaches the process within moments, maybe after the next write
                while leader.is_running:
                    await (await producer.send("campaign", b"meanwhile"))
                assert (await (await producer.send("campaign", b"after"))).offset > 0
            assert leader.wait(10) not in (0, -9)
            assert "Input/output error" in leader.log()


async def connected(cluster: FaultCluster) -> Admin:
    """An admin, once three brokers take part."""
    async with asyncio.timeout(60):
        while True:
            try:
                async with cluster.admin() as admin:
                    if sum(not broker.fenced for broker in (await admin.describe_cluster()).brokers) == BROKERS:
                        return cluster.admin()
            except BarnabasError:
                pass
            await asyncio.sleep(0.05)


@pytest.mark.timeout(400)
def test_processes_that_die_and_freeze_lose_nothing(tmp_path: Path) -> None:
    judge(campaign(tmp_path, PROCESSES), tmp_path)


@pytest.mark.xdist_group("power losses")  # as tests/integration/test_power_loss.py
@pytest.mark.timeout(400)
def test_networks_and_disks_that_fail_lose_nothing(tmp_path: Path) -> None:
    lacking = [why for check in (network.why_no_bad_links, disks.why_not, shim.why_not) if (why := check())]
    if lacking:
        pytest.skip("; ".join(lacking))
    assert set(MACHINES) <= set(FAULTS)
    judge(campaign(tmp_path, MACHINES), tmp_path)
