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
from barnabas.log.format.record_batch import read_header
from barnabas.log.format.record_codec import encode_marker, iter_records, read_marker
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import (
    AddToTransactionRequest,
    EndTransactionRequest,
    InitTransactionsRequest,
    TransactionTopic,
)
from barnabas.net.protocol import requests as q
from barnabas.net.protocol import responses as r
from barnabas.net.protocol.api_keys import ApiKey

TX = "tx"


class FakeTransactions:
    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.ids = count(500)
        state = SlotState(slot=slot_of(TX))
        state.moved(1)
        self.machine = TransactionCoordinator(state=state, settings=TransactionSettings(), now_ms=0)
        self.marked = 0
        cluster.answers[ApiKey.INIT_TRANSACTIONS] = lambda _, request: self.answer(self.init, request)
        cluster.answers[ApiKey.END_TRANSACTION] = lambda _, request: self.answer(self.end, request)
        self.append = cluster.answers[ApiKey.PRODUCE]
        cluster.answers[ApiKey.PRODUCE] = self.produce

    def now_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    def answer(self, decide: Callable[[Any], Any], request: Any) -> Any:
        self.machine.tick(self.now_ms())
        self.write_markers()
        try:
            return decide(request)
        except BarnabasError as error:
            return r.ErrorResponse(error=int(error.code), message=error.message)
        finally:
            self.write_markers()

    def init(self, request: InitTransactionsRequest) -> Any:
        found = self.machine.init(request, fresh_producer_id=next(self.ids), now_ms=self.now_ms()).response
        if isinstance(found, BarnabasError):
            raise found
        return found

    def end(self, request: EndTransactionRequest) -> Any:
        return self.machine.end(request, fresh_producer_id=next(self.ids), now_ms=self.now_ms()).response

    def produce(self, node_id: int, request: q.ProduceRequest) -> Any:
        """The partitions become part of the transaction by their records (KIP-890)."""
        self.machine.tick(self.now_ms())
        self.write_markers()
        header = read_header(request.partitions[0].records)
        topics: dict[str, list[int]] = {}
        for item in request.partitions:
            assert read_header(item.records).is_transactional
            topics.setdefault(item.topic, []).append(item.partition)
        asked = AddToTransactionRequest(
            transactional_id=request.transactional_id or "",
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            topics=tuple(
                TransactionTopic(topic=topic, topic_id=topic, partitions=tuple(numbers))
                for topic, numbers in topics.items()
            ),
            uses_v2=True,
        )
        try:
            self.machine.add(asked, now_ms=self.now_ms())
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
        for record in self.machine.undecided_markers():
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
            self.machine.markers_done(record, now_ms=self.now_ms())

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
