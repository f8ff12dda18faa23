"""Requests for groups: finds the slot of a group, lets its machine decide, and holds the requests that wait for other members.

`slot_hosting` and `hosted_slot` keep the machines; `consumer_groups.coordinator` makes the decisions.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.model.classic_messages import Ticket
from barnabas.consumer_groups.model.messages import CoordinatorResult
from barnabas.consumer_groups.slot_coordinator import SlotCoordinator
from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.kraft.metadata.image import SlotImage
from barnabas.log.vocabulary.errors import CoordinatorNotAvailableError
from barnabas.net.metadata.metadata_service import MetadataService

from .hosted_slot import HostedSlot
from .slot_hosting import SlotHosting
from .sure_refusals import ends_a_member, with_sure_refusals

R = TypeVar("R")


class GroupService:
    """Every request for a group comes through `handle` or `handle_parked`."""

    def __init__(self, *, metadata: MetadataService, slots: SlotHosting[SlotCoordinator]) -> None:
        self._metadata = metadata
        self._slots = slots
        self._last_ticket = 0

    def place_of(self, group_id: str) -> SlotImage:
        """The broker that coordinates the group, and its coordinator epoch. Raises CoordinatorNotAvailableError."""
        slot = self._metadata.image.slots[slot_of(group_id)]
        if slot.coordinator < 0:
            raise CoordinatorNotAvailableError(f"group {group_id!r} has no coordinator at the moment; try again")
        return slot

    def now_ms(self) -> int:
        """The time of the machines."""
        return self._slots.now_ms()

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """Topic -> its id, of the view that the machines have."""
        return self._slots.topics.ids

    def slots(self) -> list[SlotCoordinator]:
        """The machines of the slots that this broker hosts."""
        return self._slots.machines()

    def machines(self) -> list[GroupCoordinator]:
        return [machine.groups for machine in self._slots.machines()]

    def unowned_counts(self) -> dict[str, int]:
        """Group -> number of partitions that no member has read for long, for the groups that this broker coordinates."""
        return {group_id: count for machine in self.machines() for group_id, count in machine.unowned_counts.items()}

    async def handle(self, group_id: str, decide: Callable[[GroupCoordinator], CoordinatorResult[R]]) -> R:
        """Let the group's machine decide, and return its response once the decision is committed.

        Raises NotCoordinatorError if another broker hosts the group, CoordinatorNotAvailableError while the slot is loading, and
        any BarnabasError of the machine.
        """
        return await self._slot_for(group_id).decide(
            lambda machine: with_sure_refusals(decide, machine.groups, ends_a_member)
        )

    async def handle_slot(self, group_id: str, decide: Callable[[SlotCoordinator], CoordinatorResult[R]]) -> R:
        """As `handle`, for offsets of transactions, which the whole slot decides on."""
        return await self._slot_for(group_id).decide(lambda machine: with_sure_refusals(decide, machine, ends_a_member))

    # --- requests that wait for other members -------------------------------------------------------------------------

    async def handle_parked(
        self, group_id: str, decide: Callable[[GroupCoordinator, Ticket], CoordinatorResult[None]]
    ) -> object:
        """As `handle`, for a request whose answer may wait for other members: this decision or a later one answers its ticket.

        Also raises a later refusal of the request, for example when its coordinator moves: the client tries again.
        """
        slot = self._slot_for(group_id)
        if not slot.parked.has_room(group_id):
            raise CoordinatorNotAvailableError(
                f"too many members wait to join, {len(slot.parked)} at this coordinator; try again later"
            )
        self._last_ticket += 1
        ticket = self._last_ticket
        answer = slot.parked.add(group_id, ticket)
        try:
            await slot.decide(
                lambda machine: with_sure_refusals(lambda groups: decide(groups, ticket), machine.groups, ends_a_member)
            )
            return await answer
        except asyncio.CancelledError:
            slot.decide_later(
                lambda machine: machine.groups.withdraw(group_id=group_id, ticket=ticket, now_ms=self.now_ms())
            )
            raise
        finally:
            slot.parked.remove(ticket)
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # it may have been refused while its own decision failed

    def has_room_to_park(self, group_id: str) -> bool:
        """Return whether one more request may be parked. Requests that need not wait do not depend on it."""
        slot = self._slots.find(slot_of(group_id))
        return slot is not None and slot.parked.has_room(group_id)

    @property
    def parked_count(self) -> int:
        return sum(len(slot.parked) for slot in self._slots.slots())

    def _slot_for(self, group_id: str) -> HostedSlot[SlotCoordinator]:
        return self._slots.available(slot_of(group_id), f"group {group_id!r}")
