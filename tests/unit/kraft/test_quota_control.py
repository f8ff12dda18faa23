"""Quotas in the quorum: what is set and removed, and what is refused."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace
from unit.kraft.single_controller import SingleController

from barnabas.kraft.access import quota_control
from barnabas.kraft.metadata.delta import MetadataDelta
from barnabas.kraft.metadata.feature_levels import QUOTAS_LEVEL
from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.records import QuotaRecord
from barnabas.kraft.metadata.replay import replay
from barnabas.kraft.metadata.requests import Done, Registered
from barnabas.log.vocabulary.access.quotas import (
    DEFAULT,
    MAX_CHANGES_PER_REQUEST,
    MAX_QUOTAS,
    QuotaChange,
    QuotaEntity,
    QuotaFilter,
    QuotaKind,
    QuotaPart,
    entity_of,
)
from barnabas.log.vocabulary.cluster_changes import AlterQuotasRequest
from barnabas.log.vocabulary.errors import InvalidRequestError, PolicyViolationError, UnsupportedVersionError

ALICE = QuotaEntity(user="alice")
BOTH = QuotaEntity(user="alice", client_id="app")
ANY_CLIENT = QuotaEntity(client_id=DEFAULT)
HOST = QuotaEntity(ip="10.0.0.1")
PRODUCE, FETCH, CONNECTION = QuotaKind.PRODUCE, QuotaKind.FETCH, QuotaKind.CONNECTION


def change(entity: QuotaEntity = ALICE, kind: str = PRODUCE, value: float | None = 1000.0) -> QuotaChange:
    return QuotaChange(entity=entity, kind=kind, value=value)


def cluster_of(level: int = QUOTAS_LEVEL) -> SingleController:
    cluster = SingleController(0)
    answer = cluster.ask(replace(cluster.registration(0), max_feature_level=level))
    assert isinstance(answer, Registered)
    cluster.epochs[0] = answer.broker_epoch
    cluster.beat(0)
    return cluster


def alter(cluster: SingleController, *changes: QuotaChange) -> None:
    assert isinstance(cluster.ask(AlterQuotasRequest(changes=changes)), Done)


def test_values_are_set_replaced_and_removed() -> None:
    cluster = cluster_of()
    alter(cluster, change(), change(kind=FETCH, value=5.0), change(BOTH), change(HOST, CONNECTION, 3.0))
    assert cluster.image.feature_level == QUOTAS_LEVEL
    assert cluster.image.quotas == {
        ALICE: {PRODUCE: 1000.0, FETCH: 5.0},
        BOTH: {PRODUCE: 1000.0},
        HOST: {CONNECTION: 3.0},
    }
    before = cluster.image
    alter(cluster, change(), change(ANY_CLIENT, value=None))
    assert cluster.image.quotas is before.quotas, "nothing has changed"
    alter(cluster, change(value=7.0), change(kind=FETCH, value=None), change(HOST, CONNECTION, None))
    assert cluster.image.quotas == {ALICE: {PRODUCE: 7.0}, BOTH: {PRODUCE: 1000.0}}
    alter(cluster, change(value=8.0), change(value=None), change(BOTH, value=None))
    assert cluster.image.quotas == {}, "the last change of a value counts"


def test_a_request_may_only_be_checked() -> None:
    cluster = cluster_of()
    assert isinstance(cluster.ask(AlterQuotasRequest(changes=(change(),), validate_only=True)), Done)
    assert cluster.image.quotas == {}
    cluster.refused(AlterQuotasRequest(changes=(change(value=0.0),), validate_only=True), InvalidRequestError)


@pytest.mark.parametrize(
    "wrong",
    [
        change(QuotaEntity()),
        change(QuotaEntity(user="alice", ip="10.0.0.1"), CONNECTION),
        change(QuotaEntity(ip="host.example"), CONNECTION),
        change(QuotaEntity(ip="010.0.0.1"), CONNECTION),
        change(QuotaEntity(ip="2001:DB8::1"), CONNECTION),
        change(QuotaEntity(user="a" * 1001)),
        change(kind="bytes"),
        change(kind=CONNECTION),
        change(HOST, PRODUCE),
        change(value=0.0),
        change(value=-1.0),
        change(value=math.nan),
        change(value=math.inf),
        change(value=1e308),
        change(kind="request_percentage", value=5e-324),
        change(value=1.5),
    ],
)
def test_a_quota_that_could_never_hold_is_refused_with_its_request(wrong: QuotaChange) -> None:
    cluster = cluster_of()
    cluster.refused(AlterQuotasRequest(changes=(change(), wrong)), InvalidRequestError)
    assert cluster.image.quotas == {}


def test_shares_of_time_and_rates_of_changes_may_be_broken_numbers() -> None:
    cluster = cluster_of()
    alter(cluster, change(kind=QuotaKind.REQUEST, value=0.5), change(kind=QuotaKind.MUTATION, value=2.5))
    assert cluster.image.quotas[ALICE] == {"request_percentage": 0.5, "controller_mutation_rate": 2.5}


def test_the_number_of_quotas_is_bounded() -> None:
    cluster = cluster_of()
    many = [change(QuotaEntity(user=f"user {number}")) for number in range(MAX_QUOTAS)]
    cluster.refused(AlterQuotasRequest(changes=tuple(many[: MAX_CHANGES_PER_REQUEST + 1])), InvalidRequestError)
    for start in range(0, MAX_QUOTAS, MAX_CHANGES_PER_REQUEST):
        alter(cluster, *many[start : start + MAX_CHANGES_PER_REQUEST])
    cluster.refused(AlterQuotasRequest(changes=(change(),)), PolicyViolationError)
    alter(cluster, change(many[0].entity, value=5.0))  # no more than before
    alter(cluster, change(many[0].entity, value=None))
    alter(cluster, change())


def test_quotas_beyond_the_limit_of_this_release_can_be_changed_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of()
    alter(cluster, change(), change(BOTH), change(HOST, CONNECTION))
    monkeypatch.setattr(quota_control, "MAX_QUOTAS", 1)
    cluster.refused(AlterQuotasRequest(changes=(change(ANY_CLIENT),)), PolicyViolationError)
    alter(cluster, change(value=5.0))
    alter(cluster, change(value=None), change(BOTH, value=None))
    assert cluster.image.quotas == {HOST: {CONNECTION: 1000.0}}


def test_quotas_wait_until_every_broker_can_read_them() -> None:
    cluster = cluster_of(QUOTAS_LEVEL - 1)
    assert "quotas" in cluster.refused(AlterQuotasRequest(changes=(change(),)), UnsupportedVersionError)
    assert cluster.image.quotas == {}


def test_a_record_that_changes_nothing_is_void() -> None:
    delta = MetadataDelta(MetadataImage())
    assert [replay(delta, QuotaRecord(of=change()), 1) for _ in range(2)] == [True, False]
    assert [replay(delta, QuotaRecord(of=change(value=None)), 2) for _ in range(2)] == [True, False]
    assert delta.apply(3).quotas == {}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (QuotaFilter(), {ALICE, BOTH, ANY_CLIENT, HOST}),
        (QuotaFilter(parts=(QuotaPart(kind="user", name="alice"),)), {ALICE, BOTH}),
        (QuotaFilter(parts=(QuotaPart(kind="user", name="alice"),), strict=True), {ALICE}),
        (QuotaFilter(parts=(QuotaPart(kind="client-id"),)), {BOTH, ANY_CLIENT}),
        (QuotaFilter(parts=(QuotaPart(kind="client-id", name=DEFAULT),)), {ANY_CLIENT}),
        (QuotaFilter(parts=(QuotaPart(kind="client-id"), QuotaPart(kind="user")), strict=True), {BOTH}),
        (QuotaFilter(parts=(QuotaPart(kind="ip"),)), {HOST}),
        (QuotaFilter(strict=True), set()),
    ],
)
def test_a_filter_finds_entities_by_their_parts(wanted: QuotaFilter, found: set[QuotaEntity]) -> None:
    assert {one for one in (ALICE, BOTH, ANY_CLIENT, HOST) if wanted.matches(one)} == found


def test_entities_in_kafkas_words() -> None:
    assert entity_of([("user", None), ("client-id", "app")]) == QuotaEntity(user=DEFAULT, client_id="app")
    assert str(QuotaEntity(user=DEFAULT, client_id="app")) == "default user, client-id 'app'"
    for wrong, told in (([("group", "g")], "not for 'group'"), ([("ip", "a"), ("ip", "b")], "ip twice")):
        with pytest.raises(InvalidRequestError, match=told):
            entity_of(wrong)
