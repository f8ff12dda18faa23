"""What operators change in the console, in a real browser on a real cluster: configurations, access, moves."""

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final

import pytest
from google.protobuf import timestamp_pb2, wrappers_pb2
from integration.browser import browser, needs_chromium, page_of
from integration.cluster import Cluster, full_isr, partitions_of, until
from unit.net.client.serde.registry_stub import running_registry

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.serde.avro_format import Avro
from barnabas.net.client.serde.protobuf_format import Protobuf
from barnabas.net.client.serde.registry import SchemaRegistry

pytestmark = [needs_chromium, pytest.mark.timeout(180)]
WAIT_MS: Final = 60_000  # for what should take a second: two cores are shared with much else


async def shows(page: Any, text: str) -> None:
    await page.wait_for_function(
        "text => document.querySelector('#main')?.textContent.includes(text)", arg=text, timeout=WAIT_MS
    )


async def is_accessible(page: Any) -> None:
    from axe_playwright_python.async_playwright import Axe

    found = (await Axe().run(page)).response["violations"]
    assert not [(item["id"], item["impact"]) for item in found if item["impact"] in ("serious", "critical")]


async def ready(cluster: Cluster) -> str:
    """With a topic and a group that lags. The address of the console."""
    await cluster.ready()
    async with cluster.admin() as admin:
        await admin.create_topic("orders", assignment=[[0, 1], [1, 2]])
        await full_isr(admin, ["orders"])
    async with Producer(cluster.bootstrap, **cluster.security) as producer:
        for number in range(60):
            await producer.send("orders", b"value %d" % number, key=b"k%d" % (number % 30))
    place = TopicPartition("orders", 0)
    async with Consumer(
        "orders", bootstrap=cluster.bootstrap, group="billing", auto_commit=False, **cluster.security
    ) as consumer:
        while place not in consumer.assignment:
            await consumer.poll(timeout_ms=200)
        await consumer.commit({place: 1})
    scheme = "https" if cluster.logins else "http"
    return f"{scheme}://{cluster.nodes[0].property('admin.listener').rpartition('//')[2]}/"


async def test_sizes_moves_keys_and_configurations(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(3)
    url = await ready(cluster)
    async with browser() as chromium, page_of(chromium) as (page, complaints):
        await page.goto(f"{url}#/topics")
        await shows(page, "billing")
        await is_accessible(page)
        await _moves(page, url, cluster)
        await page.goto(f"{url}#/topics/orders/messages")
        await page.get_by_label("Only this key").fill("k7")
        await page.get_by_role("button", name="Read").click()
        await shows(page, "2 of 2 messages")
        await shows(page, "value 37")
        await is_accessible(page)
        await _configures(page, url, cluster)
        await page.goto(f"{url}#/access")
        await page.get_by_role("button", name="Set a quota").click()
        await is_accessible(page)
        await page.get_by_label("Name; empty: the default").fill("eve")
        await page.get_by_label("Value", exact=True).fill("1000000")
        await page.get_by_role("dialog").get_by_role("button", name="Set", exact=True).click()
        await shows(page, '{"producer_byte_rate":1000000}')
        await page.get_by_role("button", name="Remove").click()
        await page.get_by_role("dialog").get_by_role("button", name="Remove").click()
        await shows(page, "no quotas")
        assert complaints == []


async def _moves(page: Any, url: str, cluster: Cluster) -> None:
    await page.goto(f"{url}#/topics/orders")
    await shows(page, " B")
    await page.get_by_role("button", name="Move partition 0").click()
    await is_accessible(page)
    await page.get_by_label("Brokers, the preferred leader first").fill("2, 1")
    await page.get_by_role("dialog").get_by_role("button", name="Move", exact=True).click()
    async with cluster.admin() as admin:

        async def has_moved() -> bool:
            return (await partitions_of(admin, "orders"))[0].replicas == (2, 1)

        await until(has_moved, "the partition has moved")


async def _configures(page: Any, url: str, cluster: Cluster) -> None:
    await page.goto(f"{url}#/configuration")
    await shows(page, "min.insync.replicas")
    await is_accessible(page)
    await page.get_by_role("button", name="Edit min.insync.replicas").click()
    await page.get_by_label("Value of min.insync.replicas").fill("2")
    await page.get_by_role("button", name="Set", exact=True).click()
    await page.get_by_role("button", name="Edit min.insync.replicas").wait_for()
    await shows(page, "default: 1")
    await page.get_by_label("Whose configuration").select_option("1")
    await shows(page, "log.dirs")
    await page.get_by_label("Filter keys").fill("min.insync")
    async with cluster.admin() as admin:
        values = {entry.key: entry.value for entry in await admin.describe_configs("", resource_type="broker")}
    assert values["min.insync.replicas"] == "2"


async def test_users_and_permissions_of_a_secure_cluster(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(3, secure=True)
    url = await ready(cluster)
    login = b64encode(f"admin:{cluster.login['sasl_plain_password']}".encode()).decode()
    async with browser() as chromium:
        context = await chromium.new_context(
            ignore_https_errors=True, extra_http_headers={"Authorization": f"Basic {login}"}
        )
        page = await context.new_page()
        await page.goto(f"{url}#/access")
        await page.get_by_role("button", name="Add a user").click()
        await page.get_by_label("User", exact=True).fill("eve")
        await page.get_by_label("New password").fill("pencil")
        await is_accessible(page)
        await page.get_by_role("dialog").get_by_role("button", name="Save").click()
        await shows(page, "SCRAM-SHA-512")
        await page.get_by_role("button", name="Password of eve").click()
        await page.get_by_label("New password").fill("another")
        await page.get_by_role("dialog").get_by_role("button", name="Save").click()
        await page.get_by_role("button", name="Add a permission").click()
        await page.get_by_label("Who").fill("User:eve")
        await page.get_by_label("Name", exact=True).fill("orders")
        await is_accessible(page)
        await page.get_by_role("dialog").get_by_role("button", name="Add").click()
        await shows(page, "topic orders")
        async with cluster.admin() as admin:
            assert [(acl.principal, acl.name) for acl in await admin.acls.find()] == [("User:eve", "orders")]
            row = page.get_by_role("row").filter(has_text="User:eve")
            await row.get_by_role("button", name="Remove").click()
            await page.get_by_role("dialog").get_by_role("button", name="Remove").click()
            await shows(page, "no permissions")
            row = page.get_by_role("row").filter(has_text="SCRAM")
            await row.get_by_role("button", name="Remove").click()
            await page.get_by_role("dialog").get_by_role("button", name="Remove").click()
            await shows(page, "no users with passwords")
            assert not await admin.users.list()
            assert not await admin.acls.find()


async def test_avro_is_decoded_with_the_registry_of_the_broker(new_cluster: Callable[..., Cluster]) -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "fruit", "type": "string"}, {"name": "n", "type": "long"}],
    }
    with running_registry() as stub:
        cluster = await new_cluster(1, admin_schema_registry_url=stub.url).ready()
        async with cluster.admin() as admin:
            await admin.create_topic("orders", partitions=1)
        async with Producer(cluster.bootstrap, value_serializer=Avro(SchemaRegistry(stub.url), schema)) as producer:
            await producer.send("orders", {"fruit": "<b>pear</b>", "n": 5})
        async with Producer(cluster.bootstrap) as producer:
            await producer.send("orders", b"\0\0\0\1\0 no such schema")
            await producer.send("orders", b"plain")
        async with browser() as chromium, page_of(chromium) as (page, complaints):
            await page.goto(f"http://{cluster.nodes[0].property('admin.listener')}/#/topics/orders/messages")
            await shows(page, '{"fruit":"<b>pear</b>","n":5}')
            await shows(page, "schema 1")
            await shows(page, "not decoded")
            await shows(page, "plain")
            await is_accessible(page)
            stub.schemas.clear()  # what is known is not asked for again
            await page.get_by_role("button", name="Read").click()
            await shows(page, '{"fruit":"<b>pear</b>","n":5}')
            assert complaints == []


async def test_a_key_is_found_by_what_it_says(new_cluster: Callable[..., Cluster]) -> None:
    """Typed as JSON: the broker writes it with the newest schema of the topic's keys, and looks where producers put it."""
    schema = {"type": "record", "name": "Key", "fields": [{"name": "customer", "type": "string"}]}
    with running_registry() as stub:
        cluster = await new_cluster(1, admin_schema_registry_url=stub.url).ready()
        async with cluster.admin() as admin:
            await admin.create_topic("orders", partitions=5)
        keys = Avro(SchemaRegistry(stub.url), schema)
        async with Producer(cluster.bootstrap, key_serializer=keys) as producer:
            for number in range(20):
                await producer.send("orders", b"order %d" % number, key={"customer": f"c{number}"})
        async with browser() as chromium, page_of(chromium) as (page, complaints):
            await page.goto(f"http://{cluster.nodes[0].property('admin.listener')}/#/topics/orders/messages")
            await page.get_by_label("The key is").select_option("JSON of its schema")
            for number in (3, 4, 11):
                await page.get_by_label("Only this key").fill(json.dumps({"customer": f"c{number}"}))
                await page.get_by_role("button", name="Read").click()
                await shows(page, "of one key only, written with schema 1")
                await shows(page, "1 of 1 messages")
                await shows(page, f"order {number}")
            await is_accessible(page)
            assert complaints == []
            await page.get_by_label("Only this key").fill('{"custom": "c1"}')
            await page.get_by_role("button", name="Read").click()
            await shows(page, "the key: Key has no field custom and needs customer")


async def test_protobuf_is_decoded_filtered_and_produced_again_as_it_is(new_cluster: Callable[..., Cluster]) -> None:
    with running_registry() as stub:
        registry = SchemaRegistry(stub.url)
        cluster = await new_cluster(1, admin_schema_registry_url=stub.url).ready()
        async with cluster.admin() as admin:
            await admin.create_topic("times", partitions=1)
        serializers: Any = {
            "key_serializer": Protobuf(registry, wrappers_pb2.StringValue),
            "value_serializer": Protobuf(registry, timestamp_pb2.Timestamp),
        }
        async with Producer(cluster.bootstrap, **serializers) as producer:
            for day in (1, 2):
                key = wrappers_pb2.StringValue(value=f"day {day}")
                await producer.send("times", timestamp_pb2.Timestamp(seconds=86_400 * day), key=key)
        async with browser() as chromium, page_of(chromium) as (page, complaints):
            await page.goto(f"http://{cluster.nodes[0].property('admin.listener')}/#/topics/times/messages")
            await shows(page, "1970-01-02T00:00:00Z")
            await shows(page, "day 2")
            await is_accessible(page)
            await page.get_by_label("Filter by text").fill("1970-01-03")
            await page.wait_for_function("() => !document.querySelector('#main').textContent.includes('day 1')")
            await shows(page, "day 2")
            await page.get_by_role("button", name="Edit").first.click()
            await shows(page, "what is binary is written again as it is")
            assert await page.get_by_label("Value", exact=True).input_value() == '"1970-01-03T00:00:00Z"'
            await page.get_by_role("button", name="Produce", exact=True).click()
            await shows(page, "written to partition 0 at offset 2")
            await page.get_by_label("Filter by text").fill("")
            await shows(page, "3 of 3 messages")
            await page.get_by_role("button", name="Same key").first.click()
            await shows(page, "2 of 2 messages")
            await shows(page, "of one key only, Read shows all")
            await page.wait_for_function("() => !document.querySelector('table').textContent.includes('day 1')")
            await page.get_by_role("button", name="Read", exact=True).click()
            await shows(page, "3 of 3 messages")
            assert complaints == []
        async with Consumer(
            "times", bootstrap=cluster.bootstrap, group="check", auto_offset_reset="earliest"
        ) as consumer:
            found: list[tuple[Any, Any]] = []
            while len(found) < 3:
                for records in (await consumer.poll(timeout_ms=1_000)).values():
                    found += [(record.key, record.value) for record in records]
        assert found[2] == found[1] and found[1] != found[0]
