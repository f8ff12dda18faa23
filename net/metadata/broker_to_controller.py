"""Requests to the active controller, wherever it runs: in this process, or by RPC on another broker.

This module only finds the controller; all decisions are the controller's. A broker that is not the controller answers with the
current leader, and a request is retried until its timeout. The requests of kraft are safe to retry (registrations carry an
incarnation, proposals an epoch, creations a topic id). If the first copy of a request may have been executed, a refusal of the
next copy that means "already done" is a success: see `done_already`.
"""

import asyncio
import random

from barnabas.kraft.metadata.requests import ControllerRequest, Done, decode_answer, encode_request
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    BrokerNotAvailableError,
    NetworkError,
    NotControllerError,
    RequestTimedOutError,
    ThrottlingQuotaExceededError,
)

from ..base.clock import Clock
from ..base.clock_offset import ClockOffset
from ..base.retries import OUTCOME_UNKNOWN, Backoff, Copies
from ..wire.protocol.requests import ControllerCallRequest, Request
from ..wire.protocol.responses import ControllerCallResponse, Response
from ..wire.rpc import RpcPool
from .metadata_service import MetadataService

# An election takes tens of milliseconds. All brokers lose their controller at the same moment: their retries must be spread.
BACKOFF = Backoff(first_ms=20, max_ms=500, jitter=0.5)
ATTEMPT_TIMEOUT_MS = 2_000  # a controller that is silent for this time may be frozen or replaced


class ControllerChannel:
    """Sends requests to the active controller, and follows it when it moves."""

    def __init__(
        self,
        *,
        node_id: int,
        metadata: MetadataService,
        pool: RpcPool,
        clock: Clock,
        rng: random.Random,
        listener: str,
        attempt_timeout_ms: int = ATTEMPT_TIMEOUT_MS,
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._pool = pool
        self._clock = clock
        self._rng = rng
        self._listener = listener
        self._attempt_timeout_ms = attempt_timeout_ms
        self.clock_offset = ClockOffset()  # of the controller
        self._asked: dict[
            asyncio.Timeout, int | None
        ] = {}  # attempts that may be aborted, and the leader that each has asked
        metadata.subscribe(self._published)

    def _published(self, publication: MetadataPublication) -> None:
        """If the leader has changed, abort attempts that wait for the old leader, and retry them at once: the old leader may be
        frozen or cut off, and a new controller must hear from every broker soon."""
        leader_id = publication.leader.leader_id
        if leader_id is None:
            return
        now_s = asyncio.get_running_loop().time()
        for scope, asked in list(self._asked.items()):
            if asked not in (None, leader_id):
                del self._asked[scope]
                if not scope.expired():  # in this very moment; then the attempt ends anyway
                    scope.reschedule(now_s)

    async def call(
        self,
        request: ControllerRequest,
        *,
        timeout_ms: int,
        repeat_when_unknown: bool = True,
        done_already: tuple[type[BarnabasError], ...] = (),
    ) -> object:
        """Return the controller's answer, or raise its error.

        Raises RequestTimedOutError if no controller answers in time: the change may or may not have happened. If
        `repeat_when_unknown` is False, a request whose outcome is unknown is not sent again, and the error that interrupted it
        is raised. A request that the topic mutation quota refuses is retried later; at the timeout, this refusal is raised.
        If a refusal is in `done_already` and an earlier copy may have been executed, `Done` is returned.
        """
        deadline_ms = self._clock.now_ms() + timeout_ms
        copies, failures = Copies(), 0
        throttled: ThrottlingQuotaExceededError | None = None
        while True:
            remaining_ms = deadline_ms - self._clock.now_ms()
            if remaining_ms <= 0:
                if throttled is not None:
                    raise throttled
                raise RequestTimedOutError(f"no active controller answered within {timeout_ms} ms; try again")
            try:
                attempt_ms = min(remaining_ms, self._attempt_timeout_ms)
                return await self._attempt(request, attempt_ms, may_give_up=repeat_when_unknown)
            except OUTCOME_UNKNOWN as error:
                if not repeat_when_unknown:
                    raise
                copies.failed(error)
                throttled = None
            except ThrottlingQuotaExceededError as error:
                throttled = error  # definite: the request was not executed
            except (NotControllerError, BrokerNotAvailableError):
                pass  # definite: the request was not executed
            except done_already as error:
                if copies.is_done(error, done_already):
                    return Done(offset=self._metadata.image.offset)
                raise
            failures += 1
            pause_ms = min(BACKOFF.delay_ms(failures, self._rng.random), max(1, deadline_ms - self._clock.now_ms()))
            await asyncio.sleep(pause_ms / 1000)

    async def _attempt(self, request: ControllerRequest, timeout_ms: int, *, may_give_up: bool) -> object:
        scope = asyncio.timeout(timeout_ms / 1000)
        try:
            async with scope:
                if may_give_up:
                    self._asked[scope] = self._metadata.leadership.leader_id
                try:
                    return await self._ask_once(request, timeout_ms)
                finally:
                    self._asked.pop(scope, None)
        except TimeoutError:
            raise RequestTimedOutError(f"the controller did not answer within {timeout_ms} ms; try again") from None

    async def _ask_once(self, request: ControllerRequest, timeout_ms: int) -> object:
        leader_id = self._metadata.leadership.leader_id
        if leader_id is None:
            raise NotControllerError("the quorum has no leader at the moment")
        if leader_id == self._node_id:
            self.clock_offset.is_own()
            return await self._metadata.source.submit(request)
        try:
            connection = await self._pool.get(*self.address_of(leader_id))
        except NetworkError as error:
            raise BrokerNotAvailableError(error.message) from error  # definite: nothing was sent
        asked_ms = self._clock.wall_ms()
        response = await connection.call(ControllerCallRequest(body=encode_request(request)), timeout_ms=timeout_ms)
        assert isinstance(response, ControllerCallResponse)
        if response.wall_ms >= 0:
            self.clock_offset.noted(asked_ms, response.wall_ms, self._clock.wall_ms())
        return decode_answer(request, response.body)

    async def ask_broker(self, node_id: int, request: Request, *, timeout_ms: int) -> Response:
        """Make one attempt with the given broker. Raises the error of its answer, NetworkError, RequestTimedOutError."""
        connection = await self._pool.get(*self.address_of(node_id))
        response: Response = await connection.call(request, timeout_ms=timeout_ms)
        return response

    def address_of(self, node_id: int) -> tuple[str, int]:
        """The address for requests of other brokers. Raises BrokerNotAvailableError if it is not known yet."""
        broker = self._metadata.image.brokers.get(node_id)
        if broker is not None:
            endpoint = broker.endpoint(self._listener)
            return endpoint.host, endpoint.port
        address = self._metadata.source.broker_address(node_id)
        if address is None:
            raise BrokerNotAvailableError(f"the address of broker {node_id} is not known yet")
        return address
