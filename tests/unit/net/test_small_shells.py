"""A follower's connection to its leader, the directory of the quorum, the cores' settings, and the metrics of a broker."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from unit.net.shell_world import LISTENER, Shell, broker, image_of, simulated

from barnabas.consumer_groups.transactions.counts import TransactionCounts
from barnabas.kraft.quorum.voters import VoterSet
from barnabas.kraft.raft.net.wire import Directory, encode_directory
from barnabas.log.compaction.cleaner import CleanerTotals, Uncleanable
from barnabas.log.disk.files import DiskUsage
from barnabas.log.replication.replica_manager import ReplicaCounts
from barnabas.log.vocabulary.errors import BrokerNotAvailableError, InvalidConfigError, NetworkError
from barnabas.log.vocabulary.node_address import NodeAddress
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.figures.loop_delays import LoopDelays
from barnabas.net.base.figures.request_measures import RequestMeasures
from barnabas.net.base.figures.topic_traffic import TopicTraffic
from barnabas.net.base.settings.config import load
from barnabas.net.broker.core_settings import (
    check_broker_config,
    check_topic_config,
    controller_settings,
    group_settings,
)
from barnabas.net.broker.metrics import GROUPS_TOLD, group_samples, samples
from barnabas.net.broker.monitoring.machine import MachineWatch
from barnabas.net.coordination.transactions.transaction_watch import TransactionTotals
from barnabas.net.logs.following.leader_connection import LeaderConnection
from barnabas.net.metadata.quorum_directory import QuorumDirectory
from barnabas.net.metadata.quorum_source import encode_address
from barnabas.net.server.dispatcher import Dispatcher
from barnabas.net.server.quotas.client_quotas import ClientQuotas
from barnabas.net.server.server import Server
from barnabas.net.testing.simulation.cluster import QuorumNetwork
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.group_responses import ListGroupsResponse
from barnabas.net.wire.protocol.requests import ListGroupsRequest

# --- the connection to a leader ---------------------------------------------------------------------------------------


async def leader(shell: Shell, host: str) -> list[object]:
    """A broker that answers; returns what it is asked."""
    asked: list[object] = []

    def handle(request: object, context: object, reply: Any) -> None:
        asked.append(request)
        reply(ListGroupsResponse(groups=()))

    server = Server(shell.world.node(host), Dispatcher({ApiKey.LIST_GROUPS: handle}), listener_name=LISTENER)
    await server.start(host, 9092)
    return asked


@simulated
async def test_a_leader_is_found_by_its_id_wherever_it_is_now() -> None:
    shell = await Shell.start()
    old, new = await leader(shell, "host-1"), await leader(shell, "moved")
    addresses = {1: ("host-1", 9092)}
    connection = LeaderConnection(1, shell.pool, addresses.__getitem__)
    for _ in range(2):
        assert await (await connection.send(ListGroupsRequest(), 1_000)) == ListGroupsResponse(groups=())
    assert len(old) == 2
    addresses[1] = ("moved", 9092)
    await (await connection.send(ListGroupsRequest(), 1_000))
    assert len(new) == 1
    await connection.close()
    assert shell.pool.peek("moved", 9092) is not None  # it is the pool's


@simulated
async def test_a_leader_that_is_unknown_or_gone() -> None:
    shell = await Shell.start()
    with pytest.raises(BrokerNotAvailableError):
        await LeaderConnection(4, shell.pool, shell.controller.address_of).send(ListGroupsRequest(), 1_000)
    shell.source.publish(image_of(broker(4)))
    with pytest.raises(NetworkError):
        await LeaderConnection(4, shell.pool, shell.controller.address_of).send(ListGroupsRequest(), 1_000)


# --- the directory ----------------------------------------------------------------------------------------------------


VOTERS = VoterSet(
    voters=tuple(NodeAddress(node_id=number, host=f"v{number}", port=9093) for number in range(3)), index=0
)


class QuorumPort(asyncio.Protocol):
    """A voter's quorum port, as far as a stranger sees it."""

    def __init__(self, endpoints: dict[int, bytes]) -> None:
        self._answer = encode_directory(
            Directory(node_id=0, cluster_id="c", leader_id=0, endpoints=endpoints, voters=VOTERS)
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(self._answer)


@simulated
async def test_the_directory_asks_all_voters_and_remembers_what_any_of_them_told() -> None:
    shell = await Shell.start()
    told = {0: {0: encode_address("a", 1), 2: b"nonsense"}, 1: {1: encode_address("b", 2)}}
    for node_id, endpoints in told.items():
        await shell.world.node(f"v{node_id}").listen(lambda told=endpoints: QuorumPort(told), f"v{node_id}", 9093)
    voters = tuple((f"v{node_id}", 9093) for node_id in range(3))  # the third is away
    directory = QuorumDirectory(voters=voters, network=QuorumNetwork(shell.world.node("observer")))
    assert directory.known(0) is None
    assert sorted(await directory.addresses()) == [("a", 1), ("b", 2)]
    assert [directory.known(node_id) for node_id in range(3)] == [("a", 1), ("b", 2), None]
    for name in ("v0", "v1"):
        shell.world.kill(name)
    assert sorted(await directory.addresses()) == [("a", 1), ("b", 2)]


# --- settings ---------------------------------------------------------------------------------------------------------


def test_every_setting_of_the_cores_comes_from_its_key() -> None:
    given = {
        "broker.session.timeout.ms": "8001",
        "broker.heartbeat.interval.ms": "1001",
        "num.partitions": "7",
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "unclean.leader.election.enable": "true",
        "auto.leader.rebalance.enable": "false",
        "leader.imbalance.check.interval.seconds": "11",
        "group.consumer.session.timeout.ms": "33333",
        "group.consumer.heartbeat.interval.ms": "3333",
        "group.consumer.max.size": "44",
        "offset.metadata.max.bytes": "55",
    }
    controller, groups = controller_settings(load(None, given, {})), group_settings(load(None, given, {}))
    assert (controller.session_timeout_ms, controller.heartbeat_interval_ms) == (8001, 1001)
    assert (controller.default_partitions, controller.default_replication_factor) == (7, 3)
    assert controller.min_insync_replicas == 2 and controller.unclean_leader_election
    assert not controller.auto_preferred_leaders and controller.preferred_leader_check_interval_ms == 11_000
    assert (groups.session_timeout_ms, groups.heartbeat_interval_ms) == (33333, 3333)
    assert (groups.max_group_size, groups.offset_metadata_max_bytes) == (44, 55)


def test_what_the_controller_takes_as_configuration() -> None:
    check_topic_config("retention.ms", "5")
    for key, value in (("retention.ms", "x"), ("retention.msec", "5")):
        with pytest.raises(InvalidConfigError):
            check_topic_config(key, value)
    with pytest.raises(InvalidConfigError, match="has no effect"):
        check_broker_config("num.network.threads", "3")
    with pytest.raises(InvalidConfigError, match="restart"):
        check_broker_config("max.connections", "3")


# --- metrics ----------------------------------------------------------------------------------------------------------


def _two_logs() -> SimpleNamespace:
    """One of them damaged."""
    return SimpleNamespace(
        logs={
            1: SimpleNamespace(size_bytes=100, damage=SimpleNamespace(found=2, is_known=False)),
            2: SimpleNamespace(size_bytes=23, damage=SimpleNamespace(found=1, is_known=True)),
        },
        offline_folders={},
        folders=[],
    )


def _counted() -> ReplicaCounts:
    return ReplicaCounts(
        partitions=9,
        leaders=4,
        under_replicated=3,
        under_min_isr=2,
        at_min_isr=1,
        offline=1,
        isr_expands=5,
        isr_shrinks=6,
    )


def _served(shell: Shell) -> Server:
    server = Server(shell.world.node("host-0"), Dispatcher({}), listener_name=LISTENER)
    server.metrics.bytes_in, server.metrics.bytes_out = 11, 12
    server.metrics.requests[ApiKey.FETCH] = 13
    server.metrics.requests[18] = 14  # ApiVersions: a key of Kafka's alone
    return server


def _cleaned() -> CleanerTotals:
    totals = CleanerTotals(runs=3, bytes_read=700, bytes_written=70, last_ratio=0.1, last_run_ms=8_000)
    totals.uncleanable[TopicPartition("t", 1)] = Uncleanable(cause="damaged", retry_at_ms=10_000)
    return totals


def _measured() -> Any:
    delays = LoopDelays()
    delays.note(0.02, 0.0)
    delays.note(0.0, 0.1)
    machine = MachineWatch((), lambda path: DiskUsage(total_bytes=1, free_bytes=1))
    return SimpleNamespace(loop_delays=delays, measures=RequestMeasures(), traffic=TopicTraffic(0), machine=machine)


@simulated
async def test_a_brokers_metrics_have_units_labels_and_the_values_of_now() -> None:
    shell = await Shell.start()
    shell.source.publish(image_of(broker(0), offset=77), term=6)
    server = _served(shell)
    watched = SimpleNamespace(
        metadata=shell.metadata,
        lifecycle=SimpleNamespace(fenced=True),
        groups=SimpleNamespace(machines=lambda: [1, 2], unowned_counts=lambda: {"billing": 6}, parked_count=4),
        replication=SimpleNamespace(manager=SimpleNamespace(counts=_counted, partitions=list), purgatory=[1, 2, 3]),
        logs=_two_logs(),
        listeners=SimpleNamespace(servers={LISTENER: server}),
        authenticator=SimpleNamespace(logins=8, failed_logins=2, unchecked_logins=5),
        journal_storage=None,
        transactions=SimpleNamespace(watch=SimpleNamespace(totals=TransactionTotals())),
        slot_machines=SimpleNamespace(counts=TransactionCounts()),
        cleaner_service=SimpleNamespace(cleaner=SimpleNamespace(totals=_cleaned())),
        ports=SimpleNamespace(clock=SimpleNamespace(wall_ms=lambda: 9_500)),
        quotas=ClientQuotas({}),
        figures=_measured(),
        controller=SimpleNamespace(clock_offset=SimpleNamespace(least_ms=-1_500)),
    )
    of_all = samples(cast(Any, watched))
    found = {(item.name, item.labels.get("api", "")): item for item in of_all}
    values = {name: item.value for (name, _), item in found.items()}
    expected = {
        "barnabas_metadata_offset": 77,
        "barnabas_quorum_term": 6,
        "barnabas_active_controller": 1,
        "barnabas_broker_fenced": 1,
        "barnabas_group_slots_hosted": 2,
        "barnabas_group_unowned_partitions": 6,
        "barnabas_loop_delay_max_seconds": 0.02,
        "barnabas_loop_checks_total": 2,
        "barnabas_clock_offset_seconds": -1.5,
        "barnabas_build_info": 1,
        "barnabas_partitions": 9,
        "barnabas_leaders": 4,
        "barnabas_under_replicated_partitions": 3,
        "barnabas_under_min_isr_partitions": 2,
        "barnabas_offline_partitions": 1,
        "barnabas_isr_expands_total": 5,
        "barnabas_isr_shrinks_total": 6,
        "barnabas_parked_requests": 3,
        "barnabas_parked_group_requests": 4,
        "barnabas_pending_answers": 0,
        "barnabas_damaged_batches_total": 3,
        "barnabas_damaged_partitions": 1,
        "barnabas_log_size_bytes": 123,
        "barnabas_bytes_received_total": 11,
        "barnabas_logins_total": 8,
        "barnabas_quota_refused_total": 0,
        "barnabas_logins_failed_total": 2,
        "barnabas_logins_unchecked_total": 5,
        "barnabas_bytes_sent_total": 12,
        "barnabas_log_cleaner_runs_total": 3,
        "barnabas_log_cleaner_bytes_read_total": 700,
        "barnabas_log_cleaner_bytes_written_total": 70,
        "barnabas_log_cleaner_ratio": 0.1,
        "barnabas_log_cleaner_seconds_since_last_run": 1.5,
        "barnabas_log_cleaner_uncleanable_partitions": 1,
    }
    assert values.items() >= expected.items()
    late = {item.labels["over_seconds"]: item.value for item in of_all if item.name.endswith("loop_checks_late_total")}
    assert (late["0.01"], late["0.025"], len(late)) == (1, 0, 8)
    fetches = found["barnabas_requests_total", "fetch"]
    assert (fetches.value, dict(fetches.labels)) == (13, {"listener": LISTENER, "api": "fetch"})
    assert found["barnabas_requests_total", "api_versions"].value == 14
    assert all(item.help.endswith(".") for item in found.values())
    assert all((item.type == "counter") == item.name.endswith("_total") for item in found.values())


def test_the_worst_groups_have_a_label_and_the_others_share_one() -> None:
    counts = {f"group-{number:03}": number for number in range(1, GROUPS_TOLD + 3)}
    told = {item.labels["group"]: item.value for item in group_samples(counts)}
    assert len(told) == GROUPS_TOLD + 1
    assert (told["group-102"], told["group-003"], told[""]) == (102, 3, 1 + 2)
    (none,) = group_samples({})
    assert (none.labels, none.value) == ({"group": ""}, 0), "the metric is there before it is needed"
