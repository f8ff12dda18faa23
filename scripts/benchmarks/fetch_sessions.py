"""One connection that fetches 1,000 partitions in a fetch session (KIP-227), in Kafka's protocol.

A broker of Barnabas and one of Apache Kafka are sent the same bytes by one blocking socket, so that only the brokers differ.
"""

import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Self

from kafka_frames import frame
from measure import cpu_of

from barnabas.net.wire.protocol.kafka.compiler import decoder
from barnabas.net.wire.protocol.kafka.message_classes import types_of

FETCH, VERSION = 1, 12  # the last version with names of topics
MAX_WAIT_MS = 500  # the default of Kafka's consumers
PARTITION_BYTES = 1 << 20
CREATED_TIMEOUT_S = 180.0
FLUSH_TIMEOUT_S = 5.0
_SIZE = struct.Struct(">i")
_HEAD_BYTES = 5  # correlation id, and no tagged fields


class Polls(NamedTuple):
    """Figures of a second, and of a poll."""

    polls_per_second: float
    bytes_per_poll: float  # of request and answer
    broker_cpu_ms_per_second: float
    first_poll_bytes: int  # which names all partitions


class FetchSession:
    """A context: the session of one topic's partitions, all at their first record."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._topic = topic
        self._next = dict.fromkeys(range(partitions), 0)  # offsets
        self._types = types_of("FetchRequest")
        self._decode = decoder("FetchResponse", VERSION)
        self._id = self._epoch = 0
        self._refused = 0  # partitions of the last answer: they have no leader yet, and would be in every answer
        self.moved_bytes = 0

    def __enter__(self) -> Self:
        deadline = time.monotonic() + CREATED_TIMEOUT_S
        while True:
            self._sock = socket.create_connection(self._address)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._id = self._epoch = self.moved_bytes = 0
            self.poll(list(self._next))
            if self._id and not self._refused:
                return self
            self._sock.close()
            if time.monotonic() > deadline:
                raise RuntimeError(f"the broker opened no fetch session, or refused {self._refused} partitions")
            time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def poll(self, named: list[int]) -> list[int]:
        """Name these partitions, whose offset the broker does not know. Returns those that brought records."""
        items = [
            self._types["FetchPartition"](
                partition=number, fetch_offset=self._next[number], partition_max_bytes=PARTITION_BYTES
            )
            for number in named
        ]
        request = self._types["FetchRequest"](
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=50 << 20,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=[self._types["FetchTopic"](topic=self._topic, partitions=items)] if items else [],
        )
        sent = frame(FETCH, VERSION, request)
        self._sock.sendall(sent)
        body = self._read(_SIZE.unpack(self._read(_SIZE.size))[0])
        self.moved_bytes += len(sent) + len(body) + _SIZE.size
        answer, _ = self._decode(memoryview(body), _HEAD_BYTES)
        if answer.error_code:
            raise RuntimeError(f"the broker refused the fetch with error {answer.error_code}")
        self._id, self._epoch = answer.session_id, self._epoch + 1
        answered = [item for topic in answer.responses for item in topic.partitions]
        self._refused = sum(item.error_code != 0 for item in answered)
        found = [item for item in answered if item.records]
        for item in found:
            self._next[item.partition_index] = item.high_watermark  # the records are few: all of them came
        return [item.partition_index for item in found]

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._sock.recv(size)
            if not part:
                raise RuntimeError("the broker closed the connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def measure(bootstrap: str, pid: int, topic: str, partitions: int, seconds: float, trickle_s: float) -> Polls:
    """Poll without a pause for so long. `trickle_s`: the time between two records, each to another partition; 0: no records."""
    ended = threading.Event()
    with FetchSession(bootstrap, topic, partitions) as session, ThreadPoolExecutor(1) as pool:
        first, changed = session.moved_bytes, list(range(partitions))
        while changed := session.poll(changed):  # the records of earlier measurements
            pass
        sending = pool.submit(_send, bootstrap, topic, partitions, trickle_s, ended) if trickle_s else None
        try:
            size, cpu, began, polls = session.moved_bytes, cpu_of(pid), time.perf_counter(), 0
            while time.perf_counter() < began + seconds:
                changed = session.poll(changed)
                polls += 1
            passed = time.perf_counter() - began
            found = Polls(
                polls / passed, (session.moved_bytes - size) / polls, (cpu_of(pid) - cpu) / passed * 1000, first
            )
        finally:
            ended.set()
        if sending is not None:
            sending.result()
        return found


def _send(bootstrap: str, topic: str, partitions: int, pause_s: float, ended: threading.Event) -> None:
    """librdkafka as producer of both, one batch for each record. What a broker has not taken at the end is dropped."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    number = 0
    while not ended.wait(pause_s):
        producer.produce(topic, b"x", partition=number * 7 % partitions)
        producer.poll(0)
        number += 1
    producer.purge()
    producer.flush(FLUSH_TIMEOUT_S)
