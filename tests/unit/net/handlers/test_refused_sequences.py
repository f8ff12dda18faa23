"""Pipelined batches of an idempotent producer, the first of which is refused for now."""

import asyncio
import gc
import struct
import weakref
from dataclasses import replace
from typing import Protocol

import pytest
from crc32c import crc32c
from simulation.log_building import batch_of
from unit.net.handlers.handler_world import HandlerWorld, produce
from unit.net.shell_world import Client, partition, simulated, topic

from barnabas.log.format.compression import Compression
from barnabas.log.format.record_batch import CRC_COVERS_FROM, CRC_POSITION, BatchHeader, patch, read_header
from barnabas.log.format.record_codec import ProducerFields
from barnabas.log.vocabulary.errors import ErrorCode, NotEnoughReplicasError, OutOfOrderSequenceError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.handlers.records.overtaken import MAX_GAPS, MAY_LAST_MS, Gap, Overtaken
from barnabas.net.handlers.records.produce import ProduceHandler
from barnabas.net.handlers.records.refused_sequences import MAX_REFUSALS, RefusedSequences
from barnabas.net.wire.protocol.requests import ProducePartition, ProduceRequest
from barnabas.net.wire.protocol.responses import ProduceResponse

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
REFUSED = NotEnoughReplicasError("too few")
LAST_SEQUENCE = 2**31 - 1
CRC = struct.Struct(">I")
LAST_OFFSET_DELTA, LAST_OFFSET_DELTA_POSITION = struct.Struct(">i"), 23


def batch(sequence: int, *, producer_id: int = 5, epoch: int = 0) -> BatchHeader:
    fields = ProducerFields(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return read_header(batch_of(b"a", timestamp_ms=1, producer=fields))


def refused_at(sequence: int) -> RefusedSequences:
    known = RefusedSequences()
    known.refused(T0, batch(sequence), REFUSED)
    return known


def told(known: RefusedSequences, *sequences: int) -> list[str]:
    """What the batches with these sequences are told, "" for those that may be appended."""
    found = [known.before(T0, batch(sequence)) for sequence in sequences]
    return ["" if error is None else error.message for error in found]


def test_batches_behind_a_refused_one_are_refused_alike_and_as_many_as_can_be_under_way() -> None:
    known = refused_at(7)
    assert told(known, 8, 9, 10, 11, 12) == ["too few"] * 4 + [""]


def test_a_batch_without_a_refusal_before_it_may_be_appended() -> None:
    known = refused_at(7)
    others: list[tuple[TopicPartition, BatchHeader]] = [
        (T1, batch(8)),
        (T0, batch(8, producer_id=6)),
        (T0, batch(8, epoch=1)),
        (T0, batch(6)),
        (T0, batch(7)),
        (T0, batch(8, producer_id=-1)),
    ]
    assert [known.before(partition, header) for partition, header in others] == [None] * 6


def test_only_a_refusal_for_now_is_remembered_and_only_of_a_producer_with_sequences() -> None:
    known = RefusedSequences()
    known.refused(T0, batch(7), OutOfOrderSequenceError("a gap"))
    known.refused(T0, batch(7, producer_id=-1), REFUSED)
    assert len(known.refusals) == 0


def test_the_refused_batch_ends_it_when_it_is_appended_and_an_earlier_one_does_not() -> None:
    known = refused_at(7)
    known.appended(T0, batch(6))
    known.appended(T1, batch(7))
    assert len(known.refusals) == 1
    known.appended(T0, batch(7))
    assert len(known.refusals) == 0
    assert told(known, 9) == [""]


def test_an_earlier_refusal_replaces_a_later_one_and_a_repeated_one_begins_again() -> None:
    known = refused_at(7)
    known.refused(T0, batch(8), NotEnoughReplicasError("later"))
    assert told(known, 8) == ["later"]
    known.refused(T0, batch(5), NotEnoughReplicasError("earlier"))
    assert told(known, 6, 7, 8, 9, 10) == ["earlier"] * 4 + [""]
    known.refused(T0, batch(5), REFUSED)
    assert told(known, 6) == ["too few"]


def test_a_refused_batch_that_came_by_another_leader_is_waited_for_no_more() -> None:
    known = refused_at(7)
    assert known.before(T0, batch(20), 20) is None  # in order
    assert known.before(T0, batch(22), 21) is None and len(known.refusals) == 0  # a true gap


def test_what_is_refused_later_counts_though_the_first_refused_batch_has_come_since() -> None:
    known = refused_at(7)
    known.refused(T0, batch(20), REFUSED)
    refused = [known.before(T0, batch(sequence), 20) is not None for sequence in (21, 22, 20, 21, 22, 23)]
    assert refused == [True, True, False, True, True, False]


def test_a_batch_behind_the_refused_one_that_was_appended_ends_it() -> None:
    """It was told often enough that its predecessor is missing, and the log took it then."""
    known = refused_at(7)
    known.appended(T0, batch(8))
    assert len(known.refusals) == 0


def test_sequences_wrap() -> None:
    known = refused_at(LAST_SEQUENCE)
    assert told(known, 0, LAST_SEQUENCE - 1) == ["too few", ""]


def test_many_producers_do_not_grow_it() -> None:
    known = RefusedSequences()
    for producer_id in range(MAX_REFUSALS + 1):
        known.refused(T0, batch(0, producer_id=producer_id), REFUSED)
    assert len(known.refusals) == MAX_REFUSALS
    assert known.before(T0, batch(1, producer_id=0)) is None
    assert known.before(T0, batch(1, producer_id=1)) is not None


class Send(Protocol):
    def __call__(self, sequence: int, *, epoch: int = 0) -> int: ...


def sender(world: HandlerWorld) -> Send:
    """Send a batch with this sequence; the error that it is answered with."""
    handler = ProduceHandler(world.services)

    def send(sequence: int, *, epoch: int = 0) -> int:
        client = Client()
        fields = ProducerFields(producer_id=5, producer_epoch=epoch, base_sequence=sequence)
        handler(produce(world.batch(b"%d" % sequence, producer=fields), acks=-1), client, client.reply)  # type: ignore[arg-type]
        if not client.replies:
            return ErrorCode.NONE
        response = client.answer()
        assert isinstance(response, ProduceResponse)
        return response.partitions[0].error

    return send


TWO_IN_SYNC = {"t": {"min.insync.replicas": "2"}}


@simulated
async def test_an_in_sync_replica_that_returns_between_two_batches_leaves_no_gap() -> None:
    world = await HandlerWorld.start(topic("t", partition(0)))
    send = sender(world)
    assert send(0) == ErrorCode.NONE
    world.show(topic("t", partition(0, epoch=2, isr=(0,))), offset=11, topic_configs=TWO_IN_SYNC)
    assert [send(1), send(2)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    world.show(topic("t", partition(0, epoch=3)), offset=12, topic_configs=TWO_IN_SYNC)
    assert send(3) == ErrorCode.NOT_ENOUGH_REPLICAS and world.log().log_end_offset == 1
    assert [send(1), send(2), send(3)] == [ErrorCode.NONE] * 3 and world.log().log_end_offset == 4
    assert send(9) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@simulated
async def test_the_first_batches_of_a_producer_are_not_appended_behind_one_that_was_refused() -> None:
    """The log would take the second, and tell the producer of the first, when it comes again, that it has that."""
    world = await HandlerWorld.start(topic("t", partition(0)))
    send = sender(world)
    world.show(topic("t", partition(0, epoch=2, isr=(0,))), offset=11, topic_configs=TWO_IN_SYNC)
    assert send(0) == ErrorCode.NOT_ENOUGH_REPLICAS
    world.show(topic("t", partition(0, epoch=3)), offset=12, topic_configs=TWO_IN_SYNC)
    assert send(1) == ErrorCode.NOT_ENOUGH_REPLICAS and world.log().log_end_offset == 0
    assert [send(0), send(1), send(1)] == [ErrorCode.NONE] * 3 and world.log().log_end_offset == 2


class Received(bytearray):
    """A receive buffer whose end can be seen."""


@simulated
@pytest.mark.parametrize("kind", ["unknown", "refused for now", "nonsense", "later"])
async def test_a_refused_batch_does_not_keep_the_receive_buffer(kind: str) -> None:
    """A cycle of an error and its traceback would keep it until a full collection, which is rare: see broker_process."""
    replicas = (0,) if kind == "later" else (0, 1)
    world = await HandlerWorld.start(
        topic("t", partition(0, replicas=replicas)), **({"compression_type": "gzip"} if kind == "later" else {})
    )
    if kind == "refused for now":
        world.show(topic("t", partition(0, epoch=2, isr=(0,))), offset=11, topic_configs=TWO_IN_SYNC)
    handler, client = ProduceHandler(world.services), Client()
    fields = ProducerFields(producer_id=5, producer_epoch=0, base_sequence=0)
    received = Received(world.batch(b"a", producer=fields))
    if kind == "nonsense":
        received[CRC_COVERS_FROM + 1] |= Compression.ZSTD
        CRC.pack_into(received, CRC_POSITION, crc32c(memoryview(received)[CRC_COVERS_FROM:]))
    elif kind == "later":
        received[-1] ^= 1
    name = "nowhere" if kind == "unknown" else "t"
    gc.collect()
    gc.disable()
    try:
        handler(
            ProduceRequest(
                acks=-1,
                timeout_ms=1_000,
                partitions=(ProducePartition(topic=name, partition=0, records=memoryview(received)),),
            ),
            client,  # type: ignore[arg-type]
            client.reply,
        )
        while tasks := list(handler.tasks):
            await asyncio.wait(tasks)
        tasks.clear()
        response = client.answer()
        assert isinstance(response, ProduceResponse) and response.partitions[0].error
        is_kept = weakref.ref(received)
        del received
        assert is_kept() is None
    finally:
        gc.enable()


@simulated
async def test_a_refusal_of_a_former_term_holds_up_no_batch_that_is_in_order() -> None:
    """Batch 1 was refused here and went to another leader, which passed it on to this replica. Batch 5 is the next one: refused
    once more, the batches behind it would leave a gap as soon as the refusal has been repeated often enough."""
    world = await HandlerWorld.start(topic("t", partition(0)))
    send = sender(world)
    assert send(0) == ErrorCode.NONE
    world.show(topic("t", partition(1, epoch=2)), offset=11)
    assert send(1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    for sequence in range(1, 5):
        fields = ProducerFields(producer_id=5, producer_epoch=0, base_sequence=sequence)
        copied = bytearray(batch_of(b"a", timestamp_ms=1, producer=fields))
        patch(copied, 0, base_offset=sequence, leader_epoch=2)
        world.log().append_as_follower(copied, now_ms=1, is_fresh=True)
    world.show(topic("t", partition(0, epoch=3)), offset=12)
    assert [send(sequence) for sequence in (5, 6, 7, 8, 9)] == [ErrorCode.NONE] * 5
    assert send(11) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@simulated
async def test_a_new_leader_waits_for_a_batch_that_an_earlier_one_refused() -> None:
    """librdkafka sends the batch behind it first. Told of a gap, it would raise its epoch and write some records twice."""
    world = await HandlerWorld.start(topic("t", partition(0)))
    send = sender(world)
    assert [send(0), send(1)] == [ErrorCode.NONE] * 2
    world.show(topic("t", partition(0, epoch=2)), offset=11)
    assert [send(4), send(3), send(4)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 3
    assert [send(sequence) for sequence in (2, 3, 4)] == [ErrorCode.NONE] * 3
    assert send(6) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # it came to a leader that knows all before it
    world.show(topic("t", partition(0, epoch=3)), offset=12)
    assert send(3) == ErrorCode.NONE  # a repetition
    assert send(1, epoch=1) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert [send(0, epoch=1), send(1, epoch=1)] == [ErrorCode.NONE] * 2
    assert send(3, epoch=1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@simulated
async def test_a_new_leader_does_not_wait_for_ever() -> None:
    world = await HandlerWorld.start(topic("t", partition(0)))
    send = sender(world)
    assert send(0) == ErrorCode.NONE
    world.show(topic("t", partition(0, epoch=2)), offset=11)
    loop, answers = asyncio.get_running_loop(), []
    until = loop.time() + MAY_LAST_MS / 1000 + 1
    while loop.time() < until:
        answers.append(send(2))
        await asyncio.sleep(0.5)
    ended = answers.index(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert set(answers[:ended]) == {ErrorCode.NOT_ENOUGH_REPLICAS} and ended == 20
    assert send(1) == ErrorCode.NONE


@simulated
async def test_a_new_leader_waits_for_the_first_batch_of_a_producer_and_not_for_ever() -> None:
    """Behind the second one the first would be refused for good: the end of a producer of librdkafka."""
    world = await HandlerWorld.start(topic("t", partition(0)))
    send = sender(world)
    await asyncio.sleep(MAY_LAST_MS / 1000)
    world.show(topic("t", partition(0, epoch=2)), offset=11)
    assert [send(1), send(2)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2 and world.log().log_end_offset == 0
    assert [send(sequence) for sequence in (0, 1, 2, 1)] == [ErrorCode.NONE] * 4 and world.log().log_end_offset == 3
    world.log().producers.clear()  # as a producer that was silent for long
    assert send(9) == ErrorCode.NOT_ENOUGH_REPLICAS
    await asyncio.sleep(MAY_LAST_MS / 1000)
    assert [send(9), send(10)] == [ErrorCode.NONE] * 2


def test_many_gaps_do_not_grow_it() -> None:
    overtaken, gap = Overtaken(), Gap(leader_epoch=1, producer_epoch=0, expected=1)
    for producer_id in range(MAX_GAPS + 1):
        assert overtaken.may_close(producer_id, T0, gap, 0)
    assert len(overtaken) == MAX_GAPS
    assert overtaken.may_close(0, T0, gap, MAY_LAST_MS)  # forgotten: it begins again
    assert not overtaken.may_close(2, T0, gap, MAY_LAST_MS)
    assert overtaken.may_close(2, T0, replace(gap, leader_epoch=2), MAY_LAST_MS)


def test_each_partition_of_a_producer_has_its_own_gap() -> None:
    """A producer alternates between partitions: one gap must not begin the time of another again."""
    overtaken, gaps = Overtaken(), {T0: Gap(leader_epoch=1, producer_epoch=0, expected=1),
                                    T1: Gap(leader_epoch=1, producer_epoch=0, expected=5)}  # fmt: skip
    for now_ms in (0, MAY_LAST_MS - 1):
        assert all(overtaken.may_close(5, partition, gap, now_ms) for partition, gap in gaps.items())
    assert not any(overtaken.may_close(5, partition, gap, MAY_LAST_MS) for partition, gap in gaps.items())
    assert len(overtaken) == 2


def test_a_producer_with_a_new_gap_is_not_the_oldest_any_more() -> None:
    overtaken, gap = Overtaken(), Gap(leader_epoch=1, producer_epoch=0, expected=1)
    for producer_id in range(MAX_GAPS):
        overtaken.may_close(producer_id, T0, gap, 0)
    newer = replace(gap, leader_epoch=2)
    overtaken.may_close(0, T0, newer, 1)
    overtaken.may_close(MAX_GAPS, T0, gap, 1)  # one too many: producer 1 is forgotten
    assert not overtaken.may_close(0, T0, newer, 1 + MAY_LAST_MS)


@simulated
async def test_a_gap_behind_what_this_leader_has_stored_itself_is_told_at_once() -> None:
    world = await HandlerWorld.start(topic("t", partition(0)))
    send = sender(world)
    assert send(0) == ErrorCode.NONE
    world.show(topic("t", partition(0, epoch=2)), offset=11)
    assert send(1) == ErrorCode.NONE  # the first record of its term
    assert send(3) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@simulated
async def test_a_new_leader_leaves_the_judgement_of_a_damaged_batch_to_the_log() -> None:
    """INVALID_RECORD, and not the CORRUPT_MESSAGE of a look at the header before."""
    world = await HandlerWorld.start(topic("t", partition(0)))
    damaged = bytearray(world.batch(b"a"))
    LAST_OFFSET_DELTA.pack_into(damaged, LAST_OFFSET_DELTA_POSITION, -5)
    CRC.pack_into(damaged, CRC_POSITION, crc32c(memoryview(damaged)[CRC_COVERS_FROM:]))
    client = Client()
    ProduceHandler(world.services)(produce(bytes(damaged)), client, client.reply)  # type: ignore[arg-type]
    response = client.answer()
    assert isinstance(response, ProduceResponse)
    assert response.partitions[0].error == ErrorCode.INVALID_RECORD
