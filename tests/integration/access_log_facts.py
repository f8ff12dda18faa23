"""What a web server's log says, found without Spark: the oracle of the pipelines' tests. And the pipelines themselves, to import.

Pipelines are scripts, so their folder is not among Python's own; and Spark's workers do not have it either: what they need of
a pipeline travels with it.
"""

import importlib
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
PIPELINES = ROOT / "scripts" / "pipelines"
LINE = re.compile(rb'(\S+) \S+ \S+ \[([^\]]+)\] "(\S+) ([^\s?]+)\S* [^"]*" (\d+) (\d+|-) "([^"]*)"')
PARTS = (".css", ".js", ".png", ".jpg", ".jpeg", ".gif", ".ico", ".svg", ".woff", ".ttf", ".eot")


def pipeline(name: str) -> ModuleType:
    if str(PIPELINES) not in sys.path:
        sys.path.append(str(PIPELINES))
    module = importlib.import_module(name)
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module


def log_path() -> Path | None:
    """Beside this checkout, or beside the one that this work tree belongs to."""
    candidates = (parent / "shared" / "data" / "apache_access.log" for parent in ROOT.parents)
    return next((path for path in candidates if path.exists()), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    client: str
    time: datetime
    path: str
    status: int
    size: int
    referrer: str


def parse(lines: Iterable[bytes]) -> list[Request]:
    found = []
    for line in lines:
        match = LINE.match(line)
        assert match is not None, line
        client, time, _, path, status, size, referrer = (item.decode() for item in match.groups())
        found.append(
            Request(
                client=client,
                time=datetime.strptime(time, "%d/%b/%Y:%H:%M:%S %z").astimezone(UTC).replace(tzinfo=None),
                path=path,
                status=int(status),
                size=0 if size == "-" else int(size),
                referrer=referrer,
            )
        )
    return found


def hour(time: datetime) -> datetime:
    return time.replace(minute=0, second=0)


def hours(requests: Iterable[Request]) -> set[tuple[datetime, int, int, int]]:
    """(start, requests, errors, bytes) of each hour."""
    by_hour = defaultdict(list)
    for request in requests:
        by_hour[hour(request.time)].append(request)
    return {
        (start, len(some), sum(item.status >= 400 for item in some), sum(item.size for item in some))
        for start, some in by_hour.items()
    }


def top_paths(requests: Iterable[Request], count: int) -> dict[datetime, list[tuple[int, str]]]:
    by_hour: dict[datetime, Counter[str]] = defaultdict(Counter)
    for request in requests:
        by_hour[hour(request.time)][request.path] += 1
    return {
        start: [(number, path) for path, number in sorted(paths.items(), key=lambda item: (-item[1], item[0]))[:count]]
        for start, paths in by_hour.items()
    }


def sessions(requests: Iterable[Request], gap: timedelta) -> set[tuple[str, datetime, datetime, int, int]]:
    """(client, start, last, requests, bytes)."""
    found: list[tuple[str, datetime, datetime, int, int]] = []
    for request in sorted(requests, key=lambda item: (item.client, item.time)):
        if found and found[-1][0] == request.client and request.time < found[-1][2] + gap:
            client, start, _, count, size = found.pop()
            found.append((client, start, request.time, count + 1, size + request.size))
        else:
            found.append((request.client, request.time, request.time, 1, request.size))
    return set(found)


def page_loads(requests: Iterable[Request], within: timedelta) -> Counter[tuple[str, str, datetime, str, datetime]]:
    """(client, page, page time, part, part time), as often as the log has it."""
    pages: dict[tuple[str, str], list[datetime]] = defaultdict(list)
    parts = []
    for request in requests:
        if request.path.endswith(PARTS):
            parts.append(request)
        else:
            pages[request.client, request.path].append(request.time)
    found: Counter[tuple[str, str, datetime, str, datetime]] = Counter()
    for part in parts:
        page = re.match(r"https?://[^/]+(/[^?#]*)", part.referrer)
        for time in pages.get((part.client, page[1]), ()) if page else ():
            if time <= part.time <= time + within:
                found[part.client, page[1] if page else "", time, part.path, part.time] += 1
    return found


def words(lines: Iterable[bytes]) -> Counter[str]:
    return Counter(word for line in lines for word in re.findall(r"[^\W\d_](?:[^\W_]|')*", line.decode().lower()))
