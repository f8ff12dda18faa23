"""`ChangeOptions`: the options of the format "postgres-changes". Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.programs.connect.postgres.changes.faults import ConfigFileError
from barnabas.net.programs.connect.postgres.changes.settings import (
    SOURCE,
    DeliverySettings,
    SnapshotSettings,
    SourceSettings,
    checked_source,
)

from ..common.options import Options

STREAM_NAMES = (
    "slot",
    "spoolLocation",
    "snapshot",
    "maxChangesPerTrigger",
    "maxTransactionChanges",
    "maxSpoolBytes",
    "requiredColumns",
)
NAMES = ("dsn", "publication", "tables", "prefix", "snapshotReaders", "snapshotChunkRows", *STREAM_NAMES)
PAGE = "docs/connect.md"
DEFAULT_PREFIX = "postgres"
MAX_SPOOL_BYTES = 1 << 30  # about two million changes of small rows
MAX_TRANSACTION_CHANGES = 200_000
MAX_SEGMENT_CHANGES = 10_000  # a task reads a segment
# Nothing waits for a transaction of a broker here, so a transaction of the source may take its time.
PATIENCE_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions:
    settings: SourceSettings
    spool: Path  # absolute; of a stream
    max_changes: int | None  # of a micro-batch
    max_spool_bytes: int
    required_columns: tuple[str, ...] = ()  # of each table of a stream


def parse_change_options(given: Mapping[str, str], *, is_stream: bool) -> ChangeOptions:
    """Raises InvalidConfigError, which names the option and the cure."""
    options = Options(given, known=NAMES, shared=(), page=PAGE)
    if not is_stream and (others := options.given(*STREAM_NAMES)):
        raise InvalidConfigError(f"{others[0]} is an option of readStream: a batch reads the rows as they are now")
    publication = _required(options, "publication", "CREATE PUBLICATION name FOR TABLE ... makes one")
    spool = Path()
    if is_stream:
        spool = Path(_required(options, "spoolLocation", "a folder of its own for each query"))
        if not spool.is_absolute():
            raise InvalidConfigError(
                f"spoolLocation is {str(spool)!r}: write an absolute path, which all machines have"
            )
    default = SnapshotSettings()
    slot = (
        _required(options, "slot", "a name for the replication slot, which the first start creates")
        if is_stream
        else ""
    )
    settings = SourceSettings(
        connector=SOURCE,
        name=slot or publication,
        dsn=_required(options, "dsn", "such as host=localhost dbname=shop user=barnabas"),
        publication=publication,
        slot=slot,
        prefix=options.text("prefix") or DEFAULT_PREFIX,
        tables=[name.strip() for name in (options.text("tables") or "*.*").split(",")],
        snapshot=SnapshotSettings(
            mode=options.text("snapshot") or default.mode,
            readers=options.integer("snapshotReaders", default.readers),
            chunk_rows=options.integer("snapshotChunkRows", default.chunk_rows),
        ),
        delivery=DeliverySettings(
            max_records=MAX_SEGMENT_CHANGES,
            max_transaction_records=options.integer("maxTransactionChanges", MAX_TRANSACTION_CHANGES),
            transaction_timeout_ms=PATIENCE_MS,
            tombstones=False,
        ),
    )
    try:
        checked_source(settings, "postgres-changes")
    except ConfigFileError as error:
        raise InvalidConfigError(error.message) from None
    return ChangeOptions(
        settings=settings,
        spool=spool,
        max_changes=options.optional_integer("maxChangesPerTrigger"),
        max_spool_bytes=options.integer("maxSpoolBytes", MAX_SPOOL_BYTES),
        required_columns=_names(options.text("requiredColumns") or "[]"),
    )


def _names(text: str) -> tuple[str, ...]:
    try:
        return tuple(msgspec.json.decode(text, type=list[str]))
    except msgspec.DecodeError as error:
        raise InvalidConfigError(
            f'requiredColumns is {text!r}: write a list in JSON, such as ["id", "name"]'
        ) from error


def _required(options: Options, name: str, what: str) -> str:
    found = options.text(name)
    if not found or not found.strip():
        raise InvalidConfigError(f"the option {name} is missing: {what}; see {PAGE}")
    return found
