"""Where a simulated member may begin by the offsets that came with its assignment."""

from collections.abc import Mapping

from barnabas.kraft.group_state.group_slots import PartitionKey
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatResponse


def told_positions(
    response: ConsumerGroupHeartbeatResponse,
    committed: Mapping[PartitionKey, tuple[int, str]],
    topic_ids: Mapping[str, str],
) -> dict[PartitionKey, tuple[int, int]]:
    """Partition -> its offset and the generation of the reset that it stems from. `committed`: offset and metadata, when the
    answer leaves. Offsets of a topic that was deleted since are of no use."""
    found: dict[PartitionKey, tuple[int, int]] = {}
    for item in response.offsets:
        if item.topic_id == topic_ids[item.topic]:
            offset, generation = committed.get((item.topic, item.partition), (-1, ""))
            assert item.offset == offset, "with its assignment a member is told what is committed at that moment"
            found[item.topic, item.partition] = (max(offset, 0), int(generation or 0))
    return found
