"""Registration, heartbeats, fencing, controlled shutdown; coordinator slots; producer ids."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace
from unit.kraft.metadata_cluster import MetadataCluster
from unit.kraft.single_controller import SingleController

from barnabas.kraft.controller.producer_id_control import allocate
from barnabas.kraft.group_state.group_slots import MAX_STAGED_RECORDS
from barnabas.kraft.metadata.controller_settings import MAX_RECORDS_PER_COMMAND
from barnabas.kraft.metadata.delta import MetadataDelta
from barnabas.kraft.metadata.feature_levels import PREPARED_LEVEL, TRANSACTIONS_LEVEL
from barnabas.kraft.metadata.image import NO_COORDINATOR
from barnabas.kraft.metadata.records import (
    BrokerChangeRecord,
    GroupRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    Record,
    RecordBatch,
    RecoveryRecord,
    RemoveGroupRecord,
    RemoveTransactionRecord,
    StagedDecisionRecord,
    TopicRecord,
    TransactionRecord,
    announced_records,
    decode_batch,
    encode_batch,
)
from barnabas.kraft.metadata.requests import (
    AllocateProducerIds,
    AppendGroupRecords,
    BrokerHeartbeat,
    CreateTopic,
    Done,
    FenceBroker,
    GroupRecordsAppended,
    ProducerIdBlock,
    Registered,
    SlotAppend,
)
from barnabas.kraft.quorum.config import MAX_COMMAND_BYTES
from barnabas.log.vocabulary.cluster_changes import BrokerIdNotRegisteredError, UnregisterBrokerRequest
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    DuplicateBrokerRegistrationError,
    ErrorCode,
    InconsistentClusterIdError,
    InvalidRequestError,
    StaleBrokerEpochError,
    UnsupportedVersionError,
)
from barnabas.log.vocabulary.transaction_messages import TransactionState


def test_a_broker_is_registered_fenced_and_its_epoch_is_the_index_of_the_record() -> None:
    cluster = SingleController(0)
    epoch = cluster.register(0)
    assert epoch == cluster.image.offset == cluster.image.brokers[0].broker_epoch
    assert cluster.image.brokers[0].fenced


def test_a_retry_of_the_same_incarnation_gets_the_same_epoch() -> None:
    cluster = SingleController(0)
    assert cluster.register(0) == cluster.register(0)


def test_a_retry_before_the_commit_gets_the_same_epoch_too() -> None:
    cluster = SingleController(0)
    answers: list[object] = []
    for _ in range(2):
        cluster.cluster.nodes[0].submit(cluster.registration(0), 0, answers.append)
    assert answers == []
    cluster.cluster.run()
    assert isinstance(answers[0], Registered)
    assert isinstance(answers[1], Registered)
    assert answers[0].broker_epoch == answers[1].broker_epoch


def test_of_two_incarnations_that_register_at_once_only_the_last_gets_an_epoch() -> None:
    cluster = SingleController(0)
    answers: list[object] = []
    for incarnation in ("one", "two"):
        cluster.cluster.nodes[0].submit(cluster.registration(0, incarnation), 0, answers.append)
    cluster.cluster.commit()
    cluster.cluster.deliver(0)
    assert isinstance(answers[0], StaleBrokerEpochError)
    assert isinstance(answers[1], Registered)


def test_a_second_live_process_with_the_same_id_is_refused() -> None:
    cluster = SingleController(1)
    message = cluster.refused(cluster.registration(0, "second"), DuplicateBrokerRegistrationError)
    assert "node.id" in message
    cluster.now_ms += cluster.cluster.settings.duplicate_window_ms
    assert cluster.register(0, "second") > 0


def test_after_a_takeover_whoever_listens_where_a_silent_broker_did_replaces_it_at_once() -> None:
    """kill -9 of all: the new controller has heard of nobody, and nobody waits for the session of the dead."""
    cluster = SingleController(2)
    cluster.cluster.elect(0)
    cluster.cluster.run()
    cluster.beat(1)
    elsewhere = replace(cluster.registration(0, "second"), endpoints=cluster.registration(7).endpoints)
    cluster.refused(elsewhere, DuplicateBrokerRegistrationError)
    assert cluster.register(0, "second") > 0
    cluster.refused(cluster.registration(1, "second"), DuplicateBrokerRegistrationError)  # it has been heard of


def test_a_broker_that_wants_to_stay_fenced_is_told_that_it_is() -> None:
    cluster = SingleController(1)
    assert cluster.beat(0, fence=True).fenced
    assert cluster.beat(0, fence=True).fenced


def test_a_fenced_broker_may_be_replaced_at_once() -> None:
    cluster = SingleController(1)
    cluster.beat(0, fence=True)
    assert cluster.register(0, "second") == cluster.image.offset


def test_a_late_copy_of_a_dead_incarnations_registration_does_not_replace_its_successor() -> None:
    cluster = SingleController(1)
    late = cluster.registration(0)
    cluster.beat(0, fence=True)
    epoch = cluster.register(0, "second")  # fenced still: it has not sent a heartbeat yet
    assert "newer process" in cluster.refused(late, DuplicateBrokerRegistrationError)
    assert cluster.image.brokers[0].incarnation == "second"
    assert cluster.register(0, "second") == epoch


def test_a_process_that_the_late_registration_of_a_dead_one_has_replaced_returns() -> None:
    """The dead one never sends a heartbeat. Seed 420017 of groups: the live one was refused until its next restart."""
    cluster = SingleController(1)
    live = cluster.registration(0)
    cluster.beat(0, fence=True)
    cluster.register(0, "dead")
    assert "newer process" in cluster.refused(live, DuplicateBrokerRegistrationError)
    cluster.now_ms += cluster.cluster.settings.duplicate_window_ms
    epoch = cluster.register(0, live.incarnation)
    assert not cluster.beat(0, offset=epoch).fenced
    cluster.refused(cluster.registration(0, "dead"), DuplicateBrokerRegistrationError)


def test_a_late_registration_does_not_replace_an_unfenced_broker_that_is_silent_for_a_moment() -> None:
    """Three heartbeats that are late are no end of a session."""
    cluster = SingleController(1)
    dead = cluster.registration(0)
    cluster.beat(0, fence=True)
    epoch = cluster.register(0, "live")
    assert not cluster.beat(0, offset=epoch).fenced
    cluster.now_ms += cluster.cluster.settings.duplicate_window_ms
    assert "newer process" in cluster.refused(dead, DuplicateBrokerRegistrationError)
    assert not cluster.beat(0, offset=epoch).fenced


def test_a_process_that_was_replaced_returns_if_the_other_one_was_unregistered() -> None:
    cluster = SingleController(1)
    live = cluster.registration(0)
    cluster.beat(0, fence=True)
    cluster.register(0, "dead")
    cluster.ask(UnregisterBrokerRequest(node_id=0))
    assert cluster.register(0, live.incarnation) > 0


def test_a_folder_of_another_cluster_is_refused_and_both_are_named() -> None:
    cluster = SingleController(0)
    stranger = replace(cluster.registration(0), cluster_id="another")
    message = cluster.refused(stranger, InconsistentClusterIdError)
    assert "another" in message
    assert cluster.image.cluster_id in message


def test_a_version_that_cannot_read_the_cluster_is_refused() -> None:
    cluster = SingleController(0)
    cluster.refused(replace(cluster.registration(0), min_feature_level=2, max_feature_level=3), UnsupportedVersionError)
    cluster.refused(replace(cluster.registration(0), endpoints=()), InvalidRequestError)
    cluster.refused(replace(cluster.registration(0), node_id=-1), InvalidRequestError)


def test_a_broker_is_unfenced_only_when_it_has_seen_its_own_registration() -> None:
    cluster = SingleController(0)
    epoch = cluster.register(0)
    assert cluster.beat(0, offset=epoch - 1).fenced
    assert not cluster.beat(0, offset=epoch).fenced


def test_heartbeats_of_an_old_registration_are_refused() -> None:
    cluster = SingleController(1)
    old = cluster.epochs[0]
    cluster.beat(0, fence=True)
    cluster.register(0, "second")
    cluster.refused(BrokerHeartbeat(node_id=0, broker_epoch=old, metadata_offset=99), StaleBrokerEpochError)
    cluster.refused(BrokerHeartbeat(node_id=7, broker_epoch=1, metadata_offset=99), StaleBrokerEpochError)


def test_a_session_ends_without_heartbeats_and_not_before() -> None:
    cluster = SingleController(2)
    cluster.now_ms += 2_999
    cluster.tick()
    assert not cluster.image.brokers[0].fenced
    cluster.beat(1)
    cluster.now_ms += 1
    cluster.tick()
    assert cluster.image.brokers[0].fenced
    assert not cluster.image.brokers[1].fenced


def test_a_new_controller_gives_every_broker_a_full_session() -> None:
    cluster = SingleController(2)
    cluster.now_ms += 2_999
    cluster.cluster.elect(0)
    cluster.cluster.run()
    cluster.tick()
    cluster.now_ms += 2_999
    cluster.tick()
    assert not cluster.image.brokers[0].fenced
    deadline_ms = cluster.cluster.nodes[0].next_deadline_ms(cluster.now_ms)
    assert deadline_ms == cluster.now_ms + 1
    cluster.now_ms += 1
    cluster.tick()
    assert cluster.image.brokers[0].fenced


def test_a_controlled_shutdown_moves_leaderships_and_waits_until_the_others_know() -> None:
    cluster = SingleController()
    cluster.topic(0, 1, 2)
    answer = cluster.beat(0, stop=True)
    assert not answer.may_shut_down and not answer.fenced
    assert cluster.image.brokers[0].in_controlled_shutdown
    assert not cluster.image.brokers[0].fenced
    assert (cluster.partition().leader, cluster.partition().isr) == (1, (1, 2))
    cluster.beat(1)
    assert not cluster.beat(0, stop=True).may_shut_down, "broker 2 has not seen the new leader yet"
    cluster.beat(2)
    assert cluster.beat(0, stop=True).may_shut_down
    assert cluster.image.brokers[0].fenced
    assert cluster.beat(0, stop=True).may_shut_down


def test_the_only_broker_may_shut_down_too() -> None:
    cluster = SingleController(1)
    cluster.topic(0)
    cluster.beat(0, stop=True)
    assert cluster.beat(0, stop=True).may_shut_down
    assert cluster.partition().eligible_leader_replicas == (0,)
    cluster.start(0, "second")
    assert cluster.partition().leader == 0


def test_an_unregistered_broker_is_gone() -> None:
    cluster = SingleController()
    cluster.topic(0, 1)
    assert isinstance(cluster.ask(UnregisterBrokerRequest(node_id=0)), Done)
    assert 0 not in cluster.image.brokers
    assert (cluster.partition().leader, cluster.partition().isr) == (1, (1,))
    cluster.refused(UnregisterBrokerRequest(node_id=0), BrokerIdNotRegisteredError)


def test_producer_ids_come_in_blocks_that_never_overlap() -> None:
    cluster = SingleController(2)
    blocks = [
        cluster.ask(AllocateProducerIds(node_id=node_id, broker_epoch=cluster.epochs[node_id])) for node_id in (0, 1)
    ]
    assert blocks == [ProducerIdBlock(first=0, count=1000), ProducerIdBlock(first=1000, count=1000)]
    cluster.refused(AllocateProducerIds(node_id=0, broker_epoch=-5), StaleBrokerEpochError)


def test_the_last_producer_ids_are_those_that_fit_into_a_batch() -> None:
    cluster = SingleController(1)
    request = AllocateProducerIds(node_id=0, broker_epoch=cluster.epochs[0])
    last = 2**63 - 1 - 1000
    view = MetadataDelta(replace(cluster.image, next_producer_id=last))
    (record,) = allocate(view, request).records
    assert record == ProducerIdsRecord(next_producer_id=2**63 - 1)
    with pytest.raises(InvalidRequestError, match="all producer ids"):
        allocate(MetadataDelta(replace(cluster.image, next_producer_id=last + 1)), request)


# --- coordinator slots -----------------------------------------------------------------------------------------------


def coordinators(cluster: SingleController) -> Counter[int]:
    return Counter(slot.coordinator for slot in cluster.image.slots)


def group(cluster: SingleController, slot: int, /, **changes: object) -> AppendGroupRecords:
    owner = cluster.image.slots[slot]
    values = {"slot": slot, "coordinator_epoch": owner.coordinator_epoch, "group_id": "g", **changes}
    record = GroupRecord(group_epoch=1, assignment_epoch=1, **values)  # type: ignore[arg-type]
    part = SlotAppend.of(slot, owner.coordinator_epoch, (record,))
    return AppendGroupRecords(node_id=owner.coordinator, slots=(part,))


def of(request: AppendGroupRecords, *parts: SlotAppend) -> AppendGroupRecords:
    return replace(request, slots=parts)


def refusals(cluster: SingleController, request: AppendGroupRecords) -> list[tuple[int, int]]:
    answer = cluster.ask(request)
    assert isinstance(answer, GroupRecordsAppended)
    return [(item.slot, item.error) for item in answer.refused]


def test_an_append_without_records_asks_who_coordinates_the_slot() -> None:
    cluster = SingleController(2)
    slot = cluster.image.slots[3]
    for epoch, expected in (
        (slot.coordinator_epoch, []),
        (slot.coordinator_epoch - 1, [(3, ErrorCode.NOT_COORDINATOR)]),
    ):
        question = AppendGroupRecords(node_id=slot.coordinator, slots=(SlotAppend.of(3, epoch, ()),))
        assert refusals(cluster, question) == expected
    assert refusals(cluster, replace(question, node_id=7)) == [(3, ErrorCode.NOT_COORDINATOR)]
    assert cluster.image.slots[3] == slot, "nothing is changed"


def test_a_controller_that_was_deposed_does_not_confirm_who_coordinates_a_slot() -> None:
    """It does not know it yet, for example because its process was stopped, and what it knows is what it heard before."""
    cluster = SingleController(2)
    slot, node = cluster.image.slots[3], cluster.cluster.nodes[0]
    question = AppendGroupRecords(node_id=slot.coordinator, slots=(SlotAppend.of(3, slot.coordinator_epoch, ()),))
    answers: list[object] = []
    node.submit(question, cluster.now_ms, answers.append)
    assert answers == []  # it must commit a record first
    cluster.cluster.run()
    (answer,) = answers
    assert isinstance(answer, GroupRecordsAppended) and answer.refused == ()


def test_slots_spread_over_the_brokers_of_a_young_cluster() -> None:
    cluster = SingleController(3)
    cluster.now_ms += 2_000
    cluster.tick()
    assert sorted(coordinators(cluster).values()) == [16, 17, 17]


def test_a_slot_with_a_group_moves_only_with_its_coordinator() -> None:
    cluster = SingleController(1)
    for slot in range(50):
        assert refusals(cluster, group(cluster, slot)) == []
    cluster.start(1)
    cluster.now_ms += 2_000
    cluster.beat(0)
    cluster.tick()
    assert coordinators(cluster) == {0: 50}
    cluster.beat(0, fence=True)
    assert coordinators(cluster) == {1: 50}
    cluster.beat(0)
    cluster.tick()
    assert coordinators(cluster) == {1: 50}


def test_every_move_has_a_new_coordinator_epoch_also_one_to_nobody() -> None:
    cluster = SingleController(1)
    before = cluster.image.slots[7]
    cluster.beat(0, fence=True)
    nobody = cluster.image.slots[7]
    assert (nobody.coordinator, nobody.coordinator_epoch) == (NO_COORDINATOR, before.coordinator_epoch + 1)
    cluster.beat(0)
    assert cluster.image.slots[7].coordinator_epoch == before.coordinator_epoch + 2


def test_a_restarted_coordinator_never_keeps_its_epoch() -> None:
    cluster = SingleController(1)
    before = cluster.image.slots[7].coordinator_epoch
    cluster.now_ms += 2_000
    cluster.start(0, "second")
    assert cluster.image.slots[7].coordinator_epoch > before


def test_group_records_are_taken_from_the_coordinator_of_that_epoch_only() -> None:
    cluster = SingleController(2)
    request = group(cluster, 7)
    (part,) = request.slots
    assert refusals(cluster, request) == []
    assert len(list(cluster.cluster.nodes[0].state.slot_snapshot(7)[1])) == 1
    moved, invalid = (7, ErrorCode.NOT_COORDINATOR), (7, ErrorCode.INVALID_REQUEST)
    assert refusals(cluster, replace(request, node_id=5)) == [moved]
    assert refusals(cluster, of(request, replace(part, coordinator_epoch=0))) == [moved]
    assert refusals(cluster, of(request, replace(part, slot=50))) == [(50, ErrorCode.INVALID_REQUEST)]
    assert refusals(cluster, group(cluster, 7, slot=8)) == [invalid]
    assert refusals(cluster, group(cluster, 7, coordinator_epoch=99)) == [invalid]
    assert refusals(cluster, of(request, replace(part, batch=b"junk"))) == [invalid]
    forged: tuple[Record, ...] = (TopicRecord(name="forged", topic_id="0"),)
    assert refusals(cluster, of(request, SlotAppend.of(7, part.coordinator_epoch, forged))) == [invalid]
    endless = StagedDecisionRecord(
        slot=7, coordinator_epoch=part.coordinator_epoch, part=0, part_count=10**6, batch=b""
    )
    assert refusals(cluster, of(request, SlotAppend.of(7, part.coordinator_epoch, (endless,)))) == [invalid]
    cluster.refused(of(request, part, part), InvalidRequestError)


def test_group_records_that_would_hold_the_quorums_thread_are_refused_before_they_are_decoded() -> None:
    """300,000 records held it for 224 ms; a decision in parts of 1,300,000 for two seconds, on every voter."""
    cluster = SingleController(2)
    (part,) = group(cluster, 7).slots
    told = cluster.refused(
        of(group(cluster, 7), replace(part, batch=bytes(MAX_COMMAND_BYTES + 1))), InvalidRequestError
    )
    assert f"{MAX_COMMAND_BYTES + 1} bytes of group records" in told

    def first_part(count: int, start: bytes = b"") -> list[tuple[int, ErrorCode]]:
        batch = start or b"\x93\x01\x00\xdd" + count.to_bytes(4, "big") + b"..."
        staged = StagedDecisionRecord(
            slot=7, coordinator_epoch=part.coordinator_epoch, part=0, part_count=2, batch=batch
        )
        return refusals(cluster, of(group(cluster, 7), SlotAppend.of(7, part.coordinator_epoch, (staged,))))

    assert first_part(MAX_STAGED_RECORDS) == []
    assert first_part(MAX_STAGED_RECORDS + 1) == [(7, ErrorCode.INVALID_REQUEST)]
    assert (
        first_part(0, b"\x93\x01\x00\xdd\x00")
        == first_part(0, b"\x93\x01\x07\xdd....")
        == [(7, ErrorCode.INVALID_REQUEST)]
    )


@pytest.mark.parametrize("count", [0, 1, 15, 16, 255, 65_535, 65_536])
def test_the_first_bytes_of_a_batch_announce_its_records(count: int) -> None:
    record = RemoveGroupRecord(slot=7, coordinator_epoch=1, group_id="g")
    batch = encode_batch(RecordBatch(controller_epoch=0, records=(record,) * count))
    assert announced_records(batch + bytes(8)) == count


def transaction(cluster: SingleController, slot: int) -> AppendGroupRecords:
    """Behind a record of a group."""
    owner = cluster.image.slots[slot]
    of_slot = {"slot": slot, "coordinator_epoch": owner.coordinator_epoch}
    records = (RemoveGroupRecord(group_id="g", **of_slot), RemoveTransactionRecord(transactional_id="tx", **of_slot))
    return AppendGroupRecords(node_id=owner.coordinator, slots=(SlotAppend.of(slot, owner.coordinator_epoch, records),))


def test_the_first_record_of_transactions_raises_the_feature_level_for_good() -> None:
    cluster = SingleController(0)
    epoch = cluster.ask(replace(cluster.registration(0), max_feature_level=2))
    assert isinstance(epoch, Registered)
    cluster.epochs[0] = epoch.broker_epoch
    cluster.beat(0)
    assert refusals(cluster, group(cluster, 7)) == []
    assert cluster.image.feature_level == 1, "groups alone leave the way back open"
    assert refusals(cluster, transaction(cluster, 8)) == []
    assert cluster.image.feature_level == TRANSACTIONS_LEVEL
    cluster.refused(cluster.registration(1), UnsupportedVersionError)


def test_records_of_transactions_wait_until_every_broker_can_read_them() -> None:
    cluster = SingleController(1)  # of the first version
    assert refusals(cluster, transaction(cluster, 7)) == [(7, ErrorCode.UNSUPPORTED_VERSION)]
    assert cluster.image.feature_level == 1


@pytest.mark.parametrize(
    ("known", "state", "refused", "level"),
    [
        (PREPARED_LEVEL, TransactionState.PREPARED, [], PREPARED_LEVEL),
        (PREPARED_LEVEL, TransactionState.ONGOING, [], TRANSACTIONS_LEVEL),
        (PREPARED_LEVEL - 1, TransactionState.PREPARED, [(7, ErrorCode.UNSUPPORTED_VERSION)], 1),
    ],
)
def test_a_prepared_transaction_raises_the_feature_level(
    known: int, state: TransactionState, refused: list[tuple[int, int]], level: int
) -> None:
    cluster = SingleController(0)
    epoch = cluster.ask(replace(cluster.registration(0), max_feature_level=known))
    assert isinstance(epoch, Registered)
    cluster.epochs[0] = epoch.broker_epoch
    cluster.beat(0)
    epoch_of_slot = cluster.image.slots[7].coordinator_epoch
    record = TransactionRecord(
        slot=7,
        coordinator_epoch=epoch_of_slot,
        transactional_id="tx",
        producer_id=1,
        producer_epoch=0,
        last_producer_epoch=-1,
        previous_producer_id=-1,
        next_producer_id=-1,
        timeout_ms=1,
        state=state.value,
        partitions=(),
        offset_groups=(),
        started_ms=0,
        updated_ms=0,
    )
    request = AppendGroupRecords(node_id=0, slots=(SlotAppend.of(7, epoch_of_slot, (record,)),))
    assert refusals(cluster, request) == refused
    assert cluster.image.feature_level == level


def test_a_stale_slot_does_not_fail_the_others_of_its_append() -> None:
    cluster = SingleController(1)
    good, stale = (group(cluster, slot).slots[0] for slot in (7, 8))
    request = of(group(cluster, 7), replace(stale, coordinator_epoch=0), good)
    assert refusals(cluster, request) == [(8, ErrorCode.NOT_COORDINATOR)]
    assert [len(list(cluster.cluster.nodes[0].state.slot_snapshot(slot)[1])) for slot in (7, 8)] == [1, 0]


def test_records_decided_before_a_move_are_void_after_it() -> None:
    cluster = SingleController(2)
    request = group(cluster, 7)
    cluster.beat(request.node_id, fence=True)
    assert refusals(cluster, request) == [(7, ErrorCode.NOT_COORDINATOR)]
    publication = cluster.cluster.publications[0][-1]
    assert publication.group_records == ()


def test_a_broker_with_very_many_partitions_is_fenced_by_several_commands() -> None:
    """One for 20,000 partitions is larger than the quorum takes: the broker kept its leaderships until its session ended."""
    cluster = SingleController(2)
    answer = cluster.ask(CreateTopic(name="t", partition_count=5_000, replication_factor=2))
    assert not isinstance(answer, BarnabasError), answer
    quorum, answers = cluster.cluster, list[object]()
    quorum.nodes[0].submit(FenceBroker(node_id=0, broker_epoch=cluster.epochs[0]), cluster.now_ms, answers.append)
    commands = [decode_batch(entry.command).records for entry in quorum.tail]
    changed = [item for records in commands for item in records if isinstance(item, PartitionChangeRecord)]
    assert len(changed) == 5_000 and max(map(len, commands)) == MAX_RECORDS_PER_COMMAND
    assert isinstance(commands[-1][-1], BrokerChangeRecord) and not answers
    quorum.run()
    assert isinstance(answers[0], Done)
    assert {partition.leader for partition in cluster.image.topics["t"].partitions} == {1}


def test_a_broker_whose_process_is_gone_is_fenced_at_once_but_not_its_successor() -> None:
    cluster = SingleController(2)
    gone = FenceBroker(node_id=0, broker_epoch=cluster.epochs[0])
    assert isinstance(cluster.ask(gone), Done)
    assert cluster.image.brokers[0].fenced and not cluster.image.brokers[1].fenced
    before = cluster.image.offset
    assert isinstance(cluster.ask(gone), Done) and cluster.image.offset == before, "it is fenced already"
    cluster.start(0, "second")
    before = cluster.image.offset
    assert isinstance(cluster.ask(gone), Done) and cluster.image.offset == before, "the word is of the process before"
    assert not cluster.image.brokers[0].fenced
    assert isinstance(cluster.ask(FenceBroker(node_id=7, broker_epoch=1)), Done) and cluster.image.offset == before


def recovered(cluster: SingleController) -> MetadataCluster:
    """The quorum went on from an old copy, and has no leader yet."""
    quorums = cluster.cluster
    accepted = RecordBatch(controller_epoch=quorums.term, records=(RecoveryRecord(recovery_epoch=1_000),))
    quorums.quorums[0].append(encode_batch(accepted), term=quorums.term, done=lambda outcome: None)
    quorums.run()
    return quorums


def test_after_a_recovery_the_survivor_leads_though_the_others_never_come_back() -> None:
    """Its registration is the first thing that the controller hears; the brokers of before seem to be alive still."""
    cluster = SingleController(3)
    cluster.topic(0, 1, 2, min_insync_replicas="2")
    quorums = recovered(cluster)
    quorums.elect(0)
    quorums.run()
    cluster.register(0, "second")
    assert all(broker.fenced for broker in cluster.image.brokers.values())
    assert cluster.partition().eligible_leader_replicas == (0, 1, 2)
    assert not cluster.beat(0).fenced
    assert (cluster.partition().leader, cluster.partition().isr) == (0, (0,))
    assert cluster.partition().eligible_leader_replicas == (1, 2)
    quorums.elect(0)  # a later term: nobody is fenced again
    quorums.run()
    cluster.tick()
    assert not cluster.image.brokers[0].fenced


@pytest.mark.parametrize("commands", [0, 1], ids=["before its first decision", "half-way"])
def test_the_first_controller_after_a_recovery_may_fall_before_it_has_fenced_all(commands: int) -> None:
    """The process that was recovered is killed just after it claimed its term, and started again."""
    cluster = SingleController(3)
    cluster.ask(CreateTopic(name="many", assignment=((0, 1, 2),) * MAX_RECORDS_PER_COMMAND))
    cluster.topic(0, 1, 2, min_insync_replicas="2")
    quorums = recovered(cluster)
    quorums.elect(0)
    quorums.run()
    quorums.tick(cluster.now_ms)
    assert len(quorums.tail) > 1
    quorums.commit(commands)
    quorums.tail.clear()
    quorums.restart(0, from_snapshot=False)
    quorums.elect(0)
    quorums.run()
    cluster.register(0, "second")
    assert all(broker.fenced for broker in cluster.image.brokers.values())
    assert not cluster.beat(0).fenced
    for name in ("many", "t"):
        assert (cluster.partition(name).leader, cluster.partition(name).isr) == (0, (0,))


@pytest.mark.parametrize("wrong", [{"node_id": -1}, {"incarnation": ""}, {"endpoints": ()}])
def test_a_registration_without_an_id_an_incarnation_or_an_endpoint_is_refused(wrong: dict[str, object]) -> None:
    cluster = SingleController(0)
    answer = cluster.ask(replace(cluster.registration(0), **wrong))  # type: ignore[arg-type]
    assert isinstance(answer, InvalidRequestError)
    assert cluster.register(0) > 0
