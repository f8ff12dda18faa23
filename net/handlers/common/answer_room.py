"""`AnswerRoom`: how large an answer about many things may become, and the memory that it takes while it is made.

A few bytes of a request cause a whole description: of a group with a thousand members, of all configurations of a topic. Each
item takes its room before it is described. An item that finds none is refused by itself; the others of the request are answered.
"""

from collections.abc import Iterable
from typing import Final, Self

from barnabas.consumer_groups.model.messages import DescribedMember, GroupDescription
from barnabas.log.vocabulary.errors import InvalidRequestError, RequestTimedOutError
from barnabas.log.vocabulary.group_messages import CommittedOffset, TopicPartitions
from barnabas.log.vocabulary.transaction_messages import TransactionTopic
from barnabas.net.server.memory_budget import MemoryBudget

# Less than an envelope of our own protocol may have. To encode so much takes the loop about a tenth of a second.
MAX_ANSWER_BYTES: Final = 15 * 1024 * 1024
OBJECTS_PER_BYTE: Final = 3  # an answer takes so many times more memory as objects, before it is encoded
NUMBER_BYTES: Final = 4
ENTRY_BYTES: Final = 60  # of a member, an offset or a setting, without its texts


class AnswerRoom:
    """Of one answer. A context, which gives the memory back when the answer has been made."""

    def __init__(self, memory: MemoryBudget, cure: str) -> None:
        """`cure` says what a client does about an answer that is too large: "describe fewer groups in one request"."""
        self._memory = memory
        self._cure = cure
        self._answer_bytes = 0
        self._taken_bytes = 0
        self._is_reserved = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.give_back(self._taken_bytes)
        self._taken_bytes = 0

    def reserve(self, size_bytes: int) -> None:
        """Take the memory of about so large an answer at once, because the budget belongs to the loop's thread; after this, a
        thread may call `take`. Raises RequestTimedOutError."""
        self._take_memory(min(size_bytes, MAX_ANSWER_BYTES))
        self._is_reserved = True

    def take(self, size_bytes: int) -> None:
        """For one more item. Raises InvalidRequestError, or RequestTimedOutError while other clients have the memory."""
        if self._answer_bytes + size_bytes > MAX_ANSWER_BYTES:
            raise InvalidRequestError(f"the answer would have more than {MAX_ANSWER_BYTES} bytes: {self._cure}")
        if not self._is_reserved:
            self._take_memory(size_bytes)
        self._answer_bytes += size_bytes

    def _take_memory(self, answer_bytes: int) -> None:
        needed_bytes = answer_bytes * (1 + OBJECTS_PER_BYTE)
        if not self._memory.take(needed_bytes):
            raise RequestTimedOutError(
                f"the answer needs {needed_bytes} bytes of memory, which other clients have: ask again, or {self._cure}"
            )
        self._taken_bytes += needed_bytes


def size_of_group(found: GroupDescription) -> int:
    """About what its description has in bytes, in any protocol."""
    return ENTRY_BYTES + sum(map(_size_of_member, found.members))


def size_of_offsets(found: Iterable[CommittedOffset]) -> int:
    """As if each had its topic's name beside it."""
    return sum(ENTRY_BYTES + len(item.topic) + len(item.metadata) for item in found)


def size_of_partitions(topics: Iterable[TopicPartitions | TransactionTopic]) -> int:
    return sum(ENTRY_BYTES + len(item.topic) + NUMBER_BYTES * len(item.partitions) for item in topics)


def _size_of_member(member: DescribedMember) -> int:
    texts = (member.member_id, member.instance_id, member.client_id, member.client_host, member.subscribed_pattern)
    return (
        ENTRY_BYTES
        + sum(len(text) for text in texts if text is not None)
        + sum(len(topic) + 2 for topic in member.subscribed_topics)
        + 2 * size_of_partitions(member.assigned)
        + size_of_partitions(member.target)
        + len(member.classic_metadata)
        + len(member.classic_assignment)
    )
