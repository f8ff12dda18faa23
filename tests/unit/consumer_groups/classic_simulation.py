"""A seeded simulation of one coordinator of classic groups: clients that crash, repeat, dawdle and leave; answers that are lost;
appends that fail; coordinators that die in every step. After each step the invariants are checked:

- a generation is told with one leader, one protocol and one set of members, whatever coordinator tells it;
- a member's assignment is what the leader of that generation has sent;
- a commit stands only if its generation was the group's when it was decided, and the last one stands;
- every ticket is answered once, or refused with its coordinator;
- the moves that the coordinator tells of are the difference of the assignments, where it can read them;
- after the last fault everybody is in one stable generation within the bound.
"""

import random
from dataclasses import dataclass, field

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.model.classic_messages import Answer
from barnabas.consumer_groups.model.messages import CoordinatorResult
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.kraft.group_state.group_slots import GroupSlots, slot_of
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode
from barnabas.log.vocabulary.group_messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberAssignment,
    OffsetToCommit,
    SyncGroupRequest,
    SyncGroupResponse,
)
from barnabas.log.vocabulary.group_protocol import ClientSubscription, encode_assignment, encode_subscription

from .classic_world import offered
from .explained_moves import check_moves, readers_of

GROUP = "simulated-classic"
SLOT = slot_of(GROUP)
FAULTY_STEPS = 300
ROUNDS_TO_SETTLE = 60
MAX_CLIENTS = 5
STEP_MS = 500
SETTINGS = GroupSettings(initial_rebalance_delay_ms=200, new_member_join_timeout_ms=20_000)


@dataclass(slots=True)
class Client:
    """What a process knows. `ticket` is the request that it waits for."""

    name: str
    instance_id: str | None
    favourite: str
    member_id: str = ""
    generation: int = -1
    told: JoinGroupResponse | None = None
    assignment: bytes | None = None
    ticket: int | None = None
    must_sync: bool = False
    gone: bool = False

    def forget(self, *, member_id: bool) -> None:
        if member_id:
            self.member_id = ""
        self.generation, self.told, self.assignment, self.must_sync, self.ticket = -1, None, None, False, None


@dataclass(slots=True)
class Append:
    result: CoordinatorResult[object]
    refusals: list[tuple[int, BarnabasError]] = field(default_factory=list)


class ClassicSimulation:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        self.slots = GroupSlots()
        self.epoch = 1
        self.slots.on_slot_moved(SLOT, self.epoch)
        self.queue: list[Append] = []
        self.clients: list[Client] = []
        self.clients_made = 0
        self.tickets: dict[int, Client] = {}  # not answered yet
        self.last_ticket = 0
        self.told: dict[int, tuple[str, str]] = {}  # generation -> leader, protocol
        self.members_told: dict[int, frozenset[str]] = {}
        self.sent: dict[tuple[int, str], bytes] = {}  # (generation, member) -> what its leader has assigned
        self.offset = 0
        self.events = 0
        self.loss = 0.03
        self.late: list[tuple[str, int]] = []
        self.speaks_kafka = seed % 2 == 0  # else it cannot be read what members assign to each other
        self.moves_checked = 0
        self.coordinator = self.new_coordinator()

    # --- the shell ----------------------------------------------------------------------------------------------------

    def new_coordinator(self) -> GroupCoordinator:
        coordinator = GroupCoordinator(
            slot=SLOT, coordinator_epoch=self.epoch, records=self.slots.records_of(SLOT), rng=self.random,
            topics={"t": 4}, now_ms=self.now_ms, settings=SETTINGS,
        )  # fmt: skip
        self.readers_before = readers_of(coordinator, GROUP)
        return coordinator

    def take(self, result: CoordinatorResult[object]) -> None:
        self.queue.append(Append(result))

    def commit_one(self, *, answer: bool = True) -> None:
        append = self.queue.pop(0)
        for record in append.result.records:
            assert self.slots.replay(record, self.slots.index + 1)
        if answer:
            for item in append.result.answers:
                self.deliver(item)
            for ticket, error in append.refusals:
                self.deliver(Answer(ticket=ticket, value=error))

    def deliver(self, answer: Answer) -> None:
        client = self.tickets.pop(answer.ticket)  # KeyError: answered twice
        if isinstance(answer.value, JoinGroupResponse) and not answer.value.error:
            self.note_generation(answer.value)
        if client.gone or client.ticket != answer.ticket or self.random.random() < self.loss:
            return  # nobody hears it
        client.ticket = None
        match answer.value:
            case JoinGroupResponse(error=ErrorCode.MEMBER_ID_REQUIRED) as told:
                client.member_id = told.member_id
            case JoinGroupResponse() as told:
                client.member_id, client.generation, client.told = told.member_id, told.generation, told
                client.must_sync = True
            case SyncGroupResponse() as told:
                client.must_sync = False
                client.assignment = told.assignment
                self.check_assignment(client, told.assignment)
            case BarnabasError() as error:
                self.refused(client, error)

    def check_assignment(self, client: Client, assignment: bytes) -> None:
        sent = self.sent.get((client.generation, client.member_id), b"")
        if client.instance_id is None:
            assert assignment == sent
        else:  # it may have got it under the member id of its predecessor
            assert assignment in (b"", *(value for key, value in self.sent.items() if key[0] == client.generation))

    def refused(self, client: Client, error: BarnabasError) -> None:
        client.forget(member_id=error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID))

    def note_generation(self, told: JoinGroupResponse) -> None:
        if not told.skip_assignment:
            before = self.told.setdefault(told.generation, (told.leader_id, told.protocol_name))
            is_renamed = told.leader_id != before[0] and told.leader_id.startswith("i")  # a static leader came back
            assert before[1] == told.protocol_name
            assert before[0] == told.leader_id or is_renamed, "a generation has two leaders"
        if told.members and not any(member.instance_id for member in told.members):
            names = frozenset(member.member_id for member in told.members)
            assert self.members_told.setdefault(told.generation, names) == names

    def fail_over(self) -> None:
        for _ in range(self.random.randint(0, len(self.queue))):
            self.commit_one(answer=False)
        self.epoch += 1
        self.slots.on_slot_moved(SLOT, self.epoch)
        self.restart()

    def restart(self) -> None:
        """Nothing that waits will be answered; whoever waits asks again."""
        self.queue.clear()
        for client in self.tickets.values():
            client.ticket = None
        self.tickets.clear()
        self.offset = self.committed()
        self.coordinator = self.new_coordinator()

    def committed(self) -> int:
        value = self.slots.slot(SLOT).offset(GROUP, ("t", 0))
        return 0 if value is None else value[0]

    def pass_ms(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while (deadline_ms := self.coordinator.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.take(self.coordinator.tick(self.now_ms))
            after_ms = self.coordinator.next_deadline_ms()
            assert after_ms is None or after_ms > self.now_ms, "a tick leaves nothing undone"
        self.now_ms = end_ms

    # --- clients ------------------------------------------------------------------------------------------------------

    def start_client(self) -> None:
        if len(self.clients) >= MAX_CLIENTS:
            return
        self.clients_made += 1
        instance_id = f"i{self.random.randint(0, 1)}" if self.random.random() < 0.3 else None
        if any(client.instance_id == instance_id is not None for client in self.clients):
            return
        self.clients.append(Client(f"m{self.clients_made}", instance_id, self.random.choice(("range", "sticky"))))

    def ask(self, client: Client) -> None:
        if client.ticket is not None:
            return
        self.last_ticket += 1
        ticket = client.ticket = self.last_ticket
        self.tickets[ticket] = client
        try:
            if client.must_sync:
                result = self.sync(client, ticket)
            else:
                result = self.coordinator.join_group(self.join_request(client), ticket, self.now_ms)
        except BarnabasError as error:
            self.queue.append(Append(CoordinatorResult(records=(), response=None), [(ticket, error)]))
            return
        self.take(result)

    def join_request(self, client: Client) -> JoinGroupRequest:
        other = "sticky" if client.favourite == "range" else "range"
        return JoinGroupRequest(
            group_id=GROUP, member_id=client.member_id, instance_id=client.instance_id, client_id=client.name,
            session_timeout_ms=6_000, rebalance_timeout_ms=8_000,
            protocol_type="consumer" if self.speaks_kafka else "own",
            protocols=offered(
                (client.favourite, self.subscription(client.name.encode())), (other, self.subscription(b""))
            ),
        )  # fmt: skip

    def subscription(self, user_data: bytes) -> bytes:
        if not self.speaks_kafka:
            return user_data
        return encode_subscription(ClientSubscription(topics=("t",), user_data=user_data))

    def assignment(self, index: int, count: int, user_data: bytes) -> bytes:
        """Member i of n gets every n-th of the partitions, from i on."""
        if not self.speaks_kafka:
            return user_data
        return encode_assignment(frozenset(("t", number) for number in range(index, 4, count)), user_data)

    def sync(self, client: Client, ticket: int) -> CoordinatorResult[None]:
        assert client.told is not None
        assignments = tuple(
            MemberAssignment(
                member_id=member.member_id,
                assignment=self.assignment(
                    index, len(client.told.members), b"%d:%s" % (client.generation, member.member_id.encode())
                ),
            )
            for index, member in enumerate(client.told.members)
        )
        request = SyncGroupRequest(
            group_id=GROUP, generation=client.generation, member_id=client.member_id, instance_id=client.instance_id,
            assignments=assignments,
        )  # fmt: skip
        result = self.coordinator.sync_group(request, ticket, self.now_ms)
        for item in assignments:
            self.sent.setdefault((client.generation, item.member_id), item.assignment)
        return result

    def beat(self, client: Client) -> None:
        if client.generation < 0 or client.ticket is not None:
            return
        try:
            request = HeartbeatRequest(
                group_id=GROUP, generation=client.generation, member_id=client.member_id,
                instance_id=client.instance_id,
            )  # fmt: skip
            self.coordinator.heartbeat_classic(request, self.now_ms)
        except BarnabasError as error:
            self.refused(client, error)

    def commit(self, client: Client) -> None:
        if client.assignment is None:
            return
        identity = (client.member_id, client.generation)
        if self.random.random() < 0.2:
            self.late.append(identity)  # this one is on its way for long
            return
        error = self.commit_as(*identity)
        if error is not None:
            self.refused(client, error)

    def commit_as(self, member_id: str, generation: int) -> BarnabasError | None:
        try:
            result = self.coordinator.commit_offsets(
                group_id=GROUP, member_id=member_id, member_epoch=generation,
                offsets=(OffsetToCommit(topic="t", partition=0, offset=self.offset + 1),), now_ms=self.now_ms,
            )  # fmt: skip
        except BarnabasError as error:
            return error
        described = self.coordinator.describe_group(group_id=GROUP).response
        assert described.group_epoch == generation, "a commit of an older generation was taken"
        self.offset += 1
        self.take(result)
        return None

    def leave(self, client: Client) -> None:
        self.stop(client)
        if client.member_id:
            leaving = (LeaveGroupRequest(group_id=GROUP, member_id=client.member_id, instance_id=client.instance_id),)
            self.take(self.coordinator.leave_group(group_id=GROUP, leaving=leaving, now_ms=self.now_ms))

    def hang_up(self, client: Client) -> None:
        """It gives up waiting, and will ask again; the coordinator may hear of it."""
        ticket, client.ticket = client.ticket, None
        if ticket is not None and self.random.random() < 0.5:
            self.take(self.coordinator.withdraw(group_id=GROUP, ticket=ticket, now_ms=self.now_ms))

    def stop(self, client: Client) -> None:
        client.gone = True
        self.clients.remove(client)

    # --- steps --------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        roll = self.random.random()
        if roll < 0.06:
            self.start_client()
        elif roll < 0.40:
            for _ in range(self.random.randint(1, 4)):
                if self.queue:
                    self.commit_one()
        elif roll < 0.45:
            self.pass_ms(self.random.choice((50, 500, 2_000, 5_000)))
        elif roll < 0.46:
            self.fail_over() if self.random.random() < 0.5 else self.restart()
        elif roll < 0.49 and self.late:
            self.commit_as(*self.late.pop(0))
        elif self.clients:
            self.client_step(self.random.choice(self.clients))

    def client_step(self, client: Client) -> None:
        roll = self.random.random()
        if roll < 0.45:
            self.ask(client) if client.assignment is None else self.beat(client)
        elif roll < 0.55:
            self.beat(client)
        elif roll < 0.87:
            self.commit(client)
        elif roll < 0.90:
            client.favourite = self.random.choice(("range", "sticky"))
            client.forget(member_id=False)
        elif roll < 0.92:
            self.hang_up(client)
        elif roll < 0.94:
            self.leave(client)
        elif roll < 0.95:
            self.stop(client)

    def run(self) -> None:
        for _ in range(FAULTY_STEPS):
            self.step()
            self.check()
            self.events += 1
        self.settle()

    def settle(self) -> None:
        self.loss = 0.0
        for client in self.clients:
            client.ticket = None
        for _ in range(ROUNDS_TO_SETTLE):
            for client in list(self.clients):
                if client.assignment is None or client.must_sync:
                    self.ask(client)
                else:
                    self.beat(client)
            self.commit_all()
            self.pass_ms(STEP_MS)
            self.commit_all()
            self.check()
            if self.has_settled():
                return
        described = self.coordinator.describe_group(group_id=GROUP).response
        raise AssertionError(f"not settled: {described.phase} {described.group_epoch} {self.clients}")

    def has_settled(self) -> bool:
        described = self.coordinator.describe_group(group_id=GROUP).response
        if not self.clients:
            return described.phase.value in ("empty", "dead")
        names = {member.member_id for member in described.members}
        return (
            described.phase.value == "stable"
            and names == {client.member_id for client in self.clients}
            and all(c.generation == described.group_epoch and c.assignment is not None for c in self.clients)
        )

    def commit_all(self) -> None:
        while self.queue:
            self.commit_one()

    def check(self) -> None:
        self.moves_checked += check_moves(self.coordinator, GROUP, self.readers_before)
        if not self.queue:
            assert self.coordinator.state == self.slots.slot(SLOT), "its own copy has gone astray"
            assert self.committed() == self.offset, "a commit is lost, or an old one came through"
