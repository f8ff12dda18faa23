"""The directed schedule of a quorum passes where votes are on the disk before they leave (planted_bugs shows where not)."""

from .raft_schedules import run_vote_schedule


def test_a_voter_that_loses_its_power_does_not_vote_twice_in_a_term() -> None:
    for seed in range(20):
        violations = run_vote_schedule(seed)
        assert not violations, f"seed {seed}: {violations[0]}"
