"""A client that goes away while its join waits for others: its request is withdrawn from the group."""

import asyncio
import random

from unit.net.shell_world import turns
from unit.net.test_group_service import GROUP, World, joining

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.consumer_groups.model.states import GroupPhase
from barnabas.consumer_groups.slot_coordinator import SlotCoordinator
from barnabas.consumer_groups.transactions.settings import TransactionSettings
from barnabas.net.coordination.groups.slot_hosting import LoadedSlot

CROWD = 100
PATIENT = GroupSettings(initial_rebalance_delay_ms=60_000)  # longer than the test: the group waits for more members


class PatientWorld(World):
    def coordinator(self, loaded: LoadedSlot) -> SlotCoordinator:
        groups = GroupCoordinator(
            slot=loaded.number,
            coordinator_epoch=loaded.coordinator_epoch,
            records=loaded.records,
            rng=random.Random(1),
            topics=loaded.topics,
            now_ms=loaded.now_ms,
            settings=PATIENT,
        )
        return SlotCoordinator(groups=groups, settings=TransactionSettings(), now_ms=loaded.now_ms)


async def test_newcomers_whose_connection_closes_are_no_members() -> None:
    world = PatientWorld()
    await world.hosted()
    (machine,) = world.groups.machines()
    joins = [joining(world) for _ in range(CROWD)]
    await turns(CROWD)
    assert len(machine.describe_group(group_id=GROUP).response.members) == CROWD
    for join in joins:
        join.cancel()
    await asyncio.gather(*joins, return_exceptions=True)
    await turns(CROWD)
    assert machine.describe_group(group_id=GROUP).response.phase is GroupPhase.DEAD
    assert world.groups.parked_count == 0
    assert not world.appends
    await world.slots.close()
