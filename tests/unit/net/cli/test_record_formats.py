"""Format strings, JSON lines and positions of `topic consume` and `topic produce`, from arguments to output and records."""

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from unit.net.cli.fake_cluster import FakeCluster, FakeRecord

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.cli.frame.exit_codes import CommandError
from barnabas.net.cli.records.places import Span, span_of, time_ms
from barnabas.net.cli.records.templates import LineReader, writer_of

NOW_MS = 1_795_000_000_000
RECORD: Any = FakeRecord(
    topic="t", partition=3, offset=7, key=b"k", value=b"\xff\n", timestamp_ms=1_500, headers=[("a", b"1"), ("b", None)]
)
NULLS: Any = FakeRecord(topic="t", partition=0, offset=0, key=None, value=None)


@pytest.mark.parametrize(
    ("template", "written"),
    [
        (r"%t %p %o\n", b"t 3 7\n"),
        (r"%k\t%v|%s", b"k\t\xff\n|\xff\n"),
        ("%h", b"a=1,b"),
        ("%T %T{s} %T{iso}", b"1500 1 1970-01-01T00:00:01.500Z"),
        ("%K %S 100%%", b"1 2 100%"),
        ("%k{hex} %v{base64} %k{json}", b'6b /wo= "k"'),
        (r"\x00\\n", b"\0\\n"),
    ],
)
def test_what_a_format_string_writes(template: str, written: bytes) -> None:
    assert writer_of(template)(RECORD) == written


def test_nulls_are_empty_and_can_be_told_apart() -> None:
    assert writer_of("[%k|%v|%h|%K|%S|%v{json}]")(NULLS) == b"[|||-1|-1|null]"


def test_a_time_beyond_the_calendar_is_a_number() -> None:
    far: Any = FakeRecord(topic="t", partition=0, offset=0, value=b"", timestamp_ms=2**62)
    assert writer_of("%T{iso}")(far) == b"%d" % 2**62


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("%q", "%q is no field; use %t topic"),
        ("%k{xml}", "%k{xml} is unknown; use %k{hex}, %k{base64}, %k{json}"),
        ("%o{hex}", "%o{hex} is unknown; use %o"),
        (r"%k\q", r"\q is no escape; use \n"),
        ("%k%", "a single % at the end has no meaning; use %%"),
    ],
)
def test_a_format_string_with_a_typo_is_refused(template: str, told: str) -> None:
    with pytest.raises(CommandError, match=re.escape(told)) as caught:
        writer_of(template)
    assert caught.value.exit_code == 2


def test_lines_are_read_by_a_format_string() -> None:
    read = LineReader(r"%p %T %k{hex}\t%h\t%v\n").read(b"2 1500 6b00\ta=1,b\tx y\tz", 1)
    assert read == (b"x y\tz", b"k\0", [("a", b"1"), ("b", None)], 1500, 2)
    assert LineReader("%v").read(b"", 1).value == b""


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("%k\\n", "there is no value; use %v"),
        ("%k%v", "nothing separates %k from %v; use a separator"),
        ("%v %s", "a field is there twice"),
        ("%o %v", "%o is no field; use %k key"),
        ("%T{iso} %v", "for output only"),
        (r"%k\n%v", "a record is one line"),
    ],
)
def test_a_format_string_that_no_line_can_have_is_refused(template: str, told: str) -> None:
    with pytest.raises(CommandError, match=re.escape(told)):
        LineReader(template)


@pytest.mark.parametrize(
    ("template", "line", "told"),
    [
        ("%k:%v", b"x", "line 4 does not have the format %k:%v: x"),
        ("%k{hex}:%v", b"zz:1", "line 4: %k is not hex"),
        ("%h %v", b"\xff=1 v", "line 4: the name of a header is no UTF-8"),
    ],
)
def test_a_line_without_the_format_is_named(template: str, line: bytes, told: str) -> None:
    with pytest.raises(CommandError, match=re.escape(told)):
        LineReader(template).read(line, 4)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("start", Span("start", "")),
        ("-10", Span("-10", "")),
        ("5..9", Span("5", "9")),
        ("..9", Span("start", "9")),
        ("5..", Span("5", "")),
        ("@7", Span("@7", "")),
        ("@-90m..@-1h", Span(f"@{NOW_MS - 5_400_000}", f"@{NOW_MS - 3_600_000}")),
        ("@1970-01-02", Span("@86400000", "")),
        ("@1970-01-01T02:00+01:00..end", Span("@3600000", "end")),
        ("@-9999999w", Span("@0", "")),
    ],
)
def test_positions_as_people_write_them(text: str, span: Span) -> None:
    assert span_of(text, NOW_MS) == span


@pytest.mark.parametrize("text", ["now", "@now", "2026-11-24", "@-1y", "--5", "@", "5...9", "@1" + "0" * 18])
def test_a_position_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(CommandError) as caught:
        span_of(text, NOW_MS)
    assert caught.value.exit_code == 2
    with pytest.raises(CommandError, match="--timestamp: x is no time"):
        time_ms("x", "--timestamp", NOW_MS)


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (("t", "-o", "-1"), "c\nd\n"),
        (("t", "-o", "1..2"), "b\n"),
        (("t", "-o", "..1"), "a\nd\n"),
        (("t", "u"), "a\nb\nc\nd\ne\n"),
        (("-r", "[tu]"), "a\nb\nc\nd\ne\n"),
        (("t", "--grep", "[bd]"), "b\nd\n"),
        (("t", "--grep", "[bd]", "-n", "1"), "b\n"),
        (("t", "--grep-value", "(?i)A"), "a\n"),
        (("t", "--grep-key", "a"), ""),
        (("t", "-f", r"%o%v,"), "0a,1b,2c,0d,"),
    ],
)
def test_consume_selects(run: Any, cluster: FakeCluster, arguments: tuple[str, ...], values: str) -> None:
    cluster.add("u", b"e")
    assert run("topic", "consume", *arguments)[:2] == (0, values)


def test_records_that_do_not_match_are_committed_too(run: Any, cluster: FakeCluster) -> None:
    assert run("topic", "consume", "t", "-g", "g", "--grep", "a")[1] == "a\n"
    assert cluster.committed["g"] == {TopicPartition("t", 0): 3, TopicPartition("t", 1): 1}


def test_json_out_and_in_is_the_identity(run: Any, cluster: FakeCluster, tmp_path: Path) -> None:
    shapes: list[tuple[bytes | None, bytes | None, Any]] = [
        (None, None, ()),
        (b"", b"", ()),
        (b"\xff\0", b"\x80", [("n", None), ("n", b"\xfe"), ("", b"")]),
        ("é\u2028".encode(), b'{"a":\n1}', [("é", b"1")]),
    ]
    given = [
        FakeRecord(topic="s", partition=1, offset=at, key=key, value=value, headers=headers, timestamp_ms=at)
        for at, (key, value, headers) in enumerate(shapes)
    ]
    cluster.logs[TopicPartition("s", 0)] = []
    cluster.logs[TopicPartition("s", 1)] = list(given)
    path = tmp_path / "records"
    path.write_text(run("topic", "consume", "s", "-f", "json")[1])
    for place in list(cluster.logs):
        cluster.logs[place].clear()
    assert run("topic", "produce", "-f", "json", "s", str(path)) == (0, "", "acknowledged 4 records\n")
    assert cluster.logs[TopicPartition("s", 1)] == given
    assert not cluster.logs[TopicPartition("s", 0)]


def test_each_line_may_name_its_topic(
    run: Any, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "records"
    path.write_text('{"topic": "t", "value": "x"}\n{"value": "y"}\n')
    with path.open("rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        code, _, err = run("topic", "produce", "-f", "json")
    assert (code, err) == (
        1,
        "barnabas: line 2 names no topic: give NAME, or a field 'topic' in each line\n",
    )
    assert cluster.logs[TopicPartition("t", 0)][-1].value == b"x"


def test_what_all_records_have(run: Any, cluster: FakeCluster, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("x\n\n")
    words = ("-K", "k", "-H", "h=1", "-p", "1", "-Z", "-z", "zstd")
    assert run("topic", "produce", "t", str(path), *words)[0] == 0
    assert cluster.compression == "zstd"
    assert ("send", "t", [b"x", None], [b"k", b"k"]) in cluster.calls
    assert ("columns", [[("h", b"1")]] * 2, 1) in cluster.calls
    assert run("topic", "produce", "t", str(path), *words, "--timestamp", "1970-01-01T00:00:01Z")[0] == 0
    record = cluster.logs[TopicPartition("t", 1)][-2]
    assert (record.key, record.value, record.timestamp_ms, list(record.headers)) == (b"k", b"x", 1000, [("h", b"1")])


@pytest.mark.parametrize("words", [(), ("-f", "json"), ("-f", "%k:%v")])
def test_a_typo_creates_no_topic(run: Any, cluster: FakeCluster, tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "lines"
    path.write_text('{"value": "1"}\n')
    code, _, err = run("topic", "produce", "tt", str(path), *words)
    assert code == 1 and "topic tt does not exist" in err
    assert not [call for call in cluster.calls if call[0] in ("send", "producer")]
    assert run("topic", "produce", "tt", str(path), "--create")[0] == 0


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"value": "x", "partition": 9}', "line 1: t has no partition 9, its partitions are 0 to 1; --repartition"),
        ('{"value_base64": "!"}', "line 1 has base64 that cannot be decoded"),
        ('{"key": "x"}', "line 1 has no field 'value'"),
        ("[]", "line 1 is no record"),
    ],
)
def test_a_bad_json_line_is_named(run: Any, tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "lines"
    path.write_text(line + "\n")
    code, _, err = run("topic", "produce", "t", "-f", "json", str(path))
    assert code == 1 and told in err and err.count("\n") == 1


def test_another_number_of_partitions(run: Any, cluster: FakeCluster, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text('{"value": "x", "partition": 9}\n')
    assert run("topic", "produce", "t", "-f", "json", str(path), "--repartition")[0] == 0
    assert run("topic", "produce", "t", "-f", "json", str(path), "-p", "1")[0] == 0
    assert [len(cluster.logs[TopicPartition("t", number)]) for number in (0, 1)] == [4, 2]
