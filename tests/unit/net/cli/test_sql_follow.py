"""`barnabas sql --follow`: what is kept in memory, what is printed, and what is refused."""

import io
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

duckdb = pytest.importorskip("duckdb")
pyarrow = pytest.importorskip("pyarrow")

from barnabas.net.cli.frame.ages import age_ms  # noqa: E402
from barnabas.net.cli.frame.command import Context  # noqa: E402
from barnabas.net.cli.frame.exit_codes import CommandError  # noqa: E402
from barnabas.net.cli.frame.output import Output  # noqa: E402
from barnabas.net.cli.sql.changed_rows import ChangedRows  # noqa: E402
from barnabas.net.cli.sql.kept_records import KeptRecords  # noqa: E402
from barnabas.net.cli.streams import sql_follow  # noqa: E402
from barnabas.net.client.arrow.tables import SCHEMA  # noqa: E402

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000


def polled(*rows: tuple[int, bytes | None], topic: str = "t") -> Any:
    """Records with these times in milliseconds before now, and values."""
    return pyarrow.Table.from_pylist(
        [
            {
                "topic": topic,
                "partition": 0,
                "offset": offset,
                "timestamp": datetime.fromtimestamp((NOW_MS - before_ms) / 1_000, UTC),
                "key": None,
                "value": value,
                "headers": [],
            }
            for offset, (before_ms, value) in enumerate(rows)
        ],
        schema=SCHEMA,
    )


# --- records --------------------------------------------------------------------------------------------------------------


def values(kept: KeptRecords, now_ms: int = NOW_MS) -> list[bytes]:
    return cast(list[bytes], kept.table(now_ms)["value"].to_pylist())


def test_records_are_kept_for_their_time_to_the_millisecond() -> None:
    kept = KeptRecords(keep_ms=HOUR_MS, max_bytes=1 << 20)
    kept.add(polled())
    assert values(kept) == []
    kept.add(polled((HOUR_MS + 1, b"old"), (HOUR_MS, b"just"), (0, b"new")))
    kept.add(polled((HOUR_MS - 5, b"late")))
    assert values(kept) == [b"just", b"new", b"late"]
    assert values(kept, NOW_MS + 6) == [b"new"]
    assert values(kept, NOW_MS + HOUR_MS + 1) == []
    assert kept.crowded_out == 0


def test_the_oldest_pieces_go_when_there_is_no_room() -> None:
    kept = KeptRecords(keep_ms=HOUR_MS, max_bytes=3_000)
    for number in range(10):
        kept.add(polled((0, b"%d" % number * 1_000)))
        assert kept.table(NOW_MS).nbytes <= 3_000
    assert [value[:1] for value in values(kept)] == [b"8", b"9"] and kept.crowded_out == 8
    kept.add(polled((0, b"x" * 5_000)))
    assert len(values(kept)) == 1, "a piece that is too large alone is still shown"


# --- rows -----------------------------------------------------------------------------------------------------------------


def test_rows_that_are_new_more_often_or_changed_are_told() -> None:
    changed = ChangedRows()
    assert changed.of([("a", 1), ("b", 2)]) == [("a", 1), ("b", 2)]
    assert changed.of([("b", 2), ("a", 1)]) == []
    assert changed.of([("a", 1), ("a", 1), ("b", 3)]) == [("a", 1), ("b", 3)]
    assert changed.of([]) == []
    assert changed.of([("a", 1)]) == [("a", 1)], "it was gone meanwhile"
    assert changed.of([(datetime(2026, 1, 1, tzinfo=UTC), b"\xff", None, [1.5])]), "all kinds of values"


# --- what is printed --------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class World:
    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        query: str,
        *,
        is_json: bool = False,
        csv: bool = False,
        tty: bool = False,
    ) -> None:
        self.stdout, self.stderr = Terminal() if tty else io.StringIO(), io.StringIO()
        self.kept = {"t": KeptRecords(keep_ms=HOUR_MS, max_bytes=1 << 20)}
        given = Namespace(query=query, csv=csv, values="json")
        out = Output("json" if is_json else "text", self.stdout, self.stderr)
        context = cast(Context, SimpleNamespace(out=out, arguments=given))
        monkeypatch.setattr(sql_follow, "_now_ms", lambda: NOW_MS)
        self.screen = sql_follow._Screen(context, duckdb.connect(), self.kept)

    def shown(self, *rows: tuple[int, bytes | None]) -> str:
        self.kept["t"].add(polled(*rows))
        self.screen.refresh()
        text = self.stdout.getvalue()
        self.stdout.seek(0)
        self.stdout.truncate()
        return text


COUNT = "select page, count(*) as n from t group by page order by page"


def page(*names: str) -> Sequence[tuple[int, bytes]]:
    return [(0, b'{"page": "%s"}' % name.encode()) for name in names]


def test_a_query_of_fields_that_nobody_knows_yet_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, COUNT, is_json=True)
    assert (world.shown(), world.shown()) == ("", "")
    assert world.stderr.getvalue().count("waiting for records of t: Binder Error") == 1
    assert world.shown(*page("/a", "/b", "/a")) == '{"page": "/a", "n": 2}\n{"page": "/b", "n": 1}\n'
    assert world.shown(*page("/b")) == '{"page": "/b", "n": 2}\n'
    assert world.shown() == ""


def test_a_wrong_query_is_an_error_once_there_are_records(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, "select nothing from t")
    with pytest.raises(duckdb.BinderException):
        world.shown(*page("/a"))


def test_csv_has_one_head(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, COUNT, csv=True)
    assert world.shown(*page("/a")).splitlines() == ["page,n", "/a,1"]
    assert world.shown(*page("/b")).splitlines() == ["/b,1"]


def test_a_terminal_shows_the_whole_result_anew_if_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, COUNT, tty=True)
    world.shown(*page("/a", "/b"))
    lines = world.shown(*page("/a")).splitlines()
    assert lines[0].startswith(sql_follow.CLEAR) and len(lines) == 3 and lines[2].split() == ["/b", "1"]
    assert world.shown() == ""


def test_a_result_that_is_too_large_to_compare_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, f"select * from t, range({sql_follow.MAX_RESULT_ROWS + 1})")
    with pytest.raises(CommandError, match="more than 10000 rows: group them, or add a limit"):
        world.shown(*page("/a"))


def test_records_that_found_no_room_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, COUNT)
    world.kept["t"] = KeptRecords(keep_ms=HOUR_MS, max_bytes=100)
    for _ in range(3):
        world.shown(*page("/a"))
    assert world.stderr.getvalue() == "t has more records than --keep-mb takes: the query sees only the newest\n"


# --- arguments ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [["--keep", "1"], ["--keep", "1y"], ["--keep-mb", "0"], ["--keep-mb", "-1"], ["--every", "99ms"]]
)
def test_arguments_that_cannot_be(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser()
    sql_follow.arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(words)
    assert "give " in capsys.readouterr().err


def test_ages() -> None:
    assert [age_ms(text) for text in ("200ms", "30s", "10m", "2h", "7d")] == [
        200,
        30_000,
        600_000,
        7_200_000,
        604_800_000,
    ]
    with pytest.raises(ArgumentTypeError):
        age_ms("10")
