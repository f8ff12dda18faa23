"""Transactional members of one group come, go and are cancelled, while the coordinator of the group dies and sessions end.

Each input is to become one output, by transactions that commit the offsets of what was read. A member is cancelled wherever it
is: in a join, between two records, in the commit of its offsets, while it closes. When the storm is over, the group has no
members but those that could not reach their coordinator to leave. One more member reads what is left. It must get on: what the
storm leaves behind ends by itself, within a session or the timeout of a transaction.

Members are tasks of this process, brokers are processes. A seed gives the same delays, but not the same run.
"""

import asyncio
import random
import time
from collections import Counter
from typing import Final

from integration.storm_diagnosis import diagnosis

from barnabas.log.vocabulary.errors import BarnabasError, GroupIdNotFoundError
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.testing.cluster import Cluster

INPUT, OUTPUT, GROUP = "storm-in", "storm-out", "storm"
PARTITIONS: Final = 6
MEMBERS: Final = 4
SESSION_MS: Final = 20_000  # longer than a trimmed storm: a member that it leaves behind is seen
TRANSACTION_TIMEOUT_MS: Final = 10_000
CONFIG: Final = {"group.consumer.session.timeout.ms": str(SESSION_MS)}
# For a member that could not leave, and a transaction that could not be aborted, both counted by a coordinator that begins again;
# and as much time once more, for a busy machine. A backlog takes longer.
PROGRESS_LIMIT_S: Final = 2 * (SESSION_MS + TRANSACTION_TIMEOUT_MS) / 1000
LOOK_EVERY_S: Final = 5.0
POLL_MS: Final = 200
MAX_RECORDS: Final = 20  # of a transaction: many of them end in a storm
SEND_EVERY_S: Final = 0.01
LIFE_S: Final = (1.0, 8.0)  # of a member, from the least to the most, as all delays below
CANCELLED_AFTER_S: Final = (0.0, 4.0)
CANCELLED_SHARE: Final = 0.5
JOINING_SHARE: Final = 0.5  # of those that are cancelled: as they join, which takes some milliseconds
JOINING_S: Final = (0.0, 0.02)
BETWEEN_LIVES_S: Final = (0.0, 1.0)
OPEN_SHARE: Final = 0.3  # of transactions that stay open for a while
OPEN_S: Final = (0.0, 0.3)
CALM_S: Final = (1.5, 4.0)  # between two faults
DEAD_S: Final = 1.5
KILL_SHARE: Final = 0.6  # of the faults; the others end the session of a member


class TransactionStorm:
    def __init__(self, cluster: Cluster, *, seed: int, seconds: float) -> None:
        """`cluster`: with CONFIG, and without the topics of this module."""
        self.counts: Counter[str] = Counter()  # of what has happened, by its name
        self._cluster = cluster
        self._seed = seed
        self._seconds = seconds
        self._until_s = 0.0  # when the storm is over, of the monotonic clock

    async def run(self) -> None:
        """Returns when all clients have closed and all brokers run."""
        for topic in (INPUT, OUTPUT):
            await self._cluster.aio.create_topic(topic, partitions=PARTITIONS)
        self._until_s = time.monotonic() + self._seconds
        async with asyncio.TaskGroup() as storm:
            storm.create_task(self._send())
            storm.create_task(self._break())
            for number in range(MEMBERS):
                storm.create_task(self._lives(number))

    async def check_left_behind(self, *, unconfirmed: set[str]) -> None:
        """The group has no members but these, whose leaves were not confirmed. Raises AssertionError, as `settle`."""
        members = await self._members()
        if members.keys() - unconfirmed:
            raise await self._failure(f"members are left: {members}; not confirmed: the leaves of {unconfirmed}")

    async def settle(self) -> None:
        """One more member reads what is left. Raises AssertionError, with the state of all parts, unless each input becomes one
        output, and after PROGRESS_LIMIT_S in which the group commits nothing. Raises what ended that member."""
        cluster = self._cluster.aio
        last = asyncio.create_task(self._last_member(), name="storm-last-member")
        try:
            await self._caught_up(last)
            inputs = [bytes(record.value or b"") for record in await cluster.records(INPUT)]
            await cluster.assert_delivered(OUTPUT, inputs, exactly_once=True)
            self.counts["records"] = len(inputs)
        except (AssertionError, TimeoutError, BarnabasError) as error:
            raise await self._failure(str(error)) from error
        finally:
            last.cancel()
            await asyncio.gather(last, return_exceptions=True)

    async def _caught_up(self, last: "asyncio.Task[None]") -> None:
        """It ends: there are no more inputs, so that the group commits more each time, or the limit is reached."""
        cluster = self._cluster.aio
        most, since_s = -1, time.monotonic()
        while True:
            try:
                await cluster.wait_until_caught_up(GROUP, INPUT, timeout_s=LOOK_EVERY_S)
                return
            except AssertionError:
                if last.done():
                    last.result()
                # Not the lag: it grows when the group hears of a partition from which it has committed nothing yet.
                committed = sum((await cluster.committed(GROUP)).values())
                if committed > most:
                    most, since_s = committed, time.monotonic()
                elif time.monotonic() - since_s > PROGRESS_LIMIT_S:
                    raise

    async def _members(self) -> dict[str, str]:
        """The client id of each member."""
        async with Admin(self._cluster.bootstrap_servers) as admin:
            try:
                found = await admin.describe_group(GROUP)
            except GroupIdNotFoundError:
                return {}
        return {member.member_id: member.client_id for member in found.members}

    async def _failure(self, text: str) -> AssertionError:
        try:
            found = await diagnosis(self._cluster, GROUP, INPUT, OUTPUT)
        except BarnabasError as error:
            found = f"no diagnosis: {error!r}"
        return AssertionError(f"{text}\nseed {self._seed}: {dict(self.counts)}\n{found}")

    # --- clients ------------------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        """What is sent may also be there twice, or not at all: the judge reads what is there."""
        async with Producer(self._cluster.bootstrap_servers, on_error=lambda *_: None) as producer:
            number = 0
            while time.monotonic() < self._until_s:
                await producer.send(INPUT, b"%d" % number, partition=number % PARTITIONS)
                number += 1
                await asyncio.sleep(SEND_EVERY_S)

    async def _lives(self, number: int) -> None:
        """A member after the other, with the same transactional id."""
        rng = random.Random(f"{self._seed}-{number}")
        while time.monotonic() < self._until_s:
            end_s = min(self._until_s, time.monotonic() + rng.uniform(*LIFE_S))
            joins = asyncio.Event()
            work = self._transform(f"storm-{number}", end_s, rng, joins)
            life = asyncio.create_task(work, name=f"storm-member-{number}")
            if rng.random() < CANCELLED_SHARE:
                await _cancel(life, joins, rng)
            await asyncio.wait([life])
            self._note_end(life)
            await asyncio.sleep(rng.uniform(*BETWEEN_LIVES_S))

    async def _last_member(self) -> None:
        rng = random.Random(self._seed)
        while True:
            life = asyncio.ensure_future(self._transform("storm-last", float("inf"), rng, asyncio.Event()))
            try:
                await asyncio.wait([life])
            finally:
                life.cancel()
                await asyncio.wait([life])
            self._note_end(life)

    def _note_end(self, life: "asyncio.Future[None]") -> None:
        """Raises what is no error that an application handles by beginning again."""
        error = None if life.cancelled() else life.exception()
        self.counts["cancelled" if life.cancelled() else "lives" if error is None else type(error).__name__] += 1
        if error is not None and not isinstance(error, BarnabasError | OSError):
            raise error

    async def _transform(self, name: str, end_s: float, rng: random.Random, joins: asyncio.Event) -> None:
        bootstrap = self._cluster.bootstrap_servers
        async with (
            Producer(bootstrap, transactional_id=name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS) as producer,
            Consumer(
                INPUT,
                bootstrap=bootstrap,
                group=GROUP,
                client_id=name,
                auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
            ) as consumer,
        ):
            joins.set()
            self.counts["members"] += 1
            while time.monotonic() < end_s:
                found = await consumer.poll(timeout_ms=POLL_MS, max_records=MAX_RECORDS)
                if not found:
                    continue
                async with producer.transaction() as transaction:
                    for records in found.values():
                        for record in records:
                            await transaction.send(OUTPUT, record.value)
                    if rng.random() < OPEN_SHARE:
                        await asyncio.sleep(rng.uniform(*OPEN_S))
                    await transaction.commit_offsets(consumer)
                self.counts["transactions"] += 1

    # --- faults -------------------------------------------------------------------------------------------------------

    async def _break(self) -> None:
        rng = random.Random(f"{self._seed}-faults")
        cluster = self._cluster.aio
        while time.monotonic() < self._until_s:
            await asyncio.sleep(rng.uniform(*CALM_S))
            is_kill = rng.random() < KILL_SHARE
            try:
                if is_kill:
                    await cluster.kill(await cluster.coordinator(GROUP))
                    self.counts["kills"] += 1
                    await asyncio.sleep(DEAD_S)
                    await cluster.heal()
                else:
                    await cluster.expire_session(GROUP)
                    self.counts["sessions"] += 1
            except (BarnabasError, OSError, ValueError) as error:  # no group, no member, or a coordinator that moves
                self.counts[f"fault: {type(error).__name__}"] += 1


async def _cancel(life: "asyncio.Task[None]", joins: asyncio.Event, rng: random.Random) -> None:
    if rng.random() < JOINING_SHARE:
        joining = asyncio.create_task(joins.wait())
        await asyncio.wait([life, joining], return_when=asyncio.FIRST_COMPLETED)
        joining.cancel()
        await asyncio.wait([life], timeout=rng.uniform(*JOINING_S))
    else:
        await asyncio.wait([life], timeout=rng.uniform(*CANCELLED_AFTER_S))
    life.cancel()
