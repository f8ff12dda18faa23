"""Which quota holds for a client, what it is charged, and how many entities are kept."""

from __future__ import annotations

import time
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.log.vocabulary.access.quotas import DEFAULT, QuotaEntity, QuotaKind
from barnabas.log.vocabulary.errors import ThrottlingQuotaExceededError
from barnabas.net.broker.metrics import ENTITIES_TOLD, quota_samples
from barnabas.net.server.quotas.client_quotas import MAX_ENTITIES, MAX_THROTTLE_MS, ClientQuotas, Quotas

PRODUCE, FETCH, REQUEST = QuotaKind.PRODUCE, QuotaKind.FETCH, QuotaKind.REQUEST
MUTATION, CONNECTION = QuotaKind.MUTATION, QuotaKind.CONNECTION
A_SECOND = dict.fromkeys(QuotaKind, 1.0)
# Kafka's order: DefaultQuotaCallback of ClientQuotaManager.
PRECEDENCE = (
    QuotaEntity(user="u", client_id="c"),
    QuotaEntity(user="u", client_id=DEFAULT),
    QuotaEntity(user="u"),
    QuotaEntity(user=DEFAULT, client_id="c"),
    QuotaEntity(user=DEFAULT, client_id=DEFAULT),
    QuotaEntity(user=DEFAULT),
    QuotaEntity(client_id="c"),
    QuotaEntity(client_id=DEFAULT),
)


def quotas_of(quotas: Quotas) -> ClientQuotas:
    made = ClientQuotas(A_SECOND)
    made.follow(quotas)
    return made


@given(st.sets(st.integers(0, 7), min_size=1), st.sampled_from([PRODUCE, FETCH, MUTATION]))
def test_the_most_specific_quota_holds(present: set[int], kind: QuotaKind) -> None:
    made = quotas_of({PRECEDENCE[number]: {kind: 100.0 + number} for number in present})
    assert made.burst(kind, "u", "c") == 100.0 + min(present)
    assert made.burst(CONNECTION, "u", "c") is None


@pytest.mark.parametrize(
    ("entity", "shared"),
    [
        (QuotaEntity(user="u"), {("u", "c"), ("u", "d")}),
        (QuotaEntity(user=DEFAULT), {("u", "c"), ("u", "d")}),
        (QuotaEntity(client_id=DEFAULT), {("u", "c"), ("v", "c")}),
        (QuotaEntity(client_id="c"), {("u", "c"), ("v", "c")}),
        (QuotaEntity(user=DEFAULT, client_id=DEFAULT), {("u", "c")}),
        (QuotaEntity(user="u", client_id=DEFAULT), {("u", "c")}),
        (QuotaEntity(user="u", client_id="c"), {("u", "c")}),
    ],
)
def test_a_quota_is_shared_by_the_clients_that_its_entity_names(
    entity: QuotaEntity, shared: set[tuple[str, str]]
) -> None:
    for user, client_id in product("uv", "cd"):
        made = quotas_of({entity: {PRODUCE: 100.0}})
        made.charge(PRODUCE, "u", "c", 200, 0)
        waits = made.charge(PRODUCE, user, client_id, 0, 0) > 0
        assert waits == ((user, client_id) in shared), (user, client_id)


def test_without_quotas_nothing_is_kept() -> None:
    made = ClientQuotas(A_SECOND)
    assert not made.is_active and not made.limits_connections
    made.follow({QuotaEntity(ip="10.0.0.1"): {CONNECTION: 5.0}})
    assert not made.is_active and made.limits_connections
    made.follow({QuotaEntity(user="u"): {PRODUCE: 5.0}})
    assert made.is_active and not made.limits_connections
    assert made.charge(PRODUCE, "v", "c", 1e9, 0) == 0
    assert list(made.entities()) == []
    made.follow({})
    assert not made.is_active


def test_a_throttle_time_is_bounded_and_the_debt_is_not() -> None:
    """Else a client would get more than its quota by requests that are worth more than that time."""
    made = quotas_of({QuotaEntity(user="u"): {PRODUCE: 100.0}})
    assert made.charge(PRODUCE, "u", "c", 100 * 101, 0) == MAX_THROTTLE_MS
    assert made.is_refused(PRODUCE, "u", "other", 0) and made.refused == 1
    assert made.is_refused(PRODUCE, "u", "c", 100_000 - MAX_THROTTLE_MS - 1)
    assert not made.is_refused(PRODUCE, "u", "c", 100_000 - MAX_THROTTLE_MS + 1)
    assert not made.is_refused(FETCH, "u", "c", 0)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3_000), st.integers(0, 2_000)), min_size=1, max_size=80))
def test_clients_that_ignore_what_they_are_told_and_reconnect_get_no_more(steps: list[tuple[int, int, int]]) -> None:
    """Any number of connections, none of which waits: each step is a client id, the bytes of a request, and a pause."""
    made = quotas_of({QuotaEntity(user="u"): {PRODUCE: 100.0}})
    now_ms = accepted = 0
    for client, size_bytes, pause_ms in steps:
        now_ms += pause_ms
        if not made.is_refused(PRODUCE, "u", str(client), now_ms):
            made.charge(PRODUCE, "u", str(client), size_bytes, now_ms)
            accepted += size_bytes
        assert accepted <= 100 * (now_ms + 1_000 + MAX_THROTTLE_MS) / 1000 + 3_000


def test_time_of_requests_is_a_share_of_the_loop_and_its_debt_is_bounded() -> None:
    made = quotas_of({QuotaEntity(user="u"): {REQUEST: 10.0}})
    assert made.charge(REQUEST, "u", "c", 100, 0) == 0, "10 percent of a second"
    assert made.charge(REQUEST, "u", "c", 20, 0) == 200
    assert made.charge(REQUEST, "u", "c", 60_000, 0) == MAX_THROTTLE_MS
    assert made.charge(REQUEST, "u", "c", 0, MAX_THROTTLE_MS) == 0


def test_mutations_are_refused_until_they_are_paid_for() -> None:
    made = quotas_of({QuotaEntity(user="u"): {MUTATION: 2.0}})
    made.take_mutations("u", "c", 12, 0)
    with pytest.raises(ThrottlingQuotaExceededError, match="controller_mutation_rate=2 .* in 5001 ms"):
        made.take_mutations("u", "c", 1, 0)
    made.take_mutations("v", "c", 1_000, 0)
    made.take_mutations("u", "c", 1, 5_000)
    assert made.refused == 1


def test_connections_of_an_address() -> None:
    made = quotas_of({QuotaEntity(ip=DEFAULT): {CONNECTION: 2.0}, QuotaEntity(ip="10.0.0.1"): {CONNECTION: 4.0}})
    assert [made.admit_connection("10.0.0.1", 0) for _ in range(5)] == [True] * 4 + [False]
    assert [made.admit_connection("10.0.0.2", 0) for _ in range(3)] == [True, True, False]
    assert made.admit_connection("10.0.0.3", 0), "each address has its own"
    assert made.admit_connection("10.0.0.2", 500) and not made.admit_connection("10.0.0.2", 600)


def test_entities_are_bounded_and_the_one_that_was_idle_longest_is_forgotten() -> None:
    made = quotas_of({QuotaEntity(client_id=DEFAULT): {PRODUCE: 100.0}})
    for number in range(MAX_ENTITIES + 5):
        made.charge(PRODUCE, "u", "always", 100, 0)
        made.charge(PRODUCE, "u", f"stranger {number}", 1, 0)
    kept = [key.client_id for key, _ in made.entities()]
    assert len(kept) == MAX_ENTITIES and "always" in kept and "stranger 0" not in kept
    made.charge(PRODUCE, "u", "x" * 30_000, 1, 0)
    assert max(len(key.client_id or "") for key, _ in made.entities()) == 1_000


def test_client_ids_and_addresses_do_not_displace_the_debt_of_a_user() -> None:
    quotas: Quotas = {
        QuotaEntity(user=DEFAULT): {PRODUCE: 100.0},
        QuotaEntity(client_id=DEFAULT): {FETCH: 100.0},
        QuotaEntity(ip=DEFAULT): {CONNECTION: 1.0},
    }
    made = quotas_of(quotas)
    made.charge(PRODUCE, "u", "c", 10_000, 0)
    for number in range(MAX_ENTITIES + 5):
        made.charge(FETCH, "u", f"c {number}", 1, 0)
        made.admit_connection(f"2001:db8::{number:x}", 0)
    assert made.is_refused(PRODUCE, "u", "c", 0)
    assert len(list(made.entities())) == 2 * MAX_ENTITIES + 1


def test_a_quota_that_is_lowered_refuses_nobody_for_longer() -> None:
    made = quotas_of({QuotaEntity(user="u"): {PRODUCE: 1_000_000.0}})
    assert made.charge(PRODUCE, "u", "c", 21_000_000, 0) == 20_000
    made.follow({QuotaEntity(user="u"): {PRODUCE: 100.0}})
    assert made.charge(PRODUCE, "u", "c", 0, 0) == pytest.approx(20_000)


def test_a_changed_quota_holds_for_the_next_request() -> None:
    made = quotas_of({QuotaEntity(user="u"): {PRODUCE: 100.0}})
    assert made.charge(PRODUCE, "u", "c", 300, 0) == 2_000
    made.follow({QuotaEntity(user="u"): {PRODUCE: 1_000.0}})
    assert made.charge(PRODUCE, "u", "c", 0, 0) == 200
    ((_, entity),) = made.entities()
    assert (entity.throttled, entity.throttled_ms, made.throttled_ms[PRODUCE]) == (2, 2_200, 2_200)


def test_a_charge_costs_microseconds() -> None:
    """Also where all places for quotas are looked at and none holds."""
    made = quotas_of({QuotaEntity(user="other"): {PRODUCE: 100.0}})
    began = time.thread_time()
    for _ in range(1_000):
        made.charge(PRODUCE, "u", "c", 1, 0)
    assert time.thread_time() - began < 0.5


def test_metrics_name_the_entities_that_waited_longest() -> None:
    made = quotas_of({QuotaEntity(client_id=DEFAULT): {PRODUCE: 1_000.0}})
    for number in range(ENTITIES_TOLD + 20):
        made.charge(PRODUCE, "u", f"{'x' * 200} {number}" if number == 119 else f"app {number}", 1_000 + number, 0)
    made.is_refused(PRODUCE, "u", "app 3", 0)
    found = list(quota_samples(made))
    told = [item for item in found if item.name == "barnabas_quota_entity_throttled_seconds"]
    assert len(told) == ENTITIES_TOLD and told[0].value == pytest.approx(0.119)
    assert len(told[0].labels["client_id"]) == 100 and told[0].labels["quota"] == "producer_byte_rate"
    totals = {
        item.labels["quota"]: item.value for item in found if item.name == "barnabas_quota_throttled_seconds_total"
    }
    assert totals["producer_byte_rate"] == pytest.approx(sum(range(120)) / 1000) and totals["consumer_byte_rate"] == 0
