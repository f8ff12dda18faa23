"""One append for the decisions of many slots."""

import asyncio
from typing import Any, cast

from barnabas.consumer_groups.model.messages import CoordinatorResult
from barnabas.kraft.metadata.records import RemoveGroupRecord
from barnabas.kraft.metadata.requests import AppendGroupRecords, GroupRecordsAppended
from barnabas.net.coordination.groups.group_appends import GroupAppends, SlotQueue, Waiting


class Controller:
    def __init__(self) -> None:
        self.asked: list[AppendGroupRecords] = []

    async def call(self, request: AppendGroupRecords, **_options: object) -> GroupRecordsAppended:
        self.asked.append(request)
        return GroupRecordsAppended(offset=7, refused=())


def decision(slot: int, *, records: int = 0, must_confirm: bool = False) -> Waiting:
    result: CoordinatorResult[object] = CoordinatorResult(
        records=tuple(RemoveGroupRecord(slot=slot, coordinator_epoch=1, group_id=f"g{n}") for n in range(records)),
        response=None,
        must_confirm=must_confirm,
    )
    return Waiting(result, asyncio.get_running_loop().create_future())


async def asked_for(*decisions: Waiting) -> list[AppendGroupRecords]:
    controller, committed = Controller(), asyncio.Event()
    tasks: list[asyncio.Task[None]] = []
    appends = GroupAppends(
        node_id=1,
        controller=cast(Any, controller),
        spawn=lambda work: tasks.append(asyncio.ensure_future(work)) or tasks[-1],  # type: ignore[func-returns-value]
    )
    queue = SlotQueue(
        slot=3, coordinator_epoch=1, committed=lambda _: committed.set(), failed=lambda *_: committed.set()
    )
    for item in decisions:
        appends.add(queue, item)
    await asyncio.wait_for(committed.wait(), 5)
    await asyncio.gather(*tasks)
    return controller.asked


async def test_a_decision_that_must_be_confirmed_is_whatever_follows_it() -> None:
    """Its answer comes from the state of a coordinator that may have been replaced."""
    asked = await asked_for(decision(3, must_confirm=True), decision(3))
    assert [[part.slot for part in request.slots] for request in asked] == [[3]]


async def test_decisions_without_records_that_need_no_confirmation_ask_nobody() -> None:
    assert await asked_for(decision(3), decision(3)) == []


async def test_the_size_of_a_decision_is_that_of_its_records() -> None:
    one, three = decision(3, records=1), decision(3, records=3)
    assert three.size_bytes == 3 * one.size_bytes > 0 and decision(3).size_bytes == 0
    assert one.end_count == 0
