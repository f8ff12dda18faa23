"""Committed offsets that an answer brings with an assignment, so that the member need not ask where to begin.

They are what a fetch of stable offsets would answer at this moment. Two rules make that sound:

- They go with a decision that has records. Its commit proves that this coordinator had not been replaced, as the commit behind a
  fetch does (`CoordinatorResult.must_confirm`). An assignment that is repeated without a record brings none.
- From the decision on, no other member can commit offsets of these partitions: the former owner has let go of them, and its
  epoch has moved on. A reset moves the epoch of the new owner, which then loses the assignment.
"""

from typing import Final

from msgspec.structs import replace

from barnabas.kraft.metadata.records import CurrentAssignmentRecord
from barnabas.log.vocabulary.group_messages import CommittedOffset, ConsumerGroupHeartbeatRequest

from ..model.committed_offsets import committed_offset
from ..model.decision import Decision
from ..model.partitions import to_set

# Of one answer. A wake answers many members in one decision; a member with more new partitions asks, once for all of them.
MAX_ASSIGNED_OFFSETS: Final = 100


def assigned_offsets(
    request: ConsumerGroupHeartbeatRequest,
    before: CurrentAssignmentRecord,
    after: CurrentAssignmentRecord,
    decision: Decision,
) -> tuple[CommittedOffset, ...]:
    """Of the partitions that are new to the member, without metadata, and with NO_OFFSET where nothing is committed.

    A partition is left out if its topic's id is not known, or if an open transaction may change its offset (KIP-447). All are
    left out if the decision has no records, or if they are too many.
    """
    if not request.wants_offsets or not decision.records:
        return ()
    new = to_set(after.assigned) - to_set(before.assigned if request.owned is None else request.owned)
    if not new or len(new) > MAX_ASSIGNED_OFFSETS:
        return ()
    group_id, topic_ids = request.group_id, decision.topic_ids
    return tuple(
        replace(committed_offset(decision.state, group_id, key, topic_ids[key[0]]), metadata="")
        for key in sorted(new - decision.state.pending.keys(group_id))
        if key[0] in topic_ids
    )
