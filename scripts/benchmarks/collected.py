"""`scripts/benchmark collect`: how many lines of an access log `barnabas collect` sends in a second, and in a second of one core.

A broker and the collector are processes of this machine. The file repeats the lines of one that is given; the collector starts,
reads it to its end and stops. The start is measured with an empty file, and subtracted.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from clusters import Cluster

WAIT_S = 600.0
LINE = b'10.0.0.%d - - [17/May/2015:10:05:%02d +0000] "GET /page/%d HTTP/1.1" 200 %d "http://example.com/%d" "Mozilla/5.0"\n'


class _Cost(NamedTuple):
    elapsed_s: float
    cpu_s: float


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark collect", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="an access log whose lines are repeated; default: made ones"
    )
    parser.add_argument("--lines", type=int, default=500_000)
    options = parser.parse_args(arguments)
    with Cluster(1) as cluster, tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        count = _write(folder / "web.log", options.log, options.lines)
        (folder / "empty.log").touch()
        for label, words in (("lines as they are", []), ("--parse access", ["--parse", "access"])):
            topic = "lines" if not words else "parsed"
            start = _collected(cluster.bootstrap, folder / "empty.log", f"{topic}-start", words)
            whole = _collected(cluster.bootstrap, folder / "web.log", topic, words)
            elapsed_s, cpu_s = whole.elapsed_s - start.elapsed_s, whole.cpu_s - start.cpu_s
            print(
                f"{label}: {count} lines, {count / elapsed_s:,.0f} lines/s, {count / cpu_s:,.0f} lines/s of one core"
                f" (start: {start.elapsed_s:.1f} s)"
            )
    return 0


def _write(path: Path, log: Path | None, lines: int) -> int:
    if log is None:
        path.write_bytes(b"".join(LINE % (n % 256, n % 60, n, n % 9_999, n % 97) for n in range(lines)))
        return lines
    content = log.read_bytes()
    repeats = max(1, round(lines / content.count(b"\n")))
    with path.open("wb") as file:
        for _ in range(repeats):
            file.write(content)
    return repeats * content.count(b"\n")


def _collected(bootstrap: str, path: Path, topic: str, words: Sequence[str]) -> _Cost:
    """Of one collector, from its start to its end."""
    program = [sys.executable, "-m", "barnabas", "--bootstrap", bootstrap]
    subprocess.run([*program, "topic", "create", topic, "--if-not-exists"], check=True, stdout=subprocess.DEVNULL)
    before, begun_s = _cpu_s(), time.monotonic()
    command = [*program, "collect", str(path), "--topic", topic, "--name", topic, "--once", *words]
    # The times of old logs are past the retention of the topic, which deletes nothing while this runs.
    subprocess.run(command, check=True, timeout=WAIT_S, env=os.environ, stderr=subprocess.DEVNULL)
    return _Cost(elapsed_s=time.monotonic() - begun_s, cpu_s=_cpu_s() - before)


def _cpu_s() -> float:
    """Of the children that have ended; the broker has not."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
