"""Files of record batches: one is written and named when it is complete, and read batch by batch. Blocks on the disk."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from barnabas.log.format.record_batch import LENGTH, LENGTH_POSITION, LOG_OVERHEAD, iter_headers, read_header
from barnabas.log.records.aborted import AbortedFilter
from barnabas.log.records.codec import RecordView, records_of
from barnabas.log.vocabulary.errors import CorruptRecordError
from barnabas.net.client.consumer.range_reader import Chunk

from .contents import (
    PRIVATE,
    PRIVATE_FOLDER,
    PROGRESS_NAME,
    SUFFIX,
    BackupError,
    PartitionContents,
    Segment,
    read_sealed,
    write_sealed,
    writing,
)

SEGMENT_BYTES: Final = 64 << 20  # A run that is killed reads at most this much of a partition again.


class PartitionWriter:
    """Adds to the files of one partition. What is not in `contents` yet is lost if the process ends, and read again."""

    def __init__(self, folder: Path, known: PartitionContents) -> None:
        """`known`: what the last complete backup has. A run that was killed may have more, which is kept."""
        with writing(folder):
            _make_private(folder)
        self._folder = folder
        self._descriptor = -1
        self._digest = hashlib.sha256()
        self._size_bytes = 0
        self._first_offset = self._next = -1
        progress = read_sealed(folder / PROGRESS_NAME, PartitionContents)
        is_newer = progress is not None and progress.segments[: len(known.segments)] == known.segments
        self.contents = progress if progress is not None and is_newer else known
        self._remove_unnamed()

    def begin(self, start_offset: int) -> None:
        """The first read of a partition begins here; `skip` is for later gaps."""
        if self.contents.next_offset < 0:
            self.contents = PartitionContents(start_offset=start_offset, next_offset=start_offset)

    def skip(self, offset: int) -> None:
        """The records before this offset are gone from the cluster."""
        gone = offset - self._next_offset
        self.finish()
        old = self.contents
        self.contents = PartitionContents(
            start_offset=old.start_offset, next_offset=offset, segments=old.segments, lost=old.lost + gone
        )

    def add(self, chunk: Chunk, next_offset: int) -> None:
        """Add the batches that readers of committed records see; `next_offset`: behind the last batch of the chunk. Raises
        CorruptRecordError for a damaged batch."""
        with writing(self._folder):
            self._add(chunk)
        self._next = next_offset
        if self._size_bytes >= SEGMENT_BYTES:
            self.finish()

    def _add(self, chunk: Chunk) -> None:
        left_out = AbortedFilter(chunk.aborted)
        view = memoryview(chunk.data)
        for header in iter_headers(chunk.data, verify_crc=True):
            if left_out.leaves_out(header, chunk.data) or header.next_offset <= chunk.start:
                continue
            if self._descriptor < 0:
                self._open(max(header.base_offset, chunk.start))
            self._write(view[header.position : header.position + header.size_bytes])

    def finish(self) -> None:
        """Make what was added durable, and name it."""
        old, segments = self.contents, self.contents.segments
        next_offset = self._next_offset
        if self._descriptor >= 0:
            with writing(self._folder):
                os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            segments += (
                Segment(
                    first_offset=self._first_offset,
                    next_offset=next_offset,
                    size_bytes=self._size_bytes,
                    sha256=self._digest.hexdigest(),
                ),
            )
        self._size_bytes = 0
        if (next_offset, segments) == (old.next_offset, old.segments):
            return
        self.contents = PartitionContents(
            start_offset=old.start_offset, next_offset=next_offset, segments=segments, lost=old.lost
        )
        write_sealed(self._folder / PROGRESS_NAME, self.contents)

    def close(self) -> None:
        """Without `finish`, what was added since is given up."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def _next_offset(self) -> int:
        return max(self._next, self.contents.next_offset)

    def _open(self, first_offset: int) -> None:
        path = self._folder / f"{first_offset:020d}{SUFFIX}"
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE)
        self._digest, self._size_bytes, self._first_offset = hashlib.sha256(), 0, first_offset

    def _write(self, data: memoryview) -> None:
        self._digest.update(data)
        self._size_bytes += len(data)
        while len(data):
            data = data[os.write(self._descriptor, data) :]

    def _remove_unnamed(self) -> None:
        """Files of a run that was killed, which are not complete."""
        named = {segment.name for segment in self.contents.segments}
        for path in self._folder.glob(f"*{SUFFIX}"):
            if path.name not in named:
                with suppress(FileNotFoundError):
                    path.unlink()


def _make_private(folder: Path) -> None:
    """With its parents, all for their owner only: `mkdir` gives its mode to the last one alone."""
    for one in (folder.parent.parent, folder.parent, folder):  # data/TOPIC-ID/PARTITION
        one.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)


def read_batches(folder: Path, segment: Segment, start_offset: int) -> Iterator[list[RecordView]]:
    """The records of each batch, from this offset on; of a batch before it, none. Raises BackupError for damage."""
    path = folder / segment.name
    try:
        with path.open("rb") as file:
            while head := file.read(LOG_OVERHEAD):
                size_bytes = LENGTH.unpack_from(head, LENGTH_POSITION)[0] if len(head) == LOG_OVERHEAD else 0
                data = head + file.read(min(max(size_bytes, 0), segment.size_bytes))
                yield records_of(data, read_header(data), RecordView, start_offset)
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror}") from error
    except CorruptRecordError as error:
        raise BackupError(f"{path} is damaged: {error}; use another copy of the backup") from error
