"""Consumers of one group, with the real coordinator behind a fake cluster, on virtual time."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.fake_groups import FakeGroups
from unit.net.client.virtual_time import run

from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import (
    BarnabasError,
    FencedInstanceIdError,
    InvalidAssignmentError,
    InvalidConfigError,
    NotAssignedError,
)
from barnabas.net.client.connection.records import OffsetAndMetadata
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.group.assignors import MemberSubscription
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.responses import ErrorResponse

KINDS = [
    {},
    {"assignor": "cooperative-sticky"},
    {"group_protocol": "classic"},
    {"group_protocol": "classic", "assignor": "range"},
    {"group_protocol": "classic", "assignor": "roundrobin"},
]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind.values()) or "default")


class Member:
    """A consumer that polls all the time and writes down what it is told."""

    def __init__(self, cluster: FakeCluster, *topics: str, **options: Any) -> None:
        self.told: list[tuple[str, list[TopicPartition]]] = []
        self.errors: list[BarnabasError] = []
        self.read: set[tuple[TopicPartition, int]] = set()
        self.consumer = Consumer(
            *topics,
            client=cluster.client(),
            on_assigned=lambda partitions: self.told.append(("assigned", partitions)),
            on_revoked=lambda partitions: self.told.append(("revoked", partitions)),
            on_lost=lambda partitions: self.told.append(("lost", partitions)),
            **{"group": "g", "auto_offset_reset": "earliest", **options},
        )
        self.polling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Member":
        await self.consumer.start()
        self.polling = asyncio.create_task(self.poll())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop_polling()
        await self.consumer.close()

    async def stop_polling(self) -> None:
        assert self.polling is not None
        self.polling.cancel()
        await asyncio.gather(self.polling, return_exceptions=True)

    async def poll(self) -> None:
        while True:
            try:
                found = await self.consumer.poll(timeout_ms=100)
            except BarnabasError as error:
                self.errors.append(error)
                await asyncio.sleep(0.1)
                continue
            self.read |= {(partition, record.offset) for partition, records in found.items() for record in records}

    @property
    def owned(self) -> set[TopicPartition]:
        return set(self.consumer.assignment)


def partitions_of(topics: Mapping[str, int]) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)}


async def until(condition: Callable[[], object], *, within_s: float = 60) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - time is virtual, and nobody tells of what a consumer owns
            await asyncio.sleep(0.05)


async def shared(members: list[Member], topics: Mapping[str, int], *, within_s: float) -> float:
    """Wait until the members own all partitions between them, as evenly as can be; returns how long it took."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    wanted = partitions_of(topics)
    while True:
        sizes = [len(member.owned) for member in members]
        owned = [partition for member in members for partition in member.owned]
        assert len(owned) == len(set(owned)), "two members have the same partition"
        if set(owned) == wanted and max(sizes) - min(sizes) <= 1:
            return loop.time() - begin
        assert loop.time() - begin < within_s, f"{[sorted(member.owned) for member in members]}"
        await asyncio.sleep(0.002)


def cluster_of(topics: Mapping[str, int]) -> FakeCluster:
    cluster = FakeCluster(topics=dict(topics))
    for log in cluster.logs.values():
        log.append(encode_batch([b"%d" % number for number in range(10)], timestamps_ms=[0] * 10))
    return cluster


@kinds
def test_members_come_and_go_and_every_partition_has_one_owner(kind: dict[str, Any]) -> None:
    async def main() -> None:
        topics = {"t": 6}
        cluster = cluster_of(topics)
        FakeGroups(cluster)
        async with AsyncExitStack() as stack:
            members: list[Member] = []
            for _ in range(3):
                members.append(await stack.enter_async_context(Member(cluster, "t", **kind)))
                await shared(members, topics, within_s=15)
            await members[0].stop_polling()
            await members[0].consumer.close()
            await shared(members[1:], topics, within_s=15)
            assert not any(member.errors for member in members)
            assert {partition for member in members for partition, _ in member.read} == partitions_of(topics)

    run(main())


def test_a_rebalance_takes_milliseconds_and_no_more_requests_than_before() -> None:
    """Members wait at the coordinator: who must give something up hears of it at once, who waits for it as well."""

    async def main() -> None:
        topics = {"t": 12}
        cluster = cluster_of(topics)
        FakeGroups(cluster)
        async with AsyncExitStack() as stack:
            members = [await stack.enter_async_context(Member(cluster, "t")) for _ in range(3)]
            await shared(members, topics, within_s=2)
            await asyncio.sleep(3)  # Amid their heartbeat intervals.
            members.append(await stack.enter_async_context(Member(cluster, "t")))
            assert await shared(members, topics, within_s=1) < 0.1
            await members[0].stop_polling()
            await members[0].consumer.close()
            assert await shared(members[1:], topics, within_s=1) < 0.1
            await asyncio.sleep(1)
            cluster.requests.clear()
            await asyncio.sleep(60)
            beats = len(cluster.sent(ConsumerGroupHeartbeatRequest))
            assert 33 <= beats <= 39  # One per member in 5 s.

    run(main())


def test_who_keeps_its_partitions_never_stops() -> None:
    async def main() -> None:
        topics = {"t": 6}
        cluster = cluster_of(topics)
        FakeGroups(cluster)
        for kind in KINDS[1:3]:  # Sticky ones.
            options = {**kind, "group": kind.get("group_protocol", "server")}
            async with Member(cluster, "t", **options) as first:
                await shared([first], topics, within_s=5)
                async with Member(cluster, "t", **options) as second:
                    await shared([first, second], topics, within_s=15)
                    assert [name for name, _ in first.told] == ["assigned", "revoked"]
                    assert first.owned == partitions_of(topics) - set(first.told[1][1])
                    assert [name for name, _ in second.told] == ["assigned"]

    run(main())


def test_an_eager_member_gives_up_everything_and_gets_it_back() -> None:
    async def main() -> None:
        topics = {"t": 4}
        cluster = cluster_of(topics)
        FakeGroups(cluster)
        options = {"group_protocol": "classic", "assignor": "range"}
        async with Member(cluster, "t", **options) as first:
            await shared([first], topics, within_s=5)
            async with Member(cluster, "t", **options) as second:
                await shared([first, second], topics, within_s=15)
                everything = sorted(partitions_of(topics))
                assert first.told == [
                    ("assigned", everything),
                    ("revoked", everything),
                    ("assigned", sorted(first.owned)),
                ]

    run(main())


class ByLetter:
    """An assignor of one's own: whoever says in its user data that it wants a partition gets it."""

    name = "by-letter"
    cooperative = True

    def __init__(self, wanted: bytes, *, mistake: str = "") -> None:
        self.user_data = wanted
        self.mistake = mistake
        self.generations: set[int] = set()  # of owners, as they have told them

    def assign(
        self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        self.generations |= {member.generation for member in members.values() if member.owned}
        found: dict[str, list[TopicPartition]] = {}
        for member_id, member in members.items():
            for number in member.user_data:
                found.setdefault(member_id, []).append(TopicPartition("t", number))
        if self.mistake == "raises":
            raise ZeroDivisionError("of the application")
        if self.mistake == "twice":
            found = {member_id: [TopicPartition("t", 0)] for member_id in members}
        if self.mistake == "unknown":
            found = {next(iter(members)): [TopicPartition("t", 99)]}
        if self.mistake == "forgets to return":
            return None  # type: ignore[return-value]
        return found


class WithoutUserData(ByLetter):
    """Its user data is a function, which fails."""

    def __init__(self) -> None:
        super().__init__(b"")
        self.user_data = self.tell  # type: ignore[assignment]

    def tell(self, topics: tuple[str, ...]) -> bytes:
        raise ZeroDivisionError("of the application")


def test_an_assignor_of_one_s_own() -> None:
    async def main() -> None:
        cluster = cluster_of({"t": 4})
        FakeGroups(cluster)
        everything = partitions_of({"t": 4})

        def member(wanted: bytes) -> Member:
            return Member(cluster, "t", group_protocol="classic", assignor=ByLetter(wanted))

        async with member(b"\x01\x03") as first, member(b"\x00\x02") as second:
            await shared([first, second], {"t": 4}, within_s=20)
            assert {number for _, number in first.owned} == {1, 3}
            assert first.owned | second.owned == everything

    run(main())


def test_an_assignor_sees_the_generation_in_which_a_member_got_what_it_owns() -> None:
    async def main() -> None:
        cluster = cluster_of({"t": 4})
        FakeGroups(cluster)
        assignors = ByLetter(b"\x01\x03"), ByLetter(b"\x00\x02")
        first, second = (Member(cluster, "t", group_protocol="classic", assignor=assignor) for assignor in assignors)
        async with first:
            await until(lambda: len(first.owned) == 2)
            async with second:
                await until(lambda: len(second.owned) == 2)
        assert min(assignors[0].generations | assignors[1].generations) >= 1

    run(main())


@pytest.mark.parametrize("mistake", ["raises", "twice", "unknown", "forgets to return"])
def test_an_assignor_that_is_wrong_is_told_of_it_and_stops_nobody_else(mistake: str) -> None:
    async def main() -> None:
        topics = {"t": 4}
        cluster = cluster_of(topics)
        FakeGroups(cluster)
        wrong = Member(cluster, "t", group_protocol="classic", assignor=[ByLetter(b"", mistake=mistake)])
        async with Member(cluster, "t", group_protocol="classic", assignor=ByLetter(bytes(range(4)))) as right:
            await shared([right], topics, within_s=5)
            await right.stop_polling()
            await right.consumer.close()
        async with wrong:
            other = Member(cluster, "t", group_protocol="classic", assignor=ByLetter(bytes(range(4))))
            async with other:
                await until(lambda: wrong.errors)
                await wrong.stop_polling()
                await shared([other], topics, within_s=30)
        assert isinstance(wrong.errors[0], InvalidAssignmentError) and "by-letter" in wrong.errors[0].message

    run(main())


def test_user_data_that_fails_is_told_to_the_application() -> None:
    """The task that talks to the coordinator ended without a word, and poll returned nothing for ever."""

    async def main() -> None:
        cluster = cluster_of({"t": 4})
        FakeGroups(cluster)
        async with Member(cluster, "t", group_protocol="classic", assignor=[WithoutUserData()]) as wrong:
            await until(lambda: wrong.errors)
            await wrong.stop_polling()
        assert isinstance(wrong.errors[0], InvalidAssignmentError) and "user_data" in wrong.errors[0].message

    run(main())


@kinds
def test_a_coordinator_that_moves_costs_nobody_a_partition(kind: dict[str, Any]) -> None:
    async def main() -> None:
        topics = {"t": 4}
        cluster = cluster_of(topics)
        groups = FakeGroups(cluster)
        async with Member(cluster, "t", **kind) as first, Member(cluster, "t", **kind) as second:
            await shared([first, second], topics, within_s=15)
            before = [list(member.told) for member in (first, second)]
            groups.move()
            await asyncio.sleep(20)
            assert [member.told for member in (first, second)] == before
            async with Member(cluster, "t", **kind) as third:
                await shared([first, second, third], topics, within_s=15)

    run(main())


@kinds
def test_a_member_that_hangs_loses_its_partitions_and_comes_back(kind: dict[str, Any]) -> None:
    async def main() -> None:
        topics = {"t": 4}
        cluster = cluster_of(topics)
        FakeGroups(cluster)
        async with (
            Member(cluster, "t", **kind, max_poll_interval_ms=8_000) as first,
            Member(cluster, "t", **kind, max_poll_interval_ms=8_000) as second,
        ):
            await shared([first, second], topics, within_s=15)
            await first.stop_polling()
            await asyncio.sleep(30)
            assert second.owned == partitions_of(topics)
            first.polling = asyncio.create_task(first.poll())
            # Lost, not revoked: it cannot commit any more.
            await until(lambda: "lost" in [name for name, _ in first.told], within_s=1)
            await shared([first, second], topics, within_s=20)

    run(main())


@kinds
def test_topics_that_come_and_grow_are_picked_up(kind: dict[str, Any]) -> None:
    async def main() -> None:
        cluster = cluster_of({"t-1": 2, "other": 1})
        groups = FakeGroups(cluster)
        async with (
            Member(cluster, pattern="t-.*", **kind) as first,
            Member(cluster, pattern="t-.*", **kind) as second,
        ):
            await shared([first, second], {"t-1": 2}, within_s=15)
            cluster.create("t-2", 2)
            cluster.create("t-1", 4)
            groups.topics_changed()
            await shared([first, second], {"t-1": 4, "t-2": 2}, within_s=400)

    run(main())


@kinds
def test_a_subscription_that_changes(kind: dict[str, Any]) -> None:
    async def main() -> None:
        cluster = cluster_of({"t": 2, "u": 3})
        FakeGroups(cluster)
        async with Member(cluster, "t", **kind) as member:
            await shared([member], {"t": 2}, within_s=15)
            await member.consumer.subscribe("u")
            await shared([member], {"u": 3}, within_s=15)
            await member.consumer.unsubscribe()
            assert member.owned == set() and member.told[-1][0] == "revoked"
            await member.consumer.subscribe("t", "u")
            await shared([member], {"t": 2, "u": 3}, within_s=15)

    run(main())


@kinds
def test_what_a_listener_commits_is_taken_and_the_next_owner_goes_on_there(kind: dict[str, Any]) -> None:
    async def main() -> None:
        topics = {"t": 2}
        cluster = cluster_of(topics)
        FakeGroups(cluster)
        outcomes: list[str] = []

        async def commit(partitions: list[TopicPartition]) -> None:
            await first.commit({partition: OffsetAndMetadata(7, "by the listener") for partition in partitions})
            outcomes.append("taken")

        first = Consumer(
            "t",
            client=cluster.client(),
            group="g",
            auto_offset_reset="earliest",
            auto_commit=False,
            on_revoked=commit,
            **kind,
        )
        async with first:
            while len(first.assignment) < 2:
                await first.poll(timeout_ms=50)
            async with Member(cluster, "t", auto_commit=False, **kind) as second:
                while not second.owned:
                    await first.poll(timeout_ms=50)
                await asyncio.sleep(0.5)
                (partition,) = second.owned
                assert {offset for _, offset in second.read} == {7, 8, 9}
                found = await second.consumer.committed_offsets(partition)
                assert found[partition] == OffsetAndMetadata(7, "by the listener")
        assert outcomes and set(outcomes) == {"taken"}  # When it closed, too.

    run(main())


@kinds
def test_a_commit_that_outlives_its_partition_does_not_undo_the_next_owner_s(kind: dict[str, Any]) -> None:
    async def main() -> None:
        topics = {"t": 2}
        cluster = cluster_of(topics)
        groups = FakeGroups(cluster)
        async with Member(cluster, "t", auto_commit=False, **kind) as first:
            await shared([first], topics, within_s=15)
            real = cluster.answers[ApiKey.OFFSET_COMMIT]
            cluster.answers[ApiKey.OFFSET_COMMIT] = lambda *_: refused(16)
            commit = first.consumer.commit_nowait({partition: 5 for partition in first.owned})
            async with Member(cluster, "t", auto_commit=False, **kind) as second:
                await shared([first, second], topics, within_s=20)
                cluster.answers[ApiKey.OFFSET_COMMIT] = real
                with pytest.raises(NotAssignedError, match="another member"):
                    await commit
                found = groups.machine("g").offsets.fetch("g")
                committed = {TopicPartition(item.topic, item.partition) for item in found if item.offset >= 0}
                assert committed <= first.owned  # What it has kept all the time is committed.

    run(main())


def refused(code: int) -> Any:

    return ErrorResponse(error=code, message="scripted")


def test_a_static_member_of_a_classic_group_comes_back_unnoticed_and_fences_its_double() -> None:
    async def main() -> None:
        topics = {"t": 4}
        cluster = cluster_of(topics)
        FakeGroups(cluster)
        options = {"group_protocol": "classic"}
        async with Member(cluster, "t", **options) as other:
            async with Member(cluster, "t", instance_id="i", **options) as first:
                await shared([other, first], topics, within_s=20)
                had, told = first.owned, list(other.told)
            async with Member(cluster, "t", instance_id="i", **options) as again:
                await until(lambda: again.owned == had)
                assert other.told == told
                async with Member(cluster, "t", instance_id="i", **options) as double:
                    await again.stop_polling()
                    await until(lambda: double.owned == had)
                    await asyncio.sleep(5)
                    with pytest.raises(FencedInstanceIdError):
                        await again.consumer.poll()

    run(main())


def test_settings_that_do_not_go_together_are_refused() -> None:
    for options in (
        {"group_protocol": "eager"},
        {"assignor": ByLetter(b"")},
        {"group_protocol": "classic", "assignor": "nobody's"},
        {"group_protocol": "classic", "assignor": ["range", "cooperative-sticky"]},
        {"group_protocol": "classic", "assignor": []},
    ):
        with pytest.raises(InvalidConfigError):
            Consumer("t", group="g", **options)  # type: ignore[arg-type]


def test_a_pattern_without_a_group() -> None:
    async def main() -> None:
        cluster = cluster_of({"t-1": 1, "t-2": 1, "other": 1})
        async with Consumer(pattern="t-.*", client=cluster.client(), auto_offset_reset="earliest") as reader:
            seen: set[str] = set()
            while seen != {"t-1", "t-2"}:
                seen |= {topic for topic, _ in await reader.poll()}
            cluster.create("t-3", 1)
            cluster.logs[TopicPartition("t-3", 0)].append(encode_batch([b"x"], timestamps_ms=[0]))
            while "t-3" not in seen:  # With the next metadata.
                seen |= {topic for topic, _ in await reader.poll(timeout_ms=10_000)}
            assert seen == {"t-1", "t-2", "t-3"}

    run(main())


def test_a_listener_that_fails_tells_the_application_and_holds_up_nobody() -> None:
    async def main() -> None:
        topics = {"t": 2}
        cluster = cluster_of(topics)
        FakeGroups(cluster)

        def fail(partitions: list[TopicPartition]) -> None:
            raise ZeroDivisionError("of the listener")

        async with AsyncExitStack() as stack:
            first = Consumer("t", client=cluster.client(), group="g", on_revoked=fail, auto_commit=False)
            await first.start()
            while len(first.assignment) < 2:
                await first.poll(timeout_ms=50)
            second = await stack.enter_async_context(Member(cluster, "t"))
            with pytest.raises(ZeroDivisionError):
                for _ in range(100):
                    await first.poll(timeout_ms=50)
            await until(lambda: second.owned, within_s=1)
            with pytest.raises(ZeroDivisionError):
                await first.close()
            await until(lambda: second.owned == partitions_of(topics), within_s=1)

    run(main())
