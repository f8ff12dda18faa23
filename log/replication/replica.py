"""The followers of a partition as their leader sees them. Pure: times and offsets come in, nothing goes out."""

from collections.abc import Collection, Iterable

from .effects import UNKNOWN_BROKER_EPOCH, IsrMember

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
        "log_start_offset",
        "offset_served",
        "readers_until_ms",
        "replica_id",
        "told_high_watermark",
    )

    def __init__(self, replica_id: int, *, last_caught_up_ms: int = NEVER_MS) -> None:
        self.replica_id = replica_id
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET  # its broker may be of a version that does not tell it
        self.offset_served = (
            UNKNOWN_OFFSET  # where it got records last: a follower that fetches there again has not accepted them
        )
        self.broker_epoch = UNKNOWN_BROKER_EPOCH  # never falls: older incarnations are ignored (KIP-903)
        self.last_fetch_ms = NEVER_MS  # never falls
        self.last_fetch_leader_end_offset = 0  # the leader's log end offset at that fetch; never falls
        self.told_high_watermark = UNKNOWN_OFFSET  # in the newest answer
        self.readers_until_ms = NEVER_MS  # consumers read from this follower, as far as the leader knows (KIP-392)
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
        if broker_epoch != self.broker_epoch:
            self.told_high_watermark = UNKNOWN_OFFSET  # a new incarnation may have an older one from its disk
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


class Followers:
    """All replicas of a partition except the leader itself, in one leader epoch, and which brokers are active."""

    def __init__(self, leader_id: int, *, max_lag_ms: int) -> None:
        self.replicas: dict[int, Replica] = {}
        self.broker_epochs: dict[int, int] = {}  # of the active brokers
        self._leader_id = leader_id
        self._max_lag_ms = max_lag_ms

    def assign(self, assigned: Iterable[int], isr: Collection[int], now_ms: int) -> None:
        """The assigned replicas, and members of the ISR that are not assigned, but electable. Known ones keep their state.

        New members of the ISR get the whole lag time until their first fetch; other replicas must catch up first.
        """
        known = self.replicas
        self.replicas = {}
        for replica_id in (*assigned, *isr):
            if replica_id != self._leader_id and replica_id not in self.replicas:
                caught_up_ms = now_ms if replica_id in isr else NEVER_MS
                replica = known.get(replica_id) or Replica(replica_id, last_caught_up_ms=caught_up_ms)
                self.replicas[replica_id] = replica

    def put_out(self, replica_ids: Iterable[int]) -> None:
        """They left the ISR, perhaps because their disk hangs: the leader does not wait for them as for joining replicas before
        they have fetched again."""
        for replica_id in replica_ids:
            if replica_id in self.replicas:
                self.replicas[replica_id].put_out()

    def is_stale(self, replica_id: int, broker_epoch: int) -> bool:
        """Does this come from a former incarnation? (KIP-903)"""
        replica = self.replicas[replica_id]
        return broker_epoch < replica.broker_epoch or broker_epoch < self.broker_epochs.get(replica_id, -1)

    def is_eligible(self, replica: Replica) -> bool:
        """Is the incarnation that fetches the active one?"""
        epoch = self.broker_epochs.get(replica.replica_id)
        return epoch is not None and epoch == replica.broker_epoch

    def is_lagging(self, replica_id: int, *, leader_end_offset: int, now_ms: int) -> bool:
        """The leader itself never is."""
        return replica_id != self._leader_id and not self.replicas[replica_id].is_caught_up(
            leader_end_offset=leader_end_offset, now_ms=now_ms, max_lag_ms=self._max_lag_ms
        )

    def member(self, replica_id: int) -> IsrMember:
        """The leader itself without an epoch (the request carries it); a member that has not fetched yet with the epoch of
        the metadata: it is committed already, so a restart of it would have led to a newer partition epoch."""
        if replica_id == self._leader_id:
            return IsrMember(node_id=replica_id, broker_epoch=UNKNOWN_BROKER_EPOCH)
        seen = self.replicas[replica_id].broker_epoch
        epoch = seen if seen != UNKNOWN_BROKER_EPOCH else self.broker_epochs.get(replica_id, UNKNOWN_BROKER_EPOCH)
        return IsrMember(node_id=replica_id, broker_epoch=epoch)

    def __str__(self) -> str:
        return " ".join(map(str, self.replicas.values()))
