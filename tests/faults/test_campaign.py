"""A short campaign on three real brokers: a mix of everything that this machine can do. The long ones: `scripts/faults`."""

import os
from pathlib import Path

import pytest
from faults import disks, network, shim
from faults.campaign import Outcome, run, table
from faults.injections import FAULTS

SECONDS = float(os.environ.get("BARNABAS_FAULT_SECONDS", "30"))
SEED = int(os.environ.get("BARNABAS_FAULT_SEED", "1"))
PROCESSES = ("kill_leader", "kill_controller", "kill_all", "bounce", "pause_leader")
MACHINES = ("isolate_leader", "isolate_inside", "one_way_mute", "lost_power", "torn_write", "clock_jump")


def judge(outcome: Outcome, folder: Path) -> None:
    print(table(outcome))
    if outcome.report.violations:
        outcome.history.write(folder / "history.jsonl")
        pytest.fail(f"{outcome.report.text()}\nhistory and logs: {folder}")


@pytest.mark.timeout(400)
def test_processes_that_die_and_freeze_lose_nothing(tmp_path: Path) -> None:
    judge(run(tmp_path / "cluster", seed=SEED, seconds=SECONDS, kinds=PROCESSES, say=print), tmp_path)


@pytest.mark.timeout(400)
def test_networks_and_disks_that_fail_lose_nothing(tmp_path: Path) -> None:
    lacking = [why for check in (network.why_not, disks.why_not, shim.why_not) if (why := check())]
    if lacking:
        pytest.skip("; ".join(lacking))
    assert set(MACHINES) <= set(FAULTS)
    judge(run(tmp_path / "cluster", seed=SEED, seconds=SECONDS, kinds=MACHINES, say=print), tmp_path)
