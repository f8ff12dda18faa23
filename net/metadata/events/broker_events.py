"""The events of one broker, put together: what it keeps, where they come from, and the file. Belongs to the broker's loop."""

from collections.abc import Callable

from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.log.disk.files import Files
from barnabas.net.base.clock import Clock

from .committed import CommittedEvents
from .event_file import EventFile
from .event_log import EventLog
from .state_log import StateLog


class BrokerEvents:
    def __init__(self, node_id: int, clock: Clock, *, is_current: Callable[[], bool]) -> None:
        """`is_current`: has the image what was committed before this process registered?"""
        self._file: EventFile | None = None
        self._state_log = StateLog(node_id, clock)
        self.log = EventLog(node_id, clock, lambda event: None if self._file is None else self._file.written(event))
        self._committed = CommittedEvents(self.log, is_current)

    async def open(self, folder: str, files: Files, fatal: Callable[[str], None]) -> None:
        """Before the metadata starts: go on after what earlier processes have kept."""
        file = EventFile(folder, files, everything=self.log.all, fatal=fatal)
        self.log.restore(await file.load())
        self._committed.resume(*self.log.newest_place())
        self._file = file

    def published(self, publication: MetadataPublication) -> None:
        self._state_log.published(publication)
        self._committed.published(publication)

    async def close(self) -> None:
        if self._file is not None:
            await self._file.close()
