"""A pipeline's file in YAML: the same pipeline as in TOML, and what is wrong with its line and a cure in the same language."""

import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from unit.net.pipeline.test_parsing import GOOD, without_column

from barnabas.net.programs.pipeline.files import PipelineFileError, read_pipeline
from barnabas.net.programs.pipeline.parsing import parse_pipeline
from barnabas.net.programs.pipeline.spec import PipelineSpec
from barnabas.net.programs.pipeline.state import StateFolder
from barnabas.net.programs.pipeline.yaml_text import MAX_DEPTH, YamlError, read_yaml

SOURCE = "name: p\nsource:\n  topics: [t]\n  value: {format: text}\n"
SINK = "sink:\n  console: true\n"


def problems_of(text: str) -> list[str]:
    found = parse_pipeline(text, is_yaml=True)
    assert not isinstance(found, PipelineSpec)
    return [problem.text("p.yaml") for problem in found]


def test_it_describes_what_the_same_keys_describe_in_toml() -> None:
    text = yaml.safe_dump(tomllib.loads(GOOD), sort_keys=False)
    found, expected = parse_pipeline(text, is_yaml=True), parse_pipeline(GOOD)
    assert isinstance(found, PipelineSpec)
    assert isinstance(expected, PipelineSpec)
    assert [step.name for step in found.steps] == [step.name for step in expected.steps]
    assert (found.sources, found.sink, found.restarts, found.errors) == (
        expected.sources,
        expected.sink,
        expected.restarts,
        expected.errors,
    )
    assert found.spark_settings == expected.spark_settings


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("FALSE", False),
        ("on", "on"),
        ("no", "no"),
        ("12", 12),
        ("-3", -3),
        ("'12'", "12"),
        ('""', ""),
        ("1.5", "1.5"),
        ("0x1F", "0x1F"),
        ("2026-01-01", "2026-01-01"),
        ("|\n  a\n  b\n", "a\nb\n"),
        ("[a, 1, {b: c}]", ["a", 1, {"b": "c"}]),
    ],
)
def test_values(text: str, value: object) -> None:
    found = read_yaml(f"key: {text}").values["key"]
    assert (found, type(found)) == (value, type(value))


def test_places_of_keys_and_items() -> None:
    text = "# first\na: 1\nb:\n  c: {d: 2,\n    e: 3}\nf:\n- x\n- g: 1\n  h: 2\n"
    assert read_yaml(text).places == {
        ("a",): (2, 1),
        ("b",): (3, 1),
        ("b", "c"): (4, 3),
        ("b", "c", "d"): (4, 7),
        ("b", "c", "e"): (5, 5),
        ("f",): (6, 1),
        ("f", 0): (7, 3),
        ("f", 1): (8, 3),
        ("f", 1, "g"): (8, 3),
        ("f", 1, "h"): (9, 3),
    }


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("a: 1\nb: [1, 2\nc: 3", 3, "not valid YAML"),
        ("a: 1\na: 2", 2, "the key a stands here for the second time"),
        ("a:\n  b:\nc: 1", 2, "b has no value"),
        ("- a\n- b", 1, "the file must have keys"),
        ("a: 1\n---\na: 2", 2, "but found another document"),
        ("a: &x [1]\nb: *x", 2, "*x is an alias: write the value instead"),
        ("[a]: 1\n", 1, "a key must be a string"),
        ("a: \x00", 1, "not valid YAML"),
        ("a:\n" + "[" * (MAX_DEPTH + 1), 2, f"more than {MAX_DEPTH} levels"),
    ],
)
def test_what_is_not_taken(text: str, line: int, told: str) -> None:
    with pytest.raises(YamlError) as caught:
        read_yaml(text)
    assert (caught.value.place.line, told in str(caught.value)) == (line, True), str(caught.value)


def test_a_large_number_of_levels_ends_at_once() -> None:
    with pytest.raises(YamlError, match="levels"):
        read_yaml("a: " + "{a: " * 100_000)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "p.yaml:1: a pipeline has either the table source"),
        (SOURCE, "p.yaml:1: sink: is missing: add a sink with topic: "),
        (SOURCE + SINK + "eror: 1", "p.yaml:7: eror: unknown key (did you mean errors?)"),
        (SOURCE.replace("value", "valu") + SINK, 'p.yaml:2: source.value: is missing: add value: {format: "json"}'),
        (SOURCE.replace("text", "csv") + SINK, "p.yaml:4: source.value.fields: csv needs the names and types"),
        ("source: 3\n" + SINK, "p.yaml:1: source: is 3: must be a table: write source: with its keys below, indented"),
        (SOURCE + SINK + "steps: [3]", "p.yaml:7: steps: has the item 3: each must be a table: write steps: with a -"),
        (SOURCE + SINK + "steps:\n- sql: SELECT 1\n- sqll: x", "p.yaml:9: steps[2]: a step has either sql"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_the_cure_in_yaml(text: str, told: str) -> None:
    found = problems_of(text)
    assert any(without_column(problem).startswith(told) for problem in found), found


@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
def test_the_name_of_the_file_says_that_it_is_yaml(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"p{suffix}"
    file.write_text(SOURCE + SINK)
    assert read_pipeline(file).is_yaml
    toml = tmp_path / "p.toml"
    toml.write_text(SOURCE + SINK)
    with pytest.raises(PipelineFileError, match="not valid TOML"):
        read_pipeline(toml)


def test_without_pyyaml_the_problem_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "barnabas.net.programs.pipeline.yaml_text")
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert problems_of(SOURCE + SINK) == [
        "p.yaml:1:1: YAML needs PyYAML, which is not installed: pip install 'barnabas[spark]', or write the file in TOML"
    ]


def test_a_driver_reads_the_file_of_the_newest_run_whatever_its_language(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    folder.write_pipeline("a = 1", is_yaml=False)
    assert folder.read_pipeline() == ("a = 1", False)
    folder.write_pipeline("a: 1", is_yaml=True)
    assert folder.read_pipeline() == ("a: 1", True)
    folder.write_pipeline("a = 2", is_yaml=False)
    assert folder.read_pipeline() == ("a = 2", False)


def test_a_state_folder_around_the_file_is_refused_at_its_line(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(SOURCE + SINK + 'state: "."\n')
    with pytest.raises(PipelineFileError, match="p.yaml:7:1: state: is '.', where the file itself is"):
        read_pipeline(file)
