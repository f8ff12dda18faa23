"""Clients of transactions in the simulation: they speak Kafka's protocol, in both versions of transactions.

A transactor takes over a transactional id, asks how far its input is done, and goes on from there: each transaction writes one
record for each number of the input and commits the offset behind them. It crashes, stops for longer than the transaction
timeout, and shares its id with others: who was fenced must have no effect.
"""

import asyncio
from random import Random
from typing import Any

from barnabas.log.format.record_codec import ProducerFields, encode_batch
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode
from barnabas.net.testing.simulation.cluster import SimulatedCluster
from barnabas.net.wire.protocol.requests import FindCoordinatorRequest

from .checkers.transactions import Outcome, Transaction, TransactionChecker
from .checkers.violation import Violation
from .kafka_wire import KafkaWire, made
from .prepared_driver import IS_OVER, PATIENCE_S, Intent, Ledger
from .workload import Client

GROUP = "copies"
INPUT, OUTPUT = "input", "output"
INPUTS, OUTPUTS = 3, 3
TIMEOUT_MS = 1_500  # of a transaction
ASK_S = 1.0
LATE_S = 5.0  # after which no request is on its way any more
PRODUCE, OFFSET_FETCH, INIT, ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT_OFFSETS = 0, 9, 22, 24, 25, 26, 28
OLD_FETCH = 3  # the version of OffsetFetch of clients that cannot ask for stable offsets
PREPARED = 0.5  # of the transactions of the second version, where there is a ledger
EARLY_COMMIT_EVERY = 8  # transactions of the second version
NO_ANSWER = -2  # whether the request had an effect is not known
FENCED = IS_OVER | {ErrorCode.TRANSACTIONAL_ID_NOT_FOUND}
LOST = FENCED | {
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
}


class EndOfLifeError(Exception):
    """The transactor crashes, or was fenced, or cannot go on with its producer."""


class UnansweredError(EndOfLifeError):
    """Whether a record was written is not known."""


def value_of(transaction: Transaction, input_number: int) -> bytes:
    return b"%d:%d:%d" % (transaction.number, transaction.source, input_number)


def stable_fetch(source: int) -> Any:
    topic = made("OffsetFetchRequest", "OffsetFetchRequestTopics", name=INPUT, partition_indexes=[source])
    group = made("OffsetFetchRequest", "OffsetFetchRequestGroup", group_id=GROUP, topics=[topic])
    return made("OffsetFetchRequest", groups=[group], require_stable=True)


def old_fetch(source: int) -> Any:
    topic = made("OffsetFetchRequest", "OffsetFetchRequestTopic", name=INPUT, partition_indexes=[source])
    return made("OffsetFetchRequest", group_id=GROUP, topics=[topic])


class Transactor:
    def __init__(
        self, cluster: SimulatedCluster, checker: TransactionChecker, client: Client, rng: Random, *, source: int
    ) -> None:
        self.cluster = cluster
        self.checker = checker
        self.client = client
        self.rng = rng
        self.source = source
        self.transactional_id = f"copier-{source}"
        self.counts: dict[str, int] = dict.fromkeys(
            ("commits", "aborts", "fenced", "crashes", "zombies", "unknown_ends", "early_commits", "given_up"), 0
        )
        self.is_calm = False  # from the end of the faults on: each transaction is committed
        self.ledger: Ledger | None = None  # of prepared transactions
        self.told = ""  # by whom it was asked last, and what was answered
        self._wire = KafkaWire(cluster.world.node(client.name))
        self._uses_v2 = False
        self._producer = (-1, -1)
        self._sequences: dict[tuple[str, int], int] = {}
        self._coordinators: dict[str, int] = {}
        self._consumers: dict[str, int] = {}  # as a consumer beside the producer knows them, maybe for long
        self._done = 0  # inputs

    async def run(self) -> None:
        while True:
            try:
                await self._live()
            except EndOfLifeError as error:
                self.cluster.loop.note(f"{self.client.name} ends its life: {error}")
            except (BarnabasError, TimeoutError) as error:
                self.cluster.loop.note(f"{self.client.name} gives up: {error!r}")
                self._coordinators.clear()
            if self.rng.random() < 0.5:
                self._wire.forget()
            await self.client.pause(0.02, 0.3)

    async def _live(self) -> None:
        self._uses_v2 = self.rng.random() < 0.5
        continues = self._producer if self.rng.random() < 0.3 else (-1, -1)
        before = self.checker.committed_inputs.get(self.source, 0)
        await self._init(continues)
        # Without require_stable, only what was committed before InitProducerId is certain: another copier may be at work by now.
        least = self.checker.committed_inputs.get(self.source, 0) if self._uses_v2 else before
        self._done = await self.committed_offset(self.source, least, is_stable=self._uses_v2)
        for _ in range(self.rng.randint(1, 12)):
            await self._transaction()
            await self.client.pause(0.0, 0.05)

    async def copy_once(self, *, uses_v2: bool = False) -> None:
        """A life of one transaction."""
        self._uses_v2 = uses_v2
        before = self.checker.committed_inputs.get(self.source, 0)
        try:
            await self._init((-1, -1))
            self._done = await self.committed_offset(self.source, before, is_stable=uses_v2)
            await self._transaction()
        except (EndOfLifeError, BarnabasError, TimeoutError):
            self._coordinators.clear()
            await self.client.pause(0.02, 0.3)

    async def is_told_by(self, node_id: int) -> bool:
        """Whether this broker, and no other, tells an old client the offset of its input."""
        self._wire.forget()  # what was cut
        try:
            found = await self._wire.ask(node_id, OFFSET_FETCH, OLD_FETCH, old_fetch(self.source), timeout_s=ASK_S)
        except (BarnabasError, TimeoutError):
            return False
        (item,) = found.topics[0].partitions
        if found.error_code or item.error_code:
            return False
        least = self.checker.committed_inputs.get(self.source, 0)
        self.checker.told_offset(self.source, max(item.committed_offset, 0), None, least=least)
        return True

    async def _init(self, continues: tuple[int, int]) -> None:
        body = made(
            "InitProducerIdRequest",
            transactional_id=self.transactional_id,
            transaction_timeout_ms=TIMEOUT_MS,
            producer_id=continues[0],
            producer_epoch=continues[1],
        )
        while True:
            answer = await self._ask_coordinator(self.transactional_id, INIT, 5 if self._uses_v2 else 4, body)
            if answer.error_code == 0:
                self._producer = (answer.producer_id, answer.producer_epoch)
                self._sequences = {}
                return
            if answer.error_code in LOST:
                self._producer = (-1, -1)
                raise EndOfLifeError(f"init: {ErrorCode(answer.error_code).name}")
            await self._after(self.transactional_id, answer.error_code)

    # --- one transaction ----------------------------------------------------------------------------------------------

    async def _transaction(self) -> None:
        count = self.rng.randint(1, 3)
        transaction = self.checker.begin(
            source=self.source,
            producer=self._producer,
            uses_v2=self._uses_v2,
            first_input=self._done,
            count=count,
        )
        places = [(OUTPUT, self.rng.randrange(OUTPUTS)) for _ in range(count)]
        try:
            if not self._uses_v2:
                await self._add(sorted(set(places)))
            elif transaction.number % EARLY_COMMIT_EVERY == 1:
                await self._commit_early()
            for number, place in enumerate(places, self._done):
                await self._write(transaction, place, number)
                self._maybe_stop(0.03, "crashes")
                if not self.is_calm and self.rng.random() < 0.02:
                    self.counts["zombies"] += 1
                    await asyncio.sleep(TIMEOUT_MS / 1000 * self.rng.uniform(0.7, 2.0))
            await self._commit_offset(transaction)
            self._maybe_stop(0.03, "crashes")
        except EndOfLifeError as error:
            if transaction.outcome is Outcome.UNKNOWN and not transaction.asks_for_commit and self.rng.random() < 0.5:
                await self._end(transaction, is_commit=False)  # then the outcome is known; else a timeout decides
                if isinstance(error, UnansweredError) and not self._uses_v2:
                    self.counts["given_up"] += 1
                    self._wire.forget()
                    # In this version, a request that comes later than this joins the next transaction unnoticed, as in Kafka.
                    await asyncio.sleep(LATE_S)
                    return  # as librdkafka does: it goes on in the same epoch, and uses the sequence of this record again
            raise
        if self.ledger is not None and self._uses_v2 and not self.is_calm and self.rng.random() < PREPARED:
            await self._prepare(transaction, self.ledger)
        await self._end(transaction, is_commit=self.is_calm or self.rng.random() < 0.75)

    async def _prepare(self, transaction: Transaction, ledger: Ledger) -> None:
        """Leave it to the driver, which knows of it before the coordinator does."""
        intent = Intent(
            transaction,
            self.transactional_id,
            *self._producer,
            ready_s=self.client.loop.time() + self.rng.uniform(*PATIENCE_S),
        )
        ledger.intents.append(intent)
        try:
            while True:
                try:
                    await self.client.ask(await self._coordinator(self.transactional_id), intent.prepare_request())
                    break
                except TimeoutError:
                    self._coordinators.clear()
                    await self.client.pause(0.02, 0.1)
                except BarnabasError as error:
                    self._maybe_stop(0.03, "crashes")
                    if error.code is None or error.code not in LOST:
                        self._coordinators.clear()
                        await self.client.pause(0.02, 0.1)
                        continue
                    self._fenced_by(error.code)
            self._maybe_stop(0.1, "crashes")
            intent.is_whole = not intent.is_decided
            ledger.counts["prepared"] += intent.is_whole
        finally:
            intent.is_given_up = not intent.is_whole
        raise EndOfLifeError("its transaction is left to the driver")

    async def _commit_early(self) -> None:
        """A commit that overtakes the first record, as Kafka's Java client sends it at times, is asked for again later."""
        try:
            node_id = await self._coordinator(self.transactional_id)
            answer = await self._wire.ask(node_id, END, 5, self._end_request(is_commit=True), timeout_s=ASK_S)
        except (BarnabasError, TimeoutError):
            raise EndOfLifeError("an early commit has no answer: it may arrive later, and commit half") from None
        code = answer.error_code
        if code in (0, ErrorCode.INVALID_TXN_STATE):
            raise Violation(f"{self.transactional_id}: a commit before the first record was answered by {code}")
        self.counts["early_commits"] += code == ErrorCode.CONCURRENT_TRANSACTIONS
        await self._judge(code, self.transactional_id)

    def _end_request(self, *, is_commit: bool) -> Any:
        return made(
            "EndTxnRequest",
            transactional_id=self.transactional_id,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            committed=is_commit,
        )

    def _maybe_stop(self, probability: float, what: str) -> None:
        if not self.is_calm and self.rng.random() < probability:
            self.counts[what] += 1
            self._wire.forget()
            raise EndOfLifeError(what)

    async def _add(self, places: list[tuple[str, int]]) -> None:
        message = "AddPartitionsToTxnRequest"
        topics: dict[str, list[int]] = {}
        for topic, number in places:
            topics.setdefault(topic, []).append(number)
        asked = [made(message, "AddPartitionsToTxnTopic", name=name, partitions=some) for name, some in topics.items()]
        body = made(
            message,
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self._producer[0],
            v3_and_below_producer_epoch=self._producer[1],
            v3_and_below_topics=asked,
        )
        while True:
            answer = await self._ask_coordinator(self.transactional_id, ADD_PARTITIONS, 3, body)
            codes = {
                item.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for item in topic.results_by_partition
            }
            if codes == {0}:
                return
            await self._judge(max(codes), self.transactional_id)

    async def _write(self, transaction: Transaction, place: tuple[str, int], input_number: int) -> None:
        """The same batch until it is acknowledged; or the producer cannot go on."""
        sequence = self._sequences.get(place, 0)
        fields = ProducerFields(
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=sequence,
            is_transactional=True,
        )
        batch = encode_batch([value_of(transaction, input_number)], timestamps_ms=1_700_000_000_000, producer=fields)
        message = "ProduceRequest"
        part = made(message, "PartitionProduceData", index=place[1], records=batch)
        body = made(
            message,
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=700,
            topic_data=[made(message, "TopicProduceData", name=place[0], partition_data=[part])],
        )
        for _ in range(self.rng.choice((2, 8, 30))):
            code = NO_ANSWER
            try:
                _, leader = await self.client.leader_of(place)
                answer = await self._wire.ask(
                    leader, PRODUCE, 12 if self._uses_v2 else 9, body, timeout_s=self.rng.choice((0.1, ASK_S))
                )
                code = answer.responses[0].partition_responses[0].error_code
            except (BarnabasError, TimeoutError):
                pass
            if code == 0:
                self._sequences[place] = sequence + 1
                transaction.acknowledged += 1
                return
            if code in LOST:
                self._fenced_by(code)
            self.told = f"{place}: {code}"
            self.client.forget_leader(place)
            await self.client.pause(0.01, 0.1)
        raise UnansweredError("a record has no acknowledgement")

    async def _commit_offset(self, transaction: Transaction) -> None:
        if not self._uses_v2:
            body = made(
                "AddOffsetsToTxnRequest",
                transactional_id=self.transactional_id,
                producer_id=self._producer[0],
                producer_epoch=self._producer[1],
                group_id=GROUP,
            )
            while (code := (await self._ask_coordinator(self.transactional_id, ADD_OFFSETS, 3, body)).error_code) != 0:
                await self._judge(code, self.transactional_id)
        message = "TxnOffsetCommitRequest"
        item = made(
            message,
            "TxnOffsetCommitRequestPartition",
            partition_index=self.source,
            committed_offset=transaction.end_input,
            committed_metadata=str(transaction.number),
        )
        body = made(
            message,
            transactional_id=self.transactional_id,
            group_id=GROUP,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            generation_id=-1,
            topics=[made(message, "TxnOffsetCommitRequestTopic", name=INPUT, partitions=[item])],
        )
        while True:
            answer = await self._ask_coordinator(GROUP, COMMIT_OFFSETS, 5 if self._uses_v2 else 3, body)
            code = answer.topics[0].partitions[0].error_code
            if code == 0:
                return
            if code == ErrorCode.NOT_COORDINATOR:
                self._coordinators.clear()  # of the group, or of the transaction
            await self._judge(code, GROUP)

    async def _end(self, transaction: Transaction, *, is_commit: bool) -> None:
        transaction.asks_for_commit = is_commit
        body = self._end_request(is_commit=is_commit)
        is_sure = True  # no earlier attempt may have had an effect
        while True:
            try:
                node_id = await self._coordinator(self.transactional_id)
            except (BarnabasError, TimeoutError):
                await self.client.pause(0.02, 0.1)
                continue
            try:
                answer = await self._wire.ask(node_id, END, 5 if self._uses_v2 else 4, body, timeout_s=ASK_S)
            except (BarnabasError, TimeoutError):
                is_sure = False
                self._coordinators.clear()
                await self.client.pause(0.02, 0.1)
                continue
            if answer.error_code == 0:
                break
            if answer.error_code in LOST:
                if is_sure and is_commit:
                    self.checker.ended(transaction, Outcome.ABORTED)
                self.counts["unknown_ends"] += not is_sure
                self._fenced_by(answer.error_code)
            if answer.error_code not in (ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS):
                is_sure = False
            await self._after(self.transactional_id, answer.error_code)
        self.counts["commits" if is_commit else "aborts"] += 1
        self.checker.ended(transaction, Outcome.COMMITTED if is_commit else Outcome.ABORTED)
        self.cluster.loop.note(f"{self.client.name} is told of the end of {transaction}")
        if is_commit:
            self._done = transaction.end_input
        if self._uses_v2:
            self._producer = (answer.producer_id, answer.producer_epoch)
            self._sequences = {}

    # --- asking -------------------------------------------------------------------------------------------------------

    async def _judge(self, code: int, key: str) -> None:
        if code in LOST:
            self._fenced_by(code)
        await self._after(key, code)

    def _fenced_by(self, code: int) -> None:
        self.counts["fenced"] += code in FENCED
        raise EndOfLifeError(ErrorCode(code).name)

    async def _after(self, key: str, code: int, known: dict[str, int] | None = None) -> None:
        """A code that can be retried."""
        known = self._coordinators if known is None else known
        self.told = f"{key} at {known.get(key)}: {ErrorCode(code).name}"
        if code not in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNSTABLE_OFFSET_COMMIT):
            known.pop(key, None)
        await self.client.pause(0.005, 0.08)

    async def _coordinator(self, key: str, known: dict[str, int] | None = None) -> int:
        known = self._coordinators if known is None else known
        if key not in known:
            found = await self.client.ask_anyone(FindCoordinatorRequest(group_id=key))
            known[key] = found.node_id
        return known[key]

    async def _ask_coordinator(
        self, key: str, api: int, version: int, body: Any, known: dict[str, int] | None = None
    ) -> Any:
        """Until somebody answers; a repetition of any of these requests is harmless."""
        known = self._coordinators if known is None else known
        while True:
            try:
                node_id = await self._coordinator(key, known)
                return await self._wire.ask(node_id, api, version, body, timeout_s=ASK_S)
            except (BarnabasError, TimeoutError):
                known.pop(key, None)
                await self.client.pause(0.02, 0.1)

    async def committed_offset(self, source: int, least: int, *, is_stable: bool = True) -> int:
        """How far an input is done: OffsetFetch with require_stable, asked again while a transaction with it is open; or without,
        as clients before KIP-447 do after InitProducerId, which waits until the last transaction is over.
        """
        body = stable_fetch(source) if is_stable else old_fetch(source)
        known = self._coordinators if is_stable else self._consumers
        while True:
            answer = await self._ask_coordinator(GROUP, OFFSET_FETCH, 9 if is_stable else OLD_FETCH, body, known)
            found = answer.groups[0] if is_stable else answer
            code = found.error_code or found.topics[0].partitions[0].error_code
            if code == 0:
                item = found.topics[0].partitions[0]
                number = int(item.metadata) if item.metadata else None
                self.checker.told_offset(source, max(item.committed_offset, 0), number, least=least)
                return max(int(item.committed_offset), 0)
            await self._after(GROUP, code, known)
