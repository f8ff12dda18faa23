"""What a replica does while it follows: it fetches from the leader, and appends, truncates or starts over as the answers say.

`FollowerState` decides what an answer means; this part changes the log accordingly. A change that waits for the disk is an effect
(`ChangeLog`), and the replica fetches nothing meanwhile.
"""

from functools import partial
from typing import Final

from ..vocabulary.errors import BarnabasError, ErrorCode, NotLeaderOrFollowerError
from .current_role import CurrentRole
from .effects import (
    NO_LEADER,
    AppendFetched,
    Effect,
    FlushLog,
    HighWatermarkAdvanced,
    LogEffect,
    LogEndAdvanced,
    ResumeFetching,
    StartFetching,
    StartOver,
    StopFetching,
    Truncate,
)
from .follower import FetchAnswer, FetchPosition
from .guarded_log import GuardedLog
from .log_change import LogChange
from .log_repair import LogRepair
from .replica import NEVER_MS

MAX_SILENCE_MS: Final = 30_000  # as replica.lag.time.max.ms; a follower without news fetches every two seconds


class Following:
    def __init__(self, role: CurrentRole, storage: GuardedLog, repair: LogRepair) -> None:
        self.topic_id = role.topic_id
        self._role = role
        self._storage = storage
        self._repair = repair
        self._heard_ms = NEVER_MS  # wall time of the leader's newest answer
        self._append_then: AppendFetched | None = None  # fetched records to append after the log has been started over

    # --- fetching ----------------------------------------------------------------------------------------------------

    def start_or_stop_fetching(self) -> Effect:
        role = self._role
        if role.leader == NO_LEADER:
            return StopFetching(topic_partition=role.topic_partition)
        return StartFetching(topic_partition=role.topic_partition, leader=role.leader, leader_epoch=role.leader_epoch)

    def fetch_again(self) -> list[Effect]:
        """Ask the leader at once, if this replica follows one."""
        if not self._role.is_follower or not self._storage.is_usable:
            return []
        return [self.start_or_stop_fetching(), *self._storage.flush_what_counts()]

    def next_fetch(self) -> FetchPosition | None:
        """The next fetch; earlier fetches are void. None: this replica follows no leader, or must flush first.

        The offset acknowledges everything before it, so on a topic with flush.messages=1 it must not be sent before that is on
        the disk. `Partition.flushed` ends the wait with ResumeFetching.
        """
        following, storage = self._role.follower_state, self._storage
        if following is None or not storage.is_usable:
            return None
        if storage.awaits_flush or self._repair.is_awaited or (storage.disk_hangs and self._stays_away):
            return None
        self._repair.will_fetch()
        log = storage.log
        return following.next_fetch(
            log_start_offset=log.log_start_offset, log_end_offset=log.log_end_offset, latest_epoch=log.latest_epoch
        )

    @property
    def flushes_first(self) -> bool:
        return self._storage.flushes_first

    @property
    def is_in_isr(self) -> bool:
        return self._role.node_id in self._role.isr  # each fetch asks

    @property
    def holds_lane(self) -> bool:
        """Must the partitions that are fetched together with this one wait for its flush? Not if its disk hangs."""
        return self._storage.awaits_flush and not self._storage.disk_hangs

    # --- a disk that hangs -------------------------------------------------------------------------------------------

    def disk_hung(self, hangs: bool) -> list[Effect]:
        """The disk of the log does not respond, or responds again. While it hangs, a replica that is not in the ISR does not
        catch up: it would return to the ISR, and have to leave it again."""
        if self._storage.disk_hangs == hangs:
            return []
        self._storage.disk_hangs = hangs
        return [ResumeFetching(topic_partition=self._role.topic_partition)] if self._role.is_follower else []

    @property
    def waits_for_disk(self) -> bool:
        """Asked while the disk hangs: a follower in the ISR of another leader that cannot continue before its disk responds. With
        flush.messages=1 this begins with the next record, so the leader must not wait for that record."""
        role, storage = self._role, self._storage
        if not role.is_follower or not role.is_in_isr or len(role.isr) == 1:
            return False
        return storage.change is not None or storage.flushes_first

    @property
    def _stays_away(self) -> bool:
        """Asked while the disk hangs."""
        return self._storage.flushes_first or not self._role.is_in_isr

    # --- answers -----------------------------------------------------------------------------------------------------

    def fetched(self, position: FetchPosition, answer: FetchAnswer, now_ms: int) -> list[Effect]:
        """Handle the leader's answer to `position`. Answers to any other request than the one in flight change nothing.

        `now_ms` is wall time, as in `Leading.append`.
        """
        following = self._role.follower_state
        if following is None or self._storage.change is not None:
            return []
        if position == following.in_flight and answer.error == ErrorCode.NONE:
            self._heard_ms = now_ms
        with self._storage as log:
            todo = following.fetched(
                position,
                answer,
                log_start_offset=log.log_start_offset,
                log_end_offset=log.log_end_offset,
                end_offset_for_epoch=log.end_offset_for_epoch,
            )
            return [] if todo is None else self._change_log(todo, now_ms)

    def _change_log(self, todo: LogEffect, now_ms: int) -> list[Effect]:
        begin_change, log = self._storage.begin_change, self._storage.log
        match todo:
            case AppendFetched(records=records):
                if len(records) and log.begins_inside(records):
                    self._append_then = todo
                    return begin_change("start over", partial(log.start_over_before, records))
                return self._append_fetched(todo, now_ms)
            case Truncate(offset=offset):
                return begin_change(f"truncation to {offset}", partial(log.truncate_to, offset))
            case StartOver(offset=offset):
                return begin_change(f"start over at {offset}", partial(log.truncate_fully_and_start_at, offset))

    def _append_fetched(self, fetched: AppendFetched, now_ms: int) -> list[Effect]:
        """The high watermark never decreases for a new leader that does not know it yet: committed records stay committed."""
        log, topic_partition = self._storage.log, self._role.topic_partition
        effects: list[Effect] = []
        if len(fetched.records):
            # Records that were committed without this replica were appended some time ago: it is catching up.
            is_fresh = fetched.high_watermark <= log.log_end_offset
            log.append_as_follower(fetched.records, now_ms=now_ms, is_fresh=is_fresh)
            effects.append(LogEndAdvanced(topic_partition=topic_partition, log_end_offset=log.log_end_offset))
            if self._storage.is_flush_due:
                effects.append(FlushLog(topic_partition=topic_partition))
        high_watermark = min(fetched.high_watermark, log.log_end_offset)
        if high_watermark > log.high_watermark:
            log.set_high_watermark(high_watermark)
            effects.append(HighWatermarkAdvanced(topic_partition=topic_partition, high_watermark=high_watermark))
        if log.log_start_offset < fetched.leader_log_start_offset <= log.log_end_offset:
            log.delete_records_before(fetched.leader_log_start_offset)
        return effects

    # --- consumers ---------------------------------------------------------------------------------------------------

    def check_serves_consumers(self, now_ms: int) -> None:
        """Refuse a consumer if this follower does not keep up, or has not heard from its leader: nobody else would tell it that
        the newest records are missing. `now_ms` is wall time. Raises NotLeaderOrFollowerError: it is to ask the leader then."""
        role = self._role
        if not role.is_follower:
            return
        silent_ms = now_ms - self._heard_ms
        if not role.is_in_isr or silent_ms > MAX_SILENCE_MS:
            why = "is not in sync" if not role.is_in_isr else f"has not heard from the leader for {MAX_SILENCE_MS} ms"
            raise NotLeaderOrFollowerError(
                f"broker {role.node_id} follows {role.topic_partition} and {why}; its leader is {role.leader}"
            )

    def append_after(self, change: LogChange, wall_ms: int) -> list[Effect]:
        """The change has ended: append the records that waited for it. A refusal is noted in the change."""
        then, self._append_then = self._append_then, None
        try:
            with self._storage:
                if change.error is not None:
                    raise change.error
                if then is not None and self._role.is_follower:
                    return self._append_fetched(then, wall_ms)
        except BarnabasError as error:
            change.error = error
        return []
