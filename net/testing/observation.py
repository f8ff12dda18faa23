"""What a cluster holds, as a test asks: records, offsets, lag, rebalances. Read with the SDK, as any client would."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from barnabas.log.vocabulary.errors import BarnabasError, GroupIdNotFoundError
from barnabas.log.vocabulary.group_messages import RebalanceEvent
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..client.admin.admin import Admin
from ..client.connection.client import Client
from ..client.connection.records import ConsumerRecord
from ..client.connection.security import SecurityOptions
from ..client.consumer.consumer import Consumer
from ..wire.protocol.group_responses import DescribeGroupResponse
from ..wire.protocol.requests import Request

CLIENT_ID: Final = "barnabas-testing"
MOST_SHOWN: Final = 5  # values in an error message
MOST_SHOWN_BYTES: Final = 60  # of one value
POLL_S: Final = 0.02
KNOWN_WITHIN_S: Final = 2.0  # a paused broker does not answer
# A broker that was paused may believe for a moment that it leads, and show an older end of its log.
LOOK_AGAIN_S: Final = 5.0


class Observation:
    """Coroutines of one event loop. `admin` is connected when it is first used."""

    def __init__(self, bootstrap: str, *, timeout_s: float, login: SecurityOptions | None = None) -> None:
        """`bootstrap` may change with the brokers of the cluster."""
        self.bootstrap = bootstrap
        self.login = SecurityOptions() if login is None else login
        self._timeout_s = timeout_s
        self._client: Client | None = None
        self._admin: Admin | None = None

    async def admin(self) -> Admin:
        if self._admin is None:
            client = Client(self.bootstrap, client_id=CLIENT_ID, **self.login)
            admin = Admin(client=client, timeout_ms=int(self._timeout_s * 1000))
            await admin.start()
            self._client, self._admin = client, admin
        return self._admin

    async def ask(self, broker: int, request: Request) -> Any:
        """The answer of one broker."""
        await self.admin()
        assert self._client is not None
        return await self._client.call(broker, request)

    async def is_known(self, topic: str, address: str) -> None:
        """Wait until the broker at this address knows the topic, for KNOWN_WITHIN_S at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(KNOWN_WITHIN_S), Admin(address, client_id=CLIENT_ID, **self.login) as admin:
                while True:
                    try:
                        await admin.describe_topic(topic)
                        return
                    except BarnabasError:
                        await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()

    async def records(self, topic: str, *, isolation_level: str = "read_committed") -> list[ConsumerRecord]:
        """All records from the first to the end of each partition at this moment, in the order of partitions and offsets."""
        async with Consumer(
            bootstrap=self.bootstrap,
            auto_offset_reset="earliest",
            isolation_level=isolation_level,
            client_id=CLIENT_ID,
            **self.login,
        ) as consumer:
            partitions = await consumer.partitions_for(topic)
            consumer.assign(partitions)
            await consumer.seek_to_start()
            ends = await consumer.end_offsets(*partitions)
            found: list[ConsumerRecord] = []
            async with asyncio.timeout(self._timeout_s):
                while any([await consumer.position(partition) < end for partition, end in ends.items()]):
                    for batch in (await consumer.poll(timeout_ms=200)).values():
                        found += batch
        found = [record for record in found if record.offset < ends[TopicPartition(topic, record.partition)]]
        return sorted(found, key=lambda record: (record.partition, record.offset))

    async def check_delivered(self, topic: str, values: Sequence[bytes], *, exactly_once: bool) -> None:
        """Raises AssertionError, which names what is missing, and what is there twice."""
        wanted = Counter(values)
        time_s = asyncio.get_running_loop().time
        until_s = time_s() + LOOK_AGAIN_S
        while True:  # a look that has begun is ended: on a slow network, one takes seconds
            try:
                stored = Counter(bytes(record.value or b"") for record in await self.records(topic))
            except TimeoutError:
                raise AssertionError(f"topic {topic!r} could not be read within {self._timeout_s:g} s") from None
            if not wanted - stored or time_s() >= until_s:
                break
            await asyncio.sleep(POLL_S)
        missing = list((wanted - stored).elements())
        more = list((stored - wanted).elements())
        doubled = [value for value in more if value in wanted] if exactly_once else []
        foreign = [value for value in more if value not in wanted] if exactly_once else []
        found = [
            _shown(f"missing {len(missing)} of {len(values)}", missing),
            _shown(f"stored more than once: {len(doubled)}", doubled),
            _shown(f"never sent: {len(foreign)}", foreign),
        ]
        troubles = [text for text in found if text]
        if troubles:
            raise AssertionError(f"topic {topic!r} does not hold what was sent. " + "; ".join(troubles))

    async def committed(self, group: str) -> dict[TopicPartition, int]:
        offsets = await (await self.admin()).group_offsets(group)
        return {partition: item.committed for partition, item in offsets.items() if item.has_committed}

    async def lag(self, group: str) -> dict[TopicPartition, int]:
        """Partitions without a committed offset that no member owns are not known to a group."""
        offsets = await (await self.admin()).group_offsets(group)
        return {partition: item.lag for partition, item in offsets.items()}

    async def wait_until_caught_up(self, group: str, topics: Iterable[str], timeout_s: float) -> None:
        """Until the group has committed the end of each partition of these topics, or of those that it knows."""
        wanted = [partition for topic in topics for partition in await self._partitions(topic)]
        lag: dict[TopicPartition, int] = {}
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    lag = await self.lag(group)
                    if wanted:
                        ends = await self._ends(wanted)
                        lag = {place: lag.get(place, end) for place, end in ends.items()}
                    if lag and not any(lag.values()):
                        return
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            behind = {f"{place.topic}-{place.partition}": count for place, count in lag.items() if count}
            told = f"records behind: {behind}" if behind else "it has neither members nor committed offsets"
            raise AssertionError(f"group {group!r} has not caught up within {timeout_s:g} s; {told}") from None

    async def _partitions(self, topic: str) -> list[TopicPartition]:
        found = await (await self.admin()).describe_topic(topic)
        return [TopicPartition(topic, number) for number in range(len(found.partitions))]

    async def _ends(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The records of each partition: what a group that has committed nothing has still to read."""
        admin = await self.admin()
        topics = sorted({partition.topic for partition in wanted})
        ends = {
            partition: item.offset for topic in topics for partition, item in (await admin.list_offsets(topic)).items()
        }
        return {partition: ends[partition] for partition in wanted}

    async def rebalances(self, group: str) -> list[RebalanceEvent]:
        try:
            return list((await self.describe(group)).rebalances)
        except GroupIdNotFoundError:
            return []

    async def describe(self, group: str) -> DescribeGroupResponse:
        return await (await self.admin()).describe_group(group)


def _shown(what: str, values: Sequence[bytes]) -> str:
    if not values:
        return ""
    first = ", ".join(_short(value) for value in values[:MOST_SHOWN])
    rest = f", and {len(values) - MOST_SHOWN} more" if len(values) > MOST_SHOWN else ""
    return f"{what}: {first}{rest}"


def _short(value: bytes) -> str:
    return repr(value) if len(value) <= MOST_SHOWN_BYTES else f"{value[:MOST_SHOWN_BYTES]!r}... ({len(value)} bytes)"
