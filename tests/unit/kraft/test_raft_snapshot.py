"""Snapshots on disk and on their way to another voter."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from simulation.raft_disk import FakeDisk
from simulation.raft_loop import VirtualLoop

from barnabas.kraft.quorum.snapshot_format import DamagedSnapshot, pack_snapshot, unpack_snapshot
from barnabas.kraft.raft.disk.snapshot import SnapshotStore
from barnabas.kraft.raft.disk.storage import DamagedQuorumError
from barnabas.kraft.raft.protocol.snapshot_transfer import (
    TRANSFER_CHUNK_BYTES,
    TRANSFER_WINDOW_BYTES,
    SnapshotReceiver,
    SnapshotSender,
)
from barnabas.net.testing.simulation.executor import DelayedExecutor

LAST, PREV = (b"\0last", 9, 3), (b"\0prev", 8, 2)


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


def make_store(loop: VirtualLoop, disk: FakeDisk) -> SnapshotStore:
    executor = DelayedExecutor(loop, lambda: 0.1)
    return SnapshotStore(storage=disk, path="/q/s", loop=loop, executor=executor, clock=loop.time, wake=lambda: None)


def test_a_snapshot_keeps_its_chunks_and_its_place() -> None:
    snapshot = unpack_snapshot(pack_snapshot(LAST, PREV, [b"a" * 1000, b"", b"b"]))
    assert list(snapshot.chunks()) == [b"a" * 1000, b"", b"b"]
    assert (snapshot.last, snapshot.prev[1:]) == (LAST, (8, 2))


def test_every_damaged_byte_and_every_cut_is_noticed() -> None:
    data = pack_snapshot(LAST, PREV, [b"state"])
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(DamagedSnapshot):
            unpack_snapshot(bytes(damaged))
        with pytest.raises(DamagedSnapshot):
            unpack_snapshot(data[:position])


@pytest.mark.parametrize("wrong", [-1, 1 << 63, True, "1"])
@pytest.mark.parametrize("place", range(4))
def test_a_place_that_no_journal_has_is_damage(place: int, wrong: Any) -> None:
    numbers: list[Any] = [9, 3, 8, 2]
    numbers[place] = (1 << 63) - 1
    unpack_snapshot(pack_snapshot((b"c", numbers[0], numbers[1]), (b"", numbers[2], numbers[3]), []))
    numbers[place] = wrong
    with pytest.raises(DamagedSnapshot):
        unpack_snapshot(pack_snapshot((b"c", numbers[0], numbers[1]), (b"", numbers[2], numbers[3]), []))


def test_an_unknown_format_version_is_named() -> None:
    data = bytearray(pack_snapshot(LAST, PREV, []))
    data[4] = 9
    with pytest.raises(DamagedSnapshot, match="version 9"):
        unpack_snapshot(bytes(data))


def test_packing_happens_later_and_is_reported_once(loop: VirtualLoop) -> None:
    store = make_store(loop, FakeDisk(random.Random(1)))
    packed = []
    store.begin(LAST, PREV, lambda: packed.append(1) or [b"s"])  # type: ignore[func-returns-value]
    assert not packed
    assert not store.may_begin
    loop.run_for(0.2)
    assert store.take_finished() == 8
    assert store.take_finished() is None
    loaded = store.load()
    assert loaded is not None
    assert list(loaded.chunks()) == [b"s"]


def test_a_snapshot_of_the_leader_is_not_replaced_by_an_older_one_of_our_own(loop: VirtualLoop) -> None:
    store = make_store(loop, FakeDisk(random.Random(1)))
    store.begin(LAST, PREV, lambda: [b"old"])
    store.install(unpack_snapshot(pack_snapshot((b"\0", 50, 4), (b"\0", 49, 4), [b"new"])))
    loop.run_for(0.2)
    loaded = store.load()
    assert loaded is not None
    assert loaded.last_index == 50


def test_a_damaged_file_refuses_to_load(loop: VirtualLoop) -> None:
    disk = FakeDisk(random.Random(1))
    disk.write_atomically("/q/s", b"")
    with pytest.raises(DamagedQuorumError, match="/q/s"):
        make_store(loop, disk).load()


def transfer(data: bytes, *, lose: int | None = None) -> list[bool]:
    sender, receiver = SnapshotSender(lambda: data, lambda _peer: 0), SnapshotReceiver()
    whole = []
    for number in range(1000):
        chunk = sender.next_chunk(1)
        assert chunk is not None
        if number != lose:
            whole.append(receiver.receive(chunk) is not None)
        if chunk[2]:
            return whole
    raise AssertionError("endless")


def test_a_transfer_arrives_in_chunks() -> None:
    data = pack_snapshot(LAST, PREV, [random.Random(1).randbytes(3 * TRANSFER_CHUNK_BYTES)])
    assert transfer(data) == [False, False, False, True]


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_transfer_with_a_lost_chunk_is_not_taken(lost: int) -> None:
    data = pack_snapshot(LAST, PREV, [random.Random(1).randbytes(3 * TRANSFER_CHUNK_BYTES)])
    assert not any(transfer(data, lose=lost))


def test_a_slow_peer_is_waited_for() -> None:
    sender = SnapshotSender(lambda: b"x" * 10, lambda _peer: TRANSFER_WINDOW_BYTES + 1)
    assert sender.next_chunk(1) is None
