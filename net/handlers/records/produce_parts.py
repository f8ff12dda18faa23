"""`JoinedAnswer`: one answer to a produce request that is carried out in parts.

A request may name 20,000 partitions. To append a batch to each takes the loop almost half a second, so a long request is cut into
parts, and the loop runs after each. Each part is complete in one pass of the loop, as a short request is. Pure.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from barnabas.log.vocabulary.errors import BarnabasError, InvalidTopicError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.server.dispatcher import Reply, RequestContext
from barnabas.net.wire.protocol.requests import KafkaProduceRequest, ProduceRequest
from barnabas.net.wire.protocol.responses import ErrorResponse, ProduceResponse

AnyProduce = ProduceRequest | KafkaProduceRequest
MAX_APPENDED_AT_ONCE: Final = 512  # partitions: about 10 ms


def parts_of(request: AnyProduce) -> Iterator[AnyProduce]:
    """At least one."""
    every = request.partitions
    if len(every) <= MAX_APPENDED_AT_ONCE:
        yield request
        return
    for start in range(0, len(every), MAX_APPENDED_AT_ONCE):
        yield replace(request, partitions=every[start : start + MAX_APPENDED_AT_ONCE])


def named_again(parts: Sequence[AnyProduce]) -> list[dict[int, BarnabasError]]:
    """For each part: the partitions that an earlier part names, too, by their place in the part. `_append` refuses those that one
    part names twice."""
    named: set[TopicPartition] = set()
    found: list[dict[int, BarnabasError]] = []
    for part in parts:
        places = [TopicPartition(item.topic, item.partition) for item in part.partitions]
        found.append({number: named_twice(place) for number, place in enumerate(places) if place in named})
        named.update(places)
    return found


def named_twice(place: TopicPartition) -> BarnabasError:
    return InvalidTopicError(f"{place} appears twice in one produce request")


class JoinedAnswer:
    """Takes the answers of the parts in any order, and gives the client one when all are there."""

    def __init__(self, parts: int, context: RequestContext, reply: Reply) -> None:
        self._answers: dict[int, ProduceResponse | ErrorResponse | None] = {}
        self._missing = parts
        self._context = context
        self._reply = reply
        self._has_failed = False  # a part without an answer, which has nowhere to say what is wrong

    def answered(self, number: int, response: object) -> None:
        assert isinstance(response, ProduceResponse | ErrorResponse)
        self._took(number, response)

    def unanswered(self, number: int, has_failed: bool) -> None:
        """With acks=0."""
        self._has_failed |= has_failed
        self._took(number, None)

    def _took(self, number: int, response: ProduceResponse | ErrorResponse | None) -> None:
        assert number not in self._answers, "a part is answered once"
        self._answers[number] = response
        self._missing -= 1
        if not self._missing:
            self._end()

    def _end(self) -> None:
        found = [self._answers[number] for number in sorted(self._answers)]
        failed = next((item for item in found if isinstance(item, ErrorResponse)), None)
        if failed is not None:
            self._reply(failed)
        elif None not in found:
            told = [item for item in found if isinstance(item, ProduceResponse)]
            self._reply(ProduceResponse(partitions=tuple(one for item in told for one in item.partitions)))
        elif self._has_failed:
            self._context.hang_up()
        else:
            self._context.no_reply()
