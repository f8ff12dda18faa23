"""The changes between two metadata images, one `Change` for each. Pure.

The active controller logs its decisions (elections, ISRs, brokers, topics, configurations); each broker logs its own leaderships,
and keeps all decisions as events (`committed`).
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from barnabas.kraft.metadata.image import BrokerImage, MetadataChanges, MetadataImage, PartitionImage, TopicImage
from barnabas.net.base.printable import key_values
from barnabas.net.wire.protocol.event_messages import EventKind

CONTROLLER: Final = "barnabas.controller"
TOPICS: Final = "barnabas.topics"
REPLICATION: Final = "barnabas.replication"
NO_VALUE: Final = "default"
HIDDEN: Final = "[hidden]"
SECRETS: Final = ("password", "secret", "jaas")  # in the name of a key: its value is not shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One line: `event=... key=value ...`, in the log `domain`; and one event of its kind."""

    domain: str
    kind: EventKind
    event: str
    fields: Mapping[str, str]
    topic: str = ""
    brokers: tuple[int, ...] = ()  # that it is about
    level: int = logging.INFO

    @property
    def text(self) -> str:
        return key_values(self.fields)


class Tally:
    """Which changes of partitions are made into a `Change`: of each kind, or of each name, the first `shown`. Others are counted.

    The loss of a broker with 10,000 leaderships is 20,000 changes in one publication. Their texts, which nothing shows, would
    keep the loop busy for longer than the election itself.
    """

    def __init__(self, shown: int, *, by_name: bool = False) -> None:
        self._shown = shown
        self._by_name = by_name
        self._counts: Counter[str] = Counter()

    def takes(self, kind: EventKind, name: str) -> bool:
        key = name if self._by_name else kind.value
        self._counts[key] += 1
        return self._counts[key] <= self._shown

    def left_out(self, key: str) -> int:
        return max(0, self._counts[key] - self._shown)


def decisions(old: MetadataImage, new: MetadataImage, changes: MetadataChanges, tally: Tally) -> Iterator[Change]:
    """The changes that the active controller logs. Brokers come first: what they do is the cause of elections."""
    for node_id in sorted(changes.brokers):
        yield from _of_broker(node_id, old.brokers.get(node_id), new.brokers.get(node_id))
    for name in sorted(changes.topics):
        yield from _of_topic(name, old.topics.get(name), new.topics.get(name), new, tally)
    for name in sorted(changes.topic_configs):
        if name in new.topics:  # the configurations of a deleted topic were deleted with it
            before, now = old.topic_configs.get(name, {}), new.topic_configs.get(name, {})
            yield from _of_configs(TOPICS, {"topic": name}, before, now, topic=name)
    for node in sorted(changes.broker_configs):
        before, now = old.broker_configs.get(node, {}), new.broker_configs.get(node, {})
        brokers = (int(node),) if node.isdecimal() else ()
        yield from _of_configs(CONTROLLER, {"broker": node or "all"}, before, now, brokers=brokers)
    if old.group_configs is not new.group_configs:  # images share unchanged parts
        for group in sorted({*old.group_configs, *new.group_configs}):
            before, now = old.group_configs.get(group, {}), new.group_configs.get(group, {})
            yield from _of_configs(CONTROLLER, {"group": group}, before, now)


def controller_change(old: MetadataImage, new: MetadataImage) -> Iterator[Change]:
    """Each broker logs it."""
    if new.controller_id != old.controller_id or new.controller_epoch != old.controller_epoch:
        yield Change(
            domain=CONTROLLER,
            kind=EventKind.CONTROLLER,
            event="controller",
            fields={
                "controller": str(new.controller_id),
                "controller_epoch": str(new.controller_epoch),
                "was": str(old.controller_id),
            },
            brokers=_present(new.controller_id, old.controller_id),
        )


def own_roles(
    node_id: int, old: MetadataImage, new: MetadataImage, changes: MetadataChanges, tally: Tally
) -> Iterator[Change]:
    """The changes that each broker logs: the partitions that it begins or ceases to lead."""
    for name in sorted(changes.topics):
        before, now = old.topics.get(name), new.topics.get(name)
        for number, was, partition in _partitions(before, now):
            led = was is not None and was.leader == node_id
            leads = partition is not None and partition.leader == node_id
            if leads and partition is not None and not (led and was is not None and _same_term(was, partition)):
                if not tally.takes(EventKind.ELECTION, "leads"):
                    continue
                fields = {"leader_epoch": str(partition.leader_epoch), "isr": _ids(partition.isr)}
                yield _role(name, number, "leads", fields)
            elif led and not leads and tally.takes(EventKind.ELECTION, "leads_no_more"):
                leader = "none" if partition is None or partition.leader < 0 else str(partition.leader)
                yield _role(name, number, "leads_no_more", {"leader": leader})


def _role(topic: str, number: int, event: str, fields: Mapping[str, str]) -> Change:
    fields = {"partition": f"{topic}-{number}", **fields}
    return Change(domain=REPLICATION, kind=EventKind.ELECTION, event=event, fields=fields, topic=topic)


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
    def told(event: str, kind: EventKind = EventKind.BROKER, **fields: str) -> Change:
        shown = {"broker": str(node_id), **fields}
        return Change(domain=CONTROLLER, kind=kind, event=event, fields=shown, brokers=(node_id,))

    if new is None:
        yield told("unregistered")
        return
    if old is None or old.broker_epoch != new.broker_epoch:
        endpoints = ",".join(f"{item.listener}://{item.host}:{item.port}" for item in new.endpoints)
        yield told("registered", broker_epoch=str(new.broker_epoch), rack=new.rack or "-", endpoints=endpoints)
    if (old.fenced if old else True) != new.fenced:
        if new.fenced and old is not None:
            yield told("fenced", why=_why_fenced(old, new))
        else:
            yield told("unfenced")
    if new.in_controlled_shutdown and not (old and old.in_controlled_shutdown):
        yield told("controlled_shutdown")
    if (old.decommissioning if old else False) != new.decommissioning:
        yield told("decommissioning" if new.decommissioning else "decommission_cancelled")
    before = {item.path: item for item in old.troubled_folders} if old else {}
    now = {item.path: item for item in new.troubled_folders}
    for path in sorted({*before, *now}):
        was = before[path].state if path in before else "online"
        state = now[path].state if path in now else "online"
        if state != was:
            cause = {"why": now[path].cause} if path in now else {}
            yield told(f"folder_{state}", EventKind.FOLDER, folder=path, was=was, **cause)


def _why_fenced(old: BrokerImage, new: BrokerImage) -> str:
    """The metadata does not tell a broken connection from missing heartbeats, and from a broker that has asked for it."""
    if new.broker_epoch != old.broker_epoch:
        return "registered_again"
    return "stopped" if old.in_controlled_shutdown else "not_heard"


def _of_topic(
    name: str, old: TopicImage | None, new: TopicImage | None, image: MetadataImage, tally: Tally
) -> Iterator[Change]:
    def told(event: str, **fields: str) -> Change:
        shown = {"topic": name, **fields}
        return Change(domain=TOPICS, kind=EventKind.TOPIC, event=event, fields=shown, topic=name)

    if old is not None and (new is None or new.topic_id != old.topic_id):
        yield told("deleted", topic_id=old.topic_id)
        old = None
    if new is None:
        return
    if old is None:
        replicas = max((len(partition.replicas) for partition in new.partitions), default=0)
        yield told("created", topic_id=new.topic_id, partitions=str(len(new.partitions)), replicas=str(replicas))
        return
    if len(new.partitions) > len(old.partitions):
        yield told("partitions_added", partitions=str(len(new.partitions)), was=str(len(old.partitions)))
    for number, was, partition in _partitions(old, new):
        if was is not None and partition is not None:
            yield from _of_partition(name, number, was, partition, image, tally)


def _of_partition(
    topic: str, number: int, old: PartitionImage, new: PartitionImage, image: MetadataImage, tally: Tally
) -> Iterator[Change]:
    def told(kind: EventKind, event: str, brokers: Iterable[int], level: int = logging.INFO, **fields: str) -> Change:
        return Change(
            domain=CONTROLLER,
            kind=kind,
            event=event,
            fields={"partition": f"{topic}-{number}", **fields},
            topic=topic,
            brokers=tuple(sorted(set(brokers))),
            level=level,
        )

    takes = tally.takes
    elected = "elected" if new.leader >= 0 else "leaderless"
    if new.unclean_elections > old.unclean_elections and takes(EventKind.ELECTION, "unclean_election"):
        risk = "acknowledged records may be lost"
        brokers = _present(new.leader)
        yield told(EventKind.ELECTION, "unclean_election", brokers, logging.WARNING, leader=str(new.leader), risk=risk)
    if new.leader != old.leader and takes(EventKind.ELECTION, elected):
        yield told(
            EventKind.ELECTION,
            elected,
            _present(new.leader, old.leader),
            leader=str(new.leader),
            was=str(old.leader),
            leader_epoch=str(new.leader_epoch),
            why=_why_elected(old, new, image),
        )
    if new.isr != old.isr and set(new.isr) != set(old.isr) and takes(EventKind.ISR, "isr"):
        yield told(
            EventKind.ISR,
            "isr",
            set(new.isr) ^ set(old.isr),
            isr=_ids(new.isr),
            was=_ids(old.isr),
            eligible=_ids(new.eligible_leader_replicas),
            why=_why_isr(old, new, image),
        )
    adding, removing = new.adding_replicas, new.removing_replicas
    has_moved = new.is_moving and (adding, removing) != (old.adding_replicas, old.removing_replicas)
    if has_moved and takes(EventKind.MOVE, "reassignment"):
        brokers = (*adding, *removing)
        yield told(EventKind.MOVE, "reassignment", brokers, adding=_ids(adding), removing=_ids(removing))
    elif old.is_moving and not new.is_moving and takes(EventKind.MOVE, "reassignment_ended"):
        brokers = tuple(set(new.replicas) ^ set(old.replicas))
        yield told(EventKind.MOVE, "reassignment_ended", brokers, replicas=_ids(new.replicas), was=_ids(old.replicas))
    is_same = new.offline_replicas == old.offline_replicas or set(new.offline_replicas) == set(old.offline_replicas)
    if not is_same and takes(EventKind.FOLDER, "offline_replicas"):
        brokers = tuple(set(new.offline_replicas) ^ set(old.offline_replicas))
        yield told(
            EventKind.FOLDER,
            "offline_replicas",
            brokers,
            offline=_ids(new.offline_replicas),
            was=_ids(old.offline_replicas),
        )


def _state_of(node_id: int, partition: PartitionImage, image: MetadataImage) -> str:
    """Why a replica cannot lead or be in sync; "" if the metadata has no reason."""
    broker = image.brokers.get(node_id)
    if broker is None:
        return "unregistered"
    if broker.fenced:
        return "fenced"
    if broker.in_controlled_shutdown:
        return "stopping"
    if node_id in partition.offline_replicas:
        return "offline"
    if node_id not in partition.replicas:
        return "moved_away"
    return "full_disk" if broker.has_full_folder else ""


def _why_elected(old: PartitionImage, new: PartitionImage, image: MetadataImage) -> str:
    if old.leader < 0:
        return "replica_returned"
    state = _state_of(old.leader, new, image)
    if state:
        return f"leader_{state}"
    return "preferred" if new.leader == new.replicas[0] else "requested"


def _why_isr(old: PartitionImage, new: PartitionImage, image: MetadataImage) -> str:
    """For the replicas that have left, each reason once; and for those that have come."""
    gone = [node_id for node_id in old.isr if node_id not in new.isr]
    reasons = [_state_of(node_id, new, image) or "lags" for node_id in gone]
    if set(new.isr) - set(old.isr):
        reasons.append("caught_up")
    return ",".join(dict.fromkeys(reasons))


def _of_configs(
    domain: str,
    what: Mapping[str, str],
    old: Mapping[str, str],
    new: Mapping[str, str],
    *,
    topic: str = "",
    brokers: tuple[int, ...] = (),
) -> Iterator[Change]:
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            values = {"value": new.get(key, NO_VALUE), "was": old.get(key, NO_VALUE)}
            if any(word in key for word in SECRETS):
                values = {"value": HIDDEN}
            yield Change(
                domain=domain,
                kind=EventKind.CONFIG,
                event="configured",
                fields={**what, "key": key, **values},
                topic=topic,
                brokers=brokers,
            )


def _present(*nodes: int) -> tuple[int, ...]:
    return tuple(node for node in nodes if node >= 0)


def _ids(nodes: tuple[int, ...]) -> str:
    return ",".join(map(str, nodes)) or "-"
