"""`/metrics` in Prometheus' text format: the metric names of kafka_exporter, and those of Barnabas.

A broker reports the partitions that it leads and the groups that it coordinates. So a sum over all brokers counts nothing twice,
and scraping one broker causes no disk reads on the others. With many partitions, the text is made in a thread: the event loop
serves clients meanwhile.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from typing import Final

from barnabas.kraft.metadata.image import MetadataImage, PartitionImage
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.requests import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
)
from barnabas.net.wire.protocol.responses import ListOffsetsResponse

from ..frame.backend import Sample
from ..frame.call import Call, Reply, Route
from ..frame.lags import GroupLag, LaggingGroup

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_LAG_SERIES: Final = 10_000  # lags reported per partition in one scrape; about 3 MB of text
OFFSETS_AT_ONCE: Final = 500  # partitions whose offsets are asked in one request; about 5 ms of the loop
_HELP: Final = {
    "kafka_brokers": "Number of brokers in the cluster that are not fenced.",
    "kafka_topic_partitions": "Number of partitions of this topic.",
    "kafka_topic_partition_current_offset": "High watermark of this partition.",
    "kafka_topic_partition_oldest_offset": "First offset that this partition still has.",
    "kafka_topic_partition_leader": "Node id of the leader; -1 without a leader.",
    "kafka_topic_partition_leader_is_preferred": "1 if the preferred replica leads.",
    "kafka_topic_partition_replicas": "Number of replicas of this partition.",
    "kafka_topic_partition_in_sync_replica": "Number of in-sync replicas of this partition.",
    "kafka_controller_unclean_leader_elections_total": "Elections of leaders neither in sync nor eligible, from one broker.",
    "barnabas_topic_partition_unclean_elections": "Elections of leaders neither in sync nor eligible, of this partition.",
    "kafka_topic_partition_under_replicated_partition": "1 if a replica of this partition is not in sync.",
    "kafka_consumergroup_members": "Number of members of this group.",
    "kafka_consumergroup_current_offset": "Committed offset of this group in this partition; -1: none, everything is unread.",
    "kafka_consumergroup_lag": "Records of this partition that this group has not read yet.",
    "kafka_consumergroup_lag_seconds": "Age of the oldest record of this partition that this group has not read.",
    "kafka_consumergroup_lag_sum": "Records of this topic that this group has not read yet.",
    "barnabas_group_max_lag_records": "Largest lag of this group in one partition, in records.",
    "barnabas_group_max_lag_seconds": "Age of the oldest record that this group has not read, in any partition.",
    "barnabas_group_lag_age_seconds": "Age of the lags of groups here, which rises while a leader is silent; -1: none known.",
    "barnabas_group_lag_series_omitted": "Partitions of groups whose lag is only in the sums: those with the smallest lag.",
}


def _gauge(name: str, value: float, **labels: str) -> Sample:
    return Sample(name=name, type="gauge", help=_HELP[name], value=value, labels=labels)


def render(samples: Iterable[Sample]) -> str:
    """The text format: samples of one name together, after one HELP and one TYPE line."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    lines: list[str] = []
    for name, group in sorted(by_name.items()):
        kind = group[0].type
        words = group[0].help.replace("\\", r"\\").replace("\n", r"\n")
        lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{sample.part}{_labels(sample)} {_number(sample.value)}" for sample in group]
    return "".join(f"{line}\n" for line in lines)


def _labels(sample: Sample) -> str:
    pairs = [f'{name}="{_escaped(value)}"' for name, value in sample.labels.items()]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


async def _metrics(call: Call) -> Reply:
    node_id, image = call.backend.node_id, call.image
    led = await asyncio.to_thread(lambda: list(_led_by(node_id, image)))
    others = [*call.backend.metrics(), *await _offset_samples(call, led), *await _group_samples(call)]
    body = await asyncio.to_thread(lambda: render([*_cluster_samples(node_id, image, led), *others]).encode())
    return Reply(body=body, content_type=CONTENT_TYPE)


def _cluster_samples(
    node_id: int, image: MetadataImage, led: Sequence[tuple[TopicPartition, PartitionImage]]
) -> Iterator[Sample]:
    yield _gauge("kafka_brokers", sum(not broker.fenced for broker in image.brokers.values()))
    if node_id == image.controller_id:
        counts = (partition.unclean_elections for topic in image.topics.values() for partition in topic.partitions)
        name = "kafka_controller_unclean_leader_elections_total"
        yield Sample(name=name, type="counter", help=_HELP[name], value=sum(counts), labels={})
    for place, partition in led:
        if place.partition == 0:
            yield _gauge("kafka_topic_partitions", len(image.topics[place.topic].partitions), topic=place.topic)
        yield from _partition_samples(place, partition)


def _led_by(node_id: int, image: MetadataImage) -> Iterator[tuple[TopicPartition, PartitionImage]]:
    """Partitions led by this broker. A partition without a leader is reported by the controller: its replicas may be down."""
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            teller = partition.leader if partition.leader >= 0 else image.controller_id
            if teller == node_id:
                yield TopicPartition(topic.name, index), partition


def _partition_samples(place: TopicPartition, partition: PartitionImage) -> Iterator[Sample]:
    labels = {"topic": place.topic, "partition": str(place.partition)}
    values = {
        "leader": partition.leader,
        "leader_is_preferred": partition.leader == partition.replicas[0],
        "replicas": len(partition.replicas),
        "in_sync_replica": len(partition.isr),
        "under_replicated_partition": len(partition.isr) < len(partition.replicas),
    }
    for name, value in values.items():
        yield _gauge(f"kafka_topic_partition_{name}", float(value), **labels)
    if partition.unclean_elections:
        yield _gauge("barnabas_topic_partition_unclean_elections", partition.unclean_elections, **labels)


async def _offset_samples(call: Call, led: Sequence[tuple[TopicPartition, PartitionImage]]) -> list[Sample]:
    samples = []
    for start in range(0, len(led), OFFSETS_AT_ONCE):
        part = led[start : start + OFFSETS_AT_ONCE]
        places = [place for place, partition in part if partition.leader >= 0]
        for name, timestamp in (("current", LATEST_TIMESTAMP), ("oldest", EARLIEST_TIMESTAMP)):
            for place, offset in (await _offsets_at(call, places, timestamp)).items():
                labels = {"topic": place.topic, "partition": str(place.partition)}
                samples.append(_gauge(f"kafka_topic_partition_{name}_offset", offset, **labels))
        await asyncio.sleep(0)
    return samples


async def _offsets_at(call: Call, places: Sequence[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
    """Offsets by time of partitions that this broker leads. Partitions whose leadership just moved are left out."""
    if not places:
        return {}
    wanted = tuple(
        ListOffsetsPartition(topic=place.topic, partition=place.partition, timestamp_ms=timestamp_ms)
        for place in places
    )
    answer: ListOffsetsResponse = await call.ask_here(ListOffsetsRequest(partitions=wanted))
    return {TopicPartition(item.topic, item.partition): item.offset for item in answer.partitions if not item.error}


async def _group_samples(call: Call) -> list[Sample]:
    groups, age_s = await call.lags.get(call)
    told = _worst(groups)
    samples = [
        _gauge("barnabas_group_lag_age_seconds", age_s),
        _gauge("barnabas_group_lag_series_omitted", sum(len(group.lags) for group in groups) - len(told)),
    ]
    for group in groups:
        samples += _samples_of_group(group)
    for group_id, found in told:
        samples += _samples_of_partition(group_id, found)
    return samples


def _worst(groups: Sequence[LaggingGroup]) -> list[tuple[str, GroupLag]]:
    """The lags that are reported per partition: those with the largest lag."""
    every = [(group.group.group_id, found) for group in groups for found in group.lags]
    if len(every) > MAX_LAG_SERIES:
        every = nlargest(MAX_LAG_SERIES, every, key=lambda item: (item[1].lag.lag_ms, item[1].lag.lag))
    return every


def _samples_of_group(group: LaggingGroup) -> Iterator[Sample]:
    name = group.group.group_id
    yield _gauge("kafka_consumergroup_members", len(group.group.members), consumergroup=name)
    sums: dict[str, int] = {}
    for found in group.lags:
        sums[found.place.topic] = sums.get(found.place.topic, 0) + found.lag.lag
    for topic, total in sums.items():
        yield _gauge("kafka_consumergroup_lag_sum", total, consumergroup=name, topic=topic)
    if group.lags:
        yield _gauge("barnabas_group_max_lag_records", max(found.lag.lag for found in group.lags), group=name)
        longest_ms = max(found.lag.lag_ms for found in group.lags)
        yield _gauge("barnabas_group_max_lag_seconds", longest_ms / 1000, group=name)


def _samples_of_partition(group_id: str, found: GroupLag) -> Iterator[Sample]:
    labels = {"consumergroup": group_id, "topic": found.place.topic, "partition": str(found.place.partition)}
    yield _gauge("kafka_consumergroup_current_offset", found.lag.committed, **labels)
    yield _gauge("kafka_consumergroup_lag", found.lag.lag, **labels)
    if found.lag.lag_seconds is not None:
        yield _gauge("kafka_consumergroup_lag_seconds", found.lag.lag_seconds, **labels)


ROUTES = (
    Route(
        method="GET",
        path="/metrics",
        handler=_metrics,
        summary="Metrics for Prometheus, in its text format",
        media="text/plain",
    ),
)
