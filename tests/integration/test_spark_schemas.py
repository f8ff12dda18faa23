"""Pipelines whose values have a schema: written by Confluent's serializers with a registry, read on real Spark."""

import json
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from aiohttp import web
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from integration.cluster import Cluster
from integration.declared_pipeline import Declared
from integration.spark_world import create_topic, send
from integration.test_spark_sink import read
from pyspark.sql import SparkSession
from unit.net.client.serde.registry_stub import RegistryStub, running_registry
from unit.spark_connector.test_schema_values import descriptor_set, order

from barnabas.net.base.local.certificates import broker_certificate, make_authority
from barnabas.net.client.connection.errors import SchemaRegistryError, SchemaRegistryUnavailableError
from barnabas.net.client.serde.framing import framed, message_path
from barnabas.net.client.serde.registry import AUTHORITIES, USER_INFO, registry_access
from barnabas.spark_connector.pipeline.faults import PipelineFault, is_bad_record, is_final, told_of

pytestmark = pytest.mark.timeout(300)  # The first to use the session also waits for it; two cores may be busy.

OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
AMOUNT = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
NEW = {
    **OLD,
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": ["null", AMOUNT], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": ["none"]},
    ],
}


def confluent(registry: RegistryStub, topic: str, schema: dict[str, Any], *rows: dict[str, Any]) -> list[bytes]:
    client = SchemaRegistryClient({"url": registry.url})
    made = AvroSerializer(client, json.dumps(schema))
    context = SerializationContext(topic, MessageField.VALUE)
    found = [made(row, context) for row in rows]
    client.close()
    return found


def written(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    return [json.loads(bytes(record.value or b"")) for record in read(cluster, topic)]


def pipeline(topic: str, value: str, sql: str, more: str = "") -> str:
    return f"""
name = "{topic}"
[source]
topics = ["{topic}"]
value = {{ {value} }}
[[steps]]
sql = "{sql}"
[sink]
topic = "{topic}-out"
[errors]
action = "dead-letter"
topic = "{topic}-dead"
{more}
"""


def created(cluster: Cluster, topic: str) -> str:
    for name in (topic, f"{topic}-out", f"{topic}-dead", f"{topic}-out-dead"):
        create_topic(cluster, name, partitions=1)
    return topic


def reasons(cluster: Cluster, topic: str) -> list[str]:
    return [bytes(dict(record.headers)["barnabas-error"] or b"").decode() for record in read(cluster, f"{topic}-dead")]


def test_avro_of_two_versions_and_bad_records(spark: SparkSession, spark_cluster: Cluster, tmp_path: Path) -> None:
    topic = created(spark_cluster, "schema-avro")
    bad = [b"no avro", framed(77, b"\0"), None]
    with running_registry() as registry:
        send(spark_cluster, topic, [*confluent(registry, topic, OLD, {"id": 1})])
        rows: list[dict[str, Any]] = [
            {"id": 2, "amount": Decimal("5.50"), "tags": ["a"]},
            {"id": 3, "amount": None, "tags": []},
        ]
        send(spark_cluster, topic, [*confluent(registry, topic, NEW, *rows), *bad])
        value = f'format = "avro", registry = "{registry.url}"'
        sql = "SELECT id, amount, tags, record_offset FROM input"
        declared = Declared(spark, spark_cluster, tmp_path, pipeline(topic, value, sql))
        declared.run()
        send(spark_cluster, topic, confluent(registry, topic, OLD, {"id": 4}))
        declared.run()
    assert written(spark_cluster, f"{topic}-out") == [
        {"id": 1, "tags": ["none"], "record_offset": 0},
        {"id": 2, "amount": 5.5, "tags": ["a"], "record_offset": 1},
        {"id": 3, "tags": [], "record_offset": 2},
        {"id": 4, "tags": ["none"], "record_offset": 6},
    ]
    dead = read(spark_cluster, f"{topic}-dead")
    assert [record.value if record.value is None else bytes(record.value) for record in dead] == bad
    told = reasons(spark_cluster, topic)
    assert "it was not written with a registry" in told[0] and "Schema not found" in told[1]
    assert told[2] == "the record has no value"


@pytest.mark.parametrize(("status", "text"), [(503, "starting"), (200, "<html>a proxy</html>"), (404, "no such page")])
def test_while_the_registry_fails_a_pipeline_stands_still_and_loses_nothing(
    status: int, text: str, spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    topic = created(spark_cluster, f"schema-outage-{status}")
    with running_registry() as registry:
        first, second = (registry.register(f"{topic}-value", {"schema": json.dumps(one)}) for one in (OLD, NEW))
        send(spark_cluster, topic, [framed(first, b"\2"), b"no avro"])
        (tmp_path / "order.avsc").write_text(json.dumps(OLD))
        value = f'format = "avro", registry = "{registry.url}", schema = "order.avsc"'
        declared = Declared(spark, spark_cluster, tmp_path, pipeline(topic, value, "SELECT id FROM input"))
        declared.run()
        send(spark_cluster, topic, [framed(first, b"\4"), framed(second, b"\6\0\0")])
        registry.failures = [web.Response(status=status, text=text) for _ in range(100)]
        with pytest.raises(Exception, match="SchemaRegistry") as caught:
            declared.run()
        assert not is_final(caught.value), "the supervisor starts it again"
        registry.failures = []
        declared.run()
    assert written(spark_cluster, f"{topic}-out") == [{"id": 1}, {"id": 2}, {"id": 3}]
    assert len(reasons(spark_cluster, topic)) == 1


def test_a_value_that_is_nested_without_end_is_a_bad_record(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    topic = created(spark_cluster, "schema-deep")
    node = {**OLD, "fields": [*OLD["fields"], {"name": "next", "type": ["null", "Order"]}]}
    with running_registry() as registry:
        written_with = registry.register("nodes", {"schema": json.dumps(node)})
        send(spark_cluster, topic, [framed(written_with, b"\2" * 500_000 + b"\0"), framed(written_with, b"\2\2\4\0")])
        (tmp_path / "order.avsc").write_text(json.dumps(OLD))
        value = f'format = "avro", registry = "{registry.url}", schema = "order.avsc"'
        Declared(spark, spark_cluster, tmp_path, pipeline(topic, value, "SELECT id FROM input")).run()
    assert written(spark_cluster, f"{topic}-out") == [{"id": 1}]
    assert "RecursionError" in reasons(spark_cluster, topic)[0]


def test_avro_without_a_registry_and_a_required_field(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    topic = created(spark_cluster, "schema-plain")
    (tmp_path / "order.avsc").write_text(json.dumps(NEW))
    rows: list[dict[str, Any]] = [
        {"id": 1, "amount": Decimal("1.00"), "tags": []},
        {"id": 2, "amount": None, "tags": []},
    ]
    values = []
    for row in rows:
        out = BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(NEW), row)
        values.append(out.getvalue())
    send(spark_cluster, topic, values)
    value = 'format = "avro", schema = "order.avsc", required = ["amount"]'
    Declared(spark, spark_cluster, tmp_path, pipeline(topic, value, "SELECT id FROM input")).run()
    assert written(spark_cluster, f"{topic}-out") == [{"id": 1}]
    assert reasons(spark_cluster, topic) == ["the field amount is missing"]


def test_protobuf(spark: SparkSession, spark_cluster: Cluster, tmp_path: Path) -> None:
    topic = created(spark_cluster, "schema-protobuf")
    (tmp_path / "shop.desc").write_bytes(descriptor_set())
    sent = order(id=7, large=2**64 - 1, tags=["x"], kind=1)
    sent.at.FromSeconds(86_400)
    sent.counts["a"] = 1
    send(spark_cluster, topic, [framed(3, message_path((0,)) + sent.SerializeToString()), sent.SerializeToString()])
    value = 'format = "protobuf", schema = "shop.desc", message = "shop.Order", framed = true'
    sql = "SELECT id, large, tags, kind, CAST(at AS DATE) AS day, counts['a'] AS a, note FROM input"
    Declared(spark, spark_cluster, tmp_path, pipeline(topic, value, sql)).run()
    found = {"id": 7, "large": 2**64 - 1, "tags": ["x"], "kind": "OLD", "day": "1970-01-02", "a": 1}
    assert written(spark_cluster, f"{topic}-out") == [found]
    assert len(reasons(spark_cluster, topic)) == 1


PERSON: dict[str, Any] = {
    "title": "Person",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": ["string", "null"]}},
    "required": ["id"],
    "additionalProperties": False,
}


def test_json_schema_of_two_versions_and_bad_records(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    """The newer version comes after the start: its records are good, and its new field is read by the next start."""
    topic = created(spark_cluster, "schema-json")
    newer = {**PERSON, "properties": {**PERSON["properties"], "tags": {"type": "array", "items": {"type": "string"}}}}
    with running_registry() as registry, closing(SchemaRegistryClient({"url": registry.url})) as client:
        context = SerializationContext(topic, MessageField.VALUE)
        first, second = (JSONSerializer(json.dumps(schema), client) for schema in (PERSON, newer))
        bad = [
            b'{"id": 9}',
            framed(77, b'{"id": 9}'),
            framed(1, b'{"id": "x"}'),
            framed(1, b"{}"),
            framed(1, b"{"),
            None,
        ]
        send(spark_cluster, topic, [first({"id": 1, "name": "a"}, context), *bad])
        value = f'format = "json_schema", registry = "{registry.url}"'
        declared = Declared(
            spark, spark_cluster, tmp_path, pipeline(topic, value, "SELECT * EXCEPT (record_timestamp) FROM input")
        )
        job = declared.job()
        send(spark_cluster, topic, [second({"id": 2, "name": None, "tags": ["x"]}, context)])
        job.run(is_once=True)
        send(spark_cluster, topic, [second({"id": 3, "name": None, "tags": ["y"]}, context)])
        declared.run()
    found = [{name: row.get(name) for name in ("id", "name", "tags")} for row in written(spark_cluster, f"{topic}-out")]
    assert found == [
        {"id": 1, "name": "a", "tags": None},
        {"id": 2, "name": None, "tags": None},
        {"id": 3, "name": None, "tags": ["y"]},
    ]
    dead = read(spark_cluster, f"{topic}-dead")
    assert [record.value if record.value is None else bytes(record.value) for record in dead] == bad
    told = reasons(spark_cluster, topic)
    assert "it was not written with a registry" in told[0] and "Schema not found" in told[1]
    assert "$.id: 'x' is not of type 'integer'" in told[2] and "'id' is a required property" in told[3]
    assert "DecodeError" in told[4] and told[5] == "the record has no value"


def test_what_the_sink_of_json_schema_has_written_is_a_source(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    topic = created(spark_cluster, "schema-json-round")
    send(
        spark_cluster, topic, [b'{"id": 1, "tags": ["a", null], "deep": {"x": 0.5}, "counts": {"n": 2}}', b'{"id": 2}']
    )
    fields = 'id = "bigint", tags = "array<string>", deep = "struct<x: double>", counts = "map<string, bigint>"'
    with running_registry() as registry:
        sink = f'topic = "{topic}-out"\nformat = "json_schema"\nregistry = "{registry.url}"'
        text = pipeline(topic, f'format = "json", fields = {{ {fields} }}', "SELECT id, tags, deep, counts FROM input")
        (tmp_path / "first").mkdir()
        (tmp_path / "second").mkdir()
        first = text.replace(f'topic = "{topic}-out"', sink)
        Declared(spark, spark_cluster, tmp_path / "first", first).run()
        value = f'format = "json_schema", registry = "{registry.url}"'
        back = pipeline(f"{topic}-out", value, "SELECT id, tags, deep, counts FROM input", "")
        back = (
            back.replace(f"{topic}-out-out", f"{topic}-dead")
            .replace("dead-letter", "stop")
            .replace(f'topic = "{topic}-out-dead"', "")
        )
        Declared(spark, spark_cluster, tmp_path / "second", back).run()
    assert written(spark_cluster, f"{topic}-dead") == [
        {"id": 1, "tags": ["a", None], "deep": {"x": 0.5}, "counts": {"n": 2}},
        {"id": 2},
    ]


SHOP_SQL = """
SELECT id, CAST(amount AS decimal(10, 2)) AS amount, CAST(paid AS timestamp) AS paid, array('a', NULL) AS tags,
    named_struct('city', city) AS address, map('n', id) AS counts
FROM input
"""


def avro_pipeline(topic: str, sink: str, sql: str = SHOP_SQL) -> str:
    return f'''
name = "{topic}"
[source]
topics = ["{topic}"]
value = {{ format = "json", fields = {{ id = "bigint", amount = "string", paid = "string", city = "string" }} }}
[[steps]]
sql = """{sql}"""
[sink]
topic = "{topic}-out"
key = "id"
format = "avro"
{sink}
'''


@contextmanager
def secure_registry(folder: Path) -> Iterator[tuple[RegistryStub, dict[str, str]]]:
    """A registry that takes ann alone, over TLS with an authority of its own, and the properties of her login."""
    now = datetime.now(UTC)
    (folder / "tls").mkdir()
    authority = make_authority(folder / "tls", "registry", now=now)
    (folder / "registry.pem").write_bytes(broker_certificate(authority, 1, ("127.0.0.1",), now=now))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "registry.pem")
    with running_registry(context) as registry:
        registry.wanted_authorization = "Basic YW5uOnNlY3JldA=="
        yield registry, {USER_INFO: "ann:secret", AUTHORITIES: str(folder / "tls" / "ca.pem")}


@pytest.mark.timeout(600)  # five runs of Spark
def test_avro_goes_out_and_comes_in_with_a_login_at_the_registry(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    topic = created(spark_cluster, "schema-sink")
    create_topic(spark_cluster, "schema-sink-out-again", partitions=1)
    orders = [{"id": 1, "amount": "5.50", "paid": "2026-01-02T03:04:05Z", "city": "Ulm"}, {"id": 2}]
    send(spark_cluster, topic, [json.dumps(order).encode() for order in orders])
    with secure_registry(tmp_path) as (registry, login):
        declared = Declared(spark, spark_cluster, tmp_path, avro_pipeline(topic, f'registry = "{registry.url}"'))
        with pytest.raises(SchemaRegistryUnavailableError, match="(?i)certificate"):
            declared.run()
        declared.registry_login = {AUTHORITIES: login[AUTHORITIES]}
        with pytest.raises(SchemaRegistryError, match="refuses this user.*in the file of --command-config") as caught:
            declared.run()
        assert is_final(caught.value)
        declared.registry_login = login
        declared.run()
        declared.replay()
        records = read(spark_cluster, f"{topic}-out")
        client = SchemaRegistryClient(
            {"url": registry.url, "basic.auth.user.info": "ann:secret", "ssl.ca.location": login[AUTHORITIES]}
        )
        reader, context = AvroDeserializer(client), SerializationContext(f"{topic}-out", MessageField.VALUE)
        found = [reader(bytes(record.value or b""), context) for record in records]
        client.close()
        assert [bytes(record.key or b"") for record in records] == [b"1", b"2"], "each once, also after a replay"
        paid = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        nested = {"tags": ["a", None], "address": {"city": "Ulm"}, "counts": {"n": 1}}
        assert found[0] == {"id": 1, "amount": Decimal("5.50"), "paid": paid, **nested}
        assert (found[1]["amount"], found[1]["address"]) == (None, {"city": None})
        assert "secret" not in repr(registry_access(registry.url, login))

        value = f'format = "avro", registry = "{registry.url}"'
        (tmp_path / "again").mkdir()
        again = Declared(
            spark,
            spark_cluster,
            tmp_path / "again",
            pipeline(f"{topic}-out", value, "SELECT id, amount FROM input").replace(
                f"{topic}-out-out", "schema-sink-out-again"
            ),
        )
        again.registry_login = login
        again.run()
    assert written(spark_cluster, "schema-sink-out-again") == [{"id": 1, "amount": 5.50}, {"id": 2}]


PROTOBUF_SQL = """
SELECT id, CAST(2 AS decimal(20, 0)) AS large, 'OLD' AS kind, array(city) AS tags, CAST(paid AS timestamp) AS at,
    array(named_struct('price', 0.5D)) AS items, map('n', 1) AS counts, CAST(NULL AS string) AS note
FROM input
"""


def test_protobuf_and_json_schema_go_out(spark: SparkSession, spark_cluster: Cluster, tmp_path: Path) -> None:
    """Confluent's deserializers read them."""
    (tmp_path / "shop.desc").write_bytes(descriptor_set())
    values = [
        b'{"id": 1, "amount": "5.50", "paid": "2026-01-02T03:04:05Z", "city": "Ulm"}',
        b'{"id": 2, "city": "Bonn"}',
    ]
    found: dict[str, list[Any]] = {}
    with running_registry() as registry, closing(SchemaRegistryClient({"url": registry.url})) as client:
        readers: dict[str, Any] = {
            "protobuf": ProtobufDeserializer(type(order()), {"use.deprecated.format": False}),
            "json_schema": JSONDeserializer(None, schema_registry_client=client),
        }
        for name, reader in readers.items():
            topic = created(spark_cluster, f"schema-sink-{name}")
            send(spark_cluster, topic, values)
            more = '\nschema = "shop.desc"\nmessage = "shop.Order"' if name == "protobuf" else ""
            sql = PROTOBUF_SQL if name == "protobuf" else SHOP_SQL
            text = avro_pipeline(topic, f'registry = "{registry.url}"{more}', sql).replace('"avro"', f'"{name}"')
            (tmp_path / name).mkdir()
            (tmp_path / name / "shop.desc").write_bytes(descriptor_set())
            declared = Declared(spark, spark_cluster, tmp_path / name, text)
            declared.run()
            declared.replay()
            context = SerializationContext(f"{topic}-out", MessageField.VALUE)
            found[name] = [reader(bytes(item.value or b""), context) for item in read(spark_cluster, f"{topic}-out")]
        kinds = {schema["schemaType"] for schema in registry.schemas.values()}
        assert kinds == {"PROTOBUF", "JSON"}
    wanted = order(id=1, large=2, kind=1, tags=["Ulm"], items=[{"price": 0.5}], counts={"n": 1})
    wanted.at.FromDatetime(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert [item.id for item in found["protobuf"]] == [1, 2], "each once, also after a replay"
    assert found["protobuf"][0].SerializeToString(deterministic=True) == wanted.SerializeToString(deterministic=True)
    assert not found["protobuf"][1].HasField("at")
    nested = {"tags": ["a", None], "address": {"city": "Ulm"}, "counts": {"n": 1}}
    paid = "2026-01-02T03:04:05.000Z"
    assert found["json_schema"][0] == {"id": 1, "amount": 5.5, "paid": paid, **nested}
    assert [item["id"] for item in found["json_schema"]] == [1, 2]


def test_a_schema_of_the_file_decides_what_a_sink_writes(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    topic = created(spark_cluster, "schema-sink-file")
    send(spark_cluster, topic, [b'{"id": 1}'])
    (tmp_path / "order.avsc").write_text(json.dumps(OLD))
    with running_registry() as registry:
        sink = f'registry = "{registry.url}"\nschema = "order.avsc"'
        text = avro_pipeline(topic, sink, "SELECT id FROM input")
        Declared(spark, spark_cluster, tmp_path, text).run()
        assert [json.loads(schema["schema"]) for schema in registry.schemas.values()] == [OLD]
        assert registry.subjects.keys() == {f"{topic}-out-value"}
    assert [bytes(record.value or b"") for record in read(spark_cluster, f"{topic}-out")] == [framed(1, b"\x02")]
    (tmp_path / "order.avsc").write_text("{}")
    with pytest.raises(PipelineFault, match=r"sink.schema: the Avro schema cannot be used"):
        Declared(spark, spark_cluster, tmp_path, text).run()


def test_a_bad_value_stops_a_pipeline_that_has_no_place_for_it(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    topic = created(spark_cluster, "schema-stop")
    (tmp_path / "order.avsc").write_text(json.dumps(OLD))
    send(spark_cluster, topic, [b"\xff" * 20])
    text = pipeline(topic, 'format = "avro", schema = "order.avsc"', "SELECT id FROM input").partition("[errors]")[0]
    with pytest.raises(Exception) as caught:
        Declared(spark, spark_cluster, tmp_path, text).run()
    assert is_bad_record(caught.value) and is_final(caught.value)
    assert f"(topic {topic} partition 0 offset 0" in told_of(caught.value)
    assert "the value does not fit its schema" in told_of(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('format = "avro", schema = "none.avsc"', "the schema .*none.avsc cannot be read: No such file or directory"),
        ('format = "avro", schema = "pipeline.toml"', "the Avro schema cannot be used"),
        ('format = "protobuf", schema = "pipeline.toml", message = "a.B"', "the descriptor set cannot be used"),
    ],
)
def test_schemas_that_cannot_be_used(
    value: str, words: str, spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    topic = create_topic(spark_cluster, f"schema-refused-{abs(hash(value)) % 10**9}", partitions=1)
    with pytest.raises(PipelineFault, match=f"source input: {words}"):
        Declared(spark, spark_cluster, tmp_path, pipeline(topic, value, "SELECT * FROM input")).run()
