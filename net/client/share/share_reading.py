"""`ShareReading`: what becomes of a record before the application gets it: objects by deserializers, or a dead letter."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ..connection.errors import BarnabasError, DeserializationError, InvalidConfigError, RecordGivenUpError
from ..serde.bad_records import Handler, Policy, policy_of
from ..serde.reading import Decoders
from ..serde.serdes import MAX_LOADS, AnyDeserializer, SchemaNotLoaded
from .share_record import DecodedShareRecord, ShareRecord

logger = logging.getLogger("barnabas.consumer")

# Brokers archive a record after five deliveries (share.delivery.count.limit): the last one is for the dead letter.
MAX_DELIVERIES: Final = 4

DeadLetter = Callable[[ShareRecord, Exception], Awaitable[None] | None]


class ShareReading:
    def __init__(
        self,
        key: AnyDeserializer | None,
        value: AnyDeserializer | None,
        on_bad_record: str | Handler | None,
        dead_letter: DeadLetter | None,
        max_deliveries: int | None,
    ) -> None:
        """Raises InvalidConfigError."""
        if max_deliveries is not None and (dead_letter is None or max_deliveries < 1):
            raise InvalidConfigError(
                f"max_deliveries is {max_deliveries}; it must be 1 or more, and it needs dead_letter: what happens to the record"
            )
        self._decoders = Decoders.of(key, value)
        self._on_bad_record: Policy | Handler
        if on_bad_record is None and dead_letter is not None:
            self._on_bad_record = dead_letter  # type: ignore[assignment]
        else:
            self._on_bad_record = policy_of("stop" if on_bad_record is None else on_bad_record)
        self._dead_letter = dead_letter
        self._max_deliveries = MAX_DELIVERIES if max_deliveries is None else max_deliveries

    @property
    def has_dead_letters(self) -> bool:
        return self._dead_letter is not None

    def now(self, record: ShareRecord) -> ShareRecord | DecodedShareRecord | None:
        """What the application gets, or None if that needs `read`."""
        if self._is_exhausted(record):
            return None
        if self._decoders is None:
            return record
        try:
            decoded = self._decoders.record(record)
        except (SchemaNotLoaded, BarnabasError):
            return None
        return DecodedShareRecord(record, decoded.key, decoded.value)

    async def read(self, record: ShareRecord, timeout_s: float) -> ShareRecord | DecodedShareRecord | None:
        """What the application gets. None: the record is to be rejected; it is where it should be.

        Raises TimeoutError while a schema is loaded for longer, DeserializationError if the application wants to stop,
        SchemaRegistryError, and what a handler raises: then the record comes next again.
        """
        if self._is_exhausted(record):
            await self.give_up(record, f"delivered {record.delivery_count} times, and never accepted")
            return None
        if self._decoders is None:
            return record
        for _ in range(MAX_LOADS):
            try:
                decoded = self._decoders.record(record)
            except SchemaNotLoaded as missing:
                async with asyncio.timeout(timeout_s):
                    await missing.load()  # which goes on after a timeout
            except DeserializationError as error:
                await self._handle(record, error)
                return None
            else:
                return DecodedShareRecord(record, decoded.key, decoded.value)
        raise BarnabasError(f"a record of {record.topic_partition} needs more than {MAX_LOADS} schemas")

    async def give_up(self, record: ShareRecord, reason: str) -> None:
        """Call the function for dead letters. Raises what it raises."""
        assert self._dead_letter is not None
        await _called(self._dead_letter, record, RecordGivenUpError(reason))

    def _is_exhausted(self, record: ShareRecord) -> bool:
        return self._dead_letter is not None and record.delivery_count > self._max_deliveries

    async def _handle(self, record: ShareRecord, error: DeserializationError) -> None:
        if self._on_bad_record is Policy.STOP:
            raise DeserializationError(
                error.partition,
                error.offset,
                error.part,
                error.reason,
                record=record,
                cure="call acknowledge(error.record, 'reject')",
            ) from error.__cause__
        if self._on_bad_record is Policy.SKIP:
            logger.warning(
                "record rejected partition=%s offset=%d part=%s reason=%s",
                error.partition, error.offset, error.part, error.reason[:200],
            )  # fmt: skip
            return
        await _called(self._on_bad_record, record, error)  # type: ignore[arg-type]


async def _called(handler: DeadLetter, record: ShareRecord, error: Exception) -> None:
    outcome = handler(record, error)
    if inspect.isawaitable(outcome):
        await outcome


class Rejections:
    """Records that the application has rejected, while they are written to the dead letters: no more than are locked."""

    def __init__(self, reading: ShareReading) -> None:
        self._reading = reading
        self._tasks: dict[asyncio.Task[None], None] = {}

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def begin(self, record: ShareRecord, reason: str, on_end: Callable[[Exception | None], None]) -> None:
        """`on_end` gets what the application's function has raised."""
        task = asyncio.get_running_loop().create_task(self._write(record, reason, on_end))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _write(self, record: ShareRecord, reason: str, on_end: Callable[[Exception | None], None]) -> None:
        try:
            await self._reading.give_up(record, reason)
        except Exception as error:  # noqa: BLE001 - of the application
            on_end(error)
        else:
            on_end(None)

    async def settle(self, timeout_s: float) -> None:
        """Wait for all; what takes longer is cancelled, and its record is released with the session."""
        if not self._tasks:
            return
        writing = list(self._tasks)
        try:
            await asyncio.wait(writing, timeout=timeout_s)
        finally:
            for task in writing:
                task.cancel()
            await asyncio.gather(*writing, return_exceptions=True)
