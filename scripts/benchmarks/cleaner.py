"""Compaction of one log beside a plain copy of its files, without a broker: `python cleaner.py clean|copy DIR`.

Both end with the bytes on the disk. The log has each key about eight times, in batches of 16 KB.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

from measure import Metrics, records

from barnabas.log.compaction.cleaner import dirty_part_of
from barnabas.log.compaction.cleaning import Cleaning
from barnabas.log.disk.files import RealFiles
from barnabas.log.format.record_codec import encode_batch
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.topic_partition import TopicPartition

BATCHES = 2_500
BATCH_RECORDS = 130
KEYS = 40_000
NOW_MS = 1_700_000_000_000
MAP_BYTES = 128 << 20


def written_log(folder: Path) -> PartitionLog:
    config = LogConfig(cleanup_policy=("compact",), segment_bytes=16 << 20)
    directory = str(folder / "keyed-0")
    files = RealFiles()
    files.make_dirs(directory)
    log = PartitionLog(files, directory, topic_partition=TopicPartition("keyed", 0), topic_id="id", config=config,
                       now_ms=NOW_MS)  # fmt: skip
    values = records(BATCH_RECORDS, 100)
    for number in range(BATCHES):
        keys = [b"user%07d" % ((number * 131 + place * 7919) % KEYS) for place in range(BATCH_RECORDS)]
        batch = bytearray(encode_batch(values, keys=keys, timestamps_ms=NOW_MS))
        log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)
    log.tail.roll(NOW_MS, log.config)
    log.flush()
    log.set_high_watermark(log.log_end_offset)
    return log


def clean(log: PartitionLog) -> Metrics:
    size_bytes = log.size_bytes
    part = dirty_part_of(log, 0, now_ms=NOW_MS)
    assert part is not None
    began, cpu = time.perf_counter(), time.process_time()
    for step in Cleaning(part, files=RealFiles(), map_size_bytes=MAP_BYTES, now_ms=NOW_MS).steps():
        step()
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    return {
        "MB/s": size_bytes / seconds / 1e6,
        "msg/s": BATCHES * BATCH_RECORDS / seconds,
        "cpu_percent": 100 * used / seconds,
    }


def copy(log: PartitionLog) -> Metrics:
    began = time.perf_counter()
    for segment in log.segments.all:
        target = segment.path + ".copy"
        shutil.copyfile(segment.path, target)
        descriptor = os.open(target, os.O_RDWR)
        os.fsync(descriptor)
        os.close(descriptor)
    return {"MB/s": log.size_bytes / (time.perf_counter() - began) / 1e6}


if __name__ == "__main__":
    print(json.dumps({"clean": clean, "copy": copy}[sys.argv[1]](written_log(Path(sys.argv[2])))))
