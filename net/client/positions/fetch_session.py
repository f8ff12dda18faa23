"""`ClientFetchSession`: what a consumer reads at one broker in a fetch session (KIP-227). Pure.

A request of a session names only the partitions that are new or have another offset, and an answer has only those with news. So
a thousand partitions without records cost as much as one. Only quiet partitions are in a session; those that bring much data are
fetched without one, so that each of them is asked for as soon as there is room.

A request may follow before the one ahead of it is answered: the broker answers that at once, and the later one has all that it
had (`waiting`). Records may then come twice; the second time, they are not from the partition's `fetch_offset` on.

A session belongs to one connection. One that the broker does not know any more is begun anew: the offsets are the consumer's, so
nothing is skipped or repeated.
"""

from collections.abc import Callable, Iterable
from typing import Final

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.requests import (
    INITIAL_EPOCH,
    FetchPartition,
    ForgottenTopic,
    epoch_after,
    forgotten_topics,
)

from .partition_state import PartitionState

MIN_PARTITIONS: Final = 10  # to begin a session with: fewer are named as cheaply in each request
QUIET_BYTES: Final = 4096  # A partition whose last answer had no more is quiet: it may be in a session.

Sent = dict[TopicPartition, tuple[PartitionState, int, int]]  # also version and offset when the request was sent
LeaderEpoch = Callable[[TopicPartition], int]


def sent_now(states: Iterable[PartitionState]) -> Sent:
    return {state.partition: (state, state.version, state.fetch_offset) for state in states}


def fetch_partition(state: PartitionState, leader_epoch: int) -> FetchPartition:
    return FetchPartition(
        topic=state.partition.topic,
        partition=state.partition.partition,
        fetch_offset=state.fetch_offset,
        max_bytes=state.max_bytes,
        current_leader_epoch=leader_epoch,
        last_fetched_epoch=state.last_fetched_epoch,
        topic_id=state.topic_id,
    )


class ClientFetchSession:
    def __init__(self, connection: object, rack: str) -> None:
        self.connection = connection
        self.rack = rack
        self.session_id = 0  # until the broker has given one
        self.epoch = INITIAL_EPOCH  # of the next request
        self.waiting: Sent | None = None  # of the newest request, until it is answered
        self._named: dict[TopicPartition, FetchPartition] = {}  # what the broker knows

    @property
    def may_ask(self) -> bool:
        return self.waiting is None or self.session_id != 0

    def ask(
        self, states: list[PartitionState], leader_epoch: LeaderEpoch
    ) -> tuple[list[FetchPartition], tuple[ForgottenTopic, ...]]:
        """The next request asks for these partitions, and for those that still wait. Returns those to name, and those that leave;
        they leave only if none waits."""
        changed = [
            fetch_partition(state, epoch)
            for state in states
            if _differs(self._named.get(state.partition), state, epoch := leader_epoch(state.partition))
        ]
        self._named.update({TopicPartition(item.topic, item.partition): item for item in changed})
        forgotten: tuple[ForgottenTopic, ...] = ()
        asked = sent_now(states)
        if self.waiting is not None:
            asked = {**self.waiting, **asked}
        elif len(self._named) > len(asked):
            forgotten = self._forget(self._named.keys() - asked.keys())
        self.waiting = asked
        return changed, forgotten

    def next_epoch(self) -> tuple[int, int]:
        """Id and epoch of the request that is sent now."""
        epoch = self.epoch
        self.epoch = epoch_after(epoch)
        return self.session_id, epoch

    def answered(self, asked: Sent) -> bool:
        """Whether this was the newest request, so that its partitions are not asked for any more."""
        if self.waiting is not asked:
            return False
        self.waiting = None
        return True

    def is_kept(self, session_id: int) -> bool:
        """Whether the session goes on after an answer with this id."""
        if self.session_id == 0:
            self.session_id = session_id
        return session_id != 0 and session_id == self.session_id

    def _forget(self, partitions: Iterable[TopicPartition]) -> tuple[ForgottenTopic, ...]:
        return forgotten_topics([self._named.pop(partition) for partition in sorted(partitions)])


def _differs(named: FetchPartition | None, state: PartitionState, leader_epoch: int) -> bool:
    return (
        named is None
        or named.fetch_offset != state.fetch_offset
        or named.current_leader_epoch != leader_epoch
        or named.last_fetched_epoch != state.last_fetched_epoch
        or named.topic_id != state.topic_id
        or named.max_bytes != state.max_bytes
    )
