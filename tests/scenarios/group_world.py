"""A world of one group coordinator with a quorum that commits at once, and members that heartbeat when they are told to.

topics t=4 [u=2 ...]     the topics that exist, with their partitions; later: they have changed
join M [T,T...]          member M joins, subscribed to these topics (default: t)
beat M [M ...]           each of these heartbeats once, and does what it is told
static M I               member M joins as instance I, subscribed to t
away M                   M, which has an instance id, leaves for a while
leave M [WHY]            M leaves the group
lose M                   M is told nothing any more and says nothing: its process hangs or is cut off
pass MS                  time passes; members beat meanwhile, except those that are lost
fail-over                another broker takes over the slot
why                      the rebalances since the last why: causes, what moved from whom to whom, pauses, how long until stable
now                      partitions that nobody reads at this moment, and why
"""

import random
from collections.abc import Iterator

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.model.partitions import PartitionSet, from_set, to_set
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.kraft.group_state.group_slots import GroupSlots, slot_of
from barnabas.kraft.metadata.records import Record
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

GROUP = "payments"
SLOT = slot_of(GROUP)
SETTINGS = GroupSettings(assignors=("range",))  # it moves more than others, so that there is more to see
BEAT_MS = SETTINGS.heartbeat_interval_ms


class Member:
    def __init__(self, name: str, topics: tuple[str, ...], instance_id: str | None = None) -> None:
        self.name = name
        self.instance_id = instance_id
        self.topics = topics
        self.epoch = 0
        self.owned: PartitionSet = frozenset()
        self.is_lost = False

    def request(self, *, epoch: int | None = None, reason: str = "") -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.name,
            member_epoch=self.epoch if epoch is None else epoch,
            instance_id=self.instance_id,
            reason=reason,
            subscribed_topics=self.topics,
            owned=from_set(self.owned),
        )

    def take(self, response: ConsumerGroupHeartbeatResponse) -> None:
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.owned = to_set(response.assignment)


class GroupWorld:
    def __init__(self) -> None:
        self._slots = GroupSlots()
        self._now_ms = 1_000
        self._slot_epoch = 1
        self._topics: dict[str, int] = {}
        self._members: dict[str, Member] = {}
        self._shown: dict[str, str] = {}
        self._told: set[int] = set()  # rebalances that were told to their end
        self._coordinator = self._new_coordinator()

    def run(self, command: str, words: list[str]) -> Iterator[str]:
        try:
            yield from getattr(self, f"_do_{command.replace('-', '_')}")(*words)
        except BarnabasError as error:
            yield f"{type(error).__name__}: {error.message}"
        yield from self._changes()

    # --- commands ----------------------------------------------------------------------------------------------------

    def _do_topics(self, *words: str) -> Iterator[str]:
        self._topics = {name: int(count) for name, count in (word.split("=") for word in words)}
        self._commit(self._coordinator.topics_changed(self._topics, self._now_ms, recreated=frozenset()).records)
        yield from ()

    def _do_join(self, name: str, topics: str = "t") -> Iterator[str]:
        self._members[name] = Member(name, tuple(topics.split(",")))
        yield from self._beat(name)

    def _do_beat(self, *names: str) -> Iterator[str]:
        for name in names:
            yield from self._beat(name)

    def _do_static(self, name: str, instance_id: str) -> Iterator[str]:
        self._members[name] = Member(name, ("t",), instance_id)
        yield from self._beat(name)

    def _do_away(self, name: str) -> Iterator[str]:
        self._send(self._members.pop(name).request(epoch=-2))
        yield f"{name} is away"

    def _do_leave(self, name: str, reason: str = "") -> Iterator[str]:
        self._send(self._members.pop(name).request(epoch=-1, reason=reason))
        yield f"{name} has left"

    def _do_lose(self, name: str) -> Iterator[str]:
        self._members[name].is_lost = True
        yield from ()

    def _do_pass(self, milliseconds: str) -> Iterator[str]:
        end_ms = self._now_ms + int(milliseconds)
        while self._now_ms < end_ms:
            self._now_ms = min(self._now_ms + BEAT_MS, end_ms)
            self._commit(self._coordinator.tick(self._now_ms).records)
            for name, member in list(self._members.items()):
                if not member.is_lost:
                    yield from self._beat(name)

    def _do_fail_over(self) -> Iterator[str]:
        self._slot_epoch += 1
        self._slots.on_slot_moved(SLOT, self._slot_epoch)
        self._coordinator = self._new_coordinator()
        self._told.clear()
        yield f"the slot has coordinator epoch {self._slot_epoch}"

    def _do_why(self) -> Iterator[str]:
        group = self._coordinator.describe_group(group_id=GROUP).response
        for item in group.rebalances:
            if item.rebalance_id in self._told:
                continue
            if not item.is_under_way:
                self._told.add(item.rebalance_id)
            end = "under way" if item.stable_after_ms is None else f"stable after {item.stable_after_ms} ms"
            yield f"at {item.at_ms - 1_000} ms, epoch {item.group_epoch}: {end}"
            for cause in item.reasons:
                yield f"    {cause.cause} {cause.member_id}".rstrip() + (f": {cause.detail}" if cause.detail else "")
            for move in item.moves:
                pause = "" if move.pause_ms is None else f" paused {move.pause_ms} ms"
                yield f"    {move.topic}-{move.partition} {move.from_member or '-'} -> {move.to_member or '-'}{pause}"

    def _do_now(self) -> Iterator[str]:
        told = self._coordinator.explain_group(group_id=GROUP, now_ms=self._now_ms).response
        for item in told.unowned:
            until = f", at most {item.ends_in_ms} ms more" if item.ends_in_ms >= 0 else ""
            yield f"{item.topic}-{item.partition} {item.reason} {item.member_id} for {item.since_ms} ms{until}"
        if not told.unowned:
            yield "every partition is read" if told.members else "no members"

    # --- how ---------------------------------------------------------------------------------------------------------

    def _new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(
            slot=SLOT,
            coordinator_epoch=self._slot_epoch,
            records=self._slots.records_of(SLOT),
            rng=random.Random(1),
            topics=self._topics,
            now_ms=self._now_ms,
            settings=SETTINGS,
        )

    def _beat(self, name: str) -> Iterator[str]:
        member = self._members[name]
        try:
            member.take(self._send(member.request()))
        except BarnabasError as error:
            member.epoch, member.owned = 0, frozenset()  # it stops reading; its next heartbeat joins anew
            yield f"{name} is told {type(error).__name__}"

    def _send(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        result = self._coordinator.heartbeat(request, self._now_ms)
        self._commit(result.records)
        return result.response

    def _commit(self, records: tuple[Record, ...]) -> None:
        for record in records:
            assert self._slots.replay(record, self._slots.index + 1)  # type: ignore[arg-type]

    def _changes(self) -> Iterator[str]:
        for name, state in self._states():
            if self._shown.get(name) != state:
                self._shown[name] = state
                yield f"{name} {state}"

    def _states(self) -> Iterator[tuple[str, str]]:
        group = self._coordinator.describe_group(group_id=GROUP).response
        yield "group", f"{group.phase.value} epoch {group.group_epoch}"
        owners: dict[tuple[str, int], str] = {}
        for member in self._members.values():
            for key in () if member.is_lost else member.owned:
                assert key not in owners, f"{key} has two owners"
                owners[key] = member.name
            state = next((item.state.value for item in group.members if item.member_id == member.name), "not a member")
            reads = " ".join(f"{topic}-{number}" for topic, number in sorted(member.owned)) or "nothing"
            yield member.name, f"{state} epoch {member.epoch} reads {reads}" + (" (lost)" if member.is_lost else "")
