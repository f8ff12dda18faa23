"""A follower as its leader sees it. Pure: times and offsets come in, nothing goes out."""

from .effects import UNKNOWN_BROKER_EPOCH

UNKNOWN_OFFSET = -1  # smaller than every offset, so a follower without a fetch holds back the high watermark
NEVER_MS = -(1 << 62)  # "caught up" longer ago than any lag limit


class Replica:
    """The leader's knowledge about one follower in one leader epoch. A new leader epoch starts with new replicas.

    `log_end_offset` is the offset of the follower's last fetch, so everything below it is in the follower's log: the fetch *is*
    the acknowledgement. It may decrease (the follower restarted); the high watermark does not.
    """

    __slots__ = (
        "broker_epoch",
        "last_caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "log_end_offset",
        "offset_served",
        "replica_id",
    )

    def __init__(self, replica_id: int, *, last_caught_up_ms: int = NEVER_MS) -> None:
        self.replica_id = replica_id
        self.log_end_offset = UNKNOWN_OFFSET
        self.offset_served = (
            UNKNOWN_OFFSET  # where it got records last: a follower that fetches there again has not accepted them
        )
        self.broker_epoch = UNKNOWN_BROKER_EPOCH  # never falls: older incarnations are ignored (KIP-903)
        self.last_fetch_ms = NEVER_MS  # never falls
        self.last_fetch_leader_end_offset = 0  # the leader's log end offset at that fetch; never falls
        # Falls only in `put_out`; never passes last_fetch_ms once there was a fetch.
        self.last_caught_up_ms = last_caught_up_ms

    def fetched(self, fetch_offset: int, *, broker_epoch: int, leader_end_offset: int, now_ms: int) -> None:
        """Note a fetch of this follower at `fetch_offset`.

        Kafka's definition of "caught up": either the follower has everything that the leader has now, or it has everything that
        the leader had at its previous fetch; then it was caught up at *that* time. Without the second half, a follower one round
        trip behind a busy leader would never count as caught up.
        """
        assert broker_epoch >= self.broker_epoch
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch_offset >= self.last_fetch_leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = fetch_offset
        self.broker_epoch = broker_epoch
        self.last_fetch_leader_end_offset = max(self.last_fetch_leader_end_offset, leader_end_offset)
        self.last_fetch_ms = max(self.last_fetch_ms, now_ms)

    def put_out(self) -> None:
        """It has left the ISR: its former position does not show whether it keeps up."""
        self.last_caught_up_ms = NEVER_MS

    def is_caught_up(self, *, leader_end_offset: int, now_ms: int, max_lag_ms: int) -> bool:
        """A follower that has everything is never late: the controller checks whether its broker is alive."""
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= max_lag_ms

    def __str__(self) -> str:
        return f"{self.replica_id}@{self.log_end_offset}/be{self.broker_epoch}"
