"""The command line from arguments to exit code, output and calls, with a cluster in memory."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from unit.net.cli.fake_cluster import FakeCluster, FakeRecord

from barnabas.consumer_groups.offsets.offsets_topic import shown
from barnabas.kraft.group_state.offsets_log import LogEntry
from barnabas.kraft.metadata.records import OffsetCommitRecord
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    BrokerNotAvailableError,
    InvalidTopicError,
    NetworkError,
    RequestTimedOutError,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.cli.main import NOUNS, SHARED_OPTIONS
from barnabas.net.wire.greeting import Greeting
from barnabas.net.wire.protocol.responses import IgnoredSetting, PartitionMove, StorageFolder, TroubledFolder

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def rows(text: str) -> Any:
    return json.loads(text)


# --- usage and errors


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("topci list", "there is no command 'topci' (did you mean topic?); see `barnabas --help`"),
        ("topic lst", "there is no command 'lst' (did you mean list?); see `barnabas topic --help`"),
        ("xyzzy", "there is no command 'xyzzy'; choose from up, down, doctor, sql, "),
        (
            "topic list --bootstarp h:1",
            "there is no option --bootstarp (did you mean --bootstrap?); see `barnabas topic list",
        ),
        ("topic produce t --key-seperator=x", "there is no option --key-seperator=x (did you mean --key-separator?)"),
        ("topic list more", "unrecognized arguments: more"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_word(run: Any, arguments: str, told: str) -> None:
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "")
    assert told in err and err.count("\n") == 1


def test_without_arguments_the_help_is_shown(run: Any) -> None:
    code, out, err = run()
    assert (code, err) == (2, "")
    assert "usage: barnabas" in out and "topic" in out


@pytest.mark.parametrize("before", [["-f", "json"], ["--format=json"], ["--timeout", "9", "-f", "json"]])
def test_options_of_every_command_may_stand_before_it(run: Any, before: list[str]) -> None:
    assert run(*before, "topic", "list") == run("topic", "list", "-f", "json")


@pytest.mark.parametrize("option", SHARED_OPTIONS)
def test_options_that_may_stand_first_are_those_of_every_command(run: Any, option: str) -> None:
    for noun, (module, _) in NOUNS.items():
        verbs = importlib.import_module(f"barnabas.net.cli.{module}").VERBS
        assert f" {option} " in run(noun, verbs[0].name, "--help")[1].replace(",", " ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("frobnicate",),
        ("topic",),
        ("topic", "creat", "x"),
        ("topic", "create"),
        ("topic", "create", "x", "-p", "many"),
        ("topic", "create", "x", "-c", "novalue"),
        ("topic", "list", "--format", "xml"),
        ("topic", "list", "--bootstrap", "a:b"),
        ("topic", "consume", "t", "-o", "middle"),
        ("topic", "consume", "t", "-g", "g", "-p", "0"),
        ("topic", "alter", "t"),
        ("group", "seek", "g"),
        ("group", "seek", "g", "--to", "yesterday"),
        ("group", "seek", "g", "--to", "9" * 20),  # no offset has more than 64 bits
        ("group", "seek", "g", "--undo", "-t", "t"),
        ("partition", "move", "t", "0", "--replicas", "a"),
        ("broker", "add", "--dir", "D", "--node", "3"),
        ("broker", "add", "--node", "-1"),
        ("cluster", "voters", "list", "3"),
        ("cluster", "voters", "add"),
        ("topic", "consume", "t", "--formatter", "offsets"),
        ("topic", "consume", "t", "-n", "-1"),
        ("topic", "create", "x", "-p", "-1"),
        ("topic", "create", "x", "-p", "0"),
        ("topic", "create", "x", "-r", "0"),
        ("topic", "add-partitions", "t", "-n", "0"),
        ("up", "-n", "0"),
        ("up", "--voters", "0"),
        ("topic", "list", "--timeout", "0"),
        ("topic", "list", "--timeout", "-1"),
        ("topic", "list", "--timeout", "nan"),
        ("topic", "list", "--timeout", "soon"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_one_line(run: Any, arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("barnabas: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (BrokerNotAvailableError("no broker answers at localhost:9092; is it up?"), 4),
        (RequestTimedOutError("no answer"), 4),
        (ConnectionRefusedError("refused"), 4),
        (TimeoutError(), 4),
        (InvalidTopicError("the topic name is bad; choose another"), 1),
        (OSError("disk"), 1),
    ],
)
def test_errors_are_one_line_and_an_exit_code(
    run: Any, cluster: FakeCluster, failure: Exception, expected: int
) -> None:
    cluster.failure = failure
    code, out, err = run("topic", "list")
    assert (code, out) == (expected, "")
    assert err.startswith("barnabas: ")
    assert err.count("\n") == 1


def test_a_message_of_several_lines_is_told_in_one(run: Any) -> None:
    assert run("topic", "create", "t") == (1, "", "barnabas: topic t exists; choose another name\n")


def test_a_bug_keeps_its_traceback(run: Any, cluster: FakeCluster) -> None:
    cluster.failure = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        run("topic", "list")


def test_an_interrupt_is_130(run: Any, cluster: FakeCluster) -> None:
    cluster.failure = KeyboardInterrupt()
    assert run("topic", "list") == (130, "", "")


# --- topics


def test_create_topics(run: Any, cluster: FakeCluster) -> None:
    code, out, _ = run("topic", "create", "x", "-p", "6", "-r", "3", "-c", "retention.ms=5", "--if-not-exists")
    assert (code, out) == (0, "created x: 6 partitions, 3 replicas each\n")
    named = {"partitions": 6, "replication_factor": 3, "configs": {"retention.ms": "5"}, "validate_only": False}
    assert cluster.calls == [("create_topic", "x", named)]


def test_list_and_describe_topics(run: Any) -> None:
    _, out, _ = run("topic", "list")
    assert out.splitlines()[0].split() == ["TOPIC", "PARTITIONS", "REPLICAS", "UNDER-REPLICATED", "OFFLINE"]
    assert out.splitlines()[1].split() == ["t", "2", "3", "0", "0"]
    described = rows(run("topic", "describe", "t", "--format", "json")[1])
    assert described["configs"] == {"a": "1"}
    assert described["partitions"][1]["isr"] == [0, 1, 2]
    assert "0,1,2" in run("topic", "describe", "t")[1]
    assert run("topic", "describe", "none")[0] == 1


def test_change_topics(run: Any, cluster: FakeCluster) -> None:
    assert run("topic", "alter", "t", "-c", "a=b=c", "-d", "x")[0] == 0
    assert run("topic", "add-partitions", "t", "-n", "3")[0] == 0
    assert run("topic", "delete", "t", "u")[0] == 0
    assert cluster.calls == [
        ("alter_config", "t", {"a": "b=c", "x": None}),
        ("add_partitions", "t", 5),
        ("delete_topic", "t"),
        ("delete_topic", "u"),
    ]


def test_delete_records(run: Any, cluster: FakeCluster) -> None:
    assert run("topic", "delete-records", "t", "-p", "1", "--before", "1")[1] == "t-1 begins at offset 1 now\n"
    assert run("topic", "delete-records", "t", "--before", "end")[0] == 0
    assert cluster.calls == [
        ("delete_records", "t", 1, 1),
        ("delete_records", "t", 0, -1),
        ("delete_records", "t", 1, -1),
    ]
    for wrong in ("-5", "latest", "1.5", "²"):
        assert run("topic", "delete-records", "t", "--before", wrong)[0] == 2
    assert run("topic", "delete-records", "t")[0] == 2


def test_a_partition_that_has_less_than_is_to_be_deleted_holds_up_no_other(run: Any, cluster: FakeCluster) -> None:
    cluster.add("t", b"e", b"f", b"g", partition=2)
    code, out, err = run("topic", "delete-records", "t", "--before", "2")
    assert code == 1
    assert out == "t-0 begins at offset 2 now\nt-2 begins at offset 2 now\n"
    assert "t-1 ends at 1" in err


# --- groups, cluster, partitions, brokers


def test_groups(run: Any, cluster: FakeCluster) -> None:
    cluster.committed["g"] = {P0: 1, P1: 1}
    assert rows(run("group", "list", "-f", "json")[1])[0]["group"] == "g"
    described = rows(run("group", "describe", "g", "-f", "json")[1])
    assert (described["lag"], described["partitions"][0]["member"]) == (2, "m")
    assert run("group", "describe", "none")[0] == 1
    assert run("group", "delete", "g")[0] == 0
    assert cluster.calls == [("delete_group", "g")]


def test_records_of_the_offsets_topic_are_shown_decoded(run: Any, cluster: FakeCluster) -> None:
    commit = OffsetCommitRecord(
        slot=0, coordinator_epoch=1, group_id="g", topic="t", partition=3, offset=7, leader_epoch=-1, metadata="",
        commit_timestamp_ms=5,
    )  # fmt: skip
    told = shown(LogEntry(log_offset=0, record=commit))
    name = "__consumer_offsets"
    cluster.logs[TopicPartition(name, 0)] = [
        FakeRecord(topic=name, partition=0, offset=0, key=told.key, value=told.value)
    ]
    code, out, _ = run("topic", "consume", name, "-p", "0", "--formatter", "offsets")
    assert code == 0
    (row,) = (json.loads(line) for line in out.splitlines())
    assert (row["group"], row["topic"], row["partition"], row["value"]["offset"]) == ("g", "t", 3, 7)


@pytest.mark.parametrize(
    ("to", "after"),
    [
        ("start", {P0: 0, P1: 0}),
        ("end", {P0: 3, P1: 1}),
        ("@2", {P0: 2, P1: 1}),
        ("2", {P0: 2, P1: 1}),
        ("+1", {P0: 2, P1: 1}),
        ("-9", {P0: 0, P1: 0}),
    ],
)
def test_seek_a_group(run: Any, cluster: FakeCluster, to: str, after: dict[TopicPartition, int]) -> None:
    cluster.committed["g"] = {P0: 1, P1: 1}
    code, out, _ = run("group", "seek", "g", f"--to={to}", "--preview", "-f", "json")
    assert (code, cluster.calls) == (0, [])
    assert {TopicPartition(row["topic"], row["partition"]): row["after"] for row in rows(out)} == after
    assert run("group", "seek", "g", f"--to={to}")[0] == 0
    assert cluster.calls == [("reset_offsets", "g", after)]


def test_a_seek_beyond_an_end_says_where_it_was_held(run: Any, cluster: FakeCluster) -> None:
    cluster.committed["g"] = {P0: 1, P1: 1}
    _, _, err = run("group", "seek", "g", "--to", "2", "--preview")
    assert "t-1: asked for 2, the log has 0 to 1" in err
    assert "t-0:" not in err


def test_a_preview_tells_what_is_skipped_what_is_read_again_and_the_lag(run: Any, cluster: FakeCluster) -> None:
    cluster.committed["g"] = {P0: 2, P1: 0}
    told = rows(run("group", "seek", "g", "--to", "1", "--preview", "-f", "json")[1])
    shown = [(row["before"], row["after"], row["skipped"], row["read_again"], row["lag_after"]) for row in told]
    assert shown == [(2, 1, 0, 1, 2), (0, 1, 1, 0, 0)]
    _, _, err = run("group", "seek", "g", "--to", "1", "--preview")
    assert "1 records are skipped, 1 are read again" in err and "nothing was changed" in err


@pytest.mark.parametrize("preview", [True, False])
def test_undo_tells_which_seek_it_took_back(run: Any, cluster: FakeCluster, preview: bool) -> None:
    cluster.committed["g"] = {P0: 2}
    flags = ("--preview",) if preview else ()
    asked = [("undo_reset", "g", True, None)]
    code, out, err = run("group", "seek", "g", "--undo", "-f", "json", *flags)
    assert (code, cluster.calls) == (0, asked if preview else [*asked, ("undo_reset", "g", False, {"t"})])
    (row,) = rows(out)
    assert (row["before"], row["after"], row["read_again"], row["lag_after"]) == (2, None, 2, 3)
    assert "1970-01-01T00:00:01+00:00 by cli@host" in err
    assert ("would undo" in err) is preview


def test_health_is_an_exit_code(run: Any, cluster: FakeCluster) -> None:
    assert run("cluster", "health")[0] == 0
    cluster.fenced, cluster.isr = {2}, (0, 1)
    code, out, _ = run("cluster", "health", "-f", "json")
    assert code == 3
    assert len(rows(out)["causes"]) == 2
    assert "broker 2 is fenced" in rows(out)["causes"][0]


def test_a_replica_that_is_still_being_copied_is_no_fault(run: Any, cluster: FakeCluster) -> None:
    cluster.isr = (0, 1)
    move = PartitionMove(topic="t", partition=0, leader=0, replicas=(0, 1, 2), adding=(2,), removing=())
    cluster.moves = (move, replace(move, partition=1))
    assert run("cluster", "health")[0] == 0
    cluster.isr = (0,)  # replica 1 is missing, too
    code, out, _ = run("cluster", "health", "-f", "json")
    assert (code, rows(out)["causes"]) == (3, ["2 partitions have replicas out of sync: t-0, t-1"])


def test_unknown_moves_excuse_nothing(run: Any, cluster: FakeCluster) -> None:
    cluster.isr, cluster.moves = (0, 1), NetworkError("gone")
    assert run("cluster", "health")[0] == 3


def a_folder(state: str = "online", cause: str = "", offline: tuple[str, ...] = ()) -> StorageFolder:
    return StorageFolder(
        path=f"/{state}",
        directory_id="d",
        state=state,
        cause=cause,
        since_ms=0 if cause else -1,
        partitions=3,
        offline_partitions=offline,
        size_bytes=10,
        free_bytes=20,
        total_bytes=30,
    )


def test_health_names_the_folder_the_time_the_cause_and_the_cure(run: Any, cluster: FakeCluster) -> None:
    cluster.troubled_folders = (TroubledFolder(path="/d", state="offline", cause="EIO; replace it", since_ms=0),)
    code, out, _ = run("cluster", "health", "-f", "json")
    assert (code, rows(out)["causes"]) == (3, [
        "broker 1: data folder /d is offline since 1970-01-01T00:00:00Z: EIO; replace it; "
        "then `barnabas broker bring-back 1 --folder /d`"
    ])  # fmt: skip


def test_data_folders_are_shown_and_brought_back(run: Any, cluster: FakeCluster) -> None:
    cluster.folders = (a_folder(),)
    assert run("broker", "storage", "2")[0] == 0
    cluster.folders = (a_folder(), a_folder("offline", "EIO; replace it", ("t-0",)))
    code, out, err = run("broker", "storage", "2")
    assert code == 3 and out.splitlines()[0].startswith("FOLDER") and "/offline" in out.splitlines()[2]
    assert "bring-back 2 --folder /offline" in err
    code, out, _ = run("broker", "bring-back", "2", "--folder", "/offline", "-f", "json")
    assert code == 0 and rows(out)[1]["offline_partitions"] == ["t-0"]
    assert cluster.calls == [("bring_back_folder", 2, "/offline")]
    cluster.folders = (a_folder(offline=("t-1",)),)
    code, _, err = run("broker", "storage", "2")
    assert code == 3 and "t-1" in err and "bring-back" in err
    cluster.folders = (replace(a_folder(), strays=("/online/t-7.id.1-stray",)),)
    code, _, err = run("broker", "storage", "2")
    assert code == 0 and "/online/t-7.id.1-stray" in err and "rm -r" in err


def test_a_cluster_without_a_quorum_is_not_healthy_whatever_its_metadata_says(run: Any, cluster: FakeCluster) -> None:
    cluster.quorum_leader = -1
    code, out, _ = run("cluster", "health", "-f", "json")
    assert code == 3
    (cause,) = rows(out)["causes"]
    assert "the quorum has no leader" in cause
    assert "no quorum: as of 12 s ago; voters unreachable: 1, 2" in cause
    code, out, _ = run("cluster", "health")
    assert code == 3 and out.splitlines() == ["healthy  no", f"cause: {cause}"]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (NetworkError("cannot connect"), "broker 1 advertises h:1, which cannot be reached from here (cannot connect)"),
        (Greeting(cluster_id="c", node_id=2), "broker 1 advertises h:1, where broker 2 answers"),
        (Greeting(cluster_id="x", node_id=1), "broker 1 advertises h:1, where a broker of another cluster answers (x)"),
    ],
)
def test_an_address_at_which_nobody_reaches_the_broker_is_named(
    run: Any, cluster: FakeCluster, found: Greeting | BarnabasError, words: str
) -> None:
    cluster.at_port[1] = found
    code, out, _ = run("cluster", "health", "-f", "json")
    (cause,) = rows(out)["causes"]
    assert code == 3 and cause.startswith(words) and "advertised.listeners" in cause
    cluster.fenced = {1}
    (cause,) = rows(run("cluster", "health", "-f", "json")[1])["causes"]
    assert "broker 1 is fenced" in cause


def test_state_without_a_quorum_is_told_with_its_age_and_who_is_missing(run: Any, cluster: FakeCluster) -> None:
    cluster.add("t", b"a")
    for command in (("cluster", "describe"), ("topic", "describe", "t")):
        code, out, _ = run(*command)
        assert code == 0 and "unconfirmed" not in out
        assert rows(run(*command, "-f", "json")[1])["unconfirmed"] is None
    cluster.quorum_leader = -1
    words = "no quorum: as of 12 s ago; voters unreachable: 1, 2"
    for command in (("cluster", "describe"), ("cluster", "quorum"), ("topic", "describe", "t")):
        code, out, _ = run(*command)
        assert code == 3 and words in out
        code, out, _ = run(*command, "-f", "json")
        assert code == 3 and rows(out)["unconfirmed"]["unreachable_voters"] == [1, 2]
    code, _, err = run("topic", "list")
    assert code == 3 and words in err
    states = [item["state"] for item in rows(run("cluster", "describe", "-f", "json")[1])["brokers"]]
    assert states == ["active", "unreachable", "unreachable"]


def test_files_that_differ_from_the_cluster_are_listed(run: Any, cluster: FakeCluster) -> None:
    for verb in ("health", "describe"):
        assert "ignored settings" not in run("cluster", verb)[1]
    cluster.ignored_settings = (IgnoredSetting(key="min.insync.replicas", of_file="2", of_cluster="1"),)
    for verb in ("health", "describe"):
        code, out, _ = run("cluster", verb)
        assert code == 0 and "broker 1: min.insync.replicas=2 in its configuration, 1 in the cluster" in out


def test_voters_are_not_listed_as_none_where_no_leader_knows_them(run: Any, cluster: FakeCluster) -> None:
    assert run("cluster", "voters", "list")[0] == 0
    cluster.quorum_leader = -1
    for change in ("list", "describe"):
        code, out, err = run("cluster", "voters", change)
        assert (code, out) == (3, "")
        assert "the quorum has no leader" in err


@pytest.mark.parametrize("arguments", [("drain", "77"), ("storage", "77"), ("bring-back", "77", "--folder", "/d")])
def test_an_unknown_broker_is_no_broker_that_is_down(
    run: Any, cluster: FakeCluster, arguments: tuple[str, ...]
) -> None:
    told = f"barnabas: there is no broker {arguments[1]}; the brokers are 0, 1, 2\n"
    assert run("broker", *arguments) == (1, "", told)
    cluster.fenced = {2}
    assert run("broker", arguments[0], "2", *arguments[2:])[0] == 4


def test_a_negative_broker_is_a_fault_of_usage(run: Any, cluster: FakeCluster) -> None:
    code, out, err = run("broker", "drain", "-1")
    assert (code, out) == (2, "") and "-1" in err


def test_waiting_for_health_ends_with_the_timeout(run: Any, cluster: FakeCluster) -> None:
    cluster.fenced = {2}
    code, _, err = run("cluster", "health", "--wait", "--timeout", "0.1")
    assert code == 4
    assert err.startswith("barnabas: waited 0.1 s for a healthy cluster: broker 2 is fenced")
    assert "--timeout" in err and "is the cluster up?" not in err


def test_cluster_partitions_and_brokers(run: Any, cluster: FakeCluster) -> None:
    assert rows(run("cluster", "describe", "-f", "json")[1])["brokers"][1]["state"] == "active"
    assert rows(run("cluster", "quorum", "-f", "json")[1])["voters"] == [0, 1, 2]
    assert rows(run("broker", "add", "-f", "json")[1])["node_id"] == 3
    assert run("partition", "move", "t", "1", "--replicas", "2,0")[0] == 0
    assert run("partition", "transfer-leadership", "t", "1", "--to", "2")[0] == 0
    assert run("broker", "drain", "2")[0] == 0
    assert cluster.calls == [
        ("assign_replicas", "t", 1, [2, 0], 0),
        ("elect_leader", "t", 1, 2),
        ("shut_down_broker", 2),
    ]


def test_the_configuration_of_a_broker_is_checked_before_it_starts(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=2\nprocess.roles=broker\n")
    code, out, err = run("broker", "start", "--config", str(path), "--override", "node.id=1", "--check")
    assert code == 0, err
    assert out.splitlines() == ["node.id=1", "num.partitions=2"]
    assert "process.roles has no effect" in err
    code, _, err = run("broker", "start", "--override", "num.partitons=1")
    assert (code, "did you mean num.partitions" in err) == (1, True)
