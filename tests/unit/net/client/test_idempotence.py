"""The queue of an idempotent producer against the state that a broker keeps, with lost, late and repeated requests."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.virtual_time import run

from barnabas.log.format.compression import Compression
from barnabas.log.format.record_batch import read_header
from barnabas.log.format.record_codec import iter_records
from barnabas.log.segment.producer_state import ProducerState
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    InvalidProducerEpochError,
    InvalidTimestampError,
    NetworkError,
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    UnsupportedVersionError,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import ProducerIdentity
from barnabas.net.client.connection.errors import DeliveryTimeoutError
from barnabas.net.client.producer.idempotence import MAX_EPOCH, MAX_IN_FLIGHT, IdempotentQueue, TransactionalQueue
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.producer.producer_config import idempotence_of
from barnabas.net.client.producer.record_accumulator import Batch
from barnabas.net.wire.protocol import responses as r
from barnabas.net.wire.protocol.api_keys import ApiKey

T0 = TopicPartition("t", 0)
MAX_BATCH_BYTES = 300


@dataclass
class Broker:
    """A leader: what it knows of producers decides what it appends."""

    log: list[bytes] = field(default_factory=list)
    producers: ProducerState = field(default_factory=ProducerState)

    def append(self, data: bytes) -> BarnabasError | None:
        header = read_header(data)
        if header.size_bytes > MAX_BATCH_BYTES:
            return RecordTooLargeError("too large")
        try:
            there = self.producers.check(
                header.producer_id, header.producer_epoch, header.base_sequence, header.record_count,
                is_transactional=header.is_transactional,
            )  # fmt: skip
        except BarnabasError as error:
            return error
        if there is None:
            self.producers.update(header, first_offset=len(self.log))
            self.log += [record.value or b"" for record in iter_records(data, check=True)]
        return None


class World:
    def __init__(self, queue: IdempotentQueue | None = None) -> None:
        self.queue = queue or IdempotentQueue(T0)
        if self.queue.lacks_id:
            self.queue.adopt(7)
        self.broker = Broker()
        self.asked: list[tuple[list[Batch], bytes]] = []  # without an answer
        self.held: list[tuple[list[Batch], BarnabasError | None]] = []  # answers that wait for another partition
        self.late: list[bytes] = []  # copies that the network still has
        self.sent: list[bytes] = []
        self.handles: list[tuple[Batch, int, bytes]] = []

    def send(self, records: int = 1, size_bytes: int = 0) -> None:
        batch = Batch(T0, room=10_000, created_ms=len(self.sent), stamp_ms=1)
        for _ in range(records):
            value = b"%d" % len(self.sent) + b"." * size_bytes
            self.handles.append((batch, batch.add(value, None, (), 1), value))
            self.sent.append(value)
        self.queue.open = batch
        self.queue.seal()

    def take(self) -> None:
        if self.queue.is_ready:
            self.asked.append(self.queue.take(1 << 20, Compression.NONE))

    def answer(self, error: BarnabasError | None) -> None:
        self._told(self.asked.pop(0)[0], error)

    def _told(self, sent: list[Batch], error: BarnabasError | None) -> None:
        if error is None:
            self.queue.acknowledge(sent, base_offset=0)
        else:
            self.queue.fail(sent, error)

    def step(self, what: str) -> None:
        match what:
            case "send":
                self.send()
            case "send many":
                self.send(4)
            case "send large":
                self.send(4, 100)
            case "take":
                self.take()
            case "expire":
                self.late.clear()  # what is later than the delivery timeout is later than anything
                number = len(self.sent) // 2
                self.queue.expire(number, lambda batch: DeliveryTimeoutError("late"))
            case "arrive late":
                if self.late:
                    self.broker.append(self.late.pop(0))
            case "lose held":
                self.answer_held(lost=True)
            case _ if self.asked:
                self.answered(what)

    def answer_held(self, *, lost: bool = False) -> None:
        """Answers come in any order, because a request may also wait for a slower partition."""
        if self.held:
            sent, outcome = self.held.pop(0)
            self._told(sent, NetworkError("lost") if lost else outcome)

    def answered(self, what: str) -> None:
        data = self.asked[0][1]
        match what:
            case "hold answer":
                self.held.append((self.asked.pop(0)[0], self.broker.append(data)))
            case "answer":
                self.answer(self.broker.append(data))
            case "answer twice":
                error = self.broker.append(data)
                self.broker.append(data)
                self.answer(error)
            case "lose answer":
                self.broker.append(data)
                self.answer(NetworkError("lost"))
            case "lose request":
                self.answer(NetworkError("lost"))
            case "delay":
                self.late.append(data)
                self.answer(NetworkError("lost"))
            case "too few":
                self.answer(NotEnoughReplicasError("too few"))
            case "refuse":
                self.answer(InvalidTimestampError("old"))

    def settle(self) -> None:
        """From here on all goes well."""
        for _ in range(10 * len(self.sent) + 10):
            self.take()
            while self.held:
                self.answer_held()
            while self.asked:
                self.answer(self.broker.append(self.asked[0][1]))
        assert not self.queue.batches()

    def check(self) -> None:
        positions = [self.sent.index(value) for value in self.broker.log]
        assert positions == sorted(set(positions)), "something is there twice, or out of order"
        for batch, index, value in self.handles:
            assert batch.is_done
            try:
                batch.metadata_of(index)
            except BarnabasError as error:
                assert value not in self.broker.log or "may have been" in error.message or "late" in error.message
            else:
                assert value in self.broker.log


STEPS = ("send", "send many", "send large", "take", "take", "answer", "answer", "answer twice", "lose answer",
         "lose request", "delay", "arrive late", "too few", "refuse", "expire", "hold answer",
         "lose held")  # fmt: skip


@settings(max_examples=400)
@given(st.lists(st.sampled_from(STEPS), max_size=80))
def test_each_record_is_written_once_and_in_order(steps: list[str]) -> None:
    world = World()
    for step in steps:
        world.step(step)
    world.settle()
    world.check()


def test_an_answer_that_is_lost_behind_many_later_ones_doubles_nothing() -> None:
    """Requests are not answered in their order, and a batch leaves for each answer: the one whose answer waits may lie more than
    five batches back."""
    world = World()
    for step in ["send", "take", "answer", "send", "take", "hold answer", *["send", "take", "answer"] * 9]:
        world.step(step)
    world.step("lose held")
    world.settle()
    assert world.broker.log == world.sent
    world.check()


def test_five_batches_are_in_flight_once_the_first_of_the_epoch_is_written() -> None:
    world = World()
    for _ in range(8):
        world.send()
    for _ in range(8):
        world.take()
    assert len(world.asked) == 1
    world.step("answer")
    for _ in range(8):
        world.take()
    assert len(world.asked) == MAX_IN_FLIGHT
    assert [read_header(data).base_sequence for _, data in world.asked] == [1, 2, 3, 4, 5]


def test_in_a_transaction_nothing_is_sent_five_batches_behind_an_answer_that_is_missing() -> None:
    """A broker would not know the first batch again, and the transaction would have to be aborted."""
    identity = ProducerIdentity(producer_id=7, producer_epoch=0)
    world = World(TransactionalQueue(T0, None, lambda: identity))
    for _ in range(30):
        world.send()
    world.take()
    world.step("answer")
    for _ in range(5):
        world.take()
    world.step("hold answer")
    for _ in range(10):
        world.take()
        world.step("answer")
    assert not world.asked and not world.queue.is_ready
    assert [batch.producer.base_sequence for batch in world.queue.in_flight if batch.producer] == [1]
    world.step("lose held")
    world.settle()
    world.check()
    assert world.broker.log == world.sent


def test_what_an_aborted_transaction_had_on_its_way_does_not_hold_up_the_next_one() -> None:
    identities = [ProducerIdentity(producer_id=7, producer_epoch=0)]
    world = World(TransactionalQueue(T0, None, lambda: identities[-1]))
    for _ in range(7):
        world.send()
    world.take()
    world.step("answer")
    for _ in range(5):
        world.take()
    assert len(world.queue.in_flight) == MAX_IN_FLIGHT
    world.queue.abandon(BarnabasError("aborted"))
    identities.append(ProducerIdentity(producer_id=7, producer_epoch=1))
    world.send()
    assert world.queue.is_ready


def test_in_a_transaction_each_answer_lets_another_batch_go() -> None:
    identity = ProducerIdentity(producer_id=7, producer_epoch=0)
    world = World(TransactionalQueue(T0, None, lambda: identity))
    for _ in range(20):
        world.send()
    world.take()
    world.step("answer")
    for _ in range(12):
        while world.queue.is_ready:
            world.take()
        assert len(world.asked) == MAX_IN_FLIGHT
        world.step("answer")


def test_what_was_lost_on_the_way_is_sent_again_as_it_was() -> None:
    world = World()
    for _ in range(3):
        world.send()
        world.take()
        world.step("answer")
    world.send(2)
    world.send()
    world.take()
    world.take()
    first, second = (data for _, data in world.asked)
    world.step("lose request")
    assert not world.queue.is_ready  # the answer to the second one comes first
    world.step("answer")
    world.take()
    assert world.asked[0][1] == first
    world.step("answer")
    world.take()
    assert world.asked[0][1] == second
    assert world.queue.epoch == 0


def test_a_batch_whose_predecessor_the_broker_has_lost_begins_a_new_epoch() -> None:
    world = World()
    for _ in range(2):
        world.send()
        world.take()
        world.step("answer")
    world.broker = Broker(producers=ProducerState())
    header = read_header(world_batch(world, sequence=0))
    world.broker.producers.update(header, first_offset=0)  # an unclean leader: it has the first batch only
    world.send()
    world.take()
    world.step("answer")
    world.take()
    again = read_header(world.asked[0][1])
    assert (again.producer_epoch, again.base_sequence) == (1, 0)
    world.settle()
    assert world.broker.log == [b"2"]


def world_batch(world: World, *, sequence: int) -> bytes:
    other = World()
    other.queue.producer_id, other.queue.next_sequence = world.queue.producer_id, sequence
    other.send()
    other.take()
    return other.asked[0][1]


def test_a_refusal_behind_a_lost_answer_says_that_the_records_may_be_there() -> None:
    world = World()
    world.send()
    world.take()
    world.step("lose answer")
    world.take()
    world.step("refuse")
    with pytest.raises(InvalidTimestampError, match="may have been written"):
        world.handles[0][0].metadata_of(0)


def test_a_refusal_for_good_ends_the_pauses_between_attempts() -> None:
    """The broker answers. Otherwise a single lost connection slows down all batches that it refuses from then on."""
    world = World()
    for _ in range(2):
        world.send()
    world.take()
    world.step("lose request")
    assert world.queue.failures == 1
    for _ in range(2):
        world.take()
        world.step("refuse")
        assert world.queue.failures == 0
    world.send()
    world.send()
    world.take()
    world.take()
    assert len(world.asked) == 1, "the first batch of an epoch still goes alone"


def test_a_fenced_first_attempt_goes_on_in_a_newer_epoch_and_an_uncertain_one_fails() -> None:
    world = World()
    world.send()
    world.take()
    world.answer(InvalidProducerEpochError("newer"))
    assert world.queue.epoch == 1
    world.take()
    world.step("lose answer")
    world.take()
    world.answer(InvalidProducerEpochError("newer"))
    with pytest.raises(InvalidProducerEpochError, match="may have been written"):
        world.handles[0][0].metadata_of(0)


def test_when_all_epochs_are_used_another_id_is_needed() -> None:
    world = World()
    world.queue.epoch = MAX_EPOCH
    world.send()
    world.take()
    world.answer(OutOfOrderSequenceError("gap"))
    assert world.queue.lacks_id and world.queue.spent_id == 7
    world.queue.adopt(8)
    world.settle()
    assert world.broker.log == [b"0"]


def test_settings_that_contradict_idempotence() -> None:
    assert idempotence_of(None, acks=-1, max_in_flight=5)
    assert not idempotence_of(False, acks=-1, max_in_flight=5)
    assert not idempotence_of(None, acks=1, max_in_flight=5)
    assert not idempotence_of(None, acks=-1, max_in_flight=6)
    for acks, max_in_flight in ((1, 5), (0, 5), (-1, 6)):
        with pytest.raises(BarnabasError, match="enable_idempotence"):
            idempotence_of(True, acks=acks, max_in_flight=max_in_flight)


def test_a_batch_that_the_broker_finds_too_large_is_split_and_its_handles_keep_their_places() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        cluster.logs[T0].max_batch_bytes = 1_000
        values = [b"%03d" % number + b"." * 50 for number in range(200)]
        async with Producer(client=cluster.client(), batch_size=4_096) as producer:
            handles = [
                await producer.send("t", value, key=b"k", headers=[("h", value)], timestamp_ms=number)
                for number, value in enumerate(values)
            ]
            found = [await handle for handle in handles]
            with pytest.raises(RecordTooLargeError):
                await (await producer.send("t", b"x" * 1_500))
            assert (await (await producer.send("t", b"goes on"))).offset == 200
        assert cluster.logs[T0].values() == [*values, b"goes on"]
        assert [one.offset for one in found] == list(range(200))
        assert [one.timestamp_ms for one in found] == list(range(200))

    run(main())


def test_records_wait_for_a_producer_id_and_fail_where_there_will_be_none() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        cluster.script(
            ApiKey.INIT_PRODUCER_ID,
            lambda *_: NetworkError("lost"),
            lambda *_: r.ErrorResponse(error=14, message="later"),
        )
        async with Producer(client=cluster.client()) as producer:
            assert (await (await producer.send("t", b"a"))).offset == 0
        assert read_header(cluster.logs[T0].batches[0][2]).producer_id == 1_000
        cluster.script(ApiKey.INIT_PRODUCER_ID, lambda *_: r.ErrorResponse(error=35, message="no"), forever=True)
        async with Producer(client=cluster.client()) as producer:
            with pytest.raises(UnsupportedVersionError):
                await (await producer.send("t", b"b"))

    run(main())
