"""`MetadataDelta`: the changes of a metadata image by a series of records, readable before they are applied.

`replay` makes the changes, record by record. The controller reads its overlay through the same class, so that its decisions are
based on exactly the state that will be replayed.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

from msgspec.structs import replace

from barnabas.log.vocabulary.access.acls import Acl, AclResource
from barnabas.log.vocabulary.access.quotas import QuotaEntity
from barnabas.log.vocabulary.access.scram import ScramCredential
from barnabas.log.vocabulary.topic_partition import TopicPartition

from .image import BrokerImage, MetadataChanges, MetadataImage, PartitionImage, SlotImage, TopicImage

K = TypeVar("K")
V = TypeVar("V")


class ChangedTopic:
    """A topic that was created or changed since the base; its partitions are a list until they are read."""

    __slots__ = ("_image", "name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: str, partitions: list[PartitionImage]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions
        self._image: TopicImage | None = None

    def put(self, number: int, partition: PartitionImage) -> bool:
        if not 0 <= number <= len(self.partitions):
            return False  # a gap, which no controller writes
        self.partitions[number : number + 1] = [partition]
        self._image = None
        return True

    def image(self) -> TopicImage:
        if self._image is None:
            self._image = TopicImage(name=self.name, topic_id=self.topic_id, partitions=tuple(self.partitions))
        return self._image


class MetadataDelta:
    """The changes on top of `base`. Readers see what has changed first, then the base. Only `replay` writes the fields,
    except for `departing`, which the active controller sets and no other reader knows."""

    def __init__(self, base: MetadataImage) -> None:
        self.base = base
        self.cluster_id = base.cluster_id
        self.controller_id = base.controller_id
        self.controller_epoch = base.controller_epoch
        self.feature_level = base.feature_level
        self.next_producer_id = base.next_producer_id
        self.voters = base.voters
        self.voters_index = base.voters_index
        self.terms = base.terms
        self.recovery_epoch = base.recovery_epoch
        self.recovery_offset = base.recovery_offset
        self.login_secret = base.login_secret
        self.departing: frozenset[int] = frozenset()  # unfenced brokers that decisions treat as inactive already
        self.changed_brokers: dict[int, BrokerImage | None] = {}
        self.changed_topics: dict[str, ChangedTopic | None] = {}
        self.changed_topic_names: dict[str, str | None] = {}
        self.changed_topic_configs: dict[str, dict[str, str]] = {}
        self.changed_broker_configs: dict[str, dict[str, str]] = {}
        self.changed_group_configs: dict[str, dict[str, str]] = {}
        self.changed_slots: dict[int, SlotImage] = {}
        self.changed_users: dict[str, dict[int, ScramCredential]] = {}
        self.changed_acls: dict[AclResource, dict[Acl, None]] = {}  # of the resource, in order; none: it has no more
        self.changed_quotas: dict[QuotaEntity, dict[str, float]] = {}

    # --- reading -----------------------------------------------------------------------------------------------------

    def broker(self, node_id: int) -> BrokerImage | None:
        if node_id in self.changed_brokers:
            return self.changed_brokers[node_id]
        return self.base.brokers.get(node_id)

    def brokers(self) -> dict[int, BrokerImage]:
        """A copy: registered brokers by node id, in order of the ids."""
        return dict(sorted(_merged(self.base.brokers, self.changed_brokers).items()))

    def active_brokers(self) -> frozenset[int]:
        """The brokers that may lead and be in an ISR."""
        return frozenset(broker.node_id for broker in self.brokers().values() if broker.is_active) - self.departing

    def is_decommissioning(self, node_id: int) -> bool:
        broker = self.broker(node_id)
        return broker is not None and broker.decommissioning

    def topic(self, name: str) -> TopicImage | None:
        if name in self.changed_topics:
            changed = self.changed_topics[name]
            return None if changed is None else changed.image()
        return self.base.topics.get(name)

    def topic_name(self, topic_id: str) -> str | None:
        if topic_id in self.changed_topic_names:
            return self.changed_topic_names[topic_id]
        return self.base.topic_names.get(topic_id)

    def topics(self) -> Iterator[TopicImage]:
        """All topics; the delta must not change while this runs."""
        for name, image in self.base.topics.items():
            if name not in self.changed_topics:
                yield image
        for changed in self.changed_topics.values():
            if changed is not None:
                yield changed.image()

    def partition(self, topic_partition: TopicPartition) -> PartitionImage | None:
        topic = self.topic(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]

    def topic_config(self, name: str) -> dict[str, str]:
        return self.changed_topic_configs.get(name, self.base.topic_configs.get(name, {}))

    def broker_config(self, resource: str) -> dict[str, str]:
        return self.changed_broker_configs.get(resource, self.base.broker_configs.get(resource, {}))

    def group_config(self, group_id: str) -> dict[str, str]:
        return self.changed_group_configs.get(group_id, self.base.group_configs.get(group_id, {}))

    def count_group_configs(self) -> int:
        """Groups with a configuration; the changed ones may be counted twice."""
        return len(self.base.group_configs) + len(self.changed_group_configs)

    def user(self, name: str) -> dict[int, ScramCredential]:
        """The user's credentials by mechanism; {}: there is no such user."""
        return self.changed_users.get(name, self.base.users.get(name, {}))

    def count_users(self) -> int:
        """Users, or a few more: changed ones may be counted twice."""
        return len(self.base.users) + len(self.changed_users)

    def slot(self, number: int) -> SlotImage:
        return self.changed_slots.get(number, self.base.slots[number])

    def slots(self) -> list[SlotImage]:
        """All, by number: the controller looks at them in every tick."""
        slots = list(self.base.slots)
        for number, slot in self.changed_slots.items():
            slots[number] = slot
        return slots

    def acls_of(self, resource: AclResource) -> Collection[Acl]:
        """The permissions that name exactly this resource or prefix."""
        return self.changed_acls.get(resource, self.base.acls.get(resource, ()))

    def acls(self) -> Iterator[Acl]:
        """All permissions; the delta must not change while this runs."""
        for resource in self.base.acls:
            yield from self.acls_of(resource)
        for resource, acls in self.changed_acls.items():
            if resource not in self.base.acls:
                yield from acls

    def acls_to_change(self, resource: AclResource) -> dict[Acl, None]:
        """They may be changed in place."""
        if resource not in self.changed_acls:
            self.changed_acls[resource] = dict.fromkeys(self.base.acls.get(resource, ()))
        return self.changed_acls[resource]

    def quotas_of(self, entity: QuotaEntity) -> dict[str, float]:
        """By QuotaKind; {}: it has none."""
        return self.changed_quotas.get(entity, self.base.quotas.get(entity, {}))

    def count_quotas(self) -> int:
        """Values of all entities."""
        unchanged = (values for entity, values in self.base.quotas.items() if entity not in self.changed_quotas)
        return sum(map(len, unchanged)) + sum(map(len, self.changed_quotas.values()))

    def topic_to_change(self, topic_id: str) -> ChangedTopic | None:
        """Its partitions may be put in place; None: there is no such topic."""
        name = self.topic_name(topic_id)
        if name is None:
            return None
        changed = self.changed_topics.get(name)
        if changed is None:
            image = self.base.topics[name]
            changed = self.changed_topics[name] = ChangedTopic(name, image.topic_id, list(image.partitions))
        return changed

    # --- results -----------------------------------------------------------------------------------------------------

    @property
    def changes(self) -> MetadataChanges:
        return MetadataChanges(
            brokers=frozenset(self.changed_brokers),
            topics=frozenset(self.changed_topics),
            topic_configs=frozenset(self.changed_topic_configs),
            broker_configs=frozenset(self.changed_broker_configs),
            slots=frozenset(self.changed_slots),
        )

    def apply(self, offset: int) -> MetadataImage:
        """The image after all that was replayed; it shares everything unchanged with the base."""
        topics = {name: None if topic is None else topic.image() for name, topic in self.changed_topics.items()}
        return replace(
            self.base,
            cluster_id=self.cluster_id,
            offset=offset,
            controller_id=self.controller_id,
            controller_epoch=self.controller_epoch,
            feature_level=self.feature_level,
            next_producer_id=self.next_producer_id,
            voters=self.voters,
            voters_index=self.voters_index,
            terms=self.terms,
            recovery_epoch=self.recovery_epoch,
            recovery_offset=self.recovery_offset,
            login_secret=self.login_secret,
            brokers=_merged(self.base.brokers, self.changed_brokers),
            topics=_merged(self.base.topics, topics),
            topic_names=_merged(self.base.topic_names, self.changed_topic_names),
            topic_configs=_merged_configs(self.base.topic_configs, self.changed_topic_configs),
            broker_configs=_merged_configs(self.base.broker_configs, self.changed_broker_configs),
            group_configs=_merged_configs(self.base.group_configs, self.changed_group_configs),
            users=_merged(self.base.users, {name: found or None for name, found in self.changed_users.items()}),
            slots=tuple(self.changed_slots.get(number, slot) for number, slot in enumerate(self.base.slots))
            if self.changed_slots
            else self.base.slots,
            acls=_merged(self.base.acls, {key: tuple(acls) or None for key, acls in self.changed_acls.items()}),
            quotas=_merged(self.base.quotas, {key: values or None for key, values in self.changed_quotas.items()}),
        )


def _merged(base: dict[K, V], changed: Mapping[K, V | None]) -> dict[K, V]:
    """`base` itself where nothing changed; a value of None removes."""
    if not changed:
        return base
    merged = dict(base)
    for key, value in changed.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged


def _merged_configs(base: dict[str, dict[str, str]], changed: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    if not changed:
        return base
    return _merged(base, {resource: configs or None for resource, configs in changed.items()})
