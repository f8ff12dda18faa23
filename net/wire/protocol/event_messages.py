"""Events of the cluster, and the question for those that one broker keeps. Each broker answers for itself; `Admin.events` merges.

An event of the committed metadata is derived by every broker from the same records: its `place` is the same on all of them. Any
other event is known only to the broker that saw it.
"""

from enum import StrEnum
from typing import Final

from msgspec import field

from barnabas.log.vocabulary.message import Items, Message, Texts

NOT_COMMITTED: Final = -1  # the offset of an event that is not of the metadata
NEWEST: Final = -1  # `after` of a question for the newest events
MAX_PAGE: Final = 1_000  # events of one answer: some 300 KB
MAX_WAIT_MS: Final = 30_000  # of a long poll: the time that clients wait for an answer


class EventKind(StrEnum):
    """Each kind has its own ring, so that many events of one kind never displace those of another."""

    CONTROLLER = "controller"
    BROKER = "broker"
    ELECTION = "election"
    ISR = "isr"
    MOVE = "move"
    FOLDER = "folder"
    TOPIC = "topic"
    CONFIG = "config"
    METADATA = "metadata"  # what this broker cannot know of the metadata's past
    REBALANCE = "rebalance"
    LOGIN = "login"
    FAILED_LOGIN = "failed_login"
    DENIED = "denied"
    CHANGE = "change"
    FAILED_CHANGE = "failed_change"


class ClusterEvent(Message, frozen=True, kw_only=True):
    """`number` rises on the broker that keeps the event, also after its restarts. `at_ms` is the wall clock of that broker when
    it applied the change, since records of the metadata carry no time; or when it saw the login, the refusal, the rebalance."""

    number: int
    at_ms: int
    kind: str
    name: str  # what happened, as in the log: `event=NAME`
    fields: Texts = field(default_factory=dict)
    topic: str = ""
    brokers: Items[int] = ()  # that it is about
    offset: int = NOT_COMMITTED  # of the metadata
    index: int = 0  # among the events of this offset
    recovery_epoch: int = 0  # of the metadata: after `cluster recover`, offsets are used a second time
    is_late: bool = False  # it happened before this broker had caught up with its cluster: at `at_ms` or earlier

    @property
    def place(self) -> tuple[int, int, int] | None:
        """In the committed metadata of the cluster; None: only this broker knows of the event."""
        return None if self.offset == NOT_COMMITTED else (self.recovery_epoch, self.offset, self.index)


class EventsRequest(Message, frozen=True, kw_only=True):
    """To one broker, about the events that it keeps. `after` NEWEST: the newest ones; else the oldest ones behind that number."""

    after: int = NEWEST
    since_ms: int = -1  # wall clock of the broker
    kinds: Items[str] = ()  # or names; none: all
    topic: str = ""
    broker: int = -1
    limit: int = MAX_PAGE
    max_wait_ms: int = 0  # for the first event, if there is none


class ForgottenEvents(Message, frozen=True, kw_only=True):
    """The ring of this kind was full."""

    kind: str
    count: int
    until_ms: int  # the time of the newest one


class EventsResponse(Message, frozen=True, kw_only=True):
    node_id: int
    events: Items[ClusterEvent]  # the oldest first
    last: int  # `after` of the next question
    has_more: bool = False  # behind `last` there are more; of NEWEST: there are older ones
    forgotten: Items[ForgottenEvents] = ()  # of the kinds asked for, since the start of the process
    unconfirmed_ms: int = 0  # the time since a leader of the quorum has confirmed this broker's metadata
