"""`GroupSession`: keeps the membership alive in the background, whatever the application does meanwhile.

The rules are in `group_membership`; here are the task, the coordinator, and commits under the member's epoch.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from barnabas.log.topic_partition import TopicPartition

from ..protocol.requests import OffsetCommitPartition, OffsetCommitRequest, OffsetFetchRequest
from ..protocol.responses import CommittedOffset, OffsetCommitResponse, OffsetFetchResponse
from .client import API_TIMEOUT_MS, Client
from .errors import BarnabasError, ErrorCode, FencedMemberEpochError, PartitionGoneError, error_for
from .group_membership import GroupMembership, State, Verdict, owned_partitions

logger = logging.getLogger("barnabas.consumer")

LEAVE_TIMEOUT_MS = 3_000  # Closing must not hang on a coordinator that is gone; the session times out by itself.
MAX_BACKOFF_SHARE = 3  # Never wait longer than a third of the heartbeat interval before a heartbeat is repeated.
Offsets = Mapping[TopicPartition, tuple[int, int]]  # Offset and leader epoch.


class GroupSession:
    def __init__(
        self,
        client: Client,
        membership: GroupMembership,
        *,
        on_change: Callable[[], None],
        on_error: Callable[[BarnabasError], None],
        idle_ms: Callable[[], int],
        max_poll_interval_ms: int,
    ) -> None:
        """`on_change`: partitions come or go; the consumer deals with it when the application asks for records
        again."""
        self._client = client
        self.membership = membership
        self._on_change = on_change
        self._on_error = on_error
        self._idle_ms = idle_ms
        self._max_poll_interval_ms = max_poll_interval_ms
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="barnabas-heartbeat")

    def wake(self) -> None:
        """There is something to tell the coordinator at once."""
        self._wake.set()

    def resume(self) -> None:
        """The application asks for records again; if we left because it did not, we come back."""
        if self.membership.state is State.LEFT:
            self.membership.rejoin()
            self._wake.set()

    async def leave(self) -> None:
        """Stop, and tell the coordinator, if it can be reached soon."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._send_leave()

    async def _send_leave(self) -> None:
        request = self.membership.leave()
        if request is None:
            return
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_MS / 1000):  # A single attempt could take longer than that.
                await self._client.call_coordinator(self.membership.group_id, request, timeout_ms=LEAVE_TIMEOUT_MS)
        except (BarnabasError, TimeoutError) as error:
            logger.info("leave not heard group=%s reason=%s", self.membership.group_id, error or "no answer in time")

    # --- heartbeats --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            delay_ms: float = self.membership.heartbeat_interval_ms
            if self.membership.state is not State.LEFT:
                if self._idle_ms() > self._max_poll_interval_ms:
                    await self._leave_idle()
                    continue
                if await self._beat():
                    failures = 0
                    # As the answer says: who waits for partitions of others is told to ask again soon.
                    delay_ms = 0 if self.membership.must_tell else self.membership.heartbeat_interval_ms
                else:
                    failures += 1
                    delay_ms = min(
                        self._client.backoff.delay_ms(failures, self._client.rng.random),
                        self.membership.heartbeat_interval_ms / MAX_BACKOFF_SHARE,
                    )
            try:
                async with asyncio.timeout(delay_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _beat(self) -> bool:
        membership = self.membership
        try:
            response = await self._client.ask_coordinator(membership.group_id, membership.heartbeat())
        except BarnabasError as error:
            verdict = membership.failed(error)
            logger.info(
                "heartbeat failed group=%s verdict=%s reason=%s", membership.group_id, verdict.name, error.message
            )
            if verdict is Verdict.FATAL:
                self._on_error(error)
            if membership.has_change:
                self._on_change()
            return False
        membership.answered(response)
        if membership.has_change:
            self._on_change()
        return True

    async def _leave_idle(self) -> None:
        logger.warning(
            "left the group: no poll for more than max_poll_interval_ms=%d group=%s",
            self._max_poll_interval_ms,
            self.membership.group_id,
        )
        await self._send_leave()
        self._on_change()

    # --- offsets -----------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Offsets, *, timeout_ms: int = API_TIMEOUT_MS) -> None:
        await commit_offsets(
            self._client, self.membership.group_id, offsets, membership=self.membership, timeout_ms=timeout_ms
        )


async def commit_offsets(
    client: Client,
    group_id: str,
    offsets: Offsets,
    *,
    membership: GroupMembership | None = None,
    timeout_ms: int = API_TIMEOUT_MS,
) -> None:
    """Commit, as a member of the group or (None) from outside of it. Raises the first refusal.

    Raises FencedMemberEpochError also where a partition goes while we try, even if it comes back: under our next epoch the
    coordinator would take the commit, and it would undo a reset, or what another member has committed meanwhile.
    """
    partitions = tuple(
        OffsetCommitPartition(topic=topic, partition=number, offset=offset, leader_epoch=epoch)
        for (topic, number), (offset, epoch) in offsets.items()
    )
    tenures = {} if membership is None else membership.tenures(offsets)

    async def attempt() -> None:
        if membership is not None and membership.tenures(tenures) != tenures:
            raise FencedMemberEpochError("partitions were given up while their offsets were being committed")
        # Made anew each time: a rebalance meanwhile changes the epoch.
        request = OffsetCommitRequest(
            group_id=group_id,
            member_id="" if membership is None else membership.member_id,
            member_epoch=-1 if membership is None else membership.epoch,
            partitions=partitions,
        )
        response: OffsetCommitResponse = await client.ask_coordinator(group_id, request)
        for item in response.partitions:
            if item.error:
                name = f"{item.topic}-{item.partition}"
                if item.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise PartitionGoneError(f"commit of {name}: {item.message or 'there is no such partition'}")
                raise error_for(item.error, item.message or f"commit of {name}")

    await client.retrying(attempt, timeout_ms=timeout_ms)


async def fetch_committed(
    client: Client, group_id: str, partitions: list[TopicPartition] | None, *, timeout_ms: int = API_TIMEOUT_MS
) -> dict[TopicPartition, CommittedOffset]:
    """What the group has committed; partitions without a commit are left out."""
    request = OffsetFetchRequest(
        group_id=group_id, partitions=None if partitions is None else owned_partitions(partitions)
    )
    response: OffsetFetchResponse = await client.call_coordinator(group_id, request, timeout_ms=timeout_ms)
    return {TopicPartition(item.topic, item.partition): item for item in response.partitions if item.offset >= 0}
