"""What only a real process shows: pipes that break, stdin that waits, interrupts. The cluster is still one in memory."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from barnabas.net.cli.frame.exit_codes import message_of

TESTS: Final = Path(__file__).resolve().parents[3]
WAIT_S: Final = 30
PROGRAM: Final = """
import sys
from barnabas.net.cli.main import main
from unit.net.cli.fake_cluster import FakeCluster
cluster = FakeCluster()
cluster.add("t", *(b"%d" % number for number in range(200_000)))
code = main(sys.argv[1:], connector=cluster)
print(sum(len(call[2]) for call in cluster.calls if call[0] == "send"), file=sys.stderr)
raise SystemExit(code)
"""


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    with start("topic", "consume", "t") as process:
        assert process.stdin and process.stdout and process.stderr
        assert process.stdout.readline() == b"0\n"
        process.stdout.close()
        assert process.stderr.read() == b"0\n"
        assert process.wait(WAIT_S) == 0


def test_lines_come_through_a_pipe() -> None:
    with start("topic", "produce", "t") as process:
        _, told = process.communicate(b"a\nb\nc", timeout=WAIT_S)
        assert process.returncode == 0
        assert told == b"acknowledged 3 records\n3\n"


def test_an_interrupt_while_stdin_waits_is_quiet() -> None:
    with start("topic", "produce", "t") as process:
        assert process.stdin and process.stdout and process.stderr
        # More than a pipe holds: when this write returns, the command reads, so the interrupt meets it at work.
        process.stdin.write(b"line\n" * 100_000)
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
        assert process.wait(WAIT_S) == 130
        assert b"Traceback" not in told


def test_an_interrupt_during_the_imports_is_quiet() -> None:
    program = """
import sys
class Interrupted:
    def find_spec(self, name, *_):
        if name == "barnabas.net.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from barnabas.__main__ import main
raise SystemExit(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")


def test_a_place_that_cannot_be_written_is_told_with_the_cure() -> None:
    for number in (errno.EROFS, errno.EACCES, errno.ENOSPC):
        told = message_of(OSError(number, os.strerror(number), "/x/0"))
        assert re.fullmatch(rf"/x/0: {os.strerror(number)}; .*\bname a.* file or folder.*", told)
    assert message_of(FileNotFoundError(errno.ENOENT, "No such file", "/x")) == "[Errno 2] No such file: '/x'"
