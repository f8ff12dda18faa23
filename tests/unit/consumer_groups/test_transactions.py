"""The coordinator of transactions: decisions about one transactional id, in both versions of the protocol."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from barnabas.consumer_groups.model.messages import CoordinatorResult
from barnabas.consumer_groups.transactions.coordinator import TransactionCoordinator
from barnabas.consumer_groups.transactions.ends import EARLY_COMMIT_MS
from barnabas.consumer_groups.transactions.identity import FENCING_EPOCH, LAST_EPOCH
from barnabas.consumer_groups.transactions.settings import TransactionSettings
from barnabas.kraft.group_state.group_slots import SlotState, slot_of
from barnabas.kraft.metadata.records import TransactionRecord
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    ConcurrentTransactionsError,
    ErrorCode,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTopicError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    NotCoordinatorError,
    PolicyViolationError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionalIdNotFoundError,
)
from barnabas.log.vocabulary.group_messages import PartitionOutcome
from barnabas.log.vocabulary.transaction_messages import (
    NOT_STARTED,
    AddToTransactionRequest,
    EndTransactionRequest,
    InitTransactionsRequest,
    ProducerIdentity,
    TransactionState,
    TransactionTopic,
)

TX = "tx"
T0 = TransactionTopic(topic="t", topic_id="id-t", partitions=(0,))
T1 = TransactionTopic(topic="t", topic_id="id-t", partitions=(1,))
DAY_MS = 86_400_000


@dataclass
class World:
    """One coordinator and the producers that ask it; everything that it decides is committed at once."""

    settings: TransactionSettings = field(default_factory=TransactionSettings)
    state: SlotState = field(default_factory=lambda: SlotState(slot=slot_of(TX), coordinator_epoch=3))
    now_ms: int = 1_000
    last_producer_id: int = 99

    def __post_init__(self) -> None:
        self.machine = TransactionCoordinator(state=self.state, settings=self.settings, now_ms=self.now_ms)

    def fresh(self) -> int:
        self.last_producer_id += 1
        return self.last_producer_id

    def fail_over(self) -> None:
        """A new coordinator knows only the records."""
        rebuilt = SlotState(slot=self.state.slot)
        rebuilt.moved(self.state.coordinator_epoch)
        for record in self.state.records():
            rebuilt.replay(record)
        assert rebuilt == self.state
        rebuilt.moved(rebuilt.coordinator_epoch + 1)
        self.state = rebuilt
        self.__post_init__()

    @property
    def known(self) -> TransactionRecord:
        return self.state.transactions[TX]

    @property
    def phase(self) -> TransactionState:
        return TransactionState(self.known.state)

    def init(self, old: ProducerIdentity | None = None, *, timeout_ms: int = 60_000) -> ProducerIdentity:
        request = InitTransactionsRequest(transactional_id=TX, timeout_ms=timeout_ms)
        if old is not None:
            request = replace(request, producer_id=old.producer_id, producer_epoch=old.producer_epoch)
        answer = self.machine.init(request, fresh_producer_id=self.fresh(), now_ms=self.now_ms).response
        if isinstance(answer, BarnabasError):
            raise answer
        return answer

    def add(
        self,
        who: ProducerIdentity,
        *topics: TransactionTopic,
        groups: tuple[str, ...] = (),
        is_check: bool = False,
        uses_v2: bool = False,
    ) -> CoordinatorResult[tuple[PartitionOutcome, ...]]:
        request = AddToTransactionRequest(
            transactional_id=TX,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            topics=topics,
            groups=groups,
            is_check=is_check,
            uses_v2=uses_v2,
        )
        return self.machine.add(request, now_ms=self.now_ms)

    def end(self, who: ProducerIdentity, *, commit: bool = True, v2: bool = False) -> ProducerIdentity:
        request = EndTransactionRequest(
            transactional_id=TX,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            is_commit=commit,
            uses_v2=v2,
        )
        return self.machine.end(request, fresh_producer_id=self.fresh(), now_ms=self.now_ms).response

    def complete(self) -> None:
        (marker,) = self.machine.undecided_markers()
        self.machine.markers_done(marker, now_ms=self.now_ms)

    def tick(self) -> None:
        self.machine.tick(self.now_ms)

    def to_epoch(self, epoch: int) -> ProducerIdentity:
        """Let the transactional id be at this epoch, as after many transactions."""
        who = self.init()
        self.state.transactions[TX] = replace(self.known, producer_epoch=epoch)
        return replace(who, producer_epoch=epoch)


def test_a_transaction_of_the_first_version_keeps_its_epoch() -> None:
    world = World()
    who = world.init()
    assert who.producer_epoch == 0 and world.phase is TransactionState.EMPTY
    world.add(who, T0)
    world.add(who, T1, groups=("g",))
    assert world.phase is TransactionState.ONGOING
    assert world.known.partitions == (replace(T0, partitions=(0, 1)),) and world.known.offset_groups == ("g",)
    assert world.end(who) == who
    assert world.phase is TransactionState.PREPARE_COMMIT
    with pytest.raises(ConcurrentTransactionsError):
        world.end(who)
    with pytest.raises(InvalidTxnStateError):
        world.end(who, commit=False)
    with pytest.raises(ConcurrentTransactionsError):
        world.add(who, T0)
    world.complete()
    assert world.phase is TransactionState.COMPLETE_COMMIT
    assert world.known.partitions == () and world.known.offset_groups == ()
    assert world.end(who) == who, "a repetition"
    with pytest.raises(InvalidTxnStateError):
        world.end(who, commit=False)
    world.add(who, T0)
    assert world.phase is TransactionState.ONGOING


def test_every_end_of_the_second_version_raises_the_epoch_and_may_be_repeated() -> None:
    world = World()
    first = world.init()
    world.add(first, T0, uses_v2=True)
    second = world.end(first, v2=True)
    assert second == replace(first, producer_epoch=1)
    assert world.known.producer_epoch == 1, "the markers have the next epoch"
    with pytest.raises(ConcurrentTransactionsError):
        world.end(first, v2=True)
    with pytest.raises(ConcurrentTransactionsError):
        world.add(second, T0, uses_v2=True)
    world.fail_over()
    world.complete()
    assert world.end(first, v2=True) == second, "a repetition"
    with pytest.raises(InvalidTxnStateError):
        world.end(first, commit=False, v2=True)
    with pytest.raises(ProducerFencedError):
        world.add(first, T0, uses_v2=True)
    world.add(second, T0, uses_v2=True)
    assert world.end(second, commit=False, v2=True).producer_epoch == 2
    assert world.phase is TransactionState.PREPARE_ABORT


def test_an_abort_of_the_second_version_needs_no_records() -> None:
    world = World()
    who = world.init()
    after = world.end(who, commit=False, v2=True)
    assert after.producer_epoch == 1 and world.phase is TransactionState.COMPLETE_ABORT
    assert world.end(who, commit=False, v2=True) == after
    assert world.end(after, commit=False, v2=True).producer_epoch == 2
    fresh = World()
    with pytest.raises(InvalidTxnStateError):
        fresh.end(fresh.init(), commit=False)  # the first version knows that it has begun nothing


@pytest.mark.parametrize("before", [0, 1])
def test_a_commit_that_overtakes_its_records_may_come_again(before: int) -> None:
    """Kafka's Java client sends such commits; INVALID_TXN_STATE ends it."""
    world = World()
    who = world.init()
    for _ in range(before):
        world.add(who, T0, uses_v2=True)
        who = world.end(who, v2=True)
        world.complete()
    with pytest.raises(ConcurrentTransactionsError, match="before any record"):
        world.end(who, v2=True)
    world.add(who, T0, uses_v2=True)
    after = world.end(who, v2=True)
    assert after.producer_epoch == who.producer_epoch + 1 and world.phase is TransactionState.PREPARE_COMMIT


def test_a_commit_of_nothing_is_refused_in_the_end_and_each_epoch_has_its_own_time() -> None:
    world = World()
    who = world.init()
    for epoch in range(2):
        began_ms = world.now_ms
        for ms in (0, EARLY_COMMIT_MS - 1):
            world.now_ms = began_ms + ms
            with pytest.raises(ConcurrentTransactionsError):
                world.end(who, v2=True)
        world.now_ms = began_ms + EARLY_COMMIT_MS
        with pytest.raises(InvalidTxnStateError):
            world.end(who, v2=True)
        assert world.known.producer_epoch == epoch
        who = world.end(who, commit=False, v2=True)


def test_a_new_producer_fences_the_old_one_and_aborts_its_transaction() -> None:
    world = World()
    old = world.init()
    world.add(old, T0)
    with pytest.raises(ConcurrentTransactionsError):
        world.init()
    assert world.phase is TransactionState.PREPARE_ABORT and world.known.producer_epoch == 1
    for request in (world.add, world.end):
        with pytest.raises(ProducerFencedError):
            request(old)  # type: ignore[operator]
    with pytest.raises(ConcurrentTransactionsError):
        world.init()
    world.complete()
    assert world.init() == replace(old, producer_epoch=2)
    with pytest.raises(ProducerFencedError):
        world.add(old, T0)


def test_a_producer_that_continues_gets_the_next_epoch_once() -> None:
    """KIP-360."""
    world = World()
    first = world.init()
    second = world.init(first)
    assert second == replace(first, producer_epoch=1)
    assert world.init(first) == second, "the answer was lost, and the request is repeated"
    third = world.init()
    assert third.producer_epoch == 2
    for old in (first, second, replace(first, producer_epoch=-1), replace(first, producer_id=1234)):
        with pytest.raises(ProducerFencedError):
            world.init(old)
    assert World().init(ProducerIdentity(producer_id=77, producer_epoch=5)).producer_epoch == 0, "an unknown id"


def test_a_producer_that_was_fenced_by_a_timeout_cannot_continue() -> None:
    world = World()
    who = world.init()
    world.add(who, T0)
    world.now_ms += 60_000
    world.tick()
    assert world.phase is TransactionState.PREPARE_ABORT and world.known.producer_epoch == 1
    world.complete()
    with pytest.raises(ProducerFencedError):
        world.init(who)


def test_when_the_epochs_are_used_up_the_producer_gets_another_id() -> None:
    world = World()
    who = world.to_epoch(LAST_EPOCH)
    after = world.init(who)
    assert after.producer_id != who.producer_id and after.producer_epoch == 0
    assert world.init(who) == after, "a repetition"
    assert world.init().producer_epoch == 1


@pytest.mark.parametrize("commit", [True, False])
def test_the_last_epoch_of_the_second_version_ends_with_the_next_producer_id(commit: bool) -> None:
    world = World()
    who = world.to_epoch(LAST_EPOCH)
    world.add(who, T0, uses_v2=True)
    after = world.end(who, commit=commit, v2=True)
    assert after.producer_id != who.producer_id and after.producer_epoch == 0
    assert (world.known.producer_id, world.known.producer_epoch) == (who.producer_id, FENCING_EPOCH)
    with pytest.raises(ConcurrentTransactionsError):
        world.end(who, commit=commit, v2=True)
    with pytest.raises(ConcurrentTransactionsError):
        world.add(after, T0, uses_v2=True)
    world.fail_over()
    world.complete()
    assert (world.known.producer_id, world.known.producer_epoch) == (after.producer_id, 0)
    assert world.end(who, commit=commit, v2=True) == after, "a repetition gets the same answer"
    world.add(after, T0, uses_v2=True)


def test_the_fencing_epoch_is_never_given_to_a_producer() -> None:
    world = World()
    who = world.to_epoch(LAST_EPOCH)
    world.add(who, T0)
    with pytest.raises(ConcurrentTransactionsError):
        world.init()
    assert world.known.producer_epoch == FENCING_EPOCH
    world.complete()
    after = world.init()
    assert after.producer_id != who.producer_id and after.producer_epoch == 0


@pytest.mark.parametrize("v2", [True, False])
def test_a_request_in_the_fencing_epoch_is_refused(v2: bool) -> None:
    """The transaction that it began or ended could not be aborted: no epoch is left that fences its producer."""
    world = World()
    world.add(world.to_epoch(LAST_EPOCH), T0)
    world.now_ms += 60_000
    world.tick()
    world.complete()
    stranger = ProducerIdentity(producer_id=world.known.producer_id, producer_epoch=FENCING_EPOCH)
    assert world.known.producer_epoch == FENCING_EPOCH
    with pytest.raises(ProducerFencedError):
        world.add(stranger, T0, uses_v2=v2)
    with pytest.raises(ProducerFencedError):
        world.end(stranger, commit=False, v2=v2)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("v2", [True, False])
def test_the_end_of_a_transaction_without_partitions_is_complete_at_once(v2: bool, commit: bool) -> None:
    """No marker is due, so no report that they are written would complete it."""
    world = World()
    who = world.init()
    world.add(who)
    assert world.phase is TransactionState.ONGOING
    world.end(who, commit=commit, v2=v2)
    assert world.phase is (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)
    assert world.machine.undecided_markers() == ()


def test_a_check_names_what_is_not_part_of_the_transaction() -> None:
    world = World()
    who = world.init()
    world.add(who, T0, groups=("g",))
    both = replace(T0, partitions=(0, 1))
    outcomes = world.add(who, both, groups=("g",), is_check=True)
    assert [item.error for item in outcomes.response] == [ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE]
    assert not outcomes.records
    recreated = world.add(who, replace(T0, topic_id="another"), is_check=True)
    assert [item.error for item in recreated.response] == [ErrorCode.TRANSACTION_ABORTABLE]
    with pytest.raises(InvalidTxnStateError):
        world.add(who, groups=("h",), is_check=True)
    world.end(who)
    with pytest.raises(ConcurrentTransactionsError):
        world.add(who, T0, is_check=True)
    world.complete()
    assert [item.error for item in world.add(who, T0, is_check=True).response] == [ErrorCode.TRANSACTION_ABORTABLE]


def test_repeating_an_addition_writes_nothing() -> None:
    world = World()
    who = world.init()
    assert len(world.add(who, T0, groups=("g",)).records) == 1
    assert world.add(who, T0, groups=("g",)).records == ()


def test_an_open_transaction_is_aborted_after_its_timeout_and_a_decided_one_is_not() -> None:
    world = World()
    who = world.init(timeout_ms=500)
    world.add(who, T0)
    assert world.machine.next_deadline_ms() == world.now_ms + 500
    world.now_ms += 499
    world.tick()
    assert world.phase is TransactionState.ONGOING
    world.add(who, T1)
    world.now_ms += 1
    world.tick()
    assert world.phase is TransactionState.PREPARE_ABORT, "more partitions do not prolong it"
    world.now_ms += 10 * DAY_MS
    world.tick()
    assert world.phase is TransactionState.PREPARE_ABORT
    world.complete()
    assert world.phase is TransactionState.COMPLETE_ABORT


def test_a_successor_knows_the_timeouts_and_the_markers_that_are_due() -> None:
    world = World()
    who = world.init(timeout_ms=500)
    world.add(who, T0)
    world.fail_over()
    assert world.machine.next_deadline_ms() == world.known.started_ms + 500
    assert world.machine.undecided_markers() == ()
    world.end(who)
    world.fail_over()
    (marker,) = world.machine.undecided_markers()
    assert (marker.state, marker.partitions) == ("PrepareCommit", (T0,))


def test_the_clock_of_a_former_coordinator_that_was_ahead_prolongs_no_transaction() -> None:
    world = World(now_ms=1_000_000)
    who = world.init(timeout_ms=500)
    world.add(who, T0)
    world.now_ms -= 20_000
    world.fail_over()
    assert world.machine.next_deadline_ms() == world.now_ms + 500
    world.now_ms += 400
    world.add(who, T1)
    world.now_ms += 100
    world.tick()
    assert world.phase is TransactionState.PREPARE_ABORT


def test_a_report_about_another_transaction_is_ignored() -> None:
    world = World()
    who = world.init()
    world.add(who, T0, uses_v2=True)
    world.end(who, v2=True)
    (ended,) = world.machine.undecided_markers()
    for other in (
        replace(ended, producer_epoch=0),
        replace(ended, producer_id=55),
        replace(ended, started_ms=ended.started_ms + 1),
        replace(ended, transactional_id="other"),
    ):
        world.machine.markers_done(other, now_ms=5)
    assert world.phase is TransactionState.PREPARE_COMMIT


def test_transactions_of_the_same_millisecond_have_different_stamps_also_after_a_coordinator_whose_clock_was_ahead() -> (
    None
):
    world = World()
    who = world.init()
    stamps = []
    for _ in range(3):
        world.add(who, T0)
        stamps.append(world.machine.started_ms(TX))
        world.end(who)
        world.complete()
        assert world.machine.started_ms(TX) == NOT_STARTED
    assert len(set(stamps)) == 3 and stamps[0] == world.now_ms
    world.now_ms += 1_000
    world.add(who, T0)
    ahead = world.machine.started_ms(TX)
    world.now_ms = ahead - 1
    world.fail_over()
    world.end(who)
    world.complete()
    world.now_ms = ahead
    world.add(who, T0)
    assert world.machine.started_ms(TX) == ahead + 1


def test_an_unused_transactional_id_is_forgotten() -> None:
    world = World()
    who = world.init()
    world.now_ms += 7 * DAY_MS - 1
    world.tick()
    assert world.phase is TransactionState.EMPTY
    world.now_ms += 1
    world.tick()
    assert not world.state.transactions
    with pytest.raises(InvalidProducerIdMappingError):
        world.add(who, T0)
    assert world.machine.next_deadline_ms() is None


def test_the_operator_aborts_an_open_transaction_and_fences_its_producer() -> None:
    world = World()
    with pytest.raises(TransactionalIdNotFoundError):
        world.machine.abort(transactional_id=TX, now_ms=1)
    who = world.init()
    with pytest.raises(InvalidTxnStateError):
        world.machine.abort(transactional_id=TX, now_ms=1)
    world.add(who, T0)
    world.machine.abort(transactional_id=TX, now_ms=1)
    assert world.machine.describe(TX).response.state == "PrepareAbort"
    with pytest.raises(ConcurrentTransactionsError):
        world.machine.abort(transactional_id=TX, now_ms=1)
    with pytest.raises(ProducerFencedError):
        world.end(who)
    assert [item.transactional_id for item in world.machine.list().response] == [TX]


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_range_is_refused(timeout_ms: int) -> None:
    with pytest.raises(InvalidTransactionTimeoutError):
        World().init(timeout_ms=timeout_ms)


def test_limits_are_kept() -> None:
    world = World(settings=TransactionSettings(max_transactions_per_slot=1, max_partitions=2, max_groups=1))
    who = world.init()
    other = next(name for number in range(1000) if slot_of(name := f"tx-{number}") == world.state.slot)
    request = InitTransactionsRequest(transactional_id=other, timeout_ms=1)
    with pytest.raises(PolicyViolationError):
        world.machine.init(request, fresh_producer_id=1, now_ms=1)
    world.add(who, T0, T1, groups=("g",))
    with pytest.raises(PolicyViolationError):
        world.add(who, replace(T0, partitions=(2,)))
    with pytest.raises(PolicyViolationError):
        world.add(who, groups=("h",))
    assert world.known.partitions == (replace(T0, partitions=(0, 1)),)


@pytest.mark.parametrize(
    ("topic", "groups", "error"),
    [
        (replace(T0, topic="x" * 1_000_000), (), InvalidTopicError),
        (replace(T0, topic="../x"), (), InvalidTopicError),
        (replace(T0, topic_id="x" * 1_000_000), (), InvalidRequestError),
        (T0, ("g" * 1_001,), InvalidRequestError),
    ],
)
def test_names_that_would_make_long_records_are_refused(
    topic: TransactionTopic, groups: tuple[str, ...], error: type[BarnabasError]
) -> None:
    world = World()
    who = world.init()
    with pytest.raises(error):
        world.add(who, topic, groups=groups)
    assert world.known.partitions == () and world.known.offset_groups == ()


def test_ids_of_another_slot_and_impossible_ids_are_refused() -> None:
    world = World()
    elsewhere = next(name for number in range(1000) if slot_of(name := f"tx-{number}") != world.state.slot)
    long = next(name for number in range(10_000) if slot_of(name := "x" * 1_001 + str(number)) == world.state.slot)
    refusals: list[tuple[str, type[BarnabasError]]] = [(elsewhere, NotCoordinatorError), (long, InvalidRequestError)]
    for name, error in refusals:
        for ask in requests_about(world, name):
            with pytest.raises(error):
                ask()


def requests_about(world: World, name: str) -> list[Callable[[], object]]:
    machine = world.machine
    init = InitTransactionsRequest(transactional_id=name, timeout_ms=1)
    add = AddToTransactionRequest(transactional_id=name, producer_id=1, producer_epoch=1)
    end = EndTransactionRequest(transactional_id=name, producer_id=1, producer_epoch=1, is_commit=True)
    return [
        lambda: machine.init(init, fresh_producer_id=1, now_ms=1),
        lambda: machine.add(add, now_ms=1),
        lambda: machine.end(end, fresh_producer_id=1, now_ms=1),
        lambda: machine.describe(name),
        lambda: machine.abort(transactional_id=name, now_ms=1),
    ]


@pytest.mark.parametrize("is_done", [True, False])
def test_after_a_timeout_a_producer_of_the_second_version_aborts_and_goes_on(is_done: bool) -> None:
    world = World()
    who = world.init()
    world.add(who, T0, uses_v2=True)
    world.now_ms += 60_000
    world.tick()
    assert world.phase is TransactionState.PREPARE_ABORT and world.known.producer_epoch == 1
    if is_done:
        world.complete()
    with pytest.raises(ProducerFencedError):
        world.add(who, T1, uses_v2=True)
    with pytest.raises(TransactionAbortableError, match="longer than its timeout of 60000 ms"):
        world.end(who, v2=True)
    if not is_done:
        with pytest.raises(ConcurrentTransactionsError):
            world.end(who, commit=False, v2=True)
        world.complete()
    after = world.end(who, commit=False, v2=True)
    assert after == replace(who, producer_epoch=1)
    world.add(after, T0, uses_v2=True)
    assert world.phase is TransactionState.ONGOING
    with pytest.raises(InvalidTxnStateError):
        world.end(who, v2=True)


def test_after_a_timeout_another_producer_fences_the_first_for_good() -> None:
    world = World()
    who = world.init()
    world.add(who, T0, uses_v2=True)
    world.now_ms += 60_000
    world.tick()
    world.complete()
    assert world.init().producer_epoch == 2
    for commit in (True, False):
        with pytest.raises(ProducerFencedError):
            world.end(who, commit=commit, v2=True)


def test_a_timeout_in_the_last_epoch_fences_the_producer() -> None:
    """There is no next epoch to tell, and a fresh producer id is not at hand."""
    world = World()
    who = world.to_epoch(LAST_EPOCH)
    world.add(who, T0, uses_v2=True)
    world.now_ms += 60_000
    world.tick()
    world.complete()
    with pytest.raises(ProducerFencedError):
        world.end(who, commit=False, v2=True)
