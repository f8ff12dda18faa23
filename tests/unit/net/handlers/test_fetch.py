"""Fetch: what a consumer and a follower see, how long they wait, and how much they get."""

import asyncio

from msgspec.structs import replace
from simulation.log_building import NOW_MS, end_transaction, transactional
from unit.net.handlers.handler_world import HandlerWorld, data, fetch, only, position, produce, soon, values
from unit.net.shell_world import Client, broker, now_ms, partition, simulated, topic

from barnabas.kraft.metadata.image import TopicImage
from barnabas.log.format.record_codec import ProducerFields
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.handlers.records.fetch import FetchHandler
from barnabas.net.handlers.records.produce import ProduceHandler
from barnabas.net.wire.protocol.requests import READ_COMMITTED, FetchPartition, FetchRequest
from barnabas.net.wire.protocol.responses import FetchResponse

ALONE = topic("t", *[partition(0, replicas=(0,)) for _ in range(3)])
REPLICATED = topic("t", partition(0), partition(0))
LED_ELSEWHERE = topic("t", partition(1, epoch=7))


class World(HandlerWorld):
    def send(self, request: FetchRequest) -> Client:
        client = Client()
        FetchHandler(self.services)(request, client, client.reply)  # type: ignore[arg-type]
        return client

    def read(self, *positions: FetchPartition, **options: object) -> FetchResponse:
        """A fetch that does not wait."""
        response = self.send(fetch(*positions, **options)).answer()
        assert isinstance(response, FetchResponse)
        return response

    def follow(self, offset: int = 0, *, max_wait_ms: int = 0, broker_epoch: int = 101, **item: object) -> Client:
        """A fetch of broker 1."""
        item = {"current_leader_epoch": 1, "topic_id": "id-t"} | item
        return self.send(
            fetch(position(offset=offset, **item), replica_id=1, broker_epoch=broker_epoch, max_wait_ms=max_wait_ms)
        )


async def world_of(*topics: TopicImage, **settings: str) -> World:
    world = await World.start(*topics, **settings)
    assert isinstance(world, World)
    return world


# --- what is seen -----------------------------------------------------------------------------------------------------


@simulated
async def test_a_consumer_sees_up_to_the_high_watermark() -> None:
    world = await world_of(REPLICATED)
    for value in (b"a", b"b", b"c"):
        world.append(value)
    assert values(only(world.read())) == []
    world.follower_has(2)
    read = only(world.read())
    assert values(read) == [b"a", b"b"]
    assert (read.high_watermark, read.last_stable_offset, read.log_start_offset, read.error) == (2, 2, 0, 0)
    assert values(only(world.read(offset=1))) == [b"b"]


@simulated
async def test_a_consumer_of_committed_records_stops_before_an_open_transaction() -> None:
    world = await world_of(ALONE)
    world.append(b"a")
    producer = ProducerFields(producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    world.replication.append(world.partition(), world.batch(b"b", producer=producer), acks=1)
    assert values(only(world.read())) == [b"a", b"b"]
    read = only(world.read(isolation_level=READ_COMMITTED))
    assert values(read) == [b"a"] and (read.high_watermark, read.last_stable_offset) == (2, 1)
    client = world.send(fetch(offset=1, max_wait_ms=5_000, isolation_level=READ_COMMITTED))
    world.append(b"c")
    await asyncio.sleep(0.1)
    assert client.replies == []


@simulated
async def test_a_consumer_of_committed_records_is_told_what_was_aborted_among_them() -> None:
    world = await world_of(ALONE)
    log = world.log()
    for sequence in range(2):
        log.append_as_leader(transactional(9, sequence, b"a"), leader_epoch=1, now_ms=NOW_MS)
        end_transaction(log, 9, commits=False, leader_epoch=1)
    world.append(b"b")
    answer = only(world.read(position(), isolation_level=READ_COMMITTED))
    assert answer.aborted == ((9, 0), (9, 2))
    assert only(world.read(position(offset=2), isolation_level=READ_COMMITTED)).aborted == ((9, 2),)
    assert only(world.read(position(max_bytes=1), isolation_level=READ_COMMITTED)).aborted == ((9, 0),)
    assert only(world.read(position())).aborted == ()


@simulated
async def test_a_follower_sees_the_whole_log_and_its_offset_acknowledges() -> None:
    world = await world_of(REPLICATED)
    world.append(b"a")
    world.append(b"b")
    assert values(only(world.follow(0).answer())) == [b"a", b"b"]
    assert world.log().high_watermark == 0
    read = only(world.follow(2).answer())
    assert values(read) == [] and world.log().high_watermark == 2


@simulated
async def test_a_strangers_fetch_moves_nothing() -> None:
    world = await world_of(REPLICATED)
    world.append(b"a")
    former = only(world.follow(1, broker_epoch=55).answer())
    assert former.error == ErrorCode.STALE_BROKER_EPOCH
    other = only(world.send(fetch(position(offset=1, current_leader_epoch=1), replica_id=9, broker_epoch=1)).answer())
    assert other.error == ErrorCode.NOT_LEADER_OR_FOLLOWER and world.log().high_watermark == 0


@simulated
async def test_a_follower_that_means_another_topic_of_the_same_name_is_told_so() -> None:
    world = await world_of(REPLICATED)
    world.append(b"a")
    assert only(world.follow(1, topic_id="id-old").answer()).error == ErrorCode.INCONSISTENT_TOPIC_ID
    assert world.log().high_watermark == 0


@simulated
async def test_a_consumer_that_means_another_topic_of_the_same_name_gets_no_record_of_this_one() -> None:
    world = await world_of(ALONE)
    world.append(b"a")
    refused = only(world.send(fetch(position(topic_id="id-old"))).answer())
    assert refused.error == ErrorCode.INCONSISTENT_TOPIC_ID and not refused.records
    assert only(world.send(fetch(position())).answer()).records, "who names no id asks for none"


@simulated
async def test_a_follower_whose_log_took_another_course_is_told_where() -> None:
    world = await world_of(REPLICATED)
    world.append(b"a")
    world.show(topic("t", partition(1, epoch=2), partition(0)), offset=11)
    world.show(topic("t", partition(0, epoch=5), partition(0)), offset=12)
    world.append(b"b")
    client = world.follow(3, current_leader_epoch=5, last_fetched_epoch=3, max_wait_ms=5_000)
    read = only(client.answer())  # at once, although there is nothing to read
    assert (read.diverging_epoch, read.diverging_end_offset, data(read)) == (1, 1, b"")


# --- errors -----------------------------------------------------------------------------------------------------------


@simulated
async def test_an_error_of_any_partition_is_answered_at_once_beside_the_others() -> None:
    world = await world_of(ALONE, topic("u", partition(1, epoch=7)))
    world.append(b"a", number=1)
    request = fetch(
        position(number=0), position(number=1), position("u"), position("nope"), max_wait_ms=10_000, min_bytes=1 << 20
    )
    response = world.send(request).answer()
    assert isinstance(response, FetchResponse)
    empty, full, elsewhere, unknown = response.partitions
    assert (empty.error, full.error) == (0, 0) and values(full) == [b"a"]
    assert elsewhere.error == ErrorCode.NOT_LEADER_OR_FOLLOWER and elsewhere.message
    assert (elsewhere.leader_id, elsewhere.leader_epoch) == (1, 7)
    assert unknown.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and unknown.leader_id == -1
    client = world.send(fetch(position("nope"), position(number=0), max_wait_ms=10_000, min_bytes=1 << 20))
    assert len(client.replies) == 1


@simulated
async def test_an_offset_out_of_range_comes_with_the_range() -> None:
    world = await world_of(ALONE)
    for _ in range(3):
        world.append(b"a")
    world.partition().leading.delete_records(2)
    for offset in (0, 1, 4, -5):
        read = only(world.send(fetch(position(offset=offset), max_wait_ms=5_000)).answer())
        assert read.error == ErrorCode.OFFSET_OUT_OF_RANGE, offset
        assert (read.log_start_offset, read.high_watermark) == (2, 3) and data(read) == b""
    assert only(world.read(offset=3)).error == 0


@simulated
async def test_another_leader_epoch_is_refused_on_either_side() -> None:
    world = await world_of(topic("t", partition(0, epoch=5, replicas=(0,))))
    for epoch, error in (
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (5, ErrorCode.NONE),
        (-1, ErrorCode.NONE),
    ):
        assert only(world.read(position(current_leader_epoch=epoch))).error == error


@simulated
async def test_a_disk_that_refuses_to_be_read_is_the_error_of_its_partition() -> None:
    world = await world_of(ALONE)
    world.append(b"a")
    world.append(b"b", number=1)
    world.logs.close()
    world.disk.fail_next("read", "/data/t-0/*.log")
    response = world.read(position(number=0), position(number=1))
    assert [item.error for item in response.partitions] in ([0, 0], [ErrorCode.KAFKA_STORAGE_ERROR, 0])


# --- how much ---------------------------------------------------------------------------------------------------------


@simulated
async def test_the_first_batch_comes_whole_however_small_the_limits_are() -> None:
    world = await world_of(ALONE)
    for number in (1, 2):
        world.append(b"x" * 1_000, number=number)
        world.append(b"y", number=number)
    response = world.read(position(), position(number=1, max_bytes=10), position(number=2), max_bytes=10)
    assert [values(item) for item in response.partitions] == [[], [b"x" * 1_000], []]


@simulated
async def test_the_limit_of_the_request_is_spent_in_the_order_of_its_partitions() -> None:
    world = await world_of(ALONE)
    for number in range(3):
        for _ in range(4):
            world.append(b"x" * 1_000, number=number)
    sizes = [len(data(item)) for item in world.read(*map(numbered, range(3)), max_bytes=6_000).partitions]
    assert sum(sizes) <= 6_000 and sizes[0] > 4_000 and 1_000 < sizes[1] < 2_200 and sizes[2] == 0
    limited = world.read(position(number=0, max_bytes=2_500), position(number=1, max_bytes=2_500))
    assert [len(values(item)) for item in limited.partitions] == [2, 2]


def numbered(number: int) -> FetchPartition:
    return position(number=number)


@simulated
async def test_no_answer_is_larger_than_the_brokers_own_limit() -> None:
    world = await world_of(ALONE, fetch_max_bytes="2048")
    for _ in range(5):
        world.append(b"x" * 1_000)
    assert len(values(only(world.read()))) == 1


# --- how long ---------------------------------------------------------------------------------------------------------


@simulated
async def test_a_consumer_waits_for_a_commit() -> None:
    world = await world_of(REPLICATED)
    client = world.send(fetch(max_wait_ms=5_000))
    world.append(b"a")
    await asyncio.sleep(0.1)
    assert client.replies == []
    world.follower_has(1)
    assert values(only(await soon(client))) == [b"a"]


@simulated
async def test_a_follower_waits_for_an_append_and_gets_the_next_one() -> None:
    world = await world_of(REPLICATED)
    client = world.follow(0, max_wait_ms=5_000)
    assert client.replies == []
    producer = Client()
    ProduceHandler(world.services)(produce(world.batch(b"a"), acks=-1), producer, producer.reply)  # type: ignore[arg-type]
    read = only(await soon(client))
    assert values(read) == [b"a"] and producer.replies == []
    world.follow(1, max_wait_ms=5_000)
    await soon(producer)


@simulated
async def test_a_parked_follower_is_not_taken_to_have_caught_up_again_when_it_is_answered() -> None:
    """Its word is as old as its arrival: a batch that was appended since has not been asked for."""
    world = await world_of(REPLICATED)
    world.append(b"a")
    client = world.follow(1, max_wait_ms=5_000)
    world.append(b"b")
    await soon(client)
    assert world.log().high_watermark == 1


@simulated
async def test_a_silent_follower_leaves_the_isr_however_long_its_last_fetch_was_parked() -> None:
    world = await world_of(topic("t", partition(0)))
    world.append(b"a")
    silent = fetch(
        position(offset=1, current_leader_epoch=1),
        replica_id=1,
        broker_epoch=101,
        max_wait_ms=25_000,
        min_bytes=1 << 20,
    )
    client = world.send(silent)
    world.append(b"b")
    await asyncio.sleep(25.001)
    world.replication.expire()
    assert len(client.replies) == 1
    world.append(b"c")
    await asyncio.sleep(6)
    world.replication.check_isr()  # 31 s after the follower's last word; 30 s are allowed
    assert [[member.node_id for member in proposal.isr] for proposal in world.proposed] == [[0]]


@simulated
async def test_min_bytes_is_gathered_over_all_partitions() -> None:
    world = await world_of(ALONE)
    client = world.send(fetch(position(number=0), position(number=1), max_wait_ms=5_000, min_bytes=2_500))
    world.append(b"x" * 1_000)
    world.append(b"x" * 1_000, number=1)
    await asyncio.sleep(0.1)
    assert client.replies == []
    world.append(b"x" * 1_000)
    response = await soon(client)
    assert isinstance(response, FetchResponse)
    assert [len(values(item)) for item in response.partitions] == [2, 1]


@simulated
async def test_time_brings_an_answer_with_what_there_is() -> None:
    world = await world_of(ALONE)
    client = world.send(fetch(max_wait_ms=800, min_bytes=1 << 20))
    world.append(b"a")
    await asyncio.sleep(0.79)
    world.replication.expire()
    assert client.replies == []
    await asyncio.sleep(0.02)
    world.replication.expire()
    assert values(only(client.answer())) == [b"a"] and len(world.replication.purgatory) == 0


@simulated
async def test_who_asks_for_no_wait_or_for_no_partition_is_answered_at_once() -> None:
    world = await world_of(ALONE)
    assert values(only(world.read())) == []
    empty = FetchRequest(max_wait_ms=5_000, min_bytes=1, max_bytes=100, partitions=())
    assert world.send(empty).answer() == FetchResponse(partitions=())
    assert values(only(world.send(fetch(max_wait_ms=5_000, min_bytes=0)).answer())) == []
    assert now_ms() == 0


@simulated
async def test_more_than_one_answer_can_hold_is_not_waited_for() -> None:
    """With min_bytes above max_bytes the answer is full when it is as large as it may be."""
    world = await world_of(ALONE)
    for _ in range(4):
        world.append(b"x" * 1_000)
    client = world.send(fetch(max_wait_ms=5_000, min_bytes=3_500, max_bytes=1_500))
    assert len(values(only(await soon(client)))) == 1


@simulated
async def test_as_many_bytes_as_were_asked_for_wake_whatever_the_size_of_batches() -> None:
    world = await world_of(ALONE)
    client = world.send(fetch(max_wait_ms=5_000, min_bytes=2_500))
    for count in (1, 2):
        world.append(b"x" * 1_000)
        await asyncio.sleep(0.1)
        assert client.replies == [], count
    world.append(b"x" * 1_000)  # 3,210 bytes, and no whole number of batches makes 2,500
    assert len(values(only(await soon(client)))) == 3


@simulated
async def test_a_change_of_leader_wakes_who_waits() -> None:
    world = await world_of(REPLICATED)
    client = world.send(fetch(max_wait_ms=5_000))
    world.show(topic("t", partition(1, epoch=2), partition(0)), offset=11)
    read = only(await soon(client))
    assert read.error == ErrorCode.NOT_LEADER_OR_FOLLOWER and (read.leader_id, read.leader_epoch) == (1, 2)


@simulated
async def test_a_deleted_topic_wakes_who_waits() -> None:
    world = await world_of(REPLICATED)
    client = world.send(fetch(max_wait_ms=5_000))
    world.show(offset=11)
    assert only(await soon(client)).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@simulated
async def test_a_client_that_goes_is_forgotten() -> None:
    world = await world_of(ALONE)
    client = world.send(fetch(max_wait_ms=5_000))
    client.disconnect()
    assert len(world.replication.purgatory) == 0
    world.append(b"a")
    await asyncio.sleep(0.1)
    assert client.replies == []


@simulated
async def test_a_follower_of_a_fenced_broker_may_still_fetch() -> None:
    world = await World.start(REPLICATED, brokers=(broker(0), broker(1, fenced=True)))
    assert isinstance(world, World)
    world.append(b"a")
    assert values(only(world.follow(0).answer())) == [b"a"]


# --- moves ------------------------------------------------------------------------------------------------------------


MOVING = topic("t", replace(partition(0, isr=(0,)), adding_replicas=(1,)))


@simulated
async def test_a_replica_that_is_added_gets_no_more_than_the_throttle_allows_and_does_not_spin() -> None:
    world = await world_of(MOVING, leader_replication_throttled_rate="1000")
    world.append(b"a" * 3_000)
    world.append(b"b")
    assert values(only(world.follow(0, max_wait_ms=0).answer())) != []  # the saved second
    client = world.follow(1, max_wait_ms=500)
    await asyncio.sleep(0.4)
    assert client.replies == []  # there is something to read, yet it is not answered at once
    await asyncio.sleep(0.3)
    world.replication.expire()
    assert values(only(client.answer())) == []
    await asyncio.sleep(3)
    assert values(only(world.follow(1, max_wait_ms=500).answer())) == [b"b"]


@simulated
async def test_a_throttle_holds_up_no_replica_that_is_in_sync() -> None:
    world = await world_of(REPLICATED, leader_replication_throttled_rate="1")
    for value in (b"a" * 1_000, b"b" * 1_000):
        world.append(value)
    assert len(values(only(world.follow(0).answer()))) == 2
    assert values(only(world.follow(2, max_wait_ms=0).answer())) == [] and world.log().high_watermark == 2


@simulated
async def test_a_partition_without_a_replica_here_has_another_leader() -> None:
    """It is known, so it is not unknown: clients ask for the metadata, and no client gives its topic up."""
    world = await world_of(topic("t", partition(1, epoch=7, replicas=(1,))))
    response = world.send(fetch(position("t"))).answer()
    assert only(response).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (only(response).leader_id, only(response).leader_epoch) == (1, 7)
