"""The voters of the quorum, changed while producers run: nothing acknowledged is lost, and nobody waits for two seconds."""

import asyncio
import shutil
import signal
import time
from collections.abc import Callable

import pytest
from integration.cluster import Cluster, active_brokers, full_isr, until
from integration.load import Load, read_all

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.net.client.admin.admin import Admin

Maker = Callable[..., Cluster]
MIN_ISR_2 = {"min.insync.replicas": "2"}
SPREAD = [[node, (node + 1) % 5, (node + 2) % 5] for node in range(5)]
MAX_PAUSE_S = 2.0
pytestmark = pytest.mark.timeout(300)  # five brokers start twice, and are waited for


class Pauses(Load):
    """A load that notes the longest time without an acknowledgement."""

    longest_s = 0.0
    _last_s = 0.0

    async def _note(self, value: bytes, handle: object) -> None:
        await super()._note(value, handle)  # type: ignore[arg-type]
        now_s = time.monotonic()
        if self._last_s:
            self.longest_s = max(self.longest_s, now_s - self._last_s)
        self._last_s = now_s

    def begin_measuring(self) -> None:
        self.longest_s = self._last_s = 0.0


async def voters_of(admin: Admin) -> list[int]:
    return sorted((await admin.describe_quorum()).voters)


async def observers_are(admin: Admin, observers: tuple[int, ...]) -> bool:
    return (await admin.describe_quorum()).observers == observers


async def has_voters(admin: Admin, voters: list[int]) -> None:
    async def is_so() -> bool:
        quorum = await admin.describe_quorum()
        return sorted(quorum.voters) == voters and all(peer.is_live for peer in quorum.peers) and bool(quorum.peers)

    await until(is_so, f"voters are {voters}, all live")


@pytest.mark.alone("no pause of two seconds")
async def test_voters_are_added_and_the_leader_is_removed_under_load(new_cluster: Maker) -> None:
    cluster = await new_cluster(5).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("spread", assignment=SPREAD, configs=MIN_ISR_2)
        async with Pauses(cluster.bootstrap, "spread", partitions=5) as load:
            await until(lambda: load.count > 300, "the load runs")
            load.begin_measuring()
            took_s = []
            for change in (admin.add_voter(3), admin.add_voter(4)):
                began_s = time.monotonic()
                await change
                took_s.append(time.monotonic() - began_s)
            await has_voters(admin, [0, 1, 2, 3, 4])
            leader = (await admin.describe_quorum()).leader_id
            began_s = time.monotonic()
            async with Admin(cluster.nodes[leader].address) as its_own:  # it carries out its own removal
                await its_own.remove_voter(leader)
            took_s.append(time.monotonic() - began_s)
            assert await active_brokers(cluster) == {0, 1, 2, 3, 4}, "no session has ended meanwhile"
            rest = sorted({0, 1, 2, 3, 4} - {leader})
            await has_voters(admin, rest)
            count = load.count
            await until(lambda: load.count > count + 300, "writes go on")
            await until(lambda: observers_are(admin, (leader,)), "who was removed observes")
        print(f"\nadd, add, remove the leader: {[round(s, 3) for s in took_s]} s; longest pause {load.longest_s:.3f} s")
        assert not load.failed
        assert load.longest_s < MAX_PAUSE_S
        with pytest.raises(InvalidRequestError, match="voter already"):
            await admin.add_voter(rest[0])
        with pytest.raises(InvalidRequestError, match="not registered"):
            await admin.add_voter(17)
    load.check(await read_all(cluster.bootstrap, "spread"))
    # Everybody starts again with the server.properties of old, which name voters 0, 1 and 2.
    cluster.kill(0, 1, 2, 3, 4)
    cluster.start(0, 1, 2, 3, 4)
    for node in range(5):
        await until(lambda node=node: is_active(cluster, node), f"broker {node} is back")  # type: ignore[misc]
    async with cluster.admin() as admin:
        await has_voters(admin, rest)
        await full_isr(admin, ["spread"])
    load.check(await read_all(cluster.bootstrap, "spread"))


async def test_a_voter_is_replaced_whose_machine_is_lost_and_one_whose_disk_was_emptied(new_cluster: Maker) -> None:
    cluster = await new_cluster(5).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("spread", assignment=SPREAD, configs=MIN_ISR_2)
        async with Pauses(cluster.bootstrap, "spread", partitions=5) as load:
            await until(lambda: load.count > 100, "the load runs")
            leader = (await admin.describe_quorum()).leader_id
            lost = next(node for node in (0, 1, 2) if node != leader)
            cluster.kill(lost)
            await admin.remove_voter(lost)
            await admin.add_voter(3)
            replaced = sorted({0, 1, 2, 3} - {lost})
            await has_voters(admin, replaced)
            # The lost one comes back with nothing on its disk and its old configuration: it is a broker, and no voter.
            shutil.rmtree(cluster.nodes[lost].data)
            cluster.start(lost)
            await until(lambda: is_active(cluster, lost), "it is back")
            assert await voters_of(admin) == replaced
            # A voter that its own server.properties do not name is emptied: it learns, and votes again.
            cluster.kill(3)
            shutil.rmtree(cluster.nodes[3].data)
            cluster.start(3)
            await has_voters(admin, replaced)
            await full_isr(admin, ["spread"])
        assert not load.failed
    load.check(await read_all(cluster.bootstrap, "spread"))


async def is_active(cluster: Cluster, node_id: int) -> bool:
    return node_id in await active_brokers(cluster)


@pytest.mark.parametrize("victim", ["leader", "learner"])
async def test_kill_9_in_the_middle_of_a_change(new_cluster: Maker, victim: str) -> None:
    cluster = await new_cluster(4).ready()
    assignment = [[node, (node + 1) % 4, (node + 2) % 4] for node in range(4)]
    async with cluster.admin() as admin:
        await admin.create_topic("spread", assignment=assignment, configs=MIN_ISR_2)
        async with Load(cluster.bootstrap, "spread", partitions=4) as load:
            await until(lambda: load.count > 100, "the load runs")
            leader = (await admin.describe_quorum()).leader_id
            follower = next(node for node in (0, 1, 2) if node != leader)
            cluster.nodes[3].signal(signal.SIGSTOP)  # so that its learning does not end before it shall
            change = await _begin(admin, 3)
            killed = leader if victim == "leader" else 3
            cluster.kill(killed)
            if killed != 3:
                cluster.nodes[3].signal(signal.SIGCONT)
            change.cancel()
            cluster.start(killed)
            await until(lambda: is_active(cluster, killed), "it is back")
            await until(lambda: is_active(cluster, 3), "the other one, too")
            await until(lambda: _added(admin, 3), "the change is made after all")
            await has_voters(admin, [0, 1, 2, 3])
            await admin.remove_voter(follower)
            await has_voters(admin, sorted({0, 1, 2, 3} - {follower}))
        assert not load.failed
    load.check(await read_all(cluster.bootstrap, "spread"))


async def _begin(admin: Admin, node_id: int) -> "asyncio.Task[str]":
    change = asyncio.create_task(admin.add_voter(node_id))
    await asyncio.sleep(0)
    return change


async def _added(admin: Admin, node_id: int) -> bool:
    if node_id not in await voters_of(admin):
        await admin.add_voter(node_id)
    return True
