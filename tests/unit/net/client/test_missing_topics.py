"""What a consumer tells an application whose topics do not exist."""

import asyncio
from functools import partial
from typing import Any

import pytest
from unit.net.client.consumer_world import T0, consumer, fill, filled, read
from unit.net.client.fake_groups import FakeGroups
from unit.net.client.virtual_time import run

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import (
    InvalidConfigError,
    UnknownTopicOrPartitionError,
)


@pytest.mark.parametrize("group", [None, "g"])
def test_a_topic_that_does_not_exist_is_told_within_seconds(group: str | None, caplog: Any) -> None:
    async def main() -> None:
        cluster = filled(10)
        if group is not None:
            FakeGroups(cluster)
        reader = consumer(cluster, "typo", group=group)
        starting = asyncio.create_task(reader.start())
        polling = asyncio.create_task(asyncio.sleep(6))
        await polling
        assert [text for text in caplog.messages if "topic typo" in text] == [
            "topic typo: there is no topic 'typo': create it (barnabas topic create typo), or correct the name; retrying"
        ]
        cluster.create("typo", 1)
        await starting
        await asyncio.sleep(2)
        assert not reader._client.troubles
        await reader.close()

    run(main())


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_group_member_is_told_when_none_of_its_topics_exists_for_long(protocol: str) -> None:
    async def main() -> None:
        cluster = filled(10)
        FakeGroups(cluster)
        now_s = asyncio.get_running_loop().time
        async with consumer(cluster, "typo", "later", group="g", group_protocol=protocol) as reader:
            for _ in range(2):  # an application that goes on waits as long again
                began_s = now_s()
                with pytest.raises(
                    UnknownTopicOrPartitionError, match="no topic 'typo'.*missing_topic_timeout_ms=60000"
                ):
                    await reader.poll(timeout_ms=600_000)
                assert 55 <= now_s() - began_s <= 75
            cluster.create("later", 1)
            await reader.poll(timeout_ms=600_000)  # one of them is enough, for any time
            cluster.delete("later")
            await reader.poll(timeout_ms=30_000)
            cluster.create("later", 1)  # it was gone for a moment only
            await reader.poll(timeout_ms=200_000)
            cluster.delete("later")
            with pytest.raises(UnknownTopicOrPartitionError):
                await reader.poll(timeout_ms=600_000)

    run(main())


def test_a_consumer_that_assigns_by_itself_is_told_when_none_of_its_topics_exists_for_long() -> None:
    async def main() -> None:
        cluster = filled(10)
        now_s = asyncio.get_running_loop().time
        async with consumer(cluster) as reader:
            for partitions in ([("typo", 0)], [("typo", 0), ("other", 1)]):
                reader.assign(partitions)
                began_s = now_s()
                with pytest.raises(
                    UnknownTopicOrPartitionError, match="no topic 'typo'.*missing_topic_timeout_ms=60000"
                ):
                    while True:  # calls that end soon add up
                        assert await reader.poll(timeout_ms=2_000) == {}
                assert 55 <= now_s() - began_s <= 75
            reader.assign([("typo", 0)])
            for call in (reader.seek_to_start, partial(reader.position, ("typo", 0))):
                with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'typo'.*missing_topic_timeout_ms"):
                    await call()
            reader.assign([("typo", 0), T0])  # one of them is enough, for any time
            await reader.seek_to_start(T0)
            assert len(await read(reader, 10)) == 10
            assert await reader.poll(timeout_ms=600_000) == {}
        async with consumer(cluster, missing_topic_timeout_ms=-1) as reader:
            reader.assign([("typo", 0)])
            assert await reader.poll(timeout_ms=600_000) == {}

    run(main())


def test_a_partition_that_its_topic_lacks_is_told_within_seconds(caplog: Any) -> None:
    async def main() -> None:
        cluster = filled(10)  # topic t has one partition
        now_s = asyncio.get_running_loop().time
        beyond = TopicPartition("t", 99)
        told = "topic 't' has partitions 0 to [01], not 99: correct the number, or add partitions.*add-partitions t --total 100"
        async with consumer(cluster, auto_offset_reset="earliest") as reader:
            reader.assign([T0, beyond])
            assert len(await read(reader, 10)) == 10  # of the other one
            for call in (partial(reader.poll, timeout_ms=60_000), partial(reader.position, beyond)):
                began_s = now_s()
                with pytest.raises(UnknownTopicOrPartitionError, match=told):
                    await call()
                assert 3 <= now_s() - began_s <= 12
            reader.assign([beyond])
            reader.seek(beyond, 7)  # There is no position to find: the fetch waits for a leader.
            with pytest.raises(UnknownTopicOrPartitionError, match=told):
                await reader.poll(timeout_ms=60_000)
            with pytest.raises(UnknownTopicOrPartitionError, match=told):
                await reader.end_offsets(beyond)
        assert not [text for text in caplog.messages if "no leader" in text]

    run(main())


def test_a_partition_that_is_added_meanwhile_is_read() -> None:
    async def main() -> None:
        cluster = filled(10)
        async with consumer(cluster, auto_offset_reset="earliest") as reader:
            reader.assign([("t", 1)])
            assert await reader.poll(timeout_ms=2_000) == {}
            cluster.create("t", 2)
            fill(cluster, TopicPartition("t", 1), 5)
            assert len((await reader.poll(timeout_ms=10_000))[TopicPartition("t", 1)]) == 5
        async with consumer(cluster, missing_topic_timeout_ms=-1) as reader:
            reader.assign([("t", 99)])
            assert await reader.poll(timeout_ms=600_000) == {}

    run(main())


@pytest.mark.parametrize("group", [None, "g"])
def test_an_application_that_was_away_is_not_told_of_a_topic_that_exists_now(group: str | None) -> None:
    async def main() -> None:
        cluster = filled(10)
        FakeGroups(cluster)
        async with consumer(
            cluster, *(["later"] if group else []), group=group, auto_offset_reset="earliest"
        ) as reader:
            if group is None:
                reader.assign([("later", 0)])
            await asyncio.sleep(100)
            cluster.create("later", 1)
            fill(cluster, TopicPartition("later", 0), 5)
            await asyncio.sleep(10)
            found = await reader.poll(timeout_ms=20_000)
            assert group is not None or len(found[TopicPartition("later", 0)]) == 5

    run(main())


def test_an_application_that_was_away_is_not_told_of_a_partition_that_was_added_or_is_not_assigned() -> None:
    async def main() -> None:
        cluster = filled(10)
        async with consumer(cluster, auto_offset_reset="earliest") as reader:
            for wanted in (TopicPartition("t", 1), TopicPartition("t", 2), TopicPartition("typo", 0)):
                reader.assign([wanted])
                await asyncio.sleep(100)
                if wanted.partition == 1:
                    cluster.create("t", 2)
                    fill(cluster, wanted, 5)
                    await asyncio.sleep(10)
                    assert len(await read(reader, 5)) == 5
                else:
                    reader.assign([T0])
                    assert len(await read(reader, 10)) == 10

    run(main())


def test_a_consumer_without_a_group_is_told_when_its_topic_is_deleted_for_long() -> None:
    async def main() -> None:
        cluster = filled(10)
        async with consumer(cluster, "t") as reader:
            assert len(await read(reader, 10)) == 10
            cluster.delete("t")
            with pytest.raises(UnknownTopicOrPartitionError, match="no topic 't'.*missing_topic_timeout_ms=60000"):
                await reader.poll(timeout_ms=600_000)

    run(main())


def test_a_group_waits_without_a_limit_where_it_is_asked_to() -> None:
    async def main() -> None:
        cluster = filled(10)
        FakeGroups(cluster)
        async with consumer(cluster, "typo", group="g", missing_topic_timeout_ms=-1) as reader:
            assert await reader.poll(timeout_ms=600_000) == {}
        async with consumer(cluster, group="p", pattern="typo.*") as reader:
            assert await reader.poll(timeout_ms=600_000) == {}
        with pytest.raises(InvalidConfigError, match="missing_topic_timeout_ms is -2; it must be from -1"):
            consumer(cluster, "typo", group="g", missing_topic_timeout_ms=-2)

    run(main())
