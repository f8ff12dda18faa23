"""`Session`: keeps the membership of a group alive in the background, whatever the application does meanwhile.

Two kinds of it know how to talk: `group_session` and `classic_session`. Here are the task, leaving and coming back.

A handler that awaits, or that runs in a thread, may take as long as `max_poll_interval_ms` allows. One that blocks the event
loop blocks heartbeats too: it must be done within the session timeout. `barnabas.sync` runs the loop in a thread of its own,
so there only a handler that holds the GIL blocks heartbeats.
"""

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from barnabas.net.wire.protocol.requests import MetadataRequest, Request

from ..connection.client import Client
from ..connection.errors import BarnabasError, FencedInstanceIdError, UnknownMemberIdError
from .leaving import see_through
from .ownership import Ownership, Subscription

logger = logging.getLogger("barnabas.consumer")

POLL_INTERVAL_EXCEEDED = "poll_interval_exceeded"  # why we leave, as `group explain` shows it
LEAVE_TIMEOUT_MS = 3_000  # Closing must not hang if no broker answers; the session times out by itself.
# While other brokers answer, a leave is repeated for longer: a coordinator that stands still has a successor after some 9 s.
LEAVE_FAILOVER_MS = 13_000
SOME_BROKER_S = 1.0  # Any that is well answers by then, also behind one that does not accept connections.
MOST_ASKED = 10  # Brokers: more than can stand still in a cluster that goes on, unless it is large.
OnChange = Callable[[], None]
OnError = Callable[[BarnabasError], None]


class Session(ABC):
    def __init__(
        self,
        client: Client,
        ownership: Ownership,
        *,
        on_change: OnChange,
        on_error: OnError,
        idle_ms: Callable[[], int],
        max_poll_interval_ms: int,
    ) -> None:
        """`on_change`: partitions come or go; the consumer deals with it when the application asks for records again."""
        self._client = client
        self.ownership = ownership
        self._on_change = on_change
        self._on_error = on_error
        self._idle_ms = idle_ms
        self._max_poll_interval_ms = max_poll_interval_ms
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unconfirmed: Request | None = None  # The last leave, which may have been cut off before it was sent.

    def start(self) -> None:
        assert self._task is None
        self._task = asyncio.create_task(self._run(), name="barnabas-heartbeat")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """A failure here must reach the application: without heartbeats, poll would return no records forever."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            group_id = self.ownership.group_id
            logger.error("the session failed group=%s", group_id, exc_info=error)
            self._on_error(BarnabasError(f"the session of group {group_id} failed: {error!r}; start a new consumer"))

    @abstractmethod
    async def _step(self) -> float:
        """Talk to the coordinator once; returns in how many ms to do so again, unless woken before."""

    def wake(self) -> None:
        """There is something to tell the coordinator at once."""
        self._wake.set()

    def resume(self) -> None:
        """The application asks for records again; if we left because it did not, we come back."""
        if self.ownership.has_left:
            self.ownership.rejoin()
            self._wake.set()

    def subscribe(self, subscription: Subscription) -> None:
        self.ownership.subscribe(subscription)
        self._wake.set()

    def metadata_changed(self) -> None:
        """The client has newer metadata: of use where the members assign."""
        return

    async def leave(self, *, timeout_ms: float = LEAVE_FAILOVER_MS) -> None:
        """Stop, and tell the coordinator, or its successor, within this time; see `LEAVE_TIMEOUT_MS` if no broker answers. A
        caller that is cancelled waits for that, too, once."""
        await see_through(partial(self._stop, timeout_ms))

    async def _stop(self, timeout_ms: float) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._leave(timeout_ms=timeout_ms)

    async def _run(self) -> None:
        while True:
            delay_ms: float | None = None
            if not self.ownership.has_left:
                if self._idle_ms() > self._max_poll_interval_ms:
                    await self._leave_idle()
                    continue
                delay_ms = await self._step()
            try:
                async with asyncio.timeout(None if delay_ms is None else delay_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _leave(self, reason: str = "", *, timeout_ms: float = LEAVE_TIMEOUT_MS) -> None:
        """All partitions are lost; the coordinator is told, if we may be a member."""
        group_id, member_id = self.ownership.group_id, self.ownership.member_id
        request = self.ownership.leave(reason) or self._unconfirmed
        if request is None:
            return
        self._unconfirmed = request
        try:
            await self._tell(request, timeout_ms)
        except (UnknownMemberIdError, FencedInstanceIdError):
            pass  # It is no member, or another one has its instance id.
        except (BarnabasError, TimeoutError) as error:
            why = error or "no answer in time"
            logger.info("leave not confirmed group=%s member=%s reason=%s", group_id, member_id, why)
            return
        self._unconfirmed = None

    async def _tell(self, request: Request, timeout_ms: float) -> None:
        """Raises BarnabasError, TimeoutError."""
        until_ms = self._client.clock.now_ms() + timeout_ms
        try:
            await self._tell_once(request, min(timeout_ms, LEAVE_TIMEOUT_MS))
        except (BarnabasError, TimeoutError) as error:
            is_final = isinstance(error, BarnabasError) and not error.retriable
            if is_final or timeout_ms <= LEAVE_TIMEOUT_MS or not await self._some_broker_answers():
                raise
        else:
            return
        await self._tell_once(request, max(0, until_ms - self._client.clock.now_ms()))

    async def _some_broker_answers(self) -> bool:
        """Side by side: one that stands still, behind an open connection, must not take the time of the others."""
        client = self._client
        node_ids = list(client.metadata.brokers)
        asked = client.rng.sample(node_ids, min(MOST_ASKED, len(node_ids)))
        answers = [asyncio.ensure_future(client.call(node_id, MetadataRequest(topics=()))) for node_id in asked]
        try:
            for answer in asyncio.as_completed(answers, timeout=SOME_BROKER_S):
                with contextlib.suppress(BarnabasError):
                    await answer
                    return True
        except TimeoutError:
            pass
        finally:
            for waiting in answers:
                waiting.cancel()
            await asyncio.gather(*answers, return_exceptions=True)
        return False

    async def _tell_once(self, request: Request, timeout_ms: float) -> None:
        async with asyncio.timeout(timeout_ms / 1000):  # A single attempt could take longer than that.
            await self._client.coordinators.call(self.ownership.group_id, request, timeout_ms=round(timeout_ms))

    async def _leave_idle(self) -> None:
        logger.warning(
            "left the group: no poll for more than max_poll_interval_ms=%d group=%s",
            self._max_poll_interval_ms,
            self.ownership.group_id,
        )
        await self._leave(POLL_INTERVAL_EXCEEDED)
        self._on_change()
