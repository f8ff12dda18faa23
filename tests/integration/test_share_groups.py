"""Share groups (KIP-932) with Kafka's own Java client on real brokers: accept, release, reject, shared partitions, kill -9."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from integration import java_client
from integration.cluster import Cluster, full_isr, partitions_of, until
from integration.programs import QUICK_JAVA, Program

from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.producer.producer import Producer

VERSION = "4.3.1"
LIMIT_S = 60.0
MARGIN_MS = 1_000  # between what two processes print
BATCH, PAUSE_S = 20, 0.1
ENDLESS = 1_000_000

if java_client.find():
    pytest.skip(java_client.find(), allow_module_level=True)


@dataclass(frozen=True, slots=True)
class Got:
    at_ms: int
    place: tuple[int, int]
    deliveries: int
    value: str


class Member(Program):
    """A process of ShareMember.java."""

    def lines(self, kind: str) -> list[list[str]]:
        words = (line.split(" ") for line in self.output.read_text().splitlines())
        return [line for line in words if len(line) > 1 and line[1] == kind]

    def got(self) -> list[Got]:
        return [
            Got(int(line[0]), (int(line[2]), int(line[3])), int(line[4]), line[5])
            for line in self.lines("got")
            if len(line) == 6
        ]

    def acknowledged(self, kind: str = "accept") -> dict[tuple[int, int], int]:
        """Place -> when the answer came."""
        return {
            (int(line[2]), int(line[3])): int(line[0])
            for line in self.lines("acked")
            if len(line) == 5 and line[4] == kind
        }


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("java")
    libraries = java_client.fetch(folder, VERSION)
    if libraries is None:
        pytest.skip("Maven Central is out of reach")
    return java_client.compiled(folder, libraries, "ShareMember")


Start = Callable[..., Member]


@pytest.fixture
def start(class_path: str, tmp_path: Path) -> Iterator[Start]:
    """Start members; those that still run at the end of the test are killed."""
    members: list[Member] = []

    def started(cluster: Cluster, group: str, topic: str, policy: str, count: int, *configs: str) -> Member:
        command = [
            "java", java_client.QUIET, *QUICK_JAVA, "-Xmx128m", "-cp", class_path, "ShareMember",
            cluster.bootstrap, group, topic, policy, str(count), *configs,
        ]  # fmt: skip
        members.append(Member(f"member-{len(members)}", command, tmp_path / "members"))
        members[-1].start()
        return members[-1]

    yield started
    for one in members:
        one.kill()


async def produce(cluster: Cluster, topic: str, values: range) -> None:
    async with Producer(cluster.bootstrap) as producer:
        for value in values:
            await producer.send(topic, str(value).encode(), partition=0)


async def ended(program: Member) -> None:
    await program.prints("closed", timeout_s=LIMIT_S)
    program.stop()


EARLIEST = "share.auto.offset.reset=earliest"


@pytest.mark.timeout(4 * LIMIT_S)
async def test_released_records_come_again_and_others_do_not(shared_cluster: Cluster, start: Start) -> None:
    await shared_cluster.ready()
    async with shared_cluster.admin() as admin:
        await admin.create_topic("jobs", partitions=1, replication_factor=3)
        await produce(shared_cluster, "jobs", range(20))

        first = start(shared_cluster, "g", "jobs", "reject-odd", 20, EARLIEST)
        await ended(first)
        assert [item.value for item in first.got()] == [str(value) for value in range(20)]
        assert len(first.acknowledged("reject")) == len(first.acknowledged("accept")) == 10

        await produce(shared_cluster, "jobs", range(20, 40))
        second = start(shared_cluster, "g", "jobs", "release-first", 40)
        await ended(second)
        assert {item.place[1] for item in second.got()} == set(range(20, 40))  # what was rejected is gone, too
        assert Counter(item.deliveries for item in second.got()) == {1: 20, 2: 20}

        listed = {group.group_id: group for group in await admin.list_groups()}
        assert listed["g"].protocol == "share"


@pytest.mark.timeout(4 * LIMIT_S)
async def test_a_record_is_archived_after_its_last_delivery(shared_cluster: Cluster, start: Start) -> None:
    await shared_cluster.ready()
    async with shared_cluster.admin() as admin:
        await admin.create_topic("poison", partitions=1, replication_factor=3)
    await produce(shared_cluster, "poison", range(3))
    limit = "share.delivery.count.limit=3"
    releasing = start(shared_cluster, "p", "poison", "release", 9, EARLIEST, limit)
    await ended(releasing)
    assert Counter(item.deliveries for item in releasing.got()) == {1: 3, 2: 3, 3: 3}
    await produce(shared_cluster, "poison", range(3, 4))
    after = start(shared_cluster, "p", "poison", "accept", 1)
    await ended(after)
    assert [item.value for item in after.got()] == ["3"]


@pytest.mark.timeout(4 * LIMIT_S)
async def test_two_members_share_a_partition_and_a_dead_one_loses_its_locks(
    shared_cluster: Cluster, start: Start
) -> None:
    await shared_cluster.ready()
    async with shared_cluster.admin() as admin:
        await admin.create_topic("shared", partitions=1, replication_factor=3)
    await produce(shared_cluster, "shared", range(10))
    # Longer than the start of the other JVM and its work take beside other work.
    locks = "share.record.lock.duration.ms=60000"
    holder = start(shared_cluster, "s", "shared", "hold", 1, EARLIEST, locks)
    await until(lambda: len(holder.got()) == 10, "the first member holds records", timeout_s=LIMIT_S)
    # Kafka's client goes on fetching in the background if its poll asked again as the records came. What it gets is held, too. A
    # process that is stopped sends no fetch; one that waits at the broker may still get records.
    holder.freeze()
    other = start(shared_cluster, "s", "shared", "accept", ENDLESS)
    await other.prints("ready", timeout_s=LIMIT_S)
    produced = 10

    async def other_gets_twenty() -> bool:
        nonlocal produced
        await produce(shared_cluster, "shared", range(produced, produced + 5))
        produced += 5
        return len(other.acknowledged()) >= 20

    await until(other_gets_twenty, "the other gets what is not locked", timeout_s=LIMIT_S)
    assert not {item.place[1] for item in other.got()} & set(range(10))
    holder.kill()  # its connection closes long before its locks would end
    await until(lambda: len(other.acknowledged()) == produced, "the other gets what was locked", timeout_s=LIMIT_S)
    deliveries = {item.place[1]: item.deliveries for item in other.got()}
    assert len(other.got()) == produced
    assert {deliveries[offset] for offset in range(10)} == {2}
    assert deliveries[produced - 1] == 1


@pytest.mark.timeout(6 * LIMIT_S)
async def test_an_answered_acknowledgement_holds_though_leader_and_coordinator_are_killed(
    new_cluster: Callable[..., Cluster], start: Start
) -> None:
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("q", partitions=1, replication_factor=3, configs={"min.insync.replicas": "2"})
        members = [start(cluster, "k", "q", "accept", ENDLESS, EARLIEST) for number in range(2)]
        for one in members:
            await one.prints("ready", timeout_s=LIMIT_S)
        load = Load()
        running = asyncio.create_task(load.run(cluster))
        for step, victim in enumerate((leader_of, coordinator_of, leader_of), start=1):
            await until(lambda: answered(members) > 200 * step, "work goes on", timeout_s=LIMIT_S)  # noqa: B023
            node_id = await victim(admin)
            cluster.kill(node_id)
            before = answered(members)
            await until(lambda: answered(members) > before + 50, f"without {node_id}", timeout_s=LIMIT_S)  # noqa: B023
            cluster.start(node_id)
            await full_isr(admin, ["q"])
        load.is_ending = True
        await running
        await until(lambda: is_done(members, load.count), "everything is acknowledged or refused", timeout_s=LIMIT_S)
    for one in members:
        one.kill()
    check_history(members, load.count)


class Load:
    """Values 0, 1, ... until it is told to end."""

    def __init__(self) -> None:
        self.count = 0
        self.is_ending = False

    async def run(self, cluster: Cluster) -> None:
        async with Producer(cluster.bootstrap) as producer:
            while not self.is_ending:
                for value in range(self.count, self.count + BATCH):
                    await producer.send("q", str(value).encode(), partition=0)
                self.count += BATCH
                await asyncio.sleep(PAUSE_S)


async def leader_of(admin: Admin) -> int:
    return (await partitions_of(admin, "q"))[0].leader


async def coordinator_of(admin: Admin) -> int:
    return (await admin.describe_group("k")).coordinator


def answered(members: list[Member]) -> int:
    return sum(len(one.acknowledged()) for one in members)


def is_done(members: list[Member], count: int) -> bool:
    """Every record was acknowledged, or got by a member whose acknowledgement was not answered."""
    got = {item.value for one in members for item in one.got()}
    return len(got) == count and answered(members) >= count - refused(members)


def refused(members: list[Member]) -> int:
    """At most so many records have an acknowledgement whose outcome the member does not know."""
    return sum(500 * len(one.lines("refused")) for one in members)


def check_history(members: list[Member], count: int) -> None:
    assert {item.value for one in members for item in one.got()} == {str(value) for value in range(count)}
    answers: dict[tuple[int, int], int] = {}
    for one in members:
        for place, at_ms in one.acknowledged().items():
            assert place not in answers, f"{place} was acknowledged twice"
            answers[place] = at_ms
    for one in members:
        for item in one.got():
            late_ms = item.at_ms - answers.get(item.place, item.at_ms)
            assert late_ms <= MARGIN_MS, f"{item} came {late_ms} ms after its acknowledgement was answered"
    deliveries: dict[tuple[int, int], int] = {}
    for item in sorted((item for one in members for item in one.got()), key=lambda item: item.at_ms):
        deliveries[item.place] = item.deliveries
    assert max(deliveries.values()) <= 5
