"""The real coordinator of transactions behind a `FakeCluster`. Its quorum commits at once, and markers are written with the
decision."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

from unit.net.client.fake_cluster import FakeCluster

from barnabas.consumer_groups.transactions.coordinator import TransactionCoordinator
from barnabas.consumer_groups.transactions.settings import TransactionSettings
from barnabas.kraft.group_state.group_slots import SlotState, slot_of
from barnabas.kraft.metadata.records import TransactionRecord
from barnabas.log.format.record_batch import read_header
from barnabas.log.format.record_codec import encode_marker, iter_records, read_marker
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import (
    AddToTransactionRequest,
    EndTransactionRequest,
    InitTransactionsRequest,
    PrepareTransactionRequest,
    TransactionTopic,
)
from barnabas.net.wire.protocol import requests as q
from barnabas.net.wire.protocol import responses as r
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.transaction_operations import (
    DescribeTransactionRequest,
    DescribeTransactionResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

TX = "tx"


class FakeTransactions:
    def __init__(self, cluster: FakeCluster) -> None:
        self.described: list[DescribeTransactionRequest] = []
        self.cluster = cluster
        self.ids = count(500)
        self.machines: dict[int, TransactionCoordinator] = {}  # by slot
        cluster.answers[ApiKey.INIT_TRANSACTIONS] = lambda _, request: self.answer(self.init, request)
        cluster.answers[ApiKey.PREPARE_TRANSACTION] = lambda _, request: self.answer(self.prepare, request)
        cluster.answers[ApiKey.END_TRANSACTION] = lambda _, request: self.answer(self.end, request)
        cluster.answers[ApiKey.LIST_TRANSACTIONS] = self.list_all
        cluster.answers[ApiKey.DESCRIBE_TRANSACTION] = lambda _, request: self.answer(self.describe, request)
        self.append = cluster.answers[ApiKey.PRODUCE]
        cluster.answers[ApiKey.PRODUCE] = self.produce

    def now_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    def machine(self, transactional_id: str) -> TransactionCoordinator:
        slot = slot_of(transactional_id)
        if slot not in self.machines:
            state = SlotState(slot=slot)
            state.moved(1)
            self.machines[slot] = TransactionCoordinator(state=state, settings=TransactionSettings(), now_ms=0)
        return self.machines[slot]

    def known(self) -> list[TransactionRecord]:
        return [item for machine in self.machines.values() for item in machine.list().response]

    def tick(self) -> None:
        for machine in self.machines.values():
            machine.tick(self.now_ms())
        self.write_markers()

    def answer(self, decide: Callable[[Any], Any], request: Any) -> Any:
        self.tick()
        try:
            return decide(request)
        except BarnabasError as error:
            return r.ErrorResponse(error=int(error.code), message=error.message)
        finally:
            self.write_markers()

    def init(self, request: InitTransactionsRequest) -> Any:
        machine = self.machine(request.transactional_id)
        found = machine.init(request, fresh_producer_id=next(self.ids), now_ms=self.now_ms()).response
        if isinstance(found, BarnabasError):
            raise found
        return found

    def end(self, request: EndTransactionRequest) -> Any:
        machine = self.machine(request.transactional_id)
        return machine.end(request, fresh_producer_id=next(self.ids), now_ms=self.now_ms()).response

    def prepare(self, request: PrepareTransactionRequest) -> Any:
        self.machine(request.transactional_id).prepare(request, now_ms=self.now_ms())
        return r.EmptyResponse()

    def abort(self, transactional_id: str) -> None:
        """By an operator."""
        self.machine(transactional_id).abort(transactional_id=transactional_id, now_ms=self.now_ms())
        self.write_markers()

    def list_all(self, node_id: int, request: ListTransactionsRequest) -> Any:
        if node_id:
            return ListTransactionsResponse(transactions=(), slots=())
        found = (item for item in self.known() if not request.states or item.state in request.states)
        return ListTransactionsResponse(
            transactions=tuple(_listed(item) for item in found if item.transactional_id.startswith(request.id_prefix)),
            slots=tuple(range(50)),
        )

    def describe(self, request: DescribeTransactionRequest) -> Any:
        self.described.append(request)
        found = self.machine(request.transactional_id).describe(request.transactional_id).response
        return DescribeTransactionResponse(summary=_listed(found))

    def produce(self, node_id: int, request: q.ProduceRequest) -> Any:
        """The partitions become part of the transaction by their records (KIP-890)."""
        if request.transactional_id is None:
            return self.append(node_id, request)
        self.tick()
        header = read_header(request.partitions[0].records)
        topics: dict[str, list[int]] = {}
        for item in request.partitions:
            assert read_header(item.records).is_transactional
            topics.setdefault(item.topic, []).append(item.partition)
        asked = AddToTransactionRequest(
            transactional_id=request.transactional_id,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            topics=tuple(
                TransactionTopic(topic=topic, topic_id=topic, partitions=tuple(numbers))
                for topic, numbers in topics.items()
            ),
            uses_v2=True,
        )
        try:
            self.machine(request.transactional_id).add(asked, now_ms=self.now_ms())
        except BarnabasError:
            code = 47  # INVALID_PRODUCER_EPOCH, as brokers answer
            return r.ProduceResponse(
                partitions=tuple(
                    r.ProducePartitionResponse(topic=item.topic, partition=item.partition, error=code)
                    for item in request.partitions
                )
            )
        return self.append(node_id, request)

    def write_markers(self) -> None:
        for machine in self.machines.values():
            self.write_markers_of(machine)

    def write_markers_of(self, machine: TransactionCoordinator) -> None:
        for record in machine.undecided_markers():
            for topic in record.partitions:
                for number in topic.partitions:
                    log = self.cluster.logs[TopicPartition(topic.topic, number)]
                    marker = encode_marker(
                        producer_id=record.producer_id,
                        producer_epoch=record.producer_epoch,
                        is_commit=record.state == "PrepareCommit",
                        coordinator_epoch=1,
                        timestamp_ms=0,
                    )
                    log.producers.update(read_header(marker), first_offset=log.end_offset)
                    log.batches.append((log.end_offset, log.end_offset + 1, marker))
                    log.end_offset += 1
            machine.markers_done(record, now_ms=self.now_ms())

    def committed(self, topic: str) -> list[bytes]:
        """The records of committed transactions, sorted."""
        found: list[bytes] = []
        for place, log in self.cluster.logs.items():
            opened: dict[int, list[bytes]] = {}
            for _, _, data in log.batches if place.topic == topic else ():
                header = read_header(data)
                if not header.is_control:
                    opened.setdefault(header.producer_id, []).extend(item.value or b"" for item in iter_records(data))
                    continue
                marker, values = read_marker(data), opened.pop(header.producer_id, [])
                assert marker is not None
                found += values if marker.is_commit else []
        return sorted(found)


def _listed(record: TransactionRecord) -> ListedTransaction:
    return ListedTransaction(
        transactional_id=record.transactional_id,
        producer_id=record.producer_id,
        producer_epoch=record.producer_epoch,
        state=record.state,
        timeout_ms=record.timeout_ms,
        duration_ms=-1,
        partition_count=0,
        group_count=0,
        coordinator=0,
        prepared_for=record.prepared_for,
    )
