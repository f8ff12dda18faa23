"""Topics that are created because a client asked for their metadata: each is created once, in the background.

A client waits for a moment, because creation usually takes a few milliseconds, and then receives an error that makes it ask
again, as in Kafka. So an unresponsive controller delays no request for longer, and the waiting creations are bounded in
number and time.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from barnabas.kraft.controller.topic_control import new_topic_id
from barnabas.kraft.metadata.requests import CreateTopic, TopicCreated
from barnabas.log.vocabulary.errors import BarnabasError, LeaderNotAvailableError, TopicAlreadyExistsError
from barnabas.log.vocabulary.topic_partition import check_topic_name

from ..common.services import Services

CREATION_TIMEOUT_MS: Final = 10_000  # of one topic, including its wait for a turn; then a client asks again
ANSWER_WITHIN_MS: Final = 5_000  # well within the request timeout of every client
MAX_CREATIONS: Final = 1_000  # in progress or waiting for a turn; further requests must be retried
MAX_CREATIONS_AT_A_TIME: Final = 32  # the controller commits waiting changes together, and other requests get a turn

Outcome = BarnabasError | None


class TopicCreations:
    """The topics that this broker has asked the controller to create. `tasks`: the tasks that do so."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._turns = asyncio.Semaphore(MAX_CREATIONS_AT_A_TIME)
        self._under_way: dict[str, asyncio.Task[Outcome]] = {}  # by name; at most MAX_CREATIONS

    @property
    def tasks(self) -> list[asyncio.Task[Outcome]]:
        return list(self._under_way.values())

    async def create(self, names: Sequence[str]) -> dict[str, BarnabasError]:
        """Create missing topics; return the errors of those that do not exist yet when this returns."""
        begun = {name: task for name in names if (task := self._begin(name)) is not None}
        if begun:
            await asyncio.wait(begun.values(), timeout=ANSWER_WITHIN_MS / 1000)
        failures = {name: self._failure(name, begun.get(name)) for name in names}
        return {name: failure for name, failure in failures.items() if failure is not None}

    def _begin(self, name: str) -> asyncio.Task[Outcome] | None:
        task = self._under_way.get(name)
        if task is None and len(self._under_way) < MAX_CREATIONS:
            task = asyncio.get_running_loop().create_task(self._create(name))
            self._under_way[name] = task
            task.add_done_callback(lambda _: self._under_way.pop(name, None))
        return task

    @staticmethod
    def _failure(name: str, task: asyncio.Task[Outcome] | None) -> Outcome:
        """Every client retries on LEADER_NOT_AVAILABLE."""
        if task is None:
            return LeaderNotAvailableError(f"{MAX_CREATIONS} topics are being created; retry  {name!r}")
        if not task.done() or task.cancelled():
            return LeaderNotAvailableError(f"topic {name!r} is being created; retry")
        return task.result()

    async def _create(self, name: str) -> Outcome:
        try:
            async with asyncio.timeout(CREATION_TIMEOUT_MS / 1000), self._turns:
                await self._create_now(name)
        except TimeoutError:
            return LeaderNotAvailableError(
                f"no active controller has created topic {name!r} within {CREATION_TIMEOUT_MS} ms; retry"
            )
        except TopicAlreadyExistsError:  # another client has created it, and this broker's image may not show it yet
            return LeaderNotAvailableError(f"topic {name!r} is being created; retry")
        except BarnabasError as error:
            return LeaderNotAvailableError(error.message) if error.retriable else error
        return None

    async def _create_now(self, name: str) -> None:
        check_topic_name(name)
        request = CreateTopic(name=name, topic_id=new_topic_id(self._services.rng))
        created = await self._services.controller.call(request, timeout_ms=CREATION_TIMEOUT_MS)
        assert isinstance(created, TopicCreated)
        await self._services.metadata.wait_for_offset(created.offset, timeout_ms=CREATION_TIMEOUT_MS)
