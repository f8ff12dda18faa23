"""The campaign finds bugs in real brokers that really have them."""

from pathlib import Path

import pytest
from faults import network
from faults.campaign import run
from faults.injections import FAULTS
from faults.planted import program
from faults.report import table
from faults.transactions.layout import BANKS
from faults.transactions.load import TransactionalLoad

SECONDS, LEAST_FAULTS = 15.0, 3
TRANSACTION_SECONDS, LEAST_KILLS = 5.0, 2
TESTS = Path(__file__).parent.parent
FOUND = {
    "acknowledges_alone": (("isolate_inside",), {"lost"}),
    "truncates_to_the_high_watermark": (("transfer", "kill_all", "kill_leader"), {"lost"}),
    "shows_what_is_not_committed": (("isolate_inside", "one_way_mute"), {"vanished"}),
    "commits_before_the_quorum": (("kill_all",), {"commit-regress"}),
}
FOUND_BY_TRANSACTIONS = {
    "tells_no_aborted_transactions": (("kill_client",), {"aborted-read"}),
    "commits_in_part": (("kill_client",), {"partial", "lost"}),
    "drops_the_offsets_of_transactions": (("kill_clients",), {"outputs", "offsets"}),
    "never_times_out": (("delete_records",), {"hanging"}),
}
NEVER_MOVES = {"commits_in_part": BANKS[1]}  # nothing is committed in this topic
HOPELESS_S = 30.0  # longer than two timeouts of transactions, and two sessions of members


@pytest.mark.timeout(400)
@pytest.mark.parametrize("bug", FOUND)
def test_a_campaign_finds_a_planted_bug(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds, rules = FOUND[bug]
    if any(FAULTS[kind].need for kind in kinds) and (lacking := network.why_not()):
        pytest.skip(lacking)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    outcome = run(
        tmp_path / "cluster",
        seed=1,
        seconds=SECONDS,
        kinds=kinds,
        say=print,
        program=program(bug),
        least_faults=LEAST_FAULTS,
    )
    print(table(outcome))
    assert rules <= outcome.report.rules()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("bug", FOUND_BY_TRANSACTIONS)
def test_a_transactional_campaign_finds_a_planted_bug(
    bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds, rules = FOUND_BY_TRANSACTIONS[bug]
    monkeypatch.setenv("PYTHONPATH", str(TESTS))

    class Load(TransactionalLoad):
        """Does not wait for what the bug prevents."""

        progressing = tuple(place for place in TransactionalLoad.progressing if place[0] != NEVER_MOVES.get(bug))
        hopeless_s = HOPELESS_S

    outcome = run(
        tmp_path / "cluster",
        seed=1,
        seconds=TRANSACTION_SECONDS,
        kinds=kinds,
        say=print,
        program=program(bug),
        make=Load,
        least_faults=LEAST_KILLS,
    )
    print(table(outcome))
    assert rules <= outcome.report.rules()
