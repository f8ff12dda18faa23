"""Bugs of consensus, found by `raft_cluster`: whole quorums with crashes, power losses and wiped disks."""

from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from barnabas.kraft.raft.consensus.following import Follower
from barnabas.kraft.raft.consensus.forming import Forming
from barnabas.kraft.raft.consensus.leading import Leader
from barnabas.kraft.raft.disk.hard_state import DurableHardState
from barnabas.kraft.raft.net.admission import Admission

from .planted import planted
from .raft_cluster import checked_seed, run_after_formation
from .raft_schedules import run_vote_schedule


def _a_hello_is_not_corrected() -> AbstractContextManager[Any]:
    """Of a voter that was formed while its hello, which calls it blank, was on its way."""
    return patch.object(Forming, "correct", lambda self, peer_id, told: None)


def _minority_commits() -> AbstractContextManager[Any]:
    """One durable copy less than a majority is enough."""

    def commit(self: Any) -> None:
        voters = self._electorate
        durable = [self._engine.match_of(peer) for peer in voters.other_ids] + [self._journal.durable_index]
        index = sorted(durable, reverse=True)[max(voters.majority - 2, 0)]
        if index > self._engine.commit_index:
            self._applier.commit(index)

    return patch.object(Leader, "commit_what_a_majority_has", commit)


def _commit_beyond_what_was_compared() -> AbstractContextManager[Any]:
    """A follower believes the leader's commit index for entries that it has not compared (stock pysyncobj)."""
    genuine = Follower.on_append_entries

    def on_append_entries(self: Any, peer_id: int, message: Any) -> None:
        genuine(self, peer_id, message)
        if message.term == self._engine.term:
            self._applier.commit(min(message.commit_index, self._journal.last_index))

    return patch.object(Follower, "on_append_entries", on_append_entries)


def _vote_before_it_is_on_the_disk() -> AbstractContextManager[Any]:
    """Term and vote are written with whatever is written next."""

    def keep(self: Any, term: int, voted_for: int | None) -> None:
        self._store.current = replace(self._store.current, raft_term=term, voted_for=voted_for)

    return patch.object(DurableHardState, "set_term", keep)


def _hello_is_believed() -> AbstractContextManager[Any]:
    """Any connection that claims to be a voter becomes the link of that voter."""

    async def confirm(self: Any, connection: Any, hello: Any) -> None:
        if not connection.is_closing and hello.voter_id in self._addresses:
            self._verdicts.welcome(connection, hello)

    return patch.object(Admission, "_confirm", confirm)


def _run_vote(seed: int) -> None:
    violations = run_vote_schedule(seed)
    assert not violations, violations[0]


BUGS = [
    *planted("schedule", _run_vote, {"a vote leaves before it is on the disk": _vote_before_it_is_on_the_disk}),
    *planted("quorum", run_after_formation, {"a hello is not corrected": _a_hello_is_not_corrected}),
    *planted(
        "quorum",
        partial(checked_seed, stranger=True),
        {"a connection that claims to be a voter is one": _hello_is_believed},
    ),
    *planted(
        "quorum",
        checked_seed,
        {
            "a minority commits": _minority_commits,
            "a commit index beyond what was compared": _commit_beyond_what_was_compared,
        },
    ),
]
