"""A broker's lifecycle in the cluster: registration, heartbeats, unfencing, controlled shutdown.

A registration belongs to one incarnation (one start of the process). Heartbeats, proposals and fetches carry the broker epoch of
the registration, so that no request of an earlier incarnation takes effect for this one (KIP-631, KIP-903).
"""

import asyncio
import logging
from collections.abc import Callable

from msgspec.structs import replace

from barnabas.kraft.metadata.feature_levels import NEWEST_LEVEL
from barnabas.kraft.metadata.requests import BrokerHeartbeat, HeartbeatAnswer, RegisterBroker, Registered
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    InconsistentClusterIdError,
    RequestTimedOutError,
    StaleBrokerEpochError,
    UnsupportedVersionError,
)
from barnabas.log.vocabulary.metadata_position import MetadataPosition

from ..base.clock import Clock
from .broker_to_controller import ControllerChannel
from .metadata_service import MetadataService

logger = logging.getLogger("barnabas.lifecycle")

REGISTRATION_TIMEOUT_MS = 5_000
UNFENCING_HEARTBEAT_INTERVAL_MS = 20  # while fenced, so that the usual interval does not delay a start
FATAL_REGISTRATION_ERRORS = (InconsistentClusterIdError, UnsupportedVersionError)


class BrokerLifecycle:
    """Keeps this broker registered, and knows whether it is fenced."""

    def __init__(
        self,
        *,
        registration: RegisterBroker,
        controller: ControllerChannel,
        metadata: MetadataService,
        clock: Clock,
        registered: Callable[[int], None],
        heartbeat_interval_ms: int,
        session_timeout_ms: int,
        fatal: Callable[[str], None],
        holds_back: Callable[[], bool] = lambda: False,
        known_metadata: Callable[[], MetadataPosition] = MetadataPosition,
    ) -> None:
        """`holds_back`: while it is true, this broker asks to stay fenced. `known_metadata`: the newest position of the metadata
        that this broker has ever known, according to its folders."""
        self._registration = replace(registration, max_feature_level=NEWEST_LEVEL)  # of the running version
        self._controller = controller
        self._metadata = metadata
        self._clock = clock
        self._registered = registered
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._session_timeout_ms = session_timeout_ms
        self._fatal = fatal
        self._holds_back = holds_back
        self._known_metadata = known_metadata
        self._wake = asyncio.Event()
        self._want_shut_down = False
        self._trouble = ""  # the last problem that was logged and has not ended
        self.broker_epoch = -1
        self.fenced = True
        self.may_shut_down = asyncio.Event()
        self.unfenced = asyncio.Event()

    async def run(self) -> None:
        """Register and send heartbeats; ends when it is cancelled, or when the cluster refuses this broker permanently."""
        while True:
            try:
                await self._register()
                await self._heartbeat_until_stale()
            except FATAL_REGISTRATION_ERRORS as error:
                self._fatal(error.message)
                return

    async def _register(self) -> None:
        while True:
            try:
                answer = await self._controller.call(self._named(), timeout_ms=REGISTRATION_TIMEOUT_MS)
                break
            except FATAL_REGISTRATION_ERRORS:
                raise
            except BarnabasError as error:
                self._note_trouble("registration failed", error)
                await self._pause(UNFENCING_HEARTBEAT_INTERVAL_MS if error.retriable else self._heartbeat_interval_ms)
        assert isinstance(answer, Registered)
        self._trouble = ""
        self._tell_loss(answer)
        self.broker_epoch = answer.broker_epoch
        # Reported once: later writes of this process are not affected by the loss.
        self._registration = replace(self._registration, lost_unflushed_data=False)
        self._registered(answer.broker_epoch)
        logger.info("registered node=%d broker_epoch=%d", self._registration.node_id, self.broker_epoch)

    def _named(self) -> RegisterBroker:
        """The registration with the id of the joined cluster: the controller of another cluster must refuse it."""
        known = self._registration.cluster_id or self._metadata.image.cluster_id
        return replace(
            self._registration,
            cluster_id=known,
            known=self._known_metadata(),
            applied=self._metadata.image.position,
        )

    def _tell_loss(self, answer: Registered) -> None:
        known = self._known_metadata()
        if known.offset and known.recovery_epoch < answer.recovery_epoch:
            logger.error(
                "event=metadata_lost node=%d this broker had the metadata up to %s, but since then the quorum was recovered "
                "from a copy that ended before offset %d: topics, configurations, groups and offsets that this copy "
                "did not have are gone. Replicas that the metadata does not name are set aside: `barnabas broker storage %d`",
                self._registration.node_id,
                known,
                answer.recovery_offset,
                self._registration.node_id,
            )

    async def _heartbeat_until_stale(self) -> None:
        while True:
            try:
                answer = await self._controller.call(self._heartbeat(), timeout_ms=self._session_timeout_ms)
            except FATAL_REGISTRATION_ERRORS:
                raise
            except StaleBrokerEpochError:
                logger.warning("registration lost, registering again node=%d", self._registration.node_id)
                self._set_fenced(True)
                return
            except RequestTimedOutError:
                await self._pause(
                    UNFENCING_HEARTBEAT_INTERVAL_MS
                )  # a controller that has lost its leadership answers so at once
                continue
            except BarnabasError as error:
                self._note_trouble("heartbeat failed", error)
                await self._pause(self._heartbeat_interval_ms)
                continue
            assert isinstance(answer, HeartbeatAnswer)
            self._metadata.confirmed()
            self._trouble = ""
            self._set_fenced(answer.fenced)
            if answer.may_shut_down and self._want_shut_down:
                self.may_shut_down.set()
            quick = answer.fenced or self._want_shut_down
            await self._pause(UNFENCING_HEARTBEAT_INTERVAL_MS if quick else self._heartbeat_interval_ms)

    def _note_trouble(self, what: str, error: BarnabasError) -> None:
        """Log a problem once, not each time that it repeats."""
        trouble = f"{what} node={self._registration.node_id}: {error.message}"
        if trouble != self._trouble:
            self._trouble = trouble
            logger.warning("%s", trouble)

    def _heartbeat(self) -> BrokerHeartbeat:
        return BrokerHeartbeat(
            node_id=self._registration.node_id,
            broker_epoch=self.broker_epoch,
            metadata_offset=self._metadata.applied_offset,
            want_fence=self._holds_back(),
            want_shut_down=self._want_shut_down,
            applied=self._metadata.image.position,
        )

    def _set_fenced(self, fenced: bool) -> None:
        if fenced != self.fenced:
            logger.info("broker %s node=%d", "fenced" if fenced else "unfenced", self._registration.node_id)
        self.fenced = fenced
        if fenced:
            self.unfenced.clear()
        else:
            self.unfenced.set()

    def begin_controlled_shutdown(self) -> None:
        """From the next heartbeat on, ask the controller to move this broker's leaderships away."""
        self._want_shut_down = True
        self._wake.set()

    async def _pause(self, interval_ms: int) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(interval_ms / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass
