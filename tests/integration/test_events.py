"""What has happened, told by real brokers: kept by each, through kill -9 and restarts, without a quorum, and as it happens."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from integration.cluster import SESSION, Cluster, Node, clean_environment, full_isr, until

from barnabas.log.vocabulary.errors import (
    BarnabasError,
    ClusterAuthorizationError,
    SaslAuthenticationError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
)
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.metadata.events.event_file import FILE_NAME
from barnabas.net.wire.protocol.event_messages import ClusterEvent, EventsRequest

Maker = Callable[..., Cluster]
Row = dict[str, Any]


async def kept_by(node: Node, **request: Any) -> list[ClusterEvent]:
    """What this broker keeps itself; nothing while it does not answer yet."""
    try:
        async with Admin(node.address) as admin:
            answer = await admin.client.call(int(node.property("node.id")), EventsRequest(**request))
    except BarnabasError as error:
        assert error.retriable, error
        return []
    return list(answer.events)


def lines(events: list[ClusterEvent], *names: str) -> list[str]:
    return [
        f"{item.name} {item.fields.get('partition', item.fields.get('broker'))}"
        for item in events
        if item.name in names
    ]


def places(events: list[ClusterEvent]) -> list[tuple[tuple[int, int, int], str]]:
    return [(item.place, item.name) for item in events if item.place is not None]


def in_order(found: list[str], wanted: list[str]) -> bool:
    rest = iter(found)
    return all(line in rest for line in wanted)


async def barnabas(bootstrap: str, *words: str) -> tuple[int, Row, str]:
    """Exit code, JSON, stderr."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "barnabas", "cluster", "events", "-f", "json", *words, "--bootstrap", bootstrap,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment(),
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None and b"Traceback" not in err, err
    return process.returncode, json.loads(out), err.decode()


async def http(node: Node, path: str) -> Row:
    def got() -> Row:
        with urlopen(f"http://{node.property('admin.listener')}{path}", timeout=30) as answer:
            found: Row = json.load(answer)
        return found

    return await asyncio.to_thread(got)


async def events_path(node: Node) -> str:
    return f"/v3/clusters/{(await http(node, '/v3/clusters'))['data'][0]['cluster_id']}/events"


async def test_a_killed_leader_is_told_by_every_broker_in_order_and_after_restarts(new_cluster: Maker) -> None:
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("t", assignment=[[1, 0, 2]])
        await full_isr(admin, ["t"])
    story = ["created None", "fenced 1", "elected t-0", "isr t-0", "registered 1", "unfenced 1", "isr t-0"]
    story.append("elected t-0")  # the preferred leader has returned; nothing else follows
    cluster.kill(1)

    async def until_told(node: Node, wanted: list[str], what: str) -> None:
        async def is_told() -> bool:
            events = await kept_by(node)
            return in_order(lines(events, "created", "fenced", "elected", "isr", "registered", "unfenced"), wanted)

        await until(is_told, what)

    for node in (cluster.nodes[0], cluster.nodes[2]):
        await until_told(node, story[:4], "the loss of the leader")
    cluster.start(1)
    for node in cluster.nodes:  # also by the one that was down: it learns of it from the metadata
        await until_told(node, story, "the return of the broker")
    before = {node.address: await kept_by(node) for node in cluster.nodes}
    one, other = before[cluster.nodes[0].address], before[cluster.nodes[2].address]
    assert set(places(one)) == set(places(other))
    election, preferred = [item for item in one if item.name == "elected"]
    assert preferred.fields["why"] == "preferred" and preferred.fields["leader"] == "1"
    assert election.fields["why"] == "leader_fenced" and election.fields["was"] == "1" and not election.is_late

    cluster.kill(0)
    cluster.start(0)

    async def answers() -> bool:
        return bool(await kept_by(cluster.nodes[0], kinds=("unfenced",), broker=0, after=one[-1].number))

    await until(answers, "the return of broker 0")
    after = await kept_by(cluster.nodes[0])
    assert after[: len(one)] == one  # as it was, with its times
    assert len(set(places(after))) == len(places(after))  # its journal was replayed, and made no event a second time
    assert (cluster.nodes[0].data / FILE_NAME).stat().st_size > 0


async def test_topics_configurations_and_groups_by_command_and_http(new_cluster: Maker) -> None:
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("orders", partitions=2, replication_factor=3)
        await admin.create_topic("other")
        await admin.alter_config("orders", {"retention.ms": "5000"})
        await admin.delete_topic("other")
    async with Consumer(
        "orders", bootstrap=cluster.bootstrap, group="a b\n=c", auto_offset_reset="earliest"
    ) as consumer:
        async with Producer(cluster.bootstrap) as producer:
            await (await producer.send("orders", b"1"))
        await until(lambda: consumer.poll(timeout_ms=500), "records")

        async def is_over() -> tuple[int, Row, str] | None:
            """A member reads at once, and says with its next heartbeat that it does."""
            answer = await barnabas(cluster.bootstrap)
            return answer if any(item["event"] == "rebalanced" for item in answer[1]["events"]) else None

        code, told, err = await until(is_over, "the rebalance has ended")
        assert code == 0 and told["unanswered"] == {} and told["unconfirmed"] is None, err
        (begun,) = [item for item in told["events"] if item["event"] == "rebalance"]
        assert begun["fields"]["group"] == "a b\\n=c" and begun["fields"]["why"] == "member_joined"
        (line,) = [row for node in cluster.nodes for row in node.log().splitlines() if "event=rebalance " in row]
        assert 'group="a b\\n=c" why=member_joined' in line
    _, told, _ = await barnabas(cluster.bootstrap, "--topic", "orders", "--kind", "topic,config")
    assert [(item["kind"], item["event"]) for item in told["events"]] == [
        ("topic", "created"),
        ("config", "configured"),
    ]
    assert told["events"][1]["fields"] == {"topic": "orders", "key": "retention.ms", "value": "5000", "was": "default"}
    assert told["events"][0]["at"][-6] in "+-"  # the zone
    _, told, _ = await barnabas(cluster.bootstrap, "--kind", "deleted", "--since", "1h", "-n", "1")
    assert [item["topic"] for item in told["events"]] == ["other"]
    _, told, _ = await barnabas(cluster.bootstrap, "--broker", "2", "--kind", "broker")
    assert {item["fields"]["broker"] for item in told["events"]} == {"2"}

    path = f"{await events_path(cluster.nodes[1])}?kind=topic"
    first = await http(cluster.nodes[1], path)
    assert [item["event"] for item in first["data"]] == ["created", "created", "deleted"] and first["unanswered"] == {}
    waiting = asyncio.ensure_future(http(cluster.nodes[1], f"{path}&after={first['cursor']}&wait_ms=20000"))
    async with cluster.admin() as admin:
        await admin.create_topic("late")
    assert [item["topic"] for item in (await waiting)["data"]] == ["late"]


async def test_without_a_quorum_events_are_told_with_their_age_and_who_is_down(new_cluster: Maker) -> None:
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("t")
    path = await events_path(cluster.nodes[0])
    cluster.kill(1, 2)
    one = cluster.nodes[0].address

    async def told() -> Any:
        """One voter after the other."""
        code, found, err = await barnabas(one, "--kind", "topic")
        missing = (found.get("unconfirmed") or {}).get("unreachable_voters")
        return code == 3 and missing == [1, 2] and (found, err)

    found, err = await until(told, "the loss of the quorum, and both voters that are missing")
    assert [item["event"] for item in found["events"]] == ["created"]
    assert found["unanswered"].keys() == {"1", "2"}
    assert found["unconfirmed"]["seconds"] >= 0
    assert "broker 1 does not answer" in err and "no quorum: as of " in err

    async def told_by_http() -> Any:
        page = await http(cluster.nodes[0], path)
        return "unconfirmed" in page and page["unconfirmed"]["unreachable_voters"] == [1, 2] and page

    page = await until(told_by_http, "the loss of the quorum over HTTP, which keeps what the quorum says for a second")
    advertised = (
        f"Broker 1 advertises {cluster.nodes[1].address}: if the broker is up"  # the asked broker tells it itself
    )
    assert advertised in page["unanswered"]["1"]


async def test_a_follower_is_told_once_of_each_event_as_it_happens(new_cluster: Maker) -> None:
    cluster = await new_cluster(3).ready()
    command = [sys.executable, "-m", "barnabas", "cluster", "events", "--follow", "-f", "json", "--kind", "topic"]
    process = await asyncio.create_subprocess_exec(
        *command, "--bootstrap", cluster.bootstrap, stdout=subprocess.PIPE, env=clean_environment()
    )
    try:
        assert process.stdout is not None
        async with cluster.admin() as admin:
            for number in range(4):
                if number == 2:
                    cluster.kill(1)  # the others go on
                await admin.create_topic(f"t{number}")
                async with asyncio.timeout(60):
                    told = json.loads(await process.stdout.readline())
                assert (told["event"], told["topic"]) == ("created", f"t{number}")
    finally:
        process.kill()
        await process.communicate()  # to the end of the pipe, which closes it


async def test_logins_refusals_and_who_has_changed_what(tmp_path: Path) -> None:
    with Cluster(tmp_path / "c", 3, overrides=SESSION, secure=True) as cluster:
        await cluster.ready()
        async with Admin(cluster.logins, **cluster.login) as admin:
            await admin.create_topic("secret")
            await admin.alter_config("secret", {"retention.ms": "7"})
            await admin.users.add("eve", "a password")
            with pytest.raises(UnknownTopicOrPartitionError):
                await admin.delete_topic("missing")
            wrong = {**cluster.login, "sasl_plain_password": "wrong\n\x1b[2Jforged event=login"}
            with pytest.raises(SaslAuthenticationError):
                async with Admin(cluster.logins, **wrong):  # type: ignore[arg-type]
                    pass
            eve = {**cluster.login, "sasl_plain_username": "eve", "sasl_plain_password": "a password"}
            async with Admin(cluster.logins, **eve) as stranger:  # type: ignore[arg-type]
                with pytest.raises(TopicAuthorizationError):
                    await stranger.delete_topic("secret")
                with pytest.raises(ClusterAuthorizationError):
                    await stranger.events()
            page = await admin.events(kinds=["change", "failed_change", "failed_login", "login", "denied"])
        told: dict[str, list[Mapping[str, str]]] = {}
        for item in page.events:
            told.setdefault(item.event.kind, []).append(item.event.fields)
        assert [item["host"] for item in told["failed_login"]] == ["127.0.0.1"]
        assert "a password" not in json.dumps(told) and "forged" not in json.dumps(told)
        user = f"User:{cluster.login['sasl_plain_username']}"
        assert {(item["principal"], item["target"]) for item in told["change"]} == {(user, "secret"), (user, "eve")}
        assert {item["principal"] for item in told["login"]} >= {user, "User:eve"}
        denied = [(item["principal"], item["operation"], item["name"]) for item in told["denied"]]
        assert ("User:eve", "DELETE", "secret") in denied and ("User:eve", "DESCRIBE", "kafka-cluster") in denied
        (failed,) = told["failed_change"]
        assert (failed["target"], failed["outcome"]) == ("missing", "UNKNOWN_TOPIC_OR_PARTITION")
