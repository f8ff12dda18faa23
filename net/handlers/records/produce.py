"""Produce (key 0): append record batches to partitions that this broker leads.

Versions: 0 of our protocol, 3 to 12 of Kafka's. Behaviour: a bad batch, a partition led elsewhere or too few in-sync replicas are
answered per partition; the others of the request are appended all the same. acks=0 is never answered: an error ends the
connection, as with Kafka, or the producer would go on sending to a broker that leads no more; acks=1 once every batch is in
this leader's log (with flush.messages=1: on its disk); acks=all once the high watermark has passed every batch.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial

from barnabas.log.format.record_batch import HEADER_SIZE, SEQUENCE, SEQUENCE_POSITION, BatchHeader, read_header
from barnabas.log.replication.partition import Partition
from barnabas.log.replication.ports import ReplicatedLogConfig
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    CorruptRecordError,
    ErrorCode,
    InvalidRequiredAcksError,
    InvalidTopicError,
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
    StorageError,
)
from barnabas.log.vocabulary.topic_partition import INTERNAL_TOPICS, TopicPartition
from barnabas.net.base.figures.request_measures import PRODUCE
from barnabas.net.base.limits import check_count
from barnabas.net.logs.purgatory import DelayedProduce, Operation
from barnabas.net.server.dispatcher import Reply, RequestContext, error_response
from barnabas.net.wire.protocol.requests import ProducePartition
from barnabas.net.wire.protocol.responses import ProducePartitionResponse, ProduceResponse

from ..common.services import Services
from .overtaken import MAY_LAST_MS, Gap, Overtaken
from .preparing import Preparing, Refused
from .produce_parts import AnyProduce, JoinedAnswer, named_again, named_twice, parts_of
from .produce_rules import check_produced
from .refused_sequences import RefusedSequences

logger = logging.getLogger("barnabas.produce")

Unanswered = Callable[[bool], None]

ACKS_ALL = -1
VALID_ACKS = frozenset({-1, 0, 1})
LOG_AGAIN_AFTER_MS = 60_000  # The same trouble is logged once a minute, not once a request.
MAX_REMEMBERED_TROUBLES = 256  # Of clients and partitions: many of either must not grow a broker.
UNCERTAIN = "the batch was appended, but its replication to the in-sync replicas is not confirmed: send it again"


class ProduceHandler:
    def __init__(self, services: Services) -> None:
        self._replication = services.replication
        self._clock = services.clock
        self._measures = services.figures.measures
        self._samples = services.figures.producers
        # Of the request at hand, with acks=1: required offset and leadership. Mostly empty, so it costs such requests nothing.
        self._unflushed: dict[TopicPartition, tuple[int, int]] = {}
        self.preparing = Preparing(self._config_of, services.memory, services.verification)
        self._logged_at_ms: OrderedDict[tuple[str, TopicPartition], int] = OrderedDict()
        self._refused_sequences = RefusedSequences()
        self._overtaken = Overtaken()

    def __call__(self, request: AnyProduce, context: RequestContext, reply: Reply) -> None:
        """Appends in order of arrival: at once, or after the batches have been prepared. The answer may come later."""
        if request.acks not in VALID_ACKS:
            raise InvalidRequiredAcksError(f"acks={request.acks} is invalid; use 0, 1 or -1 (all)")
        check_count(request.partitions)
        self._samples.turn -= 1
        if self._samples.turn <= 0:
            batches = [item.records for item in request.partitions]
            now_s = self._clock.now_ms() / 1000
            self._samples.note(context.client_id, context.client_host, request.acks, batches, now_s)
        refused = self.preparing.at_once(request, context.connection)
        if refused is None:
            self._prepare(request, context, reply)
        else:
            self._serve(request, refused, context, reply)

    @property
    def tasks(self) -> Iterable[asyncio.Task[None]]:
        return self.preparing.tasks

    def _config_of(self, topic_partition: TopicPartition) -> ReplicatedLogConfig | None:
        partition = self._replication.manager.find(topic_partition)
        return None if partition is None else partition.log.config

    def _prepare(self, request: AnyProduce, context: RequestContext, reply: Reply) -> None:
        parts = list(parts_of(request))
        if len(parts) == 1:
            self.preparing.later(request, context, lambda made, bad: self._serve_later(made, bad, context, reply))
            return
        joined = JoinedAnswer(len(parts), context, reply)
        again = named_again(parts) if request.acks == ACKS_ALL else [{}] * len(parts)
        self.preparing.parts_later(
            [(part, partial(self._serve_part, joined, n, context, again[n])) for n, part in enumerate(parts)], context
        )

    def _serve_part(
        self,
        joined: JoinedAnswer,
        number: int,
        context: RequestContext,
        again: Refused,
        request: AnyProduce,
        refused: Refused,
    ) -> None:
        self._serve_later(
            request, {**refused, **again}, context, partial(joined.answered, number), partial(joined.unanswered, number)
        )

    def _serve_later(
        self,
        request: AnyProduce,
        refused: Refused,
        context: RequestContext,
        reply: Reply,
        unanswered: Unanswered | None = None,
    ) -> None:
        try:
            self._serve(request, refused, context, reply, unanswered)
        except Exception as error:  # noqa: BLE001 - the error boundary, as in Dispatcher.dispatch
            reply(error_response(error, request))

    def _serve(
        self,
        request: AnyProduce,
        refused: Refused,
        context: RequestContext,
        reply: Reply,
        unanswered: Unanswered | None = None,
    ) -> None:
        """`unanswered` is told of the end with acks=0, if this is a part of a request."""
        if self._unflushed:  # a bug ended the last request
            self._unflushed = {}
        delayed: DelayedProduce | None = None
        if request.acks == ACKS_ALL:
            delayed = DelayedProduce(token=None, client=context, timeout_ms=request.timeout_ms)
        responses = [
            self._append(item, request, delayed, context, refused.get(number))
            for number, item in enumerate(request.partitions)
        ]
        if request.acks == 0:
            has_failed = any(response.error for response in responses)
            if unanswered is not None:
                unanswered(has_failed)
            elif has_failed:
                context.hang_up()
            else:
                context.no_reply()
            return
        if self._unflushed:
            delayed = self._wait_for_flush(request, context)
        if delayed is not None and delayed.pending:
            self._answer_when_committed(delayed, responses, context, reply)
        else:
            reply(ProduceResponse(partitions=tuple(responses)))

    def _append(
        self,
        item: ProducePartition,
        request: AnyProduce,
        delayed: DelayedProduce | None,
        context: RequestContext,
        refused: BarnabasError | None,
    ) -> ProducePartitionResponse:
        topic_partition = TopicPartition(item.topic, item.partition)
        repeated: BarnabasError | None = None
        try:
            if item.topic in INTERNAL_TOPICS:
                raise InvalidTopicError(f"{item.topic} is an internal topic of the cluster; produce to another topic")
            if delayed is not None and topic_partition in delayed.pending:
                raise named_twice(topic_partition)
            if refused is not None:
                raise refused
            check_produced(item.records, kafka_version=request.kafka_version)
            partition = self._replication.manager.partition(topic_partition)
            if self._refused_sequences.refusals and (repeated := self._refused_before(partition, item)) is not None:
                raise repeated
            self._check_beginning(partition, item)
            info, required_offset = self._replication.append(partition, item.records, acks=request.acks)
        except BarnabasError as refusal:
            # Its traceback leads to this frame and back to it: the receive buffer would live until a rare full collection.
            refusal = refusal.with_traceback(None)
            error = refusal if refusal is repeated else self._as_told(topic_partition, item, refusal)
            self._log_trouble(error, topic_partition, context)
            self._measures.failed(PRODUCE, error.code)
            leader_id, leader_epoch = self._replication.leader_hint(topic_partition)
            return ProducePartitionResponse(
                topic=item.topic,
                partition=item.partition,
                error=error.code,
                message=error.message,
                leader_id=leader_id,
                leader_epoch=leader_epoch,
            )
        if self._refused_sequences.refusals:
            self._refused_sequences.appended(topic_partition, read_header(item.records))
        if not info.duplicate:
            partition.bytes_in += len(item.records)
            partition.records_in += info.last_offset - info.first_offset + 1
        if delayed is not None:
            delayed.wait_for(topic_partition, required_offset=required_offset, leadership=partition.leadership)
        elif request.acks != 0 and partition.storage.flushes_first:
            self._unflushed[topic_partition] = (required_offset, partition.leadership)
        return ProducePartitionResponse(
            topic=item.topic,
            partition=item.partition,
            base_offset=info.first_offset,
            log_append_time_ms=info.log_append_time_ms,
            log_start_offset=partition.log.log_start_offset,
        )

    def _refused_before(self, partition: Partition, item: ProducePartition) -> BarnabasError | None:
        if len(item.records) < HEADER_SIZE:
            return None  # incomplete: the log's check raises the error
        batch = read_header(item.records)
        expected = partition.log.producers.expected_sequence(batch.producer_id, batch.producer_epoch)
        return self._refused_sequences.before(partition.topic_partition, batch, expected)

    def _check_beginning(self, partition: Partition, item: ProducePartition) -> None:
        """A producer that the log does not know may begin with any sequence, since the log may have forgotten it. But its first
        batch may still be on its way to a new leader. After this batch it would fail for good and end librdkafka's producer."""
        if len(item.records) < HEADER_SIZE or SEQUENCE.unpack_from(item.records, SEQUENCE_POSITION)[0] <= 0:
            return  # Of no producer, the first one of its producer, or incomplete: the log's check raises the error.
        leading = partition.role.leader_state
        if leading is None or self._clock.now_ms() - leading.led_since_ms >= MAY_LAST_MS:
            return
        try:
            batch = read_header(item.records)
        except CorruptRecordError:
            return  # the log's check raises the error
        if not partition.log.producers.knows(batch.producer_id):
            raise NotEnoughReplicasError(
                f"producer {batch.producer_id} begins with sequence {batch.base_sequence}: this leader is new, and waits for "
                "what may be missing"
            )

    def _as_told(
        self, topic_partition: TopicPartition, item: ProducePartition, refusal: BarnabasError
    ) -> BarnabasError:
        error = self._replication.as_told(topic_partition, refusal)
        if isinstance(error, CorruptRecordError):
            return error
        try:
            batch = read_header(item.records)
        except CorruptRecordError:  # it failed before its header was read
            return error
        if isinstance(error, OutOfOrderSequenceError) and self._may_close(topic_partition, batch):
            error = NotEnoughReplicasError(f"{error.message}: this leader is new, and waits for what is missing")
        self._refused_sequences.refused(topic_partition, batch, error)
        return error

    def _may_close(self, topic_partition: TopicPartition, batch: BatchHeader) -> bool:
        partition = self._replication.manager.find(topic_partition)
        leading = None if partition is None else partition.role.leader_state
        if partition is None or leading is None:
            return False
        expected = partition.log.producers.missing_sequence(
            batch.producer_id, batch.producer_epoch, batch.base_sequence, since_offset=leading.epoch_start_offset
        )
        if expected is None:
            return False
        gap = Gap(leader_epoch=partition.leader_epoch, producer_epoch=batch.producer_epoch, expected=expected)
        return self._overtaken.may_close(batch.producer_id, topic_partition, gap, self._clock.now_ms())

    def _wait_for_flush(self, request: AnyProduce, context: RequestContext) -> DelayedProduce:
        """acks=1, and at least one of the partitions counts only what is on the leader's disk."""
        delayed = DelayedProduce(token=None, client=context, timeout_ms=request.timeout_ms, is_for_leader_only=True)
        unflushed, self._unflushed = self._unflushed, {}
        for topic_partition, (required_offset, leadership) in unflushed.items():
            delayed.wait_for(topic_partition, required_offset=required_offset, leadership=leadership)
        return delayed

    def _log_trouble(self, error: BarnabasError, topic_partition: TopicPartition, context: RequestContext) -> None:
        """Log damaged batches and I/O errors, which concern the operator too; other errors only concern the client."""
        if isinstance(error, CorruptRecordError):
            where = context.client_host
        elif isinstance(error, StorageError):
            where = ""
        else:
            return
        key, now_ms = (where, topic_partition), self._clock.now_ms()
        if now_ms - self._logged_at_ms.get(key, -LOG_AGAIN_AFTER_MS) < LOG_AGAIN_AFTER_MS:
            return
        self._logged_at_ms[key] = now_ms
        self._logged_at_ms.move_to_end(key)
        if len(self._logged_at_ms) > MAX_REMEMBERED_TROUBLES:
            self._logged_at_ms.popitem(last=False)
        logger.warning(
            "batch refused partition=%s peer=%s client_id=%s reason=%s",
            topic_partition,
            context.client_host,
            context.client_id,
            error.message,
        )

    def _answer_when_committed(
        self,
        delayed: DelayedProduce,
        responses: list[ProducePartitionResponse],
        context: RequestContext,
        reply: Reply,
    ) -> None:
        def completed(operation: Operation) -> None:
            assert isinstance(operation, DelayedProduce)
            errors = operation.errors
            if any(errors.values()):
                for code in filter(None, errors.values()):
                    self._measures.failed(PRODUCE, code)
                reply(ProduceResponse(partitions=tuple(self._with_error(response, errors) for response in responses)))
            else:
                reply(ProduceResponse(partitions=tuple(responses)))

        delayed.token = completed
        context.on_disconnect(lambda: self._replication.forget_client(context))
        self._replication.park(delayed)

    def _with_error(
        self, response: ProducePartitionResponse, errors: dict[TopicPartition, ErrorCode]
    ) -> ProducePartitionResponse:
        """If the leadership moved while the request waited, the response names the new leader (KIP-951)."""
        topic_partition = TopicPartition(response.topic, response.partition)
        code = errors.get(topic_partition, ErrorCode.NONE)
        if code == ErrorCode.NONE:
            return response
        leader_id, leader_epoch = self._replication.leader_hint(topic_partition)
        return ProducePartitionResponse(
            topic=response.topic,
            partition=response.partition,
            error=code,
            message=UNCERTAIN,
            leader_id=leader_id,
            leader_epoch=leader_epoch,
        )
