"""Bugs of consensus, found by `raft_cluster`: whole quorums with crashes, power losses and wiped disks."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from barnabas.kraft.raft_elections import RaftElections
from barnabas.kraft.raft_formation import Formation
from barnabas.kraft.raft_journal import DurableJournal
from barnabas.kraft.raft_replication import RaftReplication

from .planted import Planted
from .raft_cluster import run_seed


def _vote_in_memory() -> AbstractContextManager[Any]:
    """A vote is given before it is on the disk; a restarted voter votes again in the same term."""

    def set_term(self: Any, term: int, voted_for: int | None) -> None:
        self._meta.current = replace(self._meta.current, raft_term=term, voted_for=voted_for)

    return patch.object(DurableJournal, "setCurrentTerm", set_term)


def _leader_counts_its_memory() -> AbstractContextManager[Any]:
    """The leader counts entries of its own that are not on its disk yet."""

    def commit(self: Any) -> None:
        durable = [self.match_of(peer) if self.formation.counts(peer) else 0 for peer in self.other_ids]
        durable.append(self.journal.last_index)
        durable.sort(reverse=True)
        index = durable[self.majority - 1]
        if index > self.commit_index and self.journal.term_at(index) == self.term:
            self.advance_commit(index)

    return patch.object(RaftReplication, "commit_what_a_majority_has", commit)


def _follower_acknowledges_its_memory() -> AbstractContextManager[Any]:
    """A follower acknowledges what it has not flushed."""

    def acknowledge(self: Any, leader_id: int, match_index: int) -> None:
        self._reply(leader_id, match_index + 1, reset=False, success=True)

    return patch.object(RaftReplication, "_acknowledge_when_durable", acknowledge)


def _minority_commits() -> AbstractContextManager[Any]:
    """One durable copy less than a majority is enough."""

    def commit(self: Any) -> None:
        durable = [self.match_of(peer) for peer in self.other_ids] + [self.journal.durable_index]
        index = sorted(durable, reverse=True)[max(self.majority - 2, 0)]
        if index > self.commit_index:
            self.advance_commit(index)

    return patch.object(RaftReplication, "commit_what_a_majority_has", commit)


def _wiped_voters_count() -> AbstractContextManager[Any]:
    """A voter that has forgotten everything counts as if it had not."""
    return patch.object(Formation, "counts", lambda self, peer_id: True)


def _wiped_voters_vote() -> AbstractContextManager[Any]:
    """A voter with an empty disk takes part at once."""

    def form(self: Any, now: float) -> None:
        if self.formation.blank:
            self._become_voter("trust")

    return patch.object(RaftElections, "form_if_possible", form)


def _commit_beyond_what_was_compared() -> AbstractContextManager[Any]:
    """A follower believes the leader's commit index for entries that it has not compared (stock pysyncobj)."""
    genuine = RaftReplication.on_append_entries

    def on_append_entries(self: Any, peer_id: int, message: Any) -> None:
        genuine(self, peer_id, message)
        if message["term"] == self.term and "serialized" not in message:
            self.advance_commit(min(message["commit_index"], self.journal.last_index))

    return patch.object(RaftReplication, "on_append_entries", on_append_entries)


def _conflicts_stay() -> AbstractContextManager[Any]:
    """An entry that conflicts with the leader's is kept."""
    return patch.object(RaftReplication, "_truncate", lambda self, index: None)


BUGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "a vote that is not on the disk": _vote_in_memory,
    "the leader counts itself before its append": _leader_counts_its_memory,
    "a follower acknowledges before its flush": _follower_acknowledges_its_memory,
    "a minority commits": _minority_commits,
    "a wiped voter counts": _wiped_voters_count,
    "a wiped voter votes": _wiped_voters_vote,
    "a commit index beyond what was compared": _commit_beyond_what_was_compared,
    "a conflicting entry stays": _conflicts_stay,
}


def bugs() -> list[Planted]:
    def run(seed: int) -> bool:
        result = run_seed(seed)
        assert not result.violations, result.violations[0]
        return not result.converged

    return [Planted(level="quorum", name=name, plant=plant, run=run) for name, plant in BUGS.items()]
