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
class _Transaction:
    """What one transaction has pending for one group. `keys` is not empty."""

    transactional_id: str
    keys: dict[PartitionKey, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Pending:
    """Of one group. `values` and the keys of `transactions` say the same, so that the end of a transaction and an ordinary commit
    do not walk over what others have pending: every voter of the quorum does both."""

    transactions: dict[int, dict[int, _Transaction]] = field(default_factory=dict)  # by producer id, by epoch
    values: dict[PartitionKey, dict[ProducerKey, PendingValue]] = field(default_factory=dict)  # the latest commit last
    count: int = 0  # of values, over all partitions

    def put(self, key: PartitionKey, producer: ProducerKey, transactional_id: str, value: PendingValue) -> None:
        known = self.transactions.setdefault(producer[0], {}).setdefault(producer[1], _Transaction(transactional_id))
        known.transactional_id = transactional_id
        values = self.values.setdefault(key, {})
        if values.pop(producer, None) is None:  # a later commit of the same transaction goes to the end
            self.count += 1
            known.keys[key] = None
        values[producer] = value

    def remove(self, key: PartitionKey, producer: ProducerKey) -> None:
        values, epochs = self.values[key], self.transactions[producer[0]]
        del values[producer], epochs[producer[1]].keys[key]
        self.count -= 1
        if not values:
            del self.values[key]
        if not epochs[producer[1]].keys:
            del epochs[producer[1]]
        if not epochs:
            del self.transactions[producer[0]]

    def ended(self, producer: ProducerKey) -> list[tuple[ProducerKey, list[PartitionKey]]]:
        """The transactions of the producer up to its epoch, and their partitions, in an order that a snapshot keeps."""
        epochs = self.transactions.get(producer[0], {})
        return [((producer[0], epoch), sorted(epochs[epoch].keys)) for epoch in sorted(epochs) if epoch <= producer[1]]

    def names(self) -> dict[ProducerKey, str]:
        return {
            (producer_id, epoch): known.transactional_id
            for producer_id, epochs in self.transactions.items()
            for epoch, known in epochs.items()
        }

    def copy(self) -> "_Pending":
        transactions = {
            producer_id: {
                epoch: _Transaction(item.transactional_id, item.keys.copy()) for epoch, item in epochs.items()
            }
            for producer_id, epochs in self.transactions.items()
        }
        return _Pending(transactions, {key: some.copy() for key, some in self.values.items()}, self.count)


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
        return {} if group is None else group.names()

    def count_ended_by(self, group_id: str, producer: ProducerKey) -> int:
        """The pending offsets of the producer for the group, in this epoch or an older one."""
        group = self._groups.get(group_id)
        if group is None:
            return 0
        epochs = group.transactions.get(producer[0], {})
        return sum(len(pending.keys) for epoch, pending in epochs.items() if epoch <= producer[1])

    def groups(self) -> list[str]:
        return list(self._groups)

    def count(self, group_id: str) -> int:
        """Of pending offsets, over all transactions."""
        group = self._groups.get(group_id)
        return 0 if group is None else group.count

    def put(self, record: PendingOffsetsRecord) -> None:
        if not record.offsets:
            return
        group = self._groups.setdefault(record.group_id, _Pending())
        producer = (record.producer_id, record.producer_epoch)
        for item in record.offsets:
            value = (item.offset, item.leader_epoch, item.metadata, record.commit_timestamp_ms)
            group.put((item.topic, item.partition), producer, record.transactional_id, value)

    def end(self, group_id: str, producer: ProducerKey, *, is_commit: bool) -> list[tuple[PartitionKey, PendingValue]]:
        """The producer's transaction has ended; return the offsets that are committed now.

        What was pending before an offset that is committed is overruled by it. The end covers older epochs of the producer too:
        they have ended before. Without pending offsets nothing happens, so an end may be repeated.
        """
        group = self._groups.get(group_id)
        if group is None:
            return []
        committed: list[tuple[PartitionKey, PendingValue]] = []
        for ended, keys in group.ended(producer):
            for key in keys:
                values = group.values.get(key, {})
                if ended not in values:
                    continue  # an older epoch has committed this offset later
                if is_commit:
                    committed.append((key, values[ended]))
                for removed in _up_to(ended, values) if is_commit else (ended,):
                    group.remove(key, removed)
        self._sweep(group_id)
        return committed

    def overruled(self, group_id: str, key: PartitionKey) -> None:
        """An ordinary commit, a reset or a removal of this offset came after the pending ones: they have no effect any more."""
        group = self._groups.get(group_id)
        if group is not None and key in group.values:
            for producer in list(group.values[key]):
                group.remove(key, producer)
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
            self.overruled(group_id, key)

    def records(self, *, slot: int, coordinator_epoch: int) -> Iterator[PendingOffsetsRecord]:
        """One for each offset, so that replay restores the order of the commits of each partition."""
        for group_id, group in self._groups.items():
            names = group.names()
            for (topic, partition), values in group.values.items():
                for producer, (offset, leader_epoch, metadata, commit_timestamp_ms) in values.items():
                    item = PartitionOffset(
                        topic=topic, partition=partition, offset=offset, leader_epoch=leader_epoch, metadata=metadata
                    )
                    yield PendingOffsetsRecord(
                        slot=slot,
                        coordinator_epoch=coordinator_epoch,
                        group_id=group_id,
                        transactional_id=names[producer],
                        producer_id=producer[0],
                        producer_epoch=producer[1],
                        commit_timestamp_ms=commit_timestamp_ms,
                        offsets=(item,),
                    )

    def copy(self) -> "PendingOffsets":
        other = PendingOffsets()
        other._groups = {group_id: group.copy() for group_id, group in self._groups.items()}
        return other

    def _sweep(self, group_id: str) -> None:
        if not self._groups[group_id].values:
            del self._groups[group_id]

    def _comparable(self) -> dict[str, object]:
        return {
            group_id: (group.names(), {key: list(values.items()) for key, values in group.values.items()})
            for group_id, group in self._groups.items()
        }


def _up_to(producer: ProducerKey, values: dict[ProducerKey, PendingValue]) -> list[ProducerKey]:
    """`producer`, and those that committed before it."""
    committed = list(values)
    return committed[: committed.index(producer) + 1]
