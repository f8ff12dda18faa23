"""Members that process each record once into a database (`process_once`), while readers are sent elsewhere and topics are made
again under their names.

The database is one SQLite in memory that outlives every member; its transactions come one after the other, as those of one
row would. What a dead member had open is undone. After each commit the effects must go on, offset by offset, where those of
the same partition of the same topic ended.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar

from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.group_messages import OffsetToCommit
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import OffsetOutOfRangeError, TopicRecreatedError
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.consumer.process_once import process_once
from barnabas.net.testing.simulation.cluster import SimulatedCluster
from barnabas.net.testing.simulation.fault_room import FaultPlan, FaultRoom
from barnabas.net.testing.simulation.process import SimulatedProcess
from barnabas.net.wire.protocol.requests import ResetOffsetsRequest

from .group_members import SimulatedMember
from .workload import PHOENIX, Workload

ONCE = "once"
ONCE_TOPICS = ("events", PHOENIX)
ONCE_MEMBERS = 2
LOOK_S = (
    0.05  # which topic is there now; without it, nothing would let the time go on until this reader knows the new topic
)
ROUND_S = 0.6  # of one `process_once`: leaving it is a cancellation, wherever it is
Place = tuple[str, int, str]  # topic, partition, topic id


class EffectsDatabase:
    def __init__(self, violate: Callable[[str], None]) -> None:
        self.ends: dict[Place, int] = {}  # behind the last effect
        self._violate = violate
        self._uri = f"file:effects-{id(self)}?mode=memory&cache=shared"
        self._keeper = sqlite3.connect(self._uri, uri=True)
        self._keeper.execute("CREATE TABLE effects (topic TEXT, number INTEGER, at INTEGER)")
        self._keeper.commit()
        self._last_row = 0
        self._owner: Session | None = None
        self._waiting: deque[tuple[Session, asyncio.Future[None]]] = deque()
        self._sessions: list[Session] = []

    def connect(self) -> "Session":
        session = Session(self._uri, uri=True, timeout=0)
        session.database = self
        self._sessions.append(session)
        return session

    async def acquire(self, session: "Session") -> None:
        if self._owner is session:
            return
        if self._owner is not None:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((session, turn))
            await turn
        self._owner = session

    def release(self, session: "Session") -> None:
        if self._owner is not session:
            return
        self._owner = None
        while self._waiting and self._owner is None:
            waiting, turn = self._waiting.popleft()
            if not waiting.is_dead and not turn.done():
                self._owner = waiting
                turn.set_result(None)

    def committed(self) -> None:
        rows = self._keeper.execute(
            "SELECT e.rowid, e.topic, number, at, topic_id FROM effects e JOIN barnabas_offsets o"
            " ON e.topic = o.topic AND number = o.partition_id WHERE e.rowid > ? ORDER BY e.rowid",
            (self._last_row,),
        ).fetchall()
        for self._last_row, topic, number, offset, topic_id in rows:
            place = (topic, number, topic_id)
            end = self.ends.get(place, 0)
            if offset != end:
                self._violate(f"{topic}-{number} of {topic_id}: the effect of {offset} follows those up to {end}")
            self.ends[place] = offset + 1

    def has_begun(self, topic: str, partition: int) -> bool:
        return any(known[:2] == (topic, partition) for known in self.ends)

    def close(self) -> None:
        for session in [*self._sessions]:
            session.die()
        self._keeper.close()


class Session(sqlite3.Connection):
    """A connection of one process. Its first statement waits for its turn."""

    database: EffectsDatabase
    is_dead = False

    async def cursor(self) -> sqlite3.Cursor:  # type: ignore[override]
        await self.database.acquire(self)
        return super().cursor()

    def commit(self) -> None:
        if not self.is_dead:
            super().commit()
            self.database.committed()
            self.database.release(self)

    def rollback(self) -> None:
        if not self.is_dead:
            super().rollback()
            self.database.release(self)

    def die(self) -> None:
        if not self.is_dead:
            self.rollback()
            self.is_dead = True
            self.close()


class OnceMember(SimulatedMember):
    """Its group is not the checker's: committed offsets say nothing here, and are moved at will."""

    def __init__(self, *arguments: Any, database: EffectsDatabase, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._database = database
        self._session: Session | None = None

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        self.cluster.loop.note(f"{self.identity} takes {[str(it) for it in partitions]} in epoch {self.epoch}")

    async def _live(self, process: SimulatedProcess) -> None:
        self._session = self._database.connect()
        await super()._live(process)

    def kill(self) -> None:
        super().kill()
        if self._session is not None:
            self._session.die()

    async def _step(self, consumer: Consumer) -> None:
        assert self._session is not None
        try:
            async with asyncio.timeout(ROUND_S):
                await self._process(consumer, self._session)
        except TimeoutError:
            pass
        except (TopicRecreatedError, OffsetOutOfRangeError) as error:
            if PHOENIX not in error.message:  # else its reader may still be in the former topic's log
                raise
            self.cluster.loop.note(f"{self.identity}: {error.message}")
            await asyncio.sleep(LOOK_S)
            await self._forget_old_topics(self._session)

    async def _process(self, consumer: Consumer, session: Session) -> None:
        async with process_once(consumer, session, max_records=self.rng.choice((1, 5, 50))) as records:
            async for record, cursor in records:
                cursor.execute("INSERT INTO effects VALUES (?, ?, ?)", (record.topic, record.partition, record.offset))
                await self._work()
                if record.topic != PHOENIX and self.rng.random() < 0.03:  # without a row, reading begins where it is
                    self._jump(consumer, TopicPartition(record.topic, record.partition), record.offset)
                if self.must_close or self.rng.random() < 0.03:
                    return

    def _jump(self, consumer: Consumer, place: TopicPartition, offset: int) -> None:
        """The application moves its reader, which must move nothing of what is processed."""
        try:
            consumer.seek(place, self.rng.randint(0, offset + 10))
        except BarnabasError as error:
            self.cluster.loop.note(f"{self.identity} cannot seek: {error.code.name}")

    async def _forget_old_topics(self, session: Session) -> None:
        """As the error says: by someone who has looked which topic is there now."""
        topic = self.cluster.newest_image().topics.get(PHOENIX)
        if topic is not None:
            cursor = await session.cursor()
            cursor.execute("DELETE FROM barnabas_offsets WHERE topic = ? AND topic_id <> ?", (PHOENIX, topic.topic_id))
            session.commit()


class OnceFaults(FaultRoom):
    WEIGHTS: ClassVar = {"once_seek": 1}

    def __init__(
        self, cluster: SimulatedCluster, plan: FaultPlan, rng: Random, workload: Workload, database: EffectsDatabase
    ) -> None:
        super().__init__(cluster, plan, rng)
        self.workload = workload
        self.database = database

    def _once_seek(self, _: int) -> None:
        """An operator moves the group, back or forth, once its members have begun."""
        places = [place for place in self.workload.partitions if self.database.has_begun(*place)]
        if places:
            topic, number = self.rng.choice(places)
            offset = self.rng.randint(0, self.workload.ends.get((topic, number), 0))
            item = OffsetToCommit(topic=topic, partition=number, offset=offset)
            request = ResetOffsetsRequest(group_id=ONCE, partitions=(item,))
            self.cluster.loop.note(f"OPERATION {request}")
            self.workload.operate_at(self.cluster.newest_image().slots[slot_of(ONCE)].coordinator, request)
