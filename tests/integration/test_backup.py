"""`barnabas cluster backup`, `verify-backup` and `restore` on real clusters: what comes back, how often, and after kill -9."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from integration import kafka_wire
from integration.cluster import Cluster, clean_environment, full_isr, until
from integration.load import Load
from integration.wire import connected

from barnabas.log.format.record_batch import iter_headers
from barnabas.log.records.codec import encode
from barnabas.log.vocabulary.access.acls import Acl, Operation, PatternKind, Permission, ResourceKind
from barnabas.log.vocabulary.access.quotas import QuotaEntity
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.consumer.range_reader import RangeReader
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.share.share_consumer import ShareConsumer
from barnabas.net.programs.backup.contents import Contents, TopicContents, partition_folder, read_contents

pytestmark = pytest.mark.timeout(300)
Maker = Callable[..., Cluster]
LIMIT_S: Final = 120
Seen = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]  # time, key, value, headers


def command(verb: str, folder: Path, bootstrap: str, *more: str) -> list[str]:
    return [
        sys.executable,
        "-P",
        "-m",
        "barnabas",
        "cluster",
        verb,
        str(folder),
        "--bootstrap",
        bootstrap,
        "-f",
        "json",
        *more,
    ]


async def run(verb: str, folder: Path, bootstrap: str, *more: str, code: int = 0) -> dict[str, Any]:
    """What the command prints; with another exit code, its errors."""
    done = await asyncio.to_thread(
        subprocess.run, command(verb, folder, bootstrap, *more), capture_output=True, text=True,
        env=clean_environment(), timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    return found | {"stderr": done.stderr}


async def records_of(bootstrap: str, topic: str) -> dict[int, list[tuple[int, Seen]]]:
    """The committed records of each partition, in order, with their offsets."""
    async with Admin(bootstrap) as admin:
        ends = {place: at.offset for place, at in (await admin.list_offsets(topic)).items()}
    async with Consumer(
        bootstrap=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign(list(ends))
        async with asyncio.timeout(LIMIT_S):
            found: dict[int, list[tuple[int, Seen]]] = {place.partition: [] for place in ends}
            for place, end in ends.items():
                while await consumer.position(place) < end:
                    for other, records in (await consumer.poll(timeout_ms=100)).items():
                        found[other.partition].extend(
                            (record.offset, (record.timestamp_ms, record.key, record.value, tuple(record.headers)))
                            for record in records
                        )
    return found


def without_offsets(found: dict[int, list[tuple[int, Seen]]]) -> dict[int, list[Seen]]:
    return {partition: [seen for _, seen in records] for partition, records in found.items()}


async def next_record(bootstrap: str, group: str, place: TopicPartition) -> Seen | None:
    """What the group reads next; None: it has read everything."""
    async with Admin(bootstrap) as admin:
        lag = (await admin.group_offsets(group))[place]
        end = (await admin.list_offsets(place.topic))[place].offset
    found = (await records_of(bootstrap, place.topic))[place.partition]
    behind = [seen for offset, seen in found if offset >= lag.committed]
    assert lag.committed <= end
    return behind[0] if behind else None


async def fill(bootstrap: str) -> None:
    """Topics of three kinds, with gaps, a start that is not 0, and groups at places of all kinds."""
    rng = Random(7)
    async with Admin(bootstrap) as admin:
        await admin.create_topic("plain", partitions=2, replication_factor=1, configs={"retention.ms": "-1"})
        await admin.create_topic("paid", partitions=1, replication_factor=1)
        configs = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime", "segment.ms": "1000"}
        await admin.create_topic("table", partitions=1, replication_factor=1, configs=configs)
        await admin.create_topic("empty", partitions=3, replication_factor=1)
        await admin.quotas.alter(QuotaEntity(client_id="batch"), {"producer_byte_rate": 1e6})
    for codec in ("none", "zstd", "gzip"):
        async with Producer(bootstrap, compression=codec) as producer:
            for number in range(200):
                await producer.send(
                    "plain", rng.randbytes(number), key=b"%d" % number if number % 3 else None, partition=number % 2,
                    headers=[("codec", codec.encode()), ("none", None)], timestamp_ms=1_000_000_000_000 + number,
                )  # fmt: skip
            for number in range(50):
                await producer.send(
                    "table", b"%s %d" % (codec.encode(), number) if number % 9 else None, key=b"k%d" % (number % 7)
                )
    async with Producer(bootstrap, transactional_id="payments") as producer:
        for number in range(30):
            transaction = producer.transaction()
            await transaction.begin()
            for part in range(3):
                await transaction.send("paid", b"%d/%d" % (number, part))
            await (transaction.abort() if number % 4 == 3 else transaction.commit())
    async with Admin(bootstrap) as admin:
        await admin.delete_records("plain", 0, before_offset=37)
        ends = {topic: await admin.list_offsets(topic) for topic in ("plain", "paid", "table")}
        first, second = TopicPartition("plain", 0), TopicPartition("plain", 1)
        paid, table = TopicPartition("paid", 0), TopicPartition("table", 0)
        await admin.commit_offsets("early", {first: 3, second: 0, paid: 0})  # before the start
        await admin.commit_offsets("middle", {first: 201, second: 150, paid: 17, table: 100})
        await admin.commit_offsets("aborted", {paid: 13})
        await admin.commit_offsets(
            "done", {place: at.offset for offsets in ends.values() for place, at in offsets.items()}
        )


@pytest.fixture
async def filled(new_cluster: Maker) -> Cluster:
    cluster = await new_cluster(1, name="before").ready()
    await fill(cluster.bootstrap)
    return cluster


async def same(old: str, new: str) -> None:
    """Records in their order, settings, quotas, and where each group goes on."""
    for topic in ("plain", "paid", "table", "empty"):
        assert without_offsets(await records_of(old, topic)) == without_offsets(await records_of(new, topic)), topic
    async with Admin(old) as before, Admin(new) as after:
        for topic in ("plain", "paid", "table", "empty"):
            settings = [
                {entry.key: entry.value for entry in await admin.describe_configs(topic) if entry.source == "topic"}
                for admin in (before, after)
            ]
            assert settings[0] == settings[1]
        assert await before.quotas.find() == await after.quotas.find()
        groups = sorted(group.group_id for group in await before.list_groups())
        assert groups == sorted(group.group_id for group in await after.list_groups())
        places = [(group, place) for group in groups for place in await before.group_offsets(group)]
    assert len(places) == 3 + 4 + 1 + 4
    for group, place in places:
        assert await next_record(old, group, place) == await next_record(new, group, place), (group, place)


def topics_of(folder: Path) -> dict[str, TopicContents]:
    contents = read_contents(folder)
    assert isinstance(contents, Contents)
    return {topic.name: topic for topic in contents.topics}


async def test_a_backup_comes_back_as_it_was_on_other_brokers(
    filled: Cluster, new_cluster: Maker, tmp_path: Path
) -> None:
    folder = tmp_path / "backup"
    taken = await run("backup", folder, filled.bootstrap)
    assert (taken["run"], taken["topics"], taken["partitions"], taken["offsets_lost"]) == (1, 4, 7, 0)
    assert (folder / "backup.json").stat().st_mode & 0o777 == 0o600
    sound = await run("verify-backup", folder, "nowhere:1")
    assert sound["sound"] and sound["records"] > 0 and not sound["damage"]
    target = await new_cluster(3).ready()
    restored = await run("restore", folder, target.bootstrap)
    assert restored["complete"] and restored["records"] == sound["records"] and not restored["warnings"]
    await same(filled.bootstrap, target.bootstrap)
    async with Admin(target.bootstrap) as admin:
        assert not [name for name in await admin.list_topics() if name.startswith("barnabas-")]
        await full_isr(admin, ["plain"])
    refused = await run("restore", folder, target.bootstrap, code=1)
    assert "already: empty, paid, plain, table" in refused["stderr"] and "--replace" in refused["stderr"]
    async with Admin(target.bootstrap) as admin:
        assert not [name for name in await admin.list_topics() if name.startswith("barnabas-")]
    again = await run("restore", folder, target.bootstrap, "--replace")
    assert again["records"] == restored["records"]
    await same(filled.bootstrap, target.bootstrap)


async def test_files_have_the_committed_batches_byte_for_byte(filled: Cluster, tmp_path: Path) -> None:
    await run("backup", tmp_path, filled.bootstrap)
    topics = topics_of(tmp_path)
    for name, partition in (("plain", 1), ("table", 0)):
        async with Admin(filled.bootstrap) as admin:
            place = TopicPartition(name, partition)
            end = (await admin.list_offsets(name))[place].offset
            reader = RangeReader(
                admin.client,
                place,
                start=0,
                end=end,
                max_bytes=1 << 20,
                is_committed_only=False,
                topic_id="",
                timeout_ms=10_000,
            )
            fetched = b""
            while (chunk := await reader.next_chunk()) is not None:
                fetched += chunk.data
        found = topics[name].partitions[partition]
        inside = partition_folder(tmp_path, topics[name].topic_id, partition)
        assert b"".join((inside / segment.name).read_bytes() for segment in found.segments) == fetched
    paid = topics["paid"].partitions[0]
    data = (partition_folder(tmp_path, topics["paid"].topic_id, 0) / paid.segments[0].name).read_bytes()
    headers = list(iter_headers(data, verify_crc=True))
    assert not any(header.is_control for header in headers)  # no markers, and no aborted records
    assert sum(header.record_count for header in headers) == 3 * (30 - 30 // 4)


async def test_a_second_run_adds_what_is_new(filled: Cluster, new_cluster: Maker, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    await run("backup", folder, filled.bootstrap)
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("*.batches")}
    assert (await run("backup", folder, filled.bootstrap))["offsets_read"] == 0
    async with Admin(filled.bootstrap) as admin, Producer(filled.bootstrap) as producer:
        await admin.add_partitions("plain", 3)
        await admin.delete_topic("empty")
        await admin.create_topic("empty", partitions=3, replication_factor=1)  # another one now
        for number in range(100):
            await producer.send("plain", b"later", partition=number % 3)
        await producer.flush()
    taken = await run("backup", folder, filled.bootstrap)
    assert taken["run"] == 3 and taken["offsets_read"] == 100
    assert {path: path.stat().st_mtime_ns for path in files} == files
    target = await new_cluster(1).ready()
    await run("restore", folder, target.bootstrap)
    await same(filled.bootstrap, target.bootstrap)


async def test_runs_while_programs_write_and_transactions_are_open(new_cluster: Maker, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    old = await new_cluster(3, name="before").ready()
    async with Admin(old.bootstrap) as admin:
        await admin.create_topic("busy", partitions=3, replication_factor=3)
        await full_isr(admin, ["busy"])
    async with Producer(old.bootstrap, transactional_id="slow") as producer:
        transaction = producer.transaction()
        await transaction.begin()
        handle = await transaction.send("busy", b"in the end committed", partition=0)
        first_offset = (await handle).offset
        async with Load(old.bootstrap, "busy", partitions=3) as load:
            taken = [await run("backup", folder, old.bootstrap) for _ in range(2)]
            assert topics_of(folder)["busy"].partitions[0].next_offset == first_offset  # behind it, nothing is decided
            await transaction.commit()
            taken.append(await run("backup", folder, old.bootstrap))
        assert not load.failed
    await run("backup", folder, old.bootstrap)
    assert all(item["offsets_read"] > 0 for item in taken)
    assert (await run("verify-backup", folder, "nowhere:1"))["sound"]
    target = await new_cluster(1).ready()
    await run("restore", folder, target.bootstrap)
    found = [without_offsets(await records_of(bootstrap, "busy")) for bootstrap in (old.bootstrap, target.bootstrap)]
    assert found[0] == found[1]
    values = [value for records in found[1].values() for _, _, value, _ in records]
    assert len(values) == len(set(values)) == load.count + 1


async def test_damage_is_named_and_never_restored(filled: Cluster, new_cluster: Maker, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    await run("backup", folder, filled.bootstrap)
    topic = topics_of(folder)["plain"]
    path = partition_folder(folder, topic.topic_id, 1) / topic.partitions[1].segments[0].name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    found = await run("verify-backup", folder, "nowhere:1", code=3)
    assert not found["sound"] and [path.name in text for text in found["damage"]] == [True]
    target = await new_cluster(1).ready()
    refused = await run("restore", folder, target.bootstrap, code=1)
    assert f"{path} is damaged" in refused["stderr"]
    foreign = await run("backup", folder, target.bootstrap, code=1)
    assert "give another folder" in foreign["stderr"]


async def test_records_of_some_topics_and_the_settings_of_all(
    filled: Cluster, new_cluster: Maker, tmp_path: Path
) -> None:
    await run("backup", tmp_path, filled.bootstrap, "--topic", "pl*")
    target = await new_cluster(1).ready()
    await run("restore", tmp_path, target.bootstrap)
    found = [
        without_offsets(await records_of(bootstrap, "plain")) for bootstrap in (filled.bootstrap, target.bootstrap)
    ]
    assert found[0] == found[1]
    assert without_offsets(await records_of(target.bootstrap, "table")) == {0: []}
    async with Admin(target.bootstrap) as admin:
        settings = {entry.key: entry.value for entry in await admin.describe_configs("table")}
        assert settings["cleanup.policy"] == "compact"
        committed = await admin.group_offsets("middle")
    assert {place.topic for place in committed} == {"plain"}  # nothing is known of the others' records


def killed(verb: str, folder: Path, bootstrap: str, word: str, times: int) -> bool:
    """Kill the command when its log has this word so many times; whether it had to be killed."""
    process = subprocess.Popen(
        command(verb, folder, bootstrap), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=clean_environment(),
    )  # fmt: skip
    seen = 0
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            seen += word in line
            if seen == times:
                process.kill()
                return True
    assert process.returncode == 0
    return False


async def test_kill_9_in_both_directions_loses_and_doubles_nothing(
    filled: Cluster, new_cluster: Maker, tmp_path: Path
) -> None:
    folder = tmp_path / "backup"
    async with Producer(filled.bootstrap) as producer:
        for number in range(60_000):
            await producer.send("plain", b"%d" % number, key=b"%d" % number, partition=number % 2)
        await producer.flush()
    for times in (1, 2, 4):
        assert await asyncio.to_thread(killed, "backup", folder, filled.bootstrap, "event=partition", times)
        assert read_contents(folder) is None  # what there is of it is no backup
    taken = await run("backup", folder, filled.bootstrap)
    assert taken["run"] == 1
    assert (await run("verify-backup", folder, "nowhere:1"))["sound"]
    target = await new_cluster(3).ready()
    for word, times in (("event=topic_made", 2), ("event=restored", 1), ("event=restored", 3), ("event=left_out", 1)):
        is_killed = await asyncio.to_thread(killed, "restore", folder, target.bootstrap, word, times)
        assert is_killed == (word != "event=left_out")
    await same(filled.bootstrap, target.bootstrap)


async def test_permissions_come_back_where_there_is_an_authorizer(new_cluster: Maker, tmp_path: Path) -> None:
    guarded = {"authorizer_class_name": "acl", "super_users": "User:ANONYMOUS"}
    old = await new_cluster(1, name="before", **guarded).ready()
    wanted = [
        Acl(
            kind=ResourceKind.TOPIC, name="orders.", pattern=PatternKind.PREFIXED, principal="User:shop",
            operation=Operation.WRITE,
        ),
        Acl(
            kind=ResourceKind.GROUP, name="billing", principal="User:billing", operation=Operation.READ,
            permission=Permission.DENY, host="10.0.0.1",
        ),
    ]  # fmt: skip
    async with Admin(old.bootstrap) as admin:
        await admin.acls.add(wanted)
        await admin.users.add("shop", "secret")
        kept = sorted(map(repr, await admin.acls.find()))
    await run("backup", tmp_path, old.bootstrap)
    assert b"secret" not in (tmp_path / "backup.json").read_bytes()
    target = await new_cluster(1, name="guarded", **guarded).ready()
    restored = await run("restore", tmp_path, target.bootstrap)
    assert len(restored["warnings"]) == 1 and "barnabas user add" in restored["warnings"][0]
    async with Admin(target.bootstrap) as admin:
        assert sorted(map(repr, await admin.acls.find())) == kept and len(kept) == 2
    plain = await new_cluster(1, name="plain").ready()
    restored = await run("restore", tmp_path, plain.bootstrap)
    assert any("2 permissions are left out" in text for text in restored["warnings"])


async def test_records_without_a_time_and_share_groups(new_cluster: Maker, tmp_path: Path) -> None:
    """Kafka's protocol has records without a time. A share group is no consumer group of the same name afterwards."""
    old = await new_cluster(1, name="before").ready()
    async with Admin(old.bootstrap) as admin, Producer(old.bootstrap) as producer:
        await admin.create_topic("odd", partitions=1, replication_factor=1)
        await producer.send("odd", b"with a time", timestamp_ms=5)
        await producer.flush()
        node = old.nodes[0]
        with connected((node.host, node.port)) as sock:
            batch = kafka_wire.produce("odd", encode([b"none", b"some"], timestamps_ms=[-1, 7]))
            answer = kafka_wire.call(sock, kafka_wire.PRODUCE, 7, batch)
        assert answer.responses[0].partition_responses[0].error_code == 0
        async with ShareConsumer("odd", group="sharing", bootstrap=old.bootstrap) as consumer:

            async def has_begun() -> bool:
                await consumer.poll(timeout_ms=200)
                return bool(await admin.group_offsets("sharing"))

            await until(has_begun, "the share group has a place in the partition")
        assert [group.protocol for group in await admin.list_groups()] == ["share"]
    folder = tmp_path / "backup"
    await run("backup", folder, old.bootstrap)
    target = await new_cluster(1).ready()
    restored = await run("restore", folder, target.bootstrap)
    assert restored["complete"] and restored["records"] == 3 and restored["groups"] == 0
    (warning,) = restored["warnings"]
    assert "share group sharing is left out" in warning and "odd-0=" in warning
    (seen,) = without_offsets(await records_of(target.bootstrap, "odd")).values()
    assert [(time_ms, value) for time_ms, _, value, _ in seen] == [(5, b"with a time"), (-1, b"none"), (7, b"some")]
    async with ShareConsumer("odd", group="sharing", bootstrap=target.bootstrap) as consumer:
        await consumer.poll(timeout_ms=2_000)
