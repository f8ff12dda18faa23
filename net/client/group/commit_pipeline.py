"""`CommitPipeline`: the commits of one consumer, one request at a time, so that an earlier one never undoes a later one.

    wanted --send--> in flight --taken--> done
      ^                 |--refused for now--> wanted again, unless a later commit of the partition is
      |                 |--refused for good--> failed
      +-- a later commit of the same partition takes the place of the earlier one, and answers its callers

A commit that must be retried (a coordinator that is frozen, moves, or resets the connection) could otherwise be sent again
after a newer one: both would succeed, and the committed offset would go back. For this reason Java's commitAsync never
retries. "Later" means the order of the calls, not of the offsets: an application may commit a smaller offset.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.client import Client
from ..connection.errors import (
    BarnabasError,
    ClientClosedError,
    ErrorCode,
    NotAssignedError,
    PartitionGoneError,
    RequestTimedOutError,
)
from ..connection.records import OffsetAndMetadata
from ..positions.reading import Reading
from .group_offsets import Offsets, commit_once
from .ownership import Ownership


@dataclass(slots=True, eq=False)
class _Ask:
    """A call that waits for its partitions. Its future may be cancelled, or time out, at any moment."""

    done: asyncio.Future[None]
    missing: int
    error: BarnabasError | None = None  # the first permanent refusal
    obstacle: BarnabasError | None = None  # the last retriable error

    def settle(self, error: BarnabasError | None) -> None:
        """One of its partitions is committed, or refused."""
        self.error = self.error or error
        self.missing -= 1
        if self.missing or self.done.done():
            return
        if self.error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(self.error)


@dataclass(slots=True, eq=False, kw_only=True)
class _Wanted:
    """What is to be committed of one partition. It holds in one tenure only: see `Ownership.tenures`."""

    item: OffsetAndMetadata
    membership: Ownership | None
    tenure: int | None
    version: int | None  # of the partition's state: a jump since then makes it history
    asks: list[_Ask] = field(default_factory=list)

    @property
    def is_awaited(self) -> bool:
        return any(not ask.done.done() for ask in self.asks)

    def is_as_good_as(self, other: "_Wanted") -> bool:
        """Reading has only gone on between the two, and this one is not behind."""
        return (
            self.item.offset >= other.item.offset
            and self.membership is other.membership
            and self.tenure == other.tenure
            and self.version == other.version
        )

    def settle(self, error: BarnabasError | None) -> None:
        for ask in self.asks:
            ask.settle(error)


class CommitPipeline:
    def __init__(
        self, client: Client, group_id: str, reading: Reading, membership: Callable[[], Ownership | None]
    ) -> None:
        """`membership` None: this consumer commits from outside of the group."""
        self._client = client
        self._group_id = group_id
        self._reading = reading
        self._membership = membership
        self._wanted: dict[TopicPartition, _Wanted] = {}  # The newest of each partition, in order of asking.
        self._in_flight: dict[TopicPartition, _Wanted] = {}
        self._sending: asyncio.Task[None] | None = None

    def has(self, partition: TopicPartition) -> bool:
        """A commit of this partition is under way."""
        return partition in self._wanted or partition in self._in_flight

    def ask(self, offsets: Offsets, *, timeout_ms: int, may_join: bool = False) -> asyncio.Future[None]:
        """Commit these, in the order of asking. The future ends when all of them, or their replacements, are committed or one
        is refused permanently. `may_join`: if these offsets are being committed already, wait for that.

        Raises NotAssignedError if the group has revoked one of them.
        """
        loop = asyncio.get_running_loop()
        ask = _Ask(loop.create_future(), len(offsets))
        if not offsets:
            ask.done.set_result(None)
            return ask.done
        membership = self._membership()
        tenures = {} if membership is None else membership.tenures(offsets)
        for partition, item in offsets.items():
            state = self._reading.states.get(partition)
            wanted = _Wanted(
                item=item,
                membership=membership,
                tenure=tenures.get(partition),
                version=None if state is None else state.version,
            )
            self._want(partition, wanted, ask, may_join=may_join)
        timer = loop.call_later(timeout_ms / 1000, self._expire, ask, timeout_ms)
        ask.done.add_done_callback(lambda _: timer.cancel())
        if self._sending is None or self._sending.done():
            self._sending = loop.create_task(self._send_all(), name="barnabas-commit")
        return ask.done

    async def close(self) -> None:
        """What is not committed yet is not going to be, as far as we can tell."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    def _want(self, partition: TopicPartition, wanted: _Wanted, ask: _Ask, *, may_join: bool) -> None:
        before = self._wanted.get(partition)
        if may_join:
            pending = before or self._in_flight.get(partition)
            if pending is not None and pending.is_as_good_as(wanted):
                pending.asks.append(ask)
                return
        wanted.asks = [*([] if before is None else before.asks), ask]
        self._wanted[partition] = wanted

    def _expire(self, ask: _Ask, timeout_ms: int) -> None:
        if not ask.done.done():
            ask.done.set_exception(
                ask.obstacle
                or RequestTimedOutError(
                    f"the coordinator of group {self._group_id!r} did not confirm the commit within {timeout_ms} ms; the offsets"
                    " may be committed or not: commit again, or check committed()"
                )
            )

    # --- sending -----------------------------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        failures = 0
        try:
            while batch := self._next_batch():
                failures = failures + 1 if await self._send(batch) else 0
                if failures:
                    await asyncio.sleep(self._client.backoff.delay_ms(failures, self._client.rng.random) / 1000)
        finally:
            left = [*self._wanted.values(), *self._in_flight.values()]
            self._wanted, self._in_flight = {}, {}
            for wanted in left:  # None, unless we were stopped.
                wanted.settle(ClientClosedError("the consumer was closed before the offsets were committed"))

    def _next_batch(self) -> dict[TopicPartition, _Wanted]:
        """The commits for the next request: all of one membership. Commits without a waiting caller are dropped."""
        self._wanted = {partition: wanted for partition, wanted in self._wanted.items() if wanted.is_awaited}
        batch: dict[TopicPartition, _Wanted] = {}
        for partition, wanted in list(self._wanted.items()):
            if batch and wanted.membership is not next(iter(batch.values())).membership:
                continue
            del self._wanted[partition]
            error = self._of_former_topic(partition, wanted) or _why_not(partition, wanted)
            if error is None:
                batch[partition] = wanted
            else:
                wanted.settle(error)
        return batch

    def _of_former_topic(self, partition: TopicPartition, wanted: _Wanted) -> BarnabasError | None:
        """Another topic has the name now. Our metadata never goes back, so an id that differs from it is the older one."""
        topic_id, now = wanted.item.topic_id, self._client.metadata.topic_id(partition.topic)
        if not topic_id or now in ("", topic_id):
            return None
        return PartitionGoneError(
            f"commit of {partition}: the topic was deleted and created again, and offset {wanted.item.offset} was one of the old"
            " topic"
        )

    async def _send(self, batch: dict[TopicPartition, _Wanted]) -> bool:
        """Returns whether something must be repeated."""
        self._in_flight = batch
        membership = next(iter(batch.values())).membership
        offsets = {partition: wanted.item for partition, wanted in batch.items()}
        try:
            refusals = await commit_once(self._client, self._group_id, offsets, membership=membership)
        except BarnabasError as error:
            refusals = dict.fromkeys(batch, error)
        self._in_flight = {}
        for partition, wanted in batch.items():
            refusal = refusals.get(partition)
            if refusal is not None and refusal.retriable:
                if refusal.code == ErrorCode.INCONSISTENT_TOPIC_ID:
                    self._client.request_refresh()  # One of us has still to learn of the new topic.
                self._repeat(partition, wanted, refusal)
                continue
            if refusal is None:
                self._reading.committed(partition, wanted.item.offset, version=wanted.version)
            wanted.settle(refusal)
        return any(refusal.retriable for refusal in refusals.values())

    def _repeat(self, partition: TopicPartition, wanted: _Wanted, obstacle: BarnabasError) -> None:
        for ask in wanted.asks:
            ask.obstacle = obstacle
        later = self._wanted.get(partition)
        if later is None:
            self._wanted[partition] = wanted
        else:
            later.asks = [*wanted.asks, *later.asks]


def _why_not(partition: TopicPartition, wanted: _Wanted) -> BarnabasError | None:
    """A partition that was owned at the call of commit, and revoked since, must not be committed, even if it is owned again:
    with the new epoch the coordinator would accept it, and it would undo a reset, or a commit of another member made
    meanwhile."""
    if wanted.membership is None or wanted.tenure is None:
        return None
    try:
        now = wanted.membership.tenures([partition]).get(partition)
    except NotAssignedError as error:
        return error
    if now == wanted.tenure:
        return None
    return NotAssignedError(f"{partition} went to another member while the offset was being committed")
