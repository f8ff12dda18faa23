"""`barnabas collect` as a process that is killed while files grow and are rotated: each line is in the topic once, in order."""

import asyncio
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest
from integration.cluster import Cluster, clean_environment, until
from integration.decided import markers_written

from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.programs.collect.positions import POSITIONS_TOPIC

ROUNDS = int(os.environ.get("BARNABAS_COLLECT_ROUNDS", "8"))
LINES = 4_000  # of each round and file
FILES = ("web.log", "api.log")


class Writer:
    """Writes numbered lines to a file that is renamed and begun again, as logrotate does it."""

    def __init__(self, path: Path, rng: Random) -> None:
        self._path = path
        self._rng = rng
        self._generation = 0
        self._file = path.open("ab", buffering=0)
        self.lines: list[bytes] = []

    def write(self, count: int) -> None:
        for _ in range(count):
            line = b"%s %d %s" % (self._path.name.encode(), len(self.lines), b"x" * self._rng.randrange(80))
            cut = self._rng.randrange(len(line)) if self._rng.random() < 0.01 else 0
            self._file.write(line[:cut])  # a line is read before its end is written
            self._file.write(line[cut:] + b"\n")
            self.lines.append(line)

    def close(self) -> None:
        self._file.close()

    def rotate(self) -> None:
        self._generation += 1
        self._path.rename(self._path.with_name(f"{self._path.name}.{self._generation}"))
        self.write(self._rng.randrange(20))  # the writer does not know yet
        self._file.close()
        self._file = self._path.open("ab", buffering=0)


def command(cluster: Cluster, folder: Path, *more: str) -> list[str]:
    patterns = [str(folder / "*.log*")]
    return [sys.executable, "-m", "barnabas", "collect", *patterns, "--topic", "lines", "--name", "test",
            "--bootstrap", cluster.bootstrap, *more]  # fmt: skip


@contextmanager
def collecting(cluster: Cluster, folder: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "collect.out").open("ab") as output:
        process = subprocess.Popen(command(cluster, folder, *more), stderr=output, env=clean_environment())
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def collect_rest(cluster: Cluster, folder: Path, *more: str) -> str:
    done = subprocess.run(
        command(cluster, folder, "--once", *more),
        capture_output=True,
        text=True,
        timeout=120,
        env=clean_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


async def committed(cluster: Cluster, topic: str = "lines") -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    await markers_written(cluster.bootstrap)
    async with Consumer(
        topic, bootstrap=cluster.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        partitions = await consumer.partitions_for(topic)
        consumer.assign(partitions)
        ends = await consumer.end_offsets(*partitions)

        async def is_read() -> bool:
            for records in (await consumer.poll()).values():
                found.extend(records)
            return all([await consumer.position(partition) >= end for partition, end in ends.items()])

        await until(is_read, "all lines are read")
    return found


def has_begun(folder: Path, told: int) -> bool:
    """Whether the collector that was started last has looked at the folder."""
    with (folder / "collect.out").open("rb") as file:
        file.seek(told)
        return b"event=" in file.read()


async def write_and_kill(cluster: Cluster, folder: Path, writers: list[Writer], rng: Random) -> None:
    for number in range(ROUNDS):
        begun = partial(has_begun, folder, (folder / "collect.out").stat().st_size if number else 0)
        with collecting(cluster, folder):
            for writer in writers:
                writer.write(LINES)
            await until(begun, "the collector has found the files")
            for _ in range(rng.randrange(1, 30)):  # some hundred milliseconds, in which lines are collected
                for writer in writers:
                    writer.write(LINES // 20)
                    if rng.random() < 0.1:
                        writer.rotate()
                await asyncio.to_thread(os.sync)
            if number % 3 == 1:
                victim = rng.randrange(3)
                cluster.kill(victim)
                cluster.start(victim)


async def test_each_line_once_while_everything_is_killed(new_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster, rng = await new_cluster().ready(), Random(1)
    folder = tmp_path / "logs"
    folder.mkdir()
    with ExitStack() as stack:
        writers = [stack.enter_context(closing(Writer(folder / name, rng))) for name in FILES]
        await write_and_kill(cluster, folder, writers, rng)
    note = await asyncio.to_thread(collect_rest, cluster, folder)
    assert "collected " in note
    read: dict[bytes, list[bytes]] = {}
    for record in await committed(cluster):
        assert record.value is not None
        read.setdefault(record.value.split()[0], []).append(record.value)
    for writer, name in zip(writers, FILES, strict=True):
        assert read[name.encode()] == writer.lines
    assert "collected 0 records" in await asyncio.to_thread(collect_rest, cluster, folder)


async def test_a_second_collector_of_the_same_name_takes_over(shared_cluster: Cluster, tmp_path: Path) -> None:
    cluster = await shared_cluster.ready()
    (tmp_path / "a.log").write_bytes(b"one\n")
    more = ("--name", "twins", "--topic", "twins")
    with collecting(cluster, tmp_path, *more) as first:
        await until(lambda: is_collected(cluster, "twins", 1), "the first line")
        with collecting(cluster, tmp_path, *more), (tmp_path / "a.log").open("ab", buffering=0) as file:

            def write_more() -> int | None:
                file.write(b"more\n")  # it notices when it has something to collect
                return first.poll()

            code = await until(write_more, "the first collector stops")
            await until(lambda: is_collected(cluster, "twins", 2), "the second one goes on")
    assert code == 1
    assert "has taken over; give each its own --name" in (tmp_path / "collect.out").read_text()


async def is_collected(cluster: Cluster, topic: str, count: int) -> bool:
    async with cluster.admin() as admin:
        if topic not in await admin.list_topics():
            return False
    return len(await committed(cluster, topic)) >= count


async def test_a_removed_file_is_read_to_its_end_and_parsed_lines_have_their_time(
    shared_cluster: Cluster, tmp_path: Path
) -> None:
    cluster = await shared_cluster.ready()
    log = tmp_path / "access.log"
    line = '1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1\n'
    log.write_text(line + "not a line of this log\n")
    more = ("--name", "parsed", "--topic", "parsed", "--parse", "access")
    with collecting(cluster, tmp_path, *more):
        await until(lambda: is_collected(cluster, "parsed", 2), "two lines")
        with log.open("a") as file:
            log.unlink()
            file.write(line)
        await until(lambda: is_collected(cluster, "parsed", 3), "the line of the removed file")
    records = await committed(cluster, "parsed")
    assert [record.timestamp_ms for record in records][::2] == [1431857103000] * 2
    assert records[1].value == b"not a line of this log"
    assert records[1].headers == (("barnabas-parse-error", b"access"),)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--parse", "json", "--on-error", "stop"), "is no line of json; choose another --parse"),
        (("--first-line", "(?<=x)y"), "is not a valid regular expression of RE2"),
        (("--name", "a/b"), "--name a/b: use up to 100 letters"),
        (("--topic", "bad topic"), "bad topic"),
    ],
)
async def test_mistakes_are_told(shared_cluster: Cluster, tmp_path: Path, more: tuple[str, ...], told: str) -> None:
    cluster = await shared_cluster.ready()
    (tmp_path / "a.log").write_bytes(b"plain\n")
    done = await asyncio.to_thread(
        subprocess.run,
        command(cluster, tmp_path, "--topic", "mistakes", "--name", "mistakes", "--once", *more),
        capture_output=True,
        text=True,
        timeout=60,
        env=clean_environment(),
        check=False,
    )
    assert done.returncode in (1, 2) and told in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


async def test_more_files_than_the_process_may_open_are_an_error_at_once(
    shared_cluster: Cluster, tmp_path: Path
) -> None:
    """The collector used to wait for ever: the files left no descriptor for a connection."""
    cluster = await shared_cluster.ready()

    def limited(name: str, files: int) -> subprocess.CompletedProcess[str]:
        (tmp_path / name).mkdir()
        for number in range(files):
            (tmp_path / name / f"{number}.log").write_bytes(b"line\n")
        words = shlex.join(command(cluster, tmp_path / name, "--topic", name, "--name", name, "--once"))
        return subprocess.run(
            ["bash", "-c", f"ulimit -n 256; exec {words}"],
            capture_output=True, text=True, timeout=60, env=clean_environment(), check=False,
        )  # fmt: skip

    done = await asyncio.to_thread(limited, "too-many", 1_000)
    assert done.returncode == 1 and "ulimit -Hn" in done.stderr and "Traceback" not in done.stderr, done.stderr
    done = await asyncio.to_thread(limited, "enough", 100)
    assert done.returncode == 0 and "collected 100 records" in done.stderr, done.stderr


class Runs:
    """Runs of `barnabas collect --once` with a topic and a name of their own."""

    def __init__(self, cluster: Cluster, folder: Path, name: str, *more: str) -> None:
        self._cluster = cluster
        self._folder = folder
        self._topic = name
        self._more = ("--topic", name, "--name", name, *more)

    async def run(self, *more: str) -> str:
        return await asyncio.to_thread(collect_rest, self._cluster, self._folder, *self._more, *more)

    async def lines(self) -> list[bytes]:
        return [record.value or b"" for record in await committed(self._cluster, self._topic)]


async def test_once_collects_a_file_that_is_one_line_without_an_end(shared_cluster: Cluster, tmp_path: Path) -> None:
    runs = Runs(await shared_cluster.ready(), tmp_path, "without-end")
    (tmp_path / "a.log").write_bytes(b"the only line")
    assert "collected 1 records" in await runs.run()
    (tmp_path / "b.log").write_bytes(b"# a record\nof two lines\n")
    assert "collected 1 records" in await runs.run("--first-line", "^#")
    assert sorted(await runs.lines()) == [b"# a record\nof two lines", b"the only line"]


async def test_lines_of_a_file_that_was_moved_away_after_the_last_look(shared_cluster: Cluster, tmp_path: Path) -> None:
    """`olddir` of logrotate: the writer does not know yet."""
    cluster = await shared_cluster.ready()
    log, away = tmp_path / "a.log", tmp_path / "old"
    away.mkdir()
    log.write_bytes(b"1\n")
    more = ("--name", "moved", "--topic", "moved")
    with collecting(cluster, tmp_path, *more), log.open("ab", buffering=0) as file:
        await until(lambda: is_collected(cluster, "moved", 1), "the first line")
        log.rename(away / "moved")
        log.write_bytes(b"3\n")
        file.write(b"2\n")
        await until(lambda: is_collected(cluster, "moved", 3), "the lines of both files")
    assert sorted(record.value or b"" for record in await committed(cluster, "moved")) == [b"1", b"2", b"3"]


async def test_a_folder_that_cannot_be_read_for_a_while(shared_cluster: Cluster, tmp_path: Path) -> None:
    runs = Runs(await shared_cluster.ready(), tmp_path / "logs", "hidden")
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.log").write_bytes(b"1\n")
    link = tmp_path / "logs"
    link.symlink_to("real")
    await runs.run()
    link.unlink()
    link.symlink_to("logs")  # to itself: as root, permissions would not matter
    assert f"event=no_files pattern={link}/*.log*" in await runs.run()
    link.unlink()
    link.symlink_to("real")
    assert "collected 0 records" in await runs.run()


async def test_positions_behind_an_open_transaction_of_another_collector(
    shared_cluster: Cluster, tmp_path: Path
) -> None:
    cluster = await shared_cluster.ready()
    runs = Runs(cluster, tmp_path, "behind")
    (tmp_path / "a.log").write_bytes(b"1\n")
    await runs.run()
    async with Producer(cluster.bootstrap, transactional_id="killed", transaction_timeout_ms=8_000) as other:
        transaction = other.transaction()
        await transaction.begin()
        await (await transaction.send(POSITIONS_TOPIC, b"", key=b"killed/owner", partition=0))
        with (tmp_path / "a.log").open("ab") as file:
            file.write(b"2\n")
        await runs.run()
        with (tmp_path / "a.log").open("ab") as file:
            file.write(b"3\n")
        await runs.run()
    assert await runs.lines() == [b"1", b"2", b"3"]


async def test_from_the_end_is_decided_at_the_first_start(shared_cluster: Cluster, tmp_path: Path) -> None:
    runs = Runs(await shared_cluster.ready(), tmp_path, "from-end", "--from", "end")
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_bytes(b"old\n")
    await runs.run()
    with (tmp_path / "a.log").open("ab") as file:
        file.write(b"new of a\n")
    (tmp_path / "c.log").write_bytes(b"new of c\n")
    await runs.run()
    with (tmp_path / "b.log").open("ab") as file:
        file.write(b"new of b\n")
    await runs.run()
    assert sorted(await runs.lines()) == [b"new of a", b"new of b", b"new of c"]


async def test_a_file_with_the_inode_and_the_first_bytes_of_another(shared_cluster: Cluster, tmp_path: Path) -> None:
    runs = Runs(await shared_cluster.ready(), tmp_path, "alike")
    head = b"#Fields: " + b"column " * 50
    (tmp_path / "a.log").write_bytes(head + b"\n1\n")
    await runs.run()
    (tmp_path / "a.log").write_bytes(head + b"\n2\n3\n")
    await runs.run()
    (tmp_path / "a.log").rename(tmp_path / "of-somebody-else")
    (tmp_path / "of-somebody-else").write_bytes(head + b"\nprivate\nprivate\nprivate\n")
    await runs.run()
    (tmp_path / "of-somebody-else").write_bytes(b"private\n" * 1_000)
    await runs.run()
    assert await runs.lines() == [head, b"1", head, b"2", b"3"]


async def test_names_that_are_unusual(shared_cluster: Cluster, tmp_path: Path) -> None:
    runs = Runs(await shared_cluster.ready(), tmp_path, "names")
    (tmp_path / "a[1].log").write_bytes(b"1\n")
    (tmp_path / os.fsdecode(b"\xff.log")).write_bytes(b"2\n")
    told = await runs.run(str(tmp_path / "a[1].log"), str(tmp_path / "none"))
    assert "not UTF-8" in told and f"event=no_files pattern={tmp_path}/none" in told
    assert await runs.lines() == [b"1"]


async def test_lines_whose_json_does_not_fit_or_has_a_time_to_come(shared_cluster: Cluster, tmp_path: Path) -> None:
    cluster = await shared_cluster.ready()
    runs = Runs(cluster, tmp_path, "poison", "--parse", "syslog")
    message = b"<34>2026-01-02T03:04:05Z web a: " + b"\0" * 400_000
    (tmp_path / "a.log").write_bytes(message + b"\n<34>9000-01-02T03:04:05Z web a: b\n")
    assert "2 records, 1 of them not parsed" in await runs.run()
    records = await committed(cluster, "poison")
    assert records[0].value == message and b'"time":"9000-01-02' in (records[1].value or b"")


async def test_a_collector_stops_although_no_broker_answers(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = await new_cluster().ready()
    (tmp_path / "a.log").write_bytes(b"1\n")
    with collecting(cluster, tmp_path) as process:
        await until(lambda: is_collected(cluster, "lines", 1), "the first line")
        for number in range(3):
            cluster.kill(number)
        (tmp_path / "a.log").write_bytes(b"1\n2\n")
        process.terminate()
        assert await asyncio.to_thread(process.wait, 90) == 0
