"""Committed offsets of groups: commit, fetch, delete. Resets are in `offset_resets`, expiry is in `offset_expiry`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from barnabas.kraft.group_state.group_slots import GroupState, PartitionKey, SlotState
from barnabas.kraft.metadata.records import GroupRecord, OffsetCommitRecord, RemoveGroupRecord, RemoveOffsetRecord
from barnabas.log.vocabulary.errors import (
    ErrorCode,
    GroupIdNotFoundError,
    NonEmptyGroupError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from barnabas.log.vocabulary.group_messages import (
    CommittedOffset,
    OffsetToCommit,
    PartitionOffset,
    PartitionOutcome,
)

from ..classic.membership import ClassicMembership
from ..members.targets import Targets
from ..model.committed_offsets import committed_offset
from ..model.decision import Decision
from ..model.group_limits import check_group_id, check_ids, check_new_group
from ..model.messages import CommitPlace
from ..model.settings import GroupSettings
from .commit_order import CommitOrder

NO_IDS: Final[Mapping[str, str]] = MappingProxyType({})


class Offsets:
    def __init__(
        self,
        *,
        state: SlotState,
        settings: GroupSettings,
        targets: Targets,
        classic: ClassicMembership,
    ) -> None:
        self._state = state
        self._settings = settings
        self._targets = targets
        self._classic = classic
        self._order = CommitOrder(state.coordinator_epoch)

    def commit(
        self,
        group_id: str,
        member_id: str,
        member_epoch: int,
        offsets: tuple[OffsetToCommit, ...],
        decision: Decision,
        instance_id: str | None = None,
        place: CommitPlace | None = None,
        *,
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> tuple[PartitionOutcome, ...]:
        outcomes, accepted = self.checked(
            group_id,
            member_id,
            member_epoch,
            offsets,
            decision,
            instance_id=instance_id,
            place=place,
            topic_ids=topic_ids,
        )
        if accepted:
            self.create_group(group_id, decision)
        for offset in accepted:
            decision.add(self.commit_record(group_id, offset, decision.now_ms))
        return outcomes

    def checked(
        self,
        group_id: str,
        member_id: str,
        member_epoch: int,
        offsets: tuple[OffsetToCommit, ...],
        decision: Decision,
        *,
        instance_id: str | None = None,
        place: CommitPlace | None = None,
        topic_ids: Mapping[str, str] = NO_IDS,
        is_transactional: bool = False,
    ) -> tuple[tuple[PartitionOutcome, ...], list[OffsetToCommit]]:
        """Check who commits and what; return the outcomes, and the offsets that may be committed.

        A transactional producer of an old client does not know the member (KIP-447): nothing is checked then, as in Kafka.
        """
        check_group_id(group_id, self._settings)
        is_unknown = is_transactional and not member_id and member_epoch < 0 and instance_id is None
        if self._classic.has_members(group_id) and not is_unknown:
            self._classic.check_committer(group_id, member_id, instance_id, member_epoch, decision.now_ms)
        elif not is_unknown:
            self._check_committer(self._state.groups.get(group_id), group_id, member_id, member_epoch)
        check_new_group(group_id, self._state.groups, self._settings)
        if place is not None:
            check_ids([place.committer], self._settings)
            self._order.check(group_id, place)
            self._order.taken(group_id, place)
        outcomes = tuple(self.judged(offset, topic_ids) for offset in offsets)
        return outcomes, [offset for offset, outcome in zip(offsets, outcomes, strict=True) if not outcome.error]

    def create_group(self, group_id: str, decision: Decision) -> None:
        """Offsets may be committed for a group without members."""
        if group_id not in self._state.groups:
            decision.add(self._simple_group(group_id))

    def fetch(
        self,
        group_id: str,
        partitions: tuple[PartitionKey, ...] | None = None,
        member_id: str = "",
        member_epoch: int = -1,
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> tuple[CommittedOffset, ...]:
        """`partitions` None: all that the group has committed. A partition without a commit has offset -1, one
        that is named again is told once: its metadata is far longer than its number in a request. A request that names a
        member (KIP-848) must name its epoch; those of tools and of classic members name none."""
        group = self._state.groups.get(group_id)
        is_checked = group is not None and not group.is_classic and not self._classic.has_members(group_id)
        if is_checked and (member_id or member_epoch >= 0):
            self._check_committer(group, group_id, member_id, member_epoch)
        keys = sorted(self._state.offsets.get(group_id, {})) if partitions is None else dict.fromkeys(partitions)
        return tuple(self.committed(group_id, key, topic_ids.get(key[0], "")) for key in keys)

    def delete(
        self, group_id: str, partitions: tuple[PartitionKey, ...], decision: Decision
    ) -> tuple[PartitionOutcome, ...]:
        """Delete offsets, except those of topics that a member subscribes to: it would commit them again."""
        group = self.existing(group_id)
        topics = {topic for topic, _ in partitions} if group is not None and group.members else frozenset[str]()
        subscribed = {
            topic for topic in topics if group is not None and self._targets.subscriptions.may_want(group, topic)
        }
        outcomes = []
        for topic, partition in partitions:
            if topic in subscribed:
                error, message = (
                    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
                    "the group reads this topic: stop its members first",
                )
                outcomes.append(PartitionOutcome(topic=topic, partition=partition, error=error, message=message))
                continue
            if self._state.pending.is_pending(group_id, (topic, partition)):
                error, message = ErrorCode.UNSTABLE_OFFSET_COMMIT, "a transaction with this offset is open: try again"
                outcomes.append(PartitionOutcome(topic=topic, partition=partition, error=error, message=message))
                continue
            if self._state.offset(group_id, (topic, partition)) is not None:
                decision.add(self.remove_record(group_id, (topic, partition)))
            outcomes.append(PartitionOutcome(topic=topic, partition=partition))
        return tuple(outcomes)

    def delete_group(self, group_id: str, decision: Decision) -> None:
        group = self.existing(group_id)
        count = self._classic.member_count(group_id) or (0 if group is None else len(group.members))
        if count:
            raise NonEmptyGroupError(f"group {group_id} has {count} members: stop them first")
        if group_id in self._state.pending:
            raise NonEmptyGroupError(
                f"group {group_id} has offsets of an open transaction: wait for its end, or abort it"
            )
        for key in list(self._state.offsets.get(group_id, {})):
            decision.add(self.remove_record(group_id, key))
        decision.add(
            RemoveGroupRecord(slot=self._state.slot, coordinator_epoch=self._state.coordinator_epoch, group_id=group_id)
        )
        self._targets.forget(group_id)
        self._classic.forget(group_id)

    def existing(self, group_id: str) -> GroupState | None:
        """The group; None if only its offsets remain."""
        group = self._state.groups.get(group_id)
        if group is None and group_id not in self._state.offsets and group_id not in self._state.pending:
            raise GroupIdNotFoundError(f"group {group_id} does not exist")
        return group

    def _check_committer(self, group: GroupState | None, group_id: str, member_id: str, member_epoch: int) -> None:
        if member_id == "" and member_epoch < 0:
            if group is not None and group.members:
                raise UnknownMemberIdError(f"group {group_id} has members: only its members may commit")
            return
        current = None if group is None else group.currents.get(member_id)
        if current is None:
            raise UnknownMemberIdError(f"no member {member_id} in group {group_id}: rejoin")
        if member_epoch < 0 or member_epoch != current.member_epoch:
            raise StaleMemberEpochError(
                f"member epoch {member_epoch}, but {member_id} is at epoch {current.member_epoch}: send a heartbeat, then retry"
            )

    def exists(self, topic: str, partition: int) -> bool:
        return 0 <= partition < self._targets.topics.get(topic, 0)

    def judged(self, offset: OffsetToCommit, topic_ids: Mapping[str, str] = NO_IDS) -> PartitionOutcome:
        error, message = self._fault_of(offset, topic_ids)
        return PartitionOutcome(topic=offset.topic, partition=offset.partition, error=error, message=message)

    def _fault_of(self, offset: OffsetToCommit, topic_ids: Mapping[str, str]) -> tuple[ErrorCode, str]:
        if not self.exists(offset.topic, offset.partition):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the partition does not exist"
        if offset.topic_id and offset.topic_id != topic_ids.get(offset.topic, offset.topic_id):
            reason = f"offset {offset.offset} belongs to topic id {offset.topic_id}, but the topic's id is"
            return (
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{reason} {topic_ids[offset.topic]}: it was deleted and created again",
            )
        if offset.offset < 0:
            return ErrorCode.INVALID_REQUEST, f"offset {offset.offset} is negative"
        size_bytes = len(offset.metadata.encode())
        if size_bytes > self._settings.offset_metadata_max_bytes:
            limit = self._settings.offset_metadata_max_bytes
            return ErrorCode.OFFSET_METADATA_TOO_LARGE, f"{size_bytes} bytes of metadata; at most {limit} are allowed"
        return ErrorCode.NONE, ""

    def committed(self, group_id: str, key: PartitionKey, topic_id: str = "") -> CommittedOffset:
        return committed_offset(self._state, group_id, key, topic_id)

    def _simple_group(self, group_id: str) -> GroupRecord:
        return GroupRecord(
            slot=self._state.slot,
            coordinator_epoch=self._state.coordinator_epoch,
            group_id=group_id,
            group_epoch=0,
            assignment_epoch=0,
            protocol_name=self._settings.default_assignor,
        )

    def commit_record(self, group_id: str, offset: PartitionOffset, now_ms: int) -> OffsetCommitRecord:
        return OffsetCommitRecord(
            slot=self._state.slot,
            coordinator_epoch=self._state.coordinator_epoch,
            group_id=group_id,
            topic=offset.topic,
            partition=offset.partition,
            offset=offset.offset,
            leader_epoch=offset.leader_epoch,
            metadata=offset.metadata,
            commit_timestamp_ms=now_ms,
        )

    def remove_record(self, group_id: str, key: PartitionKey) -> RemoveOffsetRecord:
        return RemoveOffsetRecord(
            slot=self._state.slot,
            coordinator_epoch=self._state.coordinator_epoch,
            group_id=group_id,
            topic=key[0],
            partition=key[1],
        )
