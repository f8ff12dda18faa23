"""Lines of well-known logs."""

import json
from datetime import UTC, datetime, timedelta, timezone
from random import Random

import pytest

from barnabas.net.programs.collect.parsers import PARSERS, _access_time, access_log, json_lines, syslog

NOW = datetime(2026, 1, 2, 12, 0, tzinfo=timezone(timedelta(hours=2)))


def ms(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp() * 1_000)  # type: ignore[arg-type, misc]


def test_the_combined_format() -> None:
    line = b'1.2.3.4 - ann [17/May/2015:10:05:03 +0200] "GET /a?b=\\"c\\" HTTP/1.1" 404 512 "http://x/" "Agent (1; 2)" 0.003'
    parsed = access_log(line, NOW)
    assert parsed is not None and parsed.timestamp_ms == ms(2015, 5, 17, 8, 5, 3)
    assert json.loads(parsed.value) == {
        "client": "1.2.3.4", "user": "ann", "time": "2015-05-17T10:05:03+02:00", "request": 'GET /a?b=\\"c\\" HTTP/1.1',
        "method": "GET", "path": '/a?b=\\"c\\"', "protocol": "HTTP/1.1", "status": 404, "bytes": 512,
        "referer": "http://x/", "agent": "Agent (1; 2)", "rest": "0.003",
    }  # fmt: skip


def test_the_common_format_and_requests_that_are_none() -> None:
    parsed = access_log(b'::1 - - [17/May/2015:10:05:03 +0000] "\\x16\\x03" 400 -', NOW)
    assert parsed is not None
    found = json.loads(parsed.value)
    assert (found["status"], found["bytes"], found["request"], "method" in found) == (400, 0, "\\x16\\x03", False)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"hello",
        b'1.2.3.4 - - [17/Mai/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1',
        b'1.2.3.4 - - [99/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1',
        b'1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1 200 1',
        b'1.2.3.4 - - [17/May/2015:10:05:03 +0000] "' + b'\\"' * 20_000,
        b'1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 '
        + b"1" * 5_000,  # more digits than int() takes
    ],
)
def test_what_is_no_access_log(line: bytes) -> None:
    assert access_log(line, NOW) is None


@pytest.mark.parametrize(
    ("line", "timestamp_ms"),
    [
        (b'{"a": 1}', None),
        (b'{"time": "2026-01-02T03:04:05Z"}', ms(2026, 1, 2, 3, 4, 5)),
        (b'{"ts": 1767323045.5}', 1_767_323_045_500),
        (b'{"timestamp": 1767323045500}', 1_767_323_045_500),
        (b'{"time": "yesterday", "ts": 1767323045}', 1_767_323_045_000),
        (b'{"time": true, "ts": -5}', None),
    ],
)
def test_json_stays_as_it_is(line: bytes, timestamp_ms: int | None) -> None:
    assert json_lines(line, NOW) == (line, timestamp_ms)


@pytest.mark.parametrize(
    "line", [b"", b"[1]", b"1", b'{"a":', b"\xff", b'{"a": 1} x', b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"]
)
def test_what_is_no_json_object(line: bytes) -> None:
    assert json_lines(line, NOW) is None


@pytest.mark.parametrize(
    ("line", "fields", "timestamp_ms"),
    [
        (
            b"<34>Jan  2 09:14:15 web sshd[42]: Failed: x",
            {"facility": 4, "severity": 2, "host": "web", "program": "sshd", "process": "42", "message": "Failed: x"},
            ms(2026, 1, 2, 7, 14, 15),
        ),
        (
            b"Dec 31 23:59:59 web cron: done",  # of the year before
            {"host": "web", "program": "cron", "message": "done"},
            ms(2025, 12, 31, 21, 59, 59),
        ),
        (
            b"2026-01-02T03:04:05.678+00:00 web app: hi",
            {"host": "web", "program": "app", "message": "hi"},
            ms(2026, 1, 2, 3, 4, 5) + 678,
        ),
        (
            b'<165>1 2026-01-02T03:04:05Z web app 7 ID47 [a@1 b="c\\]"] hello',
            {"facility": 20, "severity": 5, "host": "web", "program": "app", "process": "7", "message_id": "ID47",
             "data": '[a@1 b="c\\]"]', "message": "hello"},
            ms(2026, 1, 2, 3, 4, 5),
        ),
        (b"<13>1 - - - - - -", {"facility": 1, "severity": 5}, None),
    ],
)  # fmt: skip
def test_syslog(line: bytes, fields: dict[str, object], timestamp_ms: int | None) -> None:
    parsed = syslog(line, NOW)
    assert parsed is not None and parsed.timestamp_ms == timestamp_ms
    assert {name: value for name, value in json.loads(parsed.value).items() if name != "time"} == fields


@pytest.mark.parametrize(
    "line", [b"", b"hello", b"<999>Jan  2 09:14:15 web a: b", b"Jan 99 09:14:15 web a: b", b"<1>1 x"]
)
def test_what_is_no_syslog(line: bytes) -> None:
    assert syslog(line, NOW) is None


@pytest.mark.parametrize("name", PARSERS)
def test_no_line_takes_long_or_raises(name: str) -> None:
    """Nested repetitions would take for ever here."""
    for part in (b" ", b'"', b"\\", b"[", b"a", b"<1>", b'\\"', b"[a]", b"\xff", b"-"):
        PARSERS[name](part * 50_000, NOW)
        PARSERS[name](b'1 - - [17/May/2015:10:05:03 +0000] "' + part * 50_000, NOW)
        PARSERS[name](b"<1>1 - - - - - " + part * 50_000, NOW)


def test_times_of_access_logs_are_those_of_strptime() -> None:
    """They are read in another way, which is faster. Wrong ones are refused by both."""
    random = Random(7)
    months = ["Jan", "Feb", "Mar", "May", "Jun", "Dec", "dec", "Xyz"]
    for _ in range(5_000):
        clock = ":".join(f"{random.randrange(limit):02d}" for limit in (26, 62, 63))
        zone = random.choice(("+0000", "-0930", "+1400", "+2400", "+0060"))
        text = f"{random.randrange(33):02d}/{random.choice(months)}/{random.choice((1969, 1970, 2024, 2026))}:{clock} {zone}"
        if random.random() < 0.2:
            place = random.randrange(len(text))
            text = text[:place] + random.choice("x:1 9²") + text[place + 1 :]
        try:
            at = datetime.strptime(text, "%d/%b/%Y:%H:%M:%S %z")
        except ValueError:
            assert _access_time(text) is None, text
            continue
        ms = int(at.timestamp() * 1_000)
        assert _access_time(text) == (at.isoformat(), ms if ms >= 0 else None), text
