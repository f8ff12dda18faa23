"""What a cluster under test consists of while it runs."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from barnabas.log.vocabulary.access.acls import Permission
from barnabas.log.vocabulary.errors import BarnabasError

from ..base.local.local_cluster import ClusterError
from ..client.arrow.extra import require
from ..client.connection.loop_thread import loop_thread
from ..wire.protocol.responses import ClusterBroker
from .access import AccessActs, AskedAccess, login_of
from .brokers.backends import BACKENDS, Backend
from .fault import Fault
from .folders import TemporaryFolder
from .group_acts import GroupActs
from .injection import Injection
from .observation import Observation

T = TypeVar("T")
_POLL_S: Final = 0.02


class ClusterParts:
    """Made: the brokers serve, and users and permissions are known to all of them. Raises ClusterError, MissingExtraError."""

    def __init__(
        self,
        *,
        backend: str,
        brokers: Iterable[int],
        voters: int,
        config: Mapping[str, str],
        own_keys: Mapping[int, Mapping[str, str]],
        folder: Path | None,
        access: AskedAccess,
        timeout_s: float,
    ) -> None:
        if access.is_secure:
            require("cryptography", extra="security", feature="a cluster with users or TLS")
        self.brokers = list(brokers)
        self._newest = max(self.brokers)  # The number of a broker that has left is never used again.
        self._timeout_s = timeout_s
        self._temporary = TemporaryFolder() if folder is None else None
        self.folder = folder or (self._temporary.path if self._temporary else Path())
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.backend: Backend = BACKENDS[backend](
                self.folder,
                len(self.brokers),
                voters,
                config,
                client_protocol=access.client_protocol,
                own_keys=own_keys,
            )
        except BaseException:
            self._remove_folder()
            raise
        try:
            self.backend.start()
            self.injection = Injection(self.backend, self.brokers, timeout_s=timeout_s, voters=range(voters))
            self.injection.wait_until_ready(self.brokers)
            login = login_of(access, self.folder)
            self.observation = Observation(self.bootstrap, timeout_s=timeout_s, login=login)
            self.groups = GroupActs(self.observation, self.injection.end_session)
            self.access = AccessActs(access, self.observation, self.injection.awake, timeout_s=timeout_s)
            if access.is_secure:
                loop_thread().call(self.access.restore(), timeout_s)
        except BaseException:
            self._end()
            raise

    @property
    def bootstrap(self) -> str:
        return ",".join(self.backend.address(node_id) for node_id in self.brokers)

    def close(self) -> None:
        try:
            loop_thread().call(self.observation.close())
        finally:
            self._end()

    def _end(self) -> None:
        self.backend.close(graceful=self._temporary is None)
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._temporary is not None:
            self._temporary.close()

    async def reset(self) -> list[str]:
        await self.access.restore()
        return await self.groups.reset()

    # --- brokers that come and go -------------------------------------------------------------------------------------

    def add_broker(self, config: Mapping[str, str]) -> int:
        self._newest += 1
        node_id = self._newest
        self.backend.add(node_id, config)
        try:
            self.injection.added(node_id)
        except BaseException:
            self.injection.removed(node_id)
            self.backend.remove(node_id)
            raise
        self._changed([*self.brokers, node_id])
        return node_id

    def remove_broker(self, node_id: int) -> None:
        if node_id not in self.brokers:
            raise ValueError(f"there is no broker {node_id}; this cluster has the brokers {self.brokers}")
        self._run(self._empty(node_id))
        self._changed([broker for broker in self.brokers if broker != node_id])
        self.injection.removed(node_id)
        self.backend.remove(node_id)
        self._run(self._unregister(node_id))

    def _changed(self, brokers: list[int]) -> None:
        self.brokers = brokers
        self.observation.bootstrap = self.bootstrap

    async def _empty(self, node_id: int) -> None:
        await (await self.observation.admin()).decommission_broker(node_id)

        async def is_empty() -> bool:
            found = await self._find(node_id)
            return found is not None and found.replica_count == found.slot_count == 0

        await self._until(is_empty, f"broker {node_id} hands its replicas over")

    async def _unregister(self, node_id: int) -> None:
        async def is_fenced() -> bool:
            found = await self._find(node_id)
            return found is None or found.fenced

        await self._until(is_fenced, f"the cluster notices that broker {node_id} has ended")
        await (await self.observation.admin()).unregister_broker(node_id)

    async def _find(self, node_id: int) -> ClusterBroker | None:
        found = await (await self.observation.admin()).describe_cluster()
        return next((broker for broker in found.brokers if broker.node_id == node_id), None)

    async def _until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    if await _holds(condition):
                        return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ClusterError(f"not within {self._timeout_s:g} s: {what}") from None

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return loop_thread().call(coroutine, self._timeout_s)

    # --- permissions --------------------------------------------------------------------------------------------------

    def permit(self, user: str, words: Iterable[str], permission: Permission) -> Fault:
        acls = self._run(self.access.permit(user, words, permission))
        verb = "allow" if permission is Permission.ALLOW else "deny"
        return self.injection.holding.new(f"{verb}({user!r})", lambda: self._run(self.access.withdraw(acls)))


async def _holds(condition: Callable[[], Awaitable[bool]]) -> bool:
    """While brokers come and go, a request may fail."""
    try:
        return await condition()
    except BarnabasError as error:
        if not error.retriable:
            raise
        return False
