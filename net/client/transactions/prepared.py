"""`PreparedTransaction`: a transaction that is whole and waits for a decision that is made elsewhere (after KIP-939).

    prepared = await transaction.prepare("batch 17")                 # in a worker
    await admin.transactions.end_prepared(prepared, is_commit=True)  # in the process that decides; its decision is durable

The coordinator keeps a prepared transaction without a timeout, so that a decision may be carried out however late. Until then,
readers of committed records wait. To end it may be repeated, by any process that knows it.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from barnabas.log.vocabulary.errors import TransactionAbortableError, TransactionalIdNotFoundError
from barnabas.log.vocabulary.transaction_messages import EndTransactionRequest, ProducerIdentity, TransactionState
from barnabas.net.wire.protocol.transaction_operations import DescribeTransactionRequest, DescribeTransactionResponse

from ..connection.client import Client
from ..connection.errors import (
    InvalidProducerIdMappingError,
    ProducerFencedError,
    RetriableError,
    TransactionAbortedError,
)

TOLD_CHARACTERS: Final = 100  # of a text that cannot be read
_ABORTED = (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTransaction:
    """What the process that decides must know. `str(prepared)` is a text to store with the decision; `parse` reads it."""

    transactional_id: str
    producer: ProducerIdentity

    def __str__(self) -> str:
        return f"{self.producer.producer_id}:{self.producer.producer_epoch}:{self.transactional_id}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """`text`: what `str` gives. Raises ValueError."""
        producer_id, producer_epoch, transactional_id = [*text.split(":", 2), "", ""][:3]
        if not (producer_id.isdecimal() and producer_epoch.isdecimal() and transactional_id):
            raise ValueError(
                f"{text[:TOLD_CHARACTERS]!r} is no prepared transaction: use what str() of one gave, such as '17:0:orders'"
            )
        identity = ProducerIdentity(producer_id=int(producer_id), producer_epoch=int(producer_epoch))
        return cls(transactional_id=transactional_id, producer=identity)


async def end_prepared(
    client: Client,
    prepared: PreparedTransaction,
    *,
    is_commit: bool,
    timeout_ms: int,
    is_last: bool = False,
    completion_ms: int = 0,
) -> None:
    """Commit or abort it; return when that is decided, also if it was before. `is_last`: the transactional id is forgotten.
    `completion_ms`: wait for at most this time until readers see it, which takes longer where a partition has no leader.

    If the id has gone on to another transaction, or is forgotten, this one has ended: the caller knows how, because it is the one
    that decides. Raises TransactionAbortedError for a commit if an operator has aborted it, until the coordinator forgets an id
    that is not used any more (`transactional.id.expiration.ms`).
    """
    name, producer = prepared.transactional_id, prepared.producer
    request = EndTransactionRequest(
        transactional_id=name,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        is_commit=is_commit,
        uses_v2=True,
        is_last=is_last,
    )
    try:
        await client.coordinators.call(name, request, timeout_ms=timeout_ms)
        if completion_ms:
            with suppress(RetriableError):  # A repetition is answered when the markers are written.
                await client.coordinators.call(name, request, timeout_ms=completion_ms)
    except InvalidProducerIdMappingError:
        return
    except TransactionAbortableError as error:
        raise _aborted(prepared) from error
    except ProducerFencedError as error:
        if is_commit and await _was_aborted(client, prepared, timeout_ms=timeout_ms):
            raise _aborted(prepared) from error


async def _was_aborted(client: Client, prepared: PreparedTransaction, *, timeout_ms: int) -> bool:
    """Whether nothing has come after it but its abort."""
    name = prepared.transactional_id
    try:
        found: DescribeTransactionResponse = await client.coordinators.call(
            name, DescribeTransactionRequest(transactional_id=name, is_confirmed=True), timeout_ms=timeout_ms
        )
    except TransactionalIdNotFoundError:
        return False
    now, before = found.summary, prepared.producer
    is_next = (now.producer_id, now.producer_epoch) == (before.producer_id, before.producer_epoch + 1)
    return is_next and now.state in _ABORTED


def _aborted(prepared: PreparedTransaction) -> TransactionAbortedError:
    return TransactionAbortedError(
        f"the prepared transaction of {prepared.transactional_id!r} was to be committed, but it was aborted, by an operator: its "
        "records are lost"
    )
