"""A program that handles records with `process_each` in threads, and prints one line for each that is done: bootstrap, topic."""

import asyncio
import os
import sys
import time

from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.processing.process_each import process_each

HANDLER_S = 0.005


def handle(record: ConsumerRecord) -> None:
    time.sleep(HANDLER_S)  # a program that blocks, as many do
    os.write(1, b"%d %d\n" % (record.partition, record.offset))  # in one piece: four threads write


async def main() -> None:
    bootstrap, topic = sys.argv[1:]
    consumer = Consumer(
        topic,
        bootstrap=bootstrap,
        group="workers",
        auto_commit=False,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=500,
        session_timeout_ms=6_000,
    )
    async with consumer:
        outcome = await process_each(consumer, handle, order="partition", concurrency=4, stop_on_signals=True)
    os.write(1, b"stopped %d\n" % outcome.records)


asyncio.run(main())
