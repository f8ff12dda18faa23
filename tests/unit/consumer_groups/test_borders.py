"""Limits and requests at their borders: one below, at, one above; and what each request is checked against."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.explain.group_view import CLASSIC_SILENT_SHARE, HEARTBEATS_MISSED, SILENT_MS
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.log.vocabulary.errors import BarnabasError, InconsistentGroupProtocolError, NotCoordinatorError
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest, SyncGroupRequest
from barnabas.log.vocabulary.group_protocol import encode_assignment

from .classic_world import GROUP as CLASSICS
from .classic_world import ClassicWorld
from .coordinator_bench import GROUP, SLOT, Bench

OTHER_GROUP = next(name for name in map(str, range(100)) if slot_of(name) != SLOT)
HEARTBEAT = ConsumerGroupHeartbeatRequest(group_id=OTHER_GROUP, member_id="m", member_epoch=1)


@pytest.mark.parametrize(
    ("members", "interval_ms"), [(9, 0), (10, 0), (11, 22), (499, 998), (500, 1_000), (501, 1_000), (10_000, 1_000)]
)
def test_small_groups_are_assigned_at_once_and_no_group_waits_longer_than_the_interval(
    members: int, interval_ms: int
) -> None:
    assert GroupSettings().interval_ms(members) == interval_ms


@pytest.mark.parametrize(
    "ask",
    [
        lambda coordinator: coordinator.heartbeat(HEARTBEAT, 1_000),
        lambda coordinator: coordinator.poll_heartbeat(replace(HEARTBEAT, max_wait_ms=500), 1, 1_000),
        lambda coordinator: coordinator.describe_group(group_id=OTHER_GROUP),
        lambda coordinator: coordinator.explain_group(group_id=OTHER_GROUP, now_ms=1_000),
        lambda coordinator: coordinator.delete_group(group_id=OTHER_GROUP, now_ms=1_000),
        lambda coordinator: coordinator.delete_offsets(group_id=OTHER_GROUP, partitions=(), now_ms=1_000),
        lambda coordinator: coordinator.leave_group(group_id=OTHER_GROUP, leaving=(), now_ms=1_000),
    ],
)
def test_a_request_for_a_group_of_another_slot_is_refused(ask: Callable[[GroupCoordinator], object]) -> None:
    with pytest.raises(NotCoordinatorError):
        ask(Bench().coordinator)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, None),
        ({"protocol_type": "consumer", "protocol_name": "range"}, None),
        ({"protocol_type": "connect"}, InconsistentGroupProtocolError),
        ({"protocol_name": "sticky"}, InconsistentGroupProtocolError),
    ],
)
def test_a_sync_names_the_protocol_of_its_group_or_none(
    fields: dict[str, str], error: type[BarnabasError] | None
) -> None:
    world = ClassicWorld()
    (leader,) = world.group_of("a")
    request = SyncGroupRequest(
        group_id=CLASSICS, generation=leader.generation, member_id=leader.member_id, assignments=(), **fields
    )  # type: ignore[arg-type]
    if error is None:
        world.coordinator.sync_group(request, world.new_ticket(), world.now_ms)
    else:
        with pytest.raises(error):
            world.coordinator.sync_group(request, world.new_ticket(), world.now_ms)


def test_a_description_has_the_partitions_that_a_classic_member_was_given() -> None:
    world = ClassicWorld()
    first, second = world.group_of("a", "b")
    members = world.coordinator.describe_group(group_id=CLASSICS).response.members
    found = {member.member_id: member for member in members}
    for index, client in enumerate((first, second)):
        member = found[client.member_id]
        assert member.classic_assignment == encode_assignment(frozenset({("t", index)}))
        assert member.assigned == member.target != ()


def test_a_classic_member_is_silent_after_a_share_of_its_session() -> None:
    """Its session is all that is known of its heartbeats."""
    world = ClassicWorld()
    client = world.client("a", session_timeout_ms=60_000).join()
    world.pass_ms(world.settings.initial_rebalance_delay_ms * 2)
    client.sync()
    presence = world.coordinator.view.presence(CLASSICS)[client.member_id]
    assert presence.session_ends_ms - presence.heard_ms == 60_000
    assert presence.silent_after_ms == int(60_000 * CLASSIC_SILENT_SHARE) > SILENT_MS


@pytest.mark.parametrize(
    ("interval_ms", "silent_after_ms"), [(1_000, SILENT_MS), (SILENT_MS, HEARTBEATS_MISSED * SILENT_MS)]
)
def test_a_member_is_silent_after_heartbeats_that_it_missed_and_not_before_the_least_time(
    interval_ms: int, silent_after_ms: int
) -> None:
    bench = Bench(settings=GroupSettings(heartbeat_interval_ms=interval_ms))
    client = bench.join("a")
    assert bench.coordinator.view.presence(GROUP)[client.member].silent_after_ms == silent_after_ms
