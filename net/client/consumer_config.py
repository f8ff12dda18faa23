"""The consumer's settings and their checks. Pure."""

from dataclasses import dataclass
from random import Random
from uuid import UUID

from .errors import InvalidConfigError
from .group_membership import GroupMembership, Subscription
from .offset_lookup import EARLIEST, LATEST

RESET_TIMES: dict[str, int | None] = {"latest": LATEST, "earliest": EARLIEST, "none": None}
ISOLATION_LEVELS = {"read_uncommitted": 0, "read_committed": 1}

MAX_POLL_RECORDS = 10_000  # Of one `poll`, unless told otherwise: enough to make the call itself free.
FOREVER_MS = 86_400_000  # How long `async for` waits at a time.
CLOSE_COMMIT_TIMEOUT_MS = 10_000  # A failover fits in; beyond it, closing must not hang on a cluster that is gone.


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    group: str | None
    reset_time_ms: int | None  # EARLIEST, LATEST, or None: no reset, an error.
    auto_commit: bool
    auto_commit_interval_ms: int
    max_poll_interval_ms: int
    partition_max_bytes: int
    instance_id: str | None
    assignor: str | None
    session_timeout_ms: int  # -1: the coordinator's default.
    rebalance_timeout_ms: int
    rack: str

    def __post_init__(self) -> None:
        if self.group == "":
            raise InvalidConfigError("the group is empty; leave it out to read without a group")
        for name in ("auto_commit_interval_ms", "max_poll_interval_ms", "partition_max_bytes"):
            if getattr(self, name) <= 0:
                raise InvalidConfigError(f"{name} must be positive")

    def membership(self, rng: Random, client_id: str, subscription: Subscription) -> GroupMembership:
        """A new member of the group, which has not joined yet."""
        assert self.group is not None
        return GroupMembership(
            self.group,
            str(UUID(int=rng.getrandbits(128), version=4)),
            subscription,
            instance_id=self.instance_id,
            rack=self.rack or None,
            client_id=client_id,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            assignor=self.assignor,
        )


def reset_time(policy: str) -> int | None:
    if policy not in RESET_TIMES:
        raise InvalidConfigError(f"auto_offset_reset is {policy!r}; use earliest, latest or none")
    return RESET_TIMES[policy]


def isolation_level(name: str) -> int:
    if name not in ISOLATION_LEVELS:
        raise InvalidConfigError(f"isolation_level is {name!r}; use read_uncommitted or read_committed")
    return ISOLATION_LEVELS[name]
