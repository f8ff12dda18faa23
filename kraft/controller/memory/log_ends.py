"""Where the logs of a partition end that has lost all its in-sync and eligible replicas. Pure.

After a power failure of all machines, or if a disk is replaced while another one fails, no replica is known to have every
acknowledged record. Then the brokers report the ends of their logs, and the longest log leads: the one whose last record is of
the newest leader epoch, and among these the one with the largest end offset. So an acknowledged record is lost only if every
replica that had it has lost it, or stays away for longer than the others wait. (The second half of KIP-966, unclean recovery.)
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from ...metadata.delta import MetadataDelta
from ...metadata.image import NO_LEADER, BrokerImage, PartitionImage
from ...metadata.requests import LogEnd, ReportLogEnds

# A replica that does not report, because its broker is down, has so long from the first report on. Then the others decide, if the
# last leader is one of them.
PATIENCE_MS: Final = 30_000


class _Reported(NamedTuple):
    broker_epoch: int
    storage_report: int  # of the broker, when it reported the end: a disk that failed may come back with another log
    end: LogEnd


class _Reports:
    """Of one partition, in one leader epoch."""

    def __init__(self, leader_epoch: int, now_ms: int) -> None:
        self.leader_epoch = leader_epoch
        self.first_ms = self.newest_ms = now_ms
        self.by_node: dict[int, _Reported] = {}


class LogEnds:
    """What brokers have reported to this controller. They repeat it until there is a leader."""

    def __init__(self) -> None:
        self._partitions: dict[tuple[str, int], _Reports] = {}

    def restart(self) -> None:
        self._partitions = {}

    def note(
        self, partition: PartitionImage, request: ReportLogEnds, end: LogEnd, storage_report: int, now_ms: int
    ) -> None:
        """A report about a partition without a leader; one of another leader epoch is void."""
        if end.leader_epoch != partition.leader_epoch or request.node_id not in partition.replicas:
            return
        key = (end.topic_id, end.partition)
        reports = self._partitions.get(key)
        if reports is None or reports.leader_epoch != end.leader_epoch:
            reports = self._partitions[key] = _Reports(end.leader_epoch, now_ms)
        reports.newest_ms = now_ms
        reports.by_node[request.node_id] = _Reported(request.broker_epoch, storage_report, end)

    def forget(self, topic_id: str, number: int) -> None:
        """There is a leader again, or the topic is gone."""
        self._partitions.pop((topic_id, number), None)

    def longest(
        self,
        view: MetadataDelta,
        topic_id: str,
        number: int,
        partition: PartitionImage,
        able: Collection[int],
        *,
        waits: bool = True,
    ) -> int | None:
        """The replica that should lead, if enough is known. `able`: the brokers that may lead. `waits` False: the longest of the
        logs that are here, whoever is missing."""
        reports = self._partitions.get((topic_id, number))
        if reports is None or reports.leader_epoch != partition.leader_epoch:
            return None
        brokers = view.brokers()
        here = {
            node_id: reported.end
            for node_id, reported in reports.by_node.items()
            if node_id in able and _is_current(brokers, node_id, reported)
        }
        if not here:
            return None

        def rank(node_id: int) -> tuple[int, int, bool]:
            end = here[node_id]
            # An epoch that was led without a record is no reason to give up what another log has.
            last_epoch = end.last_epoch if end.end_offset > 0 else -1
            return last_epoch, end.end_offset, node_id == partition.last_known_leader

        best = max((node_id for node_id in partition.replicas if node_id in here), key=rank)
        if waits and _may_change(partition, here, best, brokers, reports):
            return None
        return best


def _is_current(brokers: Mapping[int, BrokerImage], node_id: int, reported: _Reported) -> bool:
    broker = brokers.get(node_id)
    return broker is not None and (broker.broker_epoch, broker.storage_report) == (
        reported.broker_epoch,
        reported.storage_report,
    )


def _may_change(
    partition: PartitionImage,
    here: Mapping[int, LogEnd],
    best: int,
    brokers: Mapping[int, BrokerImage],
    reports: _Reports,
) -> bool:
    """May a replica that is not here have a longer log, so that it must be waited for?"""
    last = partition.last_known_leader
    if last in partition.offline_replicas and last in partition.replicas and last in brokers:
        return True  # its disk may be repaired
    missing = [node_id for node_id in partition.replicas if node_id not in here and node_id in brokers]
    missing = [node_id for node_id in missing if node_id not in partition.offline_replicas]
    if not missing:
        return False
    if last != NO_LEADER and last in missing:
        return True
    # An empty log is no reason to give up what a broker that is down may have.
    return here[best].end_offset == 0 or reports.newest_ms - reports.first_ms < PATIENCE_MS
