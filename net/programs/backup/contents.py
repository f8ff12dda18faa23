"""What a backup consists of, and how it is written: `backup.json`, and files of whole record batches.

    DIR/backup.json                                 everything but records; names each file of records with its checksum
    DIR/data/TOPIC-ID/PARTITION/N.batches           committed batches, as brokers send them, from offset N on
    DIR/data/TOPIC-ID/PARTITION/progress.json       how far a run has come that has not ended

Only `backup.json` says what the backup is. It is replaced atomically at the end of a run, so a run that was killed leaves the
backup of before. A file of batches is never changed once it is named.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from barnabas.log.disk.files import write_beside
from barnabas.log.vocabulary.access.acls import Acl
from barnabas.log.vocabulary.access.quotas import EntityQuotas
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.group_messages import PartitionOffset

FORMAT: Final = 1
BACKUP_NAME: Final = "backup.json"
PROGRESS_NAME: Final = "progress.json"
DATA: Final = "data"
SUFFIX: Final = ".batches"
PRIVATE: Final = 0o600  # records and permissions are for whoever may read the topics
PRIVATE_FOLDER: Final = 0o700
READ_BYTES: Final = 1 << 20
_TOPIC_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")  # a name of a folder, and never a path out of the backup
CONSUMER: Final = "consumer"  # protocols of groups, as they are listed
SHARE: Final = "share"


class BackupError(BarnabasError):
    """A folder is no backup, is damaged, or does not fit what is wanted."""


class Segment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of batches, which has records from `first_offset` to `next_offset`, exclusive."""

    first_offset: int
    next_offset: int
    size_bytes: int
    sha256: str  # hexadecimal

    @property
    def name(self) -> str:
        return f"{self.first_offset:020d}{SUFFIX}"


class PartitionContents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`start_offset` <= offset of each record < `next_offset`. Batches may begin before the start: those records were deleted."""

    start_offset: int = -1  # -1: nothing was read yet
    next_offset: int = -1
    segments: tuple[Segment, ...] = ()
    lost: int = 0  # offsets that the cluster had deleted before they were read


class TopicContents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`partitions`: in the order of their numbers."""

    name: str
    topic_id: str
    replication_factor: int
    configs: dict[str, str]  # that differ from the defaults of the cluster
    partitions: tuple[PartitionContents, ...]
    has_records: bool  # False: only the topic and its settings


class GroupContents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    group_id: str
    offsets: tuple[PartitionOffset, ...]  # of a share group: where each of its partitions starts
    protocol: str = CONSUMER


class Contents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int = FORMAT
    backup_id: str  # of the folder
    run: int  # from 1; each run of `backup` has the next number
    cluster_id: str
    taken_at_ms: int
    topics: tuple[TopicContents, ...] = ()
    groups: tuple[GroupContents, ...] = ()
    cluster_configs: dict[str, str] = {}
    acls: tuple[Acl, ...] = ()
    quotas: tuple[EntityQuotas, ...] = ()
    users: tuple[str, ...] = ()  # names; their credentials leave no broker


class _Sealed(msgspec.Struct, frozen=True, kw_only=True):
    sha256: str  # of `content`
    content: msgspec.Raw


Read = TypeVar("Read")


def write_sealed(path: Path, content: msgspec.Struct) -> None:
    """Replace the file atomically and durably, with a checksum of its content."""
    raw = msgspec.json.encode(content)
    sealed = msgspec.json.encode(_Sealed(sha256=hashlib.sha256(raw).hexdigest(), content=msgspec.Raw(raw)))
    with writing(path):
        write_beside(str(path.with_name(f"{path.name}.new")), str(path), sealed, mode=PRIVATE)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises BackupError for what the disk refuses."""
    try:
        yield
    except OSError as error:
        raise BackupError(
            f"{path} cannot be written: {error.strerror}; make room or give the right to write, then run the command again: it "
            "goes on"
        ) from error


def read_sealed(path: Path, kind: type[Read]) -> Read | None:
    """None: there is no file. Raises BackupError for one that is damaged or of another version."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror}") from error
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        if hashlib.sha256(sealed.content).hexdigest() != sealed.sha256:
            raise BackupError(f"{path} is damaged: its checksum does not fit; use another copy of the backup")
        return msgspec.json.decode(sealed.content, type=kind)
    except msgspec.DecodeError as error:
        raise BackupError(f"{path} is damaged, or was written by a newer version of Barnabas: {error}") from error


def read_contents(folder: Path) -> Contents | None:
    """None: the folder has no complete backup. Raises BackupError."""
    found = read_sealed(folder / BACKUP_NAME, Contents)
    if found is not None and found.format != FORMAT:
        raise BackupError(f"{folder} has format {found.format}; this version of Barnabas reads format {FORMAT}")
    for topic in found.topics if found is not None else ():
        for number, partition in enumerate(topic.partitions):
            _check_order(folder, topic.name, number, partition)
    return found


def _check_order(folder: Path, topic: str, number: int, partition: PartitionContents) -> None:
    """Files that overlap would be restored twice. Raises BackupError."""
    at = 0
    for segment in partition.segments:
        if not at <= segment.first_offset <= segment.next_offset <= partition.next_offset:
            raise BackupError(
                f"{folder / BACKUP_NAME} is damaged: the files of {topic}-{number} overlap or are not in order at offset "
                f"{segment.first_offset}; use another copy of the backup"
            )
        at = segment.next_offset


def needed_contents(folder: Path) -> Contents:
    """Raises BackupError also if there is none."""
    found = read_contents(folder)
    if found is None:
        raise BackupError(
            f"{folder} has no complete backup (no {BACKUP_NAME}); finish it: barnabas cluster backup {folder}"
        )
    return found


def partition_folder(folder: Path, topic_id: str, partition: int) -> Path:
    """Named by the id: a topic that was deleted and created again is another one. Raises BackupError."""
    if not _TOPIC_ID.fullmatch(topic_id):
        raise BackupError(f"{topic_id[:100]!r} is no id of a topic: the backup in {folder}, or the cluster, is damaged")
    return folder / DATA / topic_id / str(partition)


def check_segment(folder: Path, segment: Segment) -> None:
    """Raises BackupError unless the file is there, unchanged."""
    path = folder / segment.name
    digest, size_bytes = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while piece := file.read(READ_BYTES):
                digest.update(piece)
                size_bytes += len(piece)
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror}; use another copy of the backup") from error
    if size_bytes != segment.size_bytes or digest.hexdigest() != segment.sha256:
        raise BackupError(f"{path} is damaged: its size or checksum does not fit; use another copy of the backup")


def has_records(topics: Sequence[TopicContents]) -> bool:
    return any(partition.segments for topic in topics for partition in topic.partitions)
