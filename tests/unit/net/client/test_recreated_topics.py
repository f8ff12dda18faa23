"""A topic is deleted and created again under its name: no position, commit or look-up of the old one counts in the new one."""

import sqlite3
from contextlib import closing

import pytest
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.fake_groups import FakeGroups
from unit.net.client.once_world import FakeConsumer, Log, store
from unit.net.client.test_consumer import T0, consumer, fill, filled, read
from unit.net.client.virtual_time import run

from barnabas import sync
from barnabas.log.vocabulary.group_messages import CommittedOffset
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.client import inside_of
from barnabas.net.client.connection.errors import PartitionGoneError, TopicRecreatedError
from barnabas.net.client.connection.metadata import MAX_FIRST_IDS, MetadataCache
from barnabas.net.wire.protocol import group_responses as g
from barnabas.net.wire.protocol import responses as r
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.requests import OffsetCommitRequest

P0 = TopicPartition("t", 0)


def recreate(cluster: FakeCluster, count: int) -> None:
    cluster.make_anew("t")
    fill(cluster, T0, count)


def test_a_committed_offset_of_the_old_topic_is_no_position_in_the_new_one() -> None:
    """The coordinator learns last that the topic was created again."""

    async def main() -> None:
        cluster = filled(50)
        recreate(cluster, 80)
        late = CommittedOffset(topic="t", partition=0, offset=50, leader_epoch=0, topic_id="t")
        cluster.script(ApiKey.OFFSET_FETCH, lambda *_: g.OffsetFetchResponse(partitions=(late,)))
        async with consumer(cluster, group="g", auto_commit=False) as reader:
            reader.assign([T0])
            assert [record.offset for record in await read(reader, 80)] == list(range(80))
            assert inside_of(reader).origin(T0).topic_id == "t'"

    run(main())


@pytest.mark.parametrize("is_named", [False, True])
def test_a_commit_of_the_old_topic_is_refused_and_the_new_one_read_from_its_start(is_named: bool) -> None:
    async def main() -> None:
        cluster = filled(50)
        FakeGroups(cluster)
        async with consumer(cluster, group="g", auto_commit=False) as reader:
            reader.assign([T0])
            await read(reader, 50)
            recreate(cluster, 80)
            with pytest.raises(PartitionGoneError, match="offset 50 was one of the old topic"):
                await reader.commit({T0: 50} if is_named else None)
            assert await reader.committed(T0) == {}
            assert [record.offset for record in await read(reader, 80)] == list(range(80))
            await reader.commit({T0: 70} if is_named else None)
            assert await reader.committed(T0) == {T0: 70 if is_named else 80}
        assert {item.topic_id for one in cluster.sent(OffsetCommitRequest) for item in one.partitions} == {"t", "t'"}

    run(main())


def test_records_in_hand_of_the_old_topic_are_not_committed_in_the_new_one() -> None:
    """The reader is in the new topic already, and the application names what it was given before."""

    async def main() -> None:
        cluster = filled(50)
        FakeGroups(cluster)
        async with consumer(cluster, group="g", auto_commit=False) as reader:
            reader.assign([T0])
            await read(reader, 50)
            recreate(cluster, 0)
            assert await reader.poll(timeout_ms=2_000) == {}
            assert inside_of(reader).origin(T0).topic_id == "t'"
            with pytest.raises(PartitionGoneError, match="offset 50 was one of the old topic"):
                await reader.commit({T0: 50})

    run(main())


def test_a_look_up_that_ends_in_the_new_topic_leads_to_its_start() -> None:
    """Policy "latest": the end of the new topic would leave out all that is in it."""

    async def main() -> None:
        cluster = filled(50)

        def recreated_meanwhile(*_: object) -> None:
            recreate(cluster, 80)

        cluster.script(ApiKey.LIST_OFFSETS, recreated_meanwhile)
        async with consumer(cluster, "t", auto_offset_reset="latest") as reader:
            assert [record.offset for record in await read(reader, 80)] == list(range(80))

    run(main())


def test_a_member_that_gets_a_partition_of_the_new_topic_begins_at_its_start() -> None:
    """The group took the partition away with the old topic, so this reader never stood in it."""

    async def main() -> None:
        cluster = filled(50)
        async with consumer(cluster, group="g", auto_commit=False, auto_offset_reset="latest") as reader:
            reader.assign([T0])
            assert await reader.position(T0) == 50
            reader.assign([])
            recreate(cluster, 80)
            await reader.client.refresh()
            reader.assign([T0])
            assert [record.offset for record in await read(reader, 80)] == list(range(80))

    run(main())


def test_a_seek_to_an_offset_of_the_old_topic_leads_to_the_start_of_the_new_one() -> None:
    async def main() -> None:
        cluster = filled(50)
        async with consumer(cluster, "t") as reader:
            await read(reader, 50)
            recreate(cluster, 80)
            assert [record.offset for record in await read(reader, 5)] == list(range(5))
            reader.seek(T0, 40, topic_id="t")
            assert [record.offset for record in await read(reader, 5)] == list(range(5))
            reader.seek(T0, 40, topic_id="t'")
            assert [record.offset for record in await read(reader, 5)] == list(range(40, 45))

    run(main())


def test_a_failed_handler_does_not_send_the_reader_into_the_middle_of_the_new_topic() -> None:
    """`process_once` goes back behind what it has processed, and the reader is in the new topic by now."""
    log = Log().add(P0, 10)
    reader = FakeConsumer(log, P0)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE effects (place TEXT, offset INTEGER)")
        connection.commit()
        with pytest.raises(ZeroDivisionError), sync.process_once(reader, connection, max_records=3) as records:
            for record, cursor in records:
                store(cursor, record)
                if record.offset == 4:
                    log.topic_id = "id-2"
                    reader.jump(P0, 0)
                    raise ZeroDivisionError
        with pytest.raises(TopicRecreatedError), sync.process_once(reader, connection) as records:
            next(records)
        connection.execute("DELETE FROM barnabas_offsets")
        connection.execute("DELETE FROM effects")
        connection.commit()
        with sync.process_once(reader, connection) as records:
            for record, cursor in records:
                store(cursor, record)
                if record.offset == 9:
                    break
        found = connection.execute("SELECT offset FROM effects ORDER BY rowid").fetchall()
        assert [offset for (offset,) in found] == list(range(10))


def test_the_first_ids_are_remembered_within_a_limit() -> None:
    cache = MetadataCache()

    def learn(name: str, topic_id: str, error: int = 0) -> None:
        topic = r.TopicMetadata(error=error, name=name, topic_id=topic_id, partitions=())
        cache.update(
            r.MetadataResponse(cluster_id="c", controller_id=0, offset=cache.offset + 1, brokers=(), topics=(topic,))
        )

    learn("t", "1")
    assert not cache.is_successor("t")
    learn("t", "", error=3)
    assert not cache.is_successor("t")
    learn("t", "2")
    assert cache.is_successor("t")
    for number in range(MAX_FIRST_IDS):
        learn(f"other-{number}", "x")
    assert len(cache._first_topic_ids) == MAX_FIRST_IDS
    assert not cache.is_successor("t")
