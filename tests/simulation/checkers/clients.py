"""What clients were told must stay true: acknowledgements, records they read, log ends, owned partitions, commits."""

from dataclasses import dataclass

from .partitions import PartitionChecker
from .violation import Violation

TopicPartitionName = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    topic: str
    partition: int
    base_offset: int
    crc: int


@dataclass(slots=True)
class Commit:
    """One OffsetCommit of one partition. `ended` None: its outcome is not known (yet)."""

    identity: str
    started: int
    ended: int | None = None


class ClientChecker:
    """Topics live as long as the simulation, so a name is a topic; but those in `recreated` come and go, and what was told of
    one of that name may be true of any. Times are counts of client events."""

    def __init__(self, partitions: PartitionChecker) -> None:
        self._partitions = partitions
        self.topic_ids: dict[str, str] = {}
        self.recreated: set[str] = set()
        self.acknowledged: list[Acknowledged] = []
        self.acknowledged_by_leader = 0
        self.seen: dict[tuple[str, int, int], int] = {}  # topic, partition, base offset -> CRC that a consumer saw
        self.ends: dict[tuple[str, str, int], int] = {}  # client, topic, partition -> log end it was told
        self.owners: dict[tuple[str, str, int, int], str] = {}  # group, topic, partition, member epoch -> member
        self.commits: dict[tuple[str, str, int], list[Commit]] = {}
        self._time = 0

    def now(self) -> int:
        self._time += 1
        return self._time

    # --- records ------------------------------------------------------------------------------------------------------

    def acked_by_all(self, topic: str, partition: int, base_offset: int, crc: int) -> None:
        acknowledged = Acknowledged(topic=topic, partition=partition, base_offset=base_offset, crc=crc)
        self._check_committed(acknowledged)
        self.acknowledged.append(acknowledged)

    def _check_committed(self, acknowledged: Acknowledged) -> None:
        """A committed batch stays where it is (the partition checker sees to that), so looking once is enough."""
        committed = self._committed(acknowledged.topic, acknowledged.partition, acknowledged.base_offset)
        if acknowledged.crc not in committed:
            raise Violation(f"{acknowledged} was acknowledged by all, but committed there is {committed}")

    def _committed(self, topic: str, partition: int, base_offset: int) -> list[int]:
        """The CRCs of the batches that are committed there: one, if the name is that of one topic."""
        histories = self._partitions.named.get((topic, partition), [])
        found = [history.committed.get(base_offset) for history in histories]
        return [committed.batch.crc for committed in found if committed is not None]

    def read(self, topic: str, partition: int, base_offset: int, crc: int) -> None:
        known = self.seen.setdefault((topic, partition, base_offset), crc)
        if known != crc and topic not in self.recreated:
            raise Violation(f"{topic}-{partition}: offset {base_offset} showed two values to consumers")
        committed = self._committed(topic, partition, base_offset)
        if crc not in committed:
            raise Violation(f"{topic}-{partition}: a consumer was shown offset {base_offset}, committed is {committed}")

    def passed_over(self, topic: str, partition: int, offset: int, next_offset: int) -> None:
        """A consumer asked for `offset` and was given `next_offset`: what is committed in between must have been deleted."""
        limit = self._partitions.start_limits.get((topic, partition), 0)
        if topic in self.recreated or next_offset <= limit:
            return
        for history in self._partitions.named.get((topic, partition), []):
            skipped = [base for base in history.committed if max(offset, limit) <= base < next_offset]
            if skipped:
                raise Violation(
                    f"{topic}-{partition}: a consumer at {offset} was given {next_offset}, and not {skipped}"
                )

    def told_end(self, client: str, topic: str, partition: int, end_offset: int) -> None:
        before = self.ends.get((client, topic, partition), 0)
        if end_offset < before and topic not in self.recreated:
            raise Violation(f"{topic}-{partition}: {client} was told log end {before} and then {end_offset}")
        self.ends[client, topic, partition] = end_offset

    # --- groups -------------------------------------------------------------------------------------------------------

    def adopted(self, group: str, topic: str, partition: int, member_epoch: int, member: str) -> None:
        known = self.owners.setdefault((group, topic, partition, member_epoch), member)
        if known != member:
            raise Violation(
                f"group {group}: {topic}-{partition} is owned by {known} and by {member} in epoch {member_epoch}"
            )

    def commit_begins(self, group: str, topic: str, partition: int, identity: str) -> Commit:
        commit = Commit(identity, self.now())
        self.commits.setdefault((group, topic, partition), []).append(commit)
        return commit

    def commit_refused(self, group: str, topic: str, partition: int, commit: Commit) -> None:
        self.commits[group, topic, partition].remove(commit)

    def check_commit(self, group: str, topic: str, partition: int, identity: str) -> None:
        """`identity` is what the cluster says at rest: no acknowledged commit may lie wholly behind it."""
        commits = self.commits.get((group, topic, partition), [])
        acknowledged = [commit for commit in commits if commit.ended is not None]
        if not identity:
            if acknowledged:
                raise Violation(f"group {group}: the acknowledged commits of {topic}-{partition} are gone")
            return
        found = next((commit for commit in commits if commit.identity == identity), None)
        if found is None:
            raise Violation(
                f"group {group}: {topic}-{partition} has commit {identity!r}, which was refused or never sent"
            )
        if found.ended is not None:
            for later in acknowledged:
                if later.started > found.ended:
                    raise Violation(
                        f"group {group}: {topic}-{partition} has commit {found}, the later {later} was acknowledged"
                    )
