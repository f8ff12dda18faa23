"""Pipelined batches of an idempotent producer, the first of which is refused for now."""

from simulation.log_building import batch_of
from unit.net.handlers.handler_world import HandlerWorld, produce
from unit.net.shell_world import Client, partition, simulated, topic

from barnabas.log.errors import BarnabasError, ErrorCode, NotEnoughReplicasError, OutOfOrderSequenceError
from barnabas.log.record_batch import BatchHeader, read_header
from barnabas.log.record_codec import ProducerFields
from barnabas.log.topic_partition import TopicPartition
from barnabas.net.handlers.produce import ProduceHandler
from barnabas.net.handlers.refused_sequences import MAX_REFUSALS, RefusedSequences
from barnabas.net.protocol.responses import ProduceResponse

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
REFUSED, GAP = NotEnoughReplicasError("too few"), OutOfOrderSequenceError("a gap")
LAST_SEQUENCE = 2**31 - 1


def batch(sequence: int, *, producer_id: int = 5, epoch: int = 0) -> BatchHeader:
    fields = ProducerFields(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return read_header(batch_of(b"a", timestamp_ms=1, producer=fields))


def refused_at(sequence: int) -> RefusedSequences:
    known = RefusedSequences()
    assert known.told(T0, batch(sequence), REFUSED) is REFUSED
    return known


def test_batches_behind_a_refused_one_are_refused_alike_and_as_many_as_can_be_under_way() -> None:
    known = refused_at(7)
    told = [known.told(T0, batch(sequence), GAP) for sequence in (8, 9, 10, 11, 12)]
    assert told == [REFUSED] * 4 + [GAP]


def test_a_gap_without_a_refusal_before_it_stays_one() -> None:
    known = refused_at(7)
    others: list[tuple[TopicPartition, BatchHeader]] = [
        (T1, batch(8)),
        (T0, batch(8, producer_id=6)),
        (T0, batch(8, epoch=1)),
        (T0, batch(6)),
        (T0, batch(7)),
        (T0, batch(8, producer_id=-1)),
    ]
    assert [known.told(partition, header, GAP) for partition, header in others] == [GAP] * 6


def test_the_refused_batch_ends_it_when_it_is_appended_and_an_earlier_one_does_not() -> None:
    known = refused_at(7)
    known.appended(T0, batch(6))
    known.appended(T1, batch(7))
    assert len(known) == 1
    known.appended(T0, batch(7))
    assert len(known) == 0
    assert known.told(T0, batch(9), GAP) is GAP


def test_an_earlier_refusal_replaces_a_later_one_and_a_repeated_one_begins_again() -> None:
    known = refused_at(7)
    earlier: BarnabasError = NotEnoughReplicasError("earlier")
    known.told(T0, batch(8), NotEnoughReplicasError("later"))
    assert known.told(T0, batch(8), GAP) is REFUSED
    assert known.told(T0, batch(5), earlier) is earlier
    assert [known.told(T0, batch(sequence), GAP) for sequence in (6, 7, 8, 9, 10)] == [earlier] * 4 + [GAP]
    known.told(T0, batch(5), REFUSED)
    assert known.told(T0, batch(6), GAP) is REFUSED


def test_sequences_wrap() -> None:
    known = refused_at(LAST_SEQUENCE)
    assert known.told(T0, batch(0), GAP) is REFUSED
    assert known.told(T0, batch(LAST_SEQUENCE - 1), GAP) is GAP


def test_many_producers_do_not_grow_it() -> None:
    known = RefusedSequences()
    for producer_id in range(MAX_REFUSALS + 1):
        known.told(T0, batch(0, producer_id=producer_id), REFUSED)
    assert len(known) == MAX_REFUSALS
    assert known.told(T0, batch(1, producer_id=0), GAP) is GAP
    assert known.told(T0, batch(1, producer_id=1), GAP) is REFUSED


@simulated
async def test_an_in_sync_replica_that_returns_between_two_batches_leaves_no_gap() -> None:
    world = await HandlerWorld.start(topic("t", partition(0)))
    handler = ProduceHandler(world.services)

    def send(sequence: int) -> int:
        client = Client()
        fields = ProducerFields(producer_id=5, producer_epoch=0, base_sequence=sequence)
        handler(produce(world.batch(b"%d" % sequence, producer=fields), acks=-1), client, client.reply)  # type: ignore[arg-type]
        if not client.replies:
            return ErrorCode.NONE
        response = client.answer()
        assert isinstance(response, ProduceResponse)
        return response.partitions[0].error

    configs = {"t": {"min.insync.replicas": "2"}}
    assert send(0) == ErrorCode.NONE
    world.show(topic("t", partition(0, epoch=2, isr=(0,))), offset=11, topic_configs=configs)
    assert [send(1), send(2)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    world.show(topic("t", partition(0, epoch=3)), offset=12, topic_configs=configs)
    assert send(3) == ErrorCode.NOT_ENOUGH_REPLICAS and world.log().log_end_offset == 1
    assert [send(1), send(2), send(3)] == [ErrorCode.NONE] * 3 and world.log().log_end_offset == 4
    assert send(9) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
