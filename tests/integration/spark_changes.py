"""A stream of the format "postgres-changes" into the test's own process."""

import json
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import Row, SparkSession

FORMAT = "postgres-changes"
DEADLINE_S = 240


class Query:
    """A stream of one database's changes into this process; runs of the same one share checkpoint and folder."""

    def __init__(self, spark: SparkSession, dsn: str, folder: Path, **more: str | int) -> None:
        self._spark = spark
        self._folder = folder
        self.options: dict[str, str | int] = {
            "dsn": dsn,
            "publication": "changes",
            "slot": folder.name.replace("-", "_"),
            "tables": "public.*",
            "spoolLocation": str(folder / "spool"),
            **more,
        }
        self.batches: dict[int, list[Row]] = {}
        self.is_broken = False

    def run(self) -> None:
        """All that is committed in the database now."""
        rows = self._spark.readStream.format(FORMAT).options(**self.options).load()
        writer = rows.writeStream.foreachBatch(self._take).option(
            "checkpointLocation", str(self._folder / "checkpoint")
        )
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(DEADLINE_S), "the query did not end"

    def _take(self, rows: Any, batch_id: int) -> None:
        self.batches[batch_id] = sorted(rows.collect(), key=lambda row: (row.change_lsn, row.change_order, row.key))
        if self.is_broken:
            raise RuntimeError("the sink is broken")

    @property
    def rows(self) -> list[Row]:
        return [row for batch_id in sorted(self.batches) for row in self.batches[batch_id]]

    def told(self) -> list[tuple[str, str, Any]]:
        return [(row.table, row.op, json.loads(row.after)["v"] if row.after else None) for row in self.rows]


def confirmed(dsn: str, slot: object) -> int:
    """How many bytes of log behind its end the server has been told to keep."""
    with psycopg.connect(dsn) as connection:
        query = (
            "SELECT pg_wal_lsn_diff(confirmed_flush_lsn, '0/0')::bigint FROM pg_replication_slots WHERE slot_name = %s"
        )
        row = connection.execute(query, (slot,)).fetchone()
    return int(row[0]) if row else 0
