"""The shell round the replica machines: effects go where they belong, and who waits is woken once."""

import asyncio

import pytest
from msgspec.structs import replace
from simulation.isr_log import MemoryLog, batch
from unit.net.shell_world import NoEffects, Shell, broker, image_of, partition, simulated, topic, turns

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.requests import PartitionIsrAnswer
from barnabas.log.replication.effects import (
    FlushLog,
    ProposeIsr,
    Resign,
    ResumeFetching,
    StartFetching,
    StopFetching,
    StorageFailed,
)
from barnabas.log.replication.partition import Partition
from barnabas.log.replication.replica_manager import ReplicaManager
from barnabas.log.vocabulary.errors import (
    ErrorCode,
    NotLeaderOrFollowerError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.logs.purgatory import (
    DelayedFetch,
    DelayedProduce,
    Operation,
    Purgatory,
    ReadUpTo,
    StandingWatch,
)
from barnabas.net.logs.replication_service import ReplicationService

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
LAG_MS = 1_000
EPOCH = 100  # of our registration


class Logs:
    def __init__(self) -> None:
        self.logs: dict[TopicPartition, MemoryLog] = {}
        self.refused: set[TopicPartition] = set()

    def create_log(self, topic_partition: TopicPartition, topic_id: str, *, is_new: bool) -> MemoryLog:
        if topic_partition in self.refused:
            raise StorageError("disk is gone")
        return self.logs.setdefault(topic_partition, MemoryLog(topic_partition, topic_id))

    def get(self, topic_partition: TopicPartition) -> MemoryLog | None:
        return self.logs.get(topic_partition)

    def delete(self, topic_partition: TopicPartition) -> None:
        del self.logs[topic_partition]

    def forget(self, topic_partition: TopicPartition) -> None:
        """Nothing is kept of what could not be opened."""


class CountingPurgatory(Purgatory):
    """Notes which partitions are looked at."""

    def __init__(self, manager: ReplicaManager) -> None:
        super().__init__(manager.partition)
        self.checked: list[TopicPartition] = []

    def check(self, topic_partition: TopicPartition) -> list[Operation]:
        self.checked.append(topic_partition)
        return super().check(topic_partition)


class _Effects(NoEffects):
    """Notes them in the world."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def propose(self, proposals: list[ProposeIsr]) -> None:
        self._world.proposed.append(proposals)

    def start_fetching(self, effect: StartFetching) -> None:
        self._world.fetching.append(effect)

    def stop_fetching(self, effect: StopFetching) -> None:
        self._world.fetching.append(effect)

    def resume_fetching(self, effect: ResumeFetching) -> None:
        self._world.fetching.append(effect)

    def storage_failed(self, effect: StorageFailed) -> None:
        self._world.failed.append(effect)

    def flush(self, effect: FlushLog) -> None:
        self._world.flushing.append(effect)

    def resign(self, effect: Resign) -> None:
        self._world.resigning.append(effect)

    def took_up(self, image: MetadataImage) -> None:
        self._world.taken_up.append(image)

    def made_ready(self, topic_partition: TopicPartition, topic_id: str) -> "asyncio.Future[None] | None":
        return self._world.loading

    def progressed(self) -> None:
        self._world.offsets.append(self._world.service.taken_up_offset)


class World:
    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.logs = Logs()
        self.proposed: list[list[ProposeIsr]] = []
        self.fetching: list[StartFetching | StopFetching | ResumeFetching] = []
        self.failed: list[StorageFailed] = []
        self.done: list[Operation] = []
        self.flushing: list[FlushLog] = []
        self.resigning: list[Resign] = []
        self.taken_up: list[MetadataImage] = []
        self.offsets: list[int] = []  # that are taken up, when requests that wait for them are woken
        self.loading: asyncio.Future[None] | None = None  # of logs, before their partitions have roles
        self.manager = ReplicaManager(0, self.logs, replica_lag_time_max_ms=LAG_MS)
        self.service = ReplicationService(
            node_id=0,
            manager=self.manager,
            clock=shell.clock,
            effects=_Effects(self),
        )
        self.service.purgatory = self.purgatory = CountingPurgatory(self.manager)
        shell.metadata.subscribe(self.service.published)

    @classmethod
    async def start(cls, image: MetadataImage | None = None) -> "World":
        """A registered broker that has taken up `image`."""
        world = cls(await Shell.start())
        if image is not None:
            world.service.registered(EPOCH)
            world.shell.source.publish(image)
            await turns()
            world.purgatory.checked.clear()
        return world

    def publish(self, image: MetadataImage) -> None:
        self.shell.source.publish(image)

    def at(self, topic_partition: TopicPartition = TP) -> Partition:
        return self.manager.partition(topic_partition)

    def append(self, *values: tuple[int, int], to: TopicPartition = TP, acks: int = -1) -> int:
        return self.service.append(self.at(to), batch(*values), acks=acks)[1]

    def produce(self, required_offset: int, *, tp: TopicPartition = TP, timeout_ms: int = 5_000) -> DelayedProduce:
        operation = DelayedProduce(token=self.done.append, client="c", timeout_ms=timeout_ms)
        operation.wait_for(tp, required_offset=required_offset, leadership=self.at(tp).leadership)
        self.service.park(operation)
        return operation

    def fetch(self, offset: int, *, client: str = "c", timeout_ms: int = 5_000) -> DelayedFetch:
        operation = DelayedFetch(
            token=self.done.append,
            client=client,
            timeout_ms=timeout_ms,
            min_bytes=1,
            read_up_to=ReadUpTo.LOG_END,
            offsets={TP: (offset, self.at().leader_epoch)},
        )
        self.service.park(operation)
        return operation

    def follower_has(self, offset: int, *, tp: TopicPartition = TP, node_id: int = 1) -> None:
        _, effects = self.at(tp).leading.read_for_follower(
            node_id,
            broker_epoch=100 + node_id,
            offset=offset,
            max_bytes=1,
            current_leader_epoch=self.at(tp).leader_epoch,
            last_fetched_epoch=-1,
            now_ms=self.shell.clock.now_ms(),
        )
        self.service.perform(effects)


def cluster(*topics: object, epoch: int = EPOCH, offset: int = 10) -> MetadataImage:
    return image_of(broker(0, epoch=epoch), broker(1), topics=topics, offset=offset)  # type: ignore[arg-type]


LEADING = cluster(topic("t", partition(0), partition(0)))
FOLLOWING = cluster(topic("t", partition(1), partition(1)))


# --- effects and waking -----------------------------------------------------------------------------------------------


@simulated
async def test_an_acknowledgement_waits_for_the_follower_and_leaves_in_the_same_turn() -> None:
    world = await World.start(LEADING)
    required = world.append((1, 1))
    operation = world.produce(required)
    await turns()
    assert world.done == []
    world.follower_has(1)
    assert world.done == []  # not within the follower's own request: others of this turn may come along
    await turns(1)
    assert world.done == [operation] and operation.errors == {TP: ErrorCode.NONE}


@simulated
async def test_many_appends_of_one_turn_are_looked_at_once() -> None:
    world = await World.start(LEADING)
    follower = world.fetch(0)
    for number in range(20):
        world.append((1, number))
    world.append((1, 1), to=OTHER)
    assert world.done == [] and world.purgatory.checked == []
    await turns()
    assert world.purgatory.checked == [TP, OTHER] and world.done == [follower]
    world.append((1, 21))
    await turns()
    assert world.purgatory.checked == [TP, OTHER, TP]


@simulated
async def test_another_isr_in_the_same_leader_epoch_is_looked_at_by_both_sides_and_other_partitions_are_not() -> None:
    """A follower that is not in sync any more must not fetch while its disk hangs, and its leader must read what it fetches."""
    for number, world in ((0, await World.start(LEADING)), (1, await World.start(FOLLOWING))):
        world.purgatory.watch(StandingWatch(), TP, 0)
        world.fetching.clear()
        shrunk = replace(partition(number, isr=(number,)), partition_epoch=2)
        world.publish(cluster(topic("t", shrunk, partition(number)), offset=11))
        await turns()
        assert world.purgatory.checked == [TP]
        assert [it for it in world.fetching if type(it) is ResumeFetching] == [ResumeFetching(topic_partition=TP)]


@simulated
async def test_a_repeated_batch_wakes_nobody() -> None:
    world = await World.start(LEADING)
    world.append((1, 1))
    await turns()
    world.purgatory.checked.clear()
    assert world.append((1, 1)) == 1
    await turns()
    assert world.purgatory.checked == []


@simulated
async def test_what_is_complete_already_is_answered_without_parking() -> None:
    world = await World.start(cluster(topic("t", partition(0, replicas=(0,)))))
    operation = world.produce(world.append((1, 1)))
    assert world.done == [operation] and len(world.purgatory) == 0


@simulated
async def test_time_runs_out_for_who_waits() -> None:
    world = await World.start(LEADING)
    late = world.produce(world.append((1, 1)), timeout_ms=300)
    fetch = world.fetch(1, timeout_ms=800)
    assert world.service.expire() == 300
    await asyncio.sleep(0.301)
    assert world.service.expire() == 800
    assert world.done == [late] and late.errors == {TP: ErrorCode.REQUEST_TIMED_OUT}
    await asyncio.sleep(0.5)
    assert world.service.expire() is None
    assert world.done == [late, fetch]


@simulated
async def test_a_client_that_is_gone_hears_nothing() -> None:
    world = await World.start(LEADING)
    gone, stays = world.fetch(0, client="gone"), world.fetch(0, client="stays")
    world.service.forget_client("gone")
    world.append((1, 1))
    await turns()
    assert world.done == [stays] and gone not in world.done


# --- metadata ---------------------------------------------------------------------------------------------------------


@simulated
async def test_metadata_from_before_our_own_registration_gives_no_role() -> None:
    world = await World.start()
    world.publish(cluster(topic("t", partition(0)), epoch=50))
    world.service.registered(EPOCH)
    world.publish(cluster(topic("t", partition(0)), epoch=50, offset=11))
    with pytest.raises(UnknownTopicOrPartitionError):
        world.at()
    assert world.service.leader_hint(TP) == (-1, -1) and world.taken_up == [] and not world.service.is_current
    world.publish(cluster(topic("t", partition(0, epoch=2)), offset=12))
    assert world.at().role.is_leader and world.service.leader_hint(TP) == (0, 2)


@simulated
async def test_the_first_metadata_after_the_registration_is_taken_up_as_a_whole() -> None:
    world = await World.start()
    world.publish(cluster(topic("t", partition(0)), topic("u", partition(1)), epoch=50))
    world.service.registered(EPOCH)
    # Neither topic is among the changes of this publication: only our own registration is.
    world.publish(cluster(topic("t", partition(0)), topic("u", partition(1)), offset=12))
    assert world.at().role.is_leader and world.at(TopicPartition("u", 0)).role.is_follower
    assert world.fetching == [StartFetching(topic_partition=TopicPartition("u", 0), leader=1, leader_epoch=1)]
    assert [image.offset for image in world.taken_up] == [12] and world.service.is_current


@pytest.mark.parametrize("is_of_groups", [False, True])
@simulated
async def test_metadata_from_before_a_new_registration_is_put_away_whatever_they_are_about(is_of_groups: bool) -> None:
    """The broker lost its registration. In a busy cluster, the newest publication before the new one is about groups alone."""
    first = cluster(topic("t", partition(0)))
    world = await World.start(first)
    world.publish(replace(first, offset=11) if is_of_groups else cluster(topic("t", partition(0, epoch=2)), offset=11))
    assert [image.offset for image in world.taken_up] == [10]
    world.service.registered(200)
    assert world.service.leader_hint(TP) == (-1, -1) and not world.service.is_current
    world.publish(cluster(topic("t", partition(0, epoch=2)), epoch=200, offset=12))
    assert [image.offset for image in world.taken_up] == [10, 12], (
        "what the controller knows of the disks may be outdated"
    )
    assert world.service.is_current and world.at().role.is_leader


@simulated
async def test_what_changed_while_a_new_registration_was_under_way_is_made_up_for() -> None:
    world = await World.start(cluster(topic("t", partition(0)), topic("u", partition(0)), topic("gone", partition(0))))
    again = {"epoch": 200}
    world.publish(cluster(topic("t", partition(0)), topic("u", partition(0)), topic("gone", partition(0)), **again))
    world.publish(cluster(topic("t", partition(1, epoch=5)), topic("u", partition(1, replicas=(1,))), **again))
    assert world.at().role.is_leader  # the registration has not been told yet
    world.service.registered(200)
    world.publish(
        cluster(topic("t", partition(1, epoch=5)), topic("u", partition(1, replicas=(1,))), offset=13, **again)
    )
    assert world.at().role.is_follower and world.at().leader_epoch == 5
    for name in ("u", "gone"):
        with pytest.raises(UnknownTopicOrPartitionError):
            world.at(TopicPartition(name, 0))
    assert list(world.logs.logs) == [TP]


@simulated
async def test_losing_the_leadership_is_told_to_who_waits() -> None:
    world = await World.start(LEADING)
    operation = world.produce(world.append((1, 1)))
    world.publish(cluster(topic("t", partition(1, epoch=2), partition(0)), offset=11))
    await turns()
    assert operation.errors == {TP: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert world.fetching == [StartFetching(topic_partition=TP, leader=1, leader_epoch=2)]
    assert world.service.leader_hint(TP) == (1, 2) and world.service.leader_hint(TopicPartition("x", 0)) == (-1, -1)


@simulated
async def test_a_deleted_topic_goes_with_its_log_and_its_fetchers() -> None:
    world = await World.start(FOLLOWING)
    world.publish(cluster(offset=11))
    assert world.logs.logs == {}
    stopped = [effect.topic_partition for effect in world.fetching if isinstance(effect, StopFetching)]
    assert stopped == [TP, OTHER]


@simulated
async def test_a_topic_made_again_in_one_publication_begins_empty() -> None:
    world = await World.start(LEADING)
    operation = world.produce(world.append((1, 1)))
    world.publish(cluster(topic("t", partition(0), topic_id="id-new"), offset=11))
    await turns()
    assert world.at().topic_id == "id-new" and world.at().log_end_offset == 0
    # Both partitions are led in epoch 1: the new one's first record must not acknowledge the batch of the old one.
    assert world.done == [operation] and operation.errors[TP] != ErrorCode.NONE
    assert list(world.logs.logs) == [TP]


@simulated
async def test_a_replica_that_moved_away_is_given_up() -> None:
    world = await World.start(LEADING)
    world.publish(cluster(topic("t", partition(1, epoch=2, replicas=(1, 2)), partition(0)), offset=11))
    with pytest.raises(UnknownTopicOrPartitionError):
        world.at()
    assert list(world.logs.logs) == [OTHER]


@simulated
async def test_topics_that_do_not_change_are_left_alone() -> None:
    world = await World.start(LEADING)
    before = world.at()
    world.publish(cluster(topic("t", partition(0), partition(0)), topic("u", partition(1)), offset=11))
    assert world.at() is before and before.leader_epoch == 1
    assert [effect.topic_partition.topic for effect in world.fetching] == ["u"]


# --- the ISR and storage ----------------------------------------------------------------------------------------------


@simulated
async def test_a_lagging_follower_is_proposed_out_and_the_answer_releases_who_waits() -> None:
    world = await World.start(LEADING)
    operation = world.produce(world.append((1, 1)))
    await asyncio.sleep(2 * LAG_MS / 1000)
    world.service.check_isr()
    (proposals,) = world.proposed
    proposal = next(item for item in proposals if item.topic_partition == TP)
    assert [member.node_id for member in proposal.isr] == [0]
    world.service.isr_answered(proposal, None)
    await turns()
    assert world.done == []  # unknown: the follower may still be in the committed ISR
    agreed = PartitionIsrAnswer(
        topic_id="id-t", partition=0, error=0, leader=0, leader_epoch=1, partition_epoch=2, isr=(0,)
    )
    world.service.isr_answered(proposal, agreed)
    await turns()
    assert world.done == [operation] and world.at().role.partition_epoch == 2


@simulated
async def test_proposals_of_several_partitions_leave_together() -> None:
    world = await World.start(LEADING)
    world.append((1, 1))
    world.append((1, 1), to=OTHER)
    await asyncio.sleep(2 * LAG_MS / 1000)
    world.service.check_isr()
    assert [[item.topic_partition for item in together] for together in world.proposed] == [[TP, OTHER]]


@simulated
async def test_a_log_that_fails_is_reported_once_and_ends_its_leadership() -> None:
    world = await World.start(LEADING)
    operation = world.produce(world.append((1, 1)))
    log = world.logs.logs[TP]
    log.fail_next, log.failed = StorageError("EIO"), True
    with pytest.raises(StorageError):
        world.append((1, 2))
    world.service.check_isr()
    world.service.check_isr()
    assert world.failed == [StorageFailed(topic_partition=TP, message="EIO", was_in_use=True)]
    await turns()
    assert operation.errors == {TP: ErrorCode.KAFKA_STORAGE_ERROR}
    assert world.at(OTHER).role.is_leader


@simulated
async def test_a_log_that_cannot_be_opened_is_reported_and_stops_no_other() -> None:
    world = await World.start()
    world.logs.refused.add(TP)
    world.service.registered(EPOCH)
    world.publish(LEADING)
    assert world.failed == [StorageFailed(topic_partition=TP, message="disk is gone")]
    assert world.at(OTHER).role.is_leader


@simulated
async def test_stopping_tells_everybody_who_waits_at_once() -> None:
    world = await World.start(LEADING)
    produce, fetch = world.produce(world.append((1, 1))), world.fetch(1)
    world.service.stop()
    assert world.done == [produce, fetch]
    assert produce.errors == {TP: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    with pytest.raises(NotLeaderOrFollowerError):
        world.at()


@simulated
async def test_a_broker_that_stops_takes_no_role_that_metadata_gives_it_meanwhile() -> None:
    """It fetched and appended while its logs were being closed, and marked as clean."""
    brokers = broker(0), broker(1)
    world = await World.start(image_of(*brokers, topics=[topic("t", partition(0))]))
    world.service.stop()
    world.fetching.clear()
    world.publish(image_of(*brokers, topics=[topic("t", partition(1, epoch=2))], offset=11))
    await turns()
    assert world.fetching == []


@simulated
async def test_metadata_about_groups_alone_is_taken_up_without_a_look_at_each_partition() -> None:
    """Thousands of partitions, and hundreds of commits of offsets and transactions a second."""
    world = await World.start(image_of(broker(0), broker(1), topics=[topic("t", partition(0))]))
    looks = list[int]()
    genuine = world.manager.storage_failures
    world.manager.storage_failures = lambda: looks.append(1) or genuine()  # type: ignore[method-assign,func-returns-value]
    before = world.shell.source.image
    world.publish(replace(before, offset=before.offset + 1))
    await turns()
    assert world.service.taken_up_offset == before.offset + 1
    assert not looks
    assert world.offsets[-1] == before.offset + 1, "requests that wait for this offset go on"
    world.publish(image_of(broker(0), broker(1), topics=[topic("t", partition(1, epoch=2))], offset=before.offset + 2))
    await turns()
    assert world.service.taken_up_offset == before.offset + 2
    assert looks and not world.at(TP).role.is_leader


@simulated
async def test_metadata_about_groups_alone_does_not_overtake_roles_that_wait_for_their_logs() -> None:
    world = await World.start(cluster(topic("t", partition(0)), topic("gone", partition(0)), offset=10))
    world.loading = asyncio.get_running_loop().create_future()
    world.publish(cluster(topic("t", partition(0)), topic("u", partition(0)), topic("v", partition(0)), offset=11))
    world.publish(replace(world.shell.source.image, offset=12))
    await turns()
    assert (world.service.taken_up_offset, world.offsets) == (10, [10])
    world.loading.set_result(None)
    await turns()
    assert world.at(TopicPartition("u", 0)).role.is_leader and world.at(TopicPartition("v", 0)).role.is_leader
    assert (world.service.taken_up_offset, world.offsets) == (12, [10, 11, 12])


@simulated
async def test_a_topic_that_follows_metadata_about_groups_alone_is_compared_with_the_newest_image() -> None:
    world = await World.start(cluster(topic("t", partition(0)), topic("gone", partition(0)), offset=10))
    world.publish(replace(world.shell.source.image, offset=11))
    assert world.service._image is world.shell.source.image
    world.publish(cluster(topic("t", partition(0)), offset=12))
    await turns()
    with pytest.raises(UnknownTopicOrPartitionError):
        world.at(TopicPartition("gone", 0))
