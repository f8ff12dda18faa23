"""`Sender`: takes sealed batches to the leaders of their partitions and deals with what comes back.

Per broker one lane with a few requests in flight, each with the batches of all partitions that are ready. No task is
made per request: answers come as callbacks. Tasks exist only to open connections.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from barnabas.log.format.compression import Compression
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.requests import MetadataRequest, ProducePartition, ProduceRequest
from barnabas.net.wire.protocol.responses import ErrorResponse, ProducePartitionResponse, ProduceResponse, Response

from ...base.retries import Backoff
from ..connection.client import Client
from ..connection.errors import (
    BarnabasError,
    CorruptRecordError,
    DeliveryTimeoutError,
    ErrorCode,
    NetworkError,
    error_for,
)
from ..connection.metadata import NO_LEADER, Leader
from ..connection.ports import Connection
from .batch_growth import BUSY_REQUESTS
from .producer_identity import ProducerIdentity
from .record_accumulator import Batch, PartitionQueue

logger = logging.getLogger("barnabas.producer")

ErrorCallback = Callable[[BarnabasError, TopicPartition, int], None]  # The error, the partition, how many records.
_Sent = list[tuple[PartitionQueue, list[Batch]]]
# A broker may learn of its own election some milliseconds after other brokers have reported it to this client.
NEW_LEADER_BACKOFF = Backoff(first_ms=3, max_ms=200)
# The second: a repeated batch was appended so long ago that the broker does not remember its offset.
_WRITTEN = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
_PING = MetadataRequest(topics=(), allow_auto_topic_creation=False)  # The smallest request that is answered.


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderConfig:
    acks: int
    compression: Compression
    max_in_flight: int
    max_request_bytes: int
    request_timeout_ms: int
    delivery_timeout_ms: int
    transactional_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _BackOff:
    """The timer of a partition's back-off, and the leader that caused it: it does not apply to the next leader."""

    timer: asyncio.TimerHandle
    leader: Leader


@dataclass(slots=True)
class _Lane:
    """The way to one broker. `ready` is an ordered set: the queue that has waited longest goes first."""

    node_id: int
    in_flight: int = 0
    unseen_bytes: int = 0  # Sent with acks=0 since the broker was last asked whether it had read everything.
    ready: dict[PartitionQueue, None] = field(default_factory=dict)
    opening: asyncio.Task[None] | None = None


class Sender:
    def __init__(
        self,
        client: Client,
        config: SenderConfig,
        *,
        on_room: Callable[[int, int], None],
        on_done: Callable[[Batch], None],
        on_error: ErrorCallback | None,
    ) -> None:
        """`on_room` is called with a broker that has few requests in flight, and with their number; `on_done` for each finished
        batch."""
        self._client = client
        self._config = config
        self.transactional_id = config.transactional_id
        self._on_room = on_room
        self._on_done = on_done
        self._on_error = on_error
        self._lanes: dict[int, _Lane] = {}
        self._loop = asyncio.get_running_loop()
        self._back_offs: dict[PartitionQueue, _BackOff] = {}
        self._is_closed = False
        self.identity = ProducerIdentity(client, got=self.route, failed=self._fail_sealed)

    def is_idle(self, partition: TopicPartition) -> bool:
        """Whether nothing is in flight to the partition's leader, so that waiting for more records gains nothing."""
        return not self.requests_to(partition)

    def requests_to(self, partition: TopicPartition) -> int:
        """How many are in flight to the partition's leader."""
        lane = self._lanes.get(self._client.metadata.leader(partition).node_id)
        return 0 if lane is None else lane.in_flight

    def route(self, queue: PartitionQueue) -> None:
        """Put a queue that may be ready on its leader's lane, and send what can be sent."""
        if not queue.is_ready or self._is_closed or not self.identity.provides(queue):
            return
        node_id = self._client.metadata.leader(queue.partition).node_id
        if node_id < 0:
            self._client.request_refresh()  # It comes again with the next metadata.
            return
        lane = self._lanes.get(node_id)
        if lane is None:
            lane = self._lanes[node_id] = _Lane(node_id)
        lane.ready[queue] = None
        self._pump(lane)

    def reroute(self, queues: Iterable[PartitionQueue]) -> None:
        """After new metadata: leaders may have moved."""
        for lane in self._lanes.values():
            lane.ready.clear()
        for queue in queues:
            waits = self._back_offs.get(queue)
            if waits is not None and waits.leader != self._client.metadata.leader(queue.partition):
                self._end_back_off(queue)
            self.route(queue)

    def expire(self, queue: PartitionQueue, now_ms: int) -> None:
        """Fail what has been waiting for longer than the delivery timeout."""
        reason = f"; the last attempt: {queue.last_error.message}" if queue.last_error is not None else ""
        self._report(
            queue.expire(now_ms - self._config.delivery_timeout_ms, lambda batch: self._timeout_error(batch, reason))
        )

    def abandon(self, queue: PartitionQueue, error: BarnabasError) -> None:
        self._report(queue.abandon(error))

    def discard(self, queue: PartitionQueue, error: BarnabasError) -> None:
        """As `abandon`, of a transaction that its owner knows to be aborted: that is no loss to report."""
        if queue in self._back_offs:
            self._end_back_off(queue)
        for batch in queue.abandon(error):
            self._on_done(batch)

    async def close(self) -> None:
        self._is_closed = True
        await self.identity.close()
        for queue in list(self._back_offs):
            self._end_back_off(queue)
        opening = [lane.opening for lane in self._lanes.values() if lane.opening is not None]
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)

    # --- sending -----------------------------------------------------------------------------------------------------

    def _pump(self, lane: _Lane) -> None:
        while not self._is_closed and lane.ready and lane.in_flight < self._config.max_in_flight:
            connection = self._client.peek(lane.node_id)
            if connection is None:
                if lane.opening is None:
                    lane.opening = asyncio.create_task(self._open(lane), name=f"barnabas-produce-{lane.node_id}")
                return
            self._send(lane, connection)

    def _send(self, lane: _Lane, connection: Connection) -> None:
        """One request with a batch or more of every partition that is ready, up to the largest request."""
        config = self._config
        sent: _Sent = []
        partitions = []
        room = config.max_request_bytes
        while lane.ready and room > 0:
            queue = next(iter(lane.ready))
            if sent and queue.sealed and queue.sealed[0].used_bytes > room:
                break
            del lane.ready[queue]
            if not queue.is_ready or not self.identity.provides(queue):
                continue
            batches, data = queue.take(room, config.compression)
            topic, partition = queue.partition
            partitions.append(ProducePartition(topic=topic, partition=partition, records=data))
            sent.append((queue, batches))
            room -= len(data)
        if not sent:
            return
        for queue, _ in sent:
            if queue.is_ready:  # for one more batch, in another request
                lane.ready[queue] = None
        request = ProduceRequest(
            acks=config.acks,
            timeout_ms=config.request_timeout_ms,
            partitions=tuple(partitions),
            transactional_id=self.transactional_id,
        )
        try:
            if config.acks == 0:
                connection.send_oneway(request)
                self._acknowledge_unseen(lane, sent)
                lane.unseen_bytes += config.max_request_bytes - room
                if lane.unseen_bytes >= config.max_request_bytes:
                    self._ask_whether_read(lane, connection)
                return
            future = connection.send(request, timeout_ms=config.request_timeout_ms)
        except BarnabasError as error:
            self._failed(sent, error)
            return
        lane.in_flight += 1
        future.add_done_callback(lambda done: self._answered(lane, sent, done))

    async def _open(self, lane: _Lane) -> None:
        try:
            await self._client.connect(lane.node_id)
        except BarnabasError as error:
            ready, lane.ready = lane.ready, {}
            for queue in ready:
                queue.failures += 1
                queue.last_error = error
                self._back_off(queue)
            self._client.request_refresh()
            logger.info("broker unreachable node_id=%d reason=%s", lane.node_id, error.message)
        finally:
            lane.opening = None
        self._pump(lane)

    # --- answers -----------------------------------------------------------------------------------------------------

    def _answered(self, lane: _Lane, sent: _Sent, future: asyncio.Future[Response]) -> None:
        lane.in_flight -= 1
        if self._is_closed:
            if not future.cancelled():
                future.exception()
            return
        sent = [item for item in sent if not item[1][0].is_done]  # the others were discarded meanwhile
        if future.cancelled():
            self._failed(sent, NetworkError("the request was cancelled"))
        elif (error := future.exception()) is not None:
            self._failed(sent, error if isinstance(error, BarnabasError) else NetworkError(str(error)))
        else:
            self._take_response(lane.node_id, sent, future.result())
        self._pump(lane)
        if lane.in_flight < BUSY_REQUESTS:
            self._on_room(lane.node_id, lane.in_flight)

    def _take_response(self, node_id: int, sent: _Sent, response: Response) -> None:
        if isinstance(response, ErrorResponse):
            self._failed(sent, error_for(response.error, response.message))
            return
        if not isinstance(response, ProduceResponse):
            self._failed(sent, CorruptRecordError("a produce request received a response of another type"))
            return
        answers = {(item.topic, item.partition): item for item in response.partitions}
        for queue, batches in sent:
            answer = answers.get(queue.partition)
            if answer is None:
                self._failed([(queue, batches)], CorruptRecordError(f"the response does not contain {queue.partition}"))
            elif answer.error in _WRITTEN:
                done = queue.acknowledge(
                    batches, base_offset=answer.base_offset, log_append_time_ms=answer.log_append_time_ms
                )
                self._report(done)
                if self._client.troubles:
                    self._client.troubles.works(f"partition {queue.partition}")
                self.route(queue)
            else:
                self._refused(node_id, queue, batches, answer)

    def _refused(
        self, node_id: int, queue: PartitionQueue, batches: list[Batch], answer: ProducePartitionResponse
    ) -> None:
        error = error_for(answer.error, answer.message)
        if answer.error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
            metadata = self._client.metadata
            metadata.hint(queue.partition, node_id=answer.leader_id, epoch=answer.leader_epoch)
            known = metadata.leader(queue.partition)
            if known.node_id not in (NO_LEADER, node_id):
                queue.fail(batches, error)
                self.route(queue)  # Straight to the new leader: there is nothing to wait for.
                return
            if 0 <= answer.leader_epoch < known.epoch:
                queue.fail(batches, error)  # The new leader does not know yet that it was elected.
                self._try_again(queue, NEW_LEADER_BACKOFF)
                return
        self._failed([(queue, batches)], error)

    def _failed(self, sent: _Sent, error: BarnabasError) -> None:
        if error.retriable:
            self._client.request_refresh()
        for queue, batches in sent:
            self._report(queue.fail(batches, error))
            if error.retriable:
                self._client.note_trouble(f"partition {queue.partition}", error)
            self._try_again(queue)

    def _try_again(self, queue: PartitionQueue, backoff: Backoff | None = None) -> None:
        """Send the queue again after all responses have arrived, and after a back-off if a batch has failed."""
        if queue.is_awaiting or self._is_closed:
            return
        if not queue.failures:
            self.route(queue)
            return
        self.expire(queue, self._client.clock.now_ms())
        self._back_off(queue, backoff)

    def _fail_sealed(self, queue: PartitionQueue, error: BarnabasError) -> None:
        """Fail all sealed batches of a queue that will never be allowed to send."""
        self._report(queue.fail_sealed(error))

    def _back_off(self, queue: PartitionQueue, backoff: Backoff | None = None) -> None:
        """Wait before this partition is tried again, longer each time; other partitions continue."""
        queue.is_backing_off = True
        delay_ms = (backoff or self._client.backoff).delay_ms(max(1, queue.failures), self._client.rng.random)

        def resume() -> None:
            self._end_back_off(queue)
            self.route(queue)

        self._back_offs[queue] = _BackOff(
            timer=self._loop.call_later(delay_ms / 1000, resume), leader=self._client.metadata.leader(queue.partition)
        )

    def _end_back_off(self, queue: PartitionQueue) -> None:
        self._back_offs.pop(queue).timer.cancel()
        queue.is_backing_off = False

    def _acknowledge_unseen(self, lane: _Lane, sent: _Sent) -> None:
        for queue, batches in sent:
            self._report(queue.acknowledge(batches, base_offset=-1))
            if queue.is_ready:
                lane.ready[queue] = None

    def _ask_whether_read(self, lane: _Lane, connection: Connection) -> None:
        """The flow control of acks=0. A broker reads the requests of a connection in order, so an answer confirms that it has
        read all earlier ones. Without it, batches for a slow broker would pile up here."""
        lane.unseen_bytes = 0
        future = connection.send(_PING, timeout_ms=self._config.request_timeout_ms)
        lane.in_flight += 1

        def answered(done: asyncio.Future[Response]) -> None:
            lane.in_flight -= 1
            if not done.cancelled():
                done.exception()  # Records lost with the connection were never acknowledged.
            if not self._is_closed:
                self._pump(lane)
                self._on_room(lane.node_id, lane.in_flight)

        future.add_done_callback(answered)

    async def settle(self) -> None:
        """With acks=0, return when the brokers have read all that was sent: a close must not throw it away."""
        if self._config.acks != 0:
            return
        for lane in self._lanes.values():
            connection = self._client.peek(lane.node_id)
            if connection is not None:
                try:
                    await connection.call(_PING, timeout_ms=self._config.request_timeout_ms)
                except BarnabasError as error:
                    logger.info("acks=0 records may be lost node_id=%d reason=%s", lane.node_id, error.message)

    # --- the end of a batch ------------------------------------------------------------------------------------------

    def _timeout_error(self, batch: Batch, reason: str) -> BarnabasError:
        outcome = "they may have been written" if batch.attempts else "they were never sent"
        return DeliveryTimeoutError(
            f"{batch.record_count} records for {batch.partition} were not acknowledged within "
            f"{self._config.delivery_timeout_ms} ms; {outcome}{reason}"
        )

    def _report(self, batches: list[Batch]) -> None:
        """Report a failure that no caller awaits. `finish` has reported it to waiting callers."""
        for batch in batches:
            self._on_done(batch)
            if batch.error is None:
                continue
            if self._on_error is not None:
                # Not from here: an error in the application's callback must not stop what is being done.
                self._loop.call_soon(self._on_error, batch.error, batch.partition, batch.record_count)
            else:
                logger.warning(
                    "records lost partition=%s count=%d reason=%s",
                    batch.partition,
                    batch.record_count,
                    batch.error.message,
                )
