"""Bugs of changes of the voters, found by `raft_changes`: each is a part of the core that is exchanged for a faulty one."""

import contextlib
from typing import Any

from barnabas.kraft.raft.consensus.core import RaftCore
from barnabas.kraft.raft.consensus.electorate import Electorate
from barnabas.kraft.raft.consensus.leading import Leader
from barnabas.kraft.raft.consensus.links import Links
from barnabas.kraft.raft.consensus.voter_changes import VoterChanges
from barnabas.kraft.raft.quorum import RaftQuorum

from .planted import Planted, Run
from .raft_changes import run_changes


class _OldMajority(Electorate):
    """Counts the majority that the bootstrap configuration needed, whatever is in force."""

    def refresh(self) -> None:
        super().refresh()
        first = getattr(self, "_first_majority", self.majority)
        self._first_majority = self.majority = first


class _CountsLearners(Leader):
    """A learner's acknowledgement makes up for a voter's."""

    links: Links

    def commit_what_a_majority_has(self) -> None:
        voters = self._electorate.other_ids
        if self.links.learner is not None:
            self._electorate.other_ids = sorted({*voters, self.links.learner.node_id})
        super().commit_what_a_majority_has()
        self._electorate.other_ids = voters


class _NeverCaughtUp(VoterChanges):
    """A learner stays a learner, so that there is always one to count."""

    def is_caught_up(self, learner: Any, now: float) -> bool:
        return False


class _TwoAtOnce(VoterChanges):
    """Takes a change while another one is not committed."""

    def _is_settled(self) -> bool:
        return True


class _WithoutOwnTerm(VoterChanges):
    """Changes the configuration before an entry of its own term is committed (the fault that Ongaro reported in 2015)."""

    def may_change_voters(self) -> bool:
        return self._engine.is_leader and self._is_settled()


class _OldMajorityCore(RaftCore):
    electorate_type = _OldMajority


class _CountsLearnersCore(RaftCore):
    leader_type = _CountsLearners
    changes_type = _NeverCaughtUp

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        assert isinstance(self.leader, _CountsLearners)
        self.leader.links = self.links


class _TwoAtOnceCore(RaftCore):
    changes_type = _TwoAtOnce


class _WithoutOwnTermCore(RaftCore):
    changes_type = _WithoutOwnTerm


def _with(core: type[RaftCore]) -> type[RaftQuorum]:
    return type(f"Quorum{core.__name__}", (RaftQuorum,), {"core_type": core})


def _in_changes(core: type[RaftCore], *, voters: int | None = None, rate: float = 0.1) -> Run:
    """`rate`: changes that are requested per 20 ms."""

    def run(seed: int) -> None:
        changed = run_changes(seed, quorum_type=_with(core), wipes=False, voters=voters, rate=rate)
        assert not changed.result.violations, changed.result.violations[0]

    return run


_RUNS: dict[str, Run] = {
    "the majority of an old configuration": _in_changes(_OldMajorityCore),
    "two changes at once": _in_changes(_TwoAtOnceCore, rate=0.5),
    "learners count": _in_changes(_CountsLearnersCore, voters=3),
}
# It takes more seeds than CI has time for.
RARE: dict[str, Run] = {"no entry of its own term": _in_changes(_WithoutOwnTermCore)}
BUGS = [Planted(level="voters", name=name, plant=contextlib.nullcontext, run=run) for name, run in _RUNS.items()]
