"""The whole state as chunks of bytes, and back: the format version first, then the image in parts, then group records.

A chunk is msgpack [kind, payload]. Every chunk stays below MAX_CHUNK_BYTES unless a single item is larger, so that a snapshot of
any size streams through small frames. The last chunk has the number of the others, so that a truncated snapshot is detected.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby

from msgspec import Raw
from msgspec.structs import asdict, fields, replace

from barnabas.log.vocabulary.access.acls import Acl, AclResource
from barnabas.log.vocabulary.access.quotas import EntityQuotas, QuotaEntity
from barnabas.log.vocabulary.access.scram import LoginSecret, ScramCredential
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.message import decode, encode

from ..group_state.group_state import GroupState
from ..metadata.image import (
    SLOT_COUNT,
    BrokerImage,
    MetadataHeader,
    MetadataImage,
    PartitionImage,
    SlotImage,
    TopicImage,
)
from ..metadata.records import Record, UnknownRecordError, decode_batch

SNAPSHOT_VERSION = 1
MAX_CHUNK_BYTES = 256 * 1024  # a frame of the quorum and of the metadata feed; both are sent between other messages
_TARGET_CHUNK_BYTES = 128 * 1024  # of items, which leaves room for the framing, and for one large item

_HEADER, _BROKERS, _TOPIC, _PARTITIONS, _TOPIC_CONFIGS, _BROKER_CONFIGS, _SLOTS, _GROUPS, _END, _GROUP_CONFIGS = range(
    10
)
_USERS, _LOGIN_SECRET = 10, 11  # only where there are users
_ACLS = 20  # none where there are none, as with the configurations of groups
_QUOTAS = 30  # none where there are none
_HEADER_FIELDS = tuple(field.name for field in fields(MetadataHeader))


class SnapshotError(Exception):
    """These chunks are not a complete snapshot of a supported version. The process must stop."""


def encode_snapshot(image: MetadataImage, groups: GroupState) -> Iterator[bytes]:
    """Pack an image and a consistent view of the groups. May run in another thread: nothing here changes either."""
    count = 0
    for kind, payload in _parts(image, groups):
        count += 1
        yield encode((kind, payload))
    yield encode((_END, count))


def decode_snapshot(chunks: Iterable[bytes]) -> tuple[MetadataImage, list[Record]]:
    """Return the image and the group records, slot by slot. Raises SnapshotError."""
    reader = _Reader()
    try:
        for chunk in chunks:
            reader.read(*decode(tuple[int, Raw], chunk))
    except (BarnabasError, UnknownRecordError, KeyError) as error:
        raise SnapshotError(f"a chunk of the snapshot cannot be read: {error!r}") from error
    return reader.result()


def _parts(image: MetadataImage, groups: GroupState) -> Iterator[tuple[int, object]]:
    header = MetadataHeader(**{name: getattr(image, name) for name in _HEADER_FIELDS})
    yield _HEADER, (SNAPSHOT_VERSION, header)
    for some in _limited(image.brokers.values()):
        yield _BROKERS, some
    for topic in image.topics.values():
        yield _TOPIC, [topic.name, topic.topic_id]
        for some in _limited(topic.partitions):
            yield _PARTITIONS, [topic.name, some]
    for kind, configs in (
        (_TOPIC_CONFIGS, image.topic_configs),
        (_BROKER_CONFIGS, image.broker_configs),
        (_GROUP_CONFIGS, image.group_configs),  # none where there are none, so that older versions read the snapshot
    ):
        entries = ([resource, key, value] for resource, values in configs.items() for key, value in values.items())
        for some in _limited(entries):
            yield kind, some
    yield from _access_parts(image)
    yield _SLOTS, image.slots
    for slot in range(SLOT_COUNT):
        for some in _limited(groups.batches_of(slot)):
            yield _GROUPS, some


def _access_parts(image: MetadataImage) -> Iterator[tuple[int, object]]:
    for some in _limited([name, number, found] for name, one in image.users.items() for number, found in one.items()):
        yield _USERS, some
    if image.login_secret is not None:
        yield _LOGIN_SECRET, image.login_secret
    for some in _limited(acl for acls in image.acls.values() for acl in acls):
        yield _ACLS, some
    for some in _limited(EntityQuotas(entity=entity, values=values) for entity, values in image.quotas.items()):
        yield _QUOTAS, some


def _limited(items: Iterable[object]) -> Iterator[list[object]]:
    """Lists of items, each list below the target size when it is packed (or of a single item)."""
    some: list[object] = []
    size_bytes = 0
    for item in items:
        item_bytes = len(item) if isinstance(item, bytes) else len(encode(item))
        if some and size_bytes + item_bytes > _TARGET_CHUNK_BYTES:
            yield some
            some, size_bytes = [], 0
        some.append(item)
        size_bytes += item_bytes
    if some:
        yield some


class _Reader:
    """Collects the parts of an image."""

    def __init__(self) -> None:
        self._header: MetadataHeader | None = None
        self._complete = False
        self._count = 0
        self._brokers: dict[int, BrokerImage] = {}
        self._topics: dict[str, TopicImage] = {}
        self._configs: dict[int, dict[str, dict[str, str]]] = {
            _TOPIC_CONFIGS: {},
            _BROKER_CONFIGS: {},
            _GROUP_CONFIGS: {},
        }
        self._users: dict[str, dict[int, ScramCredential]] = {}
        self._login_secret: LoginSecret | None = None
        self._slots: tuple[SlotImage, ...] = ()
        self._acls: dict[AclResource, tuple[Acl, ...]] = {}
        self._quotas: dict[QuotaEntity, dict[str, float]] = {}
        self._groups: list[Record] = []

    def read(self, kind: int, payload: Raw) -> None:
        if self._complete or (self._header is None) != (kind == _HEADER):
            raise SnapshotError("the chunks of the snapshot are out of order")
        if kind == _END:
            written = decode(int, payload)
            if written != self._count:
                raise SnapshotError(f"the snapshot has {self._count} chunks; {written} were written")
            self._complete = True
            return
        self._count += 1
        self._read_part(kind, payload)

    def _read_part(self, kind: int, payload: Raw) -> None:
        if kind == _HEADER:
            version, header = decode(tuple[int, Raw], payload)
            if version != SNAPSHOT_VERSION:
                raise SnapshotError(f"snapshot format {version}; this version reads {SNAPSHOT_VERSION}: upgrade")
            self._header = decode(MetadataHeader, header)
        elif kind == _BROKERS:
            self._brokers.update((broker.node_id, broker) for broker in decode(tuple[BrokerImage, ...], payload))
        elif kind in (_TOPIC, _PARTITIONS):
            self._read_topic(kind, payload)
        elif kind in self._configs:
            self._read_configs(self._configs[kind], payload)
        elif kind in (_USERS, _LOGIN_SECRET, _ACLS, _QUOTAS):
            self._read_access(kind, payload)
        elif kind == _SLOTS:
            self._slots = decode(tuple[SlotImage, ...], payload)
        elif kind == _GROUPS:
            self._groups.extend(
                record for batch in decode(tuple[bytes, ...], payload) for record in decode_batch(batch).records
            )
        else:
            raise SnapshotError(f"the snapshot has a part of kind {kind}, which this version does not know: upgrade")

    def _read_configs(self, configs: dict[str, dict[str, str]], payload: Raw) -> None:
        for resource, key, value in decode(tuple[tuple[str, str, str], ...], payload):
            configs.setdefault(resource, {})[key] = value

    def _read_access(self, kind: int, payload: Raw) -> None:
        if kind == _LOGIN_SECRET:
            self._login_secret = decode(LoginSecret, payload)
        elif kind == _ACLS:
            for resource, acls in groupby(decode(tuple[Acl, ...], payload), key=lambda acl: acl.resource):
                self._acls[resource] = (*self._acls.get(resource, ()), *acls)
        elif kind == _QUOTAS:
            self._quotas.update((item.entity, item.values) for item in decode(tuple[EntityQuotas, ...], payload))
        else:
            for name, number, found in decode(tuple[tuple[str, int, ScramCredential], ...], payload):
                self._users.setdefault(name, {})[number] = found

    def _read_topic(self, kind: int, payload: Raw) -> None:
        if kind == _TOPIC:
            name, topic_id = decode(tuple[str, str], payload)
            self._topics[name] = TopicImage(name=name, topic_id=topic_id, partitions=())
        else:
            name, more = decode(tuple[str, tuple[PartitionImage, ...]], payload)
            self._topics[name] = replace(self._topics[name], partitions=self._topics[name].partitions + more)

    def result(self) -> tuple[MetadataImage, list[Record]]:
        if not self._complete or self._header is None or len(self._slots) != SLOT_COUNT:
            raise SnapshotError("the snapshot is truncated")
        image = MetadataImage(
            **asdict(self._header),
            brokers=self._brokers,
            topics=self._topics,
            topic_names={topic.topic_id: name for name, topic in self._topics.items()},
            topic_configs=self._configs[_TOPIC_CONFIGS],
            broker_configs=self._configs[_BROKER_CONFIGS],
            group_configs=self._configs[_GROUP_CONFIGS],
            slots=self._slots,
            users=self._users,
            login_secret=self._login_secret,
            acls=self._acls,
            quotas=self._quotas,
        )
        return image, self._groups
