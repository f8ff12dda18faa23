"""Which topics a member wants: names and a pattern, resolved against the topics that exist."""

from collections.abc import Iterable, Mapping

from barnabas.kraft.image import MetadataImage
from barnabas.kraft.records import MemberRecord
from barnabas.log.name_pattern import name_pattern
from barnabas.log.topic_partition import INTERNAL_TOPICS

TopicsView = Mapping[str, int]  # topic -> number of partitions; never changed once it has been handed to a coordinator


def topics_view(image: MetadataImage) -> TopicsView:
    return {name: len(topic.partitions) for name, topic in image.topics.items()}


def wanted_among(member: MemberRecord, topics: Iterable[str]) -> frozenset[str]:
    """Those of the topics that the member subscribes to. A pattern never matches internal topics, as in Kafka."""
    names = frozenset(topics)
    wanted = names.intersection(member.subscribed_topics)
    if member.subscribed_pattern:
        matches = name_pattern(member.subscribed_pattern).matches
        wanted |= {name for name in names - INTERNAL_TOPICS if matches(name)}
    return wanted
