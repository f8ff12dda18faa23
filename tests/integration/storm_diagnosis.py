"""What a test says of a group with transactions that stands still: what each part of the cluster and of the clients waits for."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from typing import Final

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.client import Client
from barnabas.net.client.group.group_explanation import explanation
from barnabas.net.client.group.group_offsets import fetch_stable
from barnabas.net.client.positions.offset_lookup import LATEST, list_offsets
from barnabas.net.testing.cluster import Cluster
from barnabas.net.wire.protocol.requests import READ_COMMITTED

LIMIT_S: Final = 10.0  # of each part: a cluster that stands still may not answer
OFFSETS_MS: Final = 5_000
HANGING_AFTER_MS: Final = 5_000
FRAMES: Final = 6  # of each task


async def diagnosis(cluster: Cluster, group: str, *topics: str) -> str:
    """Of the group, all transactions, the partitions of these topics, the tasks of this loop, and the brokers' logs."""
    client = Client(cluster.bootstrap_servers, client_id="diagnosis")
    partitions: list[TopicPartition] = []
    async with Admin(client=client) as admin:

        async def the_group() -> str:
            return json.dumps(explanation(await admin.explain_group(group)), indent=1)

        async def the_transactions() -> str:
            found = await admin.transactions.list()
            hanging = await admin.transactions.hanging(older_than_ms=HANGING_AFTER_MS)
            return "\n".join([*map(str, found.transactions), *(f"hangs: {item}" for item in hanging)])

        async def the_offsets() -> str:
            for topic in topics:
                described = await admin.describe_topic(topic)
                partitions.extend(TopicPartition(topic, number) for number in range(len(described.partitions)))
            committed, unstable = await fetch_stable(client, group, partitions)
            times_ms = dict.fromkeys(partitions, LATEST)
            ends = await list_offsets(client, times_ms, timeout_ms=OFFSETS_MS)
            stable = await list_offsets(client, times_ms, timeout_ms=OFFSETS_MS, isolation_level=READ_COMMITTED)
            return "\n".join(
                f"{place}: committed {committed[place].offset if place in committed else 'nothing'}"
                f"{', unstable' if place in unstable else ''}; last stable offset {stable[place].offset}, "
                f"high watermark {ends[place].offset}"
                for place in partitions
            )

        parts = {"group": the_group, "transactions": the_transactions, "offsets": the_offsets}
        told = [f"=== {name}\n{await _said(part)}" for name, part in parts.items()]
    return "\n".join([*told, f"=== tasks\n{_tasks()}", f"=== brokers\n{cluster.logs()}"])


async def _said(part: Callable[[], Awaitable[str]]) -> str:
    try:
        async with asyncio.timeout(LIMIT_S):
            return await part()
    except (BarnabasError, TimeoutError) as error:
        return f"unknown: {error!r}"


def _tasks() -> str:
    text = io.StringIO()
    for task in sorted(asyncio.all_tasks(), key=lambda item: item.get_name()):
        task.print_stack(limit=FRAMES, file=text)
    return text.getvalue()
