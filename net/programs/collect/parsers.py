"""Lines of well-known logs to JSON objects with the time of the event. Pure.

Each parser returns the value of the record and its time in ms since 1970, or None for a line that it cannot read.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec


class Parsed(NamedTuple):
    value: bytes
    timestamp_ms: int | None


Parser = Callable[[bytes, datetime], Parsed | None]  # a line, and the time now: some logs leave the year out

# Common and combined log format of Apache and nginx; what follows the combined fields is kept as `rest`.
ACCESS_LINE: Final = re.compile(
    r'(?P<client>\S+) (?P<identity>\S+) (?P<user>\S+) \[(?P<time>[^\]]{1,40})\] "(?P<request>[^"\\]*(?:\\.[^"\\]*)*)" '
    r"(?P<status>\d{3}) (?P<bytes>\d{1,19}|-)"
    r'(?: "(?P<referer>[^"\\]*(?:\\.[^"\\]*)*)" "(?P<agent>[^"\\]*(?:\\.[^"\\]*)*)")?(?: (?P<rest>.*))?'
)
_ACCESS_NAMES: Final = tuple(ACCESS_LINE.groupindex)
_ACCESS_TIME: Final = "%d/%b/%Y:%H:%M:%S %z"
_USUAL_CHARS: Final = len("17/May/2015:10:05:03 +0000")
_RFC5424: Final = re.compile(
    r"<(?P<priority>\d{1,3})>1 (?P<time>\S+) (?P<host>\S+) (?P<program>\S+) (?P<process>\S+) (?P<message_id>\S+) "
    r"(?P<data>-|(?:\[(?:[^\]\\]|\\.)*\])+)(?: (?P<message>.*))?",
    re.DOTALL,
)
_RFC3164: Final = re.compile(
    r"(?:<(?P<priority>\d{1,3})>)?(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) (?P<host>\S+) "
    r"(?P<program>[^\s:\[]{1,128})(?:\[(?P<process>[^\]]{1,64})\])?:? ?(?P<message>.*)",
    re.DOTALL,
)
_TIME_NAMES: Final = ("time", "timestamp", "@timestamp", "ts")
_NO_VALUE: Final = "-"
_FACILITIES: Final = 24 * 8
_decoder: Final = msgspec.json.Decoder(dict[str, Any])
_encode: Final = msgspec.json.Encoder().encode


def access_log(line: bytes, now: datetime) -> Parsed | None:
    """Common and combined log format, as Apache and nginx write it."""
    found = ACCESS_LINE.fullmatch(line.decode("utf-8", "replace"))
    if found is None:
        return None
    fields: dict[str, Any] = {
        name: text
        for name, text in zip(_ACCESS_NAMES, found.groups(), strict=True)
        if text is not None and text != _NO_VALUE
    }
    at = _access_time(fields["time"])
    if at is None:
        return None
    fields["time"], timestamp_ms = at
    fields["status"] = int(fields["status"])
    fields["bytes"] = int(fields.get("bytes", 0))
    parts = fields.get("request", "").split(" ")
    if len(parts) == 3:
        fields["method"], fields["path"], fields["protocol"] = parts
    return Parsed(_encode(fields), timestamp_ms)


def _access_time(text: str) -> tuple[str, int | None] | None:
    """The usual form without strptime, which takes longer than all the rest of a line."""
    hour, minute, second = text[12:14], text[15:17], text[18:20]
    separators = text[11:12] + text[14:15] + text[17:18] + text[20:21]
    is_usual = len(text) == _USUAL_CHARS and separators == "::: " and text.isascii()
    if not (is_usual and (hour + minute + second).isdecimal() and hour < "24" and minute < "60" and second < "60"):
        return _strptime(text)
    day = _strptime(f"{text[:11]}:00:00:00{text[20:]}")
    if day is None or day[1] is None:
        return _strptime(text)
    date, _, zone = day[0].partition("T00:00:00")
    after_midnight_s = int(hour) * 3_600 + int(minute) * 60 + int(second)
    return f"{date}T{hour}:{minute}:{second}{zone}", day[1] + after_midnight_s * 1_000


@lru_cache(maxsize=1_024)
def _strptime(text: str) -> tuple[str, int | None] | None:
    try:
        at = datetime.strptime(text, _ACCESS_TIME)
    except ValueError:
        return None
    return at.isoformat(), _ms(at)


def json_lines(line: bytes, now: datetime) -> Parsed | None:
    """One JSON object a line; its bytes stay as they are."""
    try:
        fields = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # the last: too deep; how deep depends on Python
        return None
    return Parsed(line, next((ms for name in _TIME_NAMES if (ms := _any_time(fields.get(name))) is not None), None))


def syslog(line: bytes, now: datetime) -> Parsed | None:
    """RFC 5424 and RFC 3164, with or without the priority, also with the ISO times of rsyslog."""
    text = line.decode("utf-8", "replace")
    found = _RFC5424.fullmatch(text) or _RFC3164.fullmatch(text)
    if found is None:
        return None
    fields: dict[str, Any] = {name: text for name, text in found.groupdict().items() if text not in (None, _NO_VALUE)}
    priority = fields.pop("priority", None)
    if priority is not None:
        if int(priority) >= _FACILITIES:
            return None
        fields["facility"], fields["severity"] = divmod(int(priority), 8)
    at = None
    if "time" in fields:
        at = _syslog_time(fields["time"], now)
        if at is None:
            return None
        fields["time"] = at.isoformat()
    return Parsed(_encode(fields), None if at is None else _ms(at))


def _syslog_time(text: str, now: datetime) -> datetime | None:
    """A time without a year is the newest that is not more than a day in the future; without a zone, that of this machine."""
    try:
        if text[0].isdigit():
            at = datetime.fromisoformat(text)
            return at if at.tzinfo is not None else at.replace(tzinfo=now.tzinfo)
        at = datetime.strptime(f"{now.year} {text}", "%Y %b %d %H:%M:%S").replace(tzinfo=now.tzinfo)
        return at if (at - now).days < 1 else at.replace(year=at.year - 1)
    except ValueError:
        return None


def _any_time(value: object) -> int | None:
    """ISO text, or seconds or milliseconds since 1970."""
    if isinstance(value, str):
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            return None
        return _ms(at if at.tzinfo is not None else at.replace(tzinfo=UTC))
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e14:
        return None
    return int(value if value >= 1e11 else value * 1_000)  # 1e11 ms is 1973, 1e11 s the year 5138


def _ms(at: datetime) -> int | None:
    ms = int(at.timestamp() * 1_000)
    return ms if ms >= 0 else None  # a record's time cannot be before 1970


PARSERS: Final[Mapping[str, Parser]] = {"access": access_log, "json": json_lines, "syslog": syslog}
