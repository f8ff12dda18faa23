"""`parse_pipeline`: the text of a pipeline's file to a `PipelineSpec`, or to all of its problems. Pure.

Sources are read in `source_parsing`, sinks in `sink_parsing`. Here are the document, its steps, and the rules between its parts.
"""

import re
from typing import Final

from barnabas.log.vocabulary.errors import InvalidRegularExpressionError
from barnabas.log.vocabulary.name_pattern import name_pattern

from .document_table import DocumentTable, Problem, parse_document
from .sink_parsing import read_errors, read_output_mode, read_sink
from .source_parsing import (
    is_view_name,
    read_bootstrap,
    read_interval,
    read_sources,
    read_watermark,
    refuse_parts_of_streams,
)
from .spec import (
    INPUT,
    PipelineSpec,
    PostgresSource,
    PythonStep,
    RestartPolicy,
    SourceSpec,
    SqlSource,
    SqlStep,
    TableSink,
    TopicSink,
    TopicSource,
)

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FUNCTION: Final = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")
MAX_STEPS: Final = 100  # each is a view that Spark analyses again for the ones behind it
MAX_ATTEMPTS: Final = 1_000


def parse_pipeline(text: str, *, is_yaml: bool = False) -> PipelineSpec | list[Problem]:
    """The problems are in the order of their lines."""
    document = parse_document(text, is_yaml=is_yaml)
    if isinstance(document, Problem):
        return [document]
    if document.has("connector") and not document.has("sink"):  # all other keys would be unknown, too
        document.refuse(
            "connector", "this is the file of a connector, not of a pipeline: run `barnabas connect run FILE`"
        )
        return document.problems
    spec = _read(document)
    document.finish()
    if document.problems:
        return sorted(document.problems, key=lambda problem: problem.place)
    return spec


def _read(document: DocumentTable) -> PipelineSpec:
    name = document.required_text("name", "web-requests")
    if name and not _NAME.fullmatch(name):
        document.refuse("name", f"is {name!r}: use up to 100 letters, digits, '.', '_' and '-'")
    is_batch = document.text("mode", "stream", choices=("stream", "batch")) == "batch"
    sources = read_sources(document)
    steps = _steps(document, sources)
    sink = read_sink(document)
    spec = PipelineSpec(
        name=name,
        is_batch=is_batch,
        bootstrap=read_bootstrap(document),
        sources=sources,
        steps=steps,
        sink=sink,
        output_mode=read_output_mode(document, sink, is_batch=is_batch),
        trigger=read_interval(document, "trigger"),
        errors=read_errors(document),
        restarts=_restarts(document),
        state_folder=document.text("state"),
        checkpoint=document.text("checkpoint"),
        spark_settings=_spark_settings(document),
        has_named_sources=document.has("sources"),
    )
    if is_batch:
        for key in document.given("trigger", "checkpoint"):
            document.refuse(key, f"has no effect with {document.words.pair('mode', 'batch')}: remove it")
    if len(sources) > 1 and not steps:
        document.refuse("", "there are several sources and no step: join them with a step in SQL")
    refuse_parts_of_streams(document, sources, is_batch=is_batch)
    _refuse_loops(document, spec)
    _refuse_second_queries(document, spec)
    return spec


def _spark_settings(document: DocumentTable) -> dict[str, str]:
    table = document.table("spark")
    if table is None:
        return {}
    found = {}
    for name in table.names():
        if name.startswith("spark."):
            found[name] = table.text(name)
        else:
            table.given(name)
            table.refuse_key(
                name, 'is no setting of Spark: write its full name in quotes, "spark.sql.shuffle.partitions"'
            )
    table.finish()
    return found


def _restarts(document: DocumentTable) -> RestartPolicy:
    table = document.table("restarts")
    if table is None:
        return RestartPolicy()
    plain = RestartPolicy()
    found = RestartPolicy(
        attempts=table.integer("attempts", plain.attempts, least=0, most=MAX_ATTEMPTS),
        first_ms=table.integer("first_ms", plain.first_ms, least=1, most=3_600_000),
        max_ms=table.integer("max_ms", plain.max_ms, least=1, most=3_600_000),
    )
    if found.first_ms > found.max_ms:
        table.refuse("first_ms", f"is {found.first_ms}, which is more than max_ms ({found.max_ms}): lower it")
    table.finish()
    return found


# --- steps ----------------------------------------------------------------------------------------------------------------


def _steps(document: DocumentTable, sources: tuple[SourceSpec, ...]) -> tuple[SqlStep | PythonStep, ...]:
    steps: list[SqlStep | PythonStep] = []
    taken = {source.name.lower() for source in sources}  # as Spark compares names of views
    for table in document.tables("steps"):
        step = _step(table)
        if table.has("name") and step.name.lower() in taken:
            table.refuse("name", f"is {step.name!r}, which another view has already: choose another name")
        taken.add(step.name.lower())
        steps.append(step)
        table.finish()
    if len(steps) > MAX_STEPS:
        document.refuse("steps", f"has {len(steps)} steps: use at most {MAX_STEPS}")
    return tuple(steps)


def _step(table: DocumentTable) -> SqlStep | PythonStep:
    name = table.text("name", INPUT)
    if not is_view_name(name):
        table.refuse("name", f"is {name!r}: a view's name has letters, digits and '_', and begins with a letter")
    kinds = table.given("sql", "python")
    if len(kinds) != 1:
        table.refuse("", "a step has either sql (a SELECT) or python (module:function): write one of them")
    watermark = read_watermark(table)
    if kinds == ["python"]:
        text = table.text("python")
        match = _FUNCTION.fullmatch(text)
        if match is None:
            table.refuse("python", f'is {text!r}: write "module:function", such as "steps:only_errors"')
        module, function = match.groups() if match else ("", "")
        return PythonStep(name=name, module=module, function=function, watermark=watermark)
    return SqlStep(name=name, statement=table.text("sql").rstrip().rstrip(";"), watermark=watermark)


# --- between the parts ----------------------------------------------------------------------------------------------------


def _refuse_loops(document: DocumentTable, spec: PipelineSpec) -> None:
    """A pipeline that reads what it writes never ends."""
    targets = {"errors.topic": spec.errors.topic}
    if isinstance(spec.sink, TopicSink):
        targets["sink.topic"] = spec.sink.topic
        if spec.sink.topic and spec.sink.topic == spec.errors.topic:
            document.refuse("errors.topic", "is the topic of the sink, too: use a topic of its own for dead letters")
    for key, topic in targets.items():
        if topic and any(_reads(source, topic) for source in spec.sources):
            document.refuse(key, f"is {topic!r}, which a source reads: the pipeline would read what it writes")
    sink = spec.sink
    for origin in (source.origin for source in spec.sources):
        if (
            isinstance(sink, TableSink)
            and isinstance(origin, SqlSource)
            and (sink.database, sink.table) == (origin.database, origin.table)
        ):
            document.refuse("sink.table", f"is {sink.table!r}, which a source reads: write to another table")


def _refuse_second_queries(document: DocumentTable, spec: PipelineSpec) -> None:
    if spec.errors.action == "dead-letter" and any(isinstance(found.origin, PostgresSource) for found in spec.sources):
        document.refuse(
            "errors.action",
            "dead-letter reads the source a second time, and a replication slot serves one query: use stop or skip, or read"
            " the topics of `barnabas connect`",
        )


def _reads(source: SourceSpec, topic: str) -> bool:
    if not isinstance(source.origin, TopicSource):
        return False
    if not source.origin.name_pattern:
        return topic in source.origin.topics
    try:
        return name_pattern(source.origin.name_pattern).matches(topic)
    except InvalidRegularExpressionError:
        return False  # which is reported at the pattern
