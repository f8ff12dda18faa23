"""Snapshot and stream together: whatever was read when, and wherever it crashed, the topic leads to the rows of the source."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from unit.net.connect.postgres import wal

from barnabas.net.programs.connect.postgres.changes import position as positions
from barnabas.net.programs.connect.postgres.changes.change_stream import (
    Catalog,
    ChangeStream,
    SeenTransactions,
    TableNotReadError,
)
from barnabas.net.programs.connect.postgres.changes.coverage import Range
from barnabas.net.programs.connect.postgres.changes.envelope import (
    ALL_PARTITIONS,
    PLACEHOLDER,
    EnvelopeNames,
    Origin,
    Outgoing,
    TableEncoder,
    reading_origin,
)
from barnabas.net.programs.connect.postgres.changes.faults import (
    KeyMissingError,
    PositionFormatError,
    SchemaConflictError,
    UnreadableMessageError,
)
from barnabas.net.programs.connect.postgres.changes.pgoutput import Relation, decode
from barnabas.net.programs.connect.postgres.changes.position import Part, Position, TableProgress
from barnabas.net.programs.connect.postgres.changes.values import TypeRow, Types

OID = 40
TYPES = Types({20: TypeRow(oid=20, name="int8"), 23: TypeRow(oid=23, name="int4"), 25: TypeRow(oid=25, name="text")})
NAMES = EnvelopeNames(prefix="shop", database="db")
COLUMNS = [("id", 23, True), ("v", 25, False)]
EVERYTHING = (Range(lower=None, upper=None, lsn=0),)


def start(
    ranges: tuple[Range, ...] = EVERYTHING, lsn: int = 0, columns: dict[str, tuple[int, int]] | None = None
) -> Position:
    table = TableProgress(oid=OID, key=("id",), key_types=("int4",), ranges=ranges, columns=columns)
    return Position(system_id="1", database="db", slot="s", lsn=lsn, tables={"public.t": table})


THERE = Catalog(tables=("public.t",), seen=SeenTransactions(start=1, end=1))
GONE = Catalog(tables=(), seen=SeenTransactions(start=7, end=9, running=frozenset((7,))))  # sees 8, and not 7 and 9


def stream_from(position: Position, catalog: Catalog = THERE) -> ChangeStream:
    return ChangeStream(position, TYPES, NAMES, catalog=catalog, is_captured=lambda table: table != "public.other")


def feed(stream: ChangeStream, *messages: bytes, lsn: int = 1) -> list[Outgoing]:
    records: list[Outgoing] = []
    for data in messages:
        message = decode(data)
        assert message is not None
        records += stream.received(message, lsn=lsn, now_ms=5)
    return records


def in_transaction(*messages: bytes, commit_lsn: int = 100) -> list[bytes]:
    return [wal.begin(commit_lsn), *messages, wal.commit(commit_lsn, commit_lsn + 8)]


def values(records: Sequence[Outgoing]) -> list[dict[str, object]]:
    return [json.loads(record.value) for record in records if record.value is not None]


HEAD = wal.relation(OID, "public", "t", COLUMNS)


def test_an_insert_an_update_and_a_delete_in_debeziums_envelope() -> None:
    stream = stream_from(start())
    records = feed(
        stream,
        *in_transaction(HEAD, wal.insert(OID, "1", "a"), wal.update(OID, ["1", "b"]), wal.delete(OID, ["1", None])),
    )
    assert [(record.topic, record.key) for record in records] == [("shop.public.t", b'{"id":1}')] * 4
    assert records[-1].value is None, "a tombstone follows the delete"
    inserted, updated, deleted = values(records)
    assert inserted["before"] is None and inserted["after"] == {"id": 1, "v": "a"} and inserted["op"] == "c"
    assert updated["before"] is None and updated["after"] == {"id": 1, "v": "b"} and updated["op"] == "u"
    assert deleted["before"] == {"id": 1} and deleted["after"] is None and deleted["op"] == "d"
    assert inserted["source"] == {
        "version": "1", "connector": "postgresql", "name": "shop", "db": "db", "schema": "public", "table": "t",
        "ts_ms": 946684800000, "snapshot": "false", "txId": 7, "lsn": 1, "commit_lsn": 100, "generation": 1,
    }  # fmt: skip
    assert [item["transaction"] for item in values(records)] == [
        {"id": "7:100", "total_order": number} for number in (1, 2, 3)
    ]
    assert stream.position.lsn == 108 and stream.is_between_transactions


def test_a_full_identity_gives_the_row_before_and_values_that_were_not_sent() -> None:
    head = wal.relation(OID, "public", "t", [("id", 23, True), ("v", 25, True)], "f")
    (record,) = feed(stream_from(start()), wal.begin(100), head, wal.update(OID, ["1", ...], ["1", "large"], "O"))
    (value,) = values([record])
    assert value["before"] == value["after"] == {"id": 1, "v": "large"}


def test_a_large_value_that_an_update_has_not_touched_is_named() -> None:
    (value,) = values(feed(stream_from(start()), wal.begin(100), HEAD, wal.update(OID, ["1", ...])))
    assert value["after"] == {"id": 1, "v": PLACEHOLDER}
    assert value["source"]["unchanged"] == ["v"]  # type: ignore[index]  # JSON


def test_a_changed_key_is_a_delete_and_an_insert() -> None:
    records = feed(stream_from(start()), wal.begin(100), HEAD, wal.update(OID, ["2", "a"], ["1", None]))
    assert [(record.key, record.value is None) for record in records] == [
        (b'{"id":1}', False),
        (b'{"id":1}', True),
        (b'{"id":2}', False),
    ]
    assert [value["op"] for value in values(records)] == ["d", "c"]
    moved = values(feed(stream_from(start()), wal.begin(100), HEAD, wal.update(OID, ["2", ...], ["1", None])))
    assert moved[0]["source"]["new_key"] == {"id": 2}  # type: ignore[index]  # JSON


def test_a_truncate_goes_to_every_partition() -> None:
    (record,) = feed(stream_from(start()), wal.begin(100), HEAD, wal.truncate(OID))
    assert record.partition == ALL_PARTITIONS and record.key and values([record])[0]["op"] == "t"


def test_what_was_committed_before_the_position_is_dropped() -> None:
    stream = stream_from(start(lsn=108))
    assert feed(stream, *in_transaction(HEAD, wal.insert(OID, "1", "a"))) == []
    assert stream.position.lsn == 108
    assert len(feed(stream, *in_transaction(wal.insert(OID, "1", "a"), commit_lsn=108))) == 1


def test_tables_that_the_file_does_not_name_are_dropped() -> None:
    head = wal.relation(41, "public", "other", COLUMNS)
    assert feed(stream_from(start()), *in_transaction(head, wal.insert(41, "1", "a"), wal.truncate(41))) == []


def test_a_table_that_was_not_read_or_was_replaced_has_to_be_read_first() -> None:
    with pytest.raises(TableNotReadError) as new:
        feed(stream_from(start()), wal.begin(100), wal.relation(41, "public", "new", COLUMNS))
    assert (new.value.table, new.value.is_again) == ("public.new", False)
    with pytest.raises(TableNotReadError) as replaced:
        feed(stream_from(start()), wal.begin(100), wal.relation(41, "public", "t", COLUMNS), wal.insert(41, "1", "a"))
    assert replaced.value.is_again


def test_changes_of_a_table_that_the_catalog_does_not_have_any_more_are_left_out() -> None:
    """Reading it is not possible: starting over for it would never end."""
    brief = wal.relation(41, "public", "brief", COLUMNS)
    stream = stream_from(start(), GONE)
    assert feed(stream, wal.begin(199, xid=8), brief, wal.insert(41, "1", "a"), wal.truncate(41)) == []
    assert stream.left_out == {"public.brief"}
    feed(stream, wal.commit(199, 207))
    with pytest.raises(TableNotReadError, match=r"public\.brief"):  # it may have come back since
        feed(stream, wal.begin(210, xid=9), wal.insert(41, "2", "b"))
    for xid in (7, 9):
        with pytest.raises(TableNotReadError):
            feed(stream_from(start(), GONE), wal.begin(200, xid=xid), brief)


def test_a_table_that_was_read_and_has_gone_is_read_again_when_it_comes_back() -> None:
    stream = stream_from(start(), GONE)
    assert len(feed(stream, wal.begin(199, xid=8), HEAD, wal.insert(OID, "1", "a"), wal.commit(199, 207))) == 1
    with pytest.raises(TableNotReadError) as back:
        feed(stream, wal.begin(210, xid=9), wal.insert(OID, "2", "b"))
    assert back.value.is_again


@pytest.mark.parametrize(
    ("text", "seen", "unseen"),
    [
        ("10:20:12,15", (3, 9, 10, 11, 14, 19), (12, 15, 20, 21)),
        ("10:10:", (3, 9), (10, 11)),
        (f"{2**32 - 2}:{2**32 + 5}:{2**32 + 1}", (2**32 - 3, 2**32 - 1, 0, 4), (1, 5, 6)),
        (f"{2**33 + 3}:{2**33 + 3}:", (2**32 - 1, 2), (3, 2**31)),
    ],
)
def test_which_transactions_a_snapshot_sees(text: str, seen: tuple[int, ...], unseen: tuple[int, ...]) -> None:
    """Numbers of transactions have 64 bits in a snapshot, and 32 in the log."""
    found = SeenTransactions.of(text)
    assert [xid for xid in (*seen, *unseen) if found.sees(xid)] == list(seen)


def test_what_would_need_another_reading_of_a_table_that_has_gone_is_left_out() -> None:
    halves = (Range(lower=None, upper=("5",), lsn=100), Range(lower=("5",), upper=None, lsn=300))
    for messages in (
        [wal.relation(41, "public", "t", COLUMNS), wal.insert(41, "1", "a")],
        [HEAD, wal.truncate(OID)],
        [HEAD, wal.update(OID, ["1", ...], ["9", None])],
    ):
        stream = stream_from(start(halves), GONE)
        assert feed(stream, wal.begin(200, xid=8), *messages) == []
        assert stream.left_out == {"public.t"}
        with pytest.raises(TableNotReadError):
            feed(stream_from(start(halves), THERE), wal.begin(200, xid=8), *messages)


def test_a_large_transaction_goes_on_behind_its_part() -> None:
    messages = [wal.insert(OID, "1", "a"), wal.update(OID, ["2", "b"], ["1", None]), wal.insert(OID, "3", "c")]
    stream = stream_from(start(lsn=50))
    feed(stream, wal.begin(100), HEAD, *messages[:2])
    part = stream.position_within
    assert (part.lsn, part.part) == (50, Part(commit_lsn=100, changes=2))
    assert positions.decode(positions.encode(part)) == part
    again = stream_from(part)
    feed(again, *in_transaction(HEAD, commit_lsn=60))
    assert again.position_within.part == part.part, "a transaction before it does not end it"
    again.idle_until(100)
    feed(again, wal.begin(100), HEAD, *messages[:1])
    assert again.position_within.part == part.part, "the changes that are known do not shorten it"
    (record,) = feed(again, *messages[1:])
    assert values([record])[0]["after"] == {"id": 3, "v": "c"}
    feed(again, wal.commit(100, 108))
    assert (again.position.lsn, again.position.part) == (108, None)
    assert part.reset(None).part is None and part.reset(frozenset(("public.t",))).part == part.part


def test_messages_in_an_impossible_order_are_errors() -> None:
    for messages in (
        [HEAD],
        [wal.insert(OID, "1", "a")],
        [wal.begin(100), wal.begin(200)],
        [wal.begin(100), wal.commit(200, 208)],
        [wal.begin(100), wal.insert(OID, "1", "a")],
        [wal.begin(100), HEAD, wal.insert(OID, "1")],
        [wal.begin(100), HEAD, wal.update(OID, ["1", "a", "b"])],
        [wal.begin(100), HEAD, wal.delete(OID, [None, "a"])],
        [wal.begin(100), HEAD, wal.truncate(99)],
    ):
        with pytest.raises(UnreadableMessageError, match="does the dsn lead to a PostgreSQL server"):
            feed(stream_from(start()), *messages)


def test_another_key_stops_the_connector_and_names_the_cure() -> None:
    head = wal.relation(OID, "public", "t", [("id", 23, False), ("v", 25, True)])
    with pytest.raises(SchemaConflictError, match=r"from \(id\) to \(v\).*connect reset FILE --table public.t"):
        feed(stream_from(start()), wal.begin(100), head, wal.insert(OID, "1", "a"))
    without = wal.relation(OID, "public", "t", [("id", 23, False), ("v", 25, False)])
    with pytest.raises(KeyMissingError, match="ADD PRIMARY KEY"):
        feed(stream_from(start()), wal.begin(100), without)
    later = start(ranges=(Range(lower=None, upper=None, lsn=200),))
    assert feed(stream_from(later), *in_transaction(head, wal.insert(OID, "1", "a"))) == [], "read after the change"


def test_a_key_of_another_type_goes_on_only_if_it_is_written_the_same() -> None:
    wider = wal.relation(OID, "public", "t", [("id", 20, True), ("v", 25, False)])
    (value,) = values(feed(stream_from(start()), *in_transaction(wider, wal.insert(OID, "1", "a"))))
    assert value["after"] == {"id": 1, "v": "a"}
    text = wal.relation(OID, "public", "t", [("id", 25, True), ("v", 25, False)])
    with pytest.raises(SchemaConflictError, match=r"from \(id\) of types \(int4\) to \(id\) of types \(text\)"):
        feed(stream_from(start()), wal.begin(100), text, wal.insert(OID, "1", "a"))


def test_new_columns_follow_and_the_position_moves_over_an_idle_log() -> None:
    stream = stream_from(start())
    feed(stream, *in_transaction(HEAD, wal.insert(OID, "1", "a")))
    head = wal.relation(OID, "public", "t", [*COLUMNS, ("n", 23, False)])
    (value,) = values(feed(stream, *in_transaction(head, wal.insert(OID, "2", "b", "5"), commit_lsn=200)))
    assert value["after"] == {"id": 2, "v": "b", "n": 5}
    stream.idle_until(900)
    stream.idle_until(300)
    assert stream.position.lsn == 900


@pytest.mark.parametrize(
    ("columns", "xid", "is_refused"),
    [
        (("id", "v", "n"), 8, False),  # added after this transaction, which the catalog has seen
        (("id", "v", "n"), 9, True),  # dropped by this transaction, or before it, after the catalog was read
        (("id", "v"), 8, True),
        (("id", "v"), 9, True),
    ],
)
def test_a_required_column_that_was_dropped_ends_the_stream(
    columns: tuple[str, ...], xid: int, is_refused: bool
) -> None:
    catalog = Catalog(
        tables=("public.t",), seen=SeenTransactions(start=9, end=9), columns={"public.t": dict.fromkeys(columns, 23)}
    )
    stream = ChangeStream(start(), TYPES, NAMES, catalog=catalog, is_captured=lambda _: True, required=("id", "n"))
    messages = wal.begin(100, xid=xid), HEAD, wal.insert(OID, "1", "a")
    if not is_refused:
        assert len(feed(stream, *messages)) == 1
        return
    with pytest.raises(
        SchemaConflictError, match=r"no column 'n' since .* \(its columns are id, v\): .*connect reset FILE"
    ):
        feed(stream, *messages)


def test_positions_survive_their_record() -> None:
    first = (
        start(lsn=5, columns={"id": (23, -1), "n": (1700, 655366)})
        .reset(frozenset(("public.t",)))
        .with_range("public.t", Range(lower=None, upper=("7",), lsn=9))
    )
    assert positions.decode(positions.encode(first)) == first
    assert first.tables["public.t"].coverage.gaps() == (Range(lower=("7",), upper=None),)
    everything = first.reset(None)
    assert everything.lsn == 0 and everything.tables["public.t"].is_again
    for damaged in (b"{}", b"null", b"{", positions.encode(first).replace(b'"version": 1', b'"version": 3')):
        with pytest.raises(PositionFormatError):
            positions.decode(damaged)


# --- any history ------------------------------------------------------------------------------------------------------------


Rows = dict[str, str]


@dataclass
class Source:
    """A table and the log of its changes: every commit is at a multiple of ten."""

    rng: random.Random
    rows: Rows = field(default_factory=dict)
    log: list[tuple[int, list[bytes]]] = field(default_factory=list)  # commit LSN, messages between begin and commit
    states: list[tuple[int, Rows]] = field(default_factory=lambda: [(0, {})])  # rows after the commit at this LSN
    count: int = 0

    def work(self, transactions: int) -> None:
        for _ in range(transactions):
            messages = [self._change() for _ in range(self.rng.randint(1, 4))]
            lsn = self.states[-1][0] + 10
            self.log.append((lsn, messages))
            self.states.append((lsn, dict(self.rows)))

    def _change(self) -> bytes:
        key, self.count = str(self.rng.randint(1, 9)), self.count + 1
        value, roll = f"v{self.count}", self.rng.random()
        if roll < 0.03:
            self.rows.clear()
            return wal.truncate(OID)
        if key not in self.rows:
            self.rows[key] = value
            return wal.insert(OID, key, value)
        if roll < 0.25:
            del self.rows[key]
            return wal.delete(OID, [key, None])
        other = str(self.rng.randint(1, 9))
        if roll < 0.45 and other not in self.rows:
            self.rows[other] = value
            del self.rows[key]
            return wal.update(OID, [other, value], [key, None])
        self.rows[key] = value
        return wal.update(OID, [key, value])

    @property
    def end(self) -> int:
        """An LSN behind the last commit, up to that of the next one."""
        return self.states[-1][0] + self.rng.choice((1, 10))

    def snapshot(self, lsn: int) -> Rows:
        """The rows that every transaction before `lsn` has left."""
        return next(rows for at, rows in reversed(self.states) if at < lsn)


class Topic:
    """What committed readers see, and the position in the same transaction."""

    def __init__(self) -> None:
        self.rows: dict[object, object] = {}
        self.seen: list[tuple[int, int, str]] = []  # commit LSN, order, op of every change of the stream
        self.position = start(ranges=())

    def commit(self, records: Sequence[Outgoing], position: Position) -> None:
        self.position = positions.decode(positions.encode(position))
        for record in records:
            if record.value is None:
                assert record.key not in self.rows
                continue
            value = json.loads(record.value)
            source, key = value["source"], record.key
            if source["snapshot"] == "false" and source["generation"] == position.generation:
                self.seen.append((source["commit_lsn"], value["transaction"]["total_order"], value["op"]))
            if value["op"] == "t":
                self.rows.clear()
            elif value["op"] == "d":
                assert self.rows.pop(key, None) is not None, "a delete of a row that is not there"
            else:
                assert (key in self.rows) == (value["op"] == "u"), f"{value['op']} of {key!r}"
                self.rows[key] = value["after"]


def run(source: Source, topic: Topic, again: frozenset[str], stop: Callable[[], bool]) -> None:
    """One run of the connector, which may crash before any commit."""
    position = topic.position
    table = position.tables["public.t"]
    if again:
        fresh = replace(table, ranges=())
        position = replace(position, generation=position.generation + 1).with_table("public.t", fresh)
        truncation = encoder().truncated(origin(position, position.lsn), lsn=position.lsn, order=0, now_ms=0)
        topic.commit(truncation, position)
        topic.seen.clear()
    lsn = source.end
    rows = source.snapshot(lsn)
    for gap in position.tables["public.t"].coverage.gaps():
        lower = gap.lower
        keys = sorted(int(key) for key in rows if _is_in(int(key), gap))
        for key in keys:
            if stop():
                return
            made = encoder().inserted(
                (str(key), rows[str(key)]), origin(position, lsn, True), lsn=lsn, order=0, now_ms=0
            )
            position = position.with_range("public.t", Range(lower=lower, upper=(str(key),), lsn=lsn))
            lower = (str(key),)
            topic.commit(made, position)
            source.work(source.rng.randint(0, 1))
        if lower != gap.upper or lower is None:
            position = position.with_range("public.t", Range(lower=lower, upper=gap.upper, lsn=lsn))
        topic.commit([], position)
    _follow(source, topic, position, stop)


def _follow(source: Source, topic: Topic, position: Position, stop: Callable[[], bool]) -> None:
    stream, records = stream_from(position), list[Outgoing]()
    for number, (commit_lsn, messages) in enumerate(source.log):
        records += feed(stream, wal.begin(commit_lsn), *([] if number else [HEAD]))
        for message in messages:
            records += feed(stream, message)
            if source.rng.random() < 0.1:  # the transaction is too large
                topic.commit(records, stream.position_within)
                records = []
        if stop():
            return
        records += feed(stream, wal.commit(commit_lsn, commit_lsn + 1))
        if source.rng.random() < 0.5:
            topic.commit(records, stream.position)
            records = []
    topic.commit(records, stream.position)


def _is_in(key: int, gap: Range) -> bool:
    return (gap.lower is None or key > int(gap.lower[0])) and (gap.upper is None or key <= int(gap.upper[0]))


def encoder() -> TableEncoder:
    relation = decode(HEAD)
    assert isinstance(relation, Relation)
    return TableEncoder(relation, ("id",), TYPES, NAMES)


def origin(position: Position, lsn: int, is_snapshot: bool = False) -> Origin:
    return reading_origin(lsn, 0, position.generation, is_snapshot=is_snapshot)


@pytest.mark.parametrize("seed", range(400))
def test_the_topic_leads_to_the_rows_of_the_source_after_any_crashes(seed: int) -> None:
    """Every insert, update and delete fits the rows before it, so no change is missing, doubled or out of order."""
    rng = random.Random(seed)
    source, topic = Source(rng), Topic()
    source.work(5)
    again = frozenset[str]()
    for crashes_left in (3, 2, 1, 0):
        source.work(rng.randint(0, 6))
        for _ in range(3):  # a truncation between two readings asks for another reading
            chance = 0.1 if crashes_left else 0.0
            try:
                run(source, topic, again, lambda chance=chance: rng.random() < chance)  # type: ignore[misc]
            except TableNotReadError as error:
                again = frozenset((error.table,))
            else:
                again = frozenset()
                break
    assert topic.rows == {
        f'{{"id":{key}}}'.encode(): {"id": int(key), "v": value} for key, value in source.rows.items()
    }
    places = [(lsn, order) for lsn, order, _ in topic.seen]
    assert places == sorted(places), "in the order of the commits"
    assert len(set(topic.seen)) == len(topic.seen), "no change twice"


def test_topics_have_names_that_brokers_take() -> None:
    relation = decode(wal.relation(1, "public", "Strange, %s Näme", COLUMNS))
    assert isinstance(relation, Relation)
    assert NAMES.topic(relation) == "shop.public.Strange___s_N_me"


def test_a_table_that_was_altered_is_told_once() -> None:
    """The server rewrites rows for ALTER COLUMN ... TYPE ... USING and ADD COLUMN ... DEFAULT, and sends none of them."""
    stream = stream_from(start())
    feed(stream, *in_transaction(HEAD, wal.insert(OID, "1", "a")))
    feed(stream, *in_transaction(HEAD, commit_lsn=200))
    assert stream.altered == [], "the same table"
    changed = wal.relation(OID, "public", "t", [("id", 23, True), ("v", 23, False), ("n", 23, False)])
    feed(stream, *in_transaction(changed, wal.insert(OID, "2", "3", "4"), commit_lsn=300))
    assert stream.altered == [
        "table public.t: ALTER TABLE changed the type of v. Its other rows bring no change",
        "table public.t: ALTER TABLE added n. A default is in its other rows, without a change",
    ]
    stream.altered.clear()
    feed(stream, *in_transaction(changed, wal.insert(OID, "3", "3", "4"), commit_lsn=400))
    fewer = wal.relation(OID, "public", "t", COLUMNS[:1])
    feed(stream, *in_transaction(fewer, wal.insert(OID, "4"), commit_lsn=500))
    assert stream.altered == [], "without a column, all rows are still right"


@pytest.mark.parametrize(("lsn", "told"), [(50, 1), (200, 0)], ids=["read before it", "read after it"])
def test_the_first_announcement_is_compared_with_what_was_read_also_by_an_earlier_process(lsn: int, told: int) -> None:
    columns = {"id": (23, -1), "v": (20, -1)}
    first = start(ranges=(Range(lower=None, upper=None, lsn=lsn),), columns=columns)
    stream = stream_from(positions.decode(positions.encode(first)))
    feed(stream, *in_transaction(HEAD, wal.insert(OID, "1", "a")))
    assert len(stream.altered) == told
    assert stream.position.tables["public.t"].columns == ({"id": (23, -1), "v": (25, -1)} if told else columns)
    again = stream_from(stream.position)
    feed(again, *in_transaction(HEAD, wal.insert(OID, "2", "a"), commit_lsn=300))
    assert len(again.altered) == 1 - told, "each once"


def test_a_part_that_is_sent_again_tells_nothing_again() -> None:
    part = Part(commit_lsn=100, changes=2)
    first = start(columns={"id": (23, -1), "v": (25, -1), "n": (23, -1)})
    stream = stream_from(replace(first, part=part))
    changed = wal.relation(OID, "public", "t", [*COLUMNS, ("n", 23, False)])
    again = [HEAD, wal.insert(OID, "1", "a"), changed, wal.insert(OID, "2", "a", "3")]
    assert len(feed(stream, *in_transaction(*again, wal.insert(OID, "3", "a", "3")))) == 1
    assert stream.altered == []
