"""The campaign finds bugs in real brokers that really have them.

The brokers of a campaign have several bugs, of promises that are independent: what one of them does breaks no rule by which
another one is found, and keeps none from being seen.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from faults import network
from faults.campaign import plain_load, run
from faults.injections import FAULTS
from faults.planted import BUGS, program
from faults.report import table
from faults.transactions.layout import BANKS, MIDDLE, TOPICS, Role
from faults.transactions.load import TransactionalLoad
from faults.workload import Workload

LEAST_FAULTS: Final = 3  # of each campaign, whatever time they take
LEAST_KILLS: Final = 2
SLOWNESS: Final = 2.5  # of the load: few records show a bug, and each is work for four clients and three brokers
TESTS = Path(__file__).parent.parent
Found = Mapping[str, set[str]]  # bug: the rules that it breaks
RECORDS: Final[tuple[tuple[tuple[str, ...], Found], ...]] = (
    (
        ("isolate_inside", "one_way_mute", "kill_all"),
        {
            "acknowledges_alone": {"lost"},
            "shows_what_is_not_committed": {"vanished"},
            "commits_before_the_quorum": {"commit-regress"},
        },
    ),
    (("transfer", "kill_all", "kill_leader"), {"truncates_to_the_high_watermark": {"lost"}}),
)
TRANSACTIONS: Final[tuple[tuple[tuple[str, ...], Found], ...]] = (
    (
        ("kill_client", "delete_records"),
        {"tells_no_aborted_transactions": {"aborted-read"}, "never_times_out": {"hanging"}},
    ),
    (
        ("kill_clients",),
        {"commits_in_part": {"partial", "lost"}, "drops_the_offsets_of_transactions": {"outputs", "offsets"}},
    ),
)
NEVER_MOVES = {"commits_in_part": BANKS[1]}  # nothing is committed in this topic
# A chain and a bank of each protocol; what finds bugs that are not known yet has more of them.
ROLES: Final[tuple[tuple[Role, int], ...]] = (
    ("source", 1),
    ("librdkafka_transform", 1),
    ("aiokafka_transform", TOPICS[MIDDLE]),
    ("sdk_transform", 1),
    ("librdkafka_bank", 1),
    ("sdk_bank", 1),
)
HOPELESS_S = 30.0  # longer than two timeouts of transactions, and two sessions of members
SURPLUS_S = 5.0  # longer than the reader of all topics needs for inputs that it has got after their outputs


def named(values: object) -> str:
    return "+".join(values) if isinstance(values, Mapping) else ""


def test_the_campaigns_have_all_bugs_and_each_bug_has_rules_of_its_own() -> None:
    assert sorted(bug for _, found in (*RECORDS, *TRANSACTIONS) for bug in found) == sorted(BUGS)
    for _, found in (*RECORDS, *TRANSACTIONS):
        assert sum(map(len, found.values())) == len(set().union(*found.values()))


class Undeterred(Workload):
    """Goes on though a client has ended: librdkafka's does for good when a broker has lost what it acknowledged."""

    def failure(self) -> None:
        return None


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("kinds", "found"), RECORDS, ids=named)
def test_a_campaign_finds_planted_bugs(
    kinds: tuple[str, ...], found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if any(FAULTS[kind].need for kind in kinds) and (lacking := network.why_not()):
        pytest.skip(lacking)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    outcome = run(
        tmp_path / "cluster",
        seed=1,
        seconds=0,
        kinds=kinds,
        say=print,
        program=program(found),
        make=partial(plain_load, kind=Undeterred),
        least_faults=LEAST_FAULTS,
        slowness=SLOWNESS,
    )
    print(table(outcome))
    assert set().union(*found.values()) <= outcome.report.rules()


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("kinds", "found"), TRANSACTIONS, ids=named)
def test_a_transactional_campaign_finds_planted_bugs(
    kinds: tuple[str, ...], found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    standing = [NEVER_MOVES.get(bug) for bug in found]

    class WithoutHope(TransactionalLoad):
        """Does not wait for what the bugs prevent."""

        progressing = tuple(place for place in TransactionalLoad.progressing if place[0] not in standing)
        roles = ROLES
        hopeless_s = HOPELESS_S
        surplus_s = SURPLUS_S

    outcome = run(
        tmp_path / "cluster",
        seed=1,
        seconds=0,
        kinds=kinds,
        say=print,
        program=program(found),
        make=WithoutHope,
        least_faults=LEAST_KILLS,
    )
    print(table(outcome))
    assert set().union(*found.values()) <= outcome.report.rules()
