"""A source that is a table or a query of a database: all rows, or those that come along a column that grows. Pure."""

from typing import Final

from .document_table import DocumentTable
from .field_parsing import read_fields
from .spec import SourceSpec, SqlSource

DATABASES: Final = ("sqlite", "postgresql")
MAX_PARTITIONS: Final = 1_000  # connections that a database may get at once
_SELECTS: Final = ("select", "with", "values", "table")


def read_sql_source(table: DocumentTable) -> SqlSource:
    database = table.text("database")
    kind, _, place = database.partition(":")
    if database and (kind not in DATABASES or not place):
        # The value may contain a password, so the message does not repeat it.
        table.refuse("database", 'must be "sqlite:FILE" or "postgresql:CONNECTION"')
    kinds = table.given("table", "query")
    if len(kinds) != 1:
        table.refuse("", "a source in a database has either table (a name) or query (a SELECT): write one of them")
    query = table.text("query")
    if query and query.split(None, 1)[0].lower() not in _SELECTS:
        table.refuse("query", "must begin with SELECT or WITH: it may only read")
    if table.has("fields") and kind == "postgresql":
        table.refuse(
            "fields", "has no effect, because PostgreSQL knows the types: CAST the column in a query, and remove this"
        )
    found = SqlSource(
        database=database,
        table=table.text("table"),
        query=query,
        fields=read_fields(table),
        increasing=table.text("increasing"),
        start="latest" if table.text("start", "earliest", choices=("earliest", "latest")) == "latest" else "earliest",
        max_rows=table.integer("max_rows", 0, least=1, most=1_000_000_000),
        partition_by=table.text("partition_by"),
        partitions=table.integer("partitions", 1, least=1, most=MAX_PARTITIONS),
    )
    _refuse_useless(table, found)
    return found


def _refuse_useless(table: DocumentTable, found: SqlSource) -> None:
    increasing = table.words.pair("increasing", "id")
    for key in table.given("start", "max_rows"):
        if not found.increasing:
            table.refuse(key, f"has an effect only with {increasing}: add that, or remove this")
    if found.increasing and found.partition_by:
        table.refuse("partition_by", "has no effect with increasing, by which tasks read then: remove it")
    elif found.partition_by and found.partitions == 1:
        table.refuse("partition_by", "has no effect without a number of tasks: add partitions = 4")
    elif found.partitions > 1 and not (found.partition_by or found.increasing):
        example = table.words.pair("partition_by", "id")
        table.refuse(
            "partitions", f"needs a column of numbers or times, of which each task reads a range: add {example}"
        )


def refuse_sql_parts(
    document: DocumentTable, path: str, source: SourceSpec, sources: tuple[SourceSpec, ...], *, is_batch: bool
) -> None:
    """What a batch, a stream or a lookup table cannot use."""
    origin = source.origin
    assert isinstance(origin, SqlSource)
    increasing = document.words.pair("increasing", "id")
    if is_batch and origin.increasing:
        document.refuse(f"{path}.increasing", "has no effect in a batch, which reads all rows: remove it")
    if is_batch or origin.increasing:
        return
    if source.watermark is not None:
        document.refuse(
            f"{path}.watermark", f"has no effect on a table that is read whole: add {increasing}, or remove it"
        )
    if all(isinstance(other.origin, SqlSource) and not other.origin.increasing for other in sources):
        batch = document.words.pair("mode", "batch")
        document.refuse(
            path,
            f"a stream follows a column whose values grow with each new row: add {increasing}; or read all rows once, with"
            f" {batch} at the top",
        )
