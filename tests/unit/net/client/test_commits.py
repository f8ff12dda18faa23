"""Commits of one consumer are made in order, whatever must be repeated; and nothing that may be unfinished commits itself."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from unit.net.client.consumer_world import T0, T1, consumer, filled, read
from unit.net.client.fake_cluster import HANG, FakeCluster
from unit.net.client.fake_groups import FakeGroups
from unit.net.client.test_groups import Member, cluster_of, shared
from unit.net.client.virtual_time import run

from barnabas.log.vocabulary.errors import ErrorCode, NetworkError
from barnabas.log.vocabulary.group_messages import PartitionOutcome
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import (
    ClientClosedError,
    NotAssignedError,
    PartitionGoneError,
    RequestTimedOutError,
)
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.wire.protocol import group_responses as g
from barnabas.net.wire.protocol import requests as q
from barnabas.net.wire.protocol.api_keys import ApiKey


@asynccontextmanager
async def assigned(cluster: FakeCluster, *places: TopicPartition, **options: Any) -> AsyncIterator[Consumer]:
    """A consumer that commits for a group and is no member of it."""
    async with consumer(cluster, **{"group": "g", "auto_commit": False, **options}) as reader:
        reader.assign(places)
        yield reader


def lost(*_: object) -> NetworkError:
    return NetworkError("the connection was reset")


class Frozen:
    """A coordinator that stands still: requests wait, and are carried out in the order of their coming when it goes on."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.waiting: list[q.OffsetCommitRequest] = []
        self.is_over = asyncio.Event()
        cluster.script(ApiKey.OFFSET_COMMIT, self.wait, forever=True)

    async def wait(self, node_id: int, request: q.OffsetCommitRequest) -> Any:
        self.waiting.append(request)
        await self.is_over.wait()
        return self.cluster.offset_commit(node_id, request)

    def thaw(self) -> None:
        self.is_over.set()
        del self.cluster.scripts[ApiKey.OFFSET_COMMIT]


def test_a_commit_that_must_be_repeated_never_undoes_a_later_one() -> None:
    """Each of a hundred is refused, delayed or taken at random; they are asked for one after the other."""

    async def main(seed: int) -> None:
        cluster = filled(100)
        async with assigned(cluster, T0) as reader:
            rng = reader._client.rng
            history = [-1]

            def answer(node_id: int, request: Any) -> Any:
                if rng.random() < 0.5:
                    return lost()
                (item,) = request.partitions
                history.append(item.offset)
                return None

            cluster.script(ApiKey.OFFSET_COMMIT, answer, forever=True)
            asked = []
            for offset in range(1, 101):
                asked.append(reader.commit_nowait({T0: offset}))
                await asyncio.sleep(rng.choice((0, 0.01, 0.04)))
            await asyncio.gather(*asked)
            assert history == sorted(history) and history[-1] == 100, seed
            assert cluster.committed["g"] == {T0: 100}

    for seed in range(20):
        run(main(seed))


def test_commits_while_the_coordinator_is_frozen_end_at_the_last_one() -> None:
    async def main() -> None:
        cluster = filled(100)
        async with assigned(cluster, T0) as reader:
            frozen = Frozen(cluster)
            asked = []
            for offset in range(1, 101):
                asked.append(reader.commit_nowait({T0: offset}))
                await asyncio.sleep(0.04)
            assert [request.partitions[0].offset for request in frozen.waiting] == [1], "one request at a time"
            frozen.thaw()
            await asyncio.gather(*asked)
            assert cluster.committed["g"] == {T0: 100}
            assert len(cluster.sent(q.OffsetCommitRequest)) == 2, "a later one takes the place of those before"

    run(main())


def test_the_application_may_commit_a_smaller_offset() -> None:
    async def main() -> None:
        cluster = filled(100)
        async with assigned(cluster, T0) as reader:
            cluster.script(ApiKey.OFFSET_COMMIT, lost)
            first = reader.commit_nowait({T0: 50})
            await reader.commit({T0: 20})
            await first
            assert cluster.committed["g"] == {T0: 20}

    run(main())


def test_auto_commit_beside_a_commit_of_the_application_takes_nothing_back() -> None:
    """What auto-commit knows to be done lies behind what the application has committed by name."""

    async def main(failing: int) -> None:
        cluster = filled(100)
        async with assigned(cluster, T0, auto_commit=True, auto_commit_interval_ms=300) as reader:
            cluster.script(ApiKey.OFFSET_COMMIT, *[lost] * failing)
            await read(reader, 10)
            await reader.poll(max_records=1)
            await asyncio.sleep(0.301)  # The commit of 10 is under way.
            await reader.commit({T0: 30})
            for _ in range(20):
                await asyncio.sleep(0.1)
                assert cluster.committed["g"] == {T0: 30}
            await read(reader, 40)
            await reader.poll(max_records=1)
            await asyncio.sleep(0.5)
            assert cluster.committed["g"] == {T0: 51}
            reader.seek(T0, 5)
            await asyncio.sleep(0.5)
            assert cluster.committed["g"] == {T0: 5}, "a seek of the application counts"

    for failing in range(4):
        run(main(failing))


def test_one_partition_that_is_gone_does_not_hold_up_the_others() -> None:
    async def main() -> None:
        cluster = filled(10, partitions=2)

        def gone(node_id: int, request: Any) -> Any:
            cluster.committed["g"][T1] = 4
            return g.OffsetCommitResponse(
                partitions=tuple(
                    PartitionOutcome(
                        topic=item.topic,
                        partition=item.partition,
                        error=0 if item.partition else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                    )
                    for item in request.partitions
                )
            )

        async with assigned(cluster, T0, T1) as reader:
            cluster.script(ApiKey.OFFSET_COMMIT, gone, forever=True)
            with pytest.raises(PartitionGoneError):
                await reader.commit({T0: 4, T1: 4})
            await reader.commit({T1: 4})

    run(main())


def test_a_commit_that_is_never_answered_ends_in_time_and_by_name() -> None:
    async def main() -> None:
        cluster = filled(10)
        loop = asyncio.get_running_loop()
        async with assigned(cluster, T0) as reader:
            cluster.script(ApiKey.OFFSET_COMMIT, lambda *_: HANG, forever=True)
            begin = loop.time()
            with pytest.raises(RequestTimedOutError):
                await reader.commit({T0: 4})
            assert 59 < loop.time() - begin < 61
            left = reader.commit_nowait({T0: 5})
        with pytest.raises(ClientClosedError, match="closed before"):
            await left

    run(main())


def test_a_cancelled_commit_is_not_repeated() -> None:
    async def main() -> None:
        cluster = filled(10)
        async with assigned(cluster, T0) as reader:
            cluster.script(ApiKey.OFFSET_COMMIT, lambda *_: lost(), forever=True)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2):
                    await reader.commit({T0: 4})
            await asyncio.sleep(2)
            count = len(cluster.sent(q.OffsetCommitRequest))
            await asyncio.sleep(10)
            assert len(cluster.sent(q.OffsetCommitRequest)) == count

    run(main())


def test_a_commit_behind_a_revocation_fails_and_the_next_owner_s_stands() -> None:
    """The old owner's commit waits for the coordinator until the partition has gone and is back."""

    async def main() -> None:
        topics = {"t": 1}
        cluster = cluster_of(topics)
        FakeGroups(cluster)
        async with Member(cluster, "t", auto_commit=False) as first:
            await shared([first], topics, within_s=15)
            cluster.script(ApiKey.OFFSET_COMMIT, lost, lost, lost)
            old = first.consumer.commit_nowait({T0: 3})
            first.consumer._subscriber.session.ownership._lose_all()  # type: ignore[union-attr]
            with pytest.raises(NotAssignedError):
                await old
            assert not cluster.committed["g"]

    run(main())


# --- what is done ------------------------------------------------------------------------------------------------------------


async def walked(reader: Consumer) -> None:
    async for record in reader:
        if record.offset == 3:
            raise ZeroDivisionError("cannot handle 3")


async def polled(reader: Consumer) -> None:
    await read(reader, 3)
    assert await reader.poll()
    raise ZeroDivisionError("not one of them was handled")


async def columns(reader: Consumer) -> None:
    await read(reader, 3)
    assert await reader.poll_batch()
    raise ZeroDivisionError("not one of them was handled")


async def swallowed(reader: Consumer) -> None:
    with pytest.raises(ZeroDivisionError):
        await walked(reader)


ways = pytest.mark.parametrize("work", [walked, polled, columns, swallowed])


@ways
def test_closing_in_a_finally_does_not_commit_what_a_handler_failed_on(work: Callable[[Consumer], Any]) -> None:
    async def main() -> None:
        cluster = filled(20)
        reader = consumer(cluster, group="g")
        await reader.start()
        reader.assign([T0])
        try:
            await work(reader)
        except ZeroDivisionError:
            pass
        finally:
            await reader.close()
        assert cluster.committed["g"] == {T0: 3}

    run(main())


@ways
def test_nor_does_the_end_of_an_async_with_or_the_interval(work: Callable[[Consumer], Any]) -> None:
    async def main() -> None:
        cluster = filled(20)
        async with consumer(cluster, group="g", auto_commit_interval_ms=100) as reader:
            reader.assign([T0])
            with pytest.raises(ZeroDivisionError):
                await work(reader)
                raise ZeroDivisionError
            await asyncio.sleep(1)
            assert cluster.committed["g"] == {T0: 3}
        assert cluster.committed["g"] == {T0: 3}

    run(main())


def test_the_application_says_that_all_is_done_by_a_commit() -> None:
    async def main() -> None:
        cluster = filled(20)
        async with consumer(cluster, group="g") as reader:
            reader.assign([T0])
            assert len(await read(reader, 5)) == 5
            await reader.commit()
        assert cluster.committed["g"] == {T0: 5}

    run(main())


def test_a_poll_returns_in_time_while_a_revocation_waits_for_the_coordinator() -> None:
    async def main() -> None:
        topics = {"t": 2}
        cluster = cluster_of(topics)
        FakeGroups(cluster)
        loop = asyncio.get_running_loop()
        async with Member(cluster, "t") as first:
            await shared([first], topics, within_s=15)
            await asyncio.sleep(1)
            await first.stop_polling()
            cluster.script(ApiKey.OFFSET_COMMIT, lambda *_: lost(), forever=True)
            async with Member(cluster, "t") as second:
                await asyncio.sleep(0.2)
                begin = loop.time()
                for _ in range(5):
                    assert await first.consumer.poll(timeout_ms=100) == {}
                assert loop.time() - begin < 1
                assert not second.owned, "nothing goes before the commit has ended"
                del cluster.scripts[ApiKey.OFFSET_COMMIT]
                first.polling = asyncio.create_task(first.poll())
                await shared([first, second], topics, within_s=5)
                assert ("revoked", sorted(second.owned)) in first.told

    run(main())


def test_a_partition_that_stays_after_all_is_committed_again_when_it_leaves() -> None:
    async def main() -> None:
        topics = {"t": 2}
        cluster = cluster_of(topics)
        FakeGroups(cluster)
        async with Member(cluster, "t", auto_commit_interval_ms=1_000_000) as member:
            await shared([member], topics, within_s=15)
            await member.stop_polling()
            reader = member.consumer
            for place in (T0, T1):
                reader.seek(place, 0)
            ownership = reader._subscriber.session.ownership  # type: ignore[union-attr]
            await reader.poll(max_records=1)
            cluster.script(ApiKey.OFFSET_COMMIT, lambda *_: lost(), forever=True)
            ownership._target = frozenset()
            assert await reader.poll(timeout_ms=50) == {}
            del cluster.scripts[ApiKey.OFFSET_COMMIT]
            ownership._target = ownership.owned
            await asyncio.sleep(5)
            await read(reader, 19)
            ownership._target = frozenset()
            assert await reader.poll(timeout_ms=1_000) == {}, "they have come back, and nothing is left of them"

    run(main())
