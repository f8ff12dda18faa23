"""Small text files that are always replaced as a whole: Kafka's checkpoint files, `meta.properties`, `partition.metadata`.

A checkpoint file has the version (0), the number of entries, and one entry per line. `topic partition offset` in
`recovery-point-offset-checkpoint`, `replication-offset-checkpoint`, `log-start-offset-checkpoint` and
`cleaner-offset-checkpoint`; `epoch offset` in `leader-epoch-checkpoint`.

A damaged file is a DamagedCheckpointError: the caller decides whether it can be rebuilt.
"""

from collections.abc import Iterable, Mapping

from ..disk.files import Files
from ..vocabulary.errors import StorageError
from ..vocabulary.topic_partition import TopicPartition
from .leader_epoch_cache import EpochStart

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANED_OFFSETS = "cleaner-offset-checkpoint"  # the offset up to which each log is compacted
LEADER_EPOCHS = "leader-epoch-checkpoint"
_VERSION = "0"


class DamagedCheckpointError(StorageError):
    """The file has changed since it was written. Writes replace it atomically, so the disk is failing or another program wrote
    it."""


def write_offsets(files: Files, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    _write(files, path, (f"{key.topic} {key.partition} {offset}" for key, offset in sorted(offsets.items())))


def read_offsets(files: Files, path: str) -> dict[TopicPartition, int]:
    """Empty when the file does not exist."""
    offsets = {}
    for line in _read(files, path):
        fields = line.split(" ")
        if len(fields) != 3:
            raise _damaged(path, f"the line {line!r} is not `topic partition offset`")
        offsets[TopicPartition(fields[0], _number(path, fields[1]))] = _number(path, fields[2])
    return offsets


def write_epochs(files: Files, path: str, entries: Iterable[EpochStart]) -> None:
    _write(files, path, (f"{entry.epoch} {entry.start_offset}" for entry in entries))


def read_epochs(files: Files, path: str) -> list[EpochStart]:
    """Empty when the file does not exist."""
    entries: list[EpochStart] = []
    for line in _read(files, path):
        fields = line.split(" ")
        if len(fields) != 2:
            raise _damaged(path, f"the line {line!r} is not `epoch offset`")
        entry = EpochStart(_number(path, fields[0]), _number(path, fields[1]))
        if entries and (entry.epoch <= entries[-1].epoch or entry.start_offset <= entries[-1].start_offset):
            raise _damaged(path, f"the line {line!r} does not increase over the line before")
        entries.append(entry)
    return entries


def write_properties(files: Files, path: str, properties: Mapping[str, str], *, separator: str = "=") -> None:
    files.write_atomically(path, properties_text(properties, separator=separator).encode())


def properties_text(properties: Mapping[str, str], *, separator: str = "=") -> str:
    return "".join(f"{key}{separator}{value}\n" for key, value in properties.items())


def read_properties(files: Files, path: str, *, separator: str = "=") -> dict[str, str]:
    """Empty when the file does not exist. Lines that begin with # are comments."""
    properties = {}
    for line in _text(files, path).splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        key, found, value = line.partition(separator.strip())
        if not found:
            raise _damaged(path, f"the line {line!r} has no {separator.strip()!r}")
        properties[key.strip()] = value.strip()
    return properties


def _write(files: Files, path: str, lines: Iterable[str]) -> None:
    entries = list(lines)
    files.write_atomically(path, "\n".join((_VERSION, str(len(entries)), *entries, "")).encode())


def _read(files: Files, path: str) -> list[str]:
    text = _text(files, path)
    if not text and not files.exists(path):
        return []
    lines = text.split("\n")
    if len(lines) < 3 or lines[0] != _VERSION:
        raise _damaged(path, f"it must begin with version {_VERSION} and the number of entries")
    if lines[-1] or _number(path, lines[1]) != len(lines) - 3:
        raise _damaged(path, f"it announces {lines[1]} entries and has {len(lines) - 3}")
    return lines[2:-1]


def _text(files: Files, path: str) -> str:
    if not files.exists(path):
        return ""
    try:
        return files.read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise _damaged(path, "it is not text") from error


def _number(path: str, field: str) -> int:
    if not field.isascii() or not field.isdigit():
        raise _damaged(path, f"{field!r} is not a number")
    return int(field)


def _damaged(path: str, fault: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        f"{path} is damaged: {fault}. Look for disk errors; restore it, or remove it to rebuild it"
    )
