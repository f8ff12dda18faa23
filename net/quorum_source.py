"""Metadata of a voter: its quorum and the state machine above it, wherever they run.

In a broker they live in a thread with a loop of its own, so that a busy broker delays no heartbeat and no vote; in simulation
they share the broker's loop. Everything crosses by `QuorumHost.post` and `post_back`, one hop for each batch.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from barnabas.kraft.metadata_node import MetadataNode, MetadataPublication
from barnabas.kraft.raft_quorum import RaftQuorum
from barnabas.kraft.raft_thread import RaftThread
from barnabas.kraft.records import Record
from barnabas.kraft.requests import ControllerRequest
from barnabas.log.errors import BarnabasError

from .metadata_service import Subscriber
from .protocol.responses import MetadataFeedResponse

logger = logging.getLogger("barnabas.metadata")

BuildQuorum = Callable[[asyncio.AbstractEventLoop], RaftQuorum]
Work = Callable[[], object]


class QuorumHost(Protocol):
    """Where the quorum runs."""

    async def start(self, build: BuildQuorum) -> None: ...
    def post(self, work: Work) -> None:
        """Run `work` in the quorum's loop, in order."""

    def post_back(self, work: Work) -> None:
        """Run `work` in the broker's loop, in order. Called in the quorum's loop."""

    async def stop(self) -> None: ...


class ThreadHost:
    """The quorum in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread: RaftThread | None = None

    async def start(self, build: BuildQuorum) -> None:
        self._thread = RaftThread(build)
        await self._loop.run_in_executor(None, self._thread.start)

    def post(self, work: Work) -> None:
        assert self._thread is not None
        self._thread.post(lambda _: work())

    def post_back(self, work: Work) -> None:
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            logger.debug("the broker's loop is closed; a late publication is dropped")

    async def stop(self) -> None:
        if self._thread is not None:
            await self._loop.run_in_executor(None, self._thread.stop)


class SameLoopHost:
    """The quorum in the broker's own loop (simulation)."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._quorum: RaftQuorum | None = None

    async def start(self, build: BuildQuorum) -> None:
        self._quorum = build(self._loop)
        await self._quorum.start()

    def post(self, work: Work) -> None:
        self._loop.call_soon(work)

    def post_back(self, work: Work) -> None:
        self._loop.call_soon(work)

    async def stop(self) -> None:
        if self._quorum is not None:
            await self._quorum.close()
