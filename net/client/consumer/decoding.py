"""`Decoding`: takes records of a partition and decodes them, for a consumer with deserializers.

While a schema is loaded or a handler works, the records are back in their partition: a cancelled call, an error, a seek or a
revocation meanwhile finds them there, and none is skipped.
"""

import asyncio
import inspect
import logging
from typing import cast

from ..connection.errors import BarnabasError, DeserializationError
from ..connection.records import ConsumerRecord
from ..positions.partition_state import PartitionState
from ..serde.bad_records import Handler, Policy, policy_of
from ..serde.reading import Decoders
from ..serde.serdes import MAX_LOADS, AnyDeserializer, SchemaNotLoaded

logger = logging.getLogger("barnabas.consumer")


class DecodingWaits(Exception):
    """The next record of a partition needs something that has to be awaited: `Decoding.is_settled`."""


class Decoding:
    def __init__(self, decoders: Decoders, on_bad_record: Policy | Handler) -> None:
        self._decoders = decoders
        self._on_bad_record = on_bad_record
        self._loads = 0  # of schemas, for one record

    def take(self, state: PartitionState, max_records: int) -> list[ConsumerRecord]:
        """As `PartitionState.take`, decoded (`DecodedRecord`). What cannot be decoded yet stays in the partition; if it is first,
        raises DecodingWaits, or with the policy "stop" DeserializationError."""
        raw = state.take(max_records)
        decoded: list[ConsumerRecord] = []
        for index, record in enumerate(raw):
            try:
                decoded.append(cast(ConsumerRecord, self._decoders.record(record)))
                self._loads = 0
                continue
            except DeserializationError as error:
                if self._on_bad_record is Policy.SKIP:
                    _log_skipped(error)
                    continue
                problem: Exception = error if self._on_bad_record is Policy.STOP else DecodingWaits()
            except SchemaNotLoaded:
                problem = DecodingWaits()
            except BarnabasError as error:
                problem = error
            state.put_back(raw[index:])
            if decoded:
                return decoded  # The problem is met again, as the first record of the next call.
            raise problem
        return decoded

    async def is_settled(self, state: PartitionState, *, timeout_ms: float) -> bool:
        """Load the schema, or call the handler, that the next record of a partition waits for. False at the timeout, which is for
        the load only, and does not end it.

        Raises SchemaRegistryError, and what the handler raises: the record then comes next again.
        """
        record = _first(state)
        if record is None:
            return True
        try:
            self._decoders.record(record)
        except SchemaNotLoaded as missing:
            self._loads += 1
            if self._loads > MAX_LOADS:
                raise BarnabasError(f"a record of {state.partition} needs more than {MAX_LOADS} schemas") from missing
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await missing.load()
            except TimeoutError:
                logger.info("schema still loading partition=%s offset=%d", state.partition, record.offset)
                return False
            return True
        except DeserializationError as error:
            await self._handle(state, record, error)
        self._loads = 0
        return True

    async def _handle(self, state: PartitionState, record: ConsumerRecord, error: DeserializationError) -> None:
        assert not isinstance(self._on_bad_record, Policy)
        version = state.version
        outcome = self._on_bad_record(record, error)
        if inspect.isawaitable(outcome):
            await outcome
        if state.version != version:
            return  # The application went elsewhere meanwhile.
        taken = state.take(1)
        assert taken[0].offset == record.offset, (taken[0].offset, record.offset)


def _log_skipped(error: DeserializationError) -> None:
    place = (error.partition, error.offset, error.part, error.reason[:200])
    logger.warning("record skipped partition=%s offset=%d part=%s reason=%s", *place)


def decoding_of(
    key: AnyDeserializer | None, value: AnyDeserializer | None, on_bad_record: str | Handler
) -> Decoding | None:
    """None: the application gets bytes. Raises InvalidConfigError."""
    policy = policy_of(on_bad_record)
    decoders = Decoders.of(key, value)
    return None if decoders is None else Decoding(decoders, policy)


def _first(state: PartitionState) -> ConsumerRecord | None:
    """The next record, which stays in the partition."""
    taken = state.take(1)
    state.put_back(taken)
    return taken[0] if taken else None
