"""`barnabas cluster events` on a cluster in memory."""

import json
import time
from typing import Any

import pytest
from unit.net.cli.fake_cluster import FakeCluster

from barnabas.log.vocabulary.errors import BrokerNotAvailableError, ClusterAuthorizationError
from barnabas.net.client.admin.events import EventPage, SeenEvent
from barnabas.net.wire.protocol.event_messages import ClusterEvent

EVENT = ClusterEvent(
    number=1, at_ms=1_795_467_589_105, kind="config", name="configured", fields={"topic": "t", "value": "a b=\x1b[2J"},
    topic="t", offset=7, is_late=True,
)  # fmt: skip
DOUBT = {
    "message": "no quorum: as of 12 s ago; voters unreachable: 1, 2",
    "seconds": 12.0,
    "unreachable_voters": [1, 2],
}


def page(*events: ClusterEvent, **more: Any) -> EventPage:
    shown = tuple(SeenEvent(node_id=2, event=event) for event in events)
    cursor = more.pop("cursor", "1~0.7.0~2:1")
    return EventPage(events=shown, cursor=cursor, unanswered=more.pop("unanswered", {}), **more)


def test_an_event_is_one_line_that_commands_no_terminal(run: Any, cluster: FakeCluster) -> None:
    cluster.events.pages = [page(EVENT)]
    code, out, err = run("cluster", "events")
    assert code == 0 and err == ""
    at, _, rest = out.rstrip("\n").partition(" ")
    assert rest == 'config event=configured topic=t value="a b=\\u001b[2J" seen_by=2 late=yes'
    assert at.startswith("2026-11-2") and at[-6] in "+-"  # with its zone
    assert cluster.calls[-1] == ("events", {"since_ms": -1, "kinds": (), "topic": "", "broker": -1, "limit": 100})


def test_what_is_asked_for(run: Any, cluster: FakeCluster) -> None:
    cluster.events.pages = [page(EVENT)]
    before_ms = int(time.time() * 1000)
    words = ("--since", "10m", "--kind", "isr,election", "--topic", "t", "--broker", "3", "-n", "5", "-f", "json")
    code, out, _ = run("cluster", "events", *words)
    (row,) = json.loads(out)["events"]
    assert code == 0 and (row["event"], row["metadata_offset"], row["late"], row["seen_by"]) == (
        "configured",
        7,
        True,
        2,
    )
    (_, asked) = cluster.calls[-1]
    assert 0 <= asked.pop("since_ms") - before_ms + 600_000 < 60_000
    assert asked == {"kinds": ("isr", "election"), "topic": "t", "broker": 3, "limit": 5}


@pytest.mark.parametrize(
    "words", [("--since", "10"), ("--since", "-5m"), ("--broker", "x"), ("-n", "0"), ("-n", "1001")]
)
def test_wrong_arguments(run: Any, words: tuple[str, ...]) -> None:
    assert run("cluster", "events", *words)[0] == 2


def test_a_word_that_is_neither_a_kind_nor_the_name_of_an_event_is_told(run: Any, cluster: FakeCluster) -> None:
    cluster.events.pages = [page(EVENT), page()]
    assert run("cluster", "events", "--kind", "isr,configured")[2] == ""
    code, out, err = run("cluster", "events", "--kind", "isr,elektion")
    assert (code, out) == (0, "")
    assert err == "no event was found by the name elektion, and it is not a kind (did you mean election?)\n"


def test_who_is_down_and_how_old_it_is(run: Any, cluster: FakeCluster) -> None:
    cluster.events.pages = [page(EVENT, unanswered={1: "refused", 2: "no answer in time"}, doubt=DOUBT)] * 2
    code, out, err = run("cluster", "events")
    assert code == 3 and len(out.splitlines()) == 1
    assert err.splitlines() == [
        "broker 1 does not answer: refused", "broker 2 does not answer: no answer in time", DOUBT["message"],
    ]  # fmt: skip
    code, out, _ = run("cluster", "events", "-f", "json")
    found = json.loads(out)
    assert code == 3 and found["unconfirmed"] == DOUBT and found["unanswered"].keys() == {"1", "2"}


def test_following_goes_on_while_no_broker_answers(run: Any, cluster: FakeCluster) -> None:
    silent = BrokerNotAvailableError("no broker answers")
    selected = ("--kind", "config", "--topic", "t", "--broker", "3")
    cluster.events.pages = [
        page(EVENT), silent, silent, page(cursor="second"), page(EVENT, unanswered={1: "refused"}, cursor="third"),
        page(cursor="fourth"),
        ClusterAuthorizationError("the permission was taken away"),
    ]  # fmt: skip
    code, out, err = run("cluster", "events", "--follow", "-f", "json", *selected)
    assert code == 1 and [json.loads(line)["event"] for line in out.splitlines()] == ["configured"] * 2
    told = err.splitlines()
    assert told[:3] == [
        "the cluster does not answer: no broker answers", "broker 1 does not answer: refused", "all brokers answer again",
    ]  # fmt: skip
    assert "the permission was taken away" in told[3]
    assert [asked["after"] for _, asked in cluster.calls[1:]] == ["1~0.7.0~2:1"] * 3 + ["second", "third", "fourth"]
    assert all((asked["kinds"], asked["topic"], asked["broker"]) == (("config",), "t", 3) for _, asked in cluster.calls)
