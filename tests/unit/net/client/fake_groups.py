"""The real coordinator and the real handlers of groups behind a `FakeCluster`, on the loop's (virtual) time.

The quorum commits at once. `tests/unit/consumer_groups` has simulations with one that does not.
"""

import asyncio
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

from unit.net.client.fake_cluster import FakeCluster

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.model.messages import CoordinatorResult
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.consumer_groups.slot_coordinator import SlotCoordinator
from barnabas.consumer_groups.transactions.settings import TransactionSettings
from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.log.vocabulary.errors import BarnabasError, NotCoordinatorError
from barnabas.net.base.settings.group_config import GroupTimes
from barnabas.net.handlers.own.classic_groups import ClassicGroupHandlers
from barnabas.net.handlers.own.groups import GroupHandlers
from barnabas.net.server.memory_budget import MemoryBudget
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.responses import ErrorResponse

CONTEXT: Any = SimpleNamespace(client_id="", client_host="127.0.0.1")


class FakeGroups:
    """Stands in for `net.group_service`."""

    def __init__(self, cluster: FakeCluster, **settings: Any) -> None:
        self.cluster = cluster
        self.settings = GroupSettings(**settings)
        self.machines: dict[int, GroupCoordinator] = {}
        self.parked: dict[int, asyncio.Future[Any]] = {}
        self.tickets = 0
        services: Any = SimpleNamespace(
            groups=self, node_id=0, memory=MemoryBudget(), group_times=lambda group_id: GroupTimes()
        )
        groups, classic = GroupHandlers(services), ClassicGroupHandlers(services)
        for api, handler in {
            ApiKey.CONSUMER_GROUP_HEARTBEAT: groups.heartbeat,
            ApiKey.OFFSET_COMMIT: groups.commit_offsets,
            ApiKey.OFFSET_FETCH: groups.fetch_offsets,
            ApiKey.JOIN_GROUP: classic.join,
            ApiKey.SYNC_GROUP: classic.sync,
            ApiKey.HEARTBEAT: classic.heartbeat,
            ApiKey.LEAVE_GROUP: classic.leave,
        }.items():
            cluster.answers[api] = lambda node, request, handler=handler: self.answer(handler, request)

    async def answer(self, handler: Callable[..., Any], request: Any) -> Any:
        try:
            return await handler(request, CONTEXT)
        except BarnabasError as error:
            return ErrorResponse(error=int(error.code), message=error.message)

    def topics(self) -> dict[str, int]:
        names = [topic for topic, _ in self.cluster.logs]
        return {name: names.count(name) for name in names}

    @property
    def topic_ids(self) -> dict[str, str]:
        return {name: self.cluster.topic_id(name) for name in self.topics()}

    def now_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    def machine(self, group_id: str) -> GroupCoordinator:
        slot = slot_of(group_id)
        if slot not in self.machines:
            self.machines[slot] = GroupCoordinator(
                slot=slot, coordinator_epoch=1, records=(), rng=Random(1), topics=self.topics(), now_ms=self.now_ms(),
                settings=self.settings,
            )  # fmt: skip
        return self.machines[slot]

    def has_room_to_park(self, group_id: str) -> bool:
        return True

    async def handle(self, group_id: str, decide: Callable[[GroupCoordinator], CoordinatorResult[Any]]) -> Any:
        machine = self.machine(group_id)
        return self.took(machine, decide(machine))

    async def handle_slot(self, group_id: str, decide: Callable[[SlotCoordinator], CoordinatorResult[Any]]) -> Any:
        machine = self.machine(group_id)
        whole = SlotCoordinator(groups=machine, settings=TransactionSettings(), now_ms=self.now_ms())
        return self.took(machine, decide(whole))

    async def handle_parked(
        self, group_id: str, decide: Callable[[GroupCoordinator, int], CoordinatorResult[None]]
    ) -> Any:
        self.tickets += 1
        ticket = self.tickets
        answer = self.parked[ticket] = asyncio.get_running_loop().create_future()
        machine = self.machine(group_id)
        self.took(machine, decide(machine, ticket))
        return await answer

    def took(self, machine: GroupCoordinator, result: CoordinatorResult[Any]) -> Any:
        for item in result.answers:
            parked = self.parked.pop(item.ticket, None)
            if parked is None or parked.done():
                continue
            if isinstance(item.value, BarnabasError):
                parked.set_exception(item.value)
            else:
                parked.set_result(item.value)
        deadline_ms = machine.next_deadline_ms()
        if deadline_ms is not None:
            delay_ms = max(1, deadline_ms - self.now_ms())
            asyncio.get_running_loop().call_later(delay_ms / 1000, self.tick, machine)
        return result.response

    def tick(self, machine: GroupCoordinator) -> None:
        if machine in self.machines.values() and (machine.next_deadline_ms() or self.now_ms() + 1) <= self.now_ms():
            self.took(machine, machine.tick(self.now_ms(), topic_ids=self.topic_ids))

    def topics_changed(self) -> None:
        for machine in self.machines.values():
            self.took(machine, machine.topics_changed(self.topics(), self.now_ms()))

    def move(self) -> None:
        """The coordinators are gone; those that follow know what the quorum knows, and nobody waits for them any more."""
        for slot, machine in list(self.machines.items()):
            records = list(machine.state.records())
            self.machines[slot] = GroupCoordinator(
                slot=slot, coordinator_epoch=machine.coordinator_epoch + 1, records=records, rng=Random(2),
                topics=self.topics(), now_ms=self.now_ms(), settings=self.settings,
            )  # fmt: skip
        parked, self.parked = self.parked, {}
        for answer in parked.values():
            if not answer.done():
                answer.set_exception(NotCoordinatorError("moved"))
