"""A program that handles records with `process_each` in threads, and prints one line for each that is done: bootstrap, topic,
"asyncio" or "blocking"."""

import asyncio
import os
import sys
import time
from typing import Any, Final

from barnabas import sync
from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.processing.process_each import Processed, process_each

HANDLER_S: Final = 0.005
OPTIONS: Final[dict[str, Any]] = {
    "group": "workers",
    "auto_commit": False,
    "auto_offset_reset": "earliest",
    "heartbeat_interval_ms": 500,
    "session_timeout_ms": 6_000,
}
PROCESSING: Final[dict[str, Any]] = {"order": "partition", "concurrency": 4, "stop_on_signals": True}


def handle(record: ConsumerRecord) -> None:
    time.sleep(HANDLER_S)  # a program that blocks, as many do
    os.write(1, b"%d %d\n" % (record.partition, record.offset))  # in one piece: four threads write


async def records_by_asyncio(bootstrap: str, topic: str) -> int:
    async with Consumer(topic, bootstrap=bootstrap, **OPTIONS) as consumer:
        return (await process_each(consumer, handle, **PROCESSING)).records


def records_by_blocking(bootstrap: str, topic: str) -> int:
    with sync.Consumer(topic, bootstrap=bootstrap, **OPTIONS) as consumer:
        outcome: Processed = sync.process_each(consumer, handle, **PROCESSING)
        return outcome.records


bootstrap, topic, kind = sys.argv[1:]
count = (
    asyncio.run(records_by_asyncio(bootstrap, topic)) if kind == "asyncio" else records_by_blocking(bootstrap, topic)
)
os.write(1, b"stopped %d\n" % count)
