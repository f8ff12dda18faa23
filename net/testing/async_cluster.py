"""`AsyncCluster`: the methods of a cluster under test as coroutines, which run in threads."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any


class ClusterCall(Coroutine[Any, Any, Any]):
    """Awaited, or entered where its result is a fault: `async with cluster.aio.kill(0):`."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._entered: Any = None

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> Any:
        fault = await self._coroutine
        self._entered = await fault.__aenter__()
        return self._entered

    async def __aexit__(self, *error: Any) -> None:
        await self._entered.__aexit__(*error)


class AsyncCluster:
    """See `Cluster.aio`."""

    def __init__(self, cluster: object) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Callable[..., ClusterCall]:
        method = getattr(self._cluster, name)
        if not callable(method):
            raise AttributeError(f"{name} does not wait for anything: use cluster.{name}")

        def call(*arguments: Any, **options: Any) -> ClusterCall:
            return ClusterCall(asyncio.to_thread(method, *arguments, **options))

        return call
