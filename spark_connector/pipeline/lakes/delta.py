"""Rows into a Delta table, each micro-batch once and at once, without Spark's JVM knowing the format.

Tasks write Parquet files into the folder of the table; nobody sees them until the driver names all of them in one commit. The
commit also says the number of the micro-batch, as a transaction of the sink id in Delta's log: a micro-batch that is repeated
finds it, and two drivers cannot commit the same one. Files of an attempt that failed belong to no version; a full `vacuum`
removes them.

deltalake (delta-rs) reads and writes the log. Rules that only a writer of rows can keep (constraints, generated columns) are not
kept here, so tables with them are refused.
"""

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from barnabas.net.programs.pipeline.spec import DeltaSink

from ..faults import PipelineFault
from .delta_columns import TypeJson, accepts, check_columns, told
from .files import ADDED, MAX_COMMITS, compute, sync, write_files

INSTALL: Final = "a Delta table needs deltalake: pip install 'barnabas[delta]'"
# Features of a table whose rules hold for files that are only added. `invariants` and `checkConstraints` where there are none.
_FEATURES: Final = frozenset({"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "timestampNtz"})
_RULES: Final = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
_NULLABILITY: Final = ("nullable", "containsNull", "valueContainsNull")  # in the JSON of Delta's types
_LOG: Final = "_delta_log"


class DeltaWriter:
    def __init__(
        self,
        folder: str,
        sink: DeltaSink,
        *,
        sink_id: str,
        columns: T.StructType,
        is_complete: bool,
        written_batches: Callable[[], int],
    ) -> None:
        """`is_complete`: each micro-batch replaces the whole table. `written_batches`: those of this sink id that are noted.
        Raises PipelineFault for columns that a table cannot have, and without deltalake."""
        try:
            import deltalake
            from deltalake import transaction
        except ImportError as error:
            raise PipelineFault(INSTALL) from error
        self._delta, self._actions = deltalake, transaction
        self._folder = folder
        self._partition_by = sink.partition_by
        self._sink_id = sink_id
        self._mode = "overwrite" if is_complete else "append"
        self._written_batches = written_batches
        check_columns(columns, sink.partition_by)
        self._schema = to_arrow_schema(columns, timezone="UTC")
        self._given = deltalake.Schema.from_arrow(self._schema)
        self._columns = deltalake.Schema.from_json(json.dumps(_nullable(json.loads(self._given.to_json()))))

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Raises PipelineFault where the table does not fit the rows.

        Another writer may commit in between. Files do not depend on what it has done, unless it has changed the table so that
        they do not fit any more: the same files are committed to the new version.
        """
        added: list[Any] | None = None
        required: frozenset[str] = frozenset()
        for attempt in range(1, MAX_COMMITS + 1):
            table = self._fitting(batch_id)
            if table is None:
                if added is None:
                    compute(batch)
                return
            if added is None or required != _required(table):
                required = _required(table)
                added = self._write_files(batch, batch_id, required)
            try:
                self._commit(table, added, batch_id)
            except self._delta.exceptions.CommitFailedError:
                if attempt == MAX_COMMITS:
                    raise
            else:
                return

    def _fitting(self, batch_id: int) -> Any | None:
        """The table, with all columns; None if it has the micro-batch."""
        table = self._open()
        written = table.transaction_version(self._sink_id)
        if written is not None and written >= batch_id:
            return None
        if written is None and (noted := self._written_batches()):
            raise PipelineFault(
                f"sink.delta: {self._folder} has nothing of the {noted} micro-batches that are written: restore the table, or "
                "`barnabas pipeline reset` first, to write all rows again"
            )
        self._check_rules(table)
        self._fit(table)
        return table

    def _write_files(self, batch: DataFrame, batch_id: int, required: frozenset[str]) -> list[Any]:
        folder, partition_by, schema = self._folder, self._partition_by, self._schema
        prefix = f"part-{self._sink_id}-{batch_id}"
        numbered = batch.toDF(*(f"c{number}" for number in range(len(schema))))  # Spark would split names at dots
        return numbered.mapInArrow(
            lambda rows: write_files(rows, schema, folder, partition_by, prefix, required), ADDED
        ).collect()

    def _commit(self, table: Any, added: list[Any], batch_id: int) -> None:
        now_ms = int(time.time() * 1000)
        table.create_write_transaction(
            [self._add(row, now_ms) for row in added],
            self._mode,
            table.schema(),
            partition_by=list(self._partition_by),
            commit_properties=self._delta.CommitProperties(
                app_transactions=[self._delta.Transaction(self._sink_id, batch_id, now_ms)]
            ),
        )
        before = table.version()
        table.update_incremental()
        _sync_log(f"{self._folder}/{_LOG}", range(before + 1, table.version() + 1))

    def _add(self, row: Any, now_ms: int) -> Any:
        return self._actions.AddAction(
            row.path, row.size_bytes, json.loads(row.partition), now_ms, True, json.dumps({"numRecords": row.rows})
        )

    # --- the table ----------------------------------------------------------------------------------------------------

    def _open(self) -> Any:
        delta = self._delta
        if not delta.DeltaTable.is_deltatable(self._folder):
            # A process that was killed while it created the table leaves a log without a version.
            if os.path.isdir(self._folder) and {*os.listdir(self._folder)} - {_LOG}:
                raise PipelineFault(f"sink.delta: {self._folder} has files and is no Delta table: name another folder")
            return delta.DeltaTable.create(
                self._folder, schema=self._columns, partition_by=list(self._partition_by), mode="ignore"
            )
        return delta.DeltaTable(self._folder)

    def _check_rules(self, table: Any) -> None:
        metadata, protocol = table.metadata(), table.protocol()
        configuration = metadata.configuration
        found = [key for key in configuration if key.startswith("delta.constraints.")]
        if configuration.get("delta.columnMapping.mode", "none") != "none":
            found.append("delta.columnMapping.mode")
        schema = table.schema().to_json()  # fields of fields may have rules, too
        found += [key for key in _RULES if f'"{key}"' in schema]
        found += sorted(set(protocol.writer_features or ()) - _FEATURES)
        if self._mode == "overwrite" and configuration.get("delta.appendOnly", "").lower() == "true":
            found.append("delta.appendOnly")
        if found:
            raise PipelineFault(
                f"sink.delta: {self._folder} has {found[0]}, which this writer cannot keep: use a table without it"
            )
        if tuple(metadata.partition_columns) != self._partition_by:
            columns = ", ".join(metadata.partition_columns) or "nothing"
            raise PipelineFault(
                f"sink.delta: {self._folder} is partitioned by {columns}: write the same in sink.partition_by"
            )

    def _fit(self, table: Any) -> None:
        """Add the columns that are new; those that the rows lack stay empty."""
        known = {field.name: field for field in table.schema().fields}
        wanted = self._columns.fields
        for field in self._given.fields:
            before = known.get(field.name)
            if before is not None and not accepts(_type_of(before), _type_of(field)):
                raise PipelineFault(
                    f"sink.delta: column {field.name!r} is {told(_type_of(before))} in {self._folder} and "
                    f"{told(_type_of(field))} in the result: cast it"
                )
            if before is None and field.name.lower() in {name.lower() for name in known}:
                raise PipelineFault(
                    f"sink.delta: column {field.name!r} differs from one of {self._folder} only in upper and lower case: "
                    "rename it"
                )
        given = {field.name for field in wanted}
        needed = [name for name, field in known.items() if not field.nullable and name not in given]
        if needed:
            raise PipelineFault(f"sink.delta: {self._folder} needs the column {needed[0]!r}, which the result lacks")
        new = [self._delta.Field(field.name, field.type, nullable=True) for field in wanted if field.name not in known]
        if new:
            table.alter.add_columns(new)
            table.update_incremental()


def _nullable(kind: Any) -> Any:
    """A type, as JSON, whose parts may all be null. As Spark's own writer, a new table promises nothing of later rows."""
    if isinstance(kind, dict):
        return {key: True if key in _NULLABILITY else _nullable(value) for key, value in kind.items()}
    return [_nullable(item) for item in kind] if isinstance(kind, list) else kind


def _required(table: Any) -> frozenset[str]:
    return frozenset(field.name for field in table.schema().fields if not field.nullable)


def _type_of(field: Any) -> TypeJson:
    return json.loads(field.type.to_json())


def _sync_log(folder: str, versions: Iterable[int]) -> None:
    """A commit must be on disk before Spark notes the micro-batch as done: else a power failure could take its rows away."""
    for version in versions:
        with suppress(FileNotFoundError):  # a checkpoint has taken its place
            sync(Path(folder) / f"{version:020}.json")
    sync(Path(folder))
