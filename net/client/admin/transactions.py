"""`Admin.transactions`: what operators ask about transactions, and how they end one.

The command (`barnabas transaction`), the HTTP API and the health of the cluster show the results of these methods.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from barnabas.log.vocabulary.errors import TransactionalIdAuthorizationError, TransactionalIdNotFoundError
from barnabas.log.vocabulary.topic_partition import CONSUMER_OFFSETS_PARTITIONS, TopicPartition
from barnabas.log.vocabulary.transaction_messages import UNDECIDED_STATES, TransactionTopic
from barnabas.net.wire.protocol.requests import READ_COMMITTED
from barnabas.net.wire.protocol.transaction_operations import (
    ANY_EPOCH,
    AbortHangingRequest,
    AbortTransactionRequest,
    DescribeTransactionRequest,
    DescribeTransactionResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    OpenTransaction,
    OpenTransactionsRequest,
    OpenTransactionsResponse,
)

from ..connection.client import Client
from ..connection.errors import BarnabasError, CoordinatorNotAvailableError
from ..positions.offset_lookup import LATEST, list_offsets
from ..transactions.prepared import PreparedTransaction, end_prepared
from .asking import Ask

# In a partition. Brokers verify a transaction before its first record, and end it when its time is over: younger ones are normal.
HANGING_AFTER_MS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPartition:
    """A partition of an open transaction. Readers of committed records are `lag` offsets behind the others."""

    partition: TopicPartition
    last_stable_offset: int
    high_watermark: int

    @property
    def lag(self) -> int:
        return max(0, self.high_watermark - self.last_stable_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """What the coordinator says of a transactional id, and what the leaders say of the partitions of its open transaction."""

    said: DescribeTransactionResponse
    partitions: tuple[TransactionPartition, ...]

    @property
    def summary(self) -> ListedTransaction:
        return self.said.summary


class TransactionAdmin:
    def __init__(self, client: Client, ask: Ask, timeout_ms: int) -> None:
        self._client = client
        self._ask = ask
        self._timeout_ms = timeout_ms

    async def list(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = (), longer_than_ms: int = -1
    ) -> ListTransactionsResponse:
        """The transactional ids of all coordinators, sorted. Raises CoordinatorNotAvailableError unless all of them answer."""
        request = ListTransactionsRequest(
            states=tuple(states), producer_ids=tuple(producer_ids), min_duration_ms=longer_than_ms
        )

        async def attempt() -> ListTransactionsResponse:
            answers: Sequence[ListTransactionsResponse] = await self._all_brokers(request)
            missing = set(range(CONSUMER_OFFSETS_PARTITIONS)).difference(*(answer.slots for answer in answers))
            if missing:
                raise CoordinatorNotAvailableError(
                    f"{len(missing)} of {CONSUMER_OFFSETS_PARTITIONS} coordinators of transactions do not answer at the moment"
                )
            return _listed(answers)

        return await self._client.retrying(attempt, timeout_ms=self._timeout_ms, before_retry=self._client.refresh)

    async def of_prefix(self, prefix: str, *, states: Iterable[str] = ()) -> Sequence[ListedTransaction]:
        """Of transactional ids that begin with it, at the coordinators that answer."""
        request = ListTransactionsRequest(states=tuple(states), id_prefix=prefix)
        found = _listed(await self._those_that_answer(request)).transactions
        return [item for item in found if item.transactional_id.startswith(prefix)]

    async def describe(self, transactional_id: str) -> TransactionDescription:
        """Raises TransactionalIdNotFoundError."""
        found: DescribeTransactionResponse = await self._ask.coordinator(
            transactional_id, DescribeTransactionRequest(transactional_id=transactional_id)
        )
        return TransactionDescription(said=found, partitions=await self._partitions(found.topics))

    async def _partitions(self, topics: Iterable[TransactionTopic]) -> tuple[TransactionPartition, ...]:
        """Those of deleted topics are left out: they need no end."""
        await self._client.refresh()
        times_ms = {
            TopicPartition(item.topic, number): LATEST
            for item in topics
            if self._client.metadata.topic_id(item.topic) in ("", item.topic_id)
            for number in item.partitions
        }
        if not times_ms:
            return ()
        ends = await list_offsets(self._client, times_ms, timeout_ms=self._timeout_ms)
        stable = await list_offsets(self._client, times_ms, timeout_ms=self._timeout_ms, isolation_level=READ_COMMITTED)
        return tuple(
            TransactionPartition(partition=place, last_stable_offset=stable[place].offset, high_watermark=end.offset)
            for place, end in sorted(ends.items())
            if place in stable
        )

    async def abort(self, transactional_id: str) -> None:
        """Abort its open transaction, and fence its producer. Returns when the abort is decided.

        Raises TransactionalIdNotFoundError, InvalidTxnStateError (no transaction is open).
        """
        await self._ask.coordinator(transactional_id, AbortTransactionRequest(transactional_id=transactional_id))

    async def end_prepared(self, prepared: PreparedTransaction, *, is_commit: bool, is_last: bool = False) -> None:
        """Commit or abort what `transaction.prepare` gave; return when that is decided, also if it was before: make your decision
        durable first, and repeat this until it returns. `is_last`: the transactional id is forgotten.

        Raises TransactionAbortedError for a commit if an operator has aborted it.
        """
        await end_prepared(self._client, prepared, is_commit=is_commit, is_last=is_last, timeout_ms=self._timeout_ms)

    async def hanging(self, *, older_than_ms: int = HANGING_AFTER_MS) -> Sequence[OpenTransaction]:
        """Transactions that are open in partitions, and that no coordinator knows there: nothing will end them.

        Raises TransactionalIdAuthorizationError if it cannot be told, because the user does not see all transactional ids.
        """
        opened = await self._open(older_than_ms)
        if not opened:
            return []
        producer_ids = sorted({item.producer_id for item in opened})
        known = await self.list(states=UNDECIDED_STATES, producer_ids=producer_ids)
        if known.is_filtered:
            raise TransactionalIdAuthorizationError(
                "transactions are open that you may not describe, so which of them hang is not known: ask an administrator for"
                " the permission to DESCRIBE all transactional ids"
            )
        places = [await self._places_of(item) for item in known.transactions]
        strays = [item for item in opened if not any(_key(item)[:3] in some for some in places)]
        if not strays:
            return []
        # A transaction that ended between the two questions does not hang: it is not open any more.
        still = {_key(item) for item in await self._open(older_than_ms)}
        return [item for item in strays if _key(item) in still]

    async def abort_hanging(
        self, topic: str, partition: int, *, producer_id: int, producer_epoch: int = ANY_EPOCH
    ) -> None:
        """Abort a transaction that hangs in a partition.

        Raises InvalidTxnStateError if a coordinator knows it, or if the producer has no transaction open there."""
        request = AbortHangingRequest(
            topic=topic, partition=partition, producer_id=producer_id, producer_epoch=producer_epoch
        )
        await self._client.wait_for_topic(topic, timeout_ms=self._timeout_ms)

        async def attempt() -> Any:
            return await self._client.call_leader(TopicPartition(topic, partition), request)

        await self._client.retrying(attempt, timeout_ms=self._timeout_ms, before_retry=self._client.refresh)

    async def overdue(self, *, grace_ms: int) -> ListTransactionsResponse:
        """Undecided transactions that have outlived their timeout by `grace_ms`, of the coordinators that answer."""
        answers = await self._those_that_answer(
            ListTransactionsRequest(states=UNDECIDED_STATES, min_duration_ms=grace_ms)
        )
        found = _listed(answers)
        late = tuple(item for item in found.transactions if item.duration_ms > item.timeout_ms + grace_ms)
        return replace(found, transactions=late)

    async def _open(self, older_than_ms: int) -> Sequence[OpenTransaction]:
        answers: Sequence[OpenTransactionsResponse] = await self._those_that_answer(
            OpenTransactionsRequest(older_than_ms=older_than_ms)
        )
        return [item for answer in answers for item in answer.transactions]

    async def _places_of(self, known: ListedTransaction) -> frozenset[tuple[int, str, int]]:
        """(producer id, topic id, partition)"""
        try:
            found: DescribeTransactionResponse = await self._ask.coordinator(
                known.transactional_id, DescribeTransactionRequest(transactional_id=known.transactional_id)
            )
        except TransactionalIdNotFoundError:
            return frozenset()
        return frozenset((known.producer_id, item.topic_id, n) for item in found.topics for n in item.partitions)

    async def _all_brokers(self, request: Any) -> Sequence[Any]:
        await self._client.refresh()
        return await asyncio.gather(*(self._client.call(node_id, request) for node_id in self._client.metadata.brokers))

    async def _those_that_answer(self, request: Any) -> Sequence[Any]:
        await self._client.refresh()
        answers = await asyncio.gather(
            *(self._client.call(node_id, request) for node_id in self._client.metadata.brokers), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, BarnabasError | OSError):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]


def _listed(answers: Sequence[ListTransactionsResponse]) -> ListTransactionsResponse:
    """One answer of all coordinators."""
    found = {item.transactional_id: item for answer in answers for item in answer.transactions}
    return ListTransactionsResponse(
        transactions=tuple(found[name] for name in sorted(found)),
        slots=tuple(sorted({slot for answer in answers for slot in answer.slots})),
        left_out=sum(answer.left_out for answer in answers),
        is_filtered=any(answer.is_filtered for answer in answers),
    )


def _key(item: OpenTransaction) -> tuple[int, str, int, int]:
    return item.producer_id, item.topic_id, item.partition, item.first_offset
