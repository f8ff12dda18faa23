"""What a test does to groups: rebalances, members whose session ends; and how all topics, groups and transactions are removed."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from barnabas.log.vocabulary.errors import (
    GroupIdNotFoundError,
    InvalidTxnStateError,
    NonEmptyGroupError,
    TransactionalIdNotFoundError,
)
from barnabas.log.vocabulary.transaction_messages import UNDECIDED_STATES

from ..client.admin.admin import Admin
from ..client.connection.loop_thread import loop_thread
from ..client.consumer.consumer import Consumer
from ..wire.protocol.group_responses import GroupMember
from .observation import CLIENT_ID, Observation

_CONSUMER_PROTOCOL: Final = "consumer"
MAX_REMOVALS: Final = 5  # of the members of one group: each round ends those that joined meanwhile


class GroupActs:
    """`end_session` of (coordinator, group, member id) blocks."""

    def __init__(self, observation: Observation, end_session: Callable[[int, str, str], None]) -> None:
        self._observation = observation
        self._end_session = end_session

    async def force_rebalance(self, group: str) -> None:
        """A member joins and leaves again: two rebalances, in which the members do what they always do."""
        found = await self._observation.describe(group)
        topics = sorted({topic for member in found.members for topic in member.subscribed_topics})
        if not topics:
            raise ValueError(f"group {group!r} has no members that subscribe to topics by name: nothing to rebalance")
        protocol = await self._protocol(group)
        joined = asyncio.Event()
        async with Consumer(
            *topics,
            bootstrap=self._observation.bootstrap,
            group=group,
            group_protocol=protocol,
            assignor=None if protocol == _CONSUMER_PROTOCOL else found.assignor,
            auto_commit=False,
            client_id=CLIENT_ID,
            on_assigned=lambda partitions: joined.set(),
            **self._observation.login,
        ) as visitor:
            visiting = asyncio.ensure_future(_poll(visitor))
            try:
                await self._until_joined(group, found.group_epoch, joined, visiting)
            finally:
                visiting.cancel()
                await asyncio.gather(visiting, return_exceptions=True)

    async def _until_joined(
        self, group: str, epoch: int, joined: asyncio.Event, visiting: "asyncio.Future[None]"
    ) -> None:
        """Assigned, or with nothing left to assign: then its group has a newer epoch and is stable."""
        while not joined.is_set():
            if visiting.done():
                visiting.result()  # the group has refused it
            found = await self._observation.describe(group)
            is_member = any(member.client_id == CLIENT_ID for member in found.members)
            if is_member and found.group_epoch > epoch and found.state.upper() == "STABLE":
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await joined.wait()

    async def _protocol(self, group: str) -> str:
        admin = await self._observation.admin()
        listed = next((item for item in await admin.list_groups() if item.group_id == group), None)
        return _CONSUMER_PROTOCOL if listed is None or listed.protocol == _CONSUMER_PROTOCOL else "classic"

    async def find_member(self, group: str, member: str | None) -> "FoundMember":
        """A member, named by its member id, client id or instance id; None: any one."""
        found = await self._observation.describe(group)
        chosen = next((item for item in found.members if member is None or member in _names(item)), None)
        if chosen is None:
            known = [f"{item.member_id} (client id {item.client_id})" for item in found.members]
            raise ValueError(f"group {group!r} has no member {member!r}; members: {', '.join(known) or 'none'}")
        return FoundMember(member_id=chosen.member_id, coordinator=found.coordinator)

    async def reset(self) -> list[str]:
        """Remove all transactions, groups and topics. Returns the groups that had members: those that run join again."""
        admin = await self._observation.admin()
        topics, groups, transactions = await asyncio.gather(
            admin.list_topics(), admin.list_groups(), admin.transactions.list(states=UNDECIDED_STATES)
        )
        if any(item.member_count for item in groups):
            await loop_thread().dropped_clients_closed()
            groups = await admin.list_groups()
        await asyncio.gather(*(self._abort(admin, item.transactional_id) for item in transactions.transactions))
        had_members, _ = await asyncio.gather(
            asyncio.gather(*(self._delete_group(admin, item.group_id) for item in groups)),
            asyncio.gather(*(admin.delete_topic(topic) for topic in topics)),
        )
        return sorted(item.group_id for item, had in zip(groups, had_members, strict=True) if had or item.member_count)

    async def _abort(self, admin: Admin, transactional_id: str) -> None:
        with suppress(InvalidTxnStateError, TransactionalIdNotFoundError):
            await admin.transactions.abort(transactional_id)

    async def _delete_group(self, admin: Admin, group: str) -> bool:
        """A group with members is not deleted; and members of clients that still run return. Returns whether it had some."""
        for attempt in range(1, MAX_REMOVALS + 1):
            try:
                await admin.delete_group(group)
                break
            except GroupIdNotFoundError:
                break
            except NonEmptyGroupError:
                if attempt == MAX_REMOVALS:
                    raise
            with suppress(GroupIdNotFoundError):
                found = await self._observation.describe(group)
                for member in found.members:
                    await asyncio.to_thread(self._end_session, found.coordinator, group, member.member_id)
        return attempt > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMember:
    member_id: str
    coordinator: int


async def _poll(consumer: Consumer) -> None:
    """A member that does not poll takes no part. What it reads is not committed."""
    while True:
        await consumer.poll(timeout_ms=100)


def _names(member: GroupMember) -> tuple[str | None, ...]:
    return member.member_id, member.client_id, member.instance_id
