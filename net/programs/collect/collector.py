"""`Collector`: follows files, and sends their lines together with the new positions in transactions.

Whatever goes wrong with a transaction is repaired in one way, which is also that of a start after kill -9: a new producer takes
over the transactional id (which ends the transaction of the one before), and the positions are read again.
"""

import asyncio
import binascii
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from barnabas.log.vocabulary.errors import InvalidRecordError
from barnabas.net.base.descriptors import raise_descriptor_limit
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.producer.transaction import Transaction

from ..copying.kept_positions import TRANSACTION_TIMEOUT_MS, KeptPositions, owner_of
from ..copying.sessions import pause, run_sessions
from .folders import look
from .following import MAX_FILES, Followed, Following
from .line_patterns import first_lines
from .lines import MAX_RECORD_BYTES, RecordSplitter
from .parsers import PARSERS, Parsed
from .positions import POSITIONS_TOPIC, FileId, key_of, positions_of, value_of
from .reading import FileReading, Piece, ReadRound

logger = logging.getLogger("barnabas.collect")

LOOK_INTERVAL_S: Final = 0.25  # While nothing is new. A look costs a stat and a read of 256 bytes for each file.
REPORT_INTERVAL_S: Final = 30.0
# A writer may go on writing for a moment after its file was renamed (nginx until USR1); then its last line needs no end.
SETTLE_S: Final = 10.0
MAX_PARSED_BYTES: Final = (
    2 * MAX_RECORD_BYTES - 64 * 1_024
)  # Escapes make a value longer than its line; a batch takes 1 MiB.
RESERVED_DESCRIPTORS: Final = 128  # of the limit: connections to brokers, folders, the libraries of codecs
MAX_AHEAD_MS: Final = 1_800_000  # Brokers refuse records of the future: by default, of more than an hour.
PARSE_ERROR_HEADER: Final = "barnabas-parse-error"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorConfig:
    name: str
    patterns: Sequence[str]
    topic: str
    bootstrap: str
    parser: str | None = None  # one of PARSERS
    on_error: str = "keep"  # a line that cannot be parsed: keep (as it is, with a header), skip, stop
    first_line: str | None = None  # RE2: a record begins with a line that this finds
    compression: str = "lz4"
    from_end: bool = False
    is_once: bool = False  # return when every file has been read to its end
    security: Mapping[str, Any] = field(default_factory=dict)

    @property
    def transactional_id(self) -> str:
        return f"barnabas-collect-{self.name}"


@dataclass(slots=True)
class Progress:
    records: int = 0
    bytes: int = 0
    unparsed: int = 0


class Collector:
    def __init__(self, config: CollectorConfig) -> None:
        self._config = config
        is_first = first_lines(config.first_line) if config.first_line is not None else None
        self._reading = FileReading(lambda: RecordSplitter(is_first))
        self._max_files = min(MAX_FILES, max(1, raise_descriptor_limit().total - RESERVED_DESCRIPTORS))
        self._following = Following(max_files=self._max_files)
        self._parser = PARSERS[config.parser] if config.parser is not None else None
        self._stopping = asyncio.Event()
        self._positions = KeptPositions(
            POSITIONS_TOPIC,
            config.name,
            program="collector",
            after_loss="start the collector again to collect all files from their starts, or with another --name and --from end",
            bootstrap=config.bootstrap,
            security=config.security,
            stopping=self._stopping,
        )
        self._renamed_s: dict[FileId, float] = {}  # when a file was first seen to have lost its name
        self._unreadable: set[str] = set()
        self._unmatched: set[str] = set()  # patterns
        self._reported_s = time.monotonic()
        self.progress = Progress()

    def stop(self) -> None:
        """`run` returns when the current transaction has ended."""
        self._stopping.set()

    async def run(self) -> None:
        """Return after `stop`, or with `is_once` when all is collected. Raises BarnabasError for what does not pass by itself."""
        try:
            await run_sessions(
                self._session,
                stopping=self._stopping,
                records_done=lambda: self.progress.records,
                replaced=self._positions.replaced,
                logger=logger,
            )
        finally:
            self._reading.close()

    # --- a session: one producer, from its positions on ---------------------------------------------------------------

    async def _session(self) -> None:
        config = self._config
        await self._positions.make_topic()
        if self._positions.is_owner:  # before the new producer would fence that of another one
            self._positions.check_owner(await self._positions.records())
        async with Producer(
            config.bootstrap,
            transactional_id=config.transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            compression=config.compression,
            client_id="barnabas-collect",
            **config.security,
        ) as producer:
            partition_count = await producer.prepare(config.topic)
            is_first_start = await self._restore()
            if self._stopping.is_set():
                return
            await self._own(producer, is_first_start=is_first_start)
            while not self._stopping.is_set():
                is_busy = await self._round(producer, partition_count)
                self._report()
                if not is_busy:
                    if config.is_once:
                        return
                    await pause(self._stopping, LOOK_INTERVAL_S)

    async def _restore(self) -> bool:
        """Go on at the positions in the cluster. Files that were removed can still be read through their descriptors. Return
        whether this is the first start of a collector with this name."""
        records = await self._positions.records()
        if self._positions.is_owner:
            self._positions.check_owner(records)
        saved = positions_of(self._config.name, records)
        self._reading.forget_what_was_read()
        before = self._following
        is_first_start = not saved and owner_of(self._config.name, records) is None
        is_from_end = self._config.from_end and is_first_start
        self._following = Following(saved.values(), from_end=is_from_end, max_files=self._max_files)
        for file_id, known in before.files.items():
            restored = self._following.files.get(file_id)
            if restored is not None:
                restored.size_bytes = known.size_bytes
            elif self._reading.is_open(known):
                self._following.files[file_id] = known
                known.restart(known.head)
        return is_first_start

    async def _own(self, producer: Producer, *, is_first_start: bool) -> None:
        """What `from_end` leaves out is noted in the same transaction, so that a later start does not collect or skip more."""
        following, name = self._following, self._config.name
        if is_first_start and self._config.from_end:
            following.look((await asyncio.to_thread(look, self._config.patterns, {})).seen)
        async with producer.transaction() as transaction:
            await self._positions.own(transaction)
            for file in following.files.values() if is_first_start else ():
                saved = value_of(file.position_at(file.offset))
                await transaction.send(POSITIONS_TOPIC, saved, key=key_of(name, file.file_id), partition=0)
        self._positions.is_owner = True

    # --- a round: one look, one transaction ---------------------------------------------------------------------------

    async def _round(self, producer: Producer, partition_count: int) -> bool:
        """False: nothing new, and nothing that was read is waiting for more."""
        following = self._following
        known = {file_id: item.path for file_id, item in following.files.items()}
        found = await asyncio.to_thread(look, self._config.patterns, known)
        following.look(found.seen)
        for file in following.restarted:
            self._reading.restart(file)
        now_s = time.monotonic()
        pieces, is_busy = await asyncio.to_thread(self._read, following, now_s)
        self._warn_of(found.unreadable | self._reading.unreadable, found.unmatched)
        gone = [file for file in following.files.values() if self._is_gone(file, pieces)]
        if pieces or gone:
            async with producer.transaction() as transaction:
                for piece in pieces:
                    await self._send(transaction, piece, partition_count)
                for file in gone:
                    await transaction.send(
                        POSITIONS_TOPIC, None, key=key_of(self._config.name, file.file_id), partition=0
                    )
            self._committed(pieces, gone)
        return is_busy

    def _read(self, following: Following, now_s: float) -> ReadRound:
        self._reading.open(following.files.values())
        return self._reading.read(following.in_order(), now_s=now_s, is_over=self._is_over)

    def _is_over(self, file: Followed) -> bool:
        """Whether the file will not grow any more, as far as anybody can tell. A name like that of a rotated file does not say
        so: some programs write to files with a date in their names."""
        if self._config.is_once:
            return True
        if file.is_present and (file.has_the_name or not self._following.has_successor(file)):
            self._renamed_s.pop(file.file_id, None)
            return False
        now_s = time.monotonic()
        without_name_s = now_s - self._renamed_s.setdefault(file.file_id, now_s)
        return min(without_name_s, self._reading.quiet_s(file, now_s)) >= SETTLE_S

    def _is_gone(self, file: Followed, pieces: Sequence[Piece]) -> bool:
        """It was removed, and there is nothing more to read."""
        if file.is_other:
            return True
        if file.is_present or any(piece.file is file for piece in pieces):
            return False
        is_open = self._reading.is_open(file)
        if (is_open and file.unread_bytes) or not self._is_over(file):
            return False
        if file.unread_bytes:
            logger.error("event=lost file=%s bytes=%d reason=removed_before_it_was_read", file.path, file.unread_bytes)
        return True

    async def _send(self, transaction: Transaction, piece: Piece, partition_count: int) -> None:
        config, partition = self._config, binascii.crc32(piece.file.stream.encode()) % partition_count
        if self._parser is None:
            await transaction.send_many(config.topic, piece.records, partition=partition)
        else:
            now = datetime.now().astimezone()
            last_ms = int(now.timestamp() * 1_000) + MAX_AHEAD_MS
            for record in piece.records:
                parsed, headers = self._parsed(record, piece, now, last_ms)
                if parsed is not None:
                    await transaction.send(
                        config.topic,
                        parsed.value,
                        partition=partition,
                        timestamp_ms=parsed.timestamp_ms,
                        headers=headers,
                    )
        saved = value_of(piece.file.position_at(piece.offset, piece.tail))
        await transaction.send(POSITIONS_TOPIC, saved, key=key_of(config.name, piece.file.file_id), partition=0)

    def _parsed(
        self, record: bytes, piece: Piece, now: datetime, last_ms: int
    ) -> tuple[Parsed | None, Sequence[tuple[str, bytes | None]] | None]:
        assert self._parser is not None
        parsed = self._parser(record, now)
        if parsed is not None and len(parsed.value) <= MAX_PARSED_BYTES:
            if parsed.timestamp_ms is not None and parsed.timestamp_ms > last_ms:
                parsed = parsed._replace(timestamp_ms=None)
            return parsed, None
        config = self._config
        self.progress.unparsed += 1
        if config.on_error == "stop":
            raise InvalidRecordError(
                f"{piece.file.path}, between bytes {piece.file.offset} and {piece.offset}: {record[:200]!r} is no line of "
                f"{config.parser}; choose another --parse, or --on-error keep or skip"
            )
        if config.on_error == "skip":
            return None, None
        return Parsed(record, None), [(PARSE_ERROR_HEADER, str(config.parser).encode())]

    def _committed(self, pieces: Sequence[Piece], gone: Sequence[Followed]) -> None:
        for piece in pieces:
            self.progress.records += len(piece.records)
            self.progress.bytes += piece.offset - piece.file.offset
            piece.file.offset, piece.file.tail = piece.offset, piece.tail
        for file in gone:
            self._following.forget(file.file_id)
            self._renamed_s.pop(file.file_id, None)
            self._reading.drop(file)

    # --- around it ----------------------------------------------------------------------------------------------------

    def _warn_of(self, unreadable: Mapping[str, str], unmatched: Sequence[str]) -> None:
        for path in unreadable.keys() - self._unreadable:
            logger.warning("event=unreadable file=%s reason=%s", path, unreadable[path])
        self._unreadable = set(unreadable)
        for pattern in set(unmatched) - self._unmatched:
            logger.warning("event=no_files pattern=%s", pattern)
        self._unmatched = set(unmatched)

    def _report(self) -> None:
        now_s = time.monotonic()
        if now_s - self._reported_s >= REPORT_INTERVAL_S:
            self._reported_s = now_s
            files, progress = self._following.files.values(), self.progress
            logger.info(
                "event=collected records=%d bytes=%d unparsed=%d files=%d unread_bytes=%d",
                progress.records, progress.bytes, progress.unparsed, len(files), sum(file.unread_bytes for file in files),
            )  # fmt: skip
