"""The messages between voters as values.

`kraft.raft.net.message_codec` encodes and decodes them, and checks what it receives: the fields of these values are in the range
that consensus relies on.
"""

from dataclasses import dataclass
from typing import ClassVar

from ...quorum.formation import VoterState
from ...quorum.journal_format import Entry

Chunk = tuple[tuple[int, int, bytes], bool, bool]  # (snapshot size, position, bytes), is first, is last


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEntries:
    """From the leader. `entries` follow the one at `prev_index`; without entries it is a heartbeat."""

    term: int
    commit_index: int
    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSnapshot:
    """From the leader, instead of entries that it has no more. `chunk` None: the next one follows later."""

    term: int
    commit_index: int
    chunk: Chunk | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendReply:
    """`is_success`: everything before `next_index` is durable. `is_reset`: the leader must continue at `next_index`."""

    term: int
    next_index: int
    is_reset: bool
    is_success: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestVote:
    """`is_transfer`: the leader itself has asked this candidate to take over."""

    term: int
    last_log_index: int
    last_log_term: int
    is_transfer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPreVote:
    """`term` is the one that the sender would campaign in."""

    term: int
    last_log_index: int
    last_log_term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreVote:
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleTerm:
    """The answer to a message of an earlier term."""

    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutNow:
    """From the leader: campaign at once, and take over."""

    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """From the leader to a blank voter: what is up to `index` includes all that the voter may have forgotten."""

    term: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FormQuery:
    term: ClassVar[int] = 0  # formation comes before any term
    nonce: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FormState:
    term: ClassVar[int] = 0
    nonce: int
    state: VoterState


@dataclass(frozen=True, slots=True, kw_only=True)
class Formed:
    term: ClassVar[int] = 0
    nonce: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The sender is not blank any more."""

    term: ClassVar[int] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    term: ClassVar[int] = 0


Message = (
    AppendEntries
    | InstallSnapshot
    | AppendReply
    | RequestVote
    | Vote
    | RequestPreVote
    | PreVote
    | StaleTerm
    | TimeoutNow
    | Welcome
    | FormQuery
    | FormState
    | Formed
    | Joined
    | Ping
)
