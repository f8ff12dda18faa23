"""The campaign finds bugs in real brokers that really have them."""

from pathlib import Path

import pytest
from faults import network
from faults.campaign import run
from faults.injections import FAULTS
from faults.planted import program
from faults.report import table

SECONDS = 15.0
TESTS = Path(__file__).parent.parent
FOUND = {
    "acknowledges_alone": (("isolate_inside",), {"lost"}),
    "truncates_to_the_high_watermark": (("transfer", "kill_all", "kill_leader"), {"lost"}),
    "shows_what_is_not_committed": (("isolate_inside", "one_way_mute"), {"vanished"}),
    "commits_before_the_quorum": (("kill_all",), {"commit-regress"}),
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("bug", FOUND)
def test_a_campaign_finds_a_planted_bug(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds, rules = FOUND[bug]
    if any(FAULTS[kind].need for kind in kinds) and (lacking := network.why_not()):
        pytest.skip(lacking)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    outcome = run(tmp_path / "cluster", seed=1, seconds=SECONDS, kinds=kinds, say=print, program=program(bug))
    print(table(outcome))
    assert rules <= outcome.report.rules()
