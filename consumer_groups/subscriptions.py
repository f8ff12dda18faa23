"""Which topics a member wants: names and a pattern, resolved against the topics that exist."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from barnabas.kraft.image import MetadataImage
from barnabas.kraft.records import MemberRecord
from barnabas.log.errors import InvalidRequestError
from barnabas.log.topic_partition import INTERNAL_TOPICS

TopicsView = Mapping[str, int]  # topic -> number of partitions; never changed once it has been handed to a coordinator

_PATTERNS_CACHED: Final = 256  # compiled patterns are kept for so many distinct subscriptions


def topics_view(image: MetadataImage) -> TopicsView:
    return {name: len(topic.partitions) for name, topic in image.topics.items()}


@lru_cache(maxsize=_PATTERNS_CACHED)
def compiled(pattern: str) -> re.Pattern[str]:
    """Raises InvalidRequestError."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidRequestError(f"the subscription pattern is no regular expression: {error}") from error


def wanted_among(member: MemberRecord, topics: Iterable[str]) -> frozenset[str]:
    """Those of the topics that the member subscribes to. A pattern never matches internal topics, as in Kafka."""
    names = frozenset(topics)
    wanted = names.intersection(member.subscribed_topics)
    if member.subscribed_pattern:
        matches = compiled(member.subscribed_pattern).fullmatch
        wanted |= {name for name in names - INTERNAL_TOPICS if matches(name)}
    return wanted
