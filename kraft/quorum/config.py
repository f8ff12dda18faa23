"""Timing and limits of the quorum, with their reasons."""

from dataclasses import dataclass

MAX_COMMAND_BYTES = 1024 * 1024  # half a batch: pysyncobj's path for entries above a batch is broken (research 2o)
BATCH_BYTES = 2 * MAX_COMMAND_BYTES  # of one message with entries
MAX_PENDING_COMMANDS = 20_000  # queued or waiting for their commit; a controller has far fewer in flight
MAX_PENDING_BYTES = 64 * 1024 * 1024  # of queued commands, before any of them is in the log
MAX_APPENDS_PER_STEP = 2_000  # so that a burst does not delay heartbeats and votes
MAX_APPLIED_PER_STEP = 10_000  # the same for a follower that catches up
ENTRY_OVERHEAD_BYTES = 128  # of an entry in memory beside its command: a tuple, the header of its bytes, and its index
MAX_TERM = (
    1 << 62
)  # no election counts so far: a term from here on was forged or damaged, and the journal's field ends at 2^63
# A term that is further ahead raises our own term by this much at most, once per heartbeat: messages of a peer cannot exhaust the
# terms, and a voter that was away for a hundred thousand elections has caught up within half a minute.
MAX_TERM_STEP = 1_000
REFUSAL_LOG_INTERVAL_S = 10.0  # between two lines on messages that are not believed; they are counted meanwhile
LINK_LOSS_DELAY_S = (
    0.005,
    0.025,
)  # after the leader's link broke: a little more than it takes the others to see it, too
# The followers of a broken link campaign one after another, by their ids, with time for a vote and its two fsyncs in between:
# simultaneous candidates split the votes, which costs a second or two.
LINK_LOSS_STEP_S = 0.06
MIN_DEAD_LINK_S = 3.0  # three pings; a process that ends resets its connections at once, this is for hosts and cables
DEAD_LINK_TIMEOUTS = 3  # or as many of the longest election timeouts, if that is longer


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftTiming:
    """The defaults tolerate a broker that is busy for several 100 ms; kill -9 is detected by the broken link."""

    election_min_s: float = 1.0
    election_max_s: float = 2.0
    heartbeat_s: float = 0.2
    most_patience: int = 5  # while campaigns have no result, the timeouts grow up to so many times: 5 to 10 s
    # Below election_min_s: an isolated leader gives up before another one is elected, unless elections have failed lately.
    leader_fallback_s: float = 0.9

    @classmethod
    def of_election_timeout(cls, timeout_ms: int) -> "RaftTiming":
        """The defaults, stretched or shrunk to another shortest election timeout: their proportions are the invariants."""
        default = cls()
        factor = timeout_ms / 1000 / default.election_min_s
        return cls(
            election_min_s=default.election_min_s * factor,
            election_max_s=default.election_max_s * factor,
            heartbeat_s=default.heartbeat_s * factor,
            leader_fallback_s=default.leader_fallback_s * factor,
        )

    @property
    def dead_link_s(self) -> float:
        """A link without a message for so long is closed. A voter is silent while it waits for its disk, and the vote that it has
        written then is lost with the link: so this is longer than the flushes of a vote on slow disks."""
        return max(MIN_DEAD_LINK_S, DEAD_LINK_TIMEOUTS * self.election_max_s)

    def __post_init__(self) -> None:
        assert self.most_patience >= 1
        assert 3 * self.heartbeat_s < self.election_min_s < self.election_max_s
        assert self.heartbeat_s < self.leader_fallback_s < self.election_min_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPolicy:
    """When the journal is replaced by a snapshot. Each node varies the two limits a little, so that not all
    nodes pack at once."""

    entries: int = 200_000  # about a second of replay at start
    # The entries stay in memory, and a command may have a megabyte: without this limit, a client that commits offsets with long
    # metadata fills the memory of every voter. A replay at the start takes five times as much for a moment.
    size_bytes: int = 8 * 1024 * 1024
    interval_s: float = 1800.0
    interval_entries: int = 1_000  # a quiet cluster does not pack the same state repeatedly
