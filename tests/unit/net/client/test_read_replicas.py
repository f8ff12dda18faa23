"""A consumer with a rack reads from the replica that the leader names, and from the leader when that replica fails (KIP-392)."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from unit.net.client.consumer_world import T0, consumer, fill, filled, read
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.virtual_time import run

from barnabas.log.vocabulary.errors import ErrorCode, NetworkError
from barnabas.net.client.consumer.range_reader import RangeReader
from barnabas.net.client.consumer.read_replicas import AVOIDED_MS
from barnabas.net.wire.protocol import responses as r
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.requests import FetchRequest

REPLICA = 1


class Racks:
    """Broker 0 leads and sends consumers of rack b to broker 1, which serves what it has."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.refusal: Any = None  # of the replica
        self.served = Counter[int]()
        self.asked: list[tuple[int, str]] = []  # broker, rack
        cluster.script(ApiKey.FETCH, self.answer, forever=True)

    def answer(self, node_id: int, request: FetchRequest) -> Any:
        self.asked.append((node_id, request.rack))
        self.served[node_id] += 1
        (item,) = request.partitions
        log = self.cluster.logs[T0]
        if node_id == log.leader:
            if request.rack == "b" and request.may_be_sent_away and log.leader != REPLICA:
                return r.FetchResponse(
                    partitions=(r.FetchPartitionResponse(topic="t", partition=0, preferred_read_replica=REPLICA),)
                )
            return None
        if self.refusal is not None:
            return self.refusal
        if item.current_leader_epoch < log.leader_epoch or not request.may_be_sent_away:
            return refused(ErrorCode.FENCED_LEADER_EPOCH)
        return self.cluster.fetch(log.leader, request)


class Named:
    """The leader, broker 0, always names this replica to consumers of rack b; who else is asked says that he does not lead."""

    def __init__(self, cluster: FakeCluster, replica: int) -> None:
        self.cluster = cluster
        self.replica = replica
        self.asked: list[tuple[int, str]] = []
        cluster.script(ApiKey.FETCH, self.answer, forever=True)

    def answer(self, node_id: int, request: FetchRequest) -> Any:
        self.asked.append((node_id, request.rack))
        assert len(self.asked) < 100, "a hot loop"
        if node_id == 0 and request.rack == "b":
            return r.FetchResponse(
                partitions=(r.FetchPartitionResponse(topic="t", partition=0, preferred_read_replica=self.replica),)
            )
        return None


@pytest.mark.parametrize("replica", [0, 7], ids=["the leader itself", "a broker that the consumer does not know"])
def test_a_replica_that_is_none_for_the_consumer_costs_one_attempt(replica: int) -> None:
    """A broker that has just joined is not in the consumer's metadata. It asked the leader again and again, and read nothing."""

    async def main() -> None:
        named = Named(filled(brokers=3), replica)
        async with asyncio.timeout(5), consumer(named.cluster, "t", rack="b") as reader:
            assert offsets(await read(reader, 100)) == list(range(100))
        assert named.asked[0] == (0, "b") and set(named.asked[1:]) == {(0, "")}

    run(main())


@pytest.mark.parametrize("replica", [0, 7], ids=["the leader itself", "a broker that the consumer does not know"])
def test_a_replica_that_is_none_for_the_reader_of_a_range_costs_one_attempt(replica: int) -> None:
    async def main() -> None:
        named = Named(filled(brokers=3), replica)
        client = named.cluster.client()
        client.want_topic("t")
        await client.start()
        found = RangeReader(
            client, T0, start=0, end=100, max_bytes=1, is_committed_only=False, topic_id="", rack="b", timeout_ms=60_000
        )
        starts = []
        async with asyncio.timeout(5):
            while (chunk := await found.next_chunk()) is not None:
                starts.append(chunk.start)
        await client.close()
        assert starts == list(range(0, 100, 10)) and named.asked.count((0, "b")) == 1

    run(main())


def refused(error: ErrorCode) -> r.FetchResponse:
    return r.FetchResponse(partitions=(r.FetchPartitionResponse(topic="t", partition=0, error=int(error)),))


def offsets(records: Any) -> list[int]:
    return [record.offset for record in records]


def test_records_come_from_the_replica_and_the_leader_is_asked_once() -> None:
    async def main() -> None:
        racks = Racks(filled(brokers=3))
        async with consumer(racks.cluster, "t", rack="b", partition_max_bytes=300) as reader:
            assert offsets(await read(reader, 100)) == list(range(100))
            fill(racks.cluster, T0, 10)
            assert offsets(await read(reader, 10)) == list(range(100, 110))
        assert racks.served[0] == 1 and racks.served[REPLICA] > 5

    run(main())


def test_without_a_rack_the_leader_serves() -> None:
    async def main() -> None:
        racks = Racks(filled(brokers=3))
        async with consumer(racks.cluster, "t") as reader:
            await read(reader, 100)
        assert set(racks.served) == {0}
        assert not any(request.may_be_sent_away for request in racks.cluster.sent(FetchRequest))

    run(main())


@pytest.mark.parametrize(
    "refusal",
    [
        refused(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        refused(ErrorCode.OFFSET_NOT_AVAILABLE),
        refused(ErrorCode.OFFSET_OUT_OF_RANGE),
        refused(ErrorCode.INCONSISTENT_TOPIC_ID),
        refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        NetworkError("cut"),
        r.ErrorResponse(error=int(ErrorCode.REQUEST_TIMED_OUT), message="busy"),
    ],
    ids=str,
)
def test_the_leader_serves_for_a_while_after_a_refusal_of_the_replica(refusal: Any) -> None:
    async def main() -> None:
        racks = Racks(filled(brokers=3))
        async with consumer(racks.cluster, "t", rack="b", partition_max_bytes=300) as reader:
            found = await read(reader, 20)
            racks.refusal = refusal
            found += await read(reader, 80)
            assert offsets(found) == list(range(100)), "no reset, nothing twice"
            asked = len(racks.asked)
            racks.refusal = None
            fill(racks.cluster, T0, 10)
            await read(reader, 10)
            assert set(racks.asked[asked:]) == {(0, "")}
            await asyncio.sleep(AVOIDED_MS / 1000 + 1)
            fill(racks.cluster, T0, 10)
            assert offsets(await read(reader, 10)) == list(range(110, 120))
            assert racks.asked[-1] == (REPLICA, "b")

    run(main())


def test_a_replica_that_cannot_be_reached_costs_one_attempt() -> None:
    async def main() -> None:
        racks = Racks(filled(brokers=3))
        racks.cluster.down.add(REPLICA)
        began_s = asyncio.get_running_loop().time()
        async with consumer(racks.cluster, "t", rack="b") as reader:
            assert offsets(await read(reader, 100)) == list(range(100))
        assert racks.asked[0] == (0, "b") and set(racks.asked[1:]) == {(0, "")}
        assert asyncio.get_running_loop().time() - began_s < 2

    run(main())


def test_a_new_leader_is_asked_first() -> None:
    async def main() -> None:
        racks = Racks(filled(brokers=3))
        async with consumer(racks.cluster, "t", rack="b", partition_max_bytes=300) as reader:
            await read(reader, 20)
            racks.cluster.move_leader(T0, REPLICA)
            assert offsets(await read(reader, 80)) == list(range(20, 100))
            assert racks.served[0] == 1  # broker 1 leads, and serves as the leader
            racks.cluster.move_leader(T0, 2)
            fill(racks.cluster, T0, 10)
            assert offsets(await read(reader, 10)) == list(range(100, 110))
            assert (2, "b") in racks.asked or (2, "") in racks.asked

    run(main())


def test_the_leader_is_asked_again_after_the_age_of_metadata() -> None:
    async def main() -> None:
        racks = Racks(filled(brokers=3))
        async with consumer(racks.cluster, "t", rack="b") as reader:
            await read(reader, 100)
            await asyncio.sleep(301)
            fill(racks.cluster, T0, 10)
            await read(reader, 10)
            assert racks.served[0] == 2

    run(main())


def test_a_range_is_read_from_the_replica_or_from_the_leader() -> None:
    async def values(racks: Racks) -> list[int]:
        client = racks.cluster.client()
        client.want_topic("t")
        await client.start()
        found = RangeReader(
            client, T0, start=0, end=100, max_bytes=1, is_committed_only=False, topic_id="", rack="b", timeout_ms=60_000
        )
        starts = []
        while (chunk := await found.next_chunk()) is not None:
            starts.append(chunk.start)
            if len(starts) == 5:
                racks.refusal = NetworkError("cut")
        await client.close()
        return starts

    async def main() -> None:
        racks = Racks(filled(brokers=3))
        assert await values(racks) == list(range(0, 100, 10))
        assert racks.asked == [(0, "b"), *[(REPLICA, "b")] * 6, *[(0, "")] * 5]

    run(main())
