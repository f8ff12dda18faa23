"""A seeded simulation of one coordinator: clients that crash, hang and revoke slowly, answers that are lost or doubled,
appends that fail, coordinators that die. Everything happens in single steps, and after each the invariants are checked.

The shell is simulated as `coordinator.py` demands it: results queue up for the quorum, answers leave after the commit.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from msgspec import structs

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.model.classic_messages import Answer, Ticket
from barnabas.consumer_groups.model.partitions import PartitionSet, from_set, to_set
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.consumer_groups.model.states import GroupPhase
from barnabas.consumer_groups.subscriptions.match_budget import MatchBudget
from barnabas.kraft.group_state.group_slots import GroupSlots, PartitionKey, SlotStateRecord, partition_keys, slot_of
from barnabas.kraft.metadata.records import (
    OffsetCommitRecord,
    OffsetResetRecord,
    RecordBatch,
    RemoveOffsetRecord,
    StagedDecisionRecord,
    encode_batch,
)
from barnabas.log.vocabulary.errors import BarnabasError, InvalidRequestError, RebalanceInProgressError
from barnabas.log.vocabulary.group_messages import (
    CommittedOffset,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OffsetToCommit,
)

from .explained_moves import check_moves, readers_of
from .simulated_wishes import LEAVING_FIELDS, LONG_NAME, PATTERNS, WISHES, Wish
from .timers import check_timers
from .told_positions import told_positions

GROUP = "simulated"
SLOT = slot_of(GROUP)
SETTINGS = GroupSettings(session_timeout_ms=10_000, rebalance_timeout_ms=8_000, heartbeat_interval_ms=1_000)
FAULTY_STEPS = 90
ROUNDS_TO_SETTLE = 40  # after the last fault; one round is a heartbeat of everybody and one heartbeat interval
MAX_CLIENTS = 5
MOST_NS_OVER_BUDGET = 1_700_000  # the most expensive pattern here: one compilation and one match
MAX_PARTITIONS = 6


Deliver = Callable[[], None]
Hear = Callable[[object], None]


@dataclass(slots=True, kw_only=True)
class Append:
    """A result on its way through the quorum."""

    records: tuple[SlotStateRecord, ...]
    deliver: Deliver | None = None
    answers: tuple[Answer, ...] = ()


@dataclass(slots=True, kw_only=True)
class Client:
    """What a member knows. `reading` is the truth that the coordinator must respect."""

    member_id: str
    instance_id: str | None
    topics: tuple[str, ...]
    pattern: str = ""
    epoch: int = 0
    reading: PartitionSet = frozenset()
    assigned: PartitionSet = frozenset()
    reported: PartitionSet | None = None  # what the last answered heartbeat said; None: say everything again
    reported_wish: Wish = ((), "")
    request_number: int = 0  # answers to older ones are ignored
    waiting: bool = False
    crashed: bool = False
    ownership: int = 0  # changes whenever it has lost everything: offsets fetched before are of no use
    positions: dict[PartitionKey, tuple[int, int]] = field(default_factory=dict)  # offset, reset generation
    fetching: set[PartitionKey] = field(default_factory=set)

    @property
    def wish(self) -> Wish:
        return (self.topics, self.pattern)

    @wish.setter
    def wish(self, wish: Wish) -> None:
        self.topics, self.pattern = wish

    def wants(self, topic: str) -> bool:
        return topic in self.topics or topic in PATTERNS.get(self.pattern, ())

    def lose_everything(self) -> None:
        self.epoch = 0
        self.reading = self.assigned = frozenset()
        self.reported = None
        self.positions.clear()
        self.fetching.clear()
        self.ownership += 1

    def revoke(self) -> None:
        self.reading &= self.assigned
        self.positions = {key: position for key, position in self.positions.items() if key in self.reading}
        self.fetching &= self.reading

    def take(self, response: ConsumerGroupHeartbeatResponse) -> None:
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.assigned = to_set(response.assignment)
            self.reading |= self.assigned


class Simulation:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        self.topics = {"t": self.random.randint(1, 4), "u": self.random.randint(1, 3)}
        self.slots = GroupSlots()
        self.epoch = 1
        self.queue: list[Append] = []
        self.ghosts: list[SlotStateRecord] = []  # of replaced coordinators: must be void whenever they come
        self.clients: list[Client] = []
        self.clients_made = 0
        self.reset_generation = 0
        self.moves_checked = 0
        self.parked: dict[Ticket, Hear] = {}
        self.deleted: Counter[str] = Counter()  # topics, how many times
        self.tickets_given = 0
        self.expected: dict[PartitionKey, tuple[int, str]] = {}  # offset and metadata of the last applied commit
        self.settings = SETTINGS
        if self.random.random() < 0.3:
            self.settings = GroupSettings(
                session_timeout_ms=10_000, rebalance_timeout_ms=8_000, heartbeat_interval_ms=1_000,
                assignment_interval_ms=1_500, members_assigned_at_once=0,
                assignment_ms_per_member=1_500, assignors=("range", "uniform"),
            )  # fmt: skip
        if self.random.random() < 0.4:
            self.settings = replace(
                self.settings, offsets_retention_ms=6_000, offsets_retention_check_interval_ms=1_500
            )
        self.is_slow = self.random.random() < 0.4
        self.slots.on_slot_moved(SLOT, self.epoch)
        self.coordinator = self.new_coordinator()

    # --- the shell ----------------------------------------------------------------------------------------------------

    def new_coordinator(self) -> GroupCoordinator:
        coordinator = GroupCoordinator(
            slot=SLOT,
            coordinator_epoch=self.epoch,
            records=self.slots.records_of(SLOT),
            rng=self.random,
            topics=self.topics,
            now_ms=self.now_ms,
            settings=self.settings,
            match_budget=self.new_budget(),
        )
        assert coordinator.state == self.slots.slot(SLOT), "rebuilt exactly"
        self.readers_before = readers_of(coordinator, GROUP, with_away=True)
        return coordinator

    def new_budget(self) -> MatchBudget:
        """In some histories matching is so slow that patterns stay incomplete over many decisions."""
        self.budget = MatchBudget(self.now_ms)
        if self.is_slow:
            self.budget = MatchBudget(self.now_ms, burst_ns=1, ns_per_ms=2_000)
        return self.budget

    def commit_one(self, *, answer: bool = True) -> None:
        append = self.queue.pop(0)
        is_undo = any(isinstance(record, OffsetResetRecord) and record.undoes >= 0 for record in append.records)
        index = self.slots.index + 1
        for part in self.as_appended(append.records):
            assert self.slots.replay(part, index)
            index += 1
        for record in append.records:
            self.remember(record, is_undo=is_undo)
        if not answer:
            return
        if append.deliver is not None:
            append.deliver()
        for item in append.answers:
            hear = self.parked.pop(item.ticket, None)
            if hear is not None:
                hear(item.value)

    def as_appended(self, records: tuple[SlotStateRecord, ...]) -> tuple[SlotStateRecord, ...]:
        """Now and then a decision goes in parts, with a snapshot in between, as if it were too long for one command."""
        if not records or self.random.random() > 0.1:
            return records
        whole = encode_batch(RecordBatch(controller_epoch=0, records=records))
        cut = self.random.randint(1, len(whole) - 1)
        return tuple(
            StagedDecisionRecord(slot=SLOT, coordinator_epoch=self.epoch, part=number, part_count=2, batch=chunk)
            for number, chunk in enumerate((whole[:cut], whole[cut:]))
        )

    def remember(self, record: SlotStateRecord, *, is_undo: bool) -> None:
        if isinstance(record, OffsetCommitRecord):
            key = (record.topic, record.partition)
            before = self.expected.get(key)
            if before is not None and not is_undo:
                assert int(record.metadata) >= int(before[1]), "a commit from before a reset came through after it"
                if record.metadata == before[1]:
                    assert record.offset >= before[0], "a committed offset has fallen without a reset"
            self.expected[key] = (record.offset, record.metadata)
        elif isinstance(record, RemoveOffsetRecord):
            self.expected.pop((record.topic, record.partition), None)

    def append_fails(self) -> None:
        """Definitely: nothing that waits is ever committed, and the same coordinator starts anew."""
        self.queue.clear()
        self.parked.clear()  # their clients give up waiting at some time
        self.coordinator = self.new_coordinator()

    def fail_over(self) -> None:
        """Some of what waits is committed without an answer; the rest comes later and must be void."""
        for _ in range(self.random.randint(0, len(self.queue))):
            self.commit_one(answer=False)
        self.ghosts.extend(record for append in self.queue for record in append.records)
        self.queue.clear()
        self.parked.clear()
        self.epoch += 1
        self.slots.on_slot_moved(SLOT, self.epoch)
        if self.random.random() < 0.3:  # the topics have changed, and nobody told the old coordinator
            self.topics = {**self.topics, "t": self.topics.get("t", 0) + 1}
        self.coordinator = self.new_coordinator()

    def ghosts_come(self) -> None:
        for record in self.ghosts:
            assert not self.slots.replay(record, self.slots.index + 1)
        self.ghosts.clear()

    def tick(self, pass_ms: int) -> None:
        self.now_ms += pass_ms
        result = self.coordinator.tick(self.now_ms, topic_ids=self.topic_ids)
        self.queue.append(Append(records=result.records, answers=result.answers))
        deadline_ms = self.coordinator.next_deadline_ms()
        assert deadline_ms is None or deadline_ms > self.now_ms, "a tick leaves nothing undone"

    def change_topics(self) -> None:
        topics = dict(self.topics)
        name = self.random.choice(("t", "u", "v", LONG_NAME))
        recreated: frozenset[str] = frozenset()
        if name in topics and self.random.random() < 0.4:
            self.delete_topic(name)
            if self.random.random() < 0.5:
                del topics[name]
            else:
                topics[name] = self.random.randint(1, 3)
                recreated = frozenset({name})
        else:
            topics[name] = min(MAX_PARTITIONS, topics.get(name, 0) + self.random.randint(1, 2))
        self.topics = topics
        follows = self.coordinator.follows_topics
        result = self.coordinator.topics_changed(topics, self.now_ms, recreated=recreated)
        assert follows or not (result.records or result.answers), "a slot that follows no topics has decided about them"
        self.queue.append(Append(records=result.records, answers=result.answers))

    def delete_topic(self, name: str) -> None:
        self.deleted[name] += 1
        self.slots.delete_topic(name)
        self.expected = {key: value for key, value in self.expected.items() if key[0] != name}

    def reset(self) -> None:
        """Positions carry the generation of the reset that they stem from in the metadata of their commits."""
        keys = [(topic, partition) for topic, count in self.topics.items() for partition in range(count)]
        chosen = self.random.sample(keys, min(2, len(keys)))
        self.reset_generation += 1
        offsets = tuple(
            OffsetToCommit(topic=topic, partition=partition, offset=0, metadata=str(self.reset_generation))
            for topic, partition in chosen
        )
        try:
            result = self.coordinator.reset_offsets(group_id=GROUP, offsets=offsets, now_ms=self.now_ms)
        except BarnabasError:
            return  # no such group yet
        self.queue.append(Append(records=result.records, answers=result.answers))

    def undo(self) -> None:
        try:
            result = self.coordinator.undo_reset(group_id=GROUP, now_ms=self.now_ms)
        except BarnabasError:
            return  # nothing to undo, or no such group
        self.queue.append(Append(records=result.records))

    # --- the clients --------------------------------------------------------------------------------------------------

    def start_client(self) -> None:
        if len(self.clients) >= MAX_CLIENTS:
            return
        self.clients_made += 1
        static = self.random.random() < 0.3
        topics, pattern = self.random.choice(WISHES)
        instance_id = f"i{self.random.randint(0, 1)}" if static else None
        self.clients.append(
            Client(member_id=f"m{self.clients_made}", instance_id=instance_id, topics=topics, pattern=pattern)
        )

    def request_of(self, client: Client) -> ConsumerGroupHeartbeatRequest:
        full = client.epoch == 0 or client.reported is None or client.reported_wish != client.wish
        owned = None if not full and client.reported == client.reading else from_set(client.reading)
        return ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=client.member_id,
            member_epoch=client.epoch,
            instance_id=client.instance_id,
            subscribed_topics=client.topics if full else None,
            subscribed_pattern=client.pattern if full else None,
            owned=owned,
            wants_offsets=client.request_number % 2 == 0,  # others fetch
        )

    def heartbeat(self, client: Client, *, faults: bool) -> None:
        client.request_number += 1
        client.waiting = True
        number, request = client.request_number, self.request_of(client)
        said = (client.reading, client.wish)
        dice = self.random.random() if faults else 1.0
        if dice < 0.05:
            return  # the request is lost
        if faults and self.random.random() < 0.6:
            self.poll(client, request, said, is_doubled=0.05 <= dice < 0.12, is_lost=0.12 <= dice < 0.2)
            return
        for _ in range(2 if 0.05 <= dice < 0.12 else 1):  # or comes twice
            try:
                result = self.coordinator.heartbeat(request, self.now_ms, topic_ids=self.topic_ids)
            except BarnabasError:
                self.queue.append(Append(records=(), deliver=lambda: self.fenced(client, number)))
                return
            response = result.response
            lost = 0.12 <= dice < 0.2
            deliver = partial(self.answered, client, number, said, response)
            self.queue.append(Append(records=result.records, answers=result.answers, deliver=None if lost else deliver))

    def poll(
        self,
        client: Client,
        request: ConsumerGroupHeartbeatRequest,
        said: tuple[PartitionSet, Wish],
        *,
        is_doubled: bool,
        is_lost: bool,
    ) -> None:
        """A heartbeat that the coordinator may park."""
        number = client.request_number
        request = structs.replace(request, max_wait_ms=self.random.choice((300, 1_000, 5_000)))

        def hear(value: object) -> None:
            if isinstance(value, ConsumerGroupHeartbeatResponse):
                self.answered(client, number, said, value)
            elif not isinstance(value, RebalanceInProgressError):  # which is for the older copy of a doubled request
                self.fenced(client, number)

        for _ in range(2 if is_doubled else 1):
            self.tickets_given += 1
            if not is_lost:
                self.parked[self.tickets_given] = hear
            try:
                ids = self.topic_ids
                result = self.coordinator.poll_heartbeat(request, self.tickets_given, self.now_ms, topic_ids=ids)
            except BarnabasError:
                self.parked.pop(self.tickets_given, None)
                self.queue.append(Append(records=(), deliver=lambda: self.fenced(client, number)))
                return
            self.queue.append(Append(records=result.records, answers=result.answers))

    def answered(
        self, client: Client, number: int, said: tuple[PartitionSet, Wish], response: ConsumerGroupHeartbeatResponse
    ) -> None:
        if client.crashed or number != client.request_number or not client.waiting:
            return
        client.waiting = False
        client.reported, client.reported_wish = said
        client.take(response)
        for key, position in told_positions(response, self.expected, self.topic_ids).items():
            if key in client.reading - client.fetching:
                client.positions.setdefault(key, position)

    @property
    def topic_ids(self) -> dict[str, str]:
        return {name: f"{name}/{self.deleted[name]}" for name in (*self.topics, *self.deleted)}

    def fenced(self, client: Client, number: int) -> None:
        if not client.crashed and number == client.request_number and client.waiting:
            client.waiting = False
            client.lose_everything()

    def give_up_waiting(self, client: Client) -> None:
        client.waiting = False
        client.reported = None  # the next heartbeat says everything again

    def leave(self, client: Client) -> None:
        epoch = -1
        if client.instance_id is not None and self.random.random() < 0.6:
            epoch = -2
        self.clients.remove(client)
        client.crashed = True
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=client.member_id,
            member_epoch=epoch,
            instance_id=client.instance_id,
            **self.random.choice(LEAVING_FIELDS),
        )
        try:
            result = self.coordinator.heartbeat(request, self.now_ms)
        except InvalidRequestError as error:
            raise AssertionError("a leave was refused for what does not matter to it") from error
        except BarnabasError:
            return
        self.queue.append(Append(records=result.records, answers=result.answers))

    def fetch(self, client: Client) -> None:
        missing = sorted(client.reading - client.positions.keys() - client.fetching)
        if not missing:
            return
        client.fetching.update(missing)
        found = self.coordinator.offsets.fetch(GROUP, tuple(missing))
        ownership = client.ownership
        self.queue.append(Append(records=(), deliver=lambda: self.fetched(client, ownership, found)))

    def fetched(self, client: Client, ownership: int, offsets: tuple[CommittedOffset, ...]) -> None:
        if client.crashed or ownership != client.ownership:
            return
        for offset in offsets:
            key = (offset.topic, offset.partition)
            if key in client.fetching:
                client.fetching.discard(key)
                client.positions[key] = (max(offset.offset, 0), int(offset.metadata or 0))

    def commit(self, client: Client) -> None:
        """Read on, then commit. A refused commit is dropped: the heartbeat will tell the client what is wrong."""
        offsets = []
        for key, (offset, generation) in sorted(client.positions.items()):
            client.positions[key] = (offset + self.random.randint(1, 5), generation)
            offsets.append(
                OffsetToCommit(
                    topic=key[0], partition=key[1], offset=client.positions[key][0], metadata=str(generation)
                )
            )
        try:
            result = self.coordinator.commit_offsets(
                group_id=GROUP,
                member_id=client.member_id,
                member_epoch=client.epoch,
                offsets=tuple(offsets),
                now_ms=self.now_ms,
            )
        except BarnabasError:
            return
        self.queue.append(Append(records=result.records, answers=result.answers))

    # --- steps --------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        roll = self.random.random()
        if roll < 0.10:
            self.start_client()
        elif roll < 0.30:
            for _ in range(self.random.randint(1, 4)):
                if self.queue:
                    self.commit_one()
        elif roll < 0.36:
            self.tick(self.random.choice((50, 500, 1_000, 4_000)))
        elif roll < 0.42:
            self.seldom_step()
        elif self.clients:
            self.client_step(self.random.choice(self.clients))

    def seldom_step(self) -> None:
        self.random.choice(
            (
                self.append_fails,
                self.fail_over,
                self.change_topics,
                self.change_topics,
                self.reset,
                self.undo,
                self.ghosts_come,
            )
        )()

    def client_step(self, client: Client) -> None:
        roll = self.random.random()
        if roll < 0.55:
            if not client.waiting:
                self.heartbeat(client, faults=True)
            elif self.random.random() < 0.3:
                self.give_up_waiting(client)
        elif roll < 0.70:
            client.revoke()
        elif roll < 0.80:
            self.fetch(client)
        elif roll < 0.93:
            self.commit(client)
        elif roll < 0.96:
            self.leave(client)
        elif roll < 0.98:
            client.crashed = True
            self.clients.remove(client)
        else:
            client.wish = self.random.choice(WISHES)

    def run(self) -> None:
        for _ in range(FAULTY_STEPS):
            self.step()
            self.check()
        self.settle()

    def settle(self) -> None:
        """No more faults: everything that somebody subscribes to is read by exactly one client within the bound."""
        for _ in range(ROUNDS_TO_SETTLE):
            for client in self.clients:
                if client.waiting:
                    self.give_up_waiting(client)
                client.revoke()
                self.heartbeat(client, faults=False)
                self.commit_all()
            self.tick(self.settings.heartbeat_interval_ms)
            self.commit_all()
            self.check()
            if self.has_settled():
                break
        phase = self.coordinator.describe_group(group_id=GROUP).response.phase
        assert phase in (GroupPhase.STABLE, GroupPhase.EMPTY, GroupPhase.DEAD)
        self.check_all_owned()

    def has_settled(self) -> bool:
        description = self.coordinator.describe_group(group_id=GROUP).response
        members = {member.member_id for member in description.members}
        gone = members - {client.member_id for client in self.clients}
        arrived = all(client.epoch == description.assignment_epoch for client in self.clients)
        is_matching = self.coordinator._targets.subscriptions.next_deadline_ms() is not None
        return description.phase is GroupPhase.STABLE and arrived and not gone and not is_matching

    def commit_all(self) -> None:
        while self.queue:
            self.commit_one()

    # --- what must hold -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        assert self.budget.left_ns > -MOST_NS_OVER_BUDGET, "a decision has matched for too long"
        for state in (self.coordinator.state, self.slots.slot(SLOT)):
            group = state.groups.get(GROUP)
            if group is None:
                continue
            owned = [key for current in group.currents.values() for key in partition_keys(current)]
            assert len(owned) == len(set(owned)), "a partition has two owners"
            assert set(owned) == set(group.owners)
        if not self.queue:
            assert self.coordinator.state == self.slots.slot(SLOT), "its own copy has gone astray"
        self.check_clients()
        if GROUP not in self.coordinator.state.groups:
            self.readers_before = {}  # it has expired, and what was told of it is gone
        self.moves_checked += check_moves(self.coordinator, GROUP, self.readers_before)
        self.check_parked()
        check_timers(self.coordinator)
        offsets = self.slots.slot(SLOT).offsets.get(GROUP, {})
        assert {key: (value[0], value[2]) for key, value in offsets.items()} == self.expected

    def check_clients(self) -> None:
        """A member in good standing reads nothing but what is its own, so no two of them read the same."""
        group = self.coordinator.state.groups.get(GROUP)
        for client in self.clients:
            current = None if group is None else group.currents.get(client.member_id)
            if current is not None and client.epoch in (current.member_epoch, current.previous_member_epoch):
                assert client.reading <= set(partition_keys(current)), "it reads what may be given to another"

    def check_parked(self) -> None:
        """Nobody is left waiting for longer than it asked for, nor while there is something to tell."""
        parked = self.coordinator._membership.parked
        waiting = [(group, member) for group in parked._parked for member, _ in parked.of_group(group)]
        assert all(key in parked.ends for key in waiting)
        group = self.coordinator.state.groups.get(GROUP)
        for group_id, member_id in waiting:
            current = None if group is None else group.currents.get(member_id)
            membership = self.coordinator._membership
            is_told = (
                group is not None and current is not None and membership._advanced(group, current, None) == current
            )
            assert is_told or (group_id, "") in parked.wakes, "a member waits for what nobody will tell it"

    def check_all_owned(self) -> None:
        joined = [client for client in self.clients if client.epoch > 0]
        wanted = {
            (topic, partition)
            for client in joined
            for topic, count in self.topics.items()
            for partition in range(count)
            if client.wants(topic)
        }
        reading = [key for client in joined for key in client.reading]
        assert len(reading) == len(set(reading))
        assert set(reading) == wanted
