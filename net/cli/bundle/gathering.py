"""Asks a cluster for what a maintainer needs. Every question has its own time, so that whoever is silent hides nothing else.

Never asked: records, metadata of committed offsets, and metadata of members, which are the users' own; and logs, which may hold
anything.
"""

import asyncio
import base64
import platform
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.wire.protocol.event_messages import MAX_PAGE
from barnabas.net.wire.protocol.responses import ClusterBroker

from ...client.admin.finding import Finding
from .archive import MAX_PART_BYTES, Archive

if TYPE_CHECKING:
    from barnabas.net.client.admin.admin import Admin
    from barnabas.net.client.connection.security import SecurityOptions

QUESTION_S: Final = 5.0
AT_ONCE: Final = 8  # questions on the way
MAX_BROKERS: Final = 50  # whose figures, configurations and metrics are asked for
MAX_TOPICS: Final = 1_000  # whose configurations are asked for
MAX_GROUPS: Final = 200  # that are described
_NO_TLS: Final = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "RECORD_LAYER_FAILURE",
)  # how OpenSSL says that the peer speaks plain text
_BROKER: Final = 4  # resource types of Kafka
README: Final = """What a maintainer of Barnabas needs to understand this cluster, made by `barnabas doctor --bundle`.

findings.json    what `barnabas doctor` has found
cluster.json     brokers, quorum, topics with their partitions, moves
groups.json      groups and the lag of their partitions
events.json      the newest events of elections, ISRs, brokers, configurations
figures/         machine, load and clients of each broker, and its last hour
storage/         data folders of each broker
configurations/  of brokers and topics
metrics/         the /metrics of each broker
versions.json    of the program that made this file
unanswered.json  what could not be asked, and why

It has names of topics, groups, users, clients and hosts. It has no records, and values of secret settings are removed.
Look through it before you pass it on.
"""

T = TypeVar("T")
_Events = tuple[str, ...]
_KINDS: Final[_Events] = (
    "controller", "broker", "election", "isr", "move", "folder", "topic", "config", "metadata", "rebalance",
)  # fmt: skip


class Gathering:
    def __init__(
        self, admin: "Admin", archive: Archive, *, ends_s: float, security: "SecurityOptions | None" = None
    ) -> None:
        """`ends_s`, by the clock of the event loop: what is not answered then is left out, and what was answered is kept.
        `security`: of the client, for the HTTP ports of brokers."""
        self._admin = admin
        self._security: SecurityOptions = security or {}
        self._ends_s = ends_s
        self._archive = archive
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def all(self) -> None:
        cluster = await self._asked("brokers", self._admin.describe_cluster)
        brokers = () if cluster is None else cluster.brokers[:MAX_BROKERS]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._cluster(cluster))
            tasks.create_task(self._groups())
            tasks.create_task(self._part("events.json", self._events))
            for broker in brokers:
                tasks.create_task(self._of_broker(broker))

    async def _cluster(self, cluster: object) -> None:
        admin = self._admin
        quorum, moves, topics = await asyncio.gather(
            self._asked("quorum", admin.describe_quorum),
            self._asked("moves", admin.describe_moves),
            self._asked("topics", admin.describe_topics),
        )
        told = {"cluster": cluster, "quorum": quorum, "moves": moves, "topics": topics}
        self._archive.add("cluster.json", told)
        names = [topic.name for topic in topics or () if not topic.internal][:MAX_TOPICS]
        configurations = await self._each("configuration of topic", names, admin.describe_configs)
        self._archive.add("configurations/topics.json", {name: _set(items) for name, items in configurations.items()})

    async def _groups(self) -> None:
        admin = self._admin
        listed = await self._asked("groups", admin.list_groups)
        names = [group.group_id for group in listed or ()][:MAX_GROUPS]
        described, lags = await asyncio.gather(
            self._each("group", names, admin.explain_group),
            self._each("offsets of group", names, lambda name: admin.group_offsets(name, only_reachable=True)),
        )
        told = {
            name: {
                "group": described.get(name),
                "lag": {str(place): [lag.committed, lag.lag, lag.lag_ms] for place, lag in lags.get(name, {}).items()},
            }
            for name in names
        }
        self._archive.add("groups.json", told)

    async def _events(self) -> object:
        page = await self._admin.events(kinds=_KINDS, limit=MAX_PAGE)
        return {
            "events": [item.row for item in page.events],
            "unanswered": {str(k): v for k, v in page.unanswered.items()},
        }

    async def _of_broker(self, broker: ClusterBroker) -> None:
        admin, node_id = self._admin, broker.node_id
        name = f"broker-{node_id}"
        await asyncio.gather(
            self._part(f"figures/{name}.json", lambda: admin.describe_broker(node_id, history=True)),
            self._part(f"storage/{name}.json", lambda: admin.describe_storage(node_id)),
            self._part(f"configurations/{name}.json", lambda: self._configuration(node_id)),
            self._metrics(broker),
        )

    async def _configuration(self, node_id: int) -> object:
        return _set(await self._admin.describe_configs(node_id, resource_type=_BROKER))

    async def _metrics(self, broker: ClusterBroker) -> None:
        name = f"metrics/broker-{broker.node_id}.txt"
        if broker.admin_port < 0:
            self._archive.omitted[name] = "the broker has no admin port"
            return
        host = f"[{broker.admin_host}]" if ":" in broker.admin_host else broker.admin_host
        address = f"{host}:{broker.admin_port}"
        text = await self._asked(name, lambda: asyncio.to_thread(_metrics_of, address, self._security))
        if text is not None:
            self._archive.add_text(name, text)

    # --- asking ---------------------------------------------------------------------------------------------------------

    async def _part(self, name: str, ask: Callable[[], Awaitable[object]]) -> None:
        found = await self._asked(name, ask)
        if found is not None:
            self._archive.add(name, found)

    async def _asked(self, name: str, ask: Callable[[], Awaitable[T]]) -> T | None:
        """None: refused, or not in time; the bundle says so."""
        async with self._gate:
            left_s = self._ends_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                self._archive.omitted[name] = "no time was left for this question; raise --timeout"
                return None
            try:
                async with asyncio.timeout(min(QUESTION_S, left_s)):
                    return await ask()
            except (BarnabasError, OSError) as error:  # a TimeoutError is an OSError
                self._archive.omitted[name] = str(error) or f"no answer within {QUESTION_S:.0f} s"
        return None

    async def _each(self, name: str, keys: Sequence[str], ask: Callable[[str], Awaitable[T]]) -> dict[str, T]:
        found = await asyncio.gather(*(self._asked(f"{name} {key}", lambda key=key: ask(key)) for key in keys))  # type: ignore[misc]
        return {key: item for key, item in zip(keys, found, strict=True) if item is not None}


def _metrics_of(address: str, security: "SecurityOptions") -> str:
    """By TLS and with the client's login, if it has them. Admin ports may be without TLS beside listeners with it: then without
    the login, because a password never leaves in plain text."""
    from ...client.connection.security import tls_context_of

    context = tls_context_of(security)
    if context is None:
        return _read(urllib.request.Request(f"http://{address}/metrics"), None)
    request = urllib.request.Request(f"https://{address}/metrics")
    user, password = security.get("sasl_plain_username"), security.get("sasl_plain_password")
    if user and password:
        told = base64.b64encode(f"{user}:{password}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {told}")
    try:
        return _read(request, context)
    except urllib.error.URLError as error:
        if not (isinstance(error.reason, ssl.SSLError) and error.reason.reason in _NO_TLS):
            raise
    return _read(urllib.request.Request(f"http://{address}/metrics"), None)


def _read(request: urllib.request.Request, context: ssl.SSLContext | None) -> str:
    with urllib.request.urlopen(request, timeout=QUESTION_S, context=context) as answer:
        data: bytes = answer.read(MAX_PART_BYTES + 1)
    return data.decode(errors="replace")


def _set(entries: Sequence[Any]) -> list[Mapping[str, object]]:
    """Settings that are not at their default, without their documentation."""
    return [
        {"key": item.key, "value": None if item.sensitive else item.value, "source": item.source}
        for item in entries
        if item.source != "default"
    ]


def add_frame(archive: Archive, findings: Sequence[Finding], version: str) -> None:
    """What a bundle has also without a cluster. Call it last."""
    archive.add_text("README.txt", README)
    archive.add("findings.json", [item.row for item in findings])
    archive.add(
        "versions.json",
        {"barnabas": version, "python": sys.version, "system": platform.platform(), "machine": platform.machine()},
    )
    archive.add("unanswered.json", archive.omitted)
