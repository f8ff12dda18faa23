"""The quorum's port: foreign bytes end unread and unpickled, identities are checked, limits hold."""

import asyncio
import logging
import pathlib
import pickle
import random
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import msgpack
import pytest
from simulation.raft_files import PlainFiles
from unit.kraft.raft_quorums import finish, running

from barnabas.kraft.quorum.formation import VoterState
from barnabas.kraft.quorum.quorum import AppendOutcome, Leadership
from barnabas.kraft.raft.net.admission import MAX_CONFIRMING
from barnabas.kraft.raft.net.directory import DirectoryUnavailableError, ask_directory
from barnabas.kraft.raft.net.message_codec import read_message
from barnabas.kraft.raft.net.network import LoopNetwork
from barnabas.kraft.raft.net.refusals import (
    MAX_REMEMBERED_REFUSALS,
    MAX_STRANGERS_TOLD,
    STRANGER_TOLD_S,
    RefusalLog,
)
from barnabas.kraft.raft.net.transport import MAX_STRANGERS
from barnabas.kraft.raft.net.wire import (
    MAX_HELLO_BYTES,
    Hello,
    WireError,
    decode_hello,
    encode_hello,
    frame,
    split_frames,
    unpack,
    voters_hash,
)
from barnabas.kraft.raft.protocol.messages import AppendEntries
from barnabas.kraft.raft.quorum import RaftQuorum
from barnabas.log.vocabulary.quorum import CommittedCommand


class Silent:
    """A listener that only remembers."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []
        self.leads = asyncio.Event()

    def committed(self, commands: list[CommittedCommand]) -> None:
        self.commands += [command.command for command in commands]

    def restore(self, index: int, chunks: Iterable[bytes]) -> None:
        self.commands = [bytes(command) for chunk in chunks for command in msgpack.unpackb(chunk)]

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        view = list(self.commands)
        return lambda: [msgpack.packb(view)]

    def leadership_changed(self, leadership: Leadership) -> None:
        if leadership.is_self:
            self.leads.set()


class Voter:
    def __init__(self, quorum: RaftQuorum, listener: Silent, port: int, fatal: list[str]) -> None:
        self.quorum, self.listener, self.port, self.fatal = quorum, listener, port, fatal

    async def commit(self, command: bytes) -> AppendOutcome:
        outcome: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
        self.quorum.append(command, term=self.quorum.leadership.term, done=outcome.set_result)
        return await asyncio.wait_for(outcome, 10)


@pytest.fixture
async def voter(tmp_path: pathlib.Path, unused_tcp_port: int) -> AsyncIterator[Voter]:
    loop, listener, fatal = asyncio.get_running_loop(), Silent(), list[str]()
    with ThreadPoolExecutor(1) as executor:
        quorum = RaftQuorum(
            node_id=0,
            voters={0: ("127.0.0.1", unused_tcp_port)},
            directory=str(tmp_path),
            storage=PlainFiles(),
            network=LoopNetwork(),
            executor=executor,
            loop=loop,
            rng=random.Random(1),
            clock=loop.time,
            listener=listener,
            fatal=fatal.append,
            cluster_id="c1",
            broker_endpoint=b"broker-0:9092",
        )
        await quorum.start()
        await asyncio.wait_for(listener.leads.wait(), 10)
        yield Voter(quorum, listener, unused_tcp_port, fatal)
        await quorum.close()


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return (pathlib.Path.write_text, (pathlib.Path("/tmp/raft-pickle-bomb"), "boom"))  # type: ignore[return-value]


def length(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


FOREIGN = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("160301020001fc0303") + b"\0" * 64,
    "two gigabytes": b"\x7f\xff\xff\xff" + b"\0" * 100,
    "garbage": random.Random(1).randbytes(4000),
    "pickle": length(pickle.dumps(Bomb())),
    "pysyncobj": struct.pack("i", 40) + pickle.dumps(Bomb()),
    "msgpack of another kind": length(msgpack.packb({"type": "append_entries", "term": 10**9})),
    "deep msgpack": length(b"\x91" * 5000),
    "announced array": length(b"\xdd\xff\xff\xff\xff"),
    "a voter that is none": encode_hello(Hello(voter_id=77)),
    "an ourself": encode_hello(Hello(voter_id=0, voters_hash=voters_hash([0]))),
    "a message before the hello": frame({"type": "request_vote", "term": 9, "last_log_index": 9, "last_log_term": 9}),
}


@pytest.mark.parametrize("kind", FOREIGN)
async def test_foreign_bytes_end_the_connection_and_nothing_else(voter: Voter, kind: str) -> None:
    bomb = pathlib.Path("/tmp/raft-pickle-bomb")
    bomb.unlink(missing_ok=True)
    reader, writer = await asyncio.open_connection("127.0.0.1", voter.port)
    writer.write(FOREIGN[kind])
    try:
        await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        pass
    writer.close()
    assert not bomb.exists()
    assert await voter.commit(b"still here") is AppendOutcome.COMMITTED
    assert voter.quorum.leadership.term == 1
    assert not voter.fatal


async def test_an_observer_is_given_the_directory(voter: Voter) -> None:
    directory = await ask_directory(LoopNetwork(), "127.0.0.1", voter.port)
    assert (directory.node_id, directory.cluster_id, directory.leader_id) == (0, "c1", 0)
    assert directory.endpoints == {0: b"broker-0:9092"}


async def test_a_broker_of_another_cluster_that_asks_is_in_the_status(voter: Voter) -> None:
    await ask_directory(LoopNetwork(), "127.0.0.1", voter.port, cluster_id="another")
    (stranger,) = voter.quorum.status().strangers
    assert (stranger.host, stranger.cluster_id) == ("127.0.0.1", "another")


async def test_no_directory_where_nobody_listens(unused_tcp_port: int) -> None:
    with pytest.raises(DirectoryUnavailableError):
        await ask_directory(LoopNetwork(), "127.0.0.1", unused_tcp_port)


async def test_strangers_do_not_use_up_the_port(voter: Voter) -> None:
    pairs = [await asyncio.open_connection("127.0.0.1", voter.port) for _ in range(MAX_STRANGERS + 5)]
    refused = [asyncio.ensure_future(reader.read()) for reader, _ in pairs]
    done, _ = await asyncio.wait(refused, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    assert done
    for _, writer in pairs:
        writer.close()
    await asyncio.gather(*refused, return_exceptions=True)
    assert await voter.commit(b"x") is AppendOutcome.COMMITTED


class SilentHosts(LoopNetwork):
    """Nobody answers a dial, and nobody refuses it: the host of the other voter is off."""

    def __init__(self) -> None:
        self.dialing = self.most_dialing = 0

    async def connect(self, *_arguments: object, **_more: object) -> None:
        self.dialing += 1
        self.most_dialing = max(self.most_dialing, self.dialing)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.dialing -= 1


async def test_strangers_that_hang_up_do_not_make_us_dial_without_end(
    tmp_path: pathlib.Path, unused_tcp_port: int
) -> None:
    loop, network = asyncio.get_running_loop(), SilentHosts()
    with ThreadPoolExecutor(1) as executor:
        quorum = RaftQuorum(
            node_id=0,
            voters={0: ("127.0.0.1", unused_tcp_port), 1: ("192.0.2.1", 9)},
            directory=str(tmp_path),
            storage=PlainFiles(),
            network=network,
            executor=executor,
            loop=loop,
            rng=random.Random(1),
            clock=loop.time,
            listener=Silent(),
            fatal=pytest.fail,
        )
        await quorum.start()
        for token in range(1, 4 * MAX_CONFIRMING):
            reader, writer = await asyncio.open_connection("127.0.0.1", unused_tcp_port)
            writer.write(encode_hello(Hello(voter_id=1, state=VoterState.VOTER, token=token)))
            writer.write_eof()
            await reader.read()
            writer.close()
        await quorum.close()
    assert network.most_dialing == MAX_CONFIRMING


async def test_strangers_that_say_nothing_make_room_for_whoever_says_its_hello(voter: Voter) -> None:
    pairs = [await asyncio.open_connection("127.0.0.1", voter.port) for _ in range(MAX_STRANGERS)]
    directory = await ask_directory(LoopNetwork(), "127.0.0.1", voter.port)
    assert directory.node_id == 0
    assert await asyncio.wait_for(pairs[0][0].read(), timeout=3) == b""  # the one that had been silent for longest
    for _, writer in pairs:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for _, writer in pairs), return_exceptions=True)


async def test_the_thread_of_one_voter_commits_a_megabyte(voter: Voter) -> None:
    assert await voter.commit(b"x" * 1024 * 1024) is AppendOutcome.COMMITTED
    assert len(voter.listener.commands[-1]) == 1024 * 1024


def test_refusals_are_logged_once_per_address_and_bounded(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = RefusalLog(lambda: now)
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            log.refused(("10.0.0.1", 4000), "no hello")
        assert len(caplog.records) == 1
        for number in range(2 * MAX_REMEMBERED_REFUSALS):
            log.refused((f"10.1.{number}", 1), "no hello")
    assert len(log._said_at) == MAX_REMEMBERED_REFUSALS


def test_brokers_of_other_clusters_are_remembered_for_a_while_and_bounded() -> None:
    now = 0.0
    log = RefusalLog(lambda: now)
    log.other_cluster(("10.0.0.1", 4000), "theirs", "ours")
    now = 5.0
    log.other_cluster(("10.0.0.2", 4000), "\x1b[2J", "ours")
    told = [(stranger.host, stranger.cluster_id, stranger.age_ms) for stranger in log.strangers()]
    assert told == [("10.0.0.1", "theirs", 5000), ("10.0.0.2", "of an invalid id", 0)]
    now = STRANGER_TOLD_S
    assert [stranger.host for stranger in log.strangers()] == ["10.0.0.2"]
    for number in range(2 * MAX_STRANGERS_TOLD):
        log.other_cluster((f"10.1.0.{number}", 1), "theirs", "ours")
    assert len(log.strangers()) == MAX_STRANGERS_TOLD


def test_a_hello_survives_the_wire() -> None:
    hello = Hello(voter_id=3, cluster_id="c", voters_hash=5, state=VoterState.PRISTINE, endpoint=b"\x00e")
    frames = split_frames(bytearray(encode_hello(hello)), MAX_HELLO_BYTES)
    assert decode_hello(frames[0]) == hello


def test_frames_are_split_wherever_they_are_cut() -> None:
    data = frame([1]) + frame({"type": "ping"}) + frame([3])
    for cut in range(len(data)):
        buffer = bytearray(data[:cut])
        frames = split_frames(buffer, MAX_HELLO_BYTES)
        buffer += data[cut:]
        assert [unpack(body) for body in frames + split_frames(buffer, MAX_HELLO_BYTES)] == [
            (1,),
            {"type": "ping"},
            (3,),
        ]


APPEND = {"type": "append_entries", "term": 3, "commit_index": 1, "prevLogIdx": 4, "prevLogTerm": 2, "entries": ()}


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        {"type": "no such"},
        {"type": ["x"]},
        {"type": "pre_vote", "term": True, "last_log_index": 1, "last_log_term": 1},
        {"type": "request_vote", "term": 1},
        {**APPEND, "entries": ((b"", 5, 1),)},
        {**APPEND, "entries": ((b"\0x", 6, 1),)},
        {**APPEND, "entries": ((b"\0x", 5, 4),)},
        {**APPEND, "entries": (("text", 5, 1),)},
        {**APPEND, "prevLogIdx": None},
        {**APPEND, "serialized": (1, 2)},
        {"type": "form_state", "nonce": 1, "state": "BLANK"},
        {"type": "apply_command", "command": b"x"},
    ],
)
def test_messages_of_a_wrong_shape_are_refused(message: object) -> None:
    with pytest.raises(WireError):
        read_message(message)


def test_well_shaped_entries_pass() -> None:
    entries = ((b"\0x", 5, 1), (b"\0y", 6, 3))
    assert read_message({**APPEND, "entries": entries}) == AppendEntries(
        term=3, commit_index=1, prev_index=4, prev_term=2, entries=entries
    )


def test_encoded_entries_are_kept_for_one_turn_of_the_loop() -> None:
    """For the other followers, which get the same; all entries ever sent would fill the memory."""
    cluster = running()
    for _ in range(4):
        cluster.commit()
        cluster.loop.run_for(0.1)
        assert [node.quorum._transport._encoded for node in cluster.nodes.values()] == [{}, {}, {}]
    finish(cluster)
