"""Committed offsets as they are told to clients."""

from barnabas.kraft.group_state.group_slots import PartitionKey, SlotState
from barnabas.log.vocabulary.group_messages import NO_OFFSET, CommittedOffset


def committed_offset(state: SlotState, group_id: str, key: PartitionKey, topic_id: str = "") -> CommittedOffset:
    """`topic_id`: of the topic in the current view. NO_OFFSET if there is no commit."""
    value = state.offset(group_id, key)
    if value is None:
        return CommittedOffset(topic=key[0], partition=key[1], offset=NO_OFFSET, topic_id=topic_id)
    offset, leader_epoch, metadata, commit_timestamp_ms, _ = value
    return CommittedOffset(
        topic=key[0],
        partition=key[1],
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp_ms=commit_timestamp_ms,
        topic_id=topic_id,
    )
