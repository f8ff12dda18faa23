"""A coordinator of classic groups with a quorum that commits at once, parked answers by ticket, and a clock moved by hand."""

import random
from dataclasses import dataclass, field

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.model.messages import CoordinatorResult
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.kraft.group_state.group_slots import GroupSlots, slot_of
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode
from barnabas.log.vocabulary.group_messages import (
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from barnabas.log.vocabulary.group_protocol import (
    ClientSubscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)

GROUP = "classics"
SLOT = slot_of(GROUP)
SUBSCRIPTION = encode_subscription(ClientSubscription(topics=("t",)))
RANGE = (("range", SUBSCRIPTION),)


def offered(*protocols: tuple[str, bytes]) -> tuple[GroupProtocol, ...]:
    return tuple(GroupProtocol(name=name, metadata=metadata) for name, metadata in protocols)


class ClassicWorld:
    def __init__(self, *, settings: GroupSettings | None = None) -> None:
        self.topics = {"t": 4}
        self.settings = settings or GroupSettings()
        self.slots = GroupSlots()
        self.now_ms = 1_000
        self.epoch = 1
        self.tickets = 0
        self.answers: dict[int, JoinGroupResponse | SyncGroupResponse | BarnabasError] = {}
        self.coordinator = self.new_coordinator()

    def new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(
            slot=SLOT,
            coordinator_epoch=self.epoch,
            records=self.slots.records_of(SLOT),
            rng=random.Random(self.epoch),
            topics=self.topics,
            now_ms=self.now_ms,
            settings=self.settings,
        )

    def fail_over(self) -> None:
        self.epoch += 1
        self.slots.on_slot_moved(SLOT, self.epoch)
        self.coordinator = self.new_coordinator()

    def commit(self, result: CoordinatorResult[object]) -> None:
        for record in result.records:
            assert self.slots.replay(record, self.slots.index + 1)
        for answer in result.answers:
            assert answer.ticket not in self.answers, "a ticket is answered once"
            assert isinstance(answer.value, JoinGroupResponse | SyncGroupResponse | BarnabasError)
            self.answers[answer.ticket] = answer.value

    def new_ticket(self) -> int:
        self.tickets += 1
        return self.tickets

    def pass_ms(self, duration_ms: int) -> None:
        """Let time pass as the shell does: a tick at every deadline."""
        end_ms = self.now_ms + duration_ms
        while (deadline_ms := self.coordinator.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.commit(self.coordinator.tick(self.now_ms))
        self.now_ms = end_ms

    def client(self, name: str, **fields: object) -> "ClassicClient":
        return ClassicClient(self, name, **fields)  # type: ignore[arg-type]

    def group_of(self, *names: str) -> list["ClassicClient"]:
        """A stable group of these clients; the first one leads."""
        clients = [self.client(name) for name in names]
        for client in clients:
            client.join()
        self.pass_ms(self.settings.initial_rebalance_delay_ms * (len(names) + 1))
        for client in reversed(clients):
            client.sync()
        return clients

    @property
    def phase(self) -> str:
        return self.coordinator.describe_group(group_id=GROUP).response.phase.value

    def causes(self) -> list[str]:
        return [
            cause.cause
            for one in self.coordinator.describe_group(group_id=GROUP).response.rebalances
            for cause in one.reasons
        ]


@dataclass
class ClassicClient:
    world: ClassicWorld
    name: str
    instance_id: str | None = None
    protocols: tuple[tuple[str, bytes], ...] = RANGE
    protocol_type: str = "consumer"
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 30_000
    member_id: str = ""
    generation: int = -1
    ticket: int = 0
    told: JoinGroupResponse | None = None
    known_id: bool = True
    others: list[str] = field(default_factory=list)

    def join(self) -> "ClassicClient":
        """Ask to join, twice where the coordinator wants an id first."""
        for _ in range(2):
            self.ticket = self.world.new_ticket()
            self.world.commit(
                self.world.coordinator.join_group(
                    self.request(), self.ticket, self.world.now_ms, needs_known_id=self.known_id
                )
            )
            answer = self.world.answers.get(self.ticket)
            if not isinstance(answer, JoinGroupResponse) or answer.error != ErrorCode.MEMBER_ID_REQUIRED:
                break
            self.member_id = answer.member_id
        return self

    def request(self) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=GROUP,
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.name,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocol_type=self.protocol_type,
            protocols=offered(*self.protocols),
        )

    @property
    def answer(self) -> JoinGroupResponse | SyncGroupResponse | BarnabasError | None:
        return self.world.answers.get(self.ticket)

    def joined(self) -> JoinGroupResponse:
        """The answer to the join, which must be there by now."""
        answer = self.answer
        assert isinstance(answer, JoinGroupResponse), answer
        self.told, self.member_id, self.generation = answer, answer.member_id, answer.generation
        return answer

    def sync(self) -> "ClassicClient":
        """Sync; the leader gives partition i of "t" to member i."""
        told = self.joined() if isinstance(self.answer, JoinGroupResponse) else self.told
        assert told is not None
        assignments = tuple(
            MemberAssignment(member_id=member.member_id, assignment=encode_assignment(frozenset({("t", index)})))
            for index, member in enumerate(told.members)
        )
        self.ticket = self.world.new_ticket()
        request = SyncGroupRequest(
            group_id=GROUP, generation=self.generation, member_id=self.member_id, assignments=assignments,
            instance_id=self.instance_id,
        )  # fmt: skip
        self.world.commit(self.world.coordinator.sync_group(request, self.ticket, self.world.now_ms))
        return self

    def synced(self) -> tuple[int, ...]:
        """The partitions of "t" that the sync has brought."""
        answer = self.answer
        assert isinstance(answer, SyncGroupResponse), answer
        assigned = decode_assignment(answer.assignment)
        return tuple(sorted(number for _, number in assigned or ()))

    def beat(self) -> None:
        request = HeartbeatRequest(
            group_id=GROUP, generation=self.generation, member_id=self.member_id, instance_id=self.instance_id
        )
        self.world.coordinator.heartbeat_classic(request, self.world.now_ms)

    def leave(self) -> ErrorCode:
        leaving = (LeaveGroupRequest(group_id=GROUP, member_id=self.member_id, instance_id=self.instance_id),)
        result = self.world.coordinator.leave_group(group_id=GROUP, leaving=leaving, now_ms=self.world.now_ms)
        self.world.commit(result)
        return result.response[0].error
