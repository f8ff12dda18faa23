"""Bugs of share groups in whole clusters, found by `share_history`: each replaces a part of the product, on the broker's side or
in the SDK, and names the faults that bring it out."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from barnabas.consumer_groups.share.share_partition import SharePartition
from barnabas.net.client.share.leader_session import LeaderSession
from barnabas.net.client.share.ready_records import ReadyRecords
from barnabas.net.client.share.share_consumer import ShareConsumer
from barnabas.net.coordination.shares.led_partitions import LedSharePartitions
from barnabas.net.coordination.shares.state_store import ShareStateStore

from .planted import Planted
from .share_history import run_shares


@contextlib.contextmanager
def _answered_before_it_is_stored() -> Iterator[None]:
    """The leader confirms an acknowledgement when it has decided it."""

    async def store(self: LedSharePartitions, led: Any) -> None:
        self.store_later(led)

    with patch.object(LedSharePartitions, "store", store):
        yield


@contextlib.contextmanager
def _loaded_without_ranges() -> Iterator[None]:
    """A new leader begins at the first record that is not done, and forgets what is done behind it."""
    genuine = ShareStateStore.load

    async def load(self: ShareStateStore, request: Any) -> Any:
        answer = await genuine(self, request)
        return replace(answer, states=tuple(replace(state, ranges=()) for state in answer.states))

    with patch.object(ShareStateStore, "load", load):
        yield


@contextlib.contextmanager
def _locks_without_end() -> Iterator[None]:
    """A lock ends with its session only: one whose holder has a new session is never given out again."""
    with (
        patch.object(SharePartition, "expire", lambda *_: False),
        patch.object(SharePartition, "release_member", lambda *_: False),
    ):
        yield


@contextlib.contextmanager
def _returned_after_its_lock() -> Iterator[None]:
    """The SDK returns what it has fetched, however long ago."""
    with patch.object(ReadyRecords, "drop_lapsed", lambda *_: []):
        yield


@contextlib.contextmanager
def _lost_requests_count() -> Iterator[None]:
    """The SDK takes acknowledgements in a request without an answer for stored."""

    def failed(self: LeaderSession) -> None:
        self.epoch, self.reading, self._sent = 0, set(), {}

    with patch.object(LeaderSession, "failed", failed):
        yield


@contextlib.contextmanager
def _rejected_before_its_dead_letter() -> Iterator[None]:
    """A rejected record is archived while its dead letter is written."""
    genuine = ShareConsumer._reject

    def reject(self: ShareConsumer, record: Any, place: Any, reason: str) -> None:
        node_id = self._home[place]
        genuine(self, record, place, reason)
        partition, offset = place
        self._session(node_id).acknowledge(partition, offset, 3)

    with patch.object(ShareConsumer, "_reject", reject):
        yield


def _bug(name: str, plant: Any, told: str, *kinds: str) -> Planted:
    return Planted(level="shares", name=name, plant=plant, run=lambda seed: run_shares(seed, kinds), told=told)


_AGAIN, _LOST, _LATE = "is given out again", "neither accepted nor kept", "its lock may be over"
BUGS = [
    _bug("answered before it is stored", _answered_before_it_is_stored, _AGAIN, "kill", "kill", "cut", "isolate"),
    _bug("loaded without ranges", _loaded_without_ranges, _AGAIN, "kill", "stop"),
    _bug("locks without end", _locks_without_end, _LOST, "program_kill", "program_cut"),
    _bug("returned after its lock", _returned_after_its_lock, _LATE, "program_stall", "stall"),
    _bug("lost requests count", _lost_requests_count, _AGAIN, "late_reset", "reset", "cut"),
    _bug("rejected before its dead letter", _rejected_before_its_dead_letter, _LOST, "program_kill"),
]
