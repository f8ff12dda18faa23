"""A client that goes away while its join waits for others: its request is withdrawn from the group."""

import asyncio
import random

from unit.net.shell_world import turns
from unit.net.test_group_service import GROUP, World, joining

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.consumer_groups.model.states import GroupPhase
from barnabas.kraft.metadata.records import Record

CROWD = 100
PATIENT = GroupSettings(initial_rebalance_delay_ms=60_000)  # longer than the test: the group waits for more members


class PatientWorld(World):
    def coordinator(self, slot: int, coordinator_epoch: int, records: list[Record]) -> GroupCoordinator:
        return GroupCoordinator(
            slot=slot, coordinator_epoch=coordinator_epoch, records=records, rng=random.Random(1),
            topics=self.groups.topics, now_ms=self.groups.now_ms(), settings=PATIENT,
        )  # fmt: skip


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
    await world.groups.close()
