"""The client itself on virtual time: who gives up waiting leaves nothing behind."""

import asyncio
import gc
from typing import Any

import pytest
from unit.net.client.fake_cluster import FakeCluster, FakePool
from unit.net.client.virtual_time import run

from barnabas.log.vocabulary.errors import NetworkError
from barnabas.net.client.connection.client import Client
from barnabas.net.wire.protocol.api_keys import ApiKey


def test_a_refresh_that_fails_when_nobody_waits_any_more_is_no_bug() -> None:
    async def body() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        cluster = FakeCluster()

        async def slow_refusal() -> NetworkError:
            await asyncio.sleep(1)
            return NetworkError("the connection was lost")

        cluster.script(ApiKey.METADATA, lambda node_id, request: slow_refusal(), forever=True)
        client = cluster.client()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await client.start()
        await asyncio.sleep(10)
        del client
        gc.collect()
        assert told == []

    run(body())


def test_a_close_that_is_cancelled_at_one_pool_closes_the_other() -> None:
    class SlowPool(FakePool):
        is_closed = False

        async def close(self) -> None:
            await super().close()
            self.is_closed = True
            await asyncio.sleep(1)

    async def body() -> None:
        pools: list[SlowPool] = []

        def new_pool() -> SlowPool:
            pools.append(SlowPool(FakeCluster()))
            return pools[-1]

        client = Client("fake:9000", new_pool=new_pool)
        await client.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await client.close()
        assert [pool.is_closed for pool in pools] == [True, True]

    run(body())
