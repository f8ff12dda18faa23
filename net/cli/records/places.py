"""Where a reader starts and ends: `-o start`, `-10`, `@-1h..@2026-11-24T10:00Z`. Words in, offsets out."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.group_seek import positions

from ..frame.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.client.admin.admin import Admin

WHERES: Final = (
    "start, end, an offset N, -N (the last N), or a time: @MILLISECONDS, @2026-11-24T10:00Z (UTC unless it has a zone), "
    "@-90m before now (s, m, h, d, w); A..B is a range without B"
)
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_RELATIVE: Final = re.compile(r"-([0-9]{1,9})([smhdw])")
_OFFSET: Final = re.compile(r"-?[0-9]{1,18}")


class Span(NamedTuple):
    """Two positions in the words of `positions` (start, end, N, @ms), or -N: the last N. An empty end: the end of the log."""

    first: str
    end: str


def span_of(text: str, now_ms: int) -> Span:
    """Parse -o. Raises CommandError, which lists what can be given."""
    first, dots, end = text.partition("..")
    return Span(_where(first or "start", text, now_ms), _where(end, text, now_ms) if dots and end else "")


def _where(text: str, given: str, now_ms: int) -> str:
    if text in ("start", "end") or _OFFSET.fullmatch(text):
        return text
    if text.startswith("@"):
        return f"@{time_ms(text[1:], f'-o {given}', now_ms)}"
    raise CommandError(f"-o {given}: give {WHERES}", ExitCode.USAGE)


def time_ms(text: str, option: str, now_ms: int) -> int:
    """Milliseconds since 1970 of a time as people write it. Raises CommandError."""
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    if relative := _RELATIVE.fullmatch(text):
        return max(0, now_ms - int(relative[1]) * _UNITS_MS[relative[2]])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(
            f"{option}: {text} is no time; give milliseconds since 1970, 2026-11-24T10:00Z, or -90m (s, m, h, d, w)",
            ExitCode.USAGE,
        ) from None
    return max(0, int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000))


async def offsets_of(
    admin: "Admin", partitions: Iterable[TopicPartition], where: str, *, isolation_level: str
) -> Mapping[TopicPartition, int]:
    """The offset of each partition. `-N` counts offsets: compaction and transactions leave gaps, so it may be fewer records."""
    places = list(partitions)
    if not where.startswith("-"):
        return await positions(admin, places, where, isolation_level=isolation_level)
    starts = await positions(admin, places, "start", isolation_level=isolation_level)
    ends = await positions(admin, places, "end", isolation_level=isolation_level)
    return {place: max(starts[place], ends[place] + int(where)) for place in places}
