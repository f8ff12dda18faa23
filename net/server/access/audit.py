"""`barnabas.audit`: who was refused what, who logged in, and who has changed what. One JSON line for each event.

Clients cause these lines, so their rate is bounded: beyond it, events are counted, and the next line tells how many are missing.
Logins, what was refused or has failed, and the changes of each principal have rates of their own: none hides the others. Each is
also an event of the cluster, with a rate that `net/metadata/events` decides on.
Values come from clients, too: they are cut, and JSON escapes what could look like another line. There are no secrets here:
callers pass names only.
"""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from barnabas.log.vocabulary.access.acls import ResourceKind
from barnabas.log.vocabulary.principal import Principal
from barnabas.net.wire.protocol.event_messages import EventKind

from .changes import DONE

logger = logging.getLogger("barnabas.audit")

LINES_PER_S: Final = 50  # 10 KB/s at most; an administrator's script stays below
BURST_LINES: Final = 500
MAX_PRINCIPALS: Final = 256  # with a rate of their own; the one whose last change is the oldest is forgotten first
MAX_VALUE_LENGTH: Final = 300  # characters of one value


class Subject(Protocol):
    """Who did it, and from where."""

    @property
    def client_host(self) -> str: ...
    @property
    def principal(self) -> Principal: ...


class Recorder(Protocol):
    """Where events of the cluster are kept."""

    def __call__(self, kind: EventKind, name: str, fields: Mapping[str, str], /, *, topic: str = "") -> bool: ...


def silent(line: str) -> None:
    """There is no audit."""


def unrecorded(kind: EventKind, name: str, fields: Mapping[str, str], /, *, topic: str = "") -> bool:
    """Events are not kept."""
    return False


class _Budget:
    """Lines that may be written. Invariant: 0 <= tokens <= BURST_LINES."""

    __slots__ = ("_filled_ms", "_tokens", "suppressed")

    def __init__(self, now_ms: int) -> None:
        self._tokens = float(BURST_LINES)
        self._filled_ms = now_ms
        self.suppressed = 0  # events since the last line

    def takes(self, now_ms: int) -> bool:
        self._tokens = min(self._tokens + (now_ms - self._filled_ms) * LINES_PER_S / 1000, BURST_LINES)
        self._filled_ms = now_ms
        if self._tokens < 1:
            self.suppressed += 1
            return False
        self._tokens -= 1
        return True


class AuditLog:
    """A client that is refused often, logs in often or changes much must not hide what another one has changed."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        write: Callable[[str], None] = logger.info,
        *,
        record: Recorder = unrecorded,
    ) -> None:
        """`now_ms` is a monotonic clock."""
        self._now_ms = now_ms
        self._write = write
        self._record = record
        self._logins, self._refused = _Budget(now_ms()), _Budget(now_ms())
        self._changes: dict[str, _Budget] = {}  # by principal, the last one to change something last

    def denied(self, client: Subject, operation: str, kind: str, name: str) -> None:
        """A client has no permission."""
        topic = name if kind == ResourceKind.TOPIC.name else ""
        fields = {"operation": operation, "resource": kind, "name": name}
        self._event(self._refused, EventKind.DENIED, "denied", client, fields, topic)

    def login(self, client: Subject, *, mechanism: str, user: str, failure: str = "") -> None:
        """The first login of a connection has succeeded, or a login has failed. `failure` says why, and never what was sent."""
        fields = {"mechanism": mechanism, "user": user, "reason": failure}
        if failure:
            self._event(self._refused, EventKind.FAILED_LOGIN, "login_failed", client, fields)
        else:
            self._event(self._logins, EventKind.LOGIN, "login", client, fields)

    def changed(self, client: Subject, change: str, *, target: str, outcome: str) -> None:
        """An administrative request was executed or has failed: `outcome` is DONE, the name of the error, or both for parts."""
        is_done = DONE in outcome.split(",")
        budget = self._changes_of(str(client.principal)) if is_done else self._refused
        kind = EventKind.CHANGE if is_done else EventKind.FAILED_CHANGE
        self._event(budget, kind, "changed", client, {"change": change, "target": target, "outcome": outcome})

    def _changes_of(self, principal: str) -> _Budget:
        budget = self._changes.pop(principal, None) or _Budget(self._now_ms())
        self._changes[principal] = budget
        if len(self._changes) > MAX_PRINCIPALS:
            del self._changes[next(iter(self._changes))]
        return budget

    def _event(
        self,
        budget: _Budget,
        kind: EventKind,
        event: str,
        client: Subject,
        fields: Mapping[str, str],
        topic: str = "",
    ) -> None:
        told = {"principal": str(client.principal), "host": client.client_host}
        told |= {key: value for key, value in fields.items() if value}
        self._record(kind, event, told, topic=topic[:MAX_VALUE_LENGTH])
        if not budget.takes(self._now_ms()):
            return
        line: dict[str, object] = {"event": event, **{key: _cut(value) for key, value in told.items()}}
        if budget.suppressed:
            line["suppressed"], budget.suppressed = budget.suppressed, 0
        self._write(json.dumps(line))


def _cut(value: str) -> str:
    return value if len(value) <= MAX_VALUE_LENGTH else f"{value[:MAX_VALUE_LENGTH]}..."
