"""`barnabas mirror` between two clusters of ours, as a process that is killed, and from Apache Kafka."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

import pytest
from integration.cluster import Cluster, clean_environment, until

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.programs.mirror import mirror as mirror_module
from barnabas.net.programs.mirror.mirror import Mirror, MirrorConfig
from barnabas.net.programs.mirror.provenance import HEADER
from barnabas.net.programs.mirror.source import Read, Source, SourceTopic

LIMIT_S = 90
PARTITIONS = 3


def command(source: str, target: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "barnabas", "mirror", "--source", source, "--bootstrap", target, *more]


@contextmanager
def mirroring(source: str, target: str, *more: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        command(source, target, *more), stderr=subprocess.PIPE, text=True, env=clean_environment()
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def once(source: str, target: str, *more: str) -> str:
    """Mirror all that there is; what the command says at its end."""
    done = await asyncio.to_thread(
        subprocess.run,
        command(source, target, "--once", *more),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=clean_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


async def write(bootstrap: str, topic: str, values: Sequence[bytes | None], rng: Random) -> None:
    async with Producer(bootstrap=bootstrap, acks="all") as producer:
        for number, value in enumerate(values):
            await producer.send(
                topic,
                value,
                key=b"k%d" % (number % 7),
                headers=[("number", b"%d" % number), ("empty", None)] if number % 3 else None,
                partition=rng.randrange(PARTITIONS),
                timestamp_ms=1_700_000_000_000 + number,
            )


async def read(bootstrap: str, topic: str) -> dict[TopicPartition, list[ConsumerRecord]]:
    """All committed records, by partition."""
    found: dict[TopicPartition, list[ConsumerRecord]] = {}
    async with Admin(bootstrap) as admin:
        ends = {place: item.offset for place, item in (await admin.list_offsets(topic)).items()}
    async with Consumer(
        bootstrap=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign(list(ends))
        async with asyncio.timeout(LIMIT_S):
            for place, end in ends.items():
                while await consumer.position(place) < end:
                    for where, records in (await consumer.poll(timeout_ms=200)).items():
                        found.setdefault(where, []).extend(records)
    return found


def contents(records: Sequence[ConsumerRecord]) -> list[tuple[object, ...]]:
    """Without what a mirror adds."""
    return [
        (record.key, record.value, record.timestamp_ms, [item for item in record.headers or () if item[0] != HEADER])
        for record in records
    ]


async def is_equal(source: Cluster, target: Cluster, topic: str, copy: str) -> None:
    original, copied = await read(source.bootstrap, topic), await read(target.bootstrap, copy)
    assert {place.partition for place in original} == {place.partition for place in copied}
    for place, records in original.items():
        assert contents(copied[TopicPartition(copy, place.partition)]) == contents(records)


async def commit(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    async with Consumer(bootstrap=cluster.bootstrap, group=group, auto_commit=False) as consumer:
        consumer.assign(list(offsets))
        await consumer.commit(offsets)


@pytest.fixture
def two(new_cluster: Callable[..., Cluster]) -> tuple[Cluster, Cluster]:
    return new_cluster(1, name="west"), new_cluster(1, name="east")


@pytest.mark.timeout(240)
async def test_each_record_is_copied_once_though_mirror_and_brokers_are_killed(two: tuple[Cluster, Cluster]) -> None:
    west, east = [await cluster.ready() for cluster in two]
    rng = Random(5)
    async with west.admin() as admin:
        await admin.create_topic(
            "orders", partitions=PARTITIONS, configs={"retention.ms": "-1", "segment.bytes": "100000"}
        )
    total = 0
    for kill in ("mirror", "east", "west", "mirror"):
        with mirroring(west.bootstrap, east.bootstrap, "orders") as process:
            values = [b"%d" % number if number % 10 else None for number in range(total, total + 3_000)]
            writing = asyncio.create_task(write(west.bootstrap, "orders", values, rng))
            total += len(values)

            async def has_begun(least: int = total - 2_900) -> bool:
                with contextlib.suppress(BarnabasError):
                    async with east.admin() as admin:
                        return sum(item.offset for item in (await admin.list_offsets("orders")).values()) > least
                return False

            await until(has_begun, "the mirror copies")
            if kill == "mirror":
                process.kill()
                await writing
            elif kill == "east":
                east.kill(0)
                east.start(0)
                await writing
            else:
                await writing
                west.kill(0)
                west.start(0)
                await west.ready()
    await east.ready()
    await once(west.bootstrap, east.bootstrap, "orders")
    await is_equal(west, east, "orders", "orders")
    copied = await read(east.bootstrap, "orders")
    assert sum(map(len, copied.values())) == total
    async with east.admin() as admin:
        configs = {entry.key: entry.value for entry in await admin.describe_configs("orders")}
    assert (configs["retention.ms"], configs["segment.bytes"]) == ("-1", "100000")


async def test_a_source_that_is_away_costs_one_line_and_one_when_it_is_back(two: tuple[Cluster, Cluster]) -> None:
    """librdkafka's own lines, one for each failed connection, are not among them."""
    west, east = [await cluster.ready() for cluster in two]
    await write_one(west, "orders", b"one")

    async def has(count: int) -> bool:
        with contextlib.suppress(BarnabasError):
            async with east.admin() as admin:
                return sum(item.offset for item in (await admin.list_offsets("orders")).values()) >= count
        return False

    with mirroring(west.bootstrap, east.bootstrap, "orders", "--no-groups") as process:
        assert process.stderr is not None
        lines: list[str] = []
        reading = asyncio.create_task(asyncio.to_thread(lambda: lines.extend(iter(process.stderr.readline, ""))))  # type: ignore[union-attr]
        await until(partial(has, 1), "the mirror copies")
        west.kill(0)
        await until(lambda: any("event=source_away" in line for line in list(lines)), "it is told", timeout_s=60)
        west.start(0)
        await west.ready()
        await write_one(west, "orders", b"two")
        await until(partial(has, 2), "the mirror goes on")
        await until(lambda: any("event=source_back" in line for line in list(lines)), "it is told", timeout_s=60)
        process.terminate()
        await asyncio.wait_for(reading, 30)
    (away,) = [line for line in lines if "event=source_away" in line]
    assert f"address={west.bootstrap} since=20" in away and "it is tried again" in away
    assert len([line for line in lines if "event=source_back" in line]) == 1
    assert not [line for line in lines if "FAIL" in line or "event=again" in line or line.startswith("%")], lines


async def test_two_clusters_may_mirror_the_same_topic_into_each_other(two: tuple[Cluster, Cluster]) -> None:
    west, east = [await cluster.ready() for cluster in two]
    for cluster in (west, east):
        async with cluster.admin() as admin:
            await admin.create_topic("shared", partitions=PARTITIONS)
    await write(west.bootstrap, "shared", [b"west %d" % number for number in range(200)], Random(1))
    await write(east.bootstrap, "shared", [b"east %d" % number for number in range(300)], Random(2))
    for round_number in range(2):
        told = await once(west.bootstrap, east.bootstrap, "shared", "--name", "to-east")
        assert f"mirrored {0 if round_number else 200} records" in told
        told = await once(east.bootstrap, west.bootstrap, "shared", "--name", "to-west")
        assert f"mirrored {0 if round_number else 300} records" in told
    for cluster in (west, east):
        found = Counter(
            record.value for records in (await read(cluster.bootstrap, "shared")).values() for record in records
        )
        assert len(found) == 500 and set(found.values()) == {1}


async def test_a_group_goes_on_in_the_other_cluster_at_the_record_where_it_was(two: tuple[Cluster, Cluster]) -> None:
    """The source has gaps of markers and aborted transactions, and the copy has others."""
    west, east = [await cluster.ready() for cluster in two]
    async with west.admin() as admin:
        await admin.create_topic("jobs", partitions=PARTITIONS)
    async with Producer(bootstrap=west.bootstrap, transactional_id="t") as producer:
        for number in range(60):
            with contextlib.suppress(ZeroDivisionError):
                async with producer.transaction() as transaction:
                    for item in range(5):
                        value = b"%d/%d" % (number, item)
                        await transaction.send("jobs", value, partition=number % PARTITIONS)
                    if number % 4 == 0:
                        raise ZeroDivisionError
    originals = await read(west.bootstrap, "jobs")
    offsets = {
        TopicPartition("jobs", number): records[10 + number].offset for (_, number), records in originals.items()
    }
    async with west.admin() as admin:
        ends = {place: item.offset for place, item in (await admin.list_offsets("jobs")).items()}
    await commit(west, "workers", offsets)
    await commit(west, "done", ends)
    await once(west.bootstrap, east.bootstrap, "jobs", "--prefix", "west.")
    async with east.admin() as admin:
        workers, done = await admin.group_offsets("workers"), await admin.group_offsets("done")
    copies = await read(east.bootstrap, "west.jobs")
    for place, offset in offsets.items():
        copy = TopicPartition("west.jobs", place.partition)
        unread = [record.value for record in originals[place] if record.offset >= offset]
        assert [record.value for record in copies[copy] if record.offset >= workers[copy].committed] == unread
        assert done[copy].committed == done[copy].log_end_offset
    # A group that was used here since keeps its offsets if they are further.
    further = {place: lag.log_end_offset for place, lag in workers.items()}
    await commit(east, "workers", further)
    await once(west.bootstrap, east.bootstrap, "jobs", "--prefix", "west.")
    async with east.admin() as admin:
        assert {place: lag.committed for place, lag in (await admin.group_offsets("workers")).items()} == further


async def test_new_topics_and_partitions_are_found_and_a_second_mirror_replaces_the_first(
    two: tuple[Cluster, Cluster],
) -> None:
    west, east = [await cluster.ready() for cluster in two]
    async with west.admin() as admin:
        await admin.create_topic("a.1", partitions=1)
        await admin.create_topic("b.1", partitions=1)
    await once(west.bootstrap, east.bootstrap, "a.*")
    async with west.admin() as admin:
        await admin.add_partitions("a.1", PARTITIONS)
        await admin.create_topic("a.2", partitions=PARTITIONS)
    for topic in ("a.1", "a.2"):
        await write(west.bootstrap, topic, [b"%d" % number for number in range(50)], Random(3))
    with mirroring(west.bootstrap, east.bootstrap, "a.*") as first:

        async def has_all() -> bool:
            with contextlib.suppress(BarnabasError):  # the topics are not there yet
                return [sum(map(len, (await read(east.bootstrap, topic)).values())) for topic in ("a.1", "a.2")] == [
                    50,
                    50,
                ]
            return False

        await until(has_all, "both topics are copied")
        await once(west.bootstrap, east.bootstrap, "a.*")
        await write(west.bootstrap, "a.1", [b"more"] * 3, Random(4))
        _, told = await asyncio.to_thread(first.communicate, timeout=LIMIT_S)
        assert first.returncode != 0 and "another mirror with the name 'mirror' has taken over" in told
    async with east.admin() as admin:
        assert set(await admin.list_topics()) == {"a.1", "a.2", "barnabas-mirror-positions"}


async def test_from_the_end_begins_once_and_not_again_in_each_session(two: tuple[Cluster, Cluster]) -> None:
    west, east = [await cluster.ready() for cluster in two]
    async with west.admin() as admin:
        await admin.create_topic("late", partitions=PARTITIONS, configs={"retention.ms": "7777777"})
        await admin.create_topic("other", partitions=PARTITIONS)
    await write(west.bootstrap, "late", [b"before"] * 9, Random(6))
    assert "mirrored 0 records" in await once(west.bootstrap, east.bootstrap, "late", "--from", "end")
    await write(west.bootstrap, "late", [b"after"] * 20, Random(7))
    told = await once(west.bootstrap, east.bootstrap, "late", "--from", "end")
    assert "mirrored 20 records" in told and "event=set" not in told
    copied = await read(east.bootstrap, "late")
    assert {record.value for records in copied.values() for record in records} == {b"after"}
    async with west.admin() as admin:
        await admin.alter_config("late", {"retention.ms": "8888888"})
    told = await once(west.bootstrap, east.bootstrap, "late")
    assert "event=set topic=late key=retention.ms value=8888888" in told


async def test_a_name_belongs_to_one_source(two: tuple[Cluster, Cluster], new_cluster: Callable[..., Cluster]) -> None:
    west, east = [await cluster.ready() for cluster in two]
    south = await new_cluster(1, name="south").ready()
    for cluster in (west, south):
        async with cluster.admin() as admin:
            await admin.create_topic("t", partitions=PARTITIONS)
        await write(cluster.bootstrap, "t", [cluster.bootstrap.encode()] * 9, Random(8))
    await once(west.bootstrap, east.bootstrap, "t")
    refused = await asyncio.to_thread(
        subprocess.run,
        command(south.bootstrap, east.bootstrap, "t", "--once"),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=clean_environment(),
        check=False,
    )
    assert refused.returncode != 0 and "give each source its own --name" in refused.stderr
    assert "mirrored 9 records" in await once(south.bootstrap, east.bootstrap, "t", "--name", "south")


async def test_groups_are_moved_as_far_as_is_copied_and_not_under_their_members(two: tuple[Cluster, Cluster]) -> None:
    """Between the copies are many records that were written here."""
    west, east = [await cluster.ready() for cluster in two]
    place = TopicPartition("mix", 0)
    for cluster in (west, east):
        async with cluster.admin() as admin:
            await admin.create_topic("mix", partitions=1)

    async def fill(cluster: Cluster, name: str, numbers: range) -> None:
        async with Producer(bootstrap=cluster.bootstrap, acks="all") as producer:
            for number in numbers:
                await producer.send("mix", b"%s %d" % (name.encode(), number))

    await fill(west, "west", range(100))
    await once(west.bootstrap, east.bootstrap, "mix", "--no-groups")
    await fill(east, "east", range(4_000))
    await fill(west, "west", range(100, 200))
    for group in ("idle", "busy"):
        await commit(west, group, {place: 150})
    async with Consumer("mix", bootstrap=east.bootstrap, group="busy", auto_commit=False) as member:
        await member.poll(timeout_ms=5_000)
        await once(west.bootstrap, east.bootstrap, "mix")
        async with east.admin() as admin:
            assert (await admin.describe_group("busy")).members
            busy = (await admin.group_offsets("busy")).get(place)
            idle = (await admin.group_offsets("idle"))[place].committed
    assert busy is None or busy.committed < 0, "its offsets are its own"
    (records,) = (await read(east.bootstrap, "mix")).values()
    assert next(record.value for record in records if record.offset >= idle) == b"west 150"


async def write_one(cluster: Cluster, topic: str, *values: bytes | None, **more: Any) -> None:
    async with Producer(bootstrap=cluster.bootstrap, acks="all") as producer:
        for value in values:
            await producer.send(topic, value, partition=0, **more)


async def values_in(cluster: Cluster, topic: str) -> list[bytes | None]:
    return [record.value for found in (await read(cluster.bootstrap, topic)).values() for record in found]


async def test_a_topic_that_was_made_anew_is_copied_from_its_start_however_long_it_is(
    two: tuple[Cluster, Cluster],
) -> None:
    """Only a topic shorter than the former one was found to be another; of a longer one, the first records were left out."""
    west, east = [await cluster.ready() for cluster in two]
    for count in (5, 8, 3):
        async with west.admin() as admin:
            await admin.create_topic("anew", partitions=1)
        await write_one(west, "anew", *(b"%d/%d" % (count, number) for number in range(count)))
        assert f"mirrored {count} records" in await once(west.bootstrap, east.bootstrap, "anew", "--no-groups")
        async with west.admin() as admin:
            await admin.delete_topic("anew")
    assert Counter(await values_in(east, "anew")) == Counter(
        b"%d/%d" % (count, number) for count in (5, 8, 3) for number in range(count)
    )


async def test_records_that_come_while_no_mirror_runs_are_copied_after_a_start_at_the_end(
    two: tuple[Cluster, Cluster],
) -> None:
    """The place where a partition begins was not kept before its first record."""
    west, east = [await cluster.ready() for cluster in two]
    async with west.admin() as admin:
        await admin.create_topic("late", partitions=1)
    await write_one(west, "late", b"before")
    await once(west.bootstrap, east.bootstrap, "late", "--from", "end", "--no-groups")
    await write_one(west, "late", b"after")
    await once(west.bootstrap, east.bootstrap, "late", "--from", "end", "--no-groups")
    assert await values_in(east, "late") == [b"after"]


class UnsteadySource(Source):
    """It hides all topics for a moment, and then refuses a position that it has."""

    reads = listings = 0

    async def topics(self, patterns: Sequence[str]) -> dict[str, SourceTopic]:
        UnsteadySource.listings += 1
        return {} if self.listings == 2 else await super().topics(patterns)

    async def read(self) -> Read:
        UnsteadySource.reads += 1
        found = await super().read()
        if self.listings > 3 and self.reads % 3 == 0 and self.reads < 30:
            return Read(found.records, [TopicPartition("steady", 0)], found.ends)
        return found


async def test_a_source_that_hides_a_topic_or_refuses_a_position_is_not_copied_again(
    two: tuple[Cluster, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just started may show no topics, and a new leader not know its end: all was copied once more."""
    west, east = [await cluster.ready() for cluster in two]
    async with west.admin() as admin:
        await admin.create_topic("steady", partitions=1)
    await write_one(west, "steady", *(b"%d" % number for number in range(20)))
    monkeypatch.setattr(mirror_module, "Source", UnsteadySource)
    monkeypatch.setattr(mirror_module, "REFRESH_S", 0.3)
    config = MirrorConfig(
        name="m", topics=["steady"], source=west.bootstrap, bootstrap=east.bootstrap, groups=(), from_end=False
    )
    mirror = Mirror(config)
    running = asyncio.create_task(mirror.run())

    async def has_gone_on() -> bool:
        return UnsteadySource.listings > 5 and UnsteadySource.reads > 12

    await until(has_gone_on, "the mirror goes on")
    await write_one(west, "steady", b"more")

    async def has_all() -> bool:
        return b"more" in await values_in(east, "steady")

    await until(has_all, "the last record is copied")
    mirror.stop()
    await running
    assert await values_in(east, "steady") == [*(b"%d" % number for number in range(20)), b"more"]


async def test_a_header_that_no_mirror_has_written_does_no_harm(two: tuple[Cluster, Cluster]) -> None:
    """A number of 5,000 digits ended the mirror, at every start."""
    west, east = [await cluster.ready() for cluster in two]
    async with west.admin() as admin:
        await admin.create_topic("headers", partitions=1)
    for value in (b"x/" + b"9" * 5_000, b"", b"/", b"\xff/1", b"x/1;" * 100, b";" * 50):
        await write_one(west, "headers", value, headers=[(HEADER, value)])
    await once(west.bootstrap, east.bootstrap, "headers")
    assert len(await values_in(east, "headers")) == 6


async def test_a_group_at_the_end_is_not_moved_past_records_of_this_cluster(two: tuple[Cluster, Cluster]) -> None:
    """It had read all of its own cluster, and never saw what was written in the other one."""
    west, east = [await cluster.ready() for cluster in two]
    for cluster in (west, east):
        async with cluster.admin() as admin:
            await admin.create_topic("shared", partitions=1)
    await write_one(west, "shared", b"w1", b"w2")
    await once(west.bootstrap, east.bootstrap, "shared", "--no-groups")
    await write_one(east, "shared", b"e1", b"e2")
    await commit(west, "readers", {TopicPartition("shared", 0): 2})
    await once(west.bootstrap, east.bootstrap, "shared")
    async with east.admin() as admin:
        (lag,) = (await admin.group_offsets("readers")).values()
    place = TopicPartition("shared", 0)
    unread = [r.value for r in (await read(east.bootstrap, "shared"))[place] if r.offset >= lag.committed]
    assert unread == [b"e1", b"e2"]


async def test_what_the_source_has_taken_is_taken_here_too(two: tuple[Cluster, Cluster]) -> None:
    """The mirror ended, at every start, with a record of more than 1 MiB or of the future, and with one of the largest size: the
    copy is larger by a header."""
    west, east = [await cluster.ready() for cluster in two]
    configs = {"max.message.bytes": "3000000", "message.timestamp.after.max.ms": str((1 << 63) - 1)}
    async with west.admin() as admin:
        await admin.create_topic("any", partitions=1, configs=configs)
    large = Random(1).randbytes(2_999_900)
    async with Producer(bootstrap=west.bootstrap, acks="all", max_request_bytes=4_000_000) as producer:
        await producer.send("any", large, partition=0)
    await write_one(west, "any", b"tomorrow", timestamp_ms=round(time.time() * 1_000) + 86_400_000)
    for _ in range(2):
        await once(west.bootstrap, east.bootstrap, "any")
    assert await values_in(west, "any") == await values_in(east, "any") == [large, b"tomorrow"]


async def test_copies_of_copies_are_not_made_without_end(two: tuple[Cluster, Cluster]) -> None:
    """With a prefix in both directions and a pattern that fits all, each round made new topics."""
    west, east = [await cluster.ready() for cluster in two]
    async with west.admin() as admin:
        await admin.create_topic("orders", partitions=1)
    async with east.admin() as admin:
        await admin.create_topic("jobs", partitions=1)
    counts = []
    for _ in range(4):
        await once(west.bootstrap, east.bootstrap, "*", "--prefix", "west.", "--name", "to-east", "--no-groups")
        await once(east.bootstrap, west.bootstrap, "*", "--prefix", "east.", "--name", "to-west", "--no-groups")
        async with west.admin() as admin:
            counts.append(len(await admin.list_topics()))
    assert counts[-1] == counts[-2], counts


@pytest.mark.parametrize(
    "more, told",
    [
        (("--source", "127.0.0.1:1"), "the source does not answer"),
        (("--source", "{east}"), "the source is this cluster"),
        (("--source", "{west}", "--source-config", "/no/such/file"), "No such file"),
        (("--source", "{west}", "--name", "a b"), "--name a b"),
        (("--source", "{west}", "--groups", "g", "--no-groups"), "not both"),
    ],
    ids=["nobody there", "itself", "no file", "wrong name", "both"],
)
async def test_mistakes_are_answered(two: tuple[Cluster, Cluster], more: tuple[str, ...], told: str) -> None:
    west, east = [await cluster.ready() for cluster in two]
    places = {"west": west.bootstrap, "east": east.bootstrap}
    arguments = [sys.executable, "-m", "barnabas", "mirror", "x", "--bootstrap", east.bootstrap]
    process = await asyncio.create_subprocess_exec(
        *arguments, *(item.format(**places) for item in more), stderr=subprocess.PIPE, env=clean_environment()
    )
    assert process.stderr is not None
    text = ""
    try:
        async with asyncio.timeout(LIMIT_S):
            while told not in text:
                line = await process.stderr.readline()
                assert line, text
                text += line.decode()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()  # to the end of the pipes, which closes them
