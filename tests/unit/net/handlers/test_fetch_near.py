"""Fetch by a consumer with a rack: which replica it is sent to, and when a follower serves it (KIP-392)."""

import asyncio

from msgspec.structs import replace
from unit.net.handlers.handler_world import fetch, only, position, soon, values
from unit.net.handlers.test_fetch import World, world_of
from unit.net.shell_world import Client, broker, partition, simulated, topic

from barnabas.log.format.record_batch import patch
from barnabas.log.replication.follower import FetchAnswer
from barnabas.log.replication.following import MAX_SILENCE_MS
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.handlers.records.fetch import FetchHandler
from barnabas.net.wire.protocol.responses import FetchResponse

IN_RACKS = (replace(broker(0), rack="a"), replace(broker(1), rack="b"), replace(broker(2), rack="b"))
OF_THREE = topic("t", partition(0, replicas=(0, 1, 2)))


async def racks(**settings: str) -> World:
    """Three records, which the followers of rack b have."""
    world = await World.start(OF_THREE, brokers=IN_RACKS, **settings)
    assert isinstance(world, World)
    world.append(b"a", b"b", b"c")
    for node_id in (1, 2):
        world.follower_has(3, node_id=node_id)
    return world


@simulated
async def test_a_consumer_is_sent_to_a_replica_in_its_rack_and_gets_no_records_from_the_leader() -> None:
    world = await racks()
    sent = only(world.read(rack="b", may_be_sent_away=True))
    assert sent.preferred_read_replica in (1, 2) and values(sent) == [] and sent.error == 0
    waiting = world.send(fetch(offset=3, max_wait_ms=5_000, rack="b", may_be_sent_away=True))
    assert only(waiting.answer()).preferred_read_replica in (1, 2)  # at once


@simulated
async def test_the_leader_serves_who_is_near_it_or_far_from_all_and_whom_does_not_go_elsewhere() -> None:
    world = await racks()
    for asked in (
        {"rack": "a", "may_be_sent_away": True},
        {"rack": "nowhere", "may_be_sent_away": True},
        {"rack": "", "may_be_sent_away": True},
        {"rack": "b"},  # a client from before
    ):
        read = only(world.read(**asked))
        assert (read.preferred_read_replica, values(read)) == (-1, [b"a", b"b", b"c"]), asked


@simulated
async def test_a_cluster_may_leave_it_to_the_leaders() -> None:
    world = await racks(replica_selector_class="org.apache.kafka.common.replica.LeaderSelector")
    assert only(world.read(rack="b", may_be_sent_away=True)).preferred_read_replica == -1


@simulated
async def test_only_a_replica_that_is_in_sync_alive_and_far_enough_is_named() -> None:
    world = await racks()
    world.append(b"d")
    world.follower_has(4, node_id=2)
    assert only(world.read(offset=3, rack="b", may_be_sent_away=True)).preferred_read_replica == 2  # it has the most
    world.show(
        topic("t", replace(partition(0, replicas=(0, 1, 2), isr=(0, 1)), partition_epoch=2)),
        brokers=IN_RACKS,
        offset=11,
    )
    assert only(world.read(rack="b", may_be_sent_away=True)).preferred_read_replica == 1
    fenced = tuple(replace(item, fenced=item.node_id == 1) for item in IN_RACKS)
    world.show(
        topic("t", replace(partition(0, replicas=(0, 1, 2), isr=(0, 1)), partition_epoch=2)), brokers=fenced, offset=12
    )
    assert only(world.read(rack="b", may_be_sent_away=True)).preferred_read_replica == -1


@simulated
async def test_a_replica_that_has_removed_the_records_is_not_named() -> None:
    """Each broker removes old segments by itself. A Kafka client was refused there, asked the leader, was sent there again..."""
    world = await world_of(topic("t", partition(0)))
    world.show(topic("t", partition(0)), brokers=IN_RACKS[:2], offset=11)
    world.append(b"a", b"b", b"c")
    assert only(world.follow(3, log_start_offset=2).answer()).error == 0
    assert values(only(world.read(offset=1, rack="b", may_be_sent_away=True))) == [b"a", b"b", b"c"]
    assert only(world.read(offset=2, rack="b", may_be_sent_away=True)).preferred_read_replica == 1


@simulated
async def test_an_offset_that_the_leader_has_not_is_refused_by_the_leader() -> None:
    world = await racks()
    refused = only(world.read(offset=9, rack="b", may_be_sent_away=True))
    assert (refused.error, refused.preferred_read_replica) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


@simulated
async def test_who_is_in_the_rack_of_the_leader_reads_from_it_though_a_follower_is_there_too() -> None:
    world = await racks()
    nearby = (replace(IN_RACKS[0], rack="b"), *IN_RACKS[1:])
    world.show(OF_THREE, brokers=nearby, offset=11)
    assert only(world.read(rack="b", may_be_sent_away=True)).preferred_read_replica == -1


@simulated
async def test_a_broker_that_has_moved_to_another_rack_is_named_there() -> None:
    world = await racks()
    handler = FetchHandler(world.services)

    def named(rack: str) -> int:
        client = Client()
        handler(fetch(position(), rack=rack, may_be_sent_away=True), client, client.reply)  # type: ignore[arg-type]
        answer = client.answer()
        assert isinstance(answer, FetchResponse)
        return only(answer).preferred_read_replica

    assert (named("b") in (1, 2), named("c")) == (True, -1)
    moved = (IN_RACKS[0], *(replace(item, rack="c") for item in IN_RACKS[1:]))
    world.show(OF_THREE, brokers=moved, offset=11)
    assert (named("b"), named("c") in (1, 2)) == (-1, True)


@simulated
async def test_who_took_another_course_hears_of_it_from_the_leader_and_is_not_sent_away() -> None:
    world = await racks()
    world.show(topic("t", partition(0, epoch=5, replicas=(0, 1, 2))), brokers=IN_RACKS, offset=12)
    world.append(b"d")
    for node_id in (1, 2):
        world.follower_has(4, node_id=node_id)
    item = position(offset=4, current_leader_epoch=5, last_fetched_epoch=3)
    read = only(world.read(item, rack="b", may_be_sent_away=True))
    assert (read.diverging_epoch, read.diverging_end_offset, read.preferred_read_replica) == (1, 3, -1)


@simulated
async def test_refusals_and_late_answers_of_the_leader_are_no_sign_that_a_follower_keeps_up() -> None:
    world = await world_of(topic("t", partition(1, epoch=7)))
    item = position(current_leader_epoch=7)
    asked = {"rack": "a", "may_be_sent_away": True}
    followed = world.partition().following
    found = followed.next_fetch()
    assert found is not None
    good = FetchAnswer(records=b"", high_watermark=0, log_start_offset=0)
    followed.fetched(found, good, world.shell.clock.wall_ms())
    assert only(world.read(item, **asked)).error == ErrorCode.NONE
    await asyncio.sleep(MAX_SILENCE_MS / 1000 + 0.001)
    followed.fetched(found, good, world.shell.clock.wall_ms())  # once more
    assert only(world.read(item, **asked)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    again = followed.next_fetch()
    assert again is not None
    refusal = FetchAnswer(error=ErrorCode.FENCED_LEADER_EPOCH, records=b"", high_watermark=0, log_start_offset=0)
    followed.fetched(again, refusal, world.shell.clock.wall_ms())
    assert only(world.read(item, **asked)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


@simulated
async def test_a_follower_with_readers_learns_of_a_commit_at_once_and_another_one_does_not() -> None:
    world = await world_of(topic("t", partition(0)))
    world.show(topic("t", partition(0)), brokers=IN_RACKS[:2], offset=11)
    world.append(b"a")
    assert only(world.follow(1).answer()).high_watermark == 1
    world.append(b"b")
    assert values(only(world.follow(1).answer())) == [b"b"]
    client = world.follow(2, max_wait_ms=5_000)  # it acknowledges b, and has been told of a only
    await asyncio.sleep(0.1)
    assert client.replies == []
    assert only(world.read(rack="b", may_be_sent_away=True)).preferred_read_replica == 1
    world.append(b"c")
    assert values(only(await soon(client))) == [b"c"]
    news = only(await soon(world.follow(3, max_wait_ms=5_000)))
    assert (values(news), news.high_watermark) == ([], 3)
    client = world.follow(3, max_wait_ms=5_000)  # no more news: it waits
    await asyncio.sleep(0.1)
    assert client.replies == []


@simulated
async def test_a_parked_follower_with_readers_wakes_for_the_commit_of_another_follower() -> None:
    world = await racks()
    assert only(world.read(rack="b", may_be_sent_away=True)).preferred_read_replica == 1
    world.append(b"d")
    client = world.follow(4)
    assert only(client.answer()).high_watermark == 3
    client = world.follow(4, max_wait_ms=5_000)
    assert client.replies == []
    world.follower_has(4, node_id=2)
    assert only(await soon(client)).high_watermark == 4


@simulated
async def test_a_follower_serves_whom_it_was_named_to_while_it_hears_from_its_leader() -> None:
    world = await world_of(topic("t", partition(1, epoch=7)))
    item = position(current_leader_epoch=7)
    asked = {"rack": "a", "may_be_sent_away": True}
    refused = only(world.read(item, **asked))
    assert refused.error == ErrorCode.NOT_LEADER_OR_FOLLOWER and "has not heard from the leader" in refused.message
    follow(world, b"a", b"b")
    read = only(world.read(item, **asked))
    assert (values(read), read.high_watermark) == ([b"a", b"b"], 2)
    assert only(world.read(item)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER  # a client that was not sent here
    client = world.send(fetch(position(offset=2, current_leader_epoch=7), max_wait_ms=5_000, **asked))
    assert client.replies == []
    follow(world, b"c")
    assert values(only(await soon(client))) == [b"c"]
    await asyncio.sleep(MAX_SILENCE_MS / 1000 + 0.001)
    assert only(world.read(item, **asked)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    follow(world)
    assert only(world.read(item, **asked)).error == ErrorCode.NONE
    world.show(topic("t", replace(partition(1, epoch=7, isr=(1,)), partition_epoch=8)), offset=11)
    assert "not in sync" in only(world.read(item, **asked)).message


@simulated
async def test_a_follower_never_tells_a_consumer_that_its_log_diverges() -> None:
    """It may lack what the consumer got from the leader: only the leader knows whether that is still true."""
    world = await world_of(topic("t", partition(1, epoch=7)))
    follow(world, b"a")
    asked = {"rack": "a", "may_be_sent_away": True}
    for offset, epoch in ((1, 7), (5, 7), (5, 6)):
        item = position(offset=offset, current_leader_epoch=7, last_fetched_epoch=epoch)
        read = only(world.read(item, **asked))
        assert read.diverging_epoch == -1 and read.error == (0 if offset == 1 else ErrorCode.OFFSET_NOT_AVAILABLE)


def follow(world: World, *values: bytes) -> None:
    """The leader's answer to this follower: these records, all of them committed."""
    followed = world.partition()
    found = followed.following.next_fetch()
    assert found is not None
    records = b""
    if values:
        copied = bytearray(world.batch(*values))
        patch(copied, 0, base_offset=found.offset, leader_epoch=7)
        records = bytes(copied)
    answer = FetchAnswer(records=records, high_watermark=found.offset + len(values), log_start_offset=0)
    world.replication.perform(followed.following.fetched(found, answer, world.shell.clock.wall_ms()))
