"""The history of rebalances: a state machine that follows partition ownership and keeps a bounded ring of records per group.

Its inputs are decisions: causes (`note`), partitions that members release and take (`let_go`, `taken`), partitions that
should be read (`wanted`), and that a group is stable (`settled`). It is not part of the quorum's state: the history of a new
coordinator begins with "coordinator_moved". Codes are in `rebalance_causes`; the events are messages
(`log.vocabulary.group_messages`).
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from barnabas.kraft.group_state.group_slots import PartitionKey
from barnabas.log.vocabulary.group_messages import NOBODY, OwnerChange, RebalanceEvent, RebalanceReason

from .rebalance_causes import RebalanceCause
from .rebalance_record import Gap

REBALANCES_KEPT_PER_GROUP: Final = 64  # a day of a stable group, some minutes of an unstable one
CAUSES_PER_REBALANCE: Final = 64  # a rebalance that never settles is split into several records
MOVES_PER_REBALANCE: Final = 2_000  # further moves are counted, but not listed
# Causes, moves and records of all groups of one slot together, at some 150 bytes each. With all 50 slots on one broker that
# is 75 MB at most; the oldest records are dropped first, regardless of their group.
ITEMS_KEPT_PER_SLOT: Final = 10_000
NEWS_KEPT: Final = (
    200  # beginnings and ends of rebalances that the shell has not taken yet; the oldest are dropped first
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceNews:
    """A rebalance has begun, or the group is stable again: `event` is as it was then, without reasons and moves. `detail` is that
    of its first reason."""

    group_id: str
    event: RebalanceEvent
    detail: str
    client_id: str


@dataclass(slots=True, kw_only=True)
class _Record:
    group_id: str
    event: RebalanceEvent  # its current state, without reasons and moves, which are added one by one
    reasons: list[RebalanceReason] = field(default_factory=list)  # never empty once `note` has begun it
    moves: list[OwnerChange] = field(default_factory=list)

    @property
    def item_count(self) -> int:
        return 1 + len(self.reasons) + len(self.moves)

    def told(self) -> RebalanceEvent:
        return replace(self.event, reasons=tuple(self.reasons), moves=tuple(self.moves))


class RebalanceLog:
    def __init__(
        self, *, kept_per_group: int = REBALANCES_KEPT_PER_GROUP, items_kept: int = ITEMS_KEPT_PER_SLOT
    ) -> None:
        self._kept_per_group = kept_per_group
        self._items_kept = items_kept
        self._rings: dict[str, deque[_Record]] = {}
        self._in_order: OrderedDict[int, _Record] = OrderedDict()  # of all groups, the oldest first
        self._open: dict[str, _Record] = {}  # rebalances under way
        self._gaps: dict[str, dict[PartitionKey, Gap]] = {}  # none of them empty
        self._item_count = 0
        self._last_id = 0
        self._news: deque[RebalanceNews] = deque(maxlen=NEWS_KEPT)

    # --- inputs -------------------------------------------------------------------------------------------------------

    def note(self, group_id: str, reason: RebalanceReason) -> None:
        """Record a cause: it begins a rebalance, or belongs to the one under way."""
        record = self._open.get(group_id)
        if record is not None and len(record.reasons) >= CAUSES_PER_REBALANCE:
            record.event = replace(record.event, is_superseded=True)
            record = None
        if record is None:
            record = self._begin(group_id, reason)
        record.event = replace(record.event, group_epoch=max(record.event.group_epoch, reason.group_epoch))
        record.reasons.append(reason)
        if len(record.reasons) == 1:
            self._tell(record)
        self._grow()

    def wanted(self, group_id: str, keys: Iterable[PartitionKey], now_ms: int) -> None:
        """These partitions should be read from now on; no member reads them yet."""
        for key in keys:
            self._gaps.setdefault(group_id, {}).setdefault(key, Gap(member_id=NOBODY, since_ms=now_ms))

    def let_go(self, group_id: str, member_id: str, keys: Iterable[PartitionKey], since_ms: int) -> None:
        for key in keys:
            self._gaps.setdefault(group_id, {}).setdefault(key, Gap(member_id=member_id, since_ms=since_ms))

    def taken(self, group_id: str, member_id: str, keys: Iterable[PartitionKey], now_ms: int) -> None:
        gaps = self._gaps.get(group_id, {})
        for key in sorted(keys):
            gap = gaps.pop(key, None) or Gap(member_id=NOBODY, since_ms=now_ms)
            self._move(group_id, key, gap, member_id, now_ms)
        if not gaps:
            self._gaps.pop(group_id, None)

    def settled(self, group_id: str, wanted: Collection[PartitionKey], now_ms: int) -> None:
        """The group is stable or empty. `wanted`: partitions that should be read; those still unread wait for a member that is
        away. In an empty group `wanted` is empty."""
        gaps = self._gaps.get(group_id, {})
        for key in sorted(key for key in gaps if key not in wanted):
            gap = gaps.pop(key)
            if gap.member_id != NOBODY:
                self._move(group_id, key, gap, NOBODY, now_ms)
        if not gaps:
            self._gaps.pop(group_id, None)
        record = self._open.pop(group_id, None)
        if record is not None:
            record.event = replace(record.event, stable_after_ms=now_ms - record.event.at_ms)
            self._tell(record)

    def forget(self, group_id: str) -> None:
        for record in self._rings.pop(group_id, ()):
            self._in_order.pop(record.event.rebalance_id)
            self._item_count -= record.item_count
        self._gaps.pop(group_id, None)
        self._open.pop(group_id, None)

    def take_news(self) -> tuple[RebalanceNews, ...]:
        """What has begun or ended since the last call, for operators."""
        if not self._news:
            return ()
        taken = tuple(self._news)
        self._news.clear()
        return taken

    def _tell(self, record: _Record) -> None:
        first = record.reasons[0]
        news = RebalanceNews(
            group_id=record.group_id, event=record.event, detail=first.detail, client_id=first.client_id or ""
        )
        self._news.append(news)

    # --- queries ------------------------------------------------------------------------------------------------------

    def of(self, group_id: str) -> tuple[RebalanceEvent, ...]:
        """Oldest first."""
        return tuple(record.told() for record in self._rings.get(group_id, ()))

    def gaps_of(self, group_id: str) -> Mapping[PartitionKey, Gap]:
        return self._gaps.get(group_id, {})

    def is_under_way(self, group_id: str) -> bool:
        return group_id in self._open

    def newest_reason(self, group_id: str) -> RebalanceReason | None:
        ring = self._rings.get(group_id)
        return ring[-1].reasons[-1] if ring else None

    def count_since(self, group_id: str, since_ms: int) -> int:
        """Recorded rebalances that began since then. A mere change of coordinator does not count."""
        moved = RebalanceCause.COORDINATOR_MOVED
        ring = self._rings.get(group_id, ())
        return sum(record.event.at_ms >= since_ms and record.event.cause != moved for record in ring)

    @property
    def item_count(self) -> int:
        return self._item_count

    # --- records ------------------------------------------------------------------------------------------------------

    def _begin(self, group_id: str, reason: RebalanceReason) -> _Record:
        ring = self._rings.setdefault(group_id, deque())
        if len(ring) >= self._kept_per_group:
            self._drop(ring[0])
        self._last_id += 1
        event = RebalanceEvent(
            at_ms=reason.at_ms,
            cause=reason.cause,
            member_id=reason.member_id,
            group_epoch=reason.group_epoch,
            rebalance_id=self._last_id,
        )
        record = _Record(group_id=group_id, event=event)
        self._rings.setdefault(group_id, ring).append(record)
        self._in_order[event.rebalance_id] = self._open[group_id] = record
        self._item_count += record.item_count
        return record

    def _move(self, group_id: str, key: PartitionKey, gap: Gap, to_member: str, now_ms: int) -> None:
        ring = self._rings.get(group_id)
        if not ring:
            return  # its record was dropped: the slot has reached its limit
        record = self._open.get(group_id, ring[-1])
        pause_ms = None if to_member == NOBODY else max(0, now_ms - gap.since_ms)
        record.event = replace(
            record.event,
            moved_count=record.event.moved_count + 1,
            longest_pause_ms=max(record.event.longest_pause_ms, pause_ms or 0),
        )
        if len(record.moves) >= MOVES_PER_REBALANCE:
            return
        topic, partition = key
        move = OwnerChange(
            topic=topic,
            partition=partition,
            from_member=gap.member_id,
            to_member=to_member,
            at_ms=now_ms,
            pause_ms=pause_ms,
        )
        record.moves.append(move)
        self._grow()

    def _grow(self) -> None:
        """Count one more item; the slot's oldest records are dropped to make room, but never the last one."""
        self._item_count += 1
        while self._item_count > self._items_kept and len(self._in_order) > 1:
            self._drop(next(iter(self._in_order.values())))

    def _drop(self, record: _Record) -> None:
        """Drop the oldest record of the slot or of its group: in both cases it is the first of its ring."""
        ring = self._rings[record.group_id]
        assert ring[0] is record
        ring.popleft()
        if not ring:
            del self._rings[record.group_id]
        if self._open.get(record.group_id) is record:
            del self._open[record.group_id]
        del self._in_order[record.event.rebalance_id]
        self._item_count -= record.item_count
