"""The share partitions that this broker has loaded, because it leads their partitions: one machine each, and its stored state.

A change is stored at the coordinator of the group before it is answered. One request at a time goes to the coordinator for each
group, with the whole state of every partition that has changed meanwhile, so a busy group costs few requests. It is repeated
until it is stored, or until the coordinator says that another leader has loaded the state: then the machine is dropped with all
that waits for it, because what it decided since its last stored state is void.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Final

from barnabas.consumer_groups.share.share_partition import SharePartition
from barnabas.log.replication.partition import Partition
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    CoordinatorNotAvailableError,
    NotLeaderOrFollowerError,
    error_for,
)
from barnabas.log.vocabulary.share.messages import ShareStateToWrite, WriteShareStatesRequest
from barnabas.log.vocabulary.topic_partition import TopicPartition

from .share_sessions import PartitionId
from .state_store import ShareStateStore

logger = logging.getLogger("barnabas.shares")

MAX_STATES_PER_WRITE: Final = 20
# A range takes at most 22 bytes, and a command of the quorum 1 MiB: more is refused, whatever the state.
MAX_RANGES_PER_WRITE: Final = 20_000
RETRY_MS: Final = 50
STORE_WAIT_MS: Final = 20_000  # of an acknowledgement; below the request timeout of clients (30 s)
CONFIRM_WAIT_MS: Final = 5_000  # of a fetch, which is repeated

Key = tuple[str, PartitionId]  # group, partition


class LedSharePartition:
    """`leader_epoch` and `load_id` say whose state it is: of this leader, since it loaded it.

    `asked`: the moment (`ShareSessions`) of the last question to the coordinator by which it confirmed this state.
    """

    def __init__(
        self,
        *,
        group_id: str,
        partition: Partition,
        leader_epoch: int,
        load_id: int,
        machine: SharePartition,
        asked: int = 0,
    ) -> None:
        self.group_id = group_id
        self.topic_id = partition.topic_id
        self.topic_partition: TopicPartition = partition.topic_partition
        self.leader_epoch = leader_epoch
        self.load_id = load_id
        self.machine = machine
        self.asked = asked
        self.sequence = 0  # of the last attempt to store it
        self.stored_version = 0  # of the machine
        self.is_dropped = False
        self.storing: list[tuple[int, asyncio.Future[None]]] = []  # version, and who waits until it is stored
        self.readers: dict[asyncio.Future[None], None] = {}  # fetches that wait for records

    @property
    def key(self) -> Key:
        return self.group_id, (self.topic_id, self.topic_partition.partition)

    @property
    def is_stored(self) -> bool:
        return self.stored_version == self.machine.version

    def is_confirmed(self, since: int) -> bool:
        """Whether the coordinator has confirmed this state after that moment."""
        return self.asked > since

    def wake(self) -> None:
        """Records may be available again."""
        for reader in list(self.readers):
            if not reader.done():
                reader.set_result(None)

    def stored(self, version: int) -> None:
        self.stored_version = max(self.stored_version, version)
        waiting, self.storing = self.storing, []
        for needed, future in waiting:
            if needed > self.stored_version:
                self.storing.append((needed, future))
            elif not future.done():
                future.set_result(None)

    def to_write(self) -> ShareStateToWrite:
        self.sequence += 1
        return ShareStateToWrite(
            topic=self.topic_partition.topic,
            partition=self.topic_partition.partition,
            load_id=self.load_id,
            sequence=self.sequence,
            start_offset=self.machine.start_offset,
            ranges=self.machine.stored(),
        )


class LedSharePartitions:
    def __init__(
        self,
        *,
        store: ShareStateStore,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._store = store
        self._spawn = spawn
        self.locked: dict[LedSharePartition, None] = {}  # those that may have locks
        self.loaded: dict[Key, LedSharePartition] = {}
        self._changed: dict[
            str, dict[Key, None]
        ] = {}  # by group: what must be stored; a writer is at work for each group

    def __len__(self) -> int:
        return len(self.loaded)

    def __iter__(self) -> Iterator[LedSharePartition]:
        return iter(list(self.loaded.values()))

    def find(self, key: Key) -> LedSharePartition | None:
        return self.loaded.get(key)

    def of_leadership(self, key: Key, partition: Partition) -> LedSharePartition | None:
        """The machine of this leadership. One of an earlier leadership is dropped."""
        led = self.find(key)
        if led is not None and led.leader_epoch != partition.leader_epoch:
            self.drop(led, partition.role.does_not_lead())
            return None
        return led

    def put(self, led: LedSharePartition) -> None:
        assert led.key not in self.loaded
        self.loaded[led.key] = led

    def drop(self, led: LedSharePartition, error: BarnabasError) -> None:
        """Those that wait for it get the error."""
        led.is_dropped = True
        self.locked.pop(led, None)
        if self.loaded.get(led.key) is led:
            del self.loaded[led.key]
        waiting, led.storing = led.storing, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)
        led.wake()

    # --- storing ------------------------------------------------------------------------------------------------------

    def store_later(self, led: LedSharePartition) -> None:
        """Store what has changed, without waiting for it."""
        if led.is_stored or led.is_dropped:
            return
        is_new = led.group_id not in self._changed
        self._changed.setdefault(led.group_id, {})[led.key] = None
        if is_new:
            self._spawn(self._write(led.group_id))

    async def confirm(self, led: LedSharePartition, moment: int) -> None:
        """Return when the coordinator, asked after this call, has said that the state is still this leader's. Raises
        NotLeaderOrFollowerError if it was loaded or changed elsewhere (it is dropped then), CoordinatorNotAvailableError if that
        is not known in time."""
        led.machine.restate()
        await self.store(led, wait_ms=CONFIRM_WAIT_MS)
        led.asked = max(led.asked, moment)

    async def store(self, led: LedSharePartition, *, wait_ms: int = STORE_WAIT_MS) -> None:
        """Return when the machine's state of now is stored. Raises NotLeaderOrFollowerError if another leader has loaded it,
        CoordinatorNotAvailableError if that is not known in time."""
        if led.is_stored:
            return
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        led.storing.append((led.machine.version, stored))
        self.store_later(led)
        done, _ = await asyncio.wait([stored], timeout=wait_ms / 1000)
        if not done:
            led.storing = [item for item in led.storing if item[1] is not stored]
            raise CoordinatorNotAvailableError(
                f"the coordinator of share group {led.group_id} does not answer: it is not known whether this is stored"
            )
        stored.result()

    async def _write(self, group_id: str) -> None:
        while True:
            changed = self._changed[group_id]
            chosen = self._next_of(changed)
            if not chosen:
                del self._changed[group_id]
                return
            versions = [led.machine.version for led in chosen]
            request = WriteShareStatesRequest(group_id=group_id, states=tuple(led.to_write() for led in chosen))
            for led in chosen:
                changed.pop(led.key, None)
            try:
                answer = await self._store.write(request)
            except BarnabasError as error:
                await self._failed(group_id, chosen, error)
                continue
            for led, version, outcome in zip(chosen, versions, answer.outcomes, strict=True):
                if outcome.error:
                    self._fenced(led, error_for(outcome.error, outcome.message))
                else:
                    led.stored(version)

    def _next_of(self, changed: Iterable[Key]) -> list[LedSharePartition]:
        """What one request may write; at least one state, if there is any."""
        chosen: list[LedSharePartition] = []
        ranges = 0
        for key in changed:
            led = self.loaded.get(key)
            if led is None:
                continue
            ranges += led.machine.span_count
            if chosen and (ranges > MAX_RANGES_PER_WRITE or len(chosen) == MAX_STATES_PER_WRITE):
                break
            chosen.append(led)
        return chosen

    async def _failed(self, group_id: str, chosen: list[LedSharePartition], error: BarnabasError) -> None:
        """A later attempt has a higher sequence: if this one arrives after it, it is void."""
        if not error.retriable:
            for led in chosen:
                self._fenced(led, error)
            return
        logger.debug("share group=%s waits for its coordinator: %s", group_id, error)
        self._changed[group_id].update((led.key, None) for led in chosen if not led.is_dropped)
        await asyncio.sleep(RETRY_MS / 1000)

    def _fenced(self, led: LedSharePartition, error: BarnabasError) -> None:
        logger.info("share group=%s partition=%s is loaded elsewhere: %s", led.group_id, led.topic_partition, error)
        self.drop(
            led, NotLeaderOrFollowerError(f"the state of {led.topic_partition} belongs to another leader: {error}")
        )
