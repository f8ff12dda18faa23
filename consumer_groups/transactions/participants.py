"""The partitions and groups of a transaction. Partitions are named by topic id, because a topic that is deleted
and created again is another one."""

from collections.abc import Iterable

from barnabas.log.vocabulary.errors import InvalidRequestError, PolicyViolationError
from barnabas.log.vocabulary.topic_partition import check_topic_name
from barnabas.log.vocabulary.transaction_messages import AddToTransactionRequest, TransactionTopic

from .settings import TransactionSettings

MAX_TOPIC_ID_LENGTH = 64  # ids of brokers are shorter


def merged(known: tuple[TransactionTopic, ...], more: Iterable[TransactionTopic]) -> tuple[TransactionTopic, ...]:
    """All partitions of both, sorted. `known` itself if there are no new ones."""
    partitions = {(item.topic, item.topic_id): set(item.partitions) for item in known}
    before = partition_count(known)
    for item in more:
        partitions.setdefault((item.topic, item.topic_id), set()).update(item.partitions)
    if sum(map(len, partitions.values())) == before:
        return known
    return tuple(
        TransactionTopic(topic=topic, topic_id=topic_id, partitions=tuple(sorted(numbers)))
        for (topic, topic_id), numbers in sorted(partitions.items())
        if numbers
    )


def missing(known: Iterable[TransactionTopic], asked: Iterable[TransactionTopic]) -> frozenset[tuple[str, int]]:
    """The partitions that were asked for and are not known."""
    present = {(item.topic_id, number) for item in known for number in item.partitions}
    return frozenset(
        (item.topic, number) for item in asked for number in item.partitions if (item.topic_id, number) not in present
    )


def partition_count(topics: Iterable[TransactionTopic]) -> int:
    return sum(len(item.partitions) for item in topics)


def check_size(
    transactional_id: str, topics: tuple[TransactionTopic, ...], groups: tuple[str, ...], settings: TransactionSettings
) -> None:
    """Raises PolicyViolationError."""
    for count, limit, what in (
        (partition_count(topics), settings.max_partitions, "partitions"),
        (len(groups), settings.max_groups, "groups"),
    ):
        if count > limit:
            raise PolicyViolationError(
                f"the transaction of {transactional_id!r} would have {count} {what}, at most {limit} are allowed: "
                "commit more often"
            )


def check_names(request: AddToTransactionRequest, settings: TransactionSettings) -> None:
    """They are in every later record of the transaction: long ones would make records that the quorum cannot take. Raises
    InvalidTopicError, InvalidRequestError."""
    for topic in request.topics:
        check_topic_name(topic.topic)
        if len(topic.topic_id) > MAX_TOPIC_ID_LENGTH:
            raise InvalidRequestError(
                f"a topic id has at most {MAX_TOPIC_ID_LENGTH} characters, not {len(topic.topic_id)}"
            )
    longest = max(request.groups, key=len, default="")
    if len(longest) > settings.max_id_length:
        raise InvalidRequestError(
            f"a group id of {len(longest)} characters is too long: a transaction takes {settings.max_id_length}"
        )
