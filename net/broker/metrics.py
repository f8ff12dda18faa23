"""The broker's own metrics, as samples for `/metrics`. Names end in their unit, counters in `_total`."""

from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest
from typing import Final

from barnabas.consumer_groups.transactions.counts import TransactionCounts

from ..admin.frame.backend import Sample
from ..base.figures.loop_delays import BOUNDS_S
from ..coordination.transactions.transaction_watch import TransactionTotals
from ..server.quotas.client_quotas import ClientQuotas
from .broker import Broker
from .monitoring.machine import machine_samples
from .monitoring.request_samples import histogram_samples, name_of, request_samples, traffic_samples

GROUPS_TOLD: Final = 100  # groups with their own label; limited, because monitoring systems keep every label
ENTITIES_TOLD: Final = 100  # likewise, of quotas
MAX_LABEL_LENGTH: Final = 100
OTHER_GROUPS: Final = ""  # no group has an empty name


def samples(broker: Broker) -> Sequence[Sample]:
    """All of the broker's own metrics (`barnabas_*`); those of topics and groups are derived from the metadata."""
    return [
        *_cluster(broker),
        *_loop(broker),
        *_replicas(broker),
        *_network(broker),
        *request_samples(broker.figures.measures),
        *traffic_samples(broker.figures.traffic, broker.replication.manager.partitions()),
        *machine_samples(broker.figures.machine, broker.controller.clock_offset.least_ms),
        *quota_samples(broker.quotas),
        *_transactions(broker),
        *_cleaner(broker),
    ]


def _gauge(name: str, text: str, value: float, **labels: str) -> Sample:
    return Sample(name=f"barnabas_{name}", type="gauge", help=text, value=value, labels=labels)


def _counter(name: str, text: str, value: float, **labels: str) -> Sample:
    return Sample(name=f"barnabas_{name}_total", type="counter", help=text, value=value, labels=labels)


def _cluster(broker: Broker) -> Iterator[Sample]:
    metadata = broker.metadata
    yield _gauge("metadata_offset", "Quorum index up to which this broker has the metadata.", metadata.image.offset)
    yield _gauge("quorum_term", "Term of the quorum as this broker knows it.", metadata.leadership.term)
    yield _gauge("active_controller", "1 on the broker whose controller decides.", metadata.is_active_controller)
    yield _gauge("broker_fenced", "1 while the controller has fenced this broker.", broker.lifecycle.fenced)
    yield _gauge("group_slots_hosted", "Coordinator slots that this broker hosts.", len(broker.groups.machines()))
    yield from group_samples(broker.groups.unowned_counts())


def group_samples(unowned: Mapping[str, int]) -> Iterator[Sample]:
    """The groups with the highest values by name, all others together."""
    text = "Partitions that no member has read for over 10 s, of groups with members."
    worst = sorted(unowned.items(), key=lambda item: (-item[1], item[0]))
    for group_id, count in worst[:GROUPS_TOLD]:
        yield _gauge("group_unowned_partitions", text, count, group=group_id)
    others = sum(count for _, count in worst[GROUPS_TOLD:])
    if others or not worst:
        yield _gauge("group_unowned_partitions", text, others, group=OTHER_GROUPS)


def _loop(broker: Broker) -> Iterator[Sample]:
    delays = broker.figures.loop_delays
    text = "Longest delay of the event loop within the last one to two minutes."
    yield _gauge("loop_delay_max_seconds", text, delays.longest_s)
    yield _counter("loop_checks", "Checks of the event loop's delay, ten a second.", delays.checks)
    for bound_s in BOUNDS_S:
        text = "Checks at which the event loop was later than this."
        yield _counter("loop_checks_late", text, delays.later_than(bound_s), over_seconds=f"{bound_s:g}")
    text = "How late the event loop was at its checks, ten a second."
    yield from histogram_samples("loop_delay_seconds", text, delays.histogram)


def _replicas(broker: Broker) -> Iterator[Sample]:
    counts = broker.replication.manager.counts()
    yield _gauge("partitions", "Replicas on this broker.", counts.partitions)
    yield _gauge("leaders", "Partitions that this broker leads.", counts.leaders)
    yield _gauge("under_replicated_partitions", "Led here, with replicas out of sync.", counts.under_replicated)
    yield _gauge("under_min_isr_partitions", "Led here, refusing acks=all.", counts.under_min_isr)
    yield _gauge("offline_partitions", "Replicas here whose storage failed.", counts.offline)
    yield _counter("isr_expands", "Proposals that added a replica to an ISR.", counts.isr_expands)
    yield _counter("isr_shrinks", "Proposals that took a replica out of an ISR.", counts.isr_shrinks)
    yield _gauge("parked_requests", "Requests that wait in purgatory.", len(broker.replication.purgatory))
    parked = broker.groups.parked_count
    yield _gauge("parked_group_requests", "Requests that wait for other members of a group.", parked)
    logs = broker.logs
    yield _gauge("offline_log_directories", "Data folders that have failed.", len(logs.offline_folders))
    full = sum(folder.is_full for folder in logs.folders)
    yield _gauge("full_log_directories", "Data folders on full disks; they refuse writes and serve reads.", full)
    for folder in logs.folders:
        size_bytes = sum(log.size_bytes for log in logs.registry.in_folder(folder))
        yield _gauge("log_directory_size_bytes", "Bytes of the logs in a data folder.", size_bytes, folder=folder.path)
    yield Sample(
        name="kafka_log_logmanager_offlinelogdirectorycount",
        type="gauge",
        help="Data folders that have failed, under the name of Kafka's own metric.",
        value=len(logs.offline_folders),
    )
    journal = broker.journal_storage
    given_up = journal is not None and journal.is_given_up
    yield _gauge(
        "quorum_ballast_given_up", "1: the journal's disk is full, and its reserved space is in use.", given_up
    )
    kept = logs.logs.values()
    text = "Ranges of records that were found damaged on the disk."
    yield _counter("damaged_batches", text, sum(log.damage.found for log in kept))
    yield _gauge("damaged_partitions", "Replicas here with damage now.", sum(log.damage.is_known for log in kept))
    size = sum(log.size_bytes for log in kept)
    yield _gauge("log_size_bytes", "Bytes of all logs of this broker.", size)


def _network(broker: Broker) -> Iterator[Sample]:
    logins = broker.authenticator
    yield _counter("logins", "Logins by SASL and HTTP that have succeeded.", logins.logins)
    yield _counter("logins_failed", "Logins that have failed.", logins.failed_logins)
    text = "Logins without an answer: too many passwords were to be checked."
    yield _counter("logins_unchecked", text, logins.unchecked_logins)
    for listener, server in broker.listeners.servers.items():
        metrics = server.metrics
        yield _gauge("connections", "Open connections.", server.connection_count, listener=listener)
        yield _counter("bytes_received", "Bytes received.", metrics.bytes_in, listener=listener)
        yield _counter("bytes_sent", "Bytes sent.", metrics.bytes_out, listener=listener)
        yield _counter("connections_accepted", "Accepted connections.", metrics.connections_accepted, listener=listener)
        yield _counter(
            "connections_refused",
            "Connections refused because of a limit.",
            metrics.connections_refused,
            listener=listener,
        )
        yield _counter("strangers", "Connections with an unknown protocol.", metrics.strangers, listener=listener)
        tasks = len(server.dispatcher.tasks)
        yield _gauge("pending_answers", "Requests that coroutines are working on.", tasks, listener=listener)
        for api, count in metrics.requests.items():
            yield _counter("requests", "Requests by API.", count, listener=listener, api=name_of(api))


def quota_samples(quotas: ClientQuotas) -> Iterator[Sample]:
    """Of entities, those that have waited longest: clients choose their ids, and monitoring systems keep every label."""
    text = "Time for which answers told clients to wait because of their quota."
    for kind, throttled_ms in quotas.throttled_ms.items():
        yield _counter("quota_throttled_seconds", text, throttled_ms / 1000, quota=kind)
    text = "Requests and connections that quotas have refused."
    yield _counter("quota_refused", text, quotas.refused)
    text = "Time for which an entity was told to wait, since it was idle for long; of those that were told most."
    waited = [(key, entity.throttled_ms) for key, entity in quotas.entities() if entity.throttled]
    for key, throttled_ms in nlargest(ENTITIES_TOLD, waited, key=lambda item: item[1]):
        labels = {"user": key.user or "", "client_id": (key.client_id or "")[:MAX_LABEL_LENGTH]}
        yield _gauge("quota_entity_throttled_seconds", text, throttled_ms / 1000, quota=key.kind, **labels)


def _transactions(broker: Broker) -> Iterator[Sample]:
    return transaction_samples(broker.transactions.watch.totals, broker.slot_machines.counts)


def transaction_samples(totals: TransactionTotals, counts: TransactionCounts) -> Iterator[Sample]:
    """Counters since the start of the broker; gauges as old as its last look at all transactions, at most 5 s."""
    yield _counter("transactions_committed", "Transactions committed by coordinators here.", totals.committed)
    yield _counter("transactions_aborted", "Transactions aborted by coordinators here.", totals.aborted)
    yield _counter("transactions_timed_out", "Transactions aborted because of their timeout.", counts.timed_out)
    yield _counter("transactions_fenced", "Transactions aborted by a new producer or an operator.", counts.fenced)
    yield _gauge("transactions_open", "Undecided or incomplete transactions coordinated here.", totals.open)
    yield _gauge("transactions_oldest_seconds", "Age of the oldest one of them.", totals.oldest_ms / 1000)
    text = "Decided transactions that wait for markers in partitions or groups."
    yield _gauge("transactions_waiting_for_markers", text, totals.waiting_for_markers)
    yield _gauge("transactions_overdue", "Transactions 5 s or more beyond their timeout.", totals.overdue)
    text = "Transactions in partitions led here that no coordinator knows."
    yield _gauge("transactions_hanging", text, totals.hanging)
    text = "Partitions led here in which readers of committed records wait."
    yield _gauge("last_stable_offset_lagging_partitions", text, totals.lagging)
    text = "Offsets between the last stable one and the high watermark: the partitions with the largest lag."
    for place, lag in totals.lags:
        yield _gauge("last_stable_offset_lag", text, lag, topic=place.topic, partition=str(place.partition))


def _cleaner(broker: Broker) -> Iterator[Sample]:
    totals = broker.cleaner_service.cleaner.totals
    yield _counter("log_cleaner_runs", "Logs compacted.", totals.runs)
    yield _counter("log_cleaner_bytes_read", "Bytes that compaction has read.", totals.bytes_read)
    yield _counter("log_cleaner_bytes_written", "Bytes that compaction has written.", totals.bytes_written)
    yield _counter("log_cleaner_bytes_freed", "Bytes that compaction has saved.", totals.bytes_freed)
    yield _gauge("log_cleaner_ratio", "Size after the last compaction to the size before.", totals.last_ratio)
    yield _gauge("log_cleaner_max_dirty_ratio", "Largest dirty fraction of a log.", totals.max_dirty_ratio)
    if totals.last_run_ms is not None:
        idle_s = (broker.ports.clock.wall_ms() - totals.last_run_ms) / 1000
        yield _gauge("log_cleaner_seconds_since_last_run", "Time since a log was compacted.", idle_s)
    yield _counter("log_cleaner_failures", "Compactions that failed.", totals.failures)
    yield _gauge(
        "log_cleaner_uncleanable_partitions",
        "Logs excluded from compaction.",
        len(totals.uncleanable),
    )
    for topic_partition in totals.uncleanable:
        topic, partition = topic_partition.topic, str(topic_partition.partition)
        yield _gauge(
            "log_cleaner_uncleanable",
            "1 for a log excluded from compaction.",
            1,
            topic=topic,
            partition=partition,
        )
