"""What a read of committed records returns: the aborted transactions in what was read, up to the last stable offset."""

import pytest
from simulation.log_building import NOW_MS, PARTITION, append, end_transaction, open_log, transactional

from barnabas.log.format.record_batch import iter_headers
from barnabas.log.replication.effects import PartitionAssignment
from barnabas.log.replication.partition import Partition
from barnabas.log.replication.partition_reads import READ_COMMITTED
from barnabas.log.settings.config import LogConfig
from barnabas.net.testing.simulation.disk import SimulatedDisk


@pytest.fixture
def partition():
    log = open_log(SimulatedDisk(), config=LogConfig(segment_bytes=2_000, index_interval_bytes=200))
    leader = Partition(log, 1)
    leader.make_leader(
        PartitionAssignment(topic_partition=PARTITION, topic_id="id", leader=1, leader_epoch=0, partition_epoch=1,
                            replicas=(1,), isr=(1,), broker_epochs={1: 1}),
        0,
    )  # fmt: skip
    return leader


def fill(partition, transactions):
    """Transactions of two batches each, every other one aborted; between them, plain records."""
    log = partition.log
    for number in range(transactions):
        producer_id = number % 5
        sequence = 2 * (number // 5)
        for part in range(2):
            log.append_as_leader(transactional(producer_id, sequence + part, b"x" * 30), leader_epoch=0, now_ms=NOW_MS)
            append(log, b"plain")
        end_transaction(log, producer_id, commits=number % 2 == 0)
    log.set_high_watermark(log.log_end_offset)


def read(partition, offset, max_bytes, isolation_level=READ_COMMITTED):
    found = partition.reads.read_for_consumer(offset, max_bytes=max_bytes, isolation_level=isolation_level)
    records = found.records if isinstance(found.records, bytes) else found.records.read()
    return found, list(iter_headers(records))


@pytest.mark.parametrize("max_bytes", [1, 150, 500, 1_500, 1 << 20])
def test_the_list_is_of_what_was_read(partition, max_bytes):
    fill(partition, 30)
    everything = partition.log.aborted.between(0, partition.log.log_end_offset)
    assert len(everything) == 15
    for offset in range(partition.log.log_end_offset):
        found, headers = read(partition, offset, max_bytes)
        end = headers[-1].next_offset
        assert list(found.aborted) == [it for it in everything if it.last_offset >= offset and it.first_offset < end]


def test_a_reader_of_uncommitted_records_gets_no_list(partition):
    fill(partition, 4)
    found, headers = read(partition, 0, 1 << 20, isolation_level=0)
    assert found.aborted == () and any(header.is_control for header in headers)


def test_nothing_is_read_from_the_first_open_transaction_on(partition):
    fill(partition, 2)
    end = partition.log.log_end_offset
    partition.log.append_as_leader(transactional(9, 0, b"open"), leader_epoch=0, now_ms=NOW_MS)
    append(partition.log, b"behind")
    partition.log.set_high_watermark(end + 2)
    found, headers = read(partition, 0, 1 << 20)
    assert headers[-1].next_offset == found.last_stable_offset == end
    assert read(partition, end, 1 << 20)[1] == []
    assert partition.reads.list_offset(-1, isolation_level=READ_COMMITTED).offset == end
    assert partition.reads.list_offset(-1).offset == end + 2


def test_a_read_ends_before_more_transactions_than_an_answer_may_name(partition):
    fill(partition, 30)
    partition.reads.max_aborted = 2
    offset, seen = 0, 0
    while offset < partition.log.log_end_offset:
        found, headers = read(partition, offset, 1 << 20)
        assert headers and len(found.aborted) <= 2
        seen += sum(it.first_offset >= offset for it in found.aborted)
        offset = headers[-1].next_offset
    assert seen == 15
