"""A cluster in memory that speaks values: scripted by tests, and served over real sockets by the load scripts.

`script(api, function)` puts a function in front of the real behaviour: it gets (node_id, request) and returns a
response, an exception to fail the future with, `HANG` (no answer ever), or None (behave as usual).
"""

import asyncio
import bisect
from collections import defaultdict, deque
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

from msgspec.structs import replace

from barnabas.log.format.record_batch import iter_headers, patch
from barnabas.log.format.record_codec import iter_records
from barnabas.log.segment.producer_state import ProducerState
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode, NetworkError, RecordTooLargeError, error_for
from barnabas.log.vocabulary.group_messages import CommittedOffset, PartitionOutcome
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.client import CONNECT_TIMEOUT_MS, Client
from barnabas.net.client.connection.errors import BufferExhaustedError
from barnabas.net.wire.protocol import group_responses as g
from barnabas.net.wire.protocol import requests as q
from barnabas.net.wire.protocol import responses as r
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.apis import key_of

HANG = object()
SILENCE_S = 3.0  # After a request, a connection to a frozen broker is given up (`net.wire.silence`).
BOOTSTRAP = ("fake", 9000)
Script = Callable[[int, Any], Any]


class FakeLog:
    def __init__(self) -> None:
        self.batches: list[tuple[int, int, bytes]] = []  # Base offset, next offset, bytes.
        self.start_offset = 0
        self.end_offset = 0
        self.leader = 0
        self.leader_epoch = 0
        self.keep = True  # False: count only, for load tests.
        self.max_batch_bytes = 1 << 30
        self.producers = ProducerState()
        self.aborted: list[
            tuple[int, int]
        ] = []  # (producer id, first offset), told with each read of committed records

    def append(self, records: bytes | memoryview) -> int:
        """The base offset, of the first time if it was there. Raises what a broker refuses, also what is out of order."""
        base = self.end_offset
        data = bytearray(records)
        headers = list(iter_headers(data, verify_crc=True))
        if max(header.size_bytes for header in headers) > self.max_batch_bytes:
            raise RecordTooLargeError("a batch is too large")
        if headers[0].producer_id >= 0:
            (header,) = headers  # an idempotent batch comes alone
            there = self.producers.check(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.record_count,
                is_transactional=header.is_transactional,
            )
            if there is not None:
                return there.first_offset
            self.producers.update(header, first_offset=base)
        for header in headers:
            patch(data, header.position, base_offset=self.end_offset, leader_epoch=self.leader_epoch)
            next_offset = self.end_offset + header.record_count
            if self.keep:
                end = header.position + header.size_bytes
                self.batches.append((self.end_offset, next_offset, bytes(data[header.position : end])))
            self.end_offset = next_offset
        return base

    def read(self, offset: int, max_bytes: int) -> bytes:
        first = bisect.bisect_right(self.batches, offset, key=lambda batch: batch[1])
        pieces, size = [], 0
        for _, _, data in self.batches[first:]:
            if pieces and size + len(data) > max_bytes:
                break
            pieces.append(data)
            size += len(data)
        return b"".join(pieces)

    def values(self) -> list[bytes | None]:
        return [record.value for _, _, data in self.batches for record in iter_records(data)]


class FakeFetchSession:
    def __init__(self, session_id: int) -> None:
        self.session_id = session_id
        self.epoch = 0  # of the next request
        self.partitions: dict[TopicPartition, q.FetchPartition] = {}
        self.wake: asyncio.Event | None = None  # of the request that waits

    def merged(self, request: q.FetchRequest) -> q.FetchRequest:
        """The request with all partitions of the session. It overtakes the one that waits."""
        self.epoch += 1
        if self.wake is not None:
            self.wake.set()
        self.partitions |= {TopicPartition(item.topic, item.partition): item for item in request.partitions}
        for topic in request.forgotten:
            for number in topic.partitions:
                del self.partitions[TopicPartition(topic.topic, number)]
        return replace(request, partitions=tuple(self.partitions.values()))


class FakeCluster:
    def __init__(self, *, brokers: int = 1, topics: dict[str, int] | None = None) -> None:
        self.nodes = {node_id: ("fake", 9000 + node_id) for node_id in range(brokers)}
        self.down: set[int] = set()
        self.frozen: set[int] = set()  # They accept connections, and say nothing.
        self.controller = 0
        self.bootstrap_node: int | None = None  # Answers at the clients' bootstrap address, and only there.
        self.logs: dict[TopicPartition, FakeLog] = {}
        self.topic_ids: dict[str, str] = {}
        self.configs: dict[str, dict[str, str]] = {}  # of topics
        self.producer_ids = count(1_000)
        self.offset = 1
        self.requests: list[tuple[int, Any]] = []
        self.keep_requests = True
        self.creates_topics = True  # that a producer asks for
        self.clients_made = 0
        self.scripts: dict[ApiKey, deque[Script] | Script] = {}
        self.waiting: list[asyncio.Event] = []
        self.gives_sessions = True  # to consumers
        self.refuses_to_send: list[type] = []  # The connection is full for one request of each of these types.
        self.session_ids = count(7)
        self.sessions: dict[int, FakeFetchSession] = {}
        self.committed: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
        self.connections: list[FakeConnection] = []
        self.answers = {
            ApiKey.METADATA: self.metadata,
            ApiKey.PRODUCE: self.produce,
            ApiKey.INIT_PRODUCER_ID: lambda node, request: r.InitProducerIdResponse(
                producer_id=next(self.producer_ids), producer_epoch=0
            ),
            ApiKey.LIST_OFFSETS: self.list_offsets,
            ApiKey.UNREAD: self.unread,
            ApiKey.FIND_COORDINATOR: lambda node, request: g.FindCoordinatorResponse(
                node_id=0, host=self.nodes[0][0], port=self.nodes[0][1]
            ),
            ApiKey.OFFSET_COMMIT: self.offset_commit,
            ApiKey.OFFSET_FETCH: self.offset_fetch,
            ApiKey.DESCRIBE_CONFIGS: self.describe_configs,
        }
        for name, partitions in (topics or {}).items():
            self.create(name, partitions)

    def create(self, topic: str, partitions: int) -> None:
        for number in range(partitions):
            log = self.logs.setdefault(TopicPartition(topic, number), FakeLog())
            log.leader = number % len(self.nodes)
        self.offset += 1

    def delete(self, topic: str) -> None:
        for partition in [partition for partition in self.logs if partition.topic == topic]:
            del self.logs[partition]
        self.offset += 1

    def make_anew(self, topic: str) -> None:
        """Delete the topic and create another one of its name, with as many partitions."""
        count = len([self.logs.pop(partition) for partition in list(self.logs) if partition.topic == topic])
        self.topic_ids[topic] = self.topic_ids.get(topic, topic) + "'"
        self.create(topic, count)

    def topic_id(self, topic: str) -> str:
        return self.topic_ids.get(topic, topic)

    def move_leader(self, partition: TopicPartition, node_id: int) -> None:
        log = self.logs[partition]
        log.leader = node_id
        log.leader_epoch += 1
        self.offset += 1

    def script(self, api: ApiKey, *functions: Script, forever: bool = False) -> None:
        """Functions for the next requests of this API, one each; `forever`: one for all."""
        self.scripts[api] = functions[0] if forever else deque(functions)

    def client(self, **options: Any) -> Client:
        self.clients_made += 1  # Each draws other member ids.
        return Client("fake:9000", new_pool=lambda: FakePool(self), rng=Random(6 + self.clients_made), **options)

    def sent(self, kind: type) -> list[Any]:
        return [request for _, request in self.requests if isinstance(request, kind)]

    def drop_connections(self, node_id: int | None = None) -> None:
        for connection in list(self.connections):
            if node_id is None or connection.node_id == node_id:
                connection.lose()

    # --- answers -----------------------------------------------------------------------------------------------------

    def answer(self, node_id: int, request: Any) -> Any:
        """A response, an exception, HANG, or a coroutine of one of them."""
        if self.keep_requests:
            self.requests.append((node_id, request))
        api = key_of(type(request))
        script = self.scripts.get(api)
        if isinstance(script, deque):
            script = script.popleft() if script else None
        if script is not None and (found := script(node_id, request)) is not None:
            return found
        if api == ApiKey.FETCH:
            return self.fetch(node_id, request)
        function = self.answers.get(api)
        return r.ErrorResponse(error=35, message="not here") if function is None else function(node_id, request)

    def metadata(self, node_id: int, request: q.MetadataRequest) -> r.MetadataResponse:
        known = {partition.topic for partition in self.logs}
        wanted = sorted(known) if request.topics is None else request.topics
        if request.allow_auto_topic_creation and self.creates_topics:
            for topic in wanted:
                if topic not in known:
                    self.create(topic, 1)
        return r.MetadataResponse(
            cluster_id="fake",
            controller_id=self.controller,
            offset=self.offset,
            brokers=tuple(
                r.BrokerMetadata(node_id=node, host=host, port=port) for node, (host, port) in self.nodes.items()
            ),
            topics=tuple(self._topic(topic) for topic in wanted),
        )

    def _topic(self, topic: str) -> r.TopicMetadata:
        logs = sorted((partition, log) for partition, log in self.logs.items() if partition.topic == topic)
        error = 0 if logs else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        nodes = tuple(self.nodes)
        return r.TopicMetadata(
            error=error,
            name=topic,
            topic_id=self.topic_ids.get(topic, topic),
            partitions=tuple(
                r.PartitionMetadata(
                    error=0, leader=log.leader, leader_epoch=log.leader_epoch, replicas=nodes, isr=nodes
                )
                for _, log in logs
            ),
        )

    def produce(self, node_id: int, request: q.ProduceRequest) -> r.ProduceResponse:
        answers = []
        for item in request.partitions:
            log = self.logs.get(TopicPartition(item.topic, item.partition))
            common: dict[str, Any] = {"topic": item.topic, "partition": item.partition}
            if log is None:
                answers.append(r.ProducePartitionResponse(**common, error=3))
            elif log.leader != node_id:
                hint = {"leader_id": log.leader, "leader_epoch": log.leader_epoch}
                answers.append(r.ProducePartitionResponse(**common, error=6, **hint))
            else:
                try:
                    answers.append(r.ProducePartitionResponse(**common, base_offset=log.append(item.records)))
                except BarnabasError as error:
                    answers.append(r.ProducePartitionResponse(**common, error=error.code, message=error.message))
        for event in self.waiting:
            event.set()
        return r.ProduceResponse(partitions=tuple(answers))

    async def fetch(self, node_id: int, request: q.FetchRequest) -> r.FetchResponse | r.ErrorResponse:
        session = self.sessions.get(request.session_id)
        if request.session_epoch == 0 and self.gives_sessions:
            session_id = next(self.session_ids)
            session = self.sessions[session_id] = FakeFetchSession(session_id)
        elif request.session_epoch > 0 and (session is None or session.epoch != request.session_epoch):
            return r.ErrorResponse(error=int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND), message="begin a new one")
        if session is None:
            return await self._fetch_all(node_id, request)
        response = await self._fetch_all(node_id, session.merged(request), session)
        named = [item for item in response.partitions if item.error or item.records or request.session_epoch == 0]
        return replace(response, partitions=tuple(named), session_id=session.session_id)

    async def _fetch_all(
        self, node_id: int, request: q.FetchRequest, session: FakeFetchSession | None = None
    ) -> r.FetchResponse:
        response = self._fetch_now(node_id, request)
        epoch = session.epoch if session else 0
        if response is None:
            event = asyncio.Event()
            self.waiting.append(event)
            if session:
                session.wake = event
            try:
                async with asyncio.timeout(request.max_wait_ms / 1000):
                    while response is None and not (session and session.epoch != epoch):
                        await event.wait()
                        event.clear()
                        response = self._fetch_now(node_id, request)
            except TimeoutError:
                pass
            finally:
                self.waiting.remove(event)
        return response or self._fetched(request, {})

    def _fetch_now(self, node_id: int, request: q.FetchRequest) -> r.FetchResponse | None:
        """None: nothing yet, wait."""
        found: dict[TopicPartition, dict[str, Any]] = {}
        left = request.max_bytes
        for item in request.partitions:
            partition = TopicPartition(item.topic, item.partition)
            log = self.logs[partition]
            if item.topic_id not in ("", self.topic_id(item.topic)):
                found[partition] = {"error": int(ErrorCode.INCONSISTENT_TOPIC_ID)}
            elif log.leader != node_id or item.current_leader_epoch < log.leader_epoch:
                found[partition] = {"error": 6, "leader_id": log.leader, "leader_epoch": log.leader_epoch}
            elif not log.start_offset <= item.fetch_offset <= log.end_offset:
                found[partition] = {"error": 1}
            elif left > 0 and (data := log.read(item.fetch_offset, min(left, item.max_bytes))):
                found[partition] = {"records": data, "aborted": log.aborted if request.isolation_level else ()}
                left -= len(data)
        return self._fetched(request, found) if found else None

    def _fetched(self, request: q.FetchRequest, found: dict[TopicPartition, dict[str, Any]]) -> r.FetchResponse:
        return r.FetchResponse(
            partitions=tuple(
                r.FetchPartitionResponse(
                    topic=item.topic,
                    partition=item.partition,
                    high_watermark=self.logs[TopicPartition(item.topic, item.partition)].end_offset,
                    log_start_offset=self.logs[TopicPartition(item.topic, item.partition)].start_offset,
                    **found.get(TopicPartition(item.topic, item.partition), {}),
                )
                for item in request.partitions
            )
        )

    def describe_configs(self, node_id: int, request: q.DescribeConfigsRequest) -> r.DescribeConfigsResponse:
        return r.DescribeConfigsResponse(
            entries=tuple(
                r.ConfigEntry(key=key, value=value, source="topic", default=None, documentation="")
                for key, value in self.configs.get(request.resource, {}).items()
            )
        )

    def list_offsets(self, node_id: int, request: q.ListOffsetsRequest) -> r.ListOffsetsResponse:
        answers = []
        for item in request.partitions:
            log = self.logs[TopicPartition(item.topic, item.partition)]
            offset = {-1: log.end_offset, -2: log.start_offset}.get(
                item.timestamp_ms, self._by_time(log, item.timestamp_ms)
            )
            error = 0 if log.leader == node_id else 6
            if item.topic_id not in ("", self.topic_id(item.topic)):
                error = int(ErrorCode.INCONSISTENT_TOPIC_ID)
            answers.append(
                r.ListOffsetsPartitionResponse(topic=item.topic, partition=item.partition, offset=offset, error=error)
            )
        return r.ListOffsetsResponse(partitions=tuple(answers))

    def unread(self, node_id: int, request: q.UnreadRequest) -> g.UnreadResponse:
        """Record n was appended at second n; it is second 1000 now."""
        answers = []
        for item in request.partitions:
            log = self.logs[TopicPartition(item.topic, item.partition)]
            first = max(item.offset, log.start_offset)
            answers.append(
                g.UnreadPartitionResponse(
                    topic=item.topic,
                    partition=item.partition,
                    error=0 if log.leader == node_id else 6,
                    log_start_offset=log.start_offset,
                    log_end_offset=log.end_offset,
                    first_unread_ms=1_000 * first if first < log.end_offset else -1,
                    now_ms=1_000_000,
                )
            )
        return g.UnreadResponse(partitions=tuple(answers))

    def _by_time(self, log: FakeLog, timestamp_ms: int) -> int:
        for _, _, data in log.batches:
            for record in iter_records(data):
                if record.timestamp_ms >= timestamp_ms:
                    return record.offset
        return -1

    def offset_commit(self, node_id: int, request: q.OffsetCommitRequest) -> g.OffsetCommitResponse:
        for item in request.partitions:
            self.committed[request.group_id][TopicPartition(item.topic, item.partition)] = item.offset
        return g.OffsetCommitResponse(
            partitions=tuple(
                PartitionOutcome(topic=item.topic, partition=item.partition) for item in request.partitions
            )
        )

    def offset_fetch(self, node_id: int, request: q.OffsetFetchRequest) -> g.OffsetFetchResponse:
        return g.OffsetFetchResponse(
            partitions=tuple(
                CommittedOffset(topic=partition.topic, partition=partition.partition, offset=offset)
                for partition, offset in self.committed[request.group_id].items()
            )
        )


class FakeConnection:
    def __init__(self, cluster: FakeCluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.is_open = True
        self.tasks: set[asyncio.Task[None]] = set()
        self.pending: set[asyncio.Future[Any]] = set()
        self.silence: asyncio.TimerHandle | None = None
        cluster.connections.append(self)

    @property
    def in_flight(self) -> int:
        return len(self.pending)

    def send(self, request: Any, *, timeout_ms: int) -> asyncio.Future[Any]:
        self._check()
        if type(request) in self.cluster.refuses_to_send:
            self.cluster.refuses_to_send.remove(type(request))
            raise BufferExhaustedError("too many requests are in flight")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self.pending.add(future)
        future.add_done_callback(self.pending.discard)
        timer = loop.call_later(timeout_ms / 1000, self._resolve, future, error_for(7, "no answer in time"))
        future.add_done_callback(lambda _: timer.cancel())
        if self.node_id in self.cluster.frozen:
            self.silence = self.silence or loop.call_later(SILENCE_S, self.lose)
            return future
        found = self.cluster.answer(self.node_id, request)
        if asyncio.iscoroutine(found):
            task = asyncio.ensure_future(self._later(future, found))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        elif found is not HANG:
            loop.call_soon(self._resolve, future, found)
        return future

    async def _later(self, future: asyncio.Future[Any], found: Any) -> None:
        self._resolve(future, await found)

    def _resolve(self, future: asyncio.Future[Any], found: Any) -> None:
        if future.done() or found is HANG:
            return
        if isinstance(found, BarnabasError):
            future.set_exception(found)
        else:
            future.set_result(found)

    def send_oneway(self, request: Any) -> None:
        self._check()
        self.cluster.answer(self.node_id, request)

    async def call(self, request: Any, *, timeout_ms: int) -> Any:
        response = await self.send(request, timeout_ms=timeout_ms)
        if isinstance(response, r.ErrorResponse):
            raise error_for(response.error, response.message)
        return response

    def lose(self) -> None:
        self.is_open = False
        if self.silence is not None:
            self.silence.cancel()
        for task in list(self.tasks):
            task.cancel()
        for future in list(self.pending):
            self._resolve(future, NetworkError("the connection was lost"))
        if self in self.cluster.connections:
            self.cluster.connections.remove(self)

    def _check(self) -> None:
        if not self.is_open:
            raise NetworkError("the connection is closed")


class FakePool:
    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.open: dict[tuple[str, int], FakeConnection] = {}
        self.attempts: dict[int, float] = {}  # at frozen brokers, since when; all callers share one

    def peek(self, host: str, port: int) -> FakeConnection | None:
        found = self.open.get((host, port))
        return found if found is not None and found.is_open else None

    async def get(self, host: str, port: int) -> FakeConnection:
        await asyncio.sleep(0)
        node_id = next((node for node, address in self.cluster.nodes.items() if address == (host, port)), None)
        if self.cluster.bootstrap_node is not None:
            node_id = self.cluster.bootstrap_node if (host, port) == BOOTSTRAP else None
        if node_id is None or node_id in self.cluster.down:
            await asyncio.sleep(0.05)
            raise NetworkError(f"cannot connect to {host}:{port}: Connection refused")
        found = self.peek(host, port)
        if found is None and node_id in self.cluster.frozen:
            await self._attempt_in_vain(node_id)
        if found is None:
            found = self.open[host, port] = FakeConnection(self.cluster, node_id)
        return found

    async def _attempt_in_vain(self, node_id: int) -> None:
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(self.attempts.setdefault(node_id, now) + CONNECT_TIMEOUT_MS / 1000 - now)
        self.attempts.pop(node_id, None)
        raise NetworkError(f"broker {node_id} did not answer within {CONNECT_TIMEOUT_MS} ms")

    async def close(self) -> None:
        for connection in self.open.values():
            connection.lose()
            await asyncio.gather(*connection.tasks, return_exceptions=True)
