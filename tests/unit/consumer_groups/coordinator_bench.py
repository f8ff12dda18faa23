"""One coordinator with its state and its clock, and clients that do what a member does."""

import random
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.model.partitions import PartitionSet, from_set, to_set
from barnabas.consumer_groups.model.rebalance_causes import RebalanceCause
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.consumer_groups.model.states import GroupPhase, MemberState
from barnabas.consumer_groups.subscriptions.match_budget import MatchBudget
from barnabas.kraft.group_state.group_slots import GroupSlots, slot_of
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

GROUP = "payments"
SLOT = slot_of(GROUP)
T = frozenset({("t", partition) for partition in range(4)})


class Bench:
    """A coordinator with a quorum that commits at once, and a clock that is moved by hand."""

    def __init__(self, *, topics: Mapping[str, int] | None = None, settings: GroupSettings | None = None) -> None:
        self.topics = {"t": 4} if topics is None else topics
        self.settings = settings or GroupSettings()
        self.slots = GroupSlots()
        self.now_ms = 1_000
        self.epoch = 1
        self.make_budget: Callable[[int], MatchBudget] = MatchBudget
        self.coordinator = self._new_coordinator()

    def fail_over(self) -> None:
        self.epoch += 1
        self.slots.on_slot_moved(SLOT, self.epoch)
        self.coordinator = self._new_coordinator()

    def _new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(
            slot=SLOT,
            coordinator_epoch=self.epoch,
            records=self.slots.records_of(SLOT),
            rng=random.Random(1),
            topics=self.topics,
            now_ms=self.now_ms,
            settings=self.settings,
            match_budget=self.make_budget(self.now_ms),
        )

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client_host: str = ""
    ) -> ConsumerGroupHeartbeatResponse:
        result = self.coordinator.heartbeat(request, self.now_ms, client_host=client_host)
        self.commit(result.records)
        return result.response

    def commit(self, records: tuple[object, ...]) -> None:
        for record in records:
            assert self.slots.replay(record, self.slots.index + 1)  # type: ignore[arg-type]

    def tick(self, pass_ms: int = 0) -> None:
        self.now_ms += pass_ms
        self.commit(self.coordinator.tick(self.now_ms).records)

    def change_topics(self, topics: Mapping[str, int], recreated: frozenset[str] = frozenset()) -> None:
        self.topics = topics
        self.commit(self.coordinator.topics_changed(topics, self.now_ms, recreated=recreated).records)

    def join(self, member: str, **fields: object) -> "Client":
        return Client(self, member, **fields)

    def phase(self) -> GroupPhase:
        return self.coordinator.describe_group(group_id=GROUP).response.phase

    def causes(self) -> list[RebalanceCause]:
        return [
            cause.cause
            for item in self.coordinator.describe_group(group_id=GROUP).response.rebalances
            for cause in item.reasons
        ]

    def state_of(self, member: str) -> MemberState:
        members = self.coordinator.describe_group(group_id=GROUP).response.members
        (found,) = (item.state for item in members if item.member_id == member)
        return found


class Client:
    """A member that follows the protocol one heartbeat at a time."""

    def __init__(self, bench: Bench, member: str, client_host: str = "", **fields: object) -> None:
        self.bench = bench
        base = ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id=member, member_epoch=0, subscribed_topics=("t",), owned=()
        )
        self.owned: PartitionSet = frozenset()
        self.epoch = 0
        self.instance_id: str | None = None
        response = bench.heartbeat(replace(base, **fields), client_host)  # type: ignore[arg-type]
        self.member = response.member_id
        self.instance_id = fields.get("instance_id")  # type: ignore[assignment]
        self.take(response)

    def take(self, response: ConsumerGroupHeartbeatResponse) -> ConsumerGroupHeartbeatResponse:
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.owned = to_set(response.assignment)
        return response

    def request(self, **fields: object) -> ConsumerGroupHeartbeatRequest:
        base = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            owned=from_set(self.owned),
        )
        return replace(base, **fields)  # type: ignore[arg-type]

    def beat(self, **fields: object) -> ConsumerGroupHeartbeatResponse:
        return self.take(self.bench.heartbeat(self.request(**fields)))


def settle(*clients: Client) -> None:
    for _ in range(4):
        for client in clients:
            client.beat()
