"""Which members of a share group read which partitions: a function of the members and the topics, so that nothing is stored.

Each partition gets a member. Where there are more members than partitions, partitions get several: all members work. Each member
of a topic gets the same number of its partitions, or one less, and the topics begin with different members.
"""

from collections.abc import Mapping

from barnabas.kraft.metadata.records import ShareMemberRecord
from barnabas.log.vocabulary.group_messages import TopicPartitions

from ..subscriptions.subscriptions import TopicsView

Assignment = dict[str, tuple[TopicPartitions, ...]]  # by member


def assign(members: Mapping[str, ShareMemberRecord], topics: TopicsView) -> Assignment:
    """Topics that do not exist are left out."""
    readers: dict[str, list[str]] = {}
    for member_id in sorted(members):
        for name in members[member_id].subscribed_topics:
            if topics.get(name, 0) > 0:
                readers.setdefault(name, []).append(member_id)
    found: dict[str, list[TopicPartitions]] = {member_id: [] for member_id in members}
    begun = 0
    for name in sorted(readers):
        chosen: dict[str, list[int]] = {}
        count = topics[name]
        for turn in range(max(count, len(readers[name]))):
            member_id = readers[name][(begun + turn) % len(readers[name])]
            chosen.setdefault(member_id, []).append(turn % count)
        for member_id, numbers in chosen.items():
            found[member_id].append(TopicPartitions(topic=name, partitions=tuple(numbers)))
        begun += count
    return {member_id: tuple(items) for member_id, items in found.items()}
