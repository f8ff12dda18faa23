"""Reports of brokers about their disks (KIP-112, KIP-858): offline replicas never lead and are in no ISR.

The quorum has the *replicas* and not the folder of each replica, because only a failure makes a difference, and then the broker
knows the content of the folder. A start with a folder that cannot be read knows it as well, without a list: replicas that the
cluster had assigned to the broker before and that are in no other folder are in that one (KIP-112's rule for `isNew`).

The records of a report may be cut anywhere: the report is noted last, so its repetition completes it.
"""

import dataclasses
from collections import Counter

from msgspec.structs import replace

from barnabas.log.vocabulary.errors import InvalidRequestError

from ..metadata.broker_epochs import check_broker_epoch
from ..metadata.controller_result import ControllerResult
from ..metadata.controller_settings import MAX_PARTITIONS_PER_REQUEST, ControllerSettings
from ..metadata.delta import MetadataDelta
from ..metadata.image import FOLDER_HANGING, IMPAIRED, PartitionImage
from ..metadata.partition_change import (
    ElectionRules,
    complete_reassignment,
    difference,
    elect,
    led_by,
    without_inactive,
)
from ..metadata.records import BrokerStorageRecord, PartitionChangeRecord
from ..metadata.requests import ReportOfflineReplicas, TopicNumbers
from ..metadata.topic_settings import election_rules
from .replication_control import full_brokers, leader_counts

MAX_TROUBLED_FOLDERS = 1_000  # no broker has so many disks; a malicious client must not fill the image
_Places = frozenset[tuple[str, int]]


def report_storage(
    view: MetadataDelta, settings: ControllerSettings, request: ReportOfflineReplicas
) -> ControllerResult:
    """Mark replicas as offline or online, with the consequences for leaders and ISRs."""
    broker = check_broker_epoch(view, request.node_id, request.broker_epoch)
    if request.report <= broker.storage_report:
        return ControllerResult()  # a repetition, or overtaken by a newer report
    _check_size(request)
    noted = BrokerStorageRecord(
        node_id=request.node_id,
        broker_epoch=request.broker_epoch,
        report=request.report,
        troubled_folders=request.troubled_folders,
    )
    return ControllerResult(records=(*_changes(view, settings, request), noted), atomic=False)


def _check_size(request: ReportOfflineReplicas) -> None:
    groups = (*request.offline, *request.lost, *request.hand_over)
    if sum(len(group.partitions) for group in groups) > MAX_PARTITIONS_PER_REQUEST:
        raise InvalidRequestError(f"a report can have at most {MAX_PARTITIONS_PER_REQUEST} partitions")
    if len(request.troubled_folders) > MAX_TROUBLED_FOLDERS:
        raise InvalidRequestError(f"a report can have at most {MAX_TROUBLED_FOLDERS} data folders")


def _changes(
    view: MetadataDelta, settings: ControllerSettings, request: ReportOfflineReplicas
) -> list[PartitionChangeRecord]:
    offline, lost, hand_over = _places(request.offline), _places(request.lost), _places(request.hand_over)
    node_id = request.node_id
    active, leaders, full = view.active_brokers(), leader_counts(view), full_brokers(view)
    hangs = any(folder.state == FOLDER_HANGING for folder in request.troubled_folders)
    if any(folder.state in IMPAIRED for folder in request.troubled_folders):
        full |= {node_id}
    records: list[PartitionChangeRecord] = []
    for topic in view.topics():
        for number, partition in enumerate(topic.partitions):
            if node_id not in partition.replicas:
                continue
            place = (topic.topic_id, number)
            is_lost = place in lost
            if (place in offline) == (node_id in partition.offline_replicas) and not is_lost and place not in hand_over:
                continue
            rules = election_rules(
                view,
                settings,
                topic.name,
                active=active,
                lost=frozenset({node_id}) if is_lost else frozenset(),
                full=full,
            )
            marked = _marked(partition, node_id, is_offline=place in offline)
            wanted = elect(complete_reassignment(without_inactive(marked, rules), rules), rules, leaders)
            others = active - {node_id}
            if place in hand_over and hangs and node_id in wanted.isr and others.intersection(wanted.isr):
                # A replica that must flush before it acknowledges would wait for this disk, also under another leader.
                left = dataclasses.replace(rules, active=frozenset(others))
                wanted = elect(without_inactive(wanted, left), left, leaders)
            elif place in hand_over and wanted.leader == node_id:
                wanted = _handed_over(wanted, rules, leaders)
            record = difference(topic.topic_id, number, partition, wanted)
            if record is not None:
                records.append(record)
    return records


def _marked(partition: PartitionImage, node_id: int, *, is_offline: bool) -> PartitionImage:
    others = [node for node in partition.offline_replicas if node != node_id]
    return replace(partition, offline_replicas=tuple(sorted([*others, node_id] if is_offline else others)))


def _handed_over(partition: PartitionImage, rules: ElectionRules, leaders: "Counter[int]") -> PartitionImage:
    """The partition led by an in-sync replica with free space, if there is one; otherwise the leader still serves reads."""
    able = rules.able(partition) - rules.full
    successor = next((node for node in partition.isr if node in able), None)
    return partition if successor is None else led_by(partition, successor, leaders)


def _places(groups: tuple[TopicNumbers, ...]) -> _Places:
    return frozenset((group.topic_id, number) for group in groups for number in group.partitions)
