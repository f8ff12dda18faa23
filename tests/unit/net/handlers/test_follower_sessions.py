"""Fetch sessions of followers at their leader: what is acknowledged, what rests, and what ends a rest."""

import asyncio

import pytest
from msgspec.structs import replace
from unit.net.handlers.handler_world import HandlerWorld, position, values
from unit.net.shell_world import Client, partition, simulated, topic

from barnabas.log.vocabulary.errors import ErrorCode, FetchSessionIdNotFoundError
from barnabas.net.handlers.records.fetch import FetchHandler
from barnabas.net.handlers.records.fetch_sessions import MAX_LOOKS_AGAIN, FetchSession
from barnabas.net.wire.protocol.requests import FetchPartition, FetchRequest
from barnabas.net.wire.protocol.responses import FetchPartitionResponse, FetchResponse

PARTITIONS = 5
BROKER_EPOCH = 101  # of the follower, broker 1
LOOK_AGAIN_S = 7.5  # a quarter of replica.lag.time.max.ms


def followed(count: int = PARTITIONS, **state: object) -> object:
    return topic("t", *[partition(0, **state) for _ in range(count)])  # type: ignore[arg-type]


class World(HandlerWorld):
    """A leader, and a follower that the test plays."""

    handler: FetchHandler
    session_id = 0
    epoch = 0

    def send(self, *positions: FetchPartition, connection: object = None, **options: object) -> Client:
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            partitions=positions,
            replica_id=1,
            broker_epoch=BROKER_EPOCH,
            session_id=self.session_id,
            session_epoch=self.epoch,
        )
        client = Client()
        client.connection = connection or self
        self.handler(replace(request, **options), client, client.reply)  # type: ignore[arg-type]
        self.epoch += 1
        return client

    def ask(self, *positions: FetchPartition, **options: object) -> dict[int, FetchPartitionResponse]:
        """The news, by partition."""
        response = self.send(*positions, **options).answer()
        assert isinstance(response, FetchResponse)
        self.session_id = response.session_id
        return {item.partition: item for item in response.partitions}

    @property
    def session(self) -> FetchSession:
        found = self.handler.follower_sessions.find(self.session_id)
        assert found is not None
        return found


def at(offset: int, number: int, *, epoch: int = 1) -> FetchPartition:
    return position(offset=offset, number=number, current_leader_epoch=epoch)


def everything(offset: int = 0) -> list[FetchPartition]:
    return [at(offset, number) for number in range(PARTITIONS)]


async def world_of(count: int = PARTITIONS, **state: object) -> World:
    world = await World.start(followed(count, **state))  # type: ignore[arg-type]
    assert isinstance(world, World)
    world.handler = FetchHandler(world.services)
    await asyncio.sleep(0.1)  # roles are taken in slices
    return world


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@simulated
async def test_idle_partitions_rest_and_one_that_grows_is_acknowledged_alone() -> None:
    world = await world_of()
    assert sorted(world.ask(*everything())) == list(range(PARTITIONS))
    assert world.session.to_read() == []
    assert world.ask() == {}
    world.append(b"a", number=3)
    await settled()
    found = world.ask()
    assert list(found) == [3] and values(found[3]) == [b"a"] and found[3].high_watermark == 0
    found = world.ask(at(1, 3))
    assert world.partition(number=3).high_watermark == 1, "the fetch is the acknowledgement"
    assert list(found) == [3] and found[3].high_watermark == 1
    assert world.session.to_read() == [] and world.ask() == {}


@simulated
async def test_a_follower_that_waits_is_woken_by_a_partition_that_rests() -> None:
    world = await world_of()
    world.ask(*everything())
    client = world.send(max_wait_ms=60_000)
    await settled()
    assert client.replies == []
    world.append(b"a", number=4)
    await settled()
    found = client.answer()
    assert isinstance(found, FetchResponse) and [item.partition for item in found.partitions] == [4]


@simulated
async def test_what_is_named_is_answered_although_nothing_is_new() -> None:
    """The follower may have dropped the answer before it."""
    world = await world_of()
    world.ask(*everything())
    assert list(world.ask(at(0, 2))) == [2]


@simulated
async def test_a_partition_does_not_rest_while_the_follower_misses_something() -> None:
    world = await world_of()
    world.append(b"a", number=0)
    assert values(world.ask(*everything())[0]) == [b"a"]
    assert [item.partition for item in world.session.to_read()] == [0]
    assert values(world.ask()[0]) == [b"a"], "it has not acknowledged it"
    world.ask(at(1, 0))
    assert world.session.to_read() == []


@simulated
async def test_a_partition_whose_end_is_not_committed_does_not_rest() -> None:
    """A third replica has not fetched it: the follower has yet to learn the high watermark."""
    world = await world_of(replicas=(0, 1, 2))
    world.append(b"a", number=0)
    world.ask(*everything())
    world.ask(at(1, 0))
    assert world.partition().high_watermark == 0
    assert 0 in {item.partition for item in world.session.to_read()}


@simulated
async def test_a_follower_that_is_not_in_sync_is_read_in_each_request_and_returns() -> None:
    world = await world_of(isr=(0,))
    world.ask(*everything())
    assert len(world.session.to_read()) == PARTITIONS
    assert len(world.proposed) == PARTITIONS, "it is proposed for the ISR"


@simulated
async def test_settled_partitions_are_read_and_told_again_after_a_time() -> None:
    world = await world_of()
    world.ask(*everything())
    await asyncio.sleep(LOOK_AGAIN_S - 0.1)
    assert world.ask() == {}
    await asyncio.sleep(0.2)
    assert sorted(world.ask()) == list(range(PARTITIONS))
    replica = world.partition().leading._role.leader_state.followers.replicas[1]  # type: ignore[union-attr]
    assert replica.last_fetch_ms == world.shell.clock.now_ms()
    assert world.session.to_read() == []


@simulated
async def test_many_partitions_are_read_again_in_parts() -> None:
    count = MAX_LOOKS_AGAIN + 7
    world = await world_of(count)
    world.ask(*[at(0, number) for number in range(count)])
    await asyncio.sleep(LOOK_AGAIN_S)
    assert len(world.ask()) == MAX_LOOKS_AGAIN and world.session.has_more_due
    assert len(world.ask()) == 7 and not world.session.has_more_due


@simulated
async def test_the_start_of_the_leaders_log_is_told_in_the_end() -> None:
    world = await world_of()
    world.append(b"a", number=0)
    world.ask(*everything())
    world.ask(at(1, 0))
    world.partition().leading.delete_records(1)
    await asyncio.sleep(LOOK_AGAIN_S)
    assert world.ask()[0].log_start_offset == 1


@simulated
async def test_a_new_leader_epoch_ends_the_rest_with_an_error() -> None:
    world = await world_of()
    world.ask(*everything())
    client = world.send(max_wait_ms=60_000)
    newer = [partition(0, epoch=2), *[partition(0) for _ in range(PARTITIONS - 1)]]
    world.show(topic("t", *newer), offset=11)
    await asyncio.sleep(0.1)
    found = client.answer()
    assert isinstance(found, FetchResponse)
    assert [(item.partition, item.error) for item in found.partitions] == [(0, ErrorCode.FENCED_LEADER_EPOCH)]
    assert world.ask(at(0, 0, epoch=2))[0].error == ErrorCode.NONE


@simulated
async def test_a_follower_that_the_metadata_puts_out_of_the_isr_does_not_rest() -> None:
    """Its broker was fenced for a moment. If the ISR is too small now, nobody can append, so nothing else ends the rest."""
    world = await world_of(1)
    world.ask(at(0, 0))
    assert world.ask() == {} and world.session.to_read() == []
    shrunk = replace(partition(0, isr=(0,)), partition_epoch=2)
    world.show(topic("t", shrunk), offset=11)
    await asyncio.sleep(0.1)
    world.ask()
    assert [proposal.isr[-1].node_id for proposal in world.proposed] == [1], "it is proposed for the ISR at once"


@simulated
async def test_a_throttle_holds_nothing_back_from_a_follower_that_joins_before_the_metadata_shows_it_here() -> None:
    """The follower may know that it is in sync, and does not name the partition again: nothing else would wake it for long."""
    added = replace(partition(0, isr=(0,)), adding_replicas=(1,))
    world = await World.start(topic("t", added, added), leader_replication_throttled_rate="1000")
    assert isinstance(world, World)
    world.handler = FetchHandler(world.services)
    await asyncio.sleep(0.1)
    world.append(b"a" * 9_000, number=1)
    world.ask(at(0, 0), at(0, 1))
    assert [proposal.topic_partition.partition for proposal in world.proposed] == [0]
    client = world.send(max_wait_ms=60_000)
    world.append(b"b", number=0)
    await settled()
    found = client.answer()
    assert isinstance(found, FetchResponse)
    assert [(item.partition, values(item)) for item in found.partitions] == [(0, [b"b"])]


@simulated
async def test_another_incarnation_replica_or_connection_does_not_continue_a_session() -> None:
    world = await world_of()
    world.ask(*everything())
    epoch = world.epoch
    for options in (
        {"broker_epoch": BROKER_EPOCH + 1},
        {"replica_id": 2},
        {"replica_id": -1},
        {"connection": object()},
    ):
        with pytest.raises(FetchSessionIdNotFoundError):
            world.send(session_epoch=epoch, **options)
    world.epoch = epoch
    assert world.ask() == {}


@simulated
async def test_a_consumer_cannot_end_the_session_of_a_follower() -> None:
    world = await world_of()
    world.ask(*everything())
    epoch = world.epoch
    world.send(position(number=0), replica_id=-1, broker_epoch=-1, session_epoch=-1)
    world.send(position(number=0), replica_id=-1, broker_epoch=-1, session_epoch=0)
    world.epoch = epoch
    assert world.ask() == {}


@simulated
async def test_a_follower_has_one_session_at_most() -> None:
    world = await world_of()
    world.ask(*everything())
    world.session_id = world.epoch = 0
    world.ask(*everything(), connection=object())
    assert len(world.handler.follower_sessions) == 1


@simulated
async def test_a_connection_that_is_lost_leaves_nothing() -> None:
    world = await world_of()
    world.ask(*everything())
    client = world.send(max_wait_ms=60_000)
    client.disconnect()
    assert len(world.handler.follower_sessions) == 0
    assert world.replication.purgatory._watches == {}
