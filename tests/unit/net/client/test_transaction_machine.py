"""The client's transactions as a pure machine, also against a coordinator that loses and repeats everything."""

from collections.abc import Iterator
from random import Random

import pytest

from barnabas.consumer_groups.model.messages import CoordinatorResult
from barnabas.consumer_groups.transactions.coordinator import TransactionCoordinator
from barnabas.consumer_groups.transactions.settings import TransactionSettings
from barnabas.kraft.group_state.group_slots import SlotState, slot_of
from barnabas.log.vocabulary.transaction_messages import (
    AddToTransactionRequest,
    EndTransactionRequest,
    InitTransactionsRequest,
    ProducerIdentity,
)
from barnabas.net.client.connection.errors import (
    BarnabasError,
    CoordinatorNotAvailableError,
    InvalidProducerIdMappingError,
    NetworkError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
    TransactionStateError,
    TransactionTimedOutError,
    error_for,
)
from barnabas.net.client.transactions.machine import TRANSITIONS, Outcome, Phase, TransactionMachine

FIRST = ProducerIdentity(producer_id=7, producer_epoch=0)
NEXT = ProducerIdentity(producer_id=7, producer_epoch=1)
LOST = NetworkError("lost")
ABORTABLE = error_for(120, "it was open for too long")


def machine(*, has_parts: bool = True) -> TransactionMachine:
    """With an open transaction."""
    made = TransactionMachine("tx", timeout_ms=60_000)
    assert made.init_request().transactional_id == "tx"
    made.initialized(FIRST)
    made.begin().has_parts = has_parts
    return made


def asked(found: EndTransactionRequest | None) -> tuple[bool, int]:
    assert found is not None and found.uses_v2
    return found.is_commit, found.producer_epoch


def outcome(made: TransactionMachine) -> tuple[Phase, Outcome, type | None]:
    assert made.current is not None
    error = made.current.error
    return made.phase, made.current.outcome, None if error is None else type(error)


def test_a_commit_and_an_abort_give_the_next_epoch() -> None:
    made = machine()
    assert asked(made.end(is_commit=True)) == (True, 0)
    made.answered(NEXT)
    assert outcome(made) == (Phase.READY, Outcome.COMMITTED, None) and made.identity == NEXT
    made.begin().has_parts = True
    assert asked(made.end(is_commit=False)) == (False, 1)
    made.answered(ProducerIdentity(producer_id=8, producer_epoch=0))
    assert outcome(made) == (Phase.READY, Outcome.ABORTED, None) and made.identity.producer_id == 8


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction_without_parts_ends_by_itself(is_commit: bool) -> None:
    made = machine(has_parts=False)
    assert made.end(is_commit=is_commit) is None
    assert outcome(made) == (Phase.READY, Outcome.COMMITTED if is_commit else Outcome.ABORTED, None)
    assert made.identity == FIRST


def test_one_transaction_at_a_time() -> None:
    made = machine()
    with pytest.raises(TransactionStateError, match="is open: a producer has one at a time"):
        made.begin()
    made.end(is_commit=True)
    with pytest.raises(TransactionStateError, match="is committing"):
        made.begin()
    with pytest.raises(TransactionStateError, match="not started"):
        TransactionMachine("tx", timeout_ms=1).begin()


def test_a_failed_part_makes_the_commit_an_abort() -> None:
    made = machine()
    made.failed(RecordTooLargeError("too large"))
    made.failed(LOST)
    assert asked(made.end(is_commit=True)) == (False, 0)
    made.failed(LOST)
    made.answered(NEXT)
    assert outcome(made) == (Phase.READY, Outcome.ABORTED, TransactionAbortedError)
    assert made.current is not None and made.current.error is not None
    assert isinstance(made.current.error.__cause__, RecordTooLargeError), "the first one"
    assert made.begin().failure is None


@pytest.mark.parametrize("code", [47, 90])
def test_an_epoch_that_is_over_is_a_timeout_if_the_producer_may_go_on(code: int) -> None:
    made = machine()
    made.failed(error_for(code, "epoch 0 is over"))
    assert asked(made.end(is_commit=True)) == (False, 0)
    made.answered(NEXT)
    assert outcome(made) == (Phase.READY, Outcome.ABORTED, TransactionTimedOutError)


def test_a_commit_after_the_timeout_asks_for_the_next_epoch() -> None:
    made = machine()
    commit = made.end(is_commit=True)
    assert made.refused(LOST) is commit, "the same again"
    assert asked(made.refused(ABORTABLE)) == (False, 0)
    assert outcome(made) == (Phase.ABORTING, Outcome.ABORTED, TransactionTimedOutError)
    made.gave_up(LOST)
    assert outcome(made) == (Phase.IN_DOUBT, Outcome.ABORTED, TransactionTimedOutError), "this much is known"
    assert asked(made.ask_again()) == (False, 0)
    made.answered(NEXT)
    assert outcome(made) == (Phase.READY, Outcome.ABORTED, TransactionTimedOutError)


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_in_doubt_is_found_out_before_the_next_transaction(committed: bool) -> None:
    made = machine()
    made.end(is_commit=True)
    made.refused(CoordinatorNotAvailableError("away"))
    made.gave_up(LOST)
    assert outcome(made) == (Phase.IN_DOUBT, Outcome.UNKNOWN, TransactionOutcomeUnknownError)
    assert asked(made.ask_again()) == (True, 0)
    if committed:
        made.answered(NEXT)
        assert outcome(made) == (Phase.READY, Outcome.COMMITTED, None)
    else:
        assert asked(made.refused(ABORTABLE)) == (False, 0)
        made.answered(NEXT)
        assert outcome(made) == (Phase.READY, Outcome.ABORTED, TransactionTimedOutError)


def test_an_abort_in_doubt_is_no_doubt_about_the_records() -> None:
    made = machine()
    made.end(is_commit=False)
    made.gave_up(LOST)
    assert outcome(made) == (Phase.IN_DOUBT, Outcome.ABORTING, None)
    assert asked(made.ask_again()) == (False, 0)
    made.answered(NEXT)
    assert outcome(made) == (Phase.READY, Outcome.ABORTED, None)


@pytest.mark.parametrize("error", [ProducerFencedError("epoch 1"), InvalidProducerIdMappingError("id 8")])
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_fenced_producer_stays_so(error: BarnabasError, is_commit: bool) -> None:
    made = machine()
    made.end(is_commit=is_commit)
    assert made.refused(error) is None
    assert outcome(made) == (Phase.FENCED, Outcome.ABORTED, ProducerFencedError)
    with pytest.raises(ProducerFencedError, match=f"{error.message}.*create another producer"):
        made.begin()


def test_a_producer_that_is_fenced_while_its_commit_is_in_doubt_does_not_say_that_it_is_aborted() -> None:
    made = machine()
    made.end(is_commit=True)
    made.refused(LOST)
    assert made.refused(ProducerFencedError("epoch 2")) is None
    assert outcome(made) == (Phase.FENCED, Outcome.UNKNOWN, TransactionOutcomeUnknownError)


# --- hostile sequences ------------------------------------------------------------------------------------------------


class Side:
    """The real coordinator, whose markers are done when `complete` is called."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.ids = iter(range(100, 1_000_000))
        self.state = SlotState(slot=slot_of("tx"))
        self.state.moved(1)
        self.machine = TransactionCoordinator(state=self.state, settings=TransactionSettings(), now_ms=self.now_ms)
        self.decided: dict[tuple[int, int], bool] = {}  # (producer id, epoch of the records) -> is it a commit?

    def took(self, result: CoordinatorResult[ProducerIdentity | BarnabasError]) -> ProducerIdentity:
        for record in self.machine.undecided_markers():
            epoch = record.producer_epoch - (1 if record.uses_v2 else 0)
            known = self.decided.setdefault((record.producer_id, epoch), record.state == "PrepareCommit")
            assert known == (record.state == "PrepareCommit"), "a decision is final"
        if isinstance(result.response, BarnabasError):
            raise result.response
        return result.response

    def init(self) -> ProducerIdentity:
        request = InitTransactionsRequest(transactional_id="tx", timeout_ms=1_000)
        return self.took(self.machine.init(request, fresh_producer_id=next(self.ids), now_ms=self.now_ms))

    def end(self, request: EndTransactionRequest) -> ProducerIdentity:
        result = self.machine.end(request, fresh_producer_id=next(self.ids), now_ms=self.now_ms)
        return self.took(result)  # type: ignore[arg-type]

    def add(self, who: ProducerIdentity) -> None:
        self.machine.add(
            AddToTransactionRequest(
                transactional_id="tx",
                producer_id=who.producer_id,
                producer_epoch=who.producer_epoch,
                groups=("g",),
                uses_v2=True,
            ),
            now_ms=self.now_ms,
        )

    def complete(self) -> None:
        for record in self.machine.undecided_markers():
            self.machine.markers_done(record, now_ms=self.now_ms)

    def tick(self) -> None:
        result = self.machine.tick(self.now_ms)
        self.took(CoordinatorResult(records=result.records, response=FIRST))


class Producer:
    """Drives a machine through a network that loses requests and answers."""

    def __init__(self, side: Side, rng: Random) -> None:
        self.side = side
        self.rng = rng
        self.machine = TransactionMachine("tx", timeout_ms=1_000)
        self.told: dict[tuple[int, int], Outcome] = {}

    def start(self) -> bool:
        for _ in range(20):
            try:
                self.machine.initialized(self.side.init())
                return True
            except BarnabasError:
                self.side.complete()
        return False

    def transaction(self) -> Iterator[None]:
        """Each step leaves room for others."""
        made, side, rng = self.machine, self.side, self.rng
        if made.phase is Phase.IN_DOUBT:
            yield from self.ask(made.ask_again(), patience=20)
            if made.phase is Phase.IN_DOUBT:
                return
        if made.phase is Phase.FENCED:
            return
        current = made.begin()
        who = made.identity
        name = (who.producer_id, who.producer_epoch)
        for _ in range(rng.randrange(3)):
            current.has_parts = True
            try:
                if rng.random() < 0.9:
                    side.add(who)
            except BarnabasError as error:
                if not error.retriable or rng.random() < 0.3:
                    made.failed(error)
                    break
            side.now_ms += rng.randrange(700)
            yield
        if current.failure is None and not side_knows(side, name) and current.has_parts:
            made.failed(LOST)  # not one record was delivered
        yield from self.ask(made.end(is_commit=rng.random() < 0.6), patience=rng.choice([1, 3, 20]))
        if current.has_parts:  # without, the epoch is that of the next transaction, too
            self.told[name] = current.outcome
            self.check(name)

    def ask(self, request: EndTransactionRequest | None, *, patience: int) -> Iterator[None]:
        before = self.machine.current
        for _ in range(patience):
            if request is None:
                return
            yield
            try:
                if self.rng.random() < 0.2:
                    raise LOST
                identity = self.side.end(request)
                if self.rng.random() < 0.2:
                    raise LOST
            except BarnabasError as error:
                request = self.machine.refused(error)
            else:
                self.machine.answered(identity)
                assert self.machine.current is before
                return
        if request is not None:
            self.machine.gave_up(LOST)

    def check(self, name: tuple[int, int]) -> None:
        decided = self.side.decided.get(name)
        if self.told[name] is Outcome.COMMITTED:
            assert decided is not False
        if self.told[name] in (Outcome.ABORTED, Outcome.ABORTING):
            assert decided is not True


def side_knows(side: Side, name: tuple[int, int]) -> bool:
    known = side.state.transactions.get("tx")
    return known is not None and (known.producer_id, known.producer_epoch) == name and known.state == "Ongoing"


@pytest.mark.parametrize("seed", range(150))
def test_no_outcome_is_told_that_the_coordinator_has_not_decided(seed: int) -> None:
    """Against the coordinator's real machine: lost requests and answers, timeouts, and a second producer of the same id."""
    rng = Random(seed)
    side = Side()
    producers = [Producer(side, rng)]
    assert producers[0].start()
    running = {producers[0]: producers[0].transaction()}
    for _ in range(200):
        side.now_ms += rng.randrange(30)
        side.tick()
        if rng.random() < 0.6:
            side.complete()
        producer = rng.choice(list(running))
        if next(running[producer], "ended") == "ended":
            running[producer] = producer.transaction()
        if rng.random() < 0.01:
            another = Producer(side, rng)
            if another.start():
                running[another] = another.transaction()
    for producer in running:
        for name in producer.told:
            producer.check(name)
    assert any(producer.told for producer in running)


def test_every_transition_is_in_the_table() -> None:
    assert TRANSITIONS.keys() == set(Phase)
    reachable = {Phase.UNINITIALIZED}
    while more := {after for phase in reachable for after in TRANSITIONS[phase]} - reachable:
        reachable |= more
    assert reachable == set(Phase)
