"""What users of other clients type from habit is taken, or answered with the name to use. A wrong topic shows soon."""

import asyncio
import inspect
import logging
import pydoc
import re
from collections.abc import Callable
from typing import Any, get_args

import pytest
from unit.net.client.consumer_world import consumer, filled, read
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.virtual_time import run

import barnabas.sync
from barnabas import Admin, Consumer, Producer, ShareConsumer
from barnabas.log.vocabulary.errors import InvalidRegularExpressionError
from barnabas.net.client.connection.arguments import ARGUMENTS, RANGES
from barnabas.net.client.connection.errors import (
    InvalidConfigError,
    InvalidRequestError,
    InvalidTopicError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from barnabas.net.client.connection.habits import partition_of, texts_of
from barnabas.net.client.connection.security import SecurityOptions

_CLIENTS: dict[type, tuple[Any, ...]] = {Consumer: ("t",), Producer: (), Admin: (), ShareConsumer: ("t",)}
_NUMBERS = [
    (kind, name)
    for kind in _CLIENTS
    for name, parameter in inspect.signature(kind.__init__).parameters.items()  # type: ignore[misc]
    if {int, float} & {parameter.annotation, *get_args(parameter.annotation)} and parameter.annotation != str | int
]


@pytest.mark.parametrize(("kind", "name"), _NUMBERS, ids=lambda item: getattr(item, "__name__", item))
def test_every_number_that_no_broker_takes_is_refused_at_the_start(kind: Any, name: str) -> None:
    group = {"group": "g"} if kind in (Consumer, ShareConsumer) else {}
    least, _ = RANGES[name]
    for value in (least - 1, 2**63, -(2**63), float("nan"), float("inf")):
        with pytest.raises(InvalidConfigError, match=f"^{name} is {value}; it must be from {least} to"):
            kind(*_CLIENTS[kind], **group, **{name: value})
    for text in ("x", b"5", True, [5]):
        with pytest.raises(TypeError, match=f"^{name} must be a number, not "):
            kind(*_CLIENTS[kind], **group, **{name: text})


def test_empty_names_and_patterns_that_are_none_are_refused_at_the_start() -> None:
    for make in (lambda: Consumer(""), lambda: Consumer(["t", ""]), lambda: ShareConsumer("", group="g")):
        with pytest.raises(InvalidConfigError, match="the name of a topic is empty"):
            make()
    with pytest.raises(InvalidRegularExpressionError):
        Consumer(pattern="(", group="g")
    for given in (("", 0), ("t", -1), ("t", "0"), ("t", None)):
        with pytest.raises(InvalidRequestError, match="it needs a name, and a number of 0 or more"):
            partition_of(given)  # type: ignore[arg-type]


def test_bootstrap_servers_group_id_and_lists_of_topics_are_taken() -> None:
    habits: Any = {"bootstrap_servers": ["one:9092", "two:9092"], "group_id": "g"}
    reader = Consumer(["a", "b"], "a", ("c",), **habits)
    assert reader.subscription.topics == ("a", "b", "c") and reader.group == "g"
    assert list(reader.client.bootstrap) == [("one", 9092), ("two", 9092)]
    for kind in (Producer, Admin):
        made: Any = kind(bootstrap_servers="three:1")  # type: ignore[call-arg]
        assert list(made._client.bootstrap) == [("three", 1)]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: Producer(compression_type="gzip"), "'compression_type': it is compression"),
        (lambda: Consumer("t", enable_auto_commit=True), "'enable_auto_commit': it is auto_commit"),
        (lambda: Consumer("t", max_poll_records=5), "'max_poll_records': it is max_records of poll"),
        (lambda: Producer(retries=5), "'retries': it is delivery_timeout_ms, which limits all attempts"),
        (lambda: Producer(batchsize=5), r"'batchsize' \(did you mean batch_size\?\)"),
        (lambda: Producer(ssl_ca_file="x"), r"'ssl_ca_file' \(did you mean ssl_cafile\?\)"),
        (lambda: Producer(zzz=5), "unexpected keyword argument 'zzz'$"),
        (lambda: Producer(group_id="g"), r"unexpected keyword argument 'group_id'"),
        (lambda: Producer("a:1", bootstrap_servers="b:1"), "bootstrap_servers is another name of bootstrap"),
        (lambda: Consumer("t", group="g", group_id="h"), "group_id is another name of group, which is given"),
        (lambda: Producer({"bootstrap.servers": "a:1"}), "Producer takes keyword arguments, not a dict"),
        (lambda: Consumer("t", 5), "a topic must be a str, not int: 5"),
        (lambda: Consumer(b"t"), "a topic must be a str, not bytes: b't'"),  # type: ignore[arg-type]
        (lambda: Consumer(None), "a topic must be a str, not NoneType: None"),  # type: ignore[arg-type]
        (lambda: Producer(linger_ms="5"), "linger_ms must be a number, not str: '5'"),  # type: ignore[arg-type]
        (lambda: Producer(compression=None), "compression must be a str, not NoneType: None"),  # type: ignore[arg-type]
        (lambda: Producer(transactional_id=5), "transactional_id must be a str, not int: 5"),  # type: ignore[arg-type]
        (lambda: Producer(request_timeout_ms=None), "request_timeout_ms must be a number, not NoneType"),  # type: ignore[arg-type]
        (lambda: Consumer("t", group=5), "group must be a str, not int: 5"),  # type: ignore[arg-type]
        (lambda: Consumer("t", group="g", auto_commit="no"), "auto_commit must be True or False, not str"),  # type: ignore[arg-type]
        (lambda: Consumer("t", group="g", on_assigned=5), "on_assigned must be a function, not int: 5"),  # type: ignore[arg-type]
        (lambda: ShareConsumer(b"t", group="g"), "a topic must be a str, not bytes"),  # type: ignore[arg-type]
        (lambda: Consumer(["t", 5]), "a topic must be a str, not int: 5"),
        (
            lambda: partition_of("orders"),
            r"'orders' is not a partition: give TopicPartition\(topic, number\), or a tuple",
        ),  # type: ignore[arg-type]
        (lambda: partition_of((0, "orders")), "is not a partition"),  # type: ignore[arg-type]
        (lambda: texts_of({"retention.ms": 5}), "the value of retention.ms must be a str, not int: '5'"),  # type: ignore[dict-item]
        (lambda: texts_of({"x": True}), "not bool: 'true'"),
    ],
)
def test_other_names_are_answered_with_ours(call: Callable[[], Any], told: str) -> None:
    with pytest.raises(TypeError, match=told):
        call()


@pytest.mark.parametrize(
    ("client", "name", "told"),
    [
        (Producer, "produce", "Producer has no 'produce': it is send"),
        (Producer, "poll", "Producer has no 'poll'$"),
        (Consumer, "getmany", "'getmany': it is poll"),
        (Consumer, "seek_to_beginning", "'seek_to_beginning': it is seek_to_start"),
        (Consumer, "list_topics", "it is list_topics of Admin"),
        (Consumer, "pol", r"Consumer has no 'pol' \(did you mean poll\?\)"),
        (ShareConsumer, "getone", "it is poll, or `for record in consumer`"),
        (Admin, "create_topics", "it is create_topic, for each of them"),
        (Admin, "list_consumer_groups", "it is list_groups"),
        (Admin, "_nothing", "Admin has no '_nothing'$"),
    ],
)
def test_other_methods_are_answered_with_ours(client: type, name: str, told: str) -> None:
    with pytest.raises(AttributeError, match=told):
        getattr(client.__new__(client), name)
    blocking = getattr(barnabas.sync, client.__name__)
    with pytest.raises(AttributeError, match=told):
        getattr(blocking.__new__(blocking), name)


def test_other_arguments_of_methods_are_answered_with_ours() -> None:
    reader: Any = Consumer("t")
    with pytest.raises(TypeError, match=r"poll has no argument 'timeout': it is timeout_ms, in milliseconds"):
        reader.poll(timeout=1.0)
    with pytest.raises(TypeError, match=r"poll takes its arguments by name: max_records, timeout_ms, within_ms"):
        reader.poll(1.0)
    with pytest.raises(TypeError, match=r"commit has no argument 'message': it is offsets"):
        reader.commit(message=1)
    admin: Any = Admin()
    with pytest.raises(TypeError, match="create_topic has no argument 'num_partitions': it is partitions"):
        admin.create_topic("t", num_partitions=3)
    with pytest.raises(TypeError, match=r"create_topic has no argument 'config'.* it is configs"):
        admin.create_topic("t", config={})
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        admin.create_topic()


def test_an_address_that_is_no_text_is_shown() -> None:
    for given in (9092, [("localhost", 9092)]):
        with pytest.raises(InvalidConfigError, match="bootstrap address .*9092.* is not a str"):
            Producer(given)  # type: ignore[arg-type]


def test_the_signatures_are_still_those_that_help_shows() -> None:
    assert inspect.signature(Producer).parameters["acks"].default == "all"
    assert "transactional_id" in inspect.signature(Producer).parameters


# What applications may use. The SDK's own modules use `inside_of(client)`.
PUBLIC = {
    Producer: {
        "client", "close", "flush", "partitions_for", "prepare", "send", "send_many", "send_nowait", "send_table", "start",
        "take_over", "transaction",
    },
    Consumer: {
        "assign", "assignment", "beginning_offsets", "client", "close", "commit", "commit_nowait", "committed",
        "committed_offsets", "end_offsets", "group", "lag", "offsets_for_times", "partitions_for", "pause", "paused", "poll",
        "poll_arrow", "poll_batch", "position", "resume", "seek", "seek_to_end", "seek_to_start", "seek_to_time", "start",
        "stream", "subscribe", "subscription", "unsubscribe",
    },
}  # fmt: skip


@pytest.mark.parametrize("client", PUBLIC)
def test_nothing_internal_is_public(client: type) -> None:
    assert {name for name in dir(client) if not name.startswith("_")} == PUBLIC[client]


@pytest.mark.parametrize("client", [Producer, Consumer, Admin])
def test_help_has_a_sentence_about_everything_public(client: type) -> None:
    names = [name for name in dir(client) if not name.startswith("_")]
    assert [name for name in names if not (getattr(client, name).__doc__ or "").strip()] == []


def test_topics_and_a_pattern_are_not_taken_together() -> None:
    with pytest.raises(InvalidConfigError, match="topics and a pattern are given: 't' and 'x'; give one of them"):
        Consumer("t", pattern="x")


@pytest.mark.parametrize("given", [{"auto_commit": True}, {"instance_id": "reader-1"}, {"assignor": "range"}])
def test_what_needs_a_group_is_refused_without_one(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(InvalidConfigError, match=f"{name} has no effect without a group: give group="):
        Consumer("t", **given)
    Consumer("t", group="g", **given)


def test_assign_wants_partitions_not_names() -> None:
    async def main() -> None:
        async with consumer(filled(3)) as reader:
            with pytest.raises(TypeError, match="'orders' is not a partition"):
                reader.assign(["orders"])  # type: ignore[list-item]
            with pytest.raises(TypeError, match="'t' is not a partition"):
                await reader.offsets_for_times({"t": 0})  # type: ignore[dict-item]
            with pytest.raises(TypeError, match="the offset must be an int, not str: '5'"):
                reader.seek(("t", 0), "5")  # type: ignore[arg-type]

    run(main())


def test_a_list_of_topics_is_taken_by_subscribe() -> None:
    async def main() -> None:
        cluster = filled(3)
        async with consumer(cluster) as reader:
            await reader.subscribe(["t"])
            assert len(await read(reader, 3)) == 3

    run(main())


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("way", ["read", "send"])
def test_a_topic_that_does_not_exist_is_told_after_a_second(
    group: str | None, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        cluster.creates_topics = False
        loop = asyncio.get_running_loop()
        began = loop.time()
        if way == "send":
            client: Any = Producer(client=cluster.client())
            use = asyncio.ensure_future(_send(client))
        else:
            client = consumer(cluster, "odrers")
            use = asyncio.ensure_future(client.start())
        while not caplog.records:
            await asyncio.sleep(0.01)
            assert loop.time() - began < 2.5
        assert loop.time() - began >= 1
        assert "odrers" in caplog.text
        use.cancel()
        await asyncio.gather(use, return_exceptions=True)
        await client.close()

    with caplog.at_level(logging.WARNING):
        run(main())


async def _send(producer: Producer) -> None:
    await producer.start()
    await producer.send("odrers", b"x")


def test_create_topic_leaves_one_that_exists() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 3})

        async with Admin(client=cluster.client()) as admin:
            asked: list[Any] = []

            async def refuse(request: Any) -> Any:
                asked.append(request)
                raise TopicAlreadyExistsError("topic 't' exists")

            admin._ask.controller = refuse  # type: ignore[method-assign, assignment]
            with pytest.raises(TopicAlreadyExistsError):
                await admin.create_topic("t", partitions=7)
            found = await admin.create_topic("t", partitions=7, if_not_exists=True)
            assert (found.name, found.partition_count) == ("t", 3) and len(asked) == 2

    run(main())


def test_the_wait_for_a_topic_is_bounded() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(UnknownTopicOrPartitionError):
            await consumer(cluster, "odrers").start()
        assert 59 < loop.time() - began < 70

    run(main())


@pytest.mark.parametrize("client", [Producer, Consumer, Admin, ShareConsumer])
def test_help_says_what_each_argument_means(client: Any) -> None:
    shown = pydoc.render_doc(client, renderer=pydoc.plaintext)
    names = [name for name in inspect.signature(client.__init__).parameters if name != "self"]
    assert len(names) > 5
    assert [name for name in names if not re.search(rf"\b{name}(`[^:]*)?: ", shown.partition("__init__")[2])] == []


def test_each_described_argument_is_one() -> None:
    given = {name for client in (Producer, Consumer, Admin) for name in inspect.signature(client.__init__).parameters}
    assert ARGUMENTS.keys() == given - {"self"}
    assert all(name in ARGUMENTS["security"] for name in SecurityOptions.__annotations__)


def test_wrong_types_are_named() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        async with Producer(client=cluster.client()) as producer:
            wrong: Any = producer
            with pytest.raises(InvalidTopicError, match="the topic name must be a str, not bytes: b't'"):
                await wrong.send(b"t", b"a")
            with pytest.raises(TypeError, match="the partition must be an int, not str: '0'"):
                await wrong.send("t", b"a", partition="0")
            with pytest.raises(TypeError, match="values must be a list, not generator: pass list"):
                await wrong.send_many("t", (b"%d" % number for number in range(3)))
            with pytest.raises(TypeError, match="values must be a list, not bytes: pass list"):
                await wrong.send_many("t", b"abc")

    run(main())
