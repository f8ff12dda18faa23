"""`ShareConsumer` with a client whose connections a test can hold up: what its end does to acknowledgements."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from simulation.log_building import batch_of
from unit.net.client.test_closing import is_cancelled
from unit.net.shell_world import simulated

from barnabas.log.format.record_batch import patch
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatResponse, TopicPartitions
from barnabas.log.vocabulary.share.errors import InvalidRecordStateError
from barnabas.log.vocabulary.share.messages import (
    AcquiredRecords,
    ShareFetchRequest,
    ShareFetchResponse,
    SharePartitionAnswer,
)
from barnabas.log.vocabulary.topic_partition import no_such_topic
from barnabas.net.client.connection.errors import ConcurrentUseError, UnknownTopicOrPartitionError
from barnabas.net.client.share.leader_session import FINAL_EPOCH
from barnabas.net.client.share.share_consumer import ShareConsumer
from barnabas.net.testing.simulation.loop import SimulatedLoop

MOST_STEPS = 40  # of a close; without time, it does not end


class Broker:
    """A client of one broker: it gives out five records, and notes what is acknowledged."""

    request_timeout_ms = 1_000
    client_id = "tester"

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.acknowledged: list[int] = []
        self.refuses = False
        self.is_left = False
        self.is_closed = False
        self.leave_s = 0.01
        self._next = 0
        self.clock = SimpleNamespace(now_ms=lambda: asyncio.get_running_loop().time() * 1000)
        self.rng = SimpleNamespace(random=lambda: 0.5, getrandbits=lambda count: 5)
        self.backoff = SimpleNamespace(delay_ms=lambda failures, random: 10)
        self.coordinators = SimpleNamespace(ask=self._heartbeat, call=self._leave)
        self.answers_joins = asyncio.Event()
        self.answers_joins.set()
        self.has_member = False
        self.count = 1  # of the partitions of "t"; 0: it does not exist
        self.metadata = SimpleNamespace(
            topic_id=lambda name: "id" if self.count else "",
            leader=lambda partition: SimpleNamespace(node_id=0 if self.count else -1),
            partition_count=lambda name: self.count,
            topic_failure=lambda name: UnknownTopicOrPartitionError(no_such_topic(name)),
        )

    def want_topic(self, name: str) -> None: ...
    def on_metadata(self, callback: Callable[[], None]) -> None:
        self.listener = callback

    async def refresh(self) -> None:
        while True:
            self.listener()
            await asyncio.sleep(1)

    def request_refresh(self) -> None: ...
    async def start(self) -> None: ...
    async def close(self) -> None:
        self.is_closed = True

    async def _leave(self, group: str, request: Any, *, timeout_ms: float) -> None:
        assert request.member_epoch == -1 and not self.is_closed
        await asyncio.sleep(self.leave_s)
        self.has_member = False

    async def _heartbeat(
        self, group: str, request: Any, *, on_sending: Callable[[], None]
    ) -> ConsumerGroupHeartbeatResponse:
        on_sending()
        self.has_member = True
        await self.answers_joins.wait()
        assigned = (TopicPartitions(topic="t", partitions=(0,)),)
        return ConsumerGroupHeartbeatResponse(
            member_id="m", member_epoch=1, heartbeat_interval_ms=10_000, assignment=assigned
        )

    async def connect(self, node_id: int, *, bulk: bool) -> Any:
        await self.gate.wait()
        return SimpleNamespace(call=self._answer)

    async def call(self, node_id: int, request: ShareFetchRequest) -> ShareFetchResponse:
        return await self._answer(request, timeout_ms=0)

    async def _answer(self, request: ShareFetchRequest, *, timeout_ms: float) -> ShareFetchResponse:
        assert not self.is_left
        error = 0
        for batch in (batch for item in request.partitions for batch in item.acknowledged):
            self.acknowledged += range(batch.first_offset, batch.last_offset + 1)
            error = ErrorCode.INVALID_RECORD_STATE if self.refuses else 0
        self.is_left = request.session_epoch == FINAL_EPOCH
        answer = SharePartitionAnswer(topic_id="id", partition=0, acknowledge_error=error, acknowledge_message="over")
        if self._next < 5 and not self.is_left:
            acquired = AcquiredRecords(first_offset=self._next, last_offset=self._next, delivery_count=1)
            records = _batch(self._next)
            self._next += 1
            answer = SharePartitionAnswer(
                topic_id="id",
                partition=0,
                records=records,
                acquired=(acquired,),
                acknowledge_error=error,
                acknowledge_message="over",
            )
        elif request.max_wait_ms and not self.is_left:
            await asyncio.sleep(request.max_wait_ms / 1000)
        return ShareFetchResponse(partitions=(answer,), lock_duration_ms=1_000)


def _batch(offset: int) -> bytes:
    batch = batch_of(b"value", timestamp_ms=1)
    patch(batch, 0, base_offset=offset, leader_epoch=1)
    return bytes(batch)


async def consumer_of(broker: Broker) -> ShareConsumer:
    consumer = ShareConsumer("t", group="g", client=broker)  # type: ignore[arg-type]
    await consumer.start()
    return consumer


@pytest.mark.parametrize("is_answered", [True, False])
@simulated
async def test_close_leaves_the_group_also_when_the_answer_to_its_join_has_not_come(is_answered: bool) -> None:
    broker = Broker()
    if not is_answered:
        broker.answers_joins.clear()
    consumer = await consumer_of(broker)
    await asyncio.sleep(1)
    assert broker.has_member
    await consumer.close()
    assert not broker.has_member


@simulated
async def test_close_waits_for_acknowledgements_that_are_on_their_way() -> None:
    """A request that is cut off before its connection is there would release the records that the application has accepted."""
    broker = Broker()
    consumer = await consumer_of(broker)
    (record,) = await consumer.poll()
    await asyncio.sleep(2)  # no fetch is on its way
    broker.gate.clear()
    consumer.acknowledge(record)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(consumer.commit(), 1)
    asyncio.get_running_loop().call_later(1, broker.gate.set)
    await consumer.close()
    assert broker.acknowledged == [0] and broker.is_left


@simulated
async def test_close_ends_though_a_broker_does_not_answer() -> None:
    broker = Broker()
    consumer = await consumer_of(broker)
    (record,) = await consumer.poll()
    await asyncio.sleep(2)
    broker.gate.clear()
    consumer.acknowledge(record)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(consumer.commit(), 1)
    await asyncio.wait_for(consumer.close(), 15)


@pytest.mark.parametrize(("fetches", "step_s"), [(False, 0), (False, 0.003), (True, 0)])
@simulated
async def test_a_close_that_is_cancelled_anywhere_leaves_the_group_and_nothing_open(
    fetches: bool, step_s: float
) -> None:
    """A fetch waits for records, and the leave takes 10 ms; the other parts take no time."""
    for steps in range(1, MOST_STEPS):
        broker = Broker()
        consumer = await consumer_of(broker)
        await asyncio.sleep(1)
        while fetches and await consumer.poll(timeout_ms=1):
            continue
        close = asyncio.create_task(consumer.close())
        for _ in range(steps):
            await asyncio.sleep(step_s)
        if close.done():
            break
        close.cancel()
        with pytest.raises(asyncio.CancelledError):
            await close
        assert not broker.has_member and broker.is_closed
        assert [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    assert steps > 1


@simulated
async def test_a_second_close_does_not_disconnect_before_the_first_one_has_left() -> None:
    for steps in range(1, MOST_STEPS):
        broker = Broker()
        consumer = await consumer_of(broker)
        await asyncio.sleep(1)
        first = asyncio.create_task(consumer.close())
        for _ in range(steps):
            await asyncio.sleep(0)
        if consumer._is_closed and broker.has_member:
            await consumer.close()
            assert not broker.is_closed, "the leave is on its way"
            await first
            assert not broker.has_member and broker.is_closed
            return
        await first
    pytest.fail("no step was between the end of the acknowledgements and that of the leave")


@simulated
async def test_a_close_that_is_cancelled_while_a_dead_letter_is_written_ends_that() -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    broker = Broker()
    consumer = ShareConsumer("t", group="g", client=broker, dead_letter=hang)  # type: ignore[arg-type]
    await consumer.start()
    (record,) = await consumer.poll()
    consumer.acknowledge(record, "reject")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(consumer.close(), 1)
    assert not broker.has_member and broker.is_closed
    assert len(asyncio.all_tasks()) == 1


@simulated
async def test_a_close_that_is_cancelled_anywhere_leaves_nothing_behind() -> None:
    async def dead_letter(record: Any, error: Exception) -> None:
        await asyncio.sleep(0)

    for with_all_tasks in (False, True):
        for steps in range(1, MOST_STEPS):
            broker = Broker()
            broker.leave_s = 0
            consumer = ShareConsumer("t", group="g", client=broker, dead_letter=dead_letter)  # type: ignore[arg-type]
            await consumer.start()
            (record,) = await consumer.poll(max_records=1)
            consumer.acknowledge(record, "reject")
            others = asyncio.all_tasks()
            was_cancelled = await is_cancelled(
                asyncio.create_task(consumer.close()), steps, with_all_tasks=with_all_tasks
            )
            assert broker.is_closed and not broker.has_member
            assert not asyncio.all_tasks() - others
            if not was_cancelled:
                break
        assert 2 < steps < MOST_STEPS - 1


@simulated
async def test_refusals_do_not_pile_up_in_a_consumer_that_only_polls() -> None:
    broker = Broker()
    broker.refuses = True
    consumer = await consumer_of(broker)
    taken = 0
    while taken < 5:
        taken += len(await consumer.poll(max_records=1))
    await consumer.poll(timeout_ms=100)
    with pytest.raises(InvalidRecordStateError, match="over"):
        await consumer.commit()
    await consumer.commit()  # told once
    assert broker.acknowledged == [0, 1, 2, 3, 4]
    await consumer.close()


def test_it_is_closed_on_the_loop_of_its_start_only() -> None:
    broker = Broker()
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        consumer = runner.run(consumer_of(broker))
        refused = pytest.raises(ConcurrentUseError, match="share consumer was started on another event loop")
        with asyncio.Runner(loop_factory=SimulatedLoop) as other, refused:
            other.run(consumer.close())
        runner.run(consumer.close())


@simulated
async def test_an_application_is_told_when_none_of_its_topics_exists_for_long() -> None:
    broker = Broker()
    broker.count = 0
    consumer = ShareConsumer("t", group="g", client=broker, missing_topic_timeout_ms=9_000)  # type: ignore[arg-type]
    await consumer.start()
    refreshing = asyncio.create_task(broker.refresh())
    now_s = asyncio.get_running_loop().time
    for _ in range(2):  # an application that goes on waits as long again
        began_s = now_s()
        with pytest.raises(UnknownTopicOrPartitionError, match="no topic 't'.*missing_topic_timeout_ms=9000"):
            await consumer.poll(timeout_ms=60_000)
        assert 8 <= now_s() - began_s <= 11
    with pytest.raises(UnknownTopicOrPartitionError):  # calls that end soon add up
        while True:
            assert await consumer.poll(timeout_ms=1_000) == []
    broker.count = 1
    assert await consumer.poll(timeout_ms=60_000)
    refreshing.cancel()
    await consumer.close()


@simulated
async def test_an_application_that_was_away_is_not_told_of_a_topic_that_exists_by_now() -> None:
    broker = Broker()
    broker.count = 0
    consumer = ShareConsumer("t", group="g", client=broker, missing_topic_timeout_ms=9_000)  # type: ignore[arg-type]
    await consumer.start()
    refreshing = asyncio.create_task(broker.refresh())
    await asyncio.sleep(30)
    broker.count = 1
    await asyncio.sleep(2)
    assert await consumer.poll(timeout_ms=60_000)
    refreshing.cancel()
    await consumer.close()


@simulated
async def test_a_record_whose_lock_may_be_over_is_not_returned() -> None:
    """Another member may have handled it by now. It is locked for a second, and the application takes two for the one before."""
    broker = Broker()
    consumer = await consumer_of(broker)
    (first,) = await consumer.poll(max_records=1)
    await consumer.poll(max_records=1, timeout_ms=0)  # the fetch of the second one begins
    await asyncio.sleep(2)
    later = await consumer.poll(max_records=1, timeout_ms=3_000)
    assert first.offset == 0 and later and later[0].offset > 1
    await consumer.close()
    assert 1 not in broker.acknowledged
