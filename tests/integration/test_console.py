"""The console in a real browser, on a real cluster that loses a broker while its pages are open."""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest
from integration.browser import browser, needs_chromium, page_of
from integration.cluster import Cluster, full_isr

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.cli.pipeline.reporting import StatusReporter
from barnabas.net.client.admin.admin import GROUP
from barnabas.net.client.connection.records import RecordMetadata
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.share.share_consumer import ShareConsumer
from barnabas.net.programs.pipeline.state import RunProgress, RunState, StateFolder

pytestmark = [needs_chromium, pytest.mark.timeout(180)]

HOSTILE: Final = "<img src=x onerror=\"document.title='taken'\">"
LONG_NAME: Final = "eu_west_1_payments_authorisation_requests_retried_and_dead_lettered_by_the_settlement_service_v2"
WAIT_MS: Final = 60_000  # for what should take a second: two cores are shared with much else
MOST_LOOKS: Final = 10  # of a page after a leader has moved; each follows a change
LAST_EVENT: Final = """
    window.EventSource = class extends window.EventSource {
        constructor(...args) { super(...args); this.addEventListener("message", (event) => { window.lastEvent = event.data; }); }
    };
"""
MOST_TIMES_A_SMALL_PAGE: Final = 3  # for the list of a thousand topics, on a busy machine
PAGES_AT_ONCE: Final = 5  # each is a process of its own
# Each page, and what is on it when it is ready.
PAGES: Final = {
    "": "brokers active",
    "topics": "orders",
    "topics/orders": "3 partitions",
    "topics/orders/messages": "five pears",
    "topics/orders/configuration": "retention.ms",
    "groups": "billing",
    "groups/billing": "partitions moved, epoch",
    "pipelines": "none has reported",
    "brokers": "Data folders",
    "configuration": "min.insync.replicas",
    "performance": "The last ten seconds",
    "quorum": "As the leader sees them",
    "events": "topic",
    "doctor": "",
    "transactions": "transactional ids",
    "access": "no permissions",
}


@pytest.fixture
async def cluster(new_cluster: Callable[..., Cluster]) -> AsyncIterator[Cluster]:
    made = await new_cluster(3).ready()
    async with made.admin() as admin:
        await admin.create_topic("orders", partitions=3, replication_factor=3)
    async with Producer(made.bootstrap) as producer:
        for number in range(30):
            await producer.send("orders", b'{"n":%d,"note":"five pears"}' % number, key=b"k%d" % number, partition=0)
        hostile = HOSTILE.encode()
        await producer.send("orders", hostile, key=hostile, headers=[(HOSTILE, hostile)], partition=0)
    async with Consumer(
        "orders", bootstrap=made.bootstrap, group="billing", client_id=HOSTILE, auto_commit=False
    ) as consumer:
        await joined(consumer)
        await consumer.commit({TopicPartition("orders", 0): 10})
    yield made


async def joined(consumer: Consumer) -> None:
    """It is a member of its group, and has partitions."""
    async with asyncio.timeout(60):
        while not consumer.assignment:
            await consumer.poll(timeout_ms=200)


def url(cluster: Cluster, node: int = 0) -> str:
    return f"http://{cluster.nodes[node].property('admin.listener')}/"


async def shows(page: Any, text: str, where: str = "#main") -> None:
    await page.wait_for_function(
        "([where, text]) => document.querySelector(where)?.textContent.includes(text)",
        arg=[where, text],
        timeout=WAIT_MS,
    )


async def opened(page: Any, cluster: Cluster, name: str, text: str | None = None) -> None:
    text = PAGES[name] if text is None else text
    await page.goto(f"{url(cluster)}#/{name}")
    try:
        await shows(page, text)
    except Exception as error:
        raise AssertionError(f"{name}: no {text!r} in {await page.inner_text('main')}") from error


async def test_every_page_shows_its_data_and_nothing_of_it_is_markup(cluster: Cluster) -> None:
    from axe_playwright_python.async_playwright import Axe

    async with browser() as chromium, page_of(chromium) as (page, complaints):
        for name in PAGES:
            await opened(page, cluster, name)
            found = (await Axe().run(page)).response["violations"]
            assert not [(item["id"], item["impact"]) for item in found if item["impact"] in ("serious", "critical")], (
                name
            )
        await opened(page, cluster, "topics/orders/messages")
        await shows(page, HOSTILE)
        await page.get_by_text("1 headers").first.click()
        await page.evaluate(f"location.hash = '#/topics/' + encodeURIComponent({HOSTILE!r})")
        await shows(page, HOSTILE)
        assert await page.evaluate("document.images.length") == 1, "the icon, and no image of a record"
        assert await page.title() != "taken"
        complaints = [line for line in complaints if "404" not in line]  # of the topic that does not exist
        assert complaints == []


async def test_a_share_group_shows_what_members_hold_and_begins_elsewhere_after_a_preview(cluster: Cluster) -> None:
    from axe_playwright_python.async_playwright import Axe

    async with cluster.admin() as admin:
        await admin.alter_config("packers", {"share.auto.offset.reset": "earliest"}, resource_type=GROUP)
    async with browser() as chromium, page_of(chromium, width=390) as (page, complaints):
        async with ShareConsumer("orders", bootstrap=cluster.bootstrap, group="packers") as consumer:
            taken = 0
            while taken < 31:
                for record in await consumer.poll(timeout_ms=500):
                    taken += 1
                    consumer.acknowledge(record, "release" if record.offset == 30 else "accept")
            await consumer.commit()
            assert len(await consumer.poll(timeout_ms=10_000)) == 1
            await opened(page, cluster, "groups/packers", "1given out more than once")
            await shows(page, "1held by members")
            await shows(page, "1 \N{MULTIPLICATION SIGN} 2")
            found = (await Axe().run(page)).response["violations"]
            assert not [item["id"] for item in found if item["impact"] in ("serious", "critical")]
            assert await page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        await shows(page, "0held by members")  # the member has left, and what it held is free
        await page.get_by_label("Where to").fill("10")
        await page.get_by_role("button", name="Preview").click()
        await shows(page, "Preview: nothing has moved yet")
        await shows(page, "1records to do")
        await page.get_by_role("button", name="Seek").click()
        await page.get_by_role("dialog").get_by_role("button", name="Seek").click()
        await shows(page, "21records to do")
        assert await page.get_by_role("button", name="Undo").count() == 0
        assert complaints == []


@pytest.mark.parametrize("dark", [False, True])
async def test_pages_fit_on_a_phone(cluster: Cluster, dark: bool) -> None:
    async with (
        cluster.admin() as admin
    ):  # a name as large installations have it, without a place where a line may break
        await admin.create_topic(LONG_NAME, partitions=2, replication_factor=3)
    async with Consumer(LONG_NAME, bootstrap=cluster.bootstrap, group=LONG_NAME) as consumer:
        await joined(consumer)
    more = {f"topics/{LONG_NAME}": "2 partitions", f"topics/{LONG_NAME}/messages": "", f"groups/{LONG_NAME}": "epoch"}
    wide: dict[str, int] = {}
    async with browser() as chromium, page_of(chromium, width=390, dark=dark) as (page, complaints):
        for name, text in (PAGES | more).items():
            await opened(page, cluster, name, text)
            wide[name] = await page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            if name == "topics/orders/messages":
                right = await page.evaluate("document.querySelector('.messages .line').getBoundingClientRect().right")
                assert right <= 390, "the value of a message is on the screen"
        assert not {name: pixels for name, pixels in wide.items() if pixels}, "pages scroll sideways"
        assert complaints == []


async def test_a_pipeline_is_shown_while_it_runs_and_as_silent_behind_its_death(
    cluster: Cluster, tmp_path: Path
) -> None:
    """What an error quotes is no markup."""
    folder = StateFolder(tmp_path / "state")
    folder.prepare()
    folder.write_run(RunState(state="running", restarts=2, since_ms=1, last_error=f"no broker answers {HOSTILE}"))
    reporter = StatusReporter(pipeline="sales", folder=folder, bootstrap=cluster.bootstrap, security={}, interval_s=2)
    async with browser() as opened_browser, page_of(opened_browser) as (page, complaints):
        await opened(page, cluster, "pipelines")
        async with reporter.running():
            for batches in range(1, 4):
                progress = RunProgress(
                    batches=batches, records=500 * batches, rows=400 * batches, lag=77, watermark="2026-11-30T00:00:00.000Z",
                    state_rows=12, state_bytes=3 << 20,
                )  # fmt: skip
                folder.write_progress(progress)
                await asyncio.sleep(2)  # as long as a report
            for words in ("sales", "running", "77", "3.0 MiB", "2026-11-30T00:00", HOSTILE):
                await shows(page, words)
            await page.wait_for_function(
                "() => Number(document.querySelector('tbody tr').children[4].textContent) > 0", timeout=WAIT_MS
            )  # rows per second
        await shows(page, "silent", "tbody .badge")  # it said that it runs, and says nothing any more
        assert complaints == [] and await page.title() == "Pipelines · Barnabas"


async def test_a_broker_that_dies_is_shown_while_the_page_is_open(cluster: Cluster) -> None:
    async with browser() as chromium, page_of(chromium) as (page, complaints):
        await opened(page, cluster, "brokers")
        await shows(page, "healthy", "#state")
        cluster.kill(2)
        await shows(page, "1 of 3 brokers away", "#state")
        await shows(page, "fenced")
        await page.goto(f"{url(cluster)}#/topics/orders")
        await shows(page, "2 behind")
        cluster.nodes[2].launch()
        await shows(page, "healthy", "#state")
        assert complaints == []


async def test_a_lost_replica_is_shown_before_the_next_look_at_the_partitions(cluster: Cluster) -> None:
    """The page of a topic looked every two seconds. Its timers stand still here, so only the stream of the broker can tell."""
    async with browser() as chromium, page_of(chromium) as (page, complaints):
        await page.clock.install()
        await opened(page, cluster, "topics/orders")
        await page.clock.pause_at(await page.evaluate("Date.now()") + 3_600_000)
        cluster.kill(2)
        await shows(page, "2 behind")
        cluster.nodes[2].launch()
        await page.wait_for_function("() => !document.querySelector('#main').textContent.includes('behind')")
        assert complaints == []


@pytest.mark.parametrize("is_looking", [False, True], ids=["between two looks", "during a look"])
async def test_a_new_leader_is_shown_before_the_next_look_at_the_partitions(cluster: Cluster, is_looking: bool) -> None:
    """All counts are as before: no replica is lost. An answer of before the change is on the screen for a moment only."""
    answer = asyncio.Event()
    looks: asyncio.Queue[None] = asyncio.Queue()

    async def answers(route: Any) -> None:
        response = await route.fetch()
        looks.put_nowait(None)
        await answer.wait()
        await route.fulfill(response=response)

    async with browser() as chromium, page_of(chromium) as (page, complaints), cluster.admin() as admin:
        await page.add_init_script(LAST_EVENT)
        await page.clock.install()
        await opened(page, cluster, "topics/orders")
        await page.route("**/topics/orders/overview", answers)
        await page.clock.pause_at(await page.evaluate("Date.now()") + 3_600_000)
        async with asyncio.timeout(60):
            await looks.get()  # it was due within this hour
        if not is_looking:
            answer.set()
        partition = (await admin.describe_topic("orders")).partitions[0]
        other = next(node for node in partition.isr if node != partition.leader)
        changes = await page.evaluate("JSON.parse(window.lastEvent).topics[0].changes")
        await admin.transfer_leadership("orders", 0, other)
        await page.wait_for_function(
            "(old) => JSON.parse(window.lastEvent).topics[0].changes > old", arg=changes, timeout=WAIT_MS
        )
        answer.set()
        await page.wait_for_function(
            "(leader) => document.querySelector('#main tbody td:nth-child(2)')?.textContent === leader",
            arg=str(other),
            timeout=WAIT_MS,
        )
        # The clock stands still: a look that nothing has asked for would follow at once, beside these requests.
        before = looks.qsize()
        for _ in range(30 * MOST_LOOKS):
            await page.evaluate("fetch(location.pathname).then((answer) => answer.text())")
        assert looks.qsize() - before < MOST_LOOKS
        assert complaints == []


@pytest.mark.timeout(400)
async def test_every_page_is_open_while_a_broker_dies_and_comes_back(cluster: Cluster) -> None:
    # A coordinator that is new remembers no rebalances, and the death before this one may have cost the group its own.
    rest = list((PAGES | {"groups/billing": "Rebalances"}).items())
    async with browser() as chromium:
        while rest:
            await _open_while_a_broker_dies(chromium, cluster, dict(rest[:PAGES_AT_ONCE]))
            del rest[:PAGES_AT_ONCE]


async def _open_while_a_broker_dies(chromium: Any, cluster: Cluster, texts: Mapping[str, str]) -> None:
    async with AsyncExitStack() as stack:
        pages = {name: await stack.enter_async_context(page_of(chromium)) for name in texts}
        for name, (page, _) in pages.items():
            await opened(page, cluster, name, texts[name])
            await shows(page, "healthy", "#state")
        cluster.kill(2)
        for name, (page, _) in pages.items():
            await shows(page, "1 of 3 brokers away", "#state")
            await shows(page, texts[name])
        cluster.nodes[2].launch()
        for name, (page, complaints) in pages.items():
            await shows(page, "healthy", "#state")
            assert complaints == [], name


async def test_the_lag_of_the_last_hour_is_told_by_any_broker_and_survives_its_coordinator(
    cluster: Cluster,
) -> None:
    """Also before the page is opened: the page has what it did not ask for itself."""
    async with cluster.admin() as admin:
        cluster_id = (await admin.describe_cluster()).cluster_id
        coordinator = (await admin.describe_group("billing")).coordinator
    other = (coordinator + 1) % 3
    path = f"v3/clusters/{cluster_id}/consumer-groups/billing/lag-history"
    async with browser() as chromium, page_of(chromium) as (page, complaints):
        await page.goto(url(cluster, other))
        found = await told_lags(page, f"{url(cluster, other)}{path}", coordinator)
        assert (found["data"][0]["lag"], found["interval_ms"]) == (21, 30_000)
        assert found["data"][0]["lag_seconds"] > 0
        await page.goto(f"{url(cluster, other)}#/groups/billing")
        await shows(page, "Lag in the last hour")
        await expect_label(page, page.get_by_role("img", name="Lag in records"), r"billing 21$")
        assert complaints == []
        cluster.kill(coordinator)
        again = await told_lags(page, f"{url(cluster, other)}{path}", None)
        assert again["coordinator"] != coordinator and again["data"][: len(found["data"])] == found["data"]
        await page.goto(f"{url(cluster, other)}#/topics")
        await page.goto(f"{url(cluster, other)}#/groups/billing")
        await shows(page, "The lines have gaps where no broker has looked.")
        assert [await page.evaluate(LINES_OF, [0, 30, 60, second, second + 30]) for second in (90, 120)] == [1, 2]
        complaints.clear()  # The browser complains about requests that failed while there was no coordinator.
        for _ in range(90):
            again = await told_lags(page, f"{url(cluster, other)}{path}", None)
            if len(again["data"]) > len(found["data"]):
                break
            await page.wait_for_timeout(1_000)
        assert len(again["data"]) > len(found["data"])
        assert again["data"][: len(found["data"])] == found["data"], (
            "the new coordinator goes on where the old one ended"
        )
        assert complaints == []


async def told_lags(page: Any, address: str, coordinator: int | None) -> Any:
    """The history, once it has a point."""
    deadline_s = time.monotonic() + 90
    while True:
        told = await page.evaluate(CALL, ["GET", address, None])
        if told.get("data") and coordinator in (told["coordinator"], None):
            return told
        assert time.monotonic() < deadline_s, told
        await page.wait_for_timeout(500)


# How many lines are drawn of points at these seconds.
LINES_OF: Final = """async (seconds) => {
  const { lines } = await import("/console/dom.js");
  const points = seconds.map((at) => [1000 * (at + 1), 5]);
  const drawn = lines([{ name: "g", points }], { title: "t", show: String, begin: 0, end: 200_000, gap: 45_000 });
  return drawn.flat().filter(Boolean).flatMap((item) => [...item.querySelectorAll("polyline")]).length;
}"""


@pytest.mark.alone("it measures time")
async def test_a_thousand_topics_open_within_a_second_or_as_a_small_page(new_cluster: Callable[..., Cluster]) -> None:
    # The session is long: making 9,000 replicas keeps a busy machine for seconds, and is not what is measured.
    cluster = await new_cluster(3, broker_session_timeout_ms="30000").ready()
    async with cluster.admin() as admin:
        for first in range(0, 1_000, 50):
            names = [f"topic-{number:04d}" for number in range(first, first + 50)]
            await asyncio.gather(*(admin.create_topic(name, partitions=3, replication_factor=3) for name in names))
        await full_isr(admin, [f"topic-{number:04d}" for number in range(1_000)])
    # The page of three brokers says how fast the machine is.
    took_s: dict[str, list[float]] = {"topics": [], "": []}
    async with browser() as chromium:
        for name, text in [("", "brokers active"), ("topics", "1,000 topics")] * 3:
            async with page_of(chromium) as (page, complaints):
                began_s = time.monotonic()
                await page.goto(f"{url(cluster)}#/{name}")
                await shows(page, text)
                took_s[name].append(time.monotonic() - began_s)
                assert complaints == []
    assert min(took_s["topics"]) < max(1.0, MOST_TIMES_A_SMALL_PAGE * min(took_s[""])), took_s
    print(f"1,000 topics of 3 partitions are on the screen after {min(took_s['topics']):.2f} s")


async def test_latencies_of_brokers_that_stand_still_do_not_hide_the_others(cluster: Cluster) -> None:
    async with browser() as chromium, page_of(chromium) as (page, complaints):
        await opened(page, cluster, "performance")
        chart = page.get_by_role("img", name="Event loop late by")
        await expect_label(page, chart, r"broker 0 [\d.]+ ms, broker 1 [\d.]+ ms, broker 2 [\d.]+ ms")
        cluster.nodes[2].signal(signal.SIGSTOP)
        await page.reload()
        await shows(page, "The last ten seconds")
        await expect_label(page, chart, r"broker 0 [\d.]+ ms, broker 1 [\d.]+ ms$")
        cluster.nodes[2].signal(signal.SIGCONT)
        assert complaints == []


async def test_a_broker_is_decommissioned_and_kept(cluster: Cluster) -> None:
    """With a fourth broker there is somewhere to go."""
    cluster.add(3)
    await cluster.ready()
    async with browser() as chromium, page_of(chromium) as (page, complaints):
        await opened(page, cluster, "brokers")
        row = page.get_by_role("row").filter(has=page.locator("td.number:first-child", has_text="3"))
        await row.get_by_role("button", name="Decommission").click()
        await page.get_by_role("dialog").get_by_role("button", name="Decommission").click()
        await shows(page, "leaving")
        await page.get_by_role("button", name="Keep").click()
        await page.get_by_role("dialog").get_by_role("button", name="Keep").click()
        await page.wait_for_function(
            "() => !document.querySelector('#main').textContent.includes('leaving')", timeout=WAIT_MS
        )
        await row.get_by_role("button", name="Drain").click()
        await page.get_by_role("dialog").get_by_role("button", name="Drain").click()
        await shows(page, "fenced")
        assert complaints == []


async def expect_label(page: Any, image: Any, pattern: str) -> None:
    """The words of a chart for those who do not see it."""
    deadline_s = time.monotonic() + WAIT_MS / 1000
    while not re.search(pattern, label := await image.get_attribute("aria-label") or ""):
        assert time.monotonic() < deadline_s, label
        await page.wait_for_timeout(200)


async def test_messages_are_produced_and_followed_and_offsets_are_moved_and_back(cluster: Cluster) -> None:
    async with browser() as chromium, page_of(chromium) as (page, complaints):
        await opened(page, cluster, "topics/orders/messages")
        await page.get_by_label("follow").check()
        async with Producer(cluster.bootstrap) as producer:
            written: RecordMetadata = await (await producer.send("orders", b"just now", partition=0))
        await shows(page, "just now")
        await page.get_by_label("Key", exact=True).fill("by hand")
        await page.get_by_label("Value", exact=True).fill("from the console")
        await page.get_by_role("button", name="Produce").click()
        await shows(page, "written to partition")
        await opened(page, cluster, "groups/billing")
        await page.get_by_label("Where to").fill("start")
        await page.get_by_role("button", name="Preview").click()
        await shows(page, "Preview: nothing has moved yet")
        async with cluster.admin() as admin:
            before = {place.partition: lag.committed for place, lag in (await admin.group_offsets("billing")).items()}
            assert before[0] == 10 and written.offset == 31
            await page.get_by_role("button", name="Seek", exact=True).click()
            await page.get_by_role("dialog").get_by_role("button", name="Seek").click()
            await shows(page, "Moved")
            moved = {place.partition: lag.committed for place, lag in (await admin.group_offsets("billing")).items()}
            assert moved[0] == 0
            await page.get_by_role("button", name="Undo").click()
            await shows(page, "Undone")
            again = {place.partition: lag.committed for place, lag in (await admin.group_offsets("billing")).items()}
            assert again[0] == 10
        assert complaints == []


async def test_a_page_without_actions(new_cluster: Callable[..., Cluster]) -> None:
    cluster = await new_cluster(1, admin_console="readonly").ready()
    async with cluster.admin() as admin:
        await admin.create_topic("orders", partitions=1)
    async with browser() as chromium, page_of(chromium) as (page, _):
        began = time.monotonic()
        await page.goto(f"{url(cluster)}#/topics/orders")
        await shows(page, "1 partitions")
        assert time.monotonic() - began < WAIT_MS / 1000
        assert await page.get_by_role("button", name="Delete the topic").count() == 0


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<h1>shop</h1>")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def site() -> Iterator[int]:
    """The port of a web server with one page; Chromium finds every name under .localhost there."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


CALL: Final = """async ([method, url, body]) => {
    const options = {method, headers: {"Content-Type": "application/json"}, body: body && JSON.stringify(body)};
    try { return await (await fetch(url, options)).json(); } catch (error) { return String(error); }
}"""


async def test_a_page_of_an_admitted_origin_produces_records_and_changes_nothing_else(
    new_cluster: Callable[..., Cluster],
) -> None:
    with site() as port:
        cluster = await new_cluster(1, admin_allowed_origins=f"http://shop.localhost:{port}").ready()
        async with cluster.admin() as admin:
            await admin.create_topic("clicks", partitions=1)
            cluster_id = (await admin.describe_cluster()).cluster_id
        topics = f"{url(cluster)}v3/clusters/{cluster_id}/topics"
        async with browser() as chromium, page_of(chromium) as (page, _):
            await page.goto(f"http://shop.localhost:{port}/")
            entries = [{"id": str(number), "value": {"type": "JSON", "data": {"n": number}}} for number in range(3)]
            told = await page.evaluate(CALL, ["POST", f"{topics}/clicks/records:batch", {"entries": entries}])
            assert [item["offset"] for item in told["successes"]] == [0, 1, 2] and told["failures"] == []
            for method, path, body in (("DELETE", f"{topics}/clicks", None), ("POST", topics, {"topic_name": "x"})):
                assert "Failed to fetch" in await page.evaluate(CALL, [method, path, body])
            await page.goto(f"http://evil.localhost:{port}/")
            assert "Failed to fetch" in await page.evaluate(CALL, ["POST", f"{topics}/clicks/records", {}])
        async with cluster.admin() as admin:
            assert await admin.list_topics() == ["clicks"]
            assert (await admin.list_offsets("clicks"))[TopicPartition("clicks", 0)].offset == 3
