"""ISRs and leaders of partitions: brokers join or leave, leaders propose, replicas report where their logs end, operators ask.

KIP-903 (broker epochs in ISR proposals), KIP-966 (eligible leader replicas), KIP-841 (fenced brokers are never in an ISR).
The rules for one partition are in `partition_change`; topics come and go in `topic_control`, replicas in
`reassignment_control`.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from operator import attrgetter

from msgspec.structs import replace

from barnabas.log.vocabulary.cluster_changes import (
    ElectionNotNeededError,
    ElectLeaderRequest,
    PreferredLeaderNotAvailableError,
)
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    EligibleLeadersNotAvailableError,
    ErrorCode,
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    NotControllerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition, no_such_topic_id

from ..metadata.broker_epochs import check_broker_epoch
from ..metadata.controller_result import ControllerResult, answer
from ..metadata.controller_settings import MAX_PARTITIONS_PER_REQUEST, ControllerSettings
from ..metadata.delta import MetadataDelta
from ..metadata.image import NO_LEADER, PartitionImage, TopicImage
from ..metadata.partition_change import (
    ElectionRules,
    complete_reassignment,
    difference,
    elect,
    is_nothing_known,
    led_by,
    with_isr,
    without_inactive,
)
from ..metadata.records import PartitionChangeRecord
from ..metadata.replay import changed_partition
from ..metadata.requests import (
    AlterPartition,
    AlterPartitionAnswer,
    IsrMember,
    PartitionIsrAnswer,
    PartitionIsrProposal,
    ReportLogEnds,
    ResignReplica,
)
from ..metadata.topic_settings import election_rules
from .memory.log_ends import LogEnds
from .memory.sweep import Found, Sweep, is_unsettled

_LEADER = attrgetter("leader")
_PARTITIONS = attrgetter("partitions")


def leader_counts(view: MetadataDelta) -> "Counter[int]":
    """How many partitions each broker leads. Counted in C: a creation or an election asks for it, and there may be 100,000."""
    counts = Counter(map(_LEADER, chain.from_iterable(map(_PARTITIONS, view.topics()))))
    del counts[NO_LEADER]
    return counts


def full_brokers(view: MetadataDelta) -> frozenset[int]:
    """Brokers with a full data folder: their leaderships were handed over, and do not return before there is space."""
    return frozenset(broker.node_id for broker in view.brokers().values() if broker.has_full_folder)


def leads_anything(view: MetadataDelta, node_id: int) -> bool:
    return any(partition.leader == node_id for topic in view.topics() for partition in topic.partitions)


def find_partition(view: MetadataDelta, topic: str, number: int) -> tuple[TopicImage, PartitionImage]:
    """Raises UnknownTopicOrPartitionError."""
    image = view.topic(topic)
    partition = view.partition(TopicPartition(topic, number))
    if image is None or partition is None:
        raise UnknownTopicOrPartitionError(f"partition {topic}-{number} does not exist")
    return image, partition


class ReplicationControl:
    """Decides on ISRs and leaders. Reads everything from the view, except for the ends of logs that brokers have reported."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._settings = settings
        self._ends = LogEnds()
        self._sweep = Sweep(settings.partitions_per_step)
        self._leaving = Sweep(settings.partitions_per_step)
        self._leaving_brokers: tuple[frozenset[int], frozenset[int]] | None = None  # (all, lost) of that walk

    def restart(self) -> None:
        self._ends.restart()
        self._sweep.restart()
        self._leaving.restart()

    # --- brokers join and leave --------------------------------------------------------------------------------------

    def move_away(
        self,
        view: MetadataDelta,
        node_ids: frozenset[int],
        *,
        active: frozenset[int],
        lost: frozenset[int] = frozenset(),
    ) -> tuple[tuple[PartitionChangeRecord, ...], bool]:
        """The next piece of what must change before these brokers, which are not in `active`, are fenced, drained or removed.

        True: it is the last piece. After it, these brokers lead nothing and are in no ISR, and `lost` ones are not eligible.
        """
        leaving = self._next_leaving(view, node_ids, lost)
        if self._leaving:
            return self._settled(view, leaving, active=active, lost=lost), False
        limit = self._settings.partitions_per_step
        affected = list(islice(_unsettled(view, active, lost), limit + 1))
        if len(affected) <= limit:
            return self._settled(view, affected, active=active, lost=lost), True
        self._leaving.begin(view)  # others may be gone, too: the sweep finds theirs
        self._leaving_brokers = (node_ids, lost)
        leaving = self._next_leaving(view, node_ids, lost)
        return self._settled(view, leaving, active=active, lost=lost), not self._leaving

    def _next_leaving(self, view: MetadataDelta, node_ids: frozenset[int], lost: frozenset[int]) -> Found:
        """What these brokers lead, or are in sync for, from where the last piece of the same ones has ended; [] at the end.

        A decision takes it from them, so no partition before that place has them, unless a departure was cancelled and has begun
        again meanwhile: only a search from the first partition says that nothing is left. To begin every piece with one took
        seconds of the quorum's thread for 200,000 partitions.
        """
        if self._leaving_brokers != (node_ids, lost):
            self._leaving.restart()
        found: Found = []
        while self._leaving and not found:
            found = self._leaving.next_piece(view, lambda partition: _is_held(partition, node_ids, lost))
        return found

    def begin_sweep(self, view: MetadataDelta) -> None:
        """Walk over all partitions: from now on, more brokers may be active, or other elections allowed."""
        self._sweep.begin(view)

    @property
    def is_sweeping(self) -> bool:
        return bool(self._sweep)

    def settle(self, view: MetadataDelta, *, active: frozenset[int]) -> tuple[PartitionChangeRecord, ...]:
        """The next piece of the sweep, which brings partitions into a state that is valid for this set of active brokers."""
        found = self._sweep.next_piece(view, lambda partition: is_unsettled(partition, active))
        return self._settled(view, found, active=active)

    def _settled(
        self, view: MetadataDelta, affected: Found, *, active: frozenset[int], lost: frozenset[int] = frozenset()
    ) -> tuple[PartitionChangeRecord, ...]:
        """The only rule for a broker that is fenced, unfenced, drained, removed or restarted: inactive brokers leave ISRs, and a
        partition without a leader gets one if there is a replica that can lead."""
        if not affected:
            return ()
        leaders = leader_counts(view)
        full = full_brokers(view)
        records = []
        rules_of: dict[str, ElectionRules] = {}
        for topic, number, partition in affected:
            if topic.name not in rules_of:
                rules_of[topic.name] = election_rules(
                    view, self._settings, topic.name, active=active, lost=lost, full=full
                )
            rules = rules_of[topic.name]
            wanted = complete_reassignment(without_inactive(partition, rules), rules)
            rules = self._with_longest(view, topic, number, wanted, rules)
            record = difference(topic.topic_id, number, partition, elect(wanted, rules, leaders))
            if record is not None:
                records.append(record)
        return tuple(records)

    def relieve_eligible(
        self, view: MetadataDelta, topic: TopicImage, *, min_insync_replicas: int
    ) -> tuple[PartitionChangeRecord, ...]:
        """When min.insync.replicas changes: if the ISR is large enough now, no replica outside of it stays eligible.

        In the same batch as the change, because from then on the high watermark moves without these replicas.
        """
        rules = ElectionRules(active=view.active_brokers(), min_insync_replicas=min_insync_replicas)
        changes = (
            difference(topic.topic_id, number, partition, with_isr(partition, partition.isr, rules))
            for number, partition in enumerate(topic.partitions)
            if partition.eligible_leader_replicas
        )
        return tuple(record for record in changes if record is not None)

    # --- a leader proposes -------------------------------------------------------------------------------------------

    def alter_partition(self, view: MetadataDelta, request: AlterPartition) -> ControllerResult:
        check_broker_epoch(view, request.node_id, request.broker_epoch)
        if len(request.partitions) > MAX_PARTITIONS_PER_REQUEST:
            raise InvalidRequestError(f"at most {MAX_PARTITIONS_PER_REQUEST} partitions can be altered in one request")
        records: list[PartitionChangeRecord] = []
        answers: list[PartitionIsrAnswer] = []
        seen: set[tuple[str, int]] = set()
        for proposal in request.partitions:
            try:
                if (proposal.topic_id, proposal.partition) in seen:
                    raise InvalidRequestError("a partition is named twice in one request")
                seen.add((proposal.topic_id, proposal.partition))
                record, decided = self._decide_proposal(view, request.node_id, proposal)
            except BarnabasError as error:
                answers.append(_isr_answer(proposal, error.code))
                continue
            records.append(record)
            answers.append(_isr_answer(proposal, _outcome(request.node_id, decided), decided))
        return ControllerResult(records=tuple(records), respond=answer(AlterPartitionAnswer(partitions=tuple(answers))))

    def _decide_proposal(
        self, view: MetadataDelta, node_id: int, proposal: PartitionIsrProposal
    ) -> tuple[PartitionChangeRecord, PartitionImage]:
        name = view.topic_name(proposal.topic_id)
        if name is None:
            raise UnknownTopicIdError(no_such_topic_id(proposal.topic_id))
        topic, partition = find_partition(view, name, proposal.partition)
        _check_proposal(partition, node_id, proposal)
        _check_members(view, node_id, proposal.isr)
        _check_disks(partition, proposal.isr)
        rules = election_rules(view, self._settings, name, active=view.active_brokers())
        isr = tuple(member.node_id for member in proposal.isr)
        if set(isr) == set(partition.isr):
            isr = partition.isr  # the order has no meaning
        wanted = complete_reassignment(with_isr(partition, isr, rules), rules)
        if wanted.leader not in wanted.isr:
            wanted = elect(wanted, rules, leader_counts(view))
        record = difference(topic.topic_id, proposal.partition, partition, wanted)
        if record is None:
            # A leader proposes the unchanged ISR if it does not know the outcome of an earlier proposal: a newer partition epoch
            # makes every copy of that proposal void, which resolves it.
            record = PartitionChangeRecord(topic_id=topic.topic_id, partition=proposal.partition, isr=partition.isr)
        return record, changed_partition(partition, record)

    # --- a replica has lost its log ----------------------------------------------------------------------------------

    def resign(self, view: MetadataDelta, request: ResignReplica) -> ControllerResult:
        node_id = request.node_id
        check_broker_epoch(view, node_id, request.broker_epoch)
        name = view.topic_name(request.topic_id)
        if name is None:
            raise UnknownTopicIdError(no_such_topic_id(request.topic_id))
        topic, partition = find_partition(view, name, request.partition)
        counts = node_id in partition.isr or node_id in partition.eligible_leader_replicas
        if not counts and partition.leader_epoch > request.leader_epoch:
            return ControllerResult()  # an earlier copy of this request was accepted
        rules = election_rules(
            view, self._settings, name, active=view.active_brokers() - {node_id}, lost=frozenset({node_id})
        )
        if not rules.active.intersection(partition.isr):
            raise EligibleLeadersNotAvailableError(
                f"only broker {node_id} is in sync for {name}-{request.partition}; bring another replica back first"
            )
        wanted = elect(without_inactive(partition, rules), rules, leader_counts(view))
        record = difference(topic.topic_id, request.partition, partition, wanted)
        record = record or PartitionChangeRecord(topic_id=topic.topic_id, partition=request.partition)
        return ControllerResult(records=(replace(record, leader=wanted.leader),))

    # --- nothing is known of the replicas -----------------------------------------------------------------------------

    def report_log_ends(self, view: MetadataDelta, request: ReportLogEnds, now_ms: int) -> ControllerResult:
        """Note the ends, and elect leaders where enough is known."""
        broker = check_broker_epoch(view, request.node_id, request.broker_epoch)
        if len(request.ends) > MAX_PARTITIONS_PER_REQUEST:
            raise InvalidRequestError(f"at most {MAX_PARTITIONS_PER_REQUEST} log ends can be reported in one request")
        active, leaders, records = view.active_brokers(), leader_counts(view), []
        for end in request.ends:
            name = view.topic_name(end.topic_id)
            partition = None if name is None else view.partition(TopicPartition(name, end.partition))
            if name is None or partition is None or partition.leader != NO_LEADER:
                self._ends.forget(end.topic_id, end.partition)
                continue
            self._ends.note(partition, request, end, broker.storage_report, now_ms)
            topic = view.topic(name)
            assert topic is not None
            rules = election_rules(view, self._settings, name, active=active)
            rules = self._with_longest(view, topic, end.partition, partition, rules)
            wanted = elect(partition, rules, leaders)
            record = difference(topic.topic_id, end.partition, partition, wanted)
            if record is not None:
                records.append(record)
            if wanted.leader != NO_LEADER:
                self._ends.forget(end.topic_id, end.partition)  # nobody reports it any more
        return ControllerResult(records=tuple(records), atomic=False)

    def _with_longest(
        self,
        view: MetadataDelta,
        topic: TopicImage,
        number: int,
        partition: PartitionImage,
        rules: ElectionRules,
    ) -> ElectionRules:
        if not (rules.unclean or is_nothing_known(partition)):
            return rules
        found = self._ends.longest(
            view, topic.topic_id, number, partition, rules.able(partition), waits=not rules.unclean
        )
        return dataclasses.replace(rules, longest=found)

    # --- an operator asks --------------------------------------------------------------------------------------------

    def elect_leader(self, view: MetadataDelta, request: ElectLeaderRequest) -> ControllerResult:
        topic, partition = find_partition(view, request.topic, request.partition)
        if request.unclean:
            record = self._unclean(view, topic, request.partition, partition)
        else:
            record = _chosen(view, topic, request, partition)
        return ControllerResult(records=(record,))

    def _unclean(
        self, view: MetadataDelta, topic: TopicImage, number: int, partition: PartitionImage
    ) -> PartitionChangeRecord:
        active = view.active_brokers()
        if partition.leader in active:
            raise ElectionNotNeededError(f"{topic.name}-{number} has a leader, broker {partition.leader}")
        rules = election_rules(view, self._settings, topic.name, active=active)
        forced = ElectionRules(active=active, min_insync_replicas=rules.min_insync_replicas, unclean=True)
        settled = without_inactive(partition, forced)
        forced = self._with_longest(view, topic, number, settled, forced)
        wanted = elect(settled, forced, leader_counts(view))
        record = difference(topic.topic_id, number, partition, wanted)
        if record is None or wanted.leader == NO_LEADER:
            raise EligibleLeadersNotAvailableError(
                f"no replica of {topic.name}-{number} is alive: {partition.replicas}"
            )
        return record


def _unsettled(
    view: MetadataDelta, active: frozenset[int], lost: frozenset[int]
) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    for topic in view.topics():
        for number, partition in enumerate(topic.partitions):
            if is_unsettled(partition, active) or (lost and _is_eligible(partition, lost)):
                yield topic, number, partition


def _is_held(partition: PartitionImage, node_ids: frozenset[int], lost: frozenset[int]) -> bool:
    """Does one of these brokers lead it, or is it in sync for it, or is a lost one eligible?"""
    if partition.leader in node_ids or not node_ids.isdisjoint(partition.isr):
        return True
    return bool(lost) and _is_eligible(partition, lost)


def _is_eligible(partition: PartitionImage, node_ids: frozenset[int]) -> bool:
    return not node_ids.isdisjoint((*partition.isr, *partition.eligible_leader_replicas))


def _check_proposal(partition: PartitionImage, node_id: int, proposal: PartitionIsrProposal) -> None:
    isr = [member.node_id for member in proposal.isr]
    if proposal.leader_epoch > partition.leader_epoch or proposal.partition_epoch > partition.partition_epoch:
        raise NotControllerError(
            "the proposal has newer epochs than this controller, which has been replaced; retry with the new one"
        )
    if proposal.leader_epoch < partition.leader_epoch:
        raise FencedLeaderEpochError(
            f"leader epoch {proposal.leader_epoch} has ended; it is now {partition.leader_epoch}"
        )
    if node_id != partition.leader:
        raise InvalidRequestError(f"broker {node_id} does not lead the partition; broker {partition.leader} does")
    if proposal.partition_epoch < partition.partition_epoch:
        raise InvalidUpdateVersionError(
            f"partition epoch {proposal.partition_epoch} has ended; it is now {partition.partition_epoch}"
        )
    if len(set(isr)) != len(isr) or not set(isr).issubset(partition.replicas) or node_id not in isr:
        raise InvalidRequestError(
            f"{isr} is not a valid ISR: it must have the leader, and only replicas of {partition.replicas}"
        )


def _check_members(view: MetadataDelta, leader_id: int, members: tuple[IsrMember, ...]) -> None:
    """KIP-903: only brokers that are active now, in the incarnation whose fetches the leader has seen."""
    for member in members:
        broker = view.broker(member.node_id)
        if broker is None or not broker.is_active or member.node_id in view.departing:
            raise IneligibleReplicaError(f"broker {member.node_id} is fenced, shutting down or not registered")
        is_leader_itself = member.node_id == leader_id and member.broker_epoch == -1
        if not is_leader_itself and member.broker_epoch != broker.broker_epoch:
            raise IneligibleReplicaError(
                f"broker {member.node_id} has the epoch {broker.broker_epoch}, not {member.broker_epoch}: it restarted"
            )


def _check_disks(partition: PartitionImage, members: tuple[IsrMember, ...]) -> None:
    for member in members:
        if member.node_id in partition.offline_replicas:
            raise IneligibleReplicaError(f"the disk of broker {member.node_id} has failed, as the broker reported")


def _outcome(node_id: int, decided: PartitionImage) -> ErrorCode:
    """A proposal that ended a reassignment may also have ended the proposer's leadership."""
    return ErrorCode.NONE if decided.leader == node_id else ErrorCode.NEW_LEADER_ELECTED


def _isr_answer(
    proposal: PartitionIsrProposal, code: ErrorCode, decided: PartitionImage | None = None
) -> PartitionIsrAnswer:
    if decided is None:
        return PartitionIsrAnswer(topic_id=proposal.topic_id, partition=proposal.partition, error=int(code))
    return PartitionIsrAnswer(
        topic_id=proposal.topic_id,
        partition=proposal.partition,
        error=int(code),
        leader=decided.leader,
        leader_epoch=decided.leader_epoch,
        partition_epoch=decided.partition_epoch,
        isr=decided.isr,
        eligible_leader_replicas=decided.eligible_leader_replicas,
    )


def _chosen(
    view: MetadataDelta, topic: TopicImage, request: ElectLeaderRequest, partition: PartitionImage
) -> PartitionChangeRecord:
    wanted = partition.replicas[0] if request.target is None else request.target
    if wanted == partition.leader:
        raise ElectionNotNeededError(f"broker {wanted} leads {request.topic}-{request.partition} already")
    if wanted in partition.isr and wanted in view.active_brokers():
        return led_by_record(topic, request.partition, partition, wanted)
    message = f"broker {wanted} is not in sync for {request.topic}-{request.partition}; in sync: {partition.isr}"
    if request.target is None:
        raise PreferredLeaderNotAvailableError(message)
    raise EligibleLeadersNotAvailableError(message)


def led_by_record(topic: TopicImage, number: int, partition: PartitionImage, leader: int) -> PartitionChangeRecord:
    """Another leader, which is in sync."""
    record = difference(topic.topic_id, number, partition, led_by(partition, leader, Counter()))
    assert record is not None
    return record
