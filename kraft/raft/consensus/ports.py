"""What the shell hands to the parts of consensus: time, chance, messages, a next step, and an ear for what happens."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from ...quorum.config import RaftTiming
from ..net.messages import Message


class Severity(IntEnum):
    """The numbers of the logging module."""

    INFO = 20
    WARNING = 30
    ERROR = 40
    CRITICAL = 50


@dataclass(frozen=True, slots=True)
class RaftEvent:
    """`text` is one line, `what key=value`. `error` has the traceback of an internal error."""

    severity: Severity
    text: str
    error: Exception | None = None


Report = Callable[[RaftEvent], None]


def info(text: str) -> RaftEvent:
    return RaftEvent(Severity.INFO, text)


def warning(text: str) -> RaftEvent:
    return RaftEvent(Severity.WARNING, text)


class MessageTransport(Protocol):
    def set_peers(self, peers: dict[int, tuple[str, int]]) -> None:
        """Keep links to these, at these addresses, and to no other node."""

    def send(self, peer_id: int, message: Message) -> bool: ...

    def backlog_bytes(self, peer_id: int) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """`wake` asks for a step soon, `wake_later` for one after a delay in seconds."""

    transport: MessageTransport
    clock: Callable[[], float]
    rng: random.Random
    timing: RaftTiming
    wake: Callable[[], None]
    wake_later: Callable[[float], None]
    report: Report
