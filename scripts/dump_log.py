"""Prints segments, indexes, checkpoints and the quorum's journal of a data folder, one line for each thing. Reads only.

    scripts/dump-log barnabas-data/0/data                      everything
    scripts/dump-log barnabas-data/0/data/orders-0             one partition
    scripts/dump-log --records .../00000000000000000000.log    also the records inside of the batches

Damage does not end the output: it is printed in its place, and the exit code is 1. The folder of a running broker can be
read; the end of a file that it is writing may then look torn.
"""

import argparse
import os
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from barnabas.kraft.metadata.records import UnknownRecordError, decode_batch
from barnabas.kraft.node.snapshot import decode_snapshot
from barnabas.kraft.quorum.journal_format import HEADER_BYTES, NO_OP, REGULAR, Record, RecordKind, decode_record
from barnabas.kraft.quorum.snapshot_format import DamagedSnapshot, unpack_snapshot
from barnabas.log.format.compression import Compression
from barnabas.log.format.record_batch import NO_PRODUCER_ID, BatchHeader, check_crc, read_header
from barnabas.log.format.record_codec import iter_records
from barnabas.log.segment import offset_index, time_index
from barnabas.log.vocabulary.errors import CorruptRecordError

DAMAGED: Final = "DAMAGED "  # begins every line that reports damage; determines the exit code
MAX_SHOWN_BYTES: Final = 80  # of a key or a value
TEXT_FILES: Final = ("checkpoint", "meta.properties", "partition.metadata", "endpoints.json", "boot_id")
Dumper = Callable[[bytes, bool], Iterator[str]]


def dump_segment(data: bytes, with_records: bool) -> Iterator[str]:
    """Batches in order; stops at the first one that is damaged or cut, as recovery does."""
    position = 0
    while position < len(data):
        try:
            header = read_header(data, position)
            check_crc(data, header)
            yield _batch_line(header)
            if with_records:
                yield from _record_lines(data[position : position + header.size_bytes])
        except CorruptRecordError as error:
            yield f"{DAMAGED}position={position} left={len(data) - position} {error.message}"
            return
        position += header.size_bytes


def _batch_line(header: BatchHeader) -> str:
    line = (
        f"position={header.position} offsets={header.base_offset}..{header.last_offset} records={header.record_count} "
        f"size={header.size_bytes} epoch={header.leader_epoch} max_timestamp={header.max_timestamp_ms} "
        f"compression={Compression(header.compression).name.lower()}"
    )
    if header.producer_id != NO_PRODUCER_ID:
        line += f" producer={header.producer_id}/{header.producer_epoch} sequence={header.base_sequence}"
    flags = [
        name for name, is_set in (("transactional", header.is_transactional), ("control", header.is_control)) if is_set
    ]
    return " ".join([line, *flags])


def _record_lines(batch: bytes) -> Iterator[str]:
    for record in iter_records(batch):
        line = f"  offset={record.offset} timestamp={record.timestamp_ms} key={_shown(record.key)} value={_shown(record.value)}"
        yield line + "".join(f" {name}={_shown(value)}" for name, value in record.headers)


def _shown(data: bytes | None) -> str:
    if data is None:
        return "null"
    more = f" ... ({len(data)} bytes)" if len(data) > MAX_SHOWN_BYTES else ""
    return repr(bytes(data[:MAX_SHOWN_BYTES]))[1:] + more


def dump_offset_index(data: bytes, _: bool) -> Iterator[str]:
    yield from _entries(data, offset_index.ENTRY, "relative_offset={} position={}")


def dump_time_index(data: bytes, _: bool) -> Iterator[str]:
    yield from _entries(data, time_index.ENTRY, "timestamp={} relative_offset={}")


def _entries(data: bytes, entry: struct.Struct, shape: str) -> Iterator[str]:
    whole = len(data) - len(data) % entry.size
    for values in entry.iter_unpack(data[:whole]):
        yield shape.format(*values)
    if whole != len(data):
        yield f"{DAMAGED}{len(data) - whole} bytes behind the last whole entry"


def dump_journal(data: bytes, _: bool) -> Iterator[str]:
    """The records of the quorum's journal, with the metadata records in them."""
    position = 0
    while (record := decode_record(data, position)) is not None:
        yield _journal_line(position, record)
        if record.kind is RecordKind.ENTRY:
            yield from _metadata_lines(record.payload)
        position = record.end
    if position != len(data):
        yield f"{DAMAGED}position={position} left={len(data) - position} no whole record of {HEADER_BYTES}+ bytes begins here"


def _journal_line(position: int, record: Record) -> str:
    kind = record.kind.name.lower()
    return f"position={position} {kind} index={record.index} term={record.term} durable={record.durable_size_bytes}"


def _metadata_lines(command: bytes) -> Iterator[str]:
    if command[:1] == NO_OP:
        yield "  no-op of a new leader"
    elif command[:1] == REGULAR:
        try:
            batch = decode_batch(command[1:])
        except UnknownRecordError as error:
            yield f"{DAMAGED}{error}"
            return
        yield from (f"  {item}" for item in batch.records)
    else:
        yield f"  {len(command)} bytes of the quorum's own"


def dump_snapshot(data: bytes, _: bool) -> Iterator[str]:
    """The state that a quorum's snapshot holds."""
    try:
        snapshot = unpack_snapshot(data)
        image, group_records = decode_snapshot(snapshot.chunks())
    except (DamagedSnapshot, UnknownRecordError) as error:
        yield f"{DAMAGED}{error}"
        return
    yield f"last_index={snapshot.last_index} cluster={image.cluster_id} controller_epoch={image.controller_epoch}"
    yield from (f"  {broker}" for broker in image.brokers.values())
    for topic in image.topics.values():
        yield from (f"  {topic.name}-{number} {partition}" for number, partition in enumerate(topic.partitions))
    yield from (f"  {record}" for record in group_records)


def dump_text(data: bytes, _: bool) -> Iterator[str]:
    yield from data.decode(errors="backslashreplace").splitlines()


def dumper_of(path: Path) -> Dumper | None:
    """The dumper for the name of the file; None for files of other programs, and for files that are not shown."""
    if path.name == "quorum.journal":
        return dump_journal
    if path.name == "quorum.snapshot":
        return dump_snapshot
    if any(part in path.name for part in TEXT_FILES):
        return dump_text
    return {".log": dump_segment, ".index": dump_offset_index, ".timeindex": dump_time_index}.get(path.suffix)


def files_under(path: Path) -> list[Path]:
    """A file itself; for a folder all files that can be shown, sorted by name."""
    if not path.is_dir():
        return [path]
    return [
        item
        for item in sorted(path.rglob("*"))
        # broker.log of a local cluster is text, and no damaged segment.
        if item.is_file() and dumper_of(item) is not None and (item.suffix != ".log" or item.stem.isdecimal())
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="dump-log", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", type=Path, help="a data folder, a folder in it, or a file")
    parser.add_argument("--records", action="store_true", help="also the records inside of the batches")
    wanted = parser.parse_args(arguments)
    is_sound = True
    for file in (item for path in wanted.paths for item in files_under(path)):
        dumper = dumper_of(file)
        if dumper is None:
            print(f"dump-log: {file} is no file of a data folder that can be shown", file=sys.stderr)
            return 2
        try:
            data = file.read_bytes()
        except OSError as error:
            print(f"dump-log: {file} cannot be read: {error.strerror}", file=sys.stderr)
            return 1
        print(f"== {file} ({len(data)} bytes)")
        for line in dumper(data, wanted.records):
            is_sound = is_sound and not line.startswith(DAMAGED)
            print(line)
    return 0 if is_sound else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader has seen enough; Python must not complain when it flushes stdout at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
