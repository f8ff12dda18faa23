"""What a task of the sink hands to its producer at a time, and what it leaves behind."""

import pyarrow
import pytest

from barnabas.spark_connector.write.sink_connection import shared_producer
from barnabas.spark_connector.write.sink_task import PORTION_BYTES, Portions, RowsNotWrittenError, write_rows
from barnabas.spark_connector.write.write_options import parse_write_options
from barnabas.testing import Cluster


def batch(start: int, rows: int, value: bytes) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_pydict({"key": range(start, start + rows), "value": [value] * rows})


def test_small_batches_leave_together_in_order() -> None:
    """Each portion becomes batches of its own in each partition: 10,000 rows for 50 partitions would be many small ones."""
    portions = Portions()
    value = b"x" * (PORTION_BYTES // 4_000)
    found = [portions.add(batch(start, 1_000, value)) for start in range(0, 8_000, 1_000)]
    sent = [item for portion in found for item in portion]
    assert [len(portion) for portion in found] == [0, 0, 0, 1, 0, 0, 0, 1]
    assert [item.num_rows for item in sent] == [4_000, 4_000]
    assert [key for item in sent for key in item["key"].to_pylist()] == list(range(8_000))
    assert portions.rest() == []


def test_a_large_batch_leaves_at_once_and_the_rest_at_the_end() -> None:
    portions = Portions()
    large = batch(0, 1_000, b"x" * (PORTION_BYTES // 1_000))
    assert portions.add(large) == [large]
    assert portions.add(batch(1_000, 1, b"")) == portions.add(batch(1_001, 2, b"")) == []
    (rest,) = portions.rest()
    assert rest["key"].to_pylist() == [1_000, 1_001, 1_002]
    assert portions.rest() == []


def test_exactly_a_portion_leaves() -> None:
    portions = Portions()
    whole = pyarrow.RecordBatch.from_pydict(
        {
            "value": pyarrow.Array.from_buffers(
                pyarrow.int8(), PORTION_BYTES, [None, pyarrow.py_buffer(bytes(PORTION_BYTES))]
            )
        }
    )
    assert whole.nbytes == PORTION_BYTES and portions.add(whole) == [whole]


ROWS = 5_000  # 20 MB: for ten times the buffer of the producer


def test_no_row_of_a_failed_task_follows_those_of_the_next_one() -> None:
    """A portion still waits for room in the producer's buffer when the next one has a bad row, and Spark runs the task again."""

    def rows(value: bytes, partition: int) -> pyarrow.RecordBatch:
        partitions = pyarrow.array([partition] * ROWS, pyarrow.int32())
        values = [value.ljust(PORTION_BYTES // 1_000, b"-")] * ROWS
        return pyarrow.RecordBatch.from_pydict({"value": values, "partition": partitions})

    with Cluster(brokers=2, voters=1) as cluster:
        cluster.create_topic("t", replication_factor=2)
        limits = {"buffer.memory": str(2 << 20), "max.block.ms": "1500"}
        options = parse_write_options(
            {"bootstrap.servers": cluster.bootstrap_servers, "topic": "t", "delivery": "at_least_once", **limits}
        )
        loop, client, producer = shared_producer(options.client, options.producer)
        with cluster.pause(cluster.leader("t")), pytest.raises(RowsNotWrittenError, match="partition 9"):
            write_rows(options, [rows(b"failed", 0), rows(b"bad", 9)])
        write_rows(options, [rows(b"again", 0)])
        loop.call(producer.close())
        loop.call(client.close())
        found = [record.value.rstrip(b"-") for record in cluster.records("t")]
    first = found.index(b"again")
    assert set(found[:first]) == {b"failed"} and found[first:] == [b"again"] * ROWS
