"""The parts of a pipeline's file for Iceberg, JSON Schema, other clusters and published positions."""

import pytest
from unit.net.pipeline.test_parsing import SINK, SOURCE, problems_of, spec_of, without_column

from barnabas.net.programs.pipeline.spec import IcebergSink, TopicSource

ICEBERG = '[sink]\niceberg = "shop.orders"\nwarehouse = "lake"\n'


def test_an_iceberg_table() -> None:
    spec = spec_of(SOURCE + ICEBERG)
    assert spec.sink == IcebergSink(table="shop.orders", warehouse="lake") and spec.output_mode == "append"
    assert spec_of(SOURCE + ICEBERG + 'output_mode = "complete"\n').output_mode == "complete"


def test_json_with_a_schema_of_a_registry() -> None:
    text = SOURCE.replace('"text"', '"json_schema", registry = "http://h"') + SINK
    (source,) = spec_of(text).sources
    assert source.value is not None and (source.value.format, source.value.registry) == ("json_schema", "http://h")


def test_topics_of_another_cluster_and_a_group() -> None:
    more = 'group = "g"\nbootstrap = "h:1"\nconfig = "h.properties"\n'
    (source,) = spec_of(SOURCE + more + SINK).sources
    assert source.origin == TopicSource(topics=("t",), group="g", bootstrap="h:1", config="h.properties")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SOURCE + ICEBERG.replace('warehouse = "lake"\n', ""), "5: sink.warehouse: is missing"),
        (SOURCE + ICEBERG.replace("shop.orders", "orders"), "6: sink.iceberg: is 'orders': write NAMESPACE.NAME"),
        (SOURCE + ICEBERG.replace("lake", "s3://lake"), "7: sink.warehouse: must be a folder"),
        (SOURCE + ICEBERG + 'catalog = "secret"\n', "8: sink.catalog: must be an address of a database"),
        (SOURCE + ICEBERG + 'output_mode = "update"\n', "8: sink.output_mode: a table of files"),
        (SOURCE + ICEBERG + 'delivery = "exactly_once"\n', "8: sink.delivery: this sink always writes each row once"),
        (SOURCE + 'config = "x"\n' + SINK, "5: source.config: is for another cluster: add its bootstrap"),
        (SOURCE + 'bootstrap = "h:x"\n' + SINK, "5: source.bootstrap: is 'h:x'"),
        (SOURCE + f'group = "{"g" * 250}"\n' + SINK, "5: source.group: has 250 characters"),
        ('mode = "batch"\n' + SOURCE + 'group = "g"\n' + SINK, "6: source.group: has no effect in a batch"),
        (SOURCE.replace('"text"', '"json_schema"') + SINK, "4: source.value.schema: is missing: add schema = "),
        (
            SOURCE.replace('"text"', '"json_schema", schema = "s", message = "M"') + SINK,
            "4: source.value.message: has no",
        ),
        (
            SOURCE.replace('"text"', '"json_schema", schema = "s"').replace('topics = ["t"]', 'files = "f"') + SINK,
            "4: source.value.format: json_schema is for records of a topic",
        ),
    ],
)
def test_mistakes(text: str, told: str) -> None:
    found = problems_of(text)
    assert any(without_column(problem).startswith(f"p.toml:{told}") for problem in found), found
    assert "secret" not in "".join(found)
