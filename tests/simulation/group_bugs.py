"""Bugs of consumer groups in whole clusters, found by `group_history`: each replaces a part of the product, on the broker's
side or in the SDK, and names the faults that bring it out."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from barnabas.consumer_groups.members import assigned_offsets, reconciliation
from barnabas.consumer_groups.members.membership import Membership
from barnabas.consumer_groups.members.targets import Targets
from barnabas.consumer_groups.model.committed_offsets import committed_offset
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.consumer_groups.offsets.offsets import Offsets
from barnabas.consumer_groups.subscriptions.pattern_matches import PatternMatches
from barnabas.kraft.node.metadata_state import MetadataState
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.consumer.positions import PositionFinder
from barnabas.net.client.consumer.process_once import ProcessOnce
from barnabas.net.client.group.commit_pipeline import CommitPipeline
from barnabas.net.client.group.ownership import Ownership
from barnabas.net.client.group.rebalancing import Rebalancing
from barnabas.net.client.group.session import LEAVE_TIMEOUT_MS, Session
from barnabas.net.client.positions.reading import Reading
from barnabas.net.coordination.groups.group_service import GroupService

from .closing_members import run_closing_member
from .cluster_bugs import commits_out_of_order
from .group_history import run_groups
from .planted import in_histories, passed, planted


@contextlib.contextmanager
def _commits_of_stale_members() -> Iterator[None]:
    """The coordinator accepts commits from any client."""
    with patch.object(Offsets, "_check_committer", lambda *_: None):
        yield


@contextlib.contextmanager
def _adopted_before_it_was_revoked() -> Iterator[None]:
    """The coordinator gives a partition to its next owner while the former one has not let go of it."""
    genuine = reconciliation._adopt

    def adopt(holding: Any, member_id: str, kept: Any, target: Any, target_epoch: int, owners: Any) -> Any:
        return genuine(holding, member_id, kept, target, target_epoch, {})

    with patch.object(reconciliation, "_adopt", adopt):
        yield


@contextlib.contextmanager
def _revoked_in_words_only() -> Iterator[None]:
    """A member says that it has let go, and goes on reading."""

    async def revoke(self: Any, session: Any, partitions: list[TopicPartition]) -> None:
        session.ownership.revoked(partitions)
        session.wake()

    with patch.object(Rebalancing, "_revoke", revoke):
        yield


@contextlib.contextmanager
def _an_old_snapshot() -> Iterator[None]:
    """A new coordinator starts from what the slot was when it was loaded before."""
    genuine = MetadataState.slot_snapshot
    before: dict[tuple[int, int], Any] = {}

    def slot_snapshot(self: Any, slot: int) -> Any:
        found = genuine(self, slot)
        old, before[id(self), slot] = before.get((id(self), slot), found), found
        return old

    with patch.object(MetadataState, "slot_snapshot", slot_snapshot):
        yield


@contextlib.contextmanager
def _no_seek_after_adoption() -> Iterator[None]:
    """A member begins where `auto_offset_reset` says, whatever is committed."""

    async def nothing(*_: Any, **__: Any) -> tuple[dict[Any, Any], set[Any]]:
        return {}, set()

    with patch.object(PositionFinder, "_committed", nothing):
        yield


@contextlib.contextmanager
def _an_assignment_brings_the_first_offsets() -> Iterator[None]:
    """The coordinator brings with an assignment what was committed when it first gave the partition away."""
    first: dict[tuple[int, str, Any], Any] = {}

    def committed(state: Any, group_id: str, key: Any, topic_id: str) -> Any:
        return first.setdefault((id(state), group_id, key), committed_offset(state, group_id, key, topic_id))

    with patch.object(assigned_offsets, "committed_offset", committed):
        yield


@contextlib.contextmanager
def _offsets_of_an_earlier_assignment_count() -> Iterator[None]:
    """A member that gets a partition again begins at the offset that came with its first assignment."""
    first: dict[tuple[int, TopicPartition], tuple[Ownership, Any]] = {}  # that member keeps its id
    genuine = Ownership.take_told

    def take_told(self: Ownership, partitions: Any) -> Any:
        return {
            key: first.setdefault((id(self), key), (self, item))[1] for key, item in genuine(self, partitions).items()
        }

    with patch.object(Ownership, "take_told", take_told):
        yield


@contextlib.contextmanager
def _commits_across_a_fence() -> Iterator[None]:
    """A commit that was refused for its epoch is repeated under the next one (how the SDK was before seed 1)."""
    with patch.object(Ownership, "tenures", lambda *_: {}):
        yield


@contextlib.contextmanager
def _auto_commit_of_what_is_in_hand() -> Iterator[None]:
    """What was handed out is committed before the application is done with it."""
    with patch.object(Reading, "done", Reading.positions):
        yield


@contextlib.contextmanager
def _every_commit_for_itself() -> Iterator[None]:
    """Commits of one consumer do not wait for each other, so one is repeated behind a later one (how the SDK was)."""
    genuine = CommitPipeline.ask

    def ask(self: CommitPipeline, offsets: Any, **options: Any) -> Any:
        alone = CommitPipeline(self._client, self._group_id, self._reading, self._membership)
        return genuine(alone, offsets, **options)

    with patch.object(CommitPipeline, "ask", ask):
        yield


@contextlib.contextmanager
def _sessions_are_not_handed_over() -> Iterator[None]:
    """A new coordinator waits for members that died with the old one, for ever."""
    genuine = Membership.__init__

    def init(self: Any, **fields: Any) -> None:
        genuine(self, **fields)
        for group in fields["state"].groups.values():
            for member_id in group.members:
                self.timers.sessions.cancel((group.group.group_id, member_id))

    with patch.object(Membership, "__init__", init):
        yield


@contextlib.contextmanager
def _growth_is_not_noticed() -> Iterator[None]:
    """Added partitions, and topics that begin to match, are assigned to no member."""

    def topics_changed(self: Any, topics: Any, recreated: Any, changed: Any, decision: Any) -> None:
        self.subscriptions.topics_changed(topics, frozenset(topics if changed is None else changed))

    with patch.object(Targets, "topics_changed", topics_changed):
        yield


@contextlib.contextmanager
def _patterns_know_old_topics_only() -> Iterator[None]:
    """A pattern is tried on the topics that exist when a member says it, and on no later one."""
    with patch.object(PatternMatches, "topics_changed", lambda *_: {}):
        yield


@contextlib.contextmanager
def _put_off_for_ever() -> Iterator[None]:
    """An assignment that is put off is never made."""
    genuine = Targets.assign_due

    def assign_due(self: Any, decision: Any) -> None:
        self.due.take_expired(decision.now_ms)
        genuine(self, decision)

    with (
        patch.object(GroupSettings, "interval_ms", lambda *_: 20),
        patch.object(Targets, "assign_due", assign_due),
    ):
        yield


@contextlib.contextmanager
def _names_without_ids() -> Iterator[None]:
    """The coordinator goes by names: offsets of a topic that was deleted are taken, and told, for the one that has its name."""
    with patch.object(GroupService, "topic_ids", {}):
        yield


@contextlib.contextmanager
def _a_jump_is_a_gap() -> Iterator[None]:
    """`process_once` takes a forward jump of its reader for records that compaction removed."""
    genuine = ProcessOnce._follow_assignment

    async def follow_assignment(self: Any, found: Any, origins: Any) -> None:
        self._origin_approved |= {place: origin for place, origin in origins.items() if place in self._processed}
        await genuine(self, found, origins)

    with patch.object(ProcessOnce, "_follow_assignment", follow_assignment):
        yield


@contextlib.contextmanager
def _a_leave_is_given_up() -> Iterator[None]:
    """A member that leaves waits for its coordinator as for one that will never answer, though other brokers do."""
    genuine = Session._tell

    async def tell(self: Any, request: Any, timeout_ms: float) -> None:
        await genuine(self, request, min(timeout_ms, LEAVE_TIMEOUT_MS))

    with patch.object(Session, "_tell", tell):
        yield


BUGS = in_histories(
    "groups",
    run_groups,
    {
        "commits of stale members are taken": (
            _commits_of_stale_members,
            ("member_stall", "reset_offsets", "join_storm"),
        ),
        "adopted before it was revoked": (
            _adopted_before_it_was_revoked,
            ("join_storm", "member_close", "member_kill"),
        ),
        "a member revokes in words only": (_revoked_in_words_only, ("join_storm", "member_close")),
        "a new coordinator has an old snapshot": (_an_old_snapshot, ("stall", "join_storm", "member_kill")),
        "group offsets applied out of order": (commits_out_of_order, ("member_kill", "slow")),
        "no seek to the committed offset": (_no_seek_after_adoption, ("member_kill", "member_close", "join_storm")),
        "an assignment brings the first offsets": (
            _an_assignment_brings_the_first_offsets,
            ("join_storm", "member_close"),
        ),
        "offsets of an earlier assignment count": (
            _offsets_of_an_earlier_assignment_count,
            ("join_storm", "member_close"),
        ),
        "a commit repeated across a fence": (_commits_across_a_fence, ("reset_offsets", "join_storm", "member_cut")),
        "auto-commit of what is in hand": (_auto_commit_of_what_is_in_hand, ("member_hang", "member_kill")),
        "every commit for itself": (_every_commit_for_itself, ("stall", "reset", "slow", "coordinator_kill")),
        "sessions are not handed over": (_sessions_are_not_handed_over, ("coordinator_kill", "member_kill", "kill")),
        "patterns know old topics only": (_patterns_know_old_topics_only, ("new_topic",)),
        "an assignment is put off for ever": (_put_off_for_ever, ("join_storm", "member_close")),
        "offsets of a former topic count": (_names_without_ids, ("recreate", "once_seek", "member_kill")),
        "a forward jump is taken for a gap": (_a_jump_is_a_gap, ("once_seek", "member_close")),
        "growth is not noticed": (_growth_is_not_noticed, ("grow_topic", "new_topic")),
    },
) + planted(
    "a coordinator that stands still",
    lambda seed: passed(run_closing_member(seed)),
    {"a leave is given up": _a_leave_is_given_up},
)
