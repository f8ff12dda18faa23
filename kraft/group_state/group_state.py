"""The port of the metadata node to the group state beside the image (`group_slots` implements it), and a small stand-in."""

from collections.abc import Iterable
from typing import Protocol

from ..metadata.records import (
    CurrentAssignmentRecord,
    GroupRecord,
    MemberRecord,
    OffsetCommitRecord,
    OffsetResetRecord,
    PendingOffsetsEndedRecord,
    PendingOffsetsRecord,
    Record,
    RemoveGroupRecord,
    RemoveMemberRecord,
    RemoveOffsetRecord,
    RemoveShareGroupRecord,
    RemoveShareMemberRecord,
    RemoveShareStatesRecord,
    RemoveTransactionRecord,
    ShareGroupRecord,
    ShareMemberRecord,
    ShareStateRecord,
    StagedDecisionRecord,
    TargetAssignmentRecord,
    TransactionRecord,
)
from .offsets_log import SlotLog

AnyShareRecord = (
    ShareGroupRecord
    | RemoveShareGroupRecord
    | ShareMemberRecord
    | RemoveShareMemberRecord
    | ShareStateRecord
    | RemoveShareStatesRecord
)
AnyGroupRecord = (
    GroupRecord
    | RemoveGroupRecord
    | MemberRecord
    | RemoveMemberRecord
    | TargetAssignmentRecord
    | CurrentAssignmentRecord
    | OffsetCommitRecord
    | RemoveOffsetRecord
    | OffsetResetRecord
    | StagedDecisionRecord
    | TransactionRecord
    | RemoveTransactionRecord
    | PendingOffsetsRecord
    | PendingOffsetsEndedRecord
    | AnyShareRecord
)
TRANSACTION_RECORDS = (
    TransactionRecord,
    RemoveTransactionRecord,
    PendingOffsetsRecord,
    PendingOffsetsEndedRecord,
)
SHARE_RECORDS = (
    ShareGroupRecord,
    RemoveShareGroupRecord,
    ShareMemberRecord,
    RemoveShareMemberRecord,
    ShareStateRecord,
    RemoveShareStatesRecord,
)
GROUP_RECORDS = (
    GroupRecord,
    RemoveGroupRecord,
    MemberRecord,
    RemoveMemberRecord,
    TargetAssignmentRecord,
    CurrentAssignmentRecord,
    OffsetCommitRecord,
    RemoveOffsetRecord,
    OffsetResetRecord,
    StagedDecisionRecord,
    *TRANSACTION_RECORDS,
    *SHARE_RECORDS,
)


class GroupState(Protocol):
    """Groups and offsets of all slots, replayed from the quorum's log on every voter alike."""

    def replay(self, record: Record, index: int) -> bool:
        """Apply a group record. False: its coordinator epoch is stale, so it is void."""

    def batches_of(self, slot: int) -> Iterable[bytes]:
        """Records that rebuild the slot when they are replayed into an empty state, as encoded batches."""

    def view(self, slot: int) -> Iterable[Record]:
        """The same records for the current slot, readable in any thread."""

    def read_log(self, slot: int, log_offset: int, limit: int) -> SlotLog:
        """The records of the slot in `__consumer_offsets` from that offset on."""

    def copy(self) -> "GroupState":
        """A consistent view that later replays do not change; cheap."""

    def on_slot_moved(self, slot: int, coordinator_epoch: int) -> None:
        """From now on, records of older coordinator epochs are void."""

    def delete_topic(self, name: str) -> None:
        """Drop all offsets that were committed for a deleted topic."""
