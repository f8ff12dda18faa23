"""`config`, and what `topic describe` and `group` say of offsets, lag and members, with a cluster in memory."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from unit.net.cli.fake_cluster import FakeCluster

from barnabas.log.vocabulary.group_messages import TopicPartitions
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.cli.frame.exit_codes import CommandError
from barnabas.net.cli.verbs import topics
from barnabas.net.cli.verbs.cluster import ALL_BROKERS, BROKER_RESOURCE
from barnabas.net.cli.verbs.configs import check_removed

P0 = TopicPartition("t", 0)


def test_what_was_set_in_topics_and_brokers(run: Any, cluster: FakeCluster) -> None:
    cluster.fenced = {2}  # it would not answer
    code, out, _ = run("config", "list")
    assert code == 0
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["topic", "t", "a", "1", "topic"],
        ["broker", "0", "a", "1", "broker"],
        ["broker", "1", "a", "1", "broker"],
    ]
    assert "password  (hidden)  default" in run("config", "list", "-t", "t", "--all")[1]


def test_one_value_is_printed_alone(run: Any) -> None:
    assert run("config", "get", "a", "-t", "t") == (0, "1\n", "")
    assert [row["value"] for row in json.loads(run("config", "get", "a", "-f", "json")[1])] == ["1"] * 4


def test_a_change_is_checked_everywhere_before_it_is_made(run: Any, cluster: FakeCluster) -> None:
    code, out, _ = run("config", "set", "a=2", "b=3", "-t", "t", "-b", "1", "--cluster")
    assert (code, out) == (0, "changed topic t\nchanged broker 1\nchanged cluster\n")
    changes = {"a": "2", "b": "3"}
    asked = [("t", changes, 2), ("1", changes, 4), ("", changes, 4)]
    assert cluster.calls == [("alter_config", *one, is_check) for is_check in (True, False) for one in asked]
    cluster.calls.clear()
    assert run("config", "reset", "a", "-t", "t")[0] == 0
    assert cluster.calls[-1] == ("alter_config", "t", {"a": None}, 2, False)


async def test_keys_of_a_broker_that_are_removed_are_checked_without_it() -> None:
    """It may be down."""
    asked: list[str] = []

    class OthersRun:
        async def describe_configs(self, resource: str, *, resource_type: int) -> list[Any]:
            asked.append(resource)
            return [SimpleNamespace(key="password")]

    with pytest.raises(CommandError, match="there is no key pasword"):
        await check_removed(cast(Any, OthersRun()), "1", {"pasword": None}, kind=BROKER_RESOURCE)
    assert asked == [ALL_BROKERS]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ("config get aa", 1, "there is no key aa (did you mean a?); see them all: barnabas config list --all"),
        ("config set a=1", 2, "say what to change: -t TOPIC, -b BROKER or --cluster"),
        ("config set a -t t", 2, "'a' is not KEY=VALUE"),
        ("config set a=1 -b x", 2, "x: give an integer of at least 0"),
        ("config get a -t u", 1, "topic u does not exist"),
    ],
)
def test_faults(run: Any, arguments: str, code: int, told: str) -> None:
    found, out, err = run(*arguments.split())
    assert (found, out) == (code, "") and told in err


def test_offsets_and_rates_of_a_topic(run: Any, cluster: FakeCluster) -> None:
    told = json.loads(run("topic", "describe", "t", "--rate", "1", "-f", "json")[1])
    assert [(row["start"], row["end"], row["records_per_s"]) for row in told["partitions"]] == [(0, 3, 0), (0, 1, 0)]
    assert "START  END" in run("topic", "describe", "t")[1]


def test_sizes_of_a_topic(run: Any, cluster: FakeCluster) -> None:
    told = json.loads(run("topic", "describe", "t", "-f", "json")[1])["partitions"]
    assert [(row["bytes"], row["bytes_of"]) for row in told] == [
        (1_000 * number + row["leader"], {str(node): 1_000 * number + node for node in row["replicas"]})
        for number, row in enumerate(told)
    ]
    assert "BYTES" in run("topic", "describe", "t")[1]


def test_a_leader_that_does_not_answer_does_not_keep_the_description(
    run: Any, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "OFFSETS_WAIT_S", 0.05)
    cluster.trouble = "frozen"
    code, out, _ = run("topic", "describe", "t", "-f", "json")
    assert code == 0 and [row["end"] for row in json.loads(out)["partitions"]] == [None, None]


def test_the_lag_of_each_group(run: Any, cluster: FakeCluster) -> None:
    cluster.committed["g"] = {P0: 1}
    assert json.loads(run("group", "list", "-f", "json")[1])[0]["lag"] == 2
    assert "LAG" not in run("group", "list", "--no-lag")[1]


def test_members_are_removed_by_name(run: Any, cluster: FakeCluster) -> None:
    cluster.committed["g"] = {P0: 1}
    assert run("group", "remove-member", "g", "m") == (0, "removed m from g\n", "")
    assert run("group", "remove-member", "g", "--all")[0] == 0
    heartbeat, leave = ("ConsumerGroupHeartbeatRequest", "g", "m"), ("LeaveGroupRequest", "g", "m")
    assert cluster.calls == [heartbeat] * 2
    cluster.is_classic = True
    assert run("group", "remove-member", "g", "m")[0] == 0
    assert cluster.calls[2:] == [heartbeat, leave]
    code, _, err = run("group", "remove-member", "g", "mm")
    assert (code, err) == (
        1,
        "barnabas: group g has no member mm (did you mean m?); see barnabas group describe g\n",
    )
    assert run("group", "remove-member", "g")[0] == run("group", "remove-member", "g", "m", "--all")[0] == 2


def test_offsets_of_a_topic_are_forgotten(run: Any, cluster: FakeCluster) -> None:
    cluster.committed["g"] = {P0: 1, TopicPartition("t", 1): 1}
    code, out, _ = run("group", "delete-offsets", "g", "-t", "t")
    assert (code, out) == (0, "g has no offset in t-0 now\ng has no offset in t-1 now\n")
    assert run("group", "delete-offsets", "g", "-t", "t", "-p", "1")[0] == 0
    asked = [(TopicPartitions(topic="t", partitions=numbers),) for numbers in ((0, 1), (1,))]
    assert cluster.calls == [("DeleteOffsetsRequest", "g", partitions) for partitions in asked]
    code, _, err = run("group", "delete-offsets", "g", "-t", "tt")
    assert (code, err) == (
        1,
        "barnabas: group g has no such offset in tt (did you mean t?); see barnabas group describe\n",
    )
    assert run("group", "delete-offsets", "g", "-t", "t", "-p", "7")[0] == 1
    assert run("group", "delete-offsets", "g")[0] == 2
