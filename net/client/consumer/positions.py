"""`PositionFinder`: where to start reading in partitions without a position: the group's commit, else the reset
policy."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from barnabas.log.vocabulary.errors import InconsistentTopicIdError
from barnabas.log.vocabulary.group_messages import CommittedOffset
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.client import Client
from ..connection.errors import (
    BarnabasError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
    UnstableOffsetCommitError,
)
from ..connection.records import OffsetAndTimestamp
from ..group.group_offsets import fetch_stable, unstable_error
from ..positions.offset_lookup import EARLIEST, LATEST, list_offsets_once
from ..positions.partition_state import PartitionState
from ..positions.reading import Reading

logger = logging.getLogger("barnabas.consumer")
_PENDING = "offsets of open transactions"
_SEARCH = "positions to read from"


def no_offset(states: Iterable[PartitionState]) -> NoOffsetForPartitionError:
    names = ", ".join(str(state.partition) for state in states)
    return NoOffsetForPartitionError(
        f"no offset is committed for {names}, and auto_offset_reset is 'none': seek to a start offset"
    )


class PositionFinder:
    def __init__(
        self,
        client: Client,
        reading: Reading,
        *,
        group: str | None,
        reset_time_ms: int | None,
        isolation_level: int,
        on_found: Callable[[], None],
        on_error: Callable[[BarnabasError], None],
    ) -> None:
        """`reset_time_ms` None: no reset is allowed."""
        self._client = client
        self._reading = reading
        self._group = group
        self._reset_time_ms = reset_time_ms
        self._isolation_level = isolation_level
        self._on_found = on_found
        self._on_error = on_error
        self._task: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []  # calls of the application: one task may ask
        self._asked = asyncio.Event()  # for more positions, while others cannot be found

    def find_soon(self) -> None:
        """Find missing positions in the background."""
        self._asked.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._find_all(), name="barnabas-positions")
            self._task.add_done_callback(lambda _: self._looked())

    async def find(self, states: Sequence[PartitionState]) -> None:
        """Like `find_soon`, and wait for these, not for others. Errors go to `on_error`; raises what `fail` is called with."""
        self.find_soon()
        assert self._task is not None
        while not self._task.done() and any(map(self._is_unknown, states)):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def fail(self, error: BarnabasError) -> bool:
        """End calls that wait for positions. False: there are none."""
        waiters, self._waiters = [item for item in self._waiters if not item.done()], []
        for waiter in waiters:
            waiter.set_exception(error)
        return bool(waiters)

    def _looked(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _is_unknown(self, state: PartitionState) -> bool:
        return state.must_be_found and self._reading.states.get(state.partition) is state

    async def seek_to_time(self, states: Sequence[PartitionState], timestamp_ms: int) -> None:
        """Continue with the first record at or after this time, at the application's request."""
        for state in states:
            self._reading.stop_cursor(state)
            state.seek_to_time(timestamp_ms)
        await self.find(states)

    def out_of_range(self, state: PartitionState) -> None:
        """The position is outside of the log: reset it, or raise an error in the application."""
        self._reading.stop_cursor(state)
        offset = state.fetch_offset
        if self._reset_time_ms is None:
            state.is_paused = True  # Until the application handles it by seek and resume.
            self._on_error(
                OffsetOutOfRangeError(
                    f"offset {offset} of {state.partition} is out of range: seek to another offset, then resume"
                )
            )
            return
        logger.warning("offset out of range, reset partition=%s offset=%d", state.partition, offset)
        state.seek_to_time(self._reset_time_ms)
        self.find_soon()

    def made_anew(self, state: PartitionState) -> None:
        """The topic was deleted and created again. All of its records are new, so it is read from its start, independent of the
        policy; but if no reset is allowed, the application decides."""
        self._reading.stop_cursor(state)
        offset = state.fetch_offset
        state.seek_to_time(EARLIEST)
        if self._reset_time_ms is None:
            state.is_paused = True
            self._on_error(
                TopicRecreatedError(
                    f"topic {state.partition.topic!r} was deleted and created again, and offset {offset} of {state.partition} was"
                    " an offset of the old topic: seek, then resume"
                )
            )
        logger.warning(
            "topic created again, reading from its start partition=%s offset_before=%d", state.partition, offset
        )
        self.find_soon()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _find_all(self) -> None:
        failures = 0
        while unknown := [state for state in self._reading.states.values() if state.must_be_found]:
            try:
                obstacle = await self._find_committed([state for state in unknown if state.reset_timestamp_ms is None])
                other = await self._find_by_time([state for state in unknown if state.reset_timestamp_ms is not None])
                if obstacle or other:
                    raise obstacle or other  # type: ignore[misc]  # one of them is not None
            except BarnabasError as error:
                if not error.retriable:
                    self._on_error(error)
                    return
                failures += 1
                if isinstance(error, UnstableOffsetCommitError):
                    self._client.note_trouble(_PENDING, error)  # Transactions end all the time.
                else:
                    self._client.note_trouble(_SEARCH, error)
                    self._client.request_refresh()
                self._looked()
                await self._pause(self._client.backoff.delay_ms(failures, self._client.rng.random) / 1000)
        for what in (_PENDING, _SEARCH):
            self._client.troubles.works(what)
        self._on_found()

    async def _pause(self, limit_s: float) -> None:
        """Until more positions are wanted, or for this time."""
        self._asked.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._asked.wait()

    async def _find_committed(self, states: list[PartitionState]) -> BarnabasError | None:
        """Return why some partitions must be asked for again: the coordinator and this client's metadata mean different topics,
        or a transaction that is open may commit their offsets (KIP-447). Without a group, the policy applies at once. Without a
        commit and an allowed reset, the partition waits for the application, which gets an error; the others are found all the
        same."""
        if not states:
            return None
        committed, unstable = await self._committed(states)
        missing: list[PartitionState] = []
        differing: list[PartitionState] = []
        for state in states:
            found = committed.get(state.partition)
            if state.position >= 0 or state.reset_timestamp_ms is not None or state.partition in unstable:
                continue  # Or the application called seek meanwhile.
            known_id = self._client.metadata.topic_id(state.partition.topic)
            if found is not None and found.topic_id not in ("", known_id):
                differing.append(state)
            elif found is not None:
                state.seek(found.offset, epoch=found.leader_epoch, topic_id=found.topic_id)
                state.committed = found.offset
            elif self._reset_time_ms is None:
                missing.append(state)
            else:
                self._reset(state, known_id)
        if missing:
            self._refuse(missing)
        if differing:
            return self._still_to_learn(differing)
        return unstable_error(self._group or "", unstable) if unstable else None

    async def _committed(
        self, states: list[PartitionState]
    ) -> tuple[dict[TopicPartition, CommittedOffset], set[TopicPartition]]:
        """As `fetch_stable`, which is asked for what did not come with the assignment; nothing without a group."""
        if self._group is None:
            return {}, set()
        told: dict[TopicPartition, CommittedOffset] = {}
        to_ask: list[TopicPartition] = []
        for state in states:
            item, state.told = state.told, None
            if item is None or item.topic_id != self._client.metadata.topic_id(state.partition.topic):
                to_ask.append(state.partition)
            elif item.offset >= 0:
                told[state.partition] = item
        if not to_ask:
            return told, set()
        asked, unstable = await fetch_stable(self._client, self._group, to_ask)
        return told | asked, unstable

    def _still_to_learn(self, states: list[PartitionState]) -> BarnabasError:
        self._client.request_refresh()
        names = ", ".join(str(state.partition) for state in states)
        return InconsistentTopicIdError(
            f"the topic of {names} was deleted and created again, and the coordinator or this client does not know it yet"
        )

    def _reset(self, state: PartitionState, topic_id: str) -> None:
        """No offset is committed. A topic that took over a name while this client knew it is read from its start, as by a
        consumer with a position in the old topic: another member of the group may have had one."""
        assert self._reset_time_ms is not None
        state.topic_id = topic_id
        state.seek_to_time(
            EARLIEST if self._client.metadata.is_successor(state.partition.topic) else self._reset_time_ms
        )

    def _refuse(self, states: list[PartitionState]) -> None:
        for state in states:
            state.lacks_offset = True
        self._on_error(no_offset(states))

    async def _find_by_time(self, states: list[PartitionState]) -> BarnabasError | None:
        """Return why some partitions must be asked for again: they have no leader now, or their topic is gone. Neither the others
        nor those that are assigned meanwhile wait for them."""
        asked = {state.partition: state.reset_timestamp_ms for state in states if state.reset_timestamp_ms is not None}
        if not asked:
            return None
        versions = {state.partition: state.version for state in states}
        found, obstacle = await list_offsets_once(self._client, asked, isolation_level=self._isolation_level)
        late = [partition for partition, item in found.items() if item.offset < 0]
        ends: dict[TopicPartition, OffsetAndTimestamp] = {}
        if late:
            latest = dict.fromkeys(late, LATEST)
            ends, other = await list_offsets_once(self._client, latest, isolation_level=self._isolation_level)
            obstacle = obstacle or other
        for state in states:
            answer = (ends if state.partition in late else found).get(state.partition)
            # A version that has changed: the application called seek meanwhile.
            if answer is not None and state.version == versions[state.partition]:
                if state.topic_id in ("", answer.topic_id):
                    state.seek(answer.offset, topic_id=answer.topic_id)
                else:
                    state.topic_id = answer.topic_id
                    self.made_anew(state)
        return obstacle
