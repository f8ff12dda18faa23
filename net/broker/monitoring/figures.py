"""Answers DescribeBroker: the figures of this broker, and rates over the last half to whole minute."""

import asyncio
import platform
from collections.abc import Iterator
from heapq import nlargest
from typing import TYPE_CHECKING, Final

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.figures.loop_delays import LoopDelays, measure
from barnabas.net.base.figures.producer_samples import EVERY, ProducerSamples
from barnabas.net.base.figures.request_measures import RequestMeasures
from barnabas.net.base.figures.topic_traffic import TopicTraffic
from barnabas.net.base.settings.listeners import pem_files
from barnabas.net.wire.protocol.broker_figures import (
    HISTORY_STEP_MS,
    ClientSoftware,
    DescribeBrokerRequest,
    DescribeBrokerResponse,
    PartitionRate,
    ProducerHabits,
)
from barnabas.net.wire.protocol.group_responses import LagPoint
from barnabas.net.wire.protocol.lag import GroupLagsRequest, GroupLagsResponse

from ...server.dispatcher import RequestContext
from ..tls import configured_certificates
from .group_lags import remember_lags
from .history import History, Reading, buckets_of
from .lag_copies import LagCopies
from .lag_history import GroupLags
from .machine import MachineWatch, own_version

if TYPE_CHECKING:
    from ..broker import Broker

BUSIEST: Final = 50  # partitions that are told
LOOK_AGAIN_S: Final = 30.0


class Counters:
    """What rates are made of."""

    def __init__(self, broker: "Broker", now_s: float) -> None:
        self.at_s = now_s
        servers = [server.metrics for server in broker.listeners.servers.values()]
        self.connections = sum(item.connections_accepted + item.connections_refused for item in servers)
        self.bytes = {
            item.topic_partition: (item.bytes_in, item.bytes_out)
            for item in broker.replication.manager.partitions()
            if item.bytes_in or item.bytes_out
        }


class BrokerFigures:
    """What a broker measures, held for it; `run` looks at what does not tell by itself."""

    def __init__(self, broker: "Broker") -> None:
        """Before the broker is built: of it, only `config` and `ports` are there."""
        self._broker = broker
        config = broker.config
        self.loop_delays = LoopDelays()
        self.measures = RequestMeasures()
        self.traffic = TopicTraffic(config.metrics_max_partitions)
        self.producers = ProducerSamples()
        self.machine = MachineWatch(
            config.data_folders(), broker.ports.files.disk_usage, pem_files(config), configured_certificates(config)
        )
        self.history = History()
        self.group_lags = GroupLags()
        self.lag_copies = LagCopies(broker, self.group_lags, broker.ports.clock.wall_ms)
        self._older: Counters | None = None
        self._newer: Counters | None = None

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.gather(
            measure(self.loop_delays),
            self.machine.run(),
            self._count(),
            self._remember(),
            remember_lags(self._broker, self.group_lags, self.lag_copies),
        )

    async def lags_of(self, group_id: str) -> tuple[tuple[LagPoint, ...], tuple[str, ...]]:
        """Of a group that this broker coordinates. If it is new here, other brokers are asked first."""
        await self.lag_copies.adopt([group_id])
        return self.group_lags.of(group_id)

    async def group_lags_request(self, request: GroupLagsRequest, context: RequestContext) -> GroupLagsResponse:
        return self.lag_copies.answer(request)

    async def _remember(self) -> None:
        while True:
            self.history.note(self._reading())
            await asyncio.sleep(HISTORY_STEP_MS / 1000)

    def _reading(self) -> Reading:
        servers = list(self._broker.listeners.servers.values())
        metrics = [server.metrics for server in servers]
        clock, process = self._broker.ports.clock, self.machine.process
        histograms = buckets_of(self.measures, self.loop_delays.histogram)
        return Reading(
            at_s=clock.now_ms() / 1000,
            wall_ms=clock.wall_ms(),
            requests=sum(sum(item.requests.values()) for item in metrics),
            errors=sum(self.measures.errors.values()),
            bytes_in=sum(item.bytes_in for item in metrics),
            bytes_out=sum(item.bytes_out for item in metrics),
            connections=sum(server.connection_count for server in servers),
            memory_bytes=process.memory_bytes if process else -1,
            buckets={name: tuple(histogram.counts) for name, histogram in histograms.items()},
            bounds_s={name: histogram.bounds_s for name, histogram in histograms.items()},
        )

    async def _count(self) -> None:
        while True:
            self._older, self._newer = self._newer, Counters(self._broker, self._broker.ports.clock.now_ms() / 1000)
            await asyncio.sleep(LOOK_AGAIN_S)

    async def describe(self, request: DescribeBrokerRequest, context: RequestContext) -> DescribeBrokerResponse:
        broker = self._broker
        if request.node_id != broker.node_id:
            raise InvalidRequestError(
                f"this is broker {broker.node_id}, not {request.node_id}; send the request to that broker"
            )
        now_s = broker.ports.clock.now_ms() / 1000
        rates = list(self._rates(now_s))
        process = self.machine.process
        servers = broker.listeners.servers.values()
        return DescribeBrokerResponse(
            node_id=broker.node_id,
            version=own_version(),
            python=platform.python_version(),
            wall_ms=broker.ports.clock.wall_ms(),
            started_ms=int(process.started_s * 1000) if process else -1,
            cpu_s=process.cpu_s if process else -1.0,
            memory_bytes=process.memory_bytes if process else -1,
            memory_limit_bytes=process.memory_limit_bytes if process else -1,
            descriptors=process.descriptors if process else -1,
            descriptor_limit=process.descriptor_limit if process else -1,
            loop_delay_ms=int(self.loop_delays.longest_s * 1000),
            connections=sum(server.connection_count for server in servers),
            max_connections=broker.config.max_connections,
            connections_per_s=self._connections_per_s(now_s),
            in_per_s=sum(item.in_per_s for item in rates),
            out_per_s=sum(item.out_per_s for item in rates),
            busiest=tuple(nlargest(BUSIEST, rates, key=lambda item: item.in_per_s + item.out_per_s)),
            producers=tuple(self._habits(now_s)),
            software=tuple(
                ClientSoftware(name=name, version=version, greetings=count)
                for (name, version), count in self.measures.software.items()
            ),
            certificates=tuple(self.machine.certificates),
            history=tuple(self.history.points) if request.history else (),
        )

    @property
    def _before(self) -> Counters | None:
        return self._older or self._newer

    def _rates(self, now_s: float) -> Iterator[PartitionRate]:
        before = self._before
        if before is None:
            return
        passed_s = max(1.0, now_s - before.at_s)
        for item in self._broker.replication.manager.partitions():
            if item.bytes_in or item.bytes_out:
                place: TopicPartition = item.topic_partition
                was_in, was_out = before.bytes.get(place, (0, 0))
                yield PartitionRate(
                    topic=place.topic,
                    partition=place.partition,
                    in_per_s=max(0, int((item.bytes_in - was_in) / passed_s)),
                    out_per_s=max(0, int((item.bytes_out - was_out) / passed_s)),
                )

    def _connections_per_s(self, now_s: float) -> float:
        before = self._before
        if before is None:
            return 0.0
        now = sum(
            server.metrics.connections_accepted + server.metrics.connections_refused
            for server in self._broker.listeners.servers.values()
        )
        # Never of a shorter time: after a restart, all clients come back within a second, which is no storm.
        return max(0, now - before.connections) / max(LOOK_AGAIN_S, now_s - before.at_s)

    def _habits(self, now_s: float) -> Iterator[ProducerHabits]:
        seconds, found = self.producers.habits(now_s)
        for client_id, habits in found.items():
            yield ProducerHabits(
                client_id=client_id,
                client_host=habits.host,
                requests_per_s=habits.requests * EVERY / seconds,
                batches=habits.batches,
                record_count=habits.records,
                size_bytes=habits.size_bytes,
                few_acks=habits.few_acks,
                not_idempotent=habits.not_idempotent,
            )
