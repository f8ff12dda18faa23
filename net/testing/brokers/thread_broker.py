"""A broker in this process: a thread with an event loop of its own, real sockets on the loopback, and real files.

Its death is as sudden as it can be without the death of a process. What it has written stays, and what it holds in memory is
gone: from one moment on its connections are closed and its disk refuses everything, and what still runs of it has no effect. It
shares memory, the interpreter's lock and the limit of open files with the test.
"""

import asyncio
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

from barnabas.net.base.settings.config import load

from ...broker.broker import Broker
from ...broker.broker_process import users_of
from ...broker.tls import tls_of
from ..faults.fault_board import FaultBoard
from ..faults.orders import Order

logger = logging.getLogger("barnabas.testing")

ORDER_TIMEOUT_S: Final = 30.0  # a loop that is blocked by a slow disk is still faster
LOOK_S: Final = 0.1  # whether a broker that is to be paused has ended meanwhile
BURIAL_TIMEOUT_S: Final = 10.0  # tasks that were cancelled wait for their own threads at most


class ThreadBroker:
    """Started by the constructor; `started` says whether that succeeded."""

    def __init__(self, node_id: int, properties: Mapping[str, str]) -> None:
        self.node_id = node_id
        self.started: Future[None] = Future()
        self.death = ""  # why the broker ended itself
        self._properties = dict(properties)
        self._may_run = threading.Event()
        self._may_run.set()
        self._dying: asyncio.Event | None = None
        self._is_graceful = False
        self._hands_over = False
        self._thread = threading.Thread(target=self._main, name=f"barnabas-broker-{node_id}", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive() and not (self._dying is not None and self._dying.is_set())

    def _main(self) -> None:
        try:
            with asyncio.Runner(debug=False) as runner:
                runner.run(self._live())
        except BaseException as error:
            if self.started.done():
                logger.exception("the thread of broker %d failed", self.node_id)
            else:
                self.started.set_exception(error)

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._dying = asyncio.Event()
        self._board = FaultBoard()
        config = load(None, self._properties, {})
        tls, users = await asyncio.to_thread(tls_of, config), await asyncio.to_thread(users_of, config)
        self._broker = Broker(config, self._board.ports(self._fatal, config, tls, users))
        await self._broker.start()
        self.started.set_result(None)
        await self._dying.wait()
        if self._is_graceful:
            await self._broker.stop(controlled=self._hands_over)
            return
        await self._bury()

    async def _bury(self) -> None:
        """Unlike the end of a process, that of a thread frees nothing by itself."""
        self._loop.set_exception_handler(lambda loop, context: None)  # what a dead broker says does not matter
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=BURIAL_TIMEOUT_S)
        await asyncio.sleep(0)  # Transports close their sockets in the turn after their abort.

    def _fatal(self, reason: str) -> None:
        """What a process does with os._exit."""
        if self._board.disk.is_dead:
            return
        self.death = reason
        logger.error("broker %d ended itself: %s", self.node_id, reason)
        self._loop.call_soon_threadsafe(self._die)

    def _die(self) -> None:
        assert self._dying is not None
        self._dying.set()  # first: `kill` waits for it, whatever happens
        self._broker.shutdown_hurried.set()
        self._board.die()

    # --- from other threads -------------------------------------------------------------------------------------------

    def order(self, order: Order) -> int:
        """Carry out an order on the broker's loop."""
        return asyncio.run_coroutine_threadsafe(self._board.carry_out(order), self._loop).result(ORDER_TIMEOUT_S)

    def begin_kill(self, together: threading.Barrier | None = None) -> None:
        """`kill`, without waiting for it. `together`: of brokers that die at the same moment, so that none of them reports the
        loss of another one."""
        if not self._thread.is_alive():
            return

        def die() -> None:
            if together is not None:
                with suppress(threading.BrokenBarrierError):  # one has died before
                    together.wait()
            self._die()

        self.resume()
        with suppress(RuntimeError):  # the loop has ended by itself meanwhile
            self._loop.call_soon_threadsafe(die)

    def kill(self) -> None:
        """Returns when its connections are closed, its disk refuses everything, and its thread has ended."""
        self.begin_kill()
        self._thread.join()

    def stop(self, *, hands_over: bool = False) -> None:
        """Close the logs cleanly. `hands_over`: first its leaderships, as a broker does that leaves a running cluster."""
        if not self._thread.is_alive():
            return
        self.resume()

        def begin() -> None:
            assert self._dying is not None
            if not hands_over:
                self._broker.shutdown_hurried.set()
            self._is_graceful, self._hands_over = True, hands_over
            self._dying.set()

        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(begin)
        self._thread.join()

    def pause(self) -> None:
        """Returns when the loop stands still; connections stay open, without answers."""
        stands = threading.Event()
        self._may_run.clear()

        def stand_still() -> None:
            stands.set()
            self._may_run.wait()

        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(stand_still)
        while self._thread.is_alive() and not stands.wait(LOOK_S):
            pass

    def resume(self) -> None:
        self._may_run.set()
