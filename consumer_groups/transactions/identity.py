"""Producer ids and epochs: who is fenced, what comes next, and what to do when the epochs of an id are used up.

A producer epoch has 16 bits. Producers use epochs up to `LAST_EPOCH`. The one above is only for the abort of a transaction whose
producer is fenced, and for the markers of the last transaction before a new producer id, so it never names a second transaction.
"""

from typing import Final

from msgspec.structs import replace

from barnabas.kraft.metadata.records import TransactionRecord
from barnabas.log.vocabulary.errors import InvalidProducerIdMappingError, ProducerFencedError
from barnabas.log.vocabulary.transaction_messages import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TransactionState

LAST_EPOCH: Final = 32_766  # of a producer
FENCING_EPOCH: Final = 32_767
# Each was aborted by hand. An older one is only asked for by a process that was away while its id was given up so often.
MAX_GIVEN_UP: Final = 32


def is_exhausted(producer_epoch: int) -> bool:
    return producer_epoch >= LAST_EPOCH


def check_producer(known: TransactionRecord, producer_id: int, producer_epoch: int) -> None:
    """Raises InvalidProducerIdMappingError, ProducerFencedError."""
    if producer_id != known.producer_id:
        raise InvalidProducerIdMappingError(
            f"transactional id {known.transactional_id!r} has producer id {known.producer_id}, not {producer_id}: initialize "
            "the producer again"
        )
    if producer_epoch != known.producer_epoch or producer_epoch > LAST_EPOCH:
        raise fenced(known, producer_epoch)


def fenced(known: TransactionRecord, producer_epoch: int) -> ProducerFencedError:
    return ProducerFencedError(
        f"transactional id {known.transactional_id!r} is at epoch {known.producer_epoch}, not {producer_epoch}: another producer "
        "with this id has taken over, or the transaction timed out; close this producer"
    )


def check_expected(known: TransactionRecord, producer_id: int, producer_epoch: int) -> None:
    """A producer that continues after an error names the id that it had (KIP-360). Raises ProducerFencedError unless it is the
    current one, or the previous one with its epochs used up: then this may repeat the request that led to the new id."""
    if producer_id == NO_PRODUCER_ID or producer_id == known.producer_id:
        return
    if producer_id == known.previous_producer_id and is_exhausted(producer_epoch):
        return
    raise fenced(known, producer_epoch)


def initialized(
    known: TransactionRecord, *, expected_id: int, expected_epoch: int, fresh_producer_id: int
) -> TransactionRecord:
    """The same transactional id with the next epoch, or with a fresh producer id if no epoch is left; `known` itself if the
    request repeats one that has been decided already. Raises ProducerFencedError."""
    continues = expected_id != NO_PRODUCER_ID
    if continues and expected_epoch != known.producer_epoch:
        if NO_PRODUCER_EPOCH < expected_epoch == known.last_producer_epoch:
            return known
        raise fenced(known, expected_epoch)
    last_epoch = known.producer_epoch if continues else NO_PRODUCER_EPOCH
    if is_exhausted(known.producer_epoch):
        return replace(
            known,
            producer_id=fresh_producer_id,
            producer_epoch=0,
            last_producer_epoch=last_epoch,
            previous_producer_id=known.producer_id,
        )
    return replace(known, producer_epoch=known.producer_epoch + 1, last_producer_epoch=last_epoch)


def fenced_by_abort(known: TransactionRecord) -> TransactionRecord:
    """The epoch of an abort that the producer has not asked for: it fences the producer, and no producer ever gets it."""
    assert known.producer_epoch < FENCING_EPOCH
    return replace(
        known,
        producer_epoch=known.producer_epoch + 1,
        last_producer_epoch=NO_PRODUCER_EPOCH,
        next_producer_id=NO_PRODUCER_ID,
    )


def aborted_by_operator(known: TransactionRecord) -> TransactionRecord:
    """As `fenced_by_abort`. The commit of a prepared transaction may be decided already, and asked for when its id has gone on to
    others: it is remembered."""
    aborted = fenced_by_abort(known)
    if TransactionState(known.state) is not TransactionState.PREPARED:
        return aborted
    return replace(aborted, given_up=(*known.given_up, (known.producer_id, known.producer_epoch))[-MAX_GIVEN_UP:])


def timed_out(known: TransactionRecord) -> TransactionRecord:
    """The epoch of an abort after the timeout. It fences the records that are still on their way. A producer of the second
    version may go on: if it asks for an abort, that is a repetition of this one, and its answer has the next epoch."""
    if known.uses_v2 and not is_exhausted(known.producer_epoch):
        return ended_by_second_version(known, NO_PRODUCER_ID)
    return fenced_by_abort(known)


def ended_by_second_version(known: TransactionRecord, fresh_producer_id: int) -> TransactionRecord:
    """Every end raises the epoch (KIP-890), so that late records of the transaction are fenced by its marker."""
    assert known.producer_epoch < FENCING_EPOCH
    return replace(
        known,
        producer_epoch=known.producer_epoch + 1,
        last_producer_epoch=known.producer_epoch,
        next_producer_id=fresh_producer_id if is_exhausted(known.producer_epoch) else NO_PRODUCER_ID,
    )


def completed(known: TransactionRecord) -> TransactionRecord:
    """What the producer continues with when the markers are written."""
    if known.next_producer_id == NO_PRODUCER_ID:
        return known
    return replace(
        known,
        producer_id=known.next_producer_id,
        producer_epoch=0,
        previous_producer_id=known.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )
