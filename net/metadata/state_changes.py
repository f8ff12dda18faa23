"""The changes between two metadata images, one log line for each change. Pure.

The active controller logs its decisions (elections, ISRs, brokers, topics, configurations); each broker logs its own leaderships.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from barnabas.kraft.metadata.image import BrokerImage, MetadataChanges, MetadataImage, PartitionImage, TopicImage

CONTROLLER: Final = "barnabas.controller"
TOPICS: Final = "barnabas.topics"
REPLICATION: Final = "barnabas.replication"
NO_VALUE: Final = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One line: `event=... text`, in the log `domain`."""

    domain: str
    event: str
    text: str
    level: int = logging.INFO


def decisions(old: MetadataImage, new: MetadataImage, changes: MetadataChanges) -> Iterator[Change]:
    """The changes that the active controller logs."""
    for node_id in sorted(changes.brokers):
        yield from _of_broker(node_id, old.brokers.get(node_id), new.brokers.get(node_id))
    for name in sorted(changes.topics):
        yield from _of_topic(name, old.topics.get(name), new.topics.get(name))
    for name in sorted(changes.topic_configs):
        if name in new.topics:  # the configurations of a deleted topic were deleted with it
            before, now = old.topic_configs.get(name, {}), new.topic_configs.get(name, {})
            yield from _of_configs(TOPICS, f"topic={name}", before, now)
    for node in sorted(changes.broker_configs):
        before, now = old.broker_configs.get(node, {}), new.broker_configs.get(node, {})
        yield from _of_configs(CONTROLLER, f"broker={node or 'all'}", before, now)
    if old.group_configs is not new.group_configs:  # images share unchanged parts
        for group in sorted({*old.group_configs, *new.group_configs}):
            before, now = old.group_configs.get(group, {}), new.group_configs.get(group, {})
            yield from _of_configs(CONTROLLER, f"group={group}", before, now)


def own_roles(node_id: int, old: MetadataImage, new: MetadataImage, changes: MetadataChanges) -> Iterator[Change]:
    """The changes that each broker logs: the partitions that it begins or ceases to lead."""
    for name in sorted(changes.topics):
        before, now = old.topics.get(name), new.topics.get(name)
        for number, was, partition in _partitions(before, now):
            led = was is not None and was.leader == node_id
            leads = partition is not None and partition.leader == node_id
            if leads and partition is not None and not (led and was is not None and _same_term(was, partition)):
                text = f"partition={name}-{number} leader_epoch={partition.leader_epoch} isr={_ids(partition.isr)}"
                yield Change(domain=REPLICATION, event="leads", text=text)
            elif led and not leads:
                leader = "none" if partition is None or partition.leader < 0 else str(partition.leader)
                text = f"partition={name}-{number} leader={leader}"
                yield Change(domain=REPLICATION, event="leads_no_more", text=text)


def _same_term(one: PartitionImage, other: PartitionImage) -> bool:
    return one.leader_epoch == other.leader_epoch


def _partitions(
    old: TopicImage | None, new: TopicImage | None
) -> Iterator[tuple[int, PartitionImage | None, PartitionImage | None]]:
    """The changed partitions. Images share unchanged parts, so most of a large topic is skipped by an identity check."""
    if old is not None and new is not None and old.topic_id != new.topic_id:
        yield from _partitions(old, None)
        old = None
    before, now = old.partitions if old else (), new.partitions if new else ()
    for number in range(max(len(before), len(now))):
        was = before[number] if number < len(before) else None
        partition = now[number] if number < len(now) else None
        if was is not partition:
            yield number, was, partition


def _of_broker(node_id: int, old: BrokerImage | None, new: BrokerImage | None) -> Iterator[Change]:
    def told(event: str, text: str = "") -> Change:
        return Change(domain=CONTROLLER, event=event, text=f"broker={node_id}{text}")

    if new is None:
        yield told("unregistered")
        return
    if old is None or old.broker_epoch != new.broker_epoch:
        endpoints = ",".join(f"{item.listener}://{item.host}:{item.port}" for item in new.endpoints)
        yield told("registered", f" broker_epoch={new.broker_epoch} rack={new.rack or '-'} endpoints={endpoints}")
    if (old.fenced if old else True) != new.fenced:
        yield told("fenced" if new.fenced else "unfenced")
    if new.in_controlled_shutdown and not (old and old.in_controlled_shutdown):
        yield told("controlled_shutdown")
    if (old.decommissioning if old else False) != new.decommissioning:
        yield told("decommissioning" if new.decommissioning else "decommission_cancelled")


def _of_topic(name: str, old: TopicImage | None, new: TopicImage | None) -> Iterator[Change]:
    if old is not None and (new is None or new.topic_id != old.topic_id):
        yield Change(domain=TOPICS, event="deleted", text=f"topic={name} topic_id={old.topic_id}")
        old = None
    if new is None:
        return
    if old is None:
        replicas = max((len(partition.replicas) for partition in new.partitions), default=0)
        text = f"topic={name} topic_id={new.topic_id} partitions={len(new.partitions)} replicas={replicas}"
        yield Change(domain=TOPICS, event="created", text=text)
        return
    if len(new.partitions) > len(old.partitions):
        text = f"topic={name} partitions={len(new.partitions)} was={len(old.partitions)}"
        yield Change(domain=TOPICS, event="partitions_added", text=text)
    for number, was, partition in _partitions(old, new):
        if was is not None and partition is not None:
            yield from _of_partition(f"{name}-{number}", was, partition)


def _of_partition(name: str, old: PartitionImage, new: PartitionImage) -> Iterator[Change]:
    if new.unclean_elections > old.unclean_elections:
        text = f"partition={name} leader={new.leader}: acknowledged records may be lost"
        yield Change(domain=CONTROLLER, event="unclean_election", text=text, level=logging.WARNING)
    if new.leader != old.leader:
        text = f"partition={name} leader={new.leader} was={old.leader} leader_epoch={new.leader_epoch}"
        yield Change(domain=CONTROLLER, event="elected" if new.leader >= 0 else "leaderless", text=text)
    if set(new.isr) != set(old.isr):
        text = f"partition={name} isr={_ids(new.isr)} was={_ids(old.isr)} eligible={_ids(new.eligible_leader_replicas)}"
        yield Change(domain=CONTROLLER, event="isr", text=text)
    if new.is_moving and (new.adding_replicas, new.removing_replicas) != (old.adding_replicas, old.removing_replicas):
        text = f"partition={name} adding={_ids(new.adding_replicas)} removing={_ids(new.removing_replicas)}"
        yield Change(domain=CONTROLLER, event="reassignment", text=text)
    elif old.is_moving and not new.is_moving:
        text = f"partition={name} replicas={_ids(new.replicas)} was={_ids(old.replicas)}"
        yield Change(domain=CONTROLLER, event="reassignment_ended", text=text)
    if set(new.offline_replicas) != set(old.offline_replicas):
        text = f"partition={name} offline={_ids(new.offline_replicas)} was={_ids(old.offline_replicas)}"
        yield Change(domain=CONTROLLER, event="offline_replicas", text=text)


def _of_configs(domain: str, what: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            text = f"{what} key={key} value={new.get(key, NO_VALUE)} was={old.get(key, NO_VALUE)}"
            yield Change(domain=domain, event="configured", text=text)


def _ids(nodes: tuple[int, ...]) -> str:
    return ",".join(map(str, nodes)) or "-"
