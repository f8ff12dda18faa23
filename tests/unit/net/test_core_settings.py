"""What the pure cores and the shells are told of a broker's configuration, and what the controller refuses for a topic."""

import pytest

from barnabas.kraft.quorum.config import RaftTiming, SnapshotPolicy
from barnabas.log.settings.config import TOPIC_KEYS
from barnabas.log.settings.table import check_broker_config, check_topic_config
from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.base.settings.config import load
from barnabas.net.base.settings.server_limits import ServerLimits
from barnabas.net.broker.core_settings import (
    fetch_settings,
    raft_timing,
    server_limits,
    snapshot_policy,
)
from barnabas.net.logs.following.replica_fetcher import FetchSettings


def test_the_defaults_of_the_configuration_are_those_of_the_cores() -> None:
    config = load(None, {}, {})
    assert raft_timing(config) == RaftTiming()
    assert snapshot_policy(config) == SnapshotPolicy()
    assert fetch_settings(config) == FetchSettings()
    assert server_limits(config) == ServerLimits()


@pytest.mark.parametrize("timeout_ms", [100, 333, 5_000, 60_000])
def test_the_whole_timing_of_the_quorum_follows_its_election_timeout(timeout_ms: int) -> None:
    timing = raft_timing(load(None, {"controller.quorum.election.timeout.ms": str(timeout_ms)}, {}))
    factor = timeout_ms / 1000
    assert timing.election_min_s == pytest.approx(factor)
    assert timing.election_max_s == pytest.approx(2 * factor)
    assert timing.heartbeat_s == pytest.approx(0.2 * factor)
    assert timing.leader_fallback_s == pytest.approx(0.9 * factor)


def test_the_size_of_the_quorums_journal_follows_its_key() -> None:
    config = load(None, {"metadata.log.max.record.bytes.between.snapshots": "131072"}, {})
    assert snapshot_policy(config).size_bytes == 131_072


def test_a_follower_fetches_as_its_configuration_says() -> None:
    overrides = {
        "replica.fetch.wait.max.ms": "70",
        "replica.fetch.min.bytes": "9",
        "replica.fetch.response.max.bytes": "5000",
        "replica.fetch.max.bytes": "400",
        "replica.socket.timeout.ms": "90",
        "replica.fetch.backoff.ms": "100",
    }
    assert fetch_settings(load(None, overrides, {})) == FetchSettings(
        max_wait_ms=70, min_bytes=9, max_bytes=5_000, max_partition_bytes=400, call_timeout_ms=90, max_backoff_ms=100,
        max_idle_wait_ms=45,
    )  # fmt: skip
    assert fetch_settings(load(None, {}, {})).max_idle_wait_ms == 2_000
    assert fetch_settings(load(None, {"replica.lag.time.max.ms": "1000"}, {})).max_idle_wait_ms == 250


def test_a_connection_buffers_what_its_configuration_says() -> None:
    assert server_limits(load(None, {"queued.max.request.bytes": "12345"}, {})).max_buffered_bytes == 12_345


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("preallocate", "TRUE", "use false"),
        ("cleanup.policy", "shred", "must be a comma-separated list of delete, compact"),
    ],
)
def test_a_topic_is_refused_what_would_have_no_effect(key: str, value: str, told: str) -> None:
    with pytest.raises(InvalidConfigError, match=told) as refused:
        check_topic_config(key, value)
    assert str(refused.value).startswith(f"{key} ") and repr(value) in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [("log.retention.ms", "5"), ("compression.type", "zstd"), ("message.max.bytes", "2000"), ("log.roll.ms", "60000")],
)
def test_defaults_of_topics_can_be_set_while_brokers_run(key: str, value: str) -> None:
    check_broker_config(key, value)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        (
            "log.retention.ms",
            "soon",
            "log.retention.ms must be an integer between -1 and 9223372036854775807, not 'soon'",
        ),
        ("compression.gzip.level", "0", "must be an integer between 1 and 9, or -1"),
        ("min.insync.replicas", "2", "min.insync.replicas"),
        ("log.flush.interval.messages", "1", "log.flush.interval.messages"),
        ("log.cleaner.min.compaction.lag.ms", "3", "restart"),
        ("num.partitions", "3", "one value for the whole cluster"),
        ("max.connections", "5", "restart"),
        ("log.cleaner.threads", "2", "no effect here: one log"),
        ("log.retention.msec", "2", "unknown configuration key"),
    ],
)
def test_what_would_not_be_noticed_is_refused(key: str, value: str, told: str) -> None:
    with pytest.raises(InvalidConfigError, match=told):
        check_broker_config(key, value)


def test_a_topic_may_say_every_default_and_its_flush_policy() -> None:
    for row in TOPIC_KEYS.values():
        check_topic_config(row.name, row.kind.show(row.default))
    check_topic_config("preallocate", "False")
    for policy in ("compact", "delete, compact"):
        check_topic_config("cleanup.policy", policy)
    check_topic_config("flush.messages", "1")
    for key in ("flush.messages", "flush.ms"):
        assert "Flush to disk" in TOPIC_KEYS[key].documentation
