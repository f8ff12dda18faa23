"""Offsets of open transactions in one slot of groups: committed when their transaction is, dropped when it is aborted.

The offsets of each partition are kept in the order in which they were committed to their transactions: several producers may
have pending offsets for one partition, and their transactions may end in any order. The offset that was committed last wins,
whichever transaction ends last (`PendingOffsets.end`), and so does an ordinary commit or a reset that came later (`overruled`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from barnabas.log.vocabulary.group_messages import PartitionOffset

from ..metadata.records import PendingOffsetsRecord

PartitionKey = tuple[str, int]
PendingValue = tuple[int, int, str, int]  # offset, leader epoch, metadata, commit timestamp in ms
ProducerKey = tuple[int, int]  # producer id, producer epoch


@dataclass(slots=True)
class _Pending:
    """Of one group. Every producer in `values` is in `transactions`, and the reverse."""

    transactions: dict[ProducerKey, str] = field(default_factory=dict)  # transactional ids
    values: dict[PartitionKey, dict[ProducerKey, PendingValue]] = field(default_factory=dict)  # the latest commit last


class PendingOffsets:
    """Of all groups of a slot; a group without pending offsets is not here."""

    def __init__(self) -> None:
        self._groups: dict[str, _Pending] = {}

    def __eq__(self, other: object) -> bool:
        """The order of commits counts, except between different partitions."""
        return isinstance(other, PendingOffsets) and self._comparable() == other._comparable()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __contains__(self, group_id: object) -> bool:
        return group_id in self._groups

    def is_pending(self, group_id: str, key: PartitionKey) -> bool:
        group = self._groups.get(group_id)
        return group is not None and key in group.values

    def keys(self, group_id: str) -> frozenset[PartitionKey]:
        """The partitions with pending offsets of the group."""
        group = self._groups.get(group_id)
        return frozenset() if group is None else frozenset(group.values)

    def transactions(self, group_id: str) -> dict[ProducerKey, str]:
        """The producers with pending offsets of the group, and their transactional ids."""
        group = self._groups.get(group_id)
        return {} if group is None else group.transactions

    def groups(self) -> list[str]:
        return list(self._groups)

    def count(self, group_id: str) -> int:
        """Of pending offsets, over all transactions."""
        group = self._groups.get(group_id)
        return 0 if group is None else sum(map(len, group.values.values()))

    def put(self, record: PendingOffsetsRecord) -> None:
        if not record.offsets:
            return
        group = self._groups.setdefault(record.group_id, _Pending())
        producer = (record.producer_id, record.producer_epoch)
        group.transactions[producer] = record.transactional_id
        for item in record.offsets:
            values = group.values.setdefault((item.topic, item.partition), {})
            values.pop(producer, None)  # a later commit of the same transaction goes to the end
            values[producer] = (item.offset, item.leader_epoch, item.metadata, record.commit_timestamp_ms)

    def end(self, group_id: str, producer: ProducerKey, *, is_commit: bool) -> list[tuple[PartitionKey, PendingValue]]:
        """The producer's transaction has ended; return the offsets that are committed now.

        What was pending before an offset that is committed is overruled by it. The end covers older epochs of the producer too:
        they have ended before. Without pending offsets nothing happens, so an end may be repeated.
        """
        group = self._groups.get(group_id)
        if group is None:
            return []
        producer_id, producer_epoch = producer
        ended = [key for key in group.transactions if key[0] == producer_id and key[1] <= producer_epoch]
        committed: list[tuple[PartitionKey, PendingValue]] = []
        for ended_producer in ended:
            for key, values in list(group.values.items()):
                if ended_producer not in values:
                    continue
                if is_commit:
                    committed.append((key, values[ended_producer]))
                    _drop_up_to(ended_producer, values)
                else:
                    del values[ended_producer]
        self._sweep(group_id)
        return committed

    def overruled(self, group_id: str, key: PartitionKey) -> None:
        """An ordinary commit, a reset or a removal of this offset came after the pending ones: they have no effect any more."""
        group = self._groups.get(group_id)
        if group is not None and group.values.pop(key, None) is not None:
            self._sweep(group_id)

    def forget_group(self, group_id: str) -> None:
        self._groups.pop(group_id, None)

    def groups_with(self, topic: str) -> list[str]:
        return [group_id for group_id, group in self._groups.items() if any(key[0] == topic for key in group.values)]

    def forget_topic(self, group_id: str, topic: str) -> None:
        group = self._groups.get(group_id)
        if group is None:
            return
        for key in [key for key in group.values if key[0] == topic]:
            del group.values[key]
        self._sweep(group_id)

    def records(self, *, slot: int, coordinator_epoch: int) -> Iterator[PendingOffsetsRecord]:
        """One for each offset, so that replay restores the order of the commits of each partition."""
        for group_id, group in self._groups.items():
            for (topic, partition), values in group.values.items():
                for producer, (offset, leader_epoch, metadata, commit_timestamp_ms) in values.items():
                    item = PartitionOffset(
                        topic=topic, partition=partition, offset=offset, leader_epoch=leader_epoch, metadata=metadata
                    )
                    yield PendingOffsetsRecord(
                        slot=slot,
                        coordinator_epoch=coordinator_epoch,
                        group_id=group_id,
                        transactional_id=group.transactions[producer],
                        producer_id=producer[0],
                        producer_epoch=producer[1],
                        commit_timestamp_ms=commit_timestamp_ms,
                        offsets=(item,),
                    )

    def copy(self) -> "PendingOffsets":
        other = PendingOffsets()
        other._groups = {
            group_id: _Pending(group.transactions.copy(), {key: some.copy() for key, some in group.values.items()})
            for group_id, group in self._groups.items()
        }
        return other

    def _sweep(self, group_id: str) -> None:
        """Drop what has become empty."""
        group = self._groups[group_id]
        group.values = {key: values for key, values in group.values.items() if values}
        left = {producer for values in group.values.values() for producer in values}
        group.transactions = {producer: name for producer, name in group.transactions.items() if producer in left}
        if not group.values:
            del self._groups[group_id]

    def _comparable(self) -> dict[str, object]:
        return {
            group_id: (group.transactions, {key: list(values.items()) for key, values in group.values.items()})
            for group_id, group in self._groups.items()
        }


def _drop_up_to(producer: ProducerKey, values: dict[ProducerKey, PendingValue]) -> None:
    """The offset of `producer`, and those that were committed before it."""
    for key in list(values):
        del values[key]
        if key == producer:
            return
