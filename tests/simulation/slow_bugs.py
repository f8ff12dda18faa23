"""Bugs of elections on slow disks, found by `slow_elections`."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from barnabas.kraft.quorum.config import MIN_DEAD_LINK_S, RaftTiming
from barnabas.kraft.raft.consensus.elections import NEVER, Elections
from barnabas.kraft.raft.consensus.following import Follower

from .planted import planted
from .slow_elections import run_patient_election, run_slow_election


def _a_campaign_ends_with_the_timeout() -> AbstractContextManager[Any]:
    """Votes that arrive later count for nothing."""
    genuine: Callable[..., None] = Elections._start_prevote

    def start_prevote(self: Any) -> None:
        self._engine.follow(None)
        genuine(self)

    return patch.object(Elections, "_start_prevote", start_prevote)


def _a_vote_binds_no_pre_vote() -> AbstractContextManager[Any]:
    genuine: Callable[..., None] = Elections.on_pre_vote

    def on_pre_vote(self: Any, peer_id: int, message: Any) -> None:
        self._voted_at = NEVER
        genuine(self, peer_id, message)

    return patch.object(Elections, "on_pre_vote", on_pre_vote)


def _a_follower_that_flushes_is_silent() -> AbstractContextManager[Any]:
    return patch.object(Follower, "_give_sign_of_life", lambda self, leader_id: None)


def _a_link_is_dead_after_three_seconds() -> AbstractContextManager[Any]:
    """Whatever the election timeout is."""
    return patch.object(RaftTiming, "dead_link_s", MIN_DEAD_LINK_S)


BUGS = planted(
    "slow elections",
    run_slow_election,
    {
        "a campaign ends with the timeout": _a_campaign_ends_with_the_timeout,
        "a vote binds no pre-vote": _a_vote_binds_no_pre_vote,
        "a follower that flushes is silent": _a_follower_that_flushes_is_silent,
    },
) + planted(
    "slow elections",
    run_patient_election,
    {"a link is dead after three seconds": _a_link_is_dead_after_three_seconds},
)
