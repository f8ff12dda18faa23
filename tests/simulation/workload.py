"""Clients of the simulated cluster: producers, consumers, group members, an administrator. All of them speak raw requests.

They report what they were told to the `ClientChecker`, and never die: their machines are outside of the fault schedule.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random
from typing import Any

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.log.format.record_batch import iter_headers, read_header
from barnabas.log.format.record_codec import NOT_IDEMPOTENT, encode_batch
from barnabas.log.vocabulary.cluster_changes import (
    AddPartitionsRequest,
    AlterConfigRequest,
    AssignReplicasRequest,
    ConfigEntryChange,
    ElectLeaderRequest,
)
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode, NetworkError, error_for
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest, OffsetToCommit, TopicPartitions
from barnabas.net.testing.simulation.cluster import CLIENT_PORT, SimulatedCluster, rack_of
from barnabas.net.wire.protocol.requests import (
    CreateTopicRequest,
    DeleteTopicRequest,
    FetchPartition,
    FetchRequest,
    FindCoordinatorRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProducePartition,
    ProduceRequest,
)
from barnabas.net.wire.protocol.responses import MetadataResponse
from barnabas.net.wire.rpc import RpcPool

from .checkers.clients import ClientChecker
from .checkers.compacted import CompactedChecker
from .checkers.violation import Violation
from .numbered import OUT_OF_SEQUENCE, Numbered

Partition = tuple[str, int]
PHOENIX = "phoenix"  # is deleted and made again under its name
LATEST_VALUES = "latest-values"  # is compacted
KEYS = tuple(b"key-%d" % number for number in range(12))
SHORT = "short"  # loses its oldest records to retention and to DeleteRecords
MOST_OPERATIONS = 8  # of administrators at the same time
LATEST = -1
REFUSED_COMMITS = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.NOT_COORDINATOR,
    }
)
LOST_MEMBERSHIP = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNRELEASED_INSTANCE_ID}
)


class Client:
    """A connection to the cluster that finds leaders and coordinators."""

    def __init__(self, cluster: SimulatedCluster, name: str, rng: Random) -> None:
        self.name = name
        self.rng = rng
        self.loop = cluster.loop
        self.node_count = len(cluster.nodes)
        cluster.client_names.append(name)
        self.pool = RpcPool(cluster.world.node(name), client_id=name, random=rng, connect_timeout_ms=400)
        self.numbered: Numbered | None = None  # of an idempotent producer
        self.leaders: dict[Partition, tuple[int, int]] = {}  # leader epoch, leader; the epoch never goes back
        self.sent_to: dict[Partition, tuple[int, int]] = {}  # leader epoch, and the replica to read from in it

    async def ask(self, node_id: int, request: Any, *, timeout_ms: int = 1_000) -> Any:
        async with asyncio.timeout(timeout_ms / 1000 + 0.5):
            connection = await self.pool.get(f"node-{node_id}", CLIENT_PORT)
            return await connection.call(request, timeout_ms=timeout_ms)

    async def tell(self, node_id: int, request: Any) -> None:
        """Without an answer."""
        async with asyncio.timeout(1.5):
            connection = await self.pool.get(f"node-{node_id}", CLIENT_PORT)
            connection.send_oneway(request)

    async def ask_anyone(self, request: Any, *, timeout_ms: int = 1_000) -> Any:
        return await self.ask(self.rng.randrange(self.node_count), request, timeout_ms=timeout_ms)

    async def refresh(self) -> MetadataResponse:
        answer: MetadataResponse = await self.ask_anyone(MetadataRequest())
        for topic in answer.topics:
            for number, partition in enumerate(topic.partitions):
                known = self.leaders.get((topic.name, number), (-1, -1))
                if partition.leader_epoch >= known[0]:
                    self.leaders[topic.name, number] = (partition.leader_epoch, partition.leader)
        return answer

    async def leader_of(self, partition: Partition) -> tuple[int, int]:
        epoch, leader = self.leaders.get(partition, (-1, -1))
        if leader < 0:
            await self.refresh()
            epoch, leader = self.leaders.get(partition, (-1, -1))
            if leader < 0:
                raise NetworkError("no leader yet")
        return epoch, leader

    def forget_leader(self, partition: Partition) -> None:
        self.sent_to.pop(partition, None)
        epoch, _ = self.leaders.get(partition, (-1, -1))
        self.leaders[partition] = (epoch, -1)

    async def pause(self, low_s: float, high_s: float) -> None:
        await asyncio.sleep(self.rng.uniform(low_s, high_s))

    async def close(self) -> None:
        await self.pool.close()


class Workload:
    """Starts and stops the clients. `topics` live as long as the simulation; names with "scratch" come and go."""

    def __init__(self, cluster: SimulatedCluster, checker: ClientChecker, rng: Random) -> None:
        self.cluster = cluster
        self.checker = checker
        self.compacted = CompactedChecker()
        self.rng = rng
        self.partitions: list[Partition] = []  # of topics that live on, which groups read, too
        self.extras: list[Partition] = []  # of topics that special faults need, or settings
        self.acks: tuple[int, ...] = (-1, -1, -1, 1)
        self.racks: Random | None = None  # draws where consumers read, if brokers have racks
        self.ends: dict[Partition, int] = {}  # a little below the high watermark
        self.groups: list[str] = []
        self.clients: list[Client] = []
        self.members: list[GroupMember] = []
        self.counts = {"acked": 0, "refused": 0, "read": 0, "commits": 0, "admin": 0, "failed": 0, "duplicates": 0}
        self.counts |= {"sent_away": 0, "read_from_followers": 0}
        self.is_over = False
        self._values = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._operations: list[asyncio.Task[None]] = []
        self._operators: list[Client] = []

    def client(self, name: str) -> Client:
        client = Client(self.cluster, name, Random(self.rng.getrandbits(64)))
        self.clients.append(client)
        return client

    async def create_topics(self, topics: dict[str, tuple[int, int, dict[str, str]]]) -> None:
        client = self.client("creator")
        for name, (partitions, replicas, configs) in topics.items():
            await self._until_done(client, lambda n=name, p=partitions, r=replicas, c=configs: client.ask_anyone(  # type: ignore[misc]
                CreateTopicRequest(name=n, partition_count=p, replication_factor=r, configs=c), timeout_ms=3_000
            ))  # fmt: skip
            self.partitions += [(name, number) for number in range(partitions)]
        await self._learn_ids(client, topics)

    async def create_extras(self, topics: dict[str, tuple[int, int, dict[str, str]]]) -> None:
        """As above, for topics that groups do not read."""
        known = list(self.partitions)
        await self.create_topics(topics)
        self.extras = [partition for partition in self.partitions if partition not in known]
        self.partitions = known

    def learn_partitions(self, image: MetadataImage) -> None:
        """Of topics that have grown. What an administrator was not answered may have been done all the same."""
        names = {topic for topic, _ in self.partitions}
        for name in sorted(names & image.topics.keys()):
            keys = [(name, number) for number in range(len(image.topics[name].partitions))]
            self.partitions += [key for key in keys if key not in self.partitions]

    async def _learn_ids(self, client: "Client", topics: Iterable[str]) -> None:
        while not all(topic in self.checker.topic_ids for topic in topics):
            try:
                for topic in (await client.refresh()).topics:
                    self.checker.topic_ids[topic.name] = topic.topic_id
            except (BarnabasError, TimeoutError):
                await client.pause(0.02, 0.05)

    async def _until_done(self, client: Client, work: Callable[[], Awaitable[Any]]) -> None:
        while True:
            try:
                await work()
                return
            except BarnabasError as error:
                if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                    return
                await client.pause(0.02, 0.1)
            except TimeoutError:
                pass

    def start(self, *, producers: int, consumers: int, members: int, groups: Sequence[str], admin: bool) -> None:
        self.groups = list(groups)
        for number in range(producers):
            producer = self.client(f"producer-{number}")
            producer.numbered = Numbered(number) if number % 2 else None
            self.run(self._produce(producer))
        for number in range(consumers):
            self.run(self._consume(self.client(f"consumer-{number}")))
        for number in range(members):
            member = GroupMember(self, self.client(f"member-{number}"), groups[number % len(groups)], number)
            self.members.append(member)
            self.run(member.run())
        if admin:
            self.run(self._administrate(self.client("admin")))

    def run(self, work: Any) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    def operate(self, *requests: Any) -> None:
        """An administrator asks for these one after the other, of anybody, and gives up at the first that fails."""
        self._operate(None, requests)

    def operate_at(self, node_id: int, *requests: Any) -> None:
        self._operate(node_id, requests)

    def _operate(self, node_id: int | None, requests: Sequence[Any]) -> None:
        self._operations = [task for task in self._operations if not task.done()]
        if len(self._operations) >= MOST_OPERATIONS or self.is_over:
            return
        if not self._operators:
            self._operators = [self.client("operator")]
        client = self._operators[0]

        async def ask() -> None:
            try:
                for request in requests:
                    target = client.rng.randrange(client.node_count) if node_id is None else node_id
                    await client.ask(target, request, timeout_ms=2_000)
                    self.counts["admin"] += 1
            except (BarnabasError, TimeoutError):
                pass

        self._operations.append(asyncio.get_running_loop().create_task(ask()))

    def check_tasks(self) -> None:
        """An unexpected error of a client, hence a bug, ends the simulation."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def stop(self) -> None:
        self.is_over = True
        tasks = [*self._tasks, *self._operations]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self.clients:
            await client.close()

    # --- producing ----------------------------------------------------------------------------------------------------

    async def _produce(self, client: Client) -> None:
        while True:
            await client.pause(0.001, 0.06)
            acks = client.rng.choice(self.acks)
            await self.produce(client, client.rng.choice(self.partitions + self.extras), acks)

    async def produce(self, client: Client, partition: Partition, acks: int, *, timeout_ms: int = 800) -> bool:
        """One attempt; each batch has values of its own. Idempotent producers send one again until it is acknowledged, with
        acks=all; the others never send the same batch twice."""
        keys, values = self._draw_records(client.rng, is_keyed=partition[0] == LATEST_VALUES)
        numbered = client.numbered if acks == -1 and keys is None else None
        fields = NOT_IDEMPOTENT if numbered is None else numbered.next(partition)
        fresh = encode_batch(values, keys=keys, timestamps_ms=1_700_000_000_000 + self._values, producer=fields)
        batch = bytearray(fresh if numbered is None else numbered.pending.setdefault(partition, fresh))
        crc = read_header(batch).crc
        request = ProduceRequest(
            acks=acks,
            timeout_ms=timeout_ms,
            partitions=(ProducePartition(topic=partition[0], partition=partition[1], records=batch),),
        )
        try:
            _, leader = await client.leader_of(partition)
            if acks == 0:
                await client.tell(leader, request)
                return True
            answer = (await client.ask(leader, request, timeout_ms=timeout_ms)).partitions[0]
        except (BarnabasError, TimeoutError):
            self.counts["failed"] += 1
            client.forget_leader(partition)
            return False
        if answer.error:
            self.counts["refused"] += 1
            if numbered is not None and answer.error in OUT_OF_SEQUENCE:
                numbered.begin_anew()
            client.forget_leader(partition)
            await client.pause(0.01, 0.05)
            return False
        self.counts["acked"] += 1
        if numbered is not None:
            self.counts["duplicates"] += fresh != bytes(batch)  # sent once more, until it was acknowledged
            numbered.written(partition, read_header(batch).record_count)
        client.loop.note(f"{client.name} acked {partition} acks={acks} offset={answer.base_offset}")
        self.ends[partition] = max(self.ends.get(partition, 0), answer.base_offset if acks == -1 else 0)
        if acks == -1 and keys is not None:
            self.compacted.acked_by_all(partition, answer.base_offset, keys, values)
        elif acks == -1:
            self.checker.acked_by_all(*partition, answer.base_offset, crc)
        else:
            self.checker.acknowledged_by_leader += 1
        return True

    def _draw_records(self, rng: Random, *, is_keyed: bool) -> tuple[list[bytes] | None, list[bytes | None]]:
        values: list[bytes | None] = []
        for _ in range(rng.randint(1, 3)):
            self._values += 1
            values.append(b"%d:%s" % (self._values, b"x" * rng.choice((5, 50, 400))))
        if not is_keyed:
            return None, values
        return [rng.choice(KEYS) for _ in values], [None if rng.random() < 0.1 else value for value in values]

    # --- consuming ----------------------------------------------------------------------------------------------------

    async def _consume(self, client: Client) -> None:
        positions = dict.fromkeys(self.partitions, 0)
        while True:
            partition = client.rng.choice(self.partitions + self.extras)
            try:
                if partition[0] == LATEST_VALUES:  # what a replica still has of it is its own affair
                    await client.pause(0.0, 0.03)
                elif client.rng.random() < 0.2:
                    await self._ask_end(client, partition)
                else:
                    await self._fetch(client, partition, positions)
            except (BarnabasError, TimeoutError):
                client.forget_leader(partition)
                await client.pause(0.01, 0.05)
            if client.rng.random() < 0.02:
                positions = dict.fromkeys(self.partitions, 0)  # read everything again
            await client.pause(0.0, 0.03)

    async def _fetch(self, client: Client, partition: Partition, positions: dict[Partition, int]) -> None:
        epoch, leader = await client.leader_of(partition)
        source, rack = self._source(client, partition, epoch, leader)
        item = FetchPartition(
            topic=partition[0],
            partition=partition[1],
            fetch_offset=positions.setdefault(partition, 0),
            max_bytes=1 << 16,
            current_leader_epoch=epoch,
        )
        request = FetchRequest(
            max_wait_ms=client.rng.choice((0, 50)),
            min_bytes=1,
            max_bytes=1 << 20,
            partitions=(item,),
            rack=rack,
            may_be_sent_away=bool(rack),
        )
        answer = (await client.ask(source, request)).partitions[0]
        if answer.preferred_read_replica >= 0:
            client.sent_to[partition] = (epoch, answer.preferred_read_replica)
            self.counts["sent_away"] += 1
            return
        if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            if partition[0] in (SHORT, PHOENIX):  # what was there is gone
                positions[partition] = max(answer.log_start_offset, 0)
                return
            raise Violation(f"{client.name} is out of range at {positions[partition]} of {partition}: {answer}")
        if answer.error:
            raise error_for(answer.error, answer.message)
        records = (
            answer.records if isinstance(answer.records, (bytes, bytearray, memoryview)) else answer.records.read()
        )
        for header in iter_headers(records, verify_crc=True):
            if header.base_offset > positions[partition]:
                self.checker.passed_over(*partition, positions[partition], header.base_offset)
            self.checker.read(*partition, header.base_offset, header.crc)
            positions[partition] = max(positions[partition], header.next_offset)
            self.counts["read"] += 1
            self.counts["read_from_followers"] += source != leader

    def _source(self, client: Client, partition: Partition, epoch: int, leader: int) -> tuple[int, str]:
        """The broker to read from, and the rack to name. Some readers go to any broker without being sent there."""
        if self.racks is None:
            return leader, ""
        rack = rack_of(int(client.name.rpartition("-")[2]) % client.node_count)
        if self.racks.random() < 0.1:
            return self.racks.randrange(client.node_count), rack
        sent_in, replica = client.sent_to.get(partition, (-1, -1))
        return (replica, rack) if sent_in == epoch else (leader, rack)

    async def _ask_end(self, client: Client, partition: Partition) -> None:
        epoch, leader = await client.leader_of(partition)
        item = ListOffsetsPartition(
            topic=partition[0], partition=partition[1], timestamp_ms=LATEST, current_leader_epoch=epoch
        )
        answer = (await client.ask(leader, ListOffsetsRequest(partitions=(item,)))).partitions[0]
        if answer.error:
            raise error_for(answer.error, answer.message)
        self.checker.told_end(client.name, *partition, answer.offset)

    # --- administration -----------------------------------------------------------------------------------------------

    async def _administrate(self, client: Client) -> None:
        while True:
            await client.pause(0.05, 0.5)
            try:
                await client.ask_anyone(self._change(client.rng), timeout_ms=2_000)
                self.counts["admin"] += 1
            except (BarnabasError, TimeoutError):
                pass

    def _change(self, rng: Random) -> Any:
        scratch = f"scratch-{rng.randrange(3)}"
        topic, partition = rng.choice(self.partitions)
        dice = rng.random()
        if dice < 0.25:
            replicas = min(rng.randint(1, 3), len(self.cluster.nodes))
            return CreateTopicRequest(name=scratch, partition_count=rng.randint(1, 3), replication_factor=replicas)
        if dice < 0.4:
            return DeleteTopicRequest(name=scratch)
        if dice < 0.5:
            return AddPartitionsRequest(name=scratch, total_count=rng.randint(2, 5))
        if dice < 0.65:
            change = ConfigEntryChange(key="segment.bytes", value=str(rng.choice((1024, 2048, 8192))))
            return AlterConfigRequest(resource_type=2, resource=topic, changes=(change,))
        if dice < 0.85:
            return ElectLeaderRequest(
                topic=topic, partition=partition, target=rng.choice((None, *range(len(self.cluster.nodes))))
            )
        chosen = rng.sample(range(len(self.cluster.nodes)), min(3, len(self.cluster.nodes)))
        return AssignReplicasRequest(topic=topic, partition=partition, replicas=tuple(chosen))


class GroupMember:
    """A consumer of a group, by KIP-848: it gives up what it shall not have any more, tells so, and takes what it gets."""

    def __init__(self, workload: Workload, client: Client, group: str, number: int) -> None:
        self.workload = workload
        self.client = client
        self.group = group
        self.number = number
        self.member_id = ""
        self.epoch = 0
        self.owned: set[Partition] = set()
        self.position: dict[Partition, int] = {}
        self.must_leave = False
        self._lives = 0
        self._commits = 0
        self._coordinator: int | None = None
        self._is_news = True
        self._born()

    def _born(self) -> None:
        self._lives += 1
        self.member_id = f"m{self.number}-{self._lives}"
        self.epoch = 0
        self.owned = set()
        self._is_news = True

    async def run(self) -> None:
        while True:
            try:
                await self._beat()
                if self.owned and self.client.rng.random() < 0.5:
                    await self._commit()
                if self.client.rng.random() < 0.01:
                    await self._leave()
            except BarnabasError as error:
                self._coordinator = None
                if error.code in LOST_MEMBERSHIP:
                    self._born()
                await self.client.pause(0.02, 0.08)
            except TimeoutError:
                self._coordinator = None
            await self.client.pause(0.03, 0.15)

    async def _ask(self, request: Any) -> Any:
        if self._coordinator is None:
            found = await self.client.ask_anyone(FindCoordinatorRequest(group_id=self.group))
            self._coordinator = found.node_id
        return await self.client.ask(self._coordinator, request)

    async def _beat(self) -> None:
        topics = tuple(sorted({topic for topic, _ in self.workload.partitions}))
        answer = await self._ask(
            ConsumerGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self.member_id,
                member_epoch=self.epoch,
                client_id=self.client.name,
                subscribed_topics=topics if self.epoch == 0 or self._is_news else None,
                rebalance_timeout_ms=1_000,
                owned=_as_owned(self.owned) if self.epoch == 0 or self._is_news else None,
            )
        )
        self._is_news = False
        self.member_id, self.epoch = answer.member_id, answer.member_epoch
        if answer.assignment is not None:
            assigned = {(item.topic, number) for item in answer.assignment for number in item.partitions}
            self._is_news = assigned != self.owned
            self.owned = assigned
        for topic, partition in sorted(self.owned):
            self.workload.checker.adopted(self.group, topic, partition, self.epoch, self.member_id)

    async def _commit(self) -> None:
        checker = self.workload.checker
        topic, number = self.client.rng.choice(sorted(self.owned))
        self._commits += 1
        identity = f"{self.member_id}#{self._commits}"
        offset = self.position[topic, number] = self.position.get((topic, number), 0) + 1
        commit = checker.commit_begins(self.group, topic, number, identity)
        item = OffsetToCommit(topic=topic, partition=number, offset=offset, metadata=identity)
        request = OffsetCommitRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=self.epoch, partitions=(item,)
        )
        try:
            answer = (await self._ask(request)).partitions[0]
            if answer.error:
                raise error_for(answer.error, answer.message)
        except BarnabasError as error:
            if error.code in REFUSED_COMMITS - {ErrorCode.NOT_COORDINATOR}:
                checker.commit_refused(self.group, topic, number, commit)
            raise
        commit.ended = checker.now()
        self.workload.counts["commits"] += 1

    async def _leave(self) -> None:
        self.owned = set()
        await self._ask(ConsumerGroupHeartbeatRequest(group_id=self.group, member_id=self.member_id, member_epoch=-1))
        self._born()

    async def committed(self) -> dict[Partition, str]:
        """What the cluster says is committed: partition -> the commit's identity."""
        answer = await self._ask(OffsetFetchRequest(group_id=self.group))
        return {(item.topic, item.partition): item.metadata for item in answer.partitions if item.offset >= 0}


def _as_owned(partitions: set[Partition]) -> tuple[TopicPartitions, ...]:
    topics = sorted({topic for topic, _ in partitions})
    return tuple(
        TopicPartitions(topic=topic, partitions=tuple(sorted(n for t, n in partitions if t == topic)))
        for topic in topics
    )
