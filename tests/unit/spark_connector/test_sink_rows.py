"""What a task of the sink sends, in which order, and which errors it does not lose. Its producer is a fake."""

import asyncio
from collections.abc import Generator, Iterator
from typing import Any
from unittest.mock import patch

import pyarrow
import pytest
from pyspark import TaskContext

from barnabas.log.vocabulary.errors import NetworkError
from barnabas.net.client.connection.loop_thread import LoopThread
from barnabas.spark_connector.write import sink_task
from barnabas.spark_connector.write.sink_task import MAX_UNCHECKED, PORTION_BYTES, RowsNotWrittenError, write_rows
from barnabas.spark_connector.write.task_transaction import SinkBatch
from barnabas.spark_connector.write.write_options import parse_write_options

OPTIONS = parse_write_options({"bootstrap.servers": "localhost:9092", "topic": "t"})
BATCH = SinkBatch(sink_id="s", batch_id=1, is_job=False)
PARTITIONS = 3
PASSES = 20  # of the loop, in which another call of send_table could begin
LARGE = b"x" * PORTION_BYTES  # one is a portion


class Handle:
    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()
        if self._error is not None:
            raise self._error


class Outlet:
    """A producer, and its transaction."""

    def __init__(self) -> None:
        self.sent: list[tuple[pyarrow.RecordBatch, dict[str, Any]]] = []
        self.refused: set[int] = set()  # calls of send_table, by number, whose records are not acknowledged
        self.is_sending = False
        self.has_overlapped = False

    async def send_table(self, topic: str, table: pyarrow.RecordBatch, **columns: Any) -> Handle:
        self.has_overlapped |= self.is_sending
        self.is_sending = True
        for _ in range(PASSES):
            await asyncio.sleep(0)
        self.is_sending = False
        self.sent.append((table, columns))
        return Handle(NetworkError("refused") if len(self.sent) - 1 in self.refused else None)

    async def prepare(self, topic: str) -> int:
        return PARTITIONS

    async def flush(self) -> None: ...


class OfTask:
    """Begins and prepares the transaction."""

    def __init__(self, client: None, producer: Outlet, batch: SinkBatch, *, task: str) -> None:
        self._producer = producer

    async def begin(self) -> Outlet:
        return self._producer

    async def prepare(self, transaction: Outlet) -> None: ...


class Task:
    def __init__(self, number: int) -> None:
        self._number = number

    def partitionId(self) -> int:
        return self._number

    def attemptNumber(self) -> int:
        return 0

    def getLocalProperty(self, name: str) -> None:
        return None


@pytest.fixture
def outlet() -> Iterator[Outlet]:
    found, loop = Outlet(), LoopThread()
    connected = loop, None, found
    with (
        patch.object(sink_task, "shared_producer", lambda *_: connected),
        patch.object(sink_task, "transactional_producer", lambda *_: connected),
        patch.object(sink_task, "TaskTransaction", OfTask),
    ):
        yield found
    loop.loop.call_soon_threadsafe(loop.loop.stop)
    loop._thread.join()
    loop.loop.close()


def rows(*values: bytes, **columns: list[Any]) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_pydict({"value": list(values), **columns})


def values(outlet: Outlet) -> list[bytes]:
    return [value for table, _ in outlet.sent for value in table["value"].to_pylist()]


def test_all_rows_are_sent_in_order_and_counted(outlet: Outlet) -> None:
    report = write_rows(OPTIONS, [rows(b"1", b"2"), rows(b"3"), rows(LARGE), rows(b"4", b"5")])
    assert values(outlet) == [b"1", b"2", b"3", LARGE, b"4", b"5"]
    assert report.row_count == 6 and len(outlet.sent) == 2 and not outlet.has_overlapped
    assert write_rows(OPTIONS, []).row_count == 0


@pytest.mark.parametrize("number", [0, MAX_UNCHECKED // 2, MAX_UNCHECKED + 1, 2 * MAX_UNCHECKED])
def test_no_refusal_of_records_is_lost(outlet: Outlet, number: int) -> None:
    """A success would let Spark go on behind them."""
    outlet.refused = {number}
    with pytest.raises(RowsNotWrittenError, match="refused; up to"):
        write_rows(OPTIONS, [rows(LARGE) for _ in range(2 * MAX_UNCHECKED + 1)])


def test_a_refusal_ends_a_long_task_early(outlet: Outlet) -> None:
    outlet.refused = {0}
    with pytest.raises(RowsNotWrittenError):
        write_rows(OPTIONS, (rows(LARGE) for _ in range(10 * MAX_UNCHECKED)))
    assert len(outlet.sent) <= MAX_UNCHECKED + 1


def test_a_portion_of_many_topics_is_checked_as_soon_as_others(outlet: Outlet) -> None:
    """Else the list of what is not checked would grow with each portion, to the end of the task."""
    options = parse_write_options({"bootstrap.servers": "localhost:9092"})
    topics = [f"t{number}" for number in range(3 * MAX_UNCHECKED)]
    outlet.refused = {MAX_UNCHECKED}
    with pytest.raises(RowsNotWrittenError):
        write_rows(options, (rows(LARGE, *[b""] * (len(topics) - 1), topic=topics) for _ in range(10)))
    assert len(outlet.sent) == len(topics)


def in_transaction(task: int, batches: list[pyarrow.RecordBatch]) -> None:
    with patch.object(TaskContext, "get", lambda: Task(task)):
        write_rows(OPTIONS, batches, BATCH)


def test_a_portion_without_keys_goes_to_one_partition_of_a_transaction(outlet: Outlet) -> None:
    """Each partition costs a marker. Tasks begin with different ones."""
    in_transaction(0, [rows(LARGE) for _ in range(PARTITIONS + 1)])
    chosen = [columns["partition"] for _, columns in outlet.sent]
    assert sorted(chosen[:PARTITIONS]) == list(range(PARTITIONS)) and chosen[PARTITIONS] == chosen[0]
    in_transaction(1, [rows(LARGE)])
    assert outlet.sent[-1][1]["partition"] == chosen[1]


def test_keys_and_chosen_partitions_decide_in_a_transaction_too(outlet: Outlet) -> None:
    in_transaction(0, [rows(b"1", key=[b"k"])])
    in_transaction(0, [rows(b"2", partition=pyarrow.array([2], pyarrow.int32()))])
    assert [columns for _, columns in outlet.sent] == [
        {"value": "value", "key": "key"},
        {"value": "value", "partition": "partition"},
    ]


def test_the_producer_chooses_without_a_transaction(outlet: Outlet) -> None:
    write_rows(OPTIONS, [rows(b"1")])
    assert outlet.sent[0][1] == {"value": "value"}
