"""Nothing that a stranger writes forges a line of the log or commands a terminal."""

import io
import json
import logging
import sys
from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.net.base.printable import JsonFormatter, PrintableFormatter, key_values, printable
from barnabas.net.cli.frame.exit_codes import message_of
from barnabas.net.cli.frame.output import Output

EVIL = "x\n2026-11-22 00:00:00,000 CRITICAL barnabas.broker FORGED\x1b[2J\r\x85\u2028\u202e\x9b31m"
ESCAPED = "x\\n2026-11-22 00:00:00,000 CRITICAL barnabas.broker FORGED\\x1b[2J\\r\\x85\\u2028\\u202e\\x9b31m"


def logged(message: str, *arguments: object, error: Exception | None = None) -> list[str]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PrintableFormatter("%(levelname)s %(name)s %(message)s"))
    logger = logging.Logger("barnabas.test")
    logger.addHandler(handler)
    if error is None:
        logger.warning(message, *arguments, stack_info=False)
    else:
        logger.error(message, *arguments, exc_info=error)
    return stream.getvalue().splitlines(keepends=True)


@given(st.text(alphabet=st.characters(), max_size=60))
def test_any_text_becomes_one_line_of_printable_characters(text: str) -> None:
    assert printable(text).isprintable()
    if text.isprintable():
        assert printable(text) == text


def test_letters_of_every_script_stay() -> None:
    assert printable("größe ☂ 日本 'x'") == "größe ☂ 日本 'x'"


def test_an_argument_of_a_message_forges_no_line() -> None:
    assert logged("client=%s gone", EVIL) == [f"WARNING barnabas.test client={ESCAPED} gone\n"]


def test_the_text_of_an_exception_forges_no_line() -> None:
    try:
        raise ValueError(EVIL)
    except ValueError as error:
        lines = logged("failed", error=error)
    assert lines[0] == "ERROR barnabas.test failed\n"
    assert len(lines) > 3 and all(line.startswith("    ") for line in lines[1:])
    assert not any("\x1b" in line for line in lines)


def test_tables_objects_and_notes_of_the_command_are_printable_and_aligned() -> None:
    out = Output("text", io.StringIO(), io.StringIO())
    out.rows([{"group": EVIL, "lag": 1}, {"group": "g", "lag": 2}], ("group", "lag"))
    out.record({"group": EVIL, "members": [EVIL]})
    out.line(EVIL, {})
    out.text(EVIL)
    out.note(EVIL)
    assert isinstance(out.stdout, io.StringIO) and isinstance(out.stderr, io.StringIO)
    lines = out.stdout.getvalue().split("\n")
    assert len(lines) == 8 and all(line.isprintable() for line in lines)
    assert lines[1] == f"{ESCAPED}  1" and lines[2] == "g" + " " * (len(ESCAPED) + 1) + "2"
    assert out.stderr.getvalue() == ESCAPED + "\n"


def test_json_has_what_was_said() -> None:
    out = Output("json", io.StringIO(), io.StringIO())
    out.record({"group": EVIL})
    assert isinstance(out.stdout, io.StringIO)
    assert json.loads(out.stdout.getvalue()) == {"group": EVIL}


def test_an_error_of_the_command_is_one_printable_line() -> None:
    assert message_of(InvalidRequestError(f"group {EVIL}")).isprintable()


def test_values_that_could_look_like_something_else_are_quoted() -> None:
    assert key_values({"a": "1", "b": "t-0,t-1", "c": ""}) == 'a=1 b=t-0,t-1 c=""'
    line = key_values({"group": 'x event=login\nuser="root"\u202e\\', "z": "end"})
    assert line == 'group="x event=login\\nuser=\\"root\\"\\u202e\\\\" z=end'
    assert line.isprintable()


def test_a_line_as_json() -> None:
    record = logging.LogRecord("barnabas.x", logging.WARNING, "f.py", 1, "a=%s", ("1\n2",), None)
    found = json.loads(JsonFormatter().format(record))
    assert (found["level"], found["logger"], found["message"]) == ("WARNING", "barnabas.x", "a=1\\n2")
    assert datetime.fromisoformat(found["time"]).utcoffset() is not None
    try:
        raise ValueError("x")
    except ValueError:
        record.exc_info = sys.exc_info()
    line = JsonFormatter().format(record)
    assert "\n" not in line and "ValueError" in json.loads(line)["traceback"]
    shown = PrintableFormatter("%(asctime)s %(message)s").format(record)
    assert datetime.fromisoformat(shown.split()[0]).utcoffset() is not None
