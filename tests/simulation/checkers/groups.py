"""What consumer groups promise their members, checked while it happens (ARCHITECTURE.md, What always holds).

Two sides are held against each other: what members of the SDK see (which partitions are theirs, which records they were
handed out and are done with), and the group state that is committed, followed on whichever voter has come furthest.

- A partition is taken over only from a member that has let go of it or was expelled, and has one owner per member epoch.
- A committed offset never falls but by a reset, and never passes a record that no member is done with: so nothing is
  skipped, neither by a rebalance nor by a crash.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from barnabas.consumer_groups.model.states import GroupPhase, phase_of
from barnabas.kraft.group_state.group_slots import GroupState, slot_of
from barnabas.net.testing.simulation.cluster import SimulatedNode, voter_machine

from .partitions import PartitionChecker

Partition = tuple[str, int]


class Member(Protocol):
    """What a member of the simulation tells of itself."""

    group: str
    instance_id: str | None

    @property
    def identity(self) -> str: ...

    @property
    def member_id(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    @property
    def is_running(self) -> bool:
        """It is neither dead nor standing still."""

    def holds(self, partition: Partition) -> bool:
        """It reads the partition, or would, as far as it knows; also while it stands still."""


@dataclass(slots=True)
class Progress:
    """How far a group has come in one partition. `done` is behind the last record of the unbroken row that members are done
    with; `beyond` holds the others. `rounds` counts resets: what was handed out before one does not count after it."""

    done: int = 0
    beyond: set[int] = field(default_factory=set)
    rounds: int = 0
    committed: int | None = None
    allowed: set[int] = field(default_factory=set)  # offsets that a reset requested

    def processed(self, offsets: Iterable[int], rounds: int) -> None:
        if rounds != self.rounds:
            return
        self.beyond.update(offset for offset in offsets if offset >= self.done)
        while self.done in self.beyond:
            self.beyond.discard(self.done)
            self.done += 1

    def reset(self, offset: int) -> None:
        self.rounds += 1
        self.done = offset
        self.beyond.clear()


class GroupChecker:
    def __init__(self, partitions: PartitionChecker, groups: Iterable[str], violate: Callable[[str], None]) -> None:
        self._partitions = partitions
        self._violate = violate
        self.groups = tuple(groups)
        self.members: list[Member] = []  # all that live
        self.states: dict[str, GroupState] = {}  # the newest, by group; to be read at once: it goes on changing
        self.progress: dict[tuple[str, Partition], Progress] = {}
        self.polled = 0
        self.adoptions = 0
        self.resets = 0
        self._offset = -1  # of the metadata that was looked at last
        self._owners: dict[tuple[str, Partition, int], str] = {}  # by member epoch
        self._known: dict[str, set[str]] = {}  # member ids by group
        self._adopted: dict[tuple[str, str], set[Partition]] = {}  # identity, member id -> since it was last expelled

    def of(self, group: str, partition: Partition) -> Progress:
        return self.progress.setdefault((group, partition), Progress())

    # --- what is committed --------------------------------------------------------------------------------------------

    def follow(self, node: SimulatedNode) -> None:
        """Look at the group state of a voter, if it is newer than any that was seen."""
        machine: Any = voter_machine(node)
        if machine is None or machine.image.offset <= self._offset:
            return
        self._offset = machine.image.offset
        for group_id in self.groups:
            slot = machine.state.groups.slot(slot_of(group_id))
            self._follow_members(group_id, slot.groups.get(group_id))
            self._follow_offsets(group_id, slot.offsets.get(group_id, {}))

    def _follow_members(self, group_id: str, state: GroupState | None) -> None:
        if state is None:
            return
        self.states[group_id] = state
        before, now = self._known.get(group_id, set()), set(state.members)
        for member_id in before - now:
            for (_, adopter), held in self._adopted.items():
                if adopter == member_id:
                    held.clear()
        self._known[group_id] = now

    def _follow_offsets(self, group_id: str, offsets: dict[Partition, Any]) -> None:
        for partition, value in offsets.items():
            progress = self.of(group_id, partition)
            if value[0] == progress.committed:
                continue
            before, progress.committed = progress.committed, value[0]
            self._committed(group_id, partition, before, value[0], progress)
        for (group, partition), progress in self.progress.items():
            if group == group_id and progress.committed is not None and partition not in offsets:
                self._violate(f"group {group}: the committed offset of {partition} is gone")

    def _committed(
        self, group_id: str, partition: Partition, before: int | None, offset: int, progress: Progress
    ) -> None:
        name = f"group {group_id}: the committed offset of {partition}"
        if before is not None and offset < before:
            if offset not in progress.allowed:
                self._violate(f"{name} fell from {before} to {offset}, and nobody reset it")
                return
            self.resets += 1
            progress.reset(offset)
        elif (
            offset > progress.done and offset in progress.allowed
        ):  # a second reset, right after one that was further back
            self.resets += 1
            progress.reset(offset)
        if offset > progress.done:
            self._violate(f"{name} is {offset}, but from {progress.done} on no member was done with the records")
        if offset > self.end(partition):
            self._violate(f"{name} is {offset}, the log ends at {self.end(partition)}")

    def end(self, partition: Partition) -> int:
        """Behind the last committed record."""
        return max((history.committed_end for history in self._partitions.named.get(partition, ())), default=0)

    # --- what members see ---------------------------------------------------------------------------------------------

    def adopted(self, member: Member, partition: Partition) -> None:
        self.adoptions += 1
        name = member.instance_id or member.identity  # a static member that is back is the same one, in the same epoch
        known = self._owners.setdefault((member.group, partition, member.epoch), name)
        if known != name:
            self._violate(
                f"group {member.group}: {partition} is owned by {known} and by {name} in epoch {member.epoch}"
            )
        if member.member_id not in self._known.get(member.group, ()):
            return  # it learned it before it was expelled, and stood still since: its commits will be refused
        self._adopted.setdefault((member.identity, member.member_id), set()).add(partition)
        for other in self.members:
            if other is not member and other.group == member.group and self._rightly_holds(other, partition):
                self._violate(
                    f"group {member.group}: {member.identity} takes {partition} over in epoch {member.epoch}, but "
                    f"{other.identity} (epoch {other.epoch}) has it still and was not expelled"
                )

    def _rightly_holds(self, member: Member, partition: Partition) -> bool:
        held = self._adopted.get((member.identity, member.member_id), set())
        return partition in held and member.holds(partition)

    def was_polled(self, member: Member, partition: Partition, first: int, last: int) -> int:
        """Returns the round that `processed` has to be told."""
        self.polled += last - first + 1
        if last >= self.end(partition):
            self._violate(f"{member.identity} was handed out {first} to {last} of {partition}: not committed yet")
        return self.of(member.group, partition).rounds

    # --- rest ---------------------------------------------------------------------------------------------------------

    def owners(self, group: str, partition: Partition) -> list[Member]:
        """Members that run and read the partition."""
        return [it for it in self.members if it.group == group and it.is_running and it.holds(partition)]

    def responsible(self, group: str, partition: Partition) -> str | None:
        """The member that the newest state wants to have the partition."""
        state = self.states.get(group)
        if state is None:
            return None
        topic, number = partition
        for member_id, target in state.targets.items():
            if any(item.topic == topic and number in item.partitions for item in target.partitions):
                return member_id
        return None

    def why_not_stable(self, group: str, wanted: Iterable[Partition]) -> str:
        """Empty: every member owns its target, each partition has one owner, and there are no other members."""
        state = self.states.get(group)
        if state is None or phase_of(state) is not GroupPhase.STABLE:
            return f"group {group} is {'not there' if state is None else phase_of(state)}"
        alive = {member.member_id for member in self.members if member.group == group}
        if alive != set(state.members):
            return f"group {group} has members {sorted(state.members)}, alive are {sorted(alive)}"
        for partition in wanted:
            found = self.owners(group, partition)
            if len(found) != 1:
                return f"group {group}: {partition} is read by {[member.identity for member in found]}"
            if found[0].member_id != self.responsible(group, partition):
                return f"group {group}: {partition} is read by {found[0].identity}, which is not its target"
        return ""
