"""`Cluster`: a cluster for tests, notebooks and scripts, which can be broken on purpose.

    with Cluster(brokers=3) as cluster:
        producer = Producer(cluster.bootstrap_servers)      # of Barnabas, confluent-kafka, aiokafka, kafka-python, ...
        with cluster.kill(cluster.leader("orders")):
            ...                                             # the producer finds the new leader
        cluster.assert_delivered("orders", sent, exactly_once=True)

Methods block, also where a coroutine calls them: most for milliseconds. `cluster.aio` has the same methods as coroutines.
What a test cannot do with one of the two backends stands in docs/testing.md.
"""

import asyncio
import os
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from barnabas.log.vocabulary.access.acls import Permission
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.group_messages import RebalanceEvent
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..client.connection.arguments import explained
from ..client.connection.loop_thread import loop_thread
from ..client.connection.records import ConsumerRecord
from .access import asked_access, login_of, options_for
from .argument_checks import check_counts, check_keys, check_own_keys, check_users
from .async_cluster import AsyncCluster
from .brokers.backends import BACKENDS, USUAL_VOTERS
from .fault import Fault
from .parts import ClusterParts

T = TypeVar("T")
Brokers = int | Iterable[int] | None  # None: all

START_TIMEOUT_S: Final = 60.0  # for what takes less than a second on an idle machine
LOG_LINES: Final = 40  # of each broker
# A dead broker is noticed, an initial rebalance ends, and a deleted log disappears sooner than in production: tests wait for it.
DEFAULTS: Final[Mapping[str, str]] = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "100",
    "replica.lag.time.max.ms": "3000",
}


@explained(
    api='a request of Kafka\'s protocol, such as "PRODUCE"',
    broker="the number of a broker",
    brokers="numbers of brokers; by default all",
    client_id="only requests and connections of the client with this name",
    configs="keys of the topic, {key: value}",
    delay_ms="milliseconds",
    exactly_once="nothing else is there, and nothing twice",
    group="the name of a group",
    isolation_level='"read_committed", or "read_uncommitted": also records of open and aborted transactions',
    name="the name of the topic",
    one_side="a broker, or several",
    other_side="a broker, or several",
    partition="the number of a partition",
    partitions="how many it has",
    permissions='such as "READ TOPIC orders" or "WRITE TOPIC orders*"',
    replication_factor="replicas of each partition; -1: the default of the cluster, at most three",
    seconds="how far; negative: back",
    timeout_s="seconds until it raises AssertionError; None: that of the cluster",
    times="how many requests of all brokers together; None: each of them",
    topic="the name of a topic",
    user="one of `users`",
)
class Cluster:
    """Started by `start`, or by `with` and `async with`. See the module for an example."""

    def __init__(
        self,
        brokers: int = 3,
        *,
        backend: str = "in-process",
        voters: int | None = None,
        config: Mapping[str, str] | None = None,
        broker_config: Mapping[int, Mapping[str, str]] | None = None,
        tls: bool = False,
        users: Mapping[str, str] | None = None,
        permissions: Mapping[str, Sequence[str]] | None = None,
        folder: Path | str | None = None,
        timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """`backend`: "in-process" (brokers in threads of this process) or "processes" (a process each). `voters`: of the quorum,
        all brokers but three at most by default. `config`: keys of brokers, such as "num.partitions"; `broker_config`: those of
        single brokers, {2: {"broker.rack": "b"}}. `folder`: where the data stays; by default it is in memory and removed.
        `timeout_s`: how long any call waits for the cluster.

        `tls`: clients connect with TLS. `users`: they log in, {name: password}. `permissions`: what each user may do,
        {"alice": ["WRITE TOPIC orders*", "READ GROUP billing"]}; without it, everything. `login` has the options of clients."""
        check_counts(brokers, voters, timeout_s)
        if backend not in BACKENDS:
            raise ValueError(f"there is no backend {backend!r}; choose one of {', '.join(BACKENDS)}")
        voter_count = min(brokers, USUAL_VOTERS) if voters is None else voters
        check_keys({} if config is None else config)
        check_own_keys({} if broker_config is None else broker_config, brokers)
        check_users(users)
        self._access = asked_access(tls=tls, users=users, permissions=permissions)
        self._brokers = range(brokers)
        self.backend = backend
        self._voters = range(voter_count)
        self._config = {**DEFAULTS, "default.replication.factor": str(min(brokers, 3)), **(config or {})}
        self._own_keys = {broker: dict(keys) for broker, keys in (broker_config or {}).items()}
        self._given_folder = None if folder is None else Path(folder).absolute()
        self._timeout_s = timeout_s
        self._parts: ClusterParts | None = None
        self._process_id = os.getpid()  # of the process that started it

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Returns when the brokers serve. Raises ClusterError."""
        if self._parts is None:
            self._process_id = os.getpid()
            self._parts = ClusterParts(
                backend=self.backend,
                brokers=self._brokers,
                voters=len(self._voters),
                config=self._config,
                own_keys=self._own_keys,
                folder=self._given_folder,
                access=self._access,
                timeout_s=self._timeout_s,
            )
        return self

    def close(self) -> None:
        """End all brokers, and remove the data unless a folder was given. A forked child does nothing here: the cluster is
        its parent's."""
        if self._process_id != os.getpid():
            return
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    @property
    def aio(self) -> AsyncCluster:
        """The same methods as coroutines: `await cluster.aio.reset()`, `async with cluster.aio.kill(0)`."""
        return AsyncCluster(self)

    @property
    def is_started(self) -> bool:
        """Whether it was started and not closed."""
        return self._parts is not None

    @property
    def brokers(self) -> Sequence[int]:
        """The numbers of all brokers, also of those that do not run."""
        return self._brokers if self._parts is None else self._parts.brokers

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, for any client: "127.0.0.1:9092,..."."""
        return _running(self._parts).bootstrap

    def address(self, broker: int) -> str:
        """Where clients reach this broker: "127.0.0.1:9092"."""
        return _running(self._parts).backend.address(broker)

    def is_running(self, broker: int) -> bool:
        """Whether it has been started and not killed; a paused broker runs."""
        return self._started.backend.is_running(broker)

    def logs(self, lines: int = LOG_LINES) -> str:
        """The state of each broker and, of a process, the last lines of its log. The pytest plugin shows them where a test
        fails."""
        return "" if self._parts is None else self._parts.backend.logs(lines)

    @property
    def controller(self) -> int:
        """The broker that leads the quorum, as most brokers know it; -1: none."""
        known = self._started.injection.controllers()
        return max(set(known), key=known.count, default=-1)

    def create_topic(
        self, name: str, *, partitions: int = 1, replication_factor: int = -1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Returns when all brokers know it, so that any client can use it at once. A broker that does not answer is waited for
        two seconds."""
        running = [self.address(broker) for broker in self.brokers if self.is_running(broker)]

        async def create() -> None:
            observation = self._started.observation
            admin = await observation.admin()
            await admin.create_topic(
                name, partitions=partitions, replication_factor=replication_factor, configs=configs
            )
            await asyncio.gather(*(observation.is_known(name, address) for address in running))

        self._run(create())

    def leader(self, topic: str, partition: int = 0) -> int:
        """The broker that leads a partition; -1: none at the moment."""

        async def find() -> int:
            found = await (await self._started.observation.admin()).describe_topic(topic)
            return found.partitions[partition].leader

        return self._run(find())

    def coordinator(self, group: str) -> int:
        """The broker that coordinates a group."""

        async def find() -> int:
            return (await self._started.observation.describe(group)).coordinator

        return self._run(find())

    def reset(self) -> list[str]:
        """Undo all faults, and remove all topics, groups and open transactions. Users and permissions are those of the start
        again; brokers that were added or removed stay so.

        Returns the groups that had members. A consumer that was not closed joins its group again."""
        self.heal()
        return self._run(self._started.reset())

    def add_broker(self, config: Mapping[str, str] | None = None) -> int:
        """Start one more broker, and return its number when it takes part. `config`: keys of its own. New partitions are placed
        there, too; `Admin.fill_broker` moves others to it."""
        check_keys({} if config is None else config)
        return self._started.add_broker(config or {})

    def remove_broker(self, broker: int) -> None:
        """Returns when the others have its replicas and its vote, and it has left the cluster for good. Raises
        InvalidReplicationFactorError if too few brokers would remain."""
        self._started.remove_broker(broker)

    # --- logins -------------------------------------------------------------------------------------------------------

    def login(
        self, user: str | None = None, *, password: str | None = None, client: str = "barnabas"
    ) -> dict[str, Any]:
        """The security options of a client: `Producer(cluster.bootstrap_servers, **cluster.login("alice"))`.

        Without a user: of the administrator, who may do everything. `password`: to try another one than that of the user.
        `client`: whose names the options have, "barnabas", "kafka-python", "aiokafka", "confluent-kafka" or "java". With TLS and
        without `users`, any user gets a certificate with this name. Empty for a cluster without TLS and users. Raises
        ValueError."""
        return options_for(client, login_of(self._access, _running(self._parts).folder, user, password))

    def allow(self, user: str, *permissions: str) -> Fault:
        """`allow("alice", "READ TOPIC orders")`: returns when all brokers know it. Undone, they are withdrawn."""
        return self._started.permit(user, permissions, Permission.ALLOW)

    def deny(self, user: str, *permissions: str) -> Fault:
        """Likewise; it is stronger than what is allowed."""
        return self._started.permit(user, permissions, Permission.DENY)

    # --- faults of brokers --------------------------------------------------------------------------------------------

    def kill(self, *brokers: int) -> Fault:
        """kill -9. In-process brokers lose what they hold in memory, as a process does; what they wrote stays. Undone: they run
        again."""
        return self._started.injection.kill(brokers)

    def restart(self, *brokers: int) -> None:
        """Start brokers that have ended; returns when they take part again. Without arguments: all of them."""
        self._started.injection.restart(brokers or self.brokers)

    def pause(self, *brokers: int) -> Fault:
        """They stand still, with open connections, like a machine that swaps (SIGSTOP)."""
        return self._started.injection.pause(brokers)

    def heal(self) -> None:
        """Undo all faults; returns when all brokers take part again."""
        self._started.injection.heal()

    # --- faults of networks and disks ---------------------------------------------------------------------------------

    def partition(self, one_side: Brokers, other_side: Brokers) -> Fault:
        """Brokers of the two sides do not hear each other; clients reach all of them."""
        one, other = self._chosen(one_side), self._chosen(other_side)
        return self._started.injection.cut(one, other, f"partition({one}, {other})")

    def slow_network(self, delay_ms: int, *, brokers: Brokers = None) -> Fault:
        """Whatever arrives at these brokers is late by so much, from clients and from brokers."""
        return self._started.injection.delay_network(self._chosen(brokers), delay_ms)

    def slow_disk(self, delay_ms: int, *, brokers: Brokers = None) -> Fault:
        """Each write and each flush takes so much longer."""
        return self._started.injection.delay_disk(self._chosen(brokers), delay_ms)

    def full_disk(self, *, brokers: Brokers = None) -> Fault:
        """Nothing more can be written to partitions; the quorum's journal has space in reserve."""
        return self._started.injection.fill_disk(self._chosen(brokers))

    def lose_quorum(self) -> Fault:
        """The voters do not hear each other. Returns when no broker knows a controller; undone: when there is one again."""
        voters = [voter for voter in self._voters if voter in self.brokers]
        if len(voters) < 2:
            raise ValueError("lose_quorum: a quorum of one voter cannot be cut apart; start the cluster with brokers=3")
        lost = self._started.injection.lose_quorum(voters)

        def undo() -> None:
            lost.undo()
            self._started.injection.wait_until_ready(self._started.injection.awake())

        return Fault("lose_quorum", undo)

    def advance_clock(self, seconds: float, *, brokers: Brokers = None) -> Fault:
        """The brokers' wall clocks: time stamps, retention, expiry of offsets. Timeouts and timers go on as before."""
        return self._started.injection.advance_clock(self._chosen(brokers), round(seconds * 1000))

    # --- faults of requests -------------------------------------------------------------------------------------------

    def fail(
        self,
        api: str,
        error: str | int,
        *,
        times: int | None = None,
        client_id: str | None = None,
        brokers: Brokers = None,
    ) -> Fault:
        """Requests of clients fail with this error, and have no effect: `fail("PRODUCE", "NOT_LEADER_OR_FOLLOWER", times=3)`.
        Without `times`, each of them."""
        return self._started.injection.hit_requests(
            self._chosen(brokers), api, error=error, times=times, client_id=client_id
        )

    def lose_answer(
        self, api: str, *, times: int | None = 1, client_id: str | None = None, brokers: Brokers = None
    ) -> Fault:
        """The broker does what was asked, and the connection breaks before the answer."""
        return self._started.injection.hit_requests(
            self._chosen(brokers), api, error=None, times=times, client_id=client_id
        )

    def drop_connections(self, client_id: str | None = None, *, brokers: Brokers = None) -> int:
        """Close the open connections of a client, or all; return how many there were."""
        return self._started.injection.drop_connections(self._chosen(brokers), client_id)

    # --- groups -------------------------------------------------------------------------------------------------------

    def force_rebalance(self, group: str) -> None:
        """A member joins the group and leaves it again. Call it as `await cluster.aio.force_rebalance(...)` where members of the
        group run on the caller's event loop: they take part."""
        self._run(self._started.groups.force_rebalance(group))

    def expire_session(self, group: str, member: str | None = None) -> str:
        """End a member's session, as if its heartbeats had stopped; it learns of that with the next one. `member`: a member id,
        client id or instance id, by default any. Returns the member id."""
        found = self._run(self._started.groups.find_member(group, member))
        self._started.injection.end_session(found.coordinator, group, found.member_id)
        return found.member_id

    def rebalances(self, group: str) -> list[RebalanceEvent]:
        """The last rebalances of the group, with their causes, the oldest first."""
        return self._run(self._started.observation.rebalances(group))

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The next offset to read, by partition."""
        return self._run(self._started.observation.committed(group))

    def lag(self, group: str) -> dict[TopicPartition, int]:
        """Records that are still to be read, by partition."""
        return self._run(self._started.observation.lag(group))

    def wait_until_caught_up(self, group: str, *topics: str, timeout_s: float | None = None) -> None:
        """Returns when the group has committed the end of each partition of these topics (by default: of those it knows)."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        self._run(self._started.observation.wait_until_caught_up(group, topics, limit_s))

    # --- records ------------------------------------------------------------------------------------------------------

    def records(self, topic: str, *, isolation_level: str = "read_committed") -> list[ConsumerRecord]:
        """All records of the topic, in the order of partitions and offsets."""
        return self._run(self._started.observation.records(topic, isolation_level=isolation_level))

    def assert_delivered(self, topic: str, values: Iterable[bytes], *, exactly_once: bool = False) -> None:
        """The topic holds all of these values; `exactly_once`: each as often as given here, and nothing else."""
        wanted = list(values)
        self._run(self._started.observation.check_delivered(topic, wanted, exactly_once=exactly_once))

    # --- parts --------------------------------------------------------------------------------------------------------

    @property
    def _started(self) -> ClusterParts:
        if self._process_id != os.getpid():
            raise RuntimeError(
                "this cluster was started before a fork: only the process that started it can ask, break and close it; "
                "in a child, use its bootstrap_servers, address() and login()"
            )
        return _running(self._parts)

    def _chosen(self, brokers: Brokers) -> list[int]:
        if brokers is None:
            return list(self.brokers)
        return list(brokers) if isinstance(brokers, Iterable) and not isinstance(brokers, str) else [brokers]

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return loop_thread().call(coroutine, self._timeout_s)
        except BarnabasError as error:
            error.add_note(f"faults of this cluster that hold: {self._started.injection.holding}")
            raise


def _running(parts: ClusterParts | None) -> ClusterParts:
    """Also in a forked child, which may connect to the cluster of its parent."""
    if parts is None:
        raise RuntimeError("the cluster does not run: call start(), or use it in a with statement")
    return parts
