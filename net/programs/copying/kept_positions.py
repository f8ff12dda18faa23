"""How far a program has come, as records of a compacted topic that it writes in the transactions of what it copies.

Another record says which process owns the positions. A producer that is fenced cannot tell another process of its name from a
transaction that was open for too long; without that record, both would take over from each other for ever.
"""

import asyncio
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from barnabas.log.vocabulary.errors import BarnabasError, RequestTimedOutError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.transaction import Transaction

TRANSACTION_TIMEOUT_MS: Final = 60_000
RESTORE_S: Final = 2 * TRANSACTION_TIMEOUT_MS / 1_000  # until transactions of processes that were killed have ended
POLL_MS: Final = 500

Records = Sequence[tuple[bytes | None, bytes | None]]  # (key, value), in the order of the log


class ReplacedError(BarnabasError):
    """Another process of the same name has taken over."""


class PositionsLostError(BarnabasError):
    """The topic of positions was deleted while the program was running."""


def owner_key(name: str) -> bytes:
    """Of the record that says which process owns the positions: the value is an id of its own."""
    return f"{name}/owner".encode()


def owner_of(name: str, records: Iterable[tuple[bytes | None, bytes | None]]) -> bytes | None:
    owner = None
    for key, value in records:
        if key == owner_key(name):
            owner = value
    return owner


class KeptPositions:
    def __init__(
        self,
        topic: str,
        name: str,
        *,
        program: str,
        after_loss: str,
        bootstrap: str,
        security: Mapping[str, Any],
        stopping: asyncio.Event,
    ) -> None:
        """`program` is what errors call it, `after_loss` what to do if the positions are gone."""
        self.topic = topic
        self._name = name
        self._program = program
        self._after_loss = after_loss
        self._bootstrap = bootstrap
        self._security = security
        self._stopping = stopping
        self._owner = uuid.uuid4().hex.encode()  # of this process
        self.is_owner = False  # from the first transaction on

    async def make_topic(self) -> None:
        async with Admin(self._bootstrap, **self._security) as admin:
            if self.topic not in await admin.list_topics():  # Then no permission to create topics is needed.
                configs = {"cleanup.policy": "compact"}
                await admin.create_topic(self.topic, partitions=1, configs=configs, if_not_exists=True)

    async def own(self, transaction: Transaction) -> None:
        """Note the ownership in the first transaction of a session; `is_owner` is set when it is committed."""
        await transaction.send(self.topic, self._owner, key=owner_key(self._name), partition=0)

    def check_owner(self, records: Records) -> None:
        """Raises ReplacedError, PositionsLostError."""
        if self._stopping.is_set():
            return  # Not all of them were read.
        owner = owner_of(self._name, records)
        if owner is None:
            raise PositionsLostError(
                f"{self.topic} does not have the positions of {self._name!r} any more: the topic was deleted or shortened; "
                f"{self._after_loss}"
            )
        if owner != self._owner:
            raise self.replaced()

    def replaced(self) -> ReplacedError:
        return ReplacedError(
            f"another {self._program} with the name {self._name!r} has taken over; give each its own --name"
        )

    async def records(self) -> list[tuple[bytes | None, bytes | None]]:
        """All of them. Readers of committed records do not get what is behind the open transaction of another process until it
        has ended; without the newest positions, records would be copied again. Raises RequestTimedOutError."""
        partition = TopicPartition(self.topic, 0)
        found: list[tuple[bytes | None, bytes | None]] = []
        async with Admin(self._bootstrap, **self._security) as admin:
            end = (await admin.list_offsets(self.topic))[partition].offset
        until_s = time.monotonic() + RESTORE_S
        async with Consumer(
            bootstrap=self._bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            **self._security,
        ) as consumer:
            consumer.assign([partition])
            while await consumer.position(partition) < end and not self._stopping.is_set():
                if time.monotonic() > until_s:
                    raise RequestTimedOutError(
                        f"{partition} could not be read to its end ({end}) in {RESTORE_S:g} s: a transaction may be open "
                        "there; see `barnabas transaction list`"
                    )
                records = await consumer.poll(timeout_ms=POLL_MS)
                found += [(record.key, record.value) for record in records.get(partition, ())]
        return found
