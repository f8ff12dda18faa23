"""One slot that this broker hosts: its machine decides, in turns, and an answer leaves when its decision is committed.

The machine replays its own records when it decides, so it is ahead of the committed state. When an append fails, or its outcome
is not known, the machine is dropped, its callers must try again, and the slot waits for a newer coordinator epoch. `slot_hosting`
says which slots there are, and loads their machines.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from barnabas.consumer_groups.explain.watch import AlertKind, GroupAlert
from barnabas.consumer_groups.model.messages import CoordinatorResult
from barnabas.consumer_groups.subscriptions.subscriptions import TopicsView
from barnabas.kraft.metadata.records import Record
from barnabas.log.vocabulary.errors import BarnabasError, CoordinatorNotAvailableError, NotCoordinatorError
from barnabas.net.base.slices import SlicedCalls
from barnabas.net.server.parked_requests import ParkedRequests

from .group_appends import GroupAppends, SlotQueue, Waiting

logger = logging.getLogger("barnabas.groups")

MAX_WAITING_PER_SLOT: Final = 10_000  # answers that wait for a commit; other callers must try again
# Requests that wait until the loop has time for their decision; other callers must try again. This is a few seconds of work: a
# member that waits longer loses its session.
MAX_WAITING_TURNS: Final = 10_000

R = TypeVar("R")


class SlotMachine(Protocol):
    """What a slot itself asks of its machine. Callers bring the other questions, as the decisions that they want."""

    def tick(self, now_ms: int, *, topic_ids: Mapping[str, str]) -> CoordinatorResult[tuple[GroupAlert, ...]]: ...

    def next_deadline_ms(self) -> int | None: ...

    @property
    def follows_topics(self) -> bool:
        """Whether a change of topics needs a decision (`topics_changed`); if not, `take_topics` suffices."""

    def take_topics(self, topics: TopicsView) -> None: ...

    def topics_changed(
        self, topics: TopicsView, now_ms: int, *, recreated: AbstractSet[str], changed: AbstractSet[str]
    ) -> CoordinatorResult[None]: ...


M = TypeVar("M", bound=SlotMachine)


class HostedSlot(Generic[M]):
    """`machine` is None while the slot is loading, after its machine was dropped, and after its release."""

    def __init__(
        self,
        *,
        number: int,
        coordinator_epoch: int,
        appends: GroupAppends,
        turns: SlicedCalls,
        now_ms: Callable[[], int],
        topic_ids: Callable[[], Mapping[str, str]],
        max_parked: int,
        dropped: Callable[["HostedSlot[M]"], None],
        settled: Callable[["HostedSlot[M]", Iterable[Record]], None],
    ) -> None:
        """`turns` are those of all slots: many decisions must not block other work of the loop. `topic_ids`: topic -> its id, of
        the view that the machine has. `dropped` is called when the slot has dropped its machine and needs a newer coordinator
        epoch, `settled` with records of its machine that are committed."""
        self.number = number
        self.coordinator_epoch = coordinator_epoch
        self.machine: M | None = None
        self.parked = ParkedRequests(max_parked)
        self.task: asyncio.Task[None] | None = None  # loads the machine, or asks for a newer epoch
        self.is_released = False
        self._appends = appends
        self._queue = SlotQueue(
            slot=number, coordinator_epoch=coordinator_epoch, committed=self._committed, failed=self._failed
        )
        self._turns = turns
        self._now_ms = now_ms
        self._topic_ids = topic_ids
        self._dropped = dropped
        self._settled = settled
        self._timer: asyncio.TimerHandle | None = None
        self._tick_is_due = False  # the tick waits for its turn

    @property
    def committed_offset(self) -> int:
        """Of the metadata: every decision that was committed here is at it or before it."""
        return self._queue.committed_offset

    def start(self, machine: M) -> None:
        """The machine is loaded: from now on it decides."""
        self.machine = machine
        self._set_timer()

    def release(self) -> None:
        """This broker hosts the slot no longer, or with another epoch."""
        self.is_released = True
        self.machine = None
        if self._timer is not None:
            self._timer.cancel()
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()
        moved = NotCoordinatorError("the coordinator has moved; look it up again")
        _refuse(self._queue.abandon(), moved)
        self.parked.refuse_all(moved)

    def check_available(self, subject: str) -> None:
        """Raises CoordinatorNotAvailableError while the slot is loading, or if too many of its decisions wait."""
        if self.machine is None:
            raise CoordinatorNotAvailableError(f"the coordinator of {subject} is loading; try again")
        if len(self._queue.waiting) >= MAX_WAITING_PER_SLOT:
            raise CoordinatorNotAvailableError("too many decisions wait for the quorum; try again later")

    # --- deciding -----------------------------------------------------------------------------------------------------

    async def decide(self, decision: Callable[[M], CoordinatorResult[R]]) -> R:
        """Let the machine decide when it is the caller's turn, and return its response once the decision is committed.

        Raises NotCoordinatorError if the slot is released meanwhile, CoordinatorNotAvailableError if its machine is dropped or
        too many requests wait for their turn, and any BarnabasError of the machine.
        """
        if len(self._turns) >= MAX_WAITING_TURNS:
            raise CoordinatorNotAvailableError(
                f"{len(self._turns)} requests of groups wait at this broker; try again later"
            )
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._turns.add(lambda: self._take_turn(decision, answer))
        response = await answer
        if isinstance(response, BarnabasError):
            raise response
        return cast(R, response)

    def decide_later(self, decision: Callable[[M], CoordinatorResult[Any]]) -> None:
        """Let the machine decide, without a caller, after the requests that arrived earlier."""
        self._turns.add(lambda: self.decide_alone(decision))

    def decide_alone(self, decision: Callable[[M], CoordinatorResult[R]]) -> R | None:
        """Let the machine decide at once, without a caller. Return its response, or None if there is none."""
        if self.machine is None:
            return None
        try:
            result = self._decide(self.machine, decision)
        except BarnabasError as error:
            logger.warning("group slot=%d: %s", self.number, error)
            self._set_timer()
            return None
        self._set_timer()
        if result.records or result.answers:
            answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._appends.add(self._queue, Waiting(result, answer))
        return result.response

    def topics_changed(self, topics: TopicsView, *, recreated: AbstractSet[str], changed: AbstractSet[str]) -> None:
        machine = self.machine
        if machine is None:
            return  # it will be loaded with the newest topics
        if not machine.follows_topics:
            machine.take_topics(topics)
            return
        self.decide_alone(
            lambda machine: machine.topics_changed(topics, self._now_ms(), recreated=recreated, changed=changed)
        )

    def _take_turn(self, decision: Callable[[M], CoordinatorResult[object]], answer: "asyncio.Future[object]") -> None:
        """A refusal also waits until earlier decisions are committed, because it depends on them."""
        if answer.done():
            return  # the client disconnected while its request waited
        if self.machine is None:
            answer.set_exception(NotCoordinatorError("the coordinator has moved or is reloading; look it up again"))
            return
        try:
            result = self._decide(self.machine, decision)
        except BarnabasError as error:
            if self.machine is None:
                answer.set_exception(error)
                return
            result = CoordinatorResult(records=(), response=error)
        self._set_timer()
        if not result.records and not result.must_confirm and self._queue.is_idle:
            self.parked.deliver(result.answers)
            answer.set_result(result.response)
            return
        self._appends.add(self._queue, Waiting(result, answer))

    def _decide(self, machine: M, decision: Callable[[M], CoordinatorResult[R]]) -> CoordinatorResult[R]:
        """A machine that failed during a decision must not continue: it may have replayed a part of the decision."""
        try:
            return decision(machine)
        except BarnabasError:
            raise
        except Exception as error:
            logger.exception("group slot=%d: the coordinator failed", self.number)
            self._drop_machine(CoordinatorNotAvailableError("the coordinator failed and is reloading; try again"))
            raise CoordinatorNotAvailableError("the coordinator failed and is reloading; try again") from error

    # --- outcomes of appends ------------------------------------------------------------------------------------------

    def _committed(self, items: list[Waiting]) -> None:
        self._settled(self, [record for item in items for record in item.result.records])
        for item in items:
            self.parked.deliver(item.result.answers)
            if not item.answer.done():
                item.answer.set_result(item.result.response)

    def _failed(self, items: list[Waiting], error: BarnabasError) -> None:
        if not any(item.result.records for item in items) and not isinstance(error, NotCoordinatorError):
            _refuse(items, CoordinatorNotAvailableError(f"{error.message}; try again"))
            return  # the machine depends on none of them
        failure = CoordinatorNotAvailableError(f"the coordinator must reload: {error.message}; try again")
        _refuse(items, failure)
        if not self._queue.is_closed:
            self._drop_machine(failure)

    def _drop_machine(self, error: BarnabasError) -> None:
        """The machine depends on records that may never be committed. Its successor needs a newer coordinator epoch, which
        invalidates these records if they arrive later."""
        self.machine = None
        _refuse(self._queue.close(), error)
        self.parked.refuse_all(error)
        self._dropped(self)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.machine is None or self._tick_is_due:
            return
        deadline_ms = self.machine.next_deadline_ms()
        if deadline_ms is not None:
            delay_ms = max(1, deadline_ms - self._now_ms())
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self.time_is_up)

    def time_is_up(self) -> None:
        """Heartbeats that arrived earlier count even if they wait for their turn: the tick takes its turn after them."""
        self._tick_is_due = True
        self._turns.add(self._tick)

    def _tick(self) -> None:
        self._tick_is_due = False
        alerts = self.decide_alone(lambda machine: machine.tick(self._now_ms(), topic_ids=self._topic_ids()))
        for alert in alerts or ():
            level = logging.INFO if alert.kind is AlertKind.OWNED_AGAIN else logging.WARNING
            logger.log(level, "group=%s alert=%s %s", alert.group_id, alert.kind.value, alert.text)


def _refuse(waiting: list[Waiting], error: BarnabasError) -> None:
    for item in waiting:
        if not item.answer.done():
            item.answer.set_exception(error)
