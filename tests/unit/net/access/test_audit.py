"""The audit: a JSON line for each event, no more than a rate, and nothing that a client could forge a line with."""

import json

from barnabas.log.vocabulary.principal import Principal
from barnabas.net.server.access.audit import BURST_LINES, LINES_PER_S, MAX_PRINCIPALS, MAX_VALUE_LENGTH, AuditLog


class Someone:
    client_host = "10.0.0.9"

    def __init__(self, name: str = "alice") -> None:
        self.principal = Principal(name=name)


class Written:
    def __init__(self) -> None:
        self.now_ms = 0
        self.lines: list[str] = []
        self.audit = AuditLog(lambda: self.now_ms, self.lines.append)

    def last(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.lines[-1])
        return found


def test_lines_say_who_from_where_what_and_how_it_ended() -> None:
    written = Written()
    written.audit.denied(Someone(), "READ", "TOPIC", "t")
    who = {"principal": "User:alice", "host": "10.0.0.9"}
    assert written.last() == {"event": "denied", **who, "operation": "READ", "resource": "TOPIC", "name": "t"}
    written.audit.login(Someone(), mechanism="PLAIN", user="alice")
    assert written.last() == {"event": "login", **who, "mechanism": "PLAIN", "user": "alice"}
    written.audit.login(Someone(), mechanism="PLAIN", user="bob", failure="wrong password")
    assert written.last()["event"] == "login_failed" and written.last()["reason"] == "wrong password"
    written.audit.changed(Someone(), "CREATE_TOPIC", target="t", outcome="done")
    assert written.last() == {"event": "changed", **who, "change": "CREATE_TOPIC", "target": "t", "outcome": "done"}


def test_the_rate_is_bounded_and_what_is_missing_is_counted() -> None:
    written = Written()
    for _ in range(BURST_LINES + 100):
        written.audit.denied(Someone(), "READ", "TOPIC", "t")
    assert len(written.lines) == BURST_LINES
    written.now_ms = 1_000
    for _ in range(2):
        written.audit.denied(Someone(), "READ", "TOPIC", "t")
    first, second = (json.loads(line) for line in written.lines[BURST_LINES:])
    assert first["suppressed"] == 100 and "suppressed" not in second
    for _ in range(BURST_LINES):
        written.audit.denied(Someone(), "READ", "TOPIC", "t")
    assert len(written.lines) == BURST_LINES + LINES_PER_S


def test_refusals_hide_no_change() -> None:
    written = Written()
    for _ in range(BURST_LINES + 100):
        written.audit.denied(Someone(), "READ", "TOPIC", "t")
        written.audit.login(Someone(), mechanism="PLAIN", user="bob", failure="wrong password")
    written.audit.changed(Someone(), "DELETE_TOPIC", target="t", outcome="done")
    assert written.last()["event"] == "changed" and "suppressed" not in written.last()
    written.audit.login(Someone(), mechanism="PLAIN", user="alice")
    assert written.last()["event"] == "login"


def test_nothing_that_a_client_may_cause_hides_the_change_of_another() -> None:
    """Requests that fail, logins that succeed, and changes of what the client may change."""
    written = Written()
    mallory = Someone("mallory")
    for _ in range(BURST_LINES + 100):
        written.audit.changed(mallory, "DELETE_TOPICS", target="t", outcome="TOPIC_AUTHORIZATION_FAILED")
        written.audit.login(mallory, mechanism="PLAIN", user="mallory")
        written.audit.changed(mallory, "ALTER_CONFIGS", target="own", outcome="TOPIC_AUTHORIZATION_FAILED,done")
    assert len(written.lines) == 3 * BURST_LINES
    written.audit.changed(Someone(), "CREATE_ACLS", target="User:mallory", outcome="done")
    assert written.last()["principal"] == "User:alice" and "suppressed" not in written.last()


def test_the_rates_of_many_principals_take_little_memory() -> None:
    written = Written()
    for number in range(MAX_PRINCIPALS + 10):
        written.audit.changed(Someone(f"user-{number}"), "CREATE_TOPIC", target="t", outcome="done")
        written.audit.changed(Someone(), "CREATE_TOPIC", target="t", outcome="done")
    assert len(written.audit._changes) == MAX_PRINCIPALS
    assert "User:alice" in written.audit._changes


def test_a_value_makes_neither_another_line_nor_a_long_one() -> None:
    written = Written()
    written.audit.denied(Someone(), "READ", "TOPIC", 't"}\n{"event": "login"' + "x" * 10_000 + "\u2028")
    (line,) = written.lines
    assert "\n" not in line and line.isascii() and len(line) < MAX_VALUE_LENGTH + 300
