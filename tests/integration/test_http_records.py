"""Records over HTTP that last: sent one after the other in one request, and followed as events, while a leader dies."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from integration.cluster import Cluster, full_isr

pytestmark = pytest.mark.timeout(180)
COUNT = 300


async def test_records_are_sent_and_followed_while_their_leader_dies(new_cluster: Callable[..., Cluster]) -> None:
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("orders", assignment=[[2, 1, 0]])
        await full_isr(admin, ["orders"])
        cluster_id = (await admin.describe_cluster()).cluster_id
    topic = f"http://{cluster.nodes[0].property('admin.listener')}/v3/clusters/{cluster_id}/topics/orders"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(sock_read=60)) as session:
        following = asyncio.create_task(_followed(session, topic))
        answers = await _answers(session, topic, lambda: cluster.kill(2))
        assert len(answers) == COUNT, "each record has an answer"
        written = [number for number, told in enumerate(answers) if told["error_code"] == 200]
        assert written[-1] == COUNT - 1, "the stream outlives the leader"
        found = await following
    assert set(written) <= set(found), "what was acknowledged is there"
    assert found == sorted(found)


async def _answers(session: aiohttp.ClientSession, topic: str, harm: Callable[[], None]) -> list[dict[str, Any]]:
    """Each record is sent after the answer to the one before."""
    answers: list[dict[str, Any]] = []
    may_send = asyncio.Semaphore(1)

    async def numbers() -> AsyncIterator[bytes]:
        for number in range(COUNT):
            await may_send.acquire()
            yield json.dumps({"value": {"type": "JSON", "data": number}}).encode()

    answer = await session.post(f"{topic}/records", data=numbers(), headers={"Content-Type": "application/json"})
    while line := await answer.content.readline():
        answers.append(json.loads(line))
        if len(answers) == COUNT // 3:
            harm()
        may_send.release()
    return answers


async def _followed(session: aiohttp.ClientSession, topic: str) -> list[int]:
    """The values, up to the last one."""
    found: list[int] = []
    async with session.get(f"{topic}/partitions/0/records?offset=0", headers={"Accept": "text/event-stream"}) as events:
        async for line in events.content:
            if line.startswith(b"data: "):
                found.append(int(json.loads(line[6:])["value"]["text"]))
                if found[-1] == COUNT - 1:
                    break
    return found
