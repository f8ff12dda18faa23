"""`LeaderSession`: what a share consumer reads at one broker, and what it has to acknowledge there. Pure.

Requests of a session have rising epochs, so one at a time is sent. A request that failed ends the session: the next one begins a
new session, and its acknowledgements follow in the one after it.
"""

from collections.abc import Collection, Mapping

from barnabas.log.vocabulary.share.messages import AcknowledgedBatch, ShareFetchPartition, ShareFetchRequest

INITIAL_EPOCH, FINAL_EPOCH = 0, -1
MAX_EPOCH = 2**31 - 1

PartitionId = tuple[str, int]  # topic id, number
Kinds = dict[int, int]  # offset -> Acknowledgement


class LeaderSession:
    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.epoch = INITIAL_EPOCH  # of the next request
        self.reading: set[PartitionId] = set()  # what the broker knows of
        self.pending: dict[PartitionId, Kinds] = {}  # to be acknowledged
        self._lock_ms = 0  # how long locks last, which the first answer tells
        self._sent: dict[PartitionId, Kinds] = {}  # in the request that is on its way

    @property
    def is_waited_for(self) -> bool:
        """Whether something has to be acknowledged."""
        return bool(self.pending)

    @property
    def is_sending(self) -> bool:
        """Whether acknowledgements are on their way."""
        return bool(self._sent)

    def acknowledge(self, partition: PartitionId, offset: int, kind: int) -> None:
        self.pending.setdefault(partition, {})[offset] = kind

    def request(
        self,
        *,
        group_id: str,
        member_id: str,
        wanted: Collection[PartitionId],
        max_wait_ms: int,
        max_records: int,
        max_bytes: int,
    ) -> ShareFetchRequest:
        """The next request. `max_bytes` 0: no records, please.

        It waits for records only if there is nothing to acknowledge, and for half of a lock's time at most: the consumer counts
        that time from the request on.
        """
        self._sent, self.pending = ({}, self.pending) if self.epoch == INITIAL_EPOCH else (self.pending, {})
        added = [item for item in wanted if item not in self.reading]
        named = [*self._sent, *(item for item in added if item not in self._sent)]
        return ShareFetchRequest(
            group_id=group_id,
            member_id=member_id,
            session_epoch=self.epoch,
            partitions=tuple(_named(item, self._sent.get(item, {})) for item in named),
            forgotten=tuple(
                _named(item, {}) for item in sorted(self.reading.difference(wanted) | (self._sent.keys() - wanted))
            ),
            max_wait_ms=0 if self._sent or self.pending else min(max_wait_ms, self._lock_ms // 2),
            max_bytes=max_bytes,
            max_records=max_records,
        )

    def last_request(self, *, group_id: str, member_id: str) -> ShareFetchRequest | None:
        """Ends the session, and releases what is not acknowledged. None: there is no session."""
        if self.epoch == INITIAL_EPOCH:
            return None
        return ShareFetchRequest(
            group_id=group_id,
            member_id=member_id,
            session_epoch=FINAL_EPOCH,
            partitions=tuple(_named(item, kinds) for item, kinds in self.pending.items()),
        )

    def answered(self, wanted: Collection[PartitionId], lock_ms: int) -> Mapping[PartitionId, Kinds]:
        """The broker has taken the request, and its locks last for so long. Return what it acknowledged."""
        self._lock_ms = lock_ms
        self.reading = set(wanted)
        self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1
        sent, self._sent = self._sent, {}
        return sent

    def drop(self, partition: PartitionId) -> None:
        """The broker leads it no longer: the locks of its records are over."""
        self.pending.pop(partition, None)

    def failed(self) -> None:
        """The outcome of the request is not known, or the session is gone: acknowledge again, in a new session."""
        self.epoch, self.reading = INITIAL_EPOCH, set()
        for partition, kinds in self._sent.items():
            self.pending[partition] = {**kinds, **self.pending.get(partition, {})}
        self._sent = {}


def _named(item: PartitionId, kinds: Kinds) -> ShareFetchPartition:
    return ShareFetchPartition(topic_id=item[0], partition=item[1], acknowledged=tuple(batches_of(kinds)))


def batches_of(kinds: Kinds) -> list[AcknowledgedBatch]:
    """Runs of offsets that follow each other."""
    found: list[AcknowledgedBatch] = []
    first, run = -1, list[int]()
    for offset in sorted(kinds):
        if run and offset != first + len(run):
            found.append(_batch(first, run))
            run = []
        if not run:
            first = offset
        run.append(kinds[offset])
    return [*found, _batch(first, run)] if run else found


def _batch(first: int, run: list[int]) -> AcknowledgedBatch:
    kinds = run[:1] if len(set(run)) == 1 else run
    return AcknowledgedBatch(first_offset=first, last_offset=first + len(run) - 1, kinds=tuple(kinds))
