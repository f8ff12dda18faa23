"""Brokers that know more than the quorum: refused, until a recovery accepts the loss and raises all that may have been seen."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from unit.kraft.single_controller import SingleController

from barnabas.kraft.metadata.controller_errors import DivergentMetadataError
from barnabas.kraft.metadata.delta import MetadataDelta
from barnabas.kraft.metadata.image import ControllerTerm, MetadataImage
from barnabas.kraft.metadata.metadata_history import check_follower, check_position
from barnabas.kraft.metadata.records import ControllerRecord, RecoveryRecord
from barnabas.kraft.metadata.replay import LOST_EPOCHS, LOST_PRODUCER_IDS, MAX_TERMS, replay
from barnabas.kraft.metadata.requests import BrokerHeartbeat, RegisterBroker, Registered, decode_request, encode_request
from barnabas.kraft.node.snapshot import decode_snapshot, encode_snapshot
from barnabas.log.vocabulary.cluster_changes import UnregisterBrokerRequest
from barnabas.log.vocabulary.errors import InconsistentClusterIdError
from barnabas.log.vocabulary.metadata_position import MetadataPosition

from .group_state_fake import FakeGroupState

IMAGE = MetadataImage(
    cluster_id="c",
    offset=150,
    controller_epoch=5,
    terms=(
        ControllerTerm(epoch=2, start=10, claim=7),
        ControllerTerm(epoch=3, start=40, claim=8),
        ControllerTerm(epoch=5, start=100, claim=9),
    ),
)


def at(controller_epoch: int, offset: int, *, claim: int = 0, recovery_epoch: int = 0) -> MetadataPosition:
    return MetadataPosition(
        recovery_epoch=recovery_epoch, controller_epoch=controller_epoch, claim=claim, offset=offset
    )


@pytest.mark.parametrize(
    "known",
    [
        at(0, 0),
        at(1, 9),
        at(1, 9, claim=99),  # too long ago for the terms that are remembered
        at(2, 39, claim=7),
        at(3, 99, claim=8),
        at(5, 150, claim=9),
        at(5, 160, claim=9),  # the controller's own image may lag behind that of others
        at(3, 50),  # from a version that knows no claims
    ],
)
def test_positions_of_the_same_history_are_taken(known: MetadataPosition) -> None:
    check_position(MetadataDelta(IMAGE), 3, known=known, applied=known)


@pytest.mark.parametrize(
    ("known", "cause"),
    [
        (at(6, 120), "has reached controller epoch 5 only"),
        (at(3, 100, claim=8), "controller epoch 5 of this quorum began at offset 100 already"),
        (at(1, 10), "controller epoch 2 of this quorum began at offset 10 already"),
        (at(4, 99), "has had no controller epoch 4"),
        (at(5, 101, claim=1), "another controller, or another process of it, began that epoch"),
        (at(2, 39, claim=8), "another controller, or another process of it, began that epoch"),  # the oldest remembered
        (at(1, 5, recovery_epoch=1), "knows of no recovery behind 0"),
    ],
)
def test_positions_of_another_history_are_refused(known: MetadataPosition, cause: str) -> None:
    with pytest.raises(DivergentMetadataError, match=cause) as refused:
        check_position(MetadataDelta(IMAGE), 3, known=known, applied=None)
    assert "broker 3 knows the metadata up to offset" in refused.value.message
    assert "barnabas cluster recover" in refused.value.message
    with pytest.raises(DivergentMetadataError):
        check_position(MetadataDelta(IMAGE), 3, known=None, applied=known)


def test_after_a_recovery_a_note_may_be_ahead_and_the_memory_of_a_process_may_not() -> None:
    view = MetadataDelta(replace(IMAGE, recovery_epoch=77, recovery_offset=90))
    ahead, behind = at(6, 500), at(3, 60, claim=8)
    check_position(view, 3, known=ahead, applied=None)
    check_position(view, 3, known=ahead, applied=behind)  # a fresh process that follows still
    with pytest.raises(DivergentMetadataError, match="start broker 3 again"):
        check_position(view, 3, known=None, applied=at(3, 90))
    with pytest.raises(DivergentMetadataError, match="no recovery behind 77"):
        check_position(view, 3, known=at(1, 1, recovery_epoch=78), applied=None)


@pytest.mark.parametrize(
    ("applied", "is_taken"),
    [
        (at(5, 120, claim=9), True),
        (at(3, 60), True),  # from a version that knows no claims
        (at(0, 0), True),
        (at(3, 110, claim=8), False),  # this history was in epoch 5 by then: there was a recovery before the last one
        (at(4, 60), False),
        (at(5, 120, claim=1), False),  # the copy ended with what another leader of that epoch had not committed
        (at(6, 120), False),
    ],
)
def test_what_a_process_holds_of_before_the_recovery_must_be_of_this_history(
    applied: MetadataPosition, is_taken: bool
) -> None:
    view = replace(IMAGE, recovery_epoch=77, recovery_offset=140)
    for known in (None, applied):
        if is_taken:
            check_position(view, 3, known=known, applied=applied)
            check_follower(view, 3, applied)
            continue
        with pytest.raises(DivergentMetadataError, match="start broker 3 again"):
            check_position(view, 3, known=known, applied=applied)
        with pytest.raises(DivergentMetadataError, match="start broker 3 again"):
            check_follower(view, 3, applied)
    check_position(view, 3, known=applied, applied=None)  # a note, and a process that begins from nothing


def test_old_versions_tell_nothing_and_are_taken() -> None:
    cluster = SingleController(1)
    registration = cluster.registration(0)
    assert registration.known is None and registration.applied is None
    told = decode_request(encode_request(replace(registration, known=at(5, 9), applied=at(5, 8))))
    assert isinstance(told, RegisterBroker) and told.known == at(5, 9) and told.applied == at(5, 8)


def test_the_controller_refuses_and_a_health_check_tells() -> None:
    cluster = SingleController(2)
    ahead = at(cluster.image.controller_epoch + 1, cluster.image.offset + 5)
    registration = replace(cluster.registration(0, "second"), known=ahead)
    told = cluster.refused(registration, InconsistentClusterIdError)
    (shown,) = cluster.cluster.nodes[0].controller.refused_brokers
    assert shown == told and "broker 0" in told
    beat = BrokerHeartbeat(node_id=1, broker_epoch=cluster.epochs[1], metadata_offset=1, applied=ahead)
    cluster.refused(beat, DivergentMetadataError)
    assert len(cluster.cluster.nodes[0].controller.refused_brokers) == 2
    answer = cluster.ask(replace(cluster.registration(0), known=cluster.image.position))
    assert isinstance(answer, Registered)
    (shown,) = cluster.cluster.nodes[0].controller.refused_brokers
    assert "broker 1" in shown
    cluster.ask(UnregisterBrokerRequest(node_id=1))
    assert cluster.cluster.nodes[0].controller.refused_brokers == ()


def test_a_controller_that_was_deposed_refuses_nobody_for_good() -> None:
    """It knows less than the others, and does not know it yet. The broker would end itself."""
    cluster = SingleController(1)
    ahead = at(cluster.image.controller_epoch + 1, cluster.image.offset + 5)
    answers: list[object] = []
    node = cluster.cluster.nodes[0]
    node.submit(replace(cluster.registration(0, "second"), known=ahead), 2_000, answers.append)
    assert answers == []  # it must commit a record first
    cluster.cluster.run()
    assert isinstance(answers[0], DivergentMetadataError)


def test_each_term_is_remembered_with_its_claim() -> None:
    delta = MetadataDelta(MetadataImage())
    for epoch in range(1, MAX_TERMS + 3):
        replay(delta, ControllerRecord(controller_id=0, controller_epoch=epoch, claim=epoch + 100), epoch * 10)
        replay(
            delta, ControllerRecord(controller_id=0, controller_epoch=epoch, claim=1), epoch * 10 + 1
        )  # claimed anew
    image = delta.apply(2_000)
    assert len(image.terms) == MAX_TERMS and image.terms[0].epoch == 3
    assert image.terms[-1] == ControllerTerm(epoch=MAX_TERMS + 2, start=(MAX_TERMS + 2) * 10, claim=MAX_TERMS + 102)
    assert image.position == at(MAX_TERMS + 2, 2_000, claim=MAX_TERMS + 102)


def test_a_term_of_which_only_the_end_is_known_is_no_evidence() -> None:
    """A snapshot of an older version names the controller epoch and no terms. Then the controller claims its term once more, as
    it does after an append with an unknown outcome: that is not the claim with which others know the term."""
    upgraded, other = MetadataDelta(MetadataImage(controller_epoch=7)), MetadataDelta(MetadataImage())
    replay(other, ControllerRecord(controller_id=0, controller_epoch=7, claim=11), 100)
    for delta in (upgraded, other):
        replay(delta, ControllerRecord(controller_id=0, controller_epoch=7, claim=12), 200)
    images = [upgraded.apply(201), other.apply(201)]
    for image, view in zip(images, reversed(images), strict=True):
        check_position(MetadataDelta(view), 3, known=image.position, applied=image.position)
    for delta in map(MetadataDelta, images):
        replay(delta, ControllerRecord(controller_id=1, controller_epoch=8, claim=13), 300)
        check_position(delta, 3, known=at(8, 301, claim=13), applied=at(7, 299, claim=11))
        with pytest.raises(DivergentMetadataError, match="began at offset 300 already"):
            check_position(delta, 3, known=at(7, 300), applied=None)


@pytest.mark.parametrize(
    "applied", [at(6, 160), at(5, 160, claim=9), at(5, 160, recovery_epoch=4), at(5, 120, claim=9)]
)
def test_a_voter_that_is_behind_an_observer_contradicts_nothing(applied: MetadataPosition) -> None:
    check_follower(IMAGE, 3, applied)


@pytest.mark.parametrize(
    "applied",
    [
        at(6, 150),  # this voter has that offset, of an earlier epoch
        at(3, 160, claim=8),
        at(5, 160, claim=10),
        at(5, 120, recovery_epoch=4),
    ],
)
def test_a_voter_that_is_behind_still_tells_another_history(applied: MetadataPosition) -> None:
    with pytest.raises(DivergentMetadataError):
        check_follower(IMAGE, 3, applied)


def test_a_recovery_raises_all_that_may_have_been_seen_in_the_lost_part() -> None:
    cluster = SingleController(3)
    cluster.topic(0, 1, 2)
    before = cluster.image
    delta = MetadataDelta(before)
    assert replay(delta, RecoveryRecord(recovery_epoch=1_000), before.offset + 2)
    after = delta.apply(before.offset + 2)
    old, new = before.topics["t"].partitions[0], after.topics["t"].partitions[0]
    assert new.leader_epoch == old.leader_epoch + LOST_EPOCHS
    assert new == replace(old, leader_epoch=new.leader_epoch, partition_epoch=old.partition_epoch + LOST_EPOCHS)
    assert after.next_producer_id == before.next_producer_id + LOST_PRODUCER_IDS
    assert all(
        now.coordinator_epoch == was.coordinator_epoch + LOST_EPOCHS and now.coordinator == was.coordinator
        for was, now in zip(before.slots, after.slots, strict=True)
    )
    assert (after.recovery_epoch, after.recovery_offset) == (1_000, before.offset + 2)
    assert delta.changes.topics == {"t"} and len(delta.changes.slots) == len(after.slots)
    loaded, _ = decode_snapshot(encode_snapshot(after, FakeGroupState()))
    assert loaded == after
    again = MetadataDelta(after)
    replay(again, RecoveryRecord(recovery_epoch=500), after.offset + 5)  # by a machine whose clock is slow
    assert again.recovery_epoch == 1_001
