"""Forty typical mistakes on the command line: each prints one line with the message that helps, and ends with its exit code."""

from typing import Any

import pytest
from unit.net.cli.fake_cluster import FakeCluster

from barnabas.log.vocabulary.topic_partition import TopicPartition

MISTAKES = [
    # Commands
    ("topci list", 2, "there is no command 'topci' (did you mean topic?)"),
    ("topics list", 2, "there is no command 'topics' (did you mean topic?)"),
    ("consumer-groups list", 2, "there is no command 'consumer-groups' (did you mean `barnabas group list`?)"),
    ("create topic x", 2, "there is no command 'create' (did you mean `barnabas topic create`?)"),
    ("consume orders", 2, "there is no command 'consume' (did you mean `barnabas topic consume`?)"),
    ("help topic", 2, "there is no command 'help' (did you mean `barnabas --help`?)"),
    ("security user add alice", 2, "there is no command 'user' here (did you mean `barnabas user`?)"),
    ("security acl list", 2, "there is no command 'acl' here (did you mean `barnabas acl`?)"),
    ("topic topic", 2, "there is no command 'topic'; choose from"),
    ("topic ls", 2, "there is no command 'ls' (did you mean list?)"),
    ("topic desribe t", 2, "there is no command 'desribe' (did you mean describe?)"),
    ("group reset-offsets g", 2, "there is no command 'reset-offsets'"),
    ("topic", 2, "see `barnabas topic --help`"),
    ("broker list", 2, "there is no command 'list' (did you mean `barnabas cluster describe`?)"),
    ("broker describe 0", 2, "there is no command 'describe' (did you mean `barnabas cluster describe`?)"),
    ("broker stop 1", 2, "there is no command 'stop' (did you mean `barnabas broker drain N`?)"),
    ("group reset workers --to-earliest", 2, "(did you mean `barnabas group seek GROUP --to POSITION`?)"),
    ("group lag workers", 2, "there is no command 'lag' (did you mean `barnabas group describe GROUP`?)"),
    ("topic config orders", 2, "there is no command 'config' (did you mean `barnabas config list -t TOPIC`?)"),
    ("share list", 2, "there is no command 'share' (did you mean `barnabas group list`?)"),
    # Options
    ("--bootstrap localhost:9092 topic", 2, "the following arguments are required: {create,"),
    ("topic list -b localhost:9092", 2, "there is no option -b (here it is --bootstrap)"),
    ("topic list --json", 2, "there is no option --json (here it is --format json)"),
    ("topic list -o json", 2, "there is no option -o (here it is --format)"),
    ("topic delete orders --yes", 2, "there is no option --yes: the command does not ask, leave it out"),
    ("acl add --principal alice READ", 2, "there is no option --principal: give the name alone, as in the help"),
    ("topic list --bootstrap-server h:1", 2, "there is no option --bootstrap-server (did you mean --bootstrap?)"),
    ("topic create x --partition 3 --replication-factor 2", 2, "there is no option --replication-factor"),
    ("topic list --format yaml", 2, "invalid choice: 'yaml' (choose from 'text', 'json')"),
    ("topic list --timeout soon", 2, "soon: give a number of seconds above 0"),
    ("topic list --timeout 0", 2, "0: give a number of seconds above 0"),
    ("topic list --bootstrap localhost:port", 2, "--bootstrap localhost:port: "),
    ("topic list --profile nope", 2, "there is no profile 'nope'; see barnabas profile list"),
    ("topic list --command-config /none/such", 1, "the file /none/such cannot be read"),
    ("topic create x --replication-factor 3", 2, "there is no option --replication-factor (here it is --replicas)"),
    ("topic consume orders --from-beginning", 2, "there is no option --from-beginning (here it is --offset start)"),
    ("topic consume orders --max-messages 5", 2, "there is no option --max-messages (here it is --num)"),
    ("topic consume orders --from 1h", 2, "there is no option --from (here it is --offset)"),
    ("topic consume orders --last 5", 2, "there is no option --last (here it is --offset -N)"),
    ("topic alter orders --partitions 6", 2, "(did you mean `barnabas topic add-partitions NAME --total N`?)"),
    ("config set topic orders retention.ms=5", 2, "'topic' is not KEY=VALUE; name the resource by an option: -t TOPIC"),
    ("config get broker 1 retention.ms", 1, "there is no key broker; name the resource by an option: -b BROKER"),
    ("topic describe --topic orders", 2, "there is no option --topic: give the name alone, as in the help"),
    ("group describe --group workers", 2, "there is no option --group: give the name alone, as in the help"),
    ("group seek workers --to end --dry-run", 2, "there is no option --dry-run (here it is --preview)"),
    ("group seek workers --to-earliest", 2, "one of the arguments --to --undo is required"),
    # Brokers, partitions, the cluster
    ("broker drain one", 2, "one: give an integer of at least 0"),
    ("partition move orders first --to 1", 2, "first: give an integer of at least 0"),
    ("partition move orders 0", 2, "one of the arguments --to/--replicas --cancel is required"),
    ("cluster backup", 2, "the following arguments are required: DIR"),
    ("topic consume orders -p 0-3", 2, "0-3: give an integer of at least 0"),
    ("up -n three", 2, "three: give an integer of at least 1"),
    ("completion powershell", 2, "invalid choice: 'powershell'"),
    # Topics
    ("topic create", 2, "the following arguments are required: NAME"),
    ("topic create x -p 0", 2, "0: give an integer of at least 1"),
    ("topic create x -p three", 2, "three: give an integer of at least 1"),
    ("topic create x -c retention.ms:5", 2, "'retention.ms:5' is not KEY=VALUE"),
    ("topic create orders", 1, "topic orders exists"),
    ("topic describe ordres", 1, "topic ordres does not exist; see `barnabas topic list` (did you mean orders?)"),
    ("topic alter orders", 2, "nothing to alter; give -c KEY=VALUE or -d KEY"),
    ("topic alter orders -d pasword", 1, "there is no key pasword (did you mean password?)"),
    ("config reset -t orders pasword", 1, "there is no key pasword (did you mean password?)"),
    ("config reset -b 1 pasword", 1, "there is no key pasword (did you mean password?)"),
    ("config reset --cluster pasword", 1, "there is no key pasword (did you mean password?)"),
    ("topic add-partitions orders", 2, "one of the arguments -n/--num --total is required"),
    ("topic delete-records orders --before all", 2, "all is neither an offset nor `end`"),
    # Records
    ("topic consume ordres", 1, "(did you mean orders?)"),
    ("topic consume orders -p 7", 1, "orders has no partition 7; its partitions are 0 to 0"),
    ("topic consume orders -o latest", 2, "-o latest: give start, end, an offset N, -N (the last N)"),
    ("topic consume orders -o 2026-11-24", 2, "or a time: @MILLISECONDS, @2026-11-24T10:00Z"),
    ("topic consume orders -o @yesterday", 2, "yesterday is no time; give milliseconds since 1970"),
    ("topic consume orders -f jsn", 2, "-f jsn: there is no such format (did you mean json?)"),
    ("topic consume orders -f %x", 2, "%x is no field; use %t topic, %p partition"),
    ("topic consume orders --grep (", 2, "( is no regular expression"),
    ("topic consume -r x.*", 1, "no topic matches x.*; see them all: barnabas topic list"),
    ("topic consume orders -g g -p 0", 2, "-p does not go with -g: the group assigns partitions"),
    ("topic consume orders -g g -o -5", 2, "-o -5 does not go with -g: a group continues from its offsets"),
    ("topic consume orders --follow -o 1..5", 2, "has an end, and --follow has none"),
    ("topic produce", 2, "name the topic: barnabas topic produce NAME"),
    ("topic produce ordres /dev/null", 1, "(did you mean orders?)"),
    ("topic produce orders /none/such", 1, "/none/such cannot be read: No such file or directory"),
    ("topic produce orders -z zst", 2, "invalid choice: 'zst'"),
    ("topic produce orders -k : -f json", 2, "-k is for lines of text without -K and without -f"),
    # Groups, configurations, measurements
    ("group describe worker", 1, "(did you mean workers?)"),
    ("group seek workers", 2, "one of the arguments --to --undo is required"),
    ("group seek workers --to beginning", 2, "--to beginning: give start, end, @timestamp in ms"),
    ("group remove-member workers nobody", 1, "group workers has no member nobody"),
    ("config set a=1", 2, "say what to change: -t TOPIC, -b BROKER or --cluster"),
    ("config get passwort", 1, "there is no key passwort (did you mean password?)"),
    ("bench produce orders --size 1G", 2, "1G: give an integer of at least 1"),
]


@pytest.mark.parametrize(("arguments", "code", "told"), MISTAKES, ids=[mistake[0] for mistake in MISTAKES])
def test_a_mistake_is_answered_with_what_helps(
    run: Any, cluster: FakeCluster, arguments: str, code: int, told: str
) -> None:
    cluster.add("orders", b"x")
    cluster.committed["workers"] = {TopicPartition("orders", 0): 0}
    found, out, err = run(*arguments.split())
    assert (found, out) == (code, "")
    assert told in err and err.startswith("barnabas: ") and err.count("\n") == 1
    assert not [call for call in cluster.calls if call[0] in ("send", "create_topic", "alter_config")]


def test_there_are_forty_of_them() -> None:
    assert len(MISTAKES) >= 40
