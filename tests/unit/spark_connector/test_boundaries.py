"""What is subscribed, and where a query begins and ends, on a cluster in memory."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import pytest
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.virtual_time import run

from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.errors import InvalidConfigError, UnknownTopicOrPartitionError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.spark_connector.read.boundaries import Boundaries
from barnabas.spark_connector.read.data_loss import DataLossError
from barnabas.spark_connector.read.offsets import OffsetRange
from barnabas.spark_connector.read.read_options import parse_read_options

T = TypeVar("T")
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def cluster() -> FakeCluster:
    """a-0 has the offsets 0 to 10 (times 0 to 900), a-1 has 20 to 30 of as many, b-0 is empty."""
    found = FakeCluster(brokers=2, topics={"a": 2, "b": 1, "__consumer_offsets": 1, "__spark_sinks": 1})
    found.logs[A1].start_offset = found.logs[A1].end_offset = 20
    for partition in (A0, A1):
        for number in range(10):
            found.logs[partition].append(encode_batch([b"v"], timestamps_ms=100 * number))
    return found


def ask(question: Callable[[Boundaries], Awaitable[T]], *, is_stream: bool = False, **options: str) -> T:
    async def body() -> T:
        parsed = parse_read_options({"bootstrap.servers": "fake:1", **options}, is_stream=is_stream)
        client = cluster().client()
        await client.start()
        try:
            return await question(Boundaries(client, parsed))
        finally:
            await client.close()

    return run(body())


def ranges(**options: str) -> dict[TopicPartition, tuple[int, int]]:
    found: list[OffsetRange]
    found, _ = ask(lambda boundaries: boundaries.batch_ranges(), **options)
    return {item.partition: (item.start, item.end) for item in found}


def at(a0: int, a1: int) -> str:
    return json.dumps({"a": {"0": a0, "1": a1}})


def test_names_patterns_and_partitions() -> None:
    assert ask(lambda found: found.partitions(), subscribe="b,a") == [B0, A0, A1]
    assert ask(lambda found: found.partitions(), subscribePattern=".*") == [A0, A1, B0]  # No internal ones.
    assert ask(lambda found: found.partitions(), subscribePattern="c.*") == []
    assert ask(lambda found: found.partitions(), assign='{"a":[1]}') == [A1]


def test_what_does_not_exist_is_a_mistake_or_has_gone() -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="barnabas topic create nope"):
        ask(lambda found: found.partitions(), subscribe="a,nope")
    with pytest.raises(UnknownTopicOrPartitionError, match="partitions 0 to 1"):
        ask(lambda found: found.partitions(), assign='{"a":[0,2]}')
    assert ask(lambda found: found.partitions(needs_all=False), subscribe="a,nope") == [A0, A1]
    assert ask(lambda found: found.partitions(needs_all=False), assign='{"a":[0,2]}') == [A0]


def test_a_batch_has_all_that_is_there() -> None:
    assert ranges(subscribe="a,b") == {A0: (0, 10), A1: (20, 30), B0: (0, 0)}


def test_offsets_of_each_partition() -> None:
    assert ranges(subscribe="a", startingOffsets=at(3, -2), endingOffsets=at(-1, 25)) == {A0: (3, 10), A1: (20, 25)}


def test_json_names_all_partitions_and_no_others() -> None:
    with pytest.raises(InvalidConfigError, match="startingOffsets must name every subscribed partition.* it lacks a-1"):
        ranges(subscribe="a", startingOffsets='{"a":{"0":3}}')
    with pytest.raises(InvalidConfigError, match="endingOffsetsByTimestamp names b-0, which is not subscribed"):
        ranges(subscribe="a", endingOffsetsByTimestamp='{"a":{"0":1,"1":1},"b":{"0":1}}')


def test_offsets_outside_of_the_log_are_data_loss_or_moved_into_it() -> None:
    for options in ({"startingOffsets": at(0, 5)}, {"endingOffsets": at(11, 25)}):
        with pytest.raises(DataLossError, match="a-. has the offsets"):
            ranges(subscribe="a", **options)
    moved = ranges(subscribe="a", startingOffsets=at(0, 5), endingOffsets=at(11, 25), failOnDataLoss="false")
    assert moved == {A0: (0, 10), A1: (20, 25)}


def test_times_find_the_first_record_that_is_not_older() -> None:
    assert ranges(subscribe="a", startingTimestamp="250", endingTimestamp="500") == {A0: (3, 5), A1: (23, 25)}
    times = at(900, 0)
    assert ranges(subscribe="a", startingOffsetsByTimestamp=times) == {A0: (9, 10), A1: (20, 30)}


def test_a_time_that_nothing_is_as_young_as() -> None:
    with pytest.raises(InvalidConfigError, match="a-0, a-1 has no record at or after the starting timestamp"):
        ranges(subscribe="a", startingTimestamp="901")
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert ranges(subscribe="a", startingTimestamp="901", **latest) == {A0: (10, 10), A1: (30, 30)}
    assert ranges(subscribe="a", endingTimestamp="901") == {A0: (0, 10), A1: (20, 30)}


def test_a_stream_begins_at_the_end_unless_told_otherwise() -> None:
    async def starts(found: Boundaries) -> dict[TopicPartition, int]:
        return await found.starts(await found.partitions())

    assert ask(starts, is_stream=True, subscribe="a") == {A0: 10, A1: 30}
    assert ask(starts, is_stream=True, subscribe="a", startingOffsets=at(-2, -1)) == {A0: 0, A1: 30}


async def ids_of_a_batch(boundaries: Boundaries) -> Mapping[str, str]:
    return (await boundaries.batch_ranges())[1]


async def ids_of_a_stream(boundaries: Boundaries) -> Mapping[str, str]:
    return (await boundaries.start()).topic_ids


@pytest.mark.parametrize("ids", [ids_of_a_batch, ids_of_a_stream])
def test_offsets_are_not_told_under_the_id_of_a_topic_that_was_made_while_they_were_asked_for(
    ids: Callable[[Boundaries], Awaitable[Mapping[str, str]]],
) -> None:
    """The client learns of the new topic behind the first answer: the ids had to be taken before it."""
    brokers = cluster()

    async def body() -> None:
        client = brokers.client()
        await client.start()

        async def answer_and_make_again(node_id: int, request: Any) -> Any:
            answer = brokers.list_offsets(node_id, request)
            brokers.make_anew("a")
            await client.refresh()
            return answer

        brokers.script(ApiKey.LIST_OFFSETS, answer_and_make_again)
        options = parse_read_options({"bootstrap.servers": "fake:1", "assign": '{"a":[0]}'}, is_stream=False)
        assert await ids(Boundaries(client, options)) == {"a": "a"}
        assert client.metadata.topic_id("a") == brokers.topic_id("a") != "a"
        await client.close()

    run(body())
