"""`topic produce` and `topic consume` from arguments to output and calls, with a cluster in memory."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from unit.net.cli.fake_cluster import FakeCluster, FakeConsumer, FakeRecord

from barnabas.log.vocabulary.errors import (
    CoordinatorNotAvailableError,
    UnknownMemberIdError,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.cli.frame.exit_codes import CommandError
from barnabas.net.cli.frame.patience import Patience
from barnabas.net.cli.streams import consume

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_produce_a_file_with_keys(run: Any, cluster: FakeCluster, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"k1:v1\nno key\n\nk2:v:2")
    code, out, err = run("topic", "produce", "t", "-k", ":", "--acks", "1", str(path))
    assert (code, out, err) == (0, "", "acknowledged 4 records\n")
    assert cluster.calls[0] == ("producer", "1")
    sent = [(values, keys) for name, _, values, keys in (call for call in cluster.calls if call[0] == "send")]
    assert [pair for values, keys in sent for pair in zip(keys, values, strict=True)] == [
        (b"k1", b"v1"),
        (None, b"no key"),
        (None, b""),
        (b"k2", b"v:2"),
    ]


def test_produce_holds_few_chunks_in_flight(run: Any, cluster: FakeCluster, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"x" * 99 + b"\n")
    path.write_bytes(path.read_bytes() * 100_000)
    assert run("topic", "produce", "t", str(path))[0] == 0
    waiting = most = records = 0
    for call in cluster.calls:
        waiting += {"send": 1, "acknowledged": -1}.get(call[0], 0)
        most = max(most, waiting)
        records += len(call[2]) if call[0] == "send" else 0
    assert records == 100_000
    assert most <= 10


@pytest.mark.parametrize(
    ("trouble", "what"),
    [
        ("no topic", "room to send to t: no topic"),
        ("broker 1 is frozen", "acknowledgements (0 of 2 records are acknowledged): broker 1 is frozen"),
    ],
)
def test_producing_gives_up_in_time_and_says_what_it_waits_for(
    run: Any, cluster: FakeCluster, tmp_path: Path, trouble: str, what: str
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\nb\n")
    cluster.trouble = trouble
    code, out, err = run("topic", "produce", "t", str(path), "--timeout", "1")
    assert (code, out) == (4, "")
    assert err == f"barnabas: waited 1 s for {what}; raise the limit with --timeout SECONDS\n"


@pytest.mark.parametrize("more", [(), ("--follow",), ("-g", "g"), ("-g", "g", "--follow")])
def test_consuming_gives_up_in_time_where_something_is_wrong(
    run: Any, cluster: FakeCluster, more: tuple[str, ...]
) -> None:
    cluster.trouble = "the coordinator is away"
    code, out, err = run("topic", "consume", "t", "--timeout", "1", *more)
    assert (code, out) == (4, "")
    assert err.startswith("barnabas: waited 1 s for ")
    assert err.endswith(": the coordinator is away; raise the limit with --timeout SECONDS\n")


def test_patience_speaks_before_it_ends_and_begins_again_with_each_step() -> None:
    now_s, said = [0.0], list[str]()
    patience = Patience(30, note=said.append, trouble=lambda: "why", now_s=lambda: now_s[0])
    for second in range(30):
        now_s[0] = float(second)
        patience.look("an answer")
    assert said == ["waiting for an answer: why"] * 3  # after 3, 13, 23 s
    patience.moved()
    now_s[0] = 58.9
    patience.look("an answer")
    now_s[0] = 59.1
    with pytest.raises(CommandError, match="waited 30 s for an answer: why") as caught:
        patience.look("an answer")
    assert caught.value.exit_code == 4


def test_produce_a_file_that_does_not_exist(run: Any) -> None:
    code, _, err = run("topic", "produce", "t", "/none/such")
    assert (code, err) == (1, "barnabas: /none/such cannot be read: No such file or directory\n")


def test_consume_everything_and_stop(run: Any) -> None:
    assert run("topic", "consume", "t") == (0, "a\nb\nc\nd\n", "")


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (("-o", "end"), ""),
        (("-o", "1", "-p", "0"), "b\nc\n"),
        (("-o", "@2", "-p", "0"), "c\n"),
        (("-o", "@99", "-p", "0"), ""),
        (("-n", "2"), "a\nb\n"),
        (("-n", "2", "--follow"), "a\nb\n"),
    ],
)
def test_consume_from_and_to(run: Any, arguments: tuple[str, ...], values: str) -> None:
    code, out, _ = run("topic", "consume", "t", *arguments)
    assert (code, out) == (0, values)


@pytest.mark.parametrize(
    ("arguments", "isolation"), [((), "read_uncommitted"), (("--isolation", "read_committed"), "read_committed")]
)
def test_consume_committed_records(run: Any, cluster: FakeCluster, arguments: tuple[str, ...], isolation: str) -> None:
    assert run("topic", "consume", "t", *arguments)[0] == 0
    assert (cluster.records_of, cluster.ends_of) == (isolation, {isolation})


def test_consume_as_json(run: Any, cluster: FakeCluster) -> None:
    record = FakeRecord(topic="u", partition=0, offset=0, key=b"k", value=b"\xff", headers=[("h", b"1")])
    cluster.logs[TopicPartition("u", 0)] = [record]
    assert json.loads(run("topic", "consume", "u", "-f", "json")[1]) == {
        "topic": "u",
        "partition": 0,
        "offset": 0,
        "timestamp": 0,
        "key": "k",
        "value_base64": "/w==",
        "headers": [{"key": "h", "value": "1"}],
    }


def test_a_group_goes_on_where_it_has_committed(run: Any, cluster: FakeCluster) -> None:
    cluster.committed["g"] = {P0: 2}
    assert run("topic", "consume", "t", "-g", "g")[1] == "c\nd\n"
    assert cluster.committed["g"] == {P0: 3, P1: 1}
    assert cluster.calls[-1] == ("consumer closed",)


def test_a_group_commits_no_more_than_was_printed(run: Any, cluster: FakeCluster) -> None:
    assert run("topic", "consume", "t", "-g", "g", "-n", "2")[1] == "a\nb\n"
    assert cluster.committed["g"] == {P0: 2}


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "consume", "t", "-p"),
        ("topic", "delete-records", "t", "--before", "1", "-p", "0", "-p"),
        ("partition", "move", "--to", "1", "t"),
        ("partition", "transfer-leadership", "t"),
    ],
)
def test_a_partition_that_does_not_exist(run: Any, cluster: FakeCluster, arguments: tuple[str, ...]) -> None:
    code, _, err = run(*arguments, "7")
    assert (code, err) == (1, "barnabas: t has no partition 7; its partitions are 0 to 1\n")
    code, _, err = run(*arguments, "-1")
    assert code == 2 and "-1: give an integer of at least 0; see `barnabas " in err
    assert cluster.calls == []


def test_who_follows_outlives_a_coordinator_that_loads_for_long(
    run: Any, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume, "COMMIT_INTERVAL_S", 0)
    loading = CoordinatorNotAvailableError("the coordinator of group 'g' is loading; try again")
    cluster.commit_failures, cluster.polls_left = [loading, loading], 4
    code, out, err = run("topic", "consume", "t", "-g", "g", "--follow")
    assert (code, out) == (130, "a\nb\nc\nd\n")
    assert err.count("could not commit, trying again: the coordinator of group 'g' is loading") == 2
    assert [call for call in cluster.calls if call[0] == "commit"] == [("commit", {P0: 3, P1: 1})]
    cluster.commit_failures, cluster.polls_left = [UnknownMemberIdError("not a member")], 4
    cluster.add("t", b"e")
    assert run("topic", "consume", "t", "-g", "g", "--follow")[0] == 1


def test_what_went_away_and_came_back_is_not_committed_as_it_was(run: Any, cluster: FakeCluster) -> None:
    async def poll(consumer: FakeConsumer, max_wait_ms: int) -> Iterable[FakeRecord]:
        found = await polled(consumer, max_wait_ms)
        cluster.assigned = [] if found else [P0]
        return found

    polled = FakeConsumer.poll
    cluster.polls_left = 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeConsumer, "poll", poll)
        assert run("topic", "consume", "t", "-g", "g", "--follow")[0] == 130
    assert [call for call in cluster.calls if call[0] == "commit"] == [("commit", {P1: 1})]


def test_a_place_without_records_is_told(run: Any) -> None:
    code, out, err = run("topic", "consume", "t", "-o", "99")
    assert (code, out) == (0, "")
    assert err.startswith("-o 99 has no records: t-0 ends at ") and "asked from 99" in err and err.count("\n") == 1
    assert run("topic", "consume", "t", "-o", "end") == (0, "", "")
