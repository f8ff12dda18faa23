"""The consumer's settings, their checks, and the group session that they select."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from ..connection.client import Client
from ..connection.errors import BarnabasError, InvalidConfigError
from ..group.assignors import Assignor, chosen
from ..group.classic_membership import ClassicMembership
from ..group.classic_session import JOIN_GRACE_MS, ClassicSession
from ..group.group_membership import MAX_WAIT_MS, GroupMembership
from ..group.group_session import GroupSession
from ..group.ownership import Subscription
from ..group.session import LEAVE_FAILOVER_MS, Session
from ..positions.offset_lookup import EARLIEST, LATEST

RESET_TIMES: dict[str, int | None] = {"latest": LATEST, "earliest": EARLIEST, "none": None}

MAX_POLL_RECORDS = 10_000  # Default of one `poll`: enough to make the cost of the call negligible.
MAX_POLL_BYTES = (
    16 << 20
)  # Of one Arrow table: more leaves the caches of the CPU, and holds the event loop for too long.
FOREVER_MS = 86_400_000  # The timeout of each wait of `async for`.
CLASSIC_SESSION_TIMEOUT_MS = 45_000  # Kafka's session.timeout.ms.
HEARTBEATS_PER_SESSION = 3  # At least this many: one lost or late heartbeat does not cost the membership.
# Commits and the leave together. Without LEAVE_TIMEOUT_MS, which the leave has in any case, this is long enough for a failover.
CLOSE_TIMEOUT_MS = LEAVE_FAILOVER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    group: str | None
    reset_time_ms: int | None  # EARLIEST, LATEST, or None: no reset, an error.
    auto_commit: bool
    auto_commit_interval_ms: int
    max_poll_interval_ms: int
    partition_max_bytes: int
    instance_id: str | None
    assignor: str | Assignor | Sequence[str | Assignor] | None
    session_timeout_ms: int  # -1: the default, which the coordinator knows unless the group is classic.
    rebalance_timeout_ms: int
    rack: str
    group_protocol: str
    heartbeat_interval_ms: int  # Of classic groups; of others the coordinator names it.
    request_timeout_ms: int
    missing_topic_timeout_ms: int  # -1: no limit

    def __post_init__(self) -> None:
        if self.group == "":
            raise InvalidConfigError("the group is empty; omit it to read without a group")
        for name in ("auto_commit", "instance_id", "assignor"):
            if self.group is None and getattr(self, name):
                raise InvalidConfigError(f"{name} has no effect without a group: give group=..., or omit {name}")
        if self.group_protocol not in ("consumer", "classic"):
            raise InvalidConfigError(f"group_protocol is {self.group_protocol!r}; use consumer or classic")
        if self.group_protocol == "classic":
            chosen(self.assignor)
        elif self.assignor is not None and not isinstance(self.assignor, str):
            raise InvalidConfigError(
                "the coordinator needs the name of an assignor that it knows; to use your own, set group_protocol='classic'"
            )

    def session(
        self,
        client: Client,
        subscription: Subscription,
        *,
        on_change: Callable[[], None],
        on_error: Callable[[BarnabasError], None],
        idle_ms: Callable[[], int],
    ) -> Session:
        """Start the membership in the group."""
        limits = {"idle_ms": idle_ms, "max_poll_interval_ms": self.max_poll_interval_ms}
        if self.group_protocol == "classic":
            classic = self._classic_membership(client, subscription)
            return ClassicSession(
                client,
                classic,
                heartbeat_interval_ms=max(
                    1, min(self.heartbeat_interval_ms, self._session_ms // HEARTBEATS_PER_SESSION)
                ),
                join_timeout_ms=max(self.request_timeout_ms, self.rebalance_timeout_ms + JOIN_GRACE_MS),
                on_change=on_change,
                on_error=on_error,
                **limits,
            )
        return GroupSession(
            client, self._membership(client, subscription), on_change=on_change, on_error=on_error, **limits
        )

    def _membership(self, client: Client, subscription: Subscription) -> GroupMembership:
        assert self.group is not None and (self.assignor is None or isinstance(self.assignor, str))
        return GroupMembership(
            self.group,
            str(UUID(int=client.rng.getrandbits(128), version=4)),
            subscription,
            instance_id=self.instance_id,
            rack=self.rack or None,
            client_id=client.client_id,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            assignor=self.assignor,
            max_wait_ms=min(MAX_WAIT_MS, self.request_timeout_ms // 2),
        )

    def _classic_membership(self, client: Client, subscription: Subscription) -> ClassicMembership:
        assert self.group is not None
        return ClassicMembership(
            self.group,
            subscription,
            chosen(self.assignor),
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            instance_id=self.instance_id,
            rack=self.rack or None,
            client_id=client.client_id,
        )

    @property
    def _session_ms(self) -> int:
        return CLASSIC_SESSION_TIMEOUT_MS if self.session_timeout_ms < 0 else self.session_timeout_ms


def reset_time(policy: str) -> int | None:
    if policy not in RESET_TIMES:
        raise InvalidConfigError(f"auto_offset_reset is {policy!r}; use earliest, latest or none")
    return RESET_TIMES[policy]
