"""One log against its files: what memory says of segments and producers is what the disk says. Asked between two operations.

A log that has `failed` is excused from agreeing with its files: it takes no more writes, and a start looks at them.
"""

from collections.abc import Iterator

from barnabas.log.disk.files import Files
from barnabas.log.format.record_batch import BatchHeader, iter_headers
from barnabas.log.format.record_codec import is_abort_marker
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.segment.producer_state import REMEMBERED_BATCHES, ProducerEntry, ProducerState

from .violation import Violation

_LOG_SUFFIX = ".log"
_READ_BYTES = 1 << 20


def check_log(log: PartitionLog, files: Files, *, replayed_from: int = 0, is_compacted: bool = False) -> None:
    check_segments(log, files)
    if not log.failed:
        check_producers(log, replayed_from=replayed_from, is_compacted=is_compacted)
        if not is_compacted:
            check_transactions(log)


def check_segments(log: PartitionLog, files: Files) -> None:
    """Log start, segments and files agree."""
    segments = log.segments.all
    first = segments[0].base_offset
    if not first <= log.log_start_offset <= log.log_end_offset:
        raise Violation(f"{log.directory} begins at {log.log_start_offset}, its first segment at {first}")
    ends = [segment.base_offset for segment in segments[1:]] + [log.log_end_offset]
    for segment, end in zip(segments, ends, strict=True):
        if segment.next_offset != end:
            raise Violation(f"{segment.path} ends at {segment.next_offset}, and what follows begins at {end}")
    if log.failed:
        return
    names = [name for name in files.list_dir(log.directory) if name.endswith(_LOG_SUFFIX)]
    known = {segment.path.rpartition("/")[2]: segment.size_bytes for segment in segments}
    found = {name: files.size_bytes(f"{log.directory}/{name}") for name in names}
    if found != known:
        raise Violation(f"{log.directory} has the files {found}, its log knows {known}")


def headers_of(log: PartitionLog) -> Iterator[BatchHeader]:
    """Every batch that a reader gets who begins at the log start. Raises what the log raises."""
    return (header for header, _ in batches_of(log))


def batches_of(log: PartitionLog) -> Iterator[tuple[BatchHeader, bytes]]:
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, max_bytes=_READ_BYTES, up_to_offset=log.log_end_offset).read()
        headers = list(iter_headers(data))
        if not headers or headers[-1].next_offset <= offset:
            raise Violation(f"{log.directory}: nothing at offset {offset}, but the log ends at {log.log_end_offset}")
        for header in headers:
            yield header, data[header.position : header.position + header.size_bytes]
        offset = headers[-1].next_offset


def check_producers(log: PartitionLog, *, replayed_from: int = 0, is_compacted: bool = False) -> None:
    """What the log remembers of its producers is what its batches say. It may remember batches that retention took since;
    of those that lie before `replayed_from` it need not know, because it was opened without a snapshot."""
    replay = ProducerState()
    for header in headers_of(log):
        replay.update(header, first_offset=header.base_offset)
    known = dict(log.producers.entries())
    in_log = dict(replay.entries())
    for producer_id, entry in in_log.items():
        # Compaction takes batches that are remembered, but for the last one.
        check_producer(
            log, producer_id, known.get(producer_id), entry, replayed_from, 1 if is_compacted else REMEMBERED_BATCHES
        )
    for producer_id, entry in known.items():
        there = [batch.last_offset for batch in entry.batches if batch.last_offset >= log.log_start_offset]
        if producer_id not in in_log and there and not is_compacted:
            raise Violation(
                f"{log.directory} remembers batches of producer {producer_id} up to {there}, and has none of it"
            )


def check_transactions(log: PartitionLog) -> None:
    """The index of aborted transactions has what the markers in the log say, and the last stable offset lies before each open
    transaction. Of a transaction that began before the log start, the index alone says where."""
    opened: dict[int, int] = {}
    aborted: dict[int, tuple[int, int]] = {}  # by marker: producer, first offset
    for header, batch in batches_of(log):
        if header.is_control:
            first = opened.pop(header.producer_id, -1)
            if is_abort_marker(batch):
                aborted[header.base_offset] = (header.producer_id, first)
        elif header.is_transactional:
            opened.setdefault(header.producer_id, header.base_offset)
    start = log.log_start_offset
    told = log.aborted.between(start, log.log_end_offset)
    known = {entry.last_offset: (entry.producer_id, entry.first_offset) for entry in told}
    surely = {offset for offset, (_, first) in aborted.items() if first >= start}
    if len(known) < len(told) or not surely <= known.keys() <= aborted.keys():
        raise Violation(f"{log.directory}: {aborted} were aborted, the index has {told}")
    wrong = [offset for offset, found in known.items() if found != aborted[offset] and found[1] >= start]
    if wrong:
        raise Violation(f"{log.directory}: {aborted} were aborted, the index has {told}: wrong at {wrong}")
    if opened and log.last_stable_offset > max(min(opened.values()), start):
        raise Violation(f"{log.directory}: stable up to {log.last_stable_offset}, and {opened} are open")


def check_producer(
    log: PartitionLog,
    producer_id: int,
    known: ProducerEntry | None,
    entry: ProducerEntry,
    replayed_from: int = 0,
    most: int = REMEMBERED_BATCHES,
) -> None:
    """`known` is what the log remembers, `entry` what its batches say."""
    has = [(batch.first_sequence, batch.last_offset) for batch in entry.batches if batch.last_offset >= replayed_from]
    if not has:
        return
    told = [] if known is None else [(batch.first_sequence, batch.last_offset) for batch in known.batches]
    if known is None or known.epoch != entry.epoch or told[-most:][-len(has) :] != has[-most:]:
        raise Violation(
            f"{log.directory} remembers of producer {producer_id} the (sequence, last offset) {told}, it has {has}"
        )
