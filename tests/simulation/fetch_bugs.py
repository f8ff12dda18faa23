"""Bugs of followers' fetch sessions. They lose nothing, as either side looks at everything again after some seconds: found by
`calm_history`, whose checker knows how soon replication must be done."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from barnabas.net.handlers.records.fetch import FetchHandler
from barnabas.net.handlers.records.fetch_sessions import FetchSession, FetchSessions
from barnabas.net.logs.following import replica_fetcher
from barnabas.net.logs.following.follower_session import FollowerSession
from barnabas.net.logs.following.replica_fetcher import ReplicaFetcher
from barnabas.net.logs.purgatory import Purgatory

from .calm_history import run_calm_history
from .planted import passed, planted


@contextlib.contextmanager
def _new_positions_are_not_named() -> Iterator[None]:
    """The leader goes on to read from where the follower was when the session began."""
    genuine = FollowerSession.keep

    def keep(self: Any, topic_partition: Any, *rest: Any, names: bool, is_restless: bool) -> bool:
        is_known = topic_partition in self.named
        return genuine(self, topic_partition, *rest, names=names, is_restless=is_restless) and (names or not is_known)

    with patch.object(FollowerSession, "keep", keep):
        yield


@contextlib.contextmanager
def _new_partitions_wait() -> Iterator[None]:
    """A partition that comes is fetched after the end of the long poll that is under way."""

    def add(self: Any, topic_partition: Any, partition: Any) -> None:
        self.remove(topic_partition)
        self._partitions = {topic_partition: partition, **self._partitions}
        self._is_changed.set()

    with patch.object(ReplicaFetcher, "add", add):
        yield


@contextlib.contextmanager
def _delayed_partitions_stay_away() -> Iterator[None]:
    """After an error, the end of the delay is nothing that has happened to the partition."""
    genuine = ReplicaFetcher._end_delays

    def end_delays(self: Any) -> None:
        happened = dict(self._session.happened)
        genuine(self)
        self._session.happened = happened

    with patch.object(ReplicaFetcher, "_end_delays", end_delays):
        yield


@contextlib.contextmanager
def _high_watermarks_are_no_news() -> Iterator[None]:
    """The leader answers a partition only for its records, or the first time."""
    genuine = FetchSession.news

    def news(self: Any, responses: Any, isolation_level: int) -> Any:
        told = dict(self.told)
        found = genuine(self, responses, isolation_level)
        return [it for it in found if it.error or it.records or (it.topic, it.partition) not in told]

    with patch.object(FetchSession, "news", news):
        yield


@contextlib.contextmanager
def _forgotten_partitions_stay() -> Iterator[None]:
    """The leader keeps in the session what its follower has left."""
    genuine = FetchSessions._continue

    def continued(self: Any, session: Any, request: Any, *rest: Any) -> Any:
        return genuine(self, session, replace(request, forgotten=()), *rest)

    with patch.object(FetchSessions, "_continue", continued):
        yield


@contextlib.contextmanager
def _changes_are_not_noted() -> Iterator[None]:
    """A change ends the wait of a follower, whose session does not note what has changed."""
    genuine = Purgatory.check

    def check(self: Any, topic_partition: Any) -> Any:
        watch = self._watches.get(topic_partition)
        before = {} if watch is None else {it: topic_partition in it.changed for it in watch.standing}
        completed = genuine(self, topic_partition)
        for standing, was_changed in before.items():
            if not was_changed:
                standing.changed.pop(topic_partition, None)
        return completed

    with patch.object(Purgatory, "check", check):
        yield


@contextlib.contextmanager
def _overtaken_requests_wait_on() -> Iterator[None]:
    """The leader does not answer a parked request that another one has overtaken."""

    def overtake(self: Any, session: Any) -> None:
        parked = session.watch.parked
        if parked is not None:
            self._replication.forget_client(parked.client)

    with patch.object(FetchHandler, "_overtake", overtake):
        yield


@contextlib.contextmanager
def _untold_followers_wait_long() -> Iterator[None]:
    """Each answer counts as one without news, so the next one may take two seconds."""
    with patch.object(replica_fetcher, "is_quiet", lambda answered, position: True):
        yield


BUGS = planted(
    "calm clusters",
    lambda seed: passed(run_calm_history(seed)),
    {
        "a follower does not name new positions": _new_positions_are_not_named,
        "a follower's new partitions wait": _new_partitions_wait,
        "a follower's delayed partitions stay away": _delayed_partitions_stay_away,
        "a new high watermark is no news": _high_watermarks_are_no_news,
        "forgotten partitions stay in the session": _forgotten_partitions_stay,
        "changes of resting partitions are not noted": _changes_are_not_noted,
        "a follower waits long for what it was not told": _untold_followers_wait_long,
        "an overtaken request waits on": _overtaken_requests_wait_on,
    },
)
