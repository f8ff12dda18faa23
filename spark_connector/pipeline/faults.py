"""Errors of a pipeline that another start would repeat, and the one line of an error of Spark that says the cause."""

import os
import re
import sys

from barnabas.log.vocabulary.errors import BarnabasError, InvalidConfigError, UnknownTopicOrPartitionError
from barnabas.net.client.connection.errors import MissingExtraError, SchemaRegistryError
from barnabas.net.programs.connect.postgres.changes.faults import (
    KeyMissingError,
    PositionFormatError,
    SchemaConflictError,
    ServerSetupError,
    SlotLostError,
    UnreadableMessageError,
)
from barnabas.net.programs.connect.postgres.segment import BEGIN_AGAIN, RESET, SpoolError
from barnabas.net.programs.connect.relations.relation import RelationError

from ..read.data_loss import AVOID, WHY

# Before the text of a record that is stopped at, inside of Spark's own message, so that it can be found there.
BAD_RECORD = "BAD_RECORD"
_BAD_RECORD = re.compile(rf"{BAD_RECORD}\{{(.*?)\}}{BAD_RECORD}", re.DOTALL)
_RAISED = re.compile(r"^(?:Caused by: |: )?(?:[\w.]+\.)?(\w*(?:Error|Exception|PipelineFault)): (.+)$", re.MULTILINE)
_FRAMES = (
    "Py4JJavaError",
    "Py4JException",
    "ForeachBatchUserFuncException",
    "SparkException",
    "PythonException",
    "StreamingQueryException",
)
# What stops reading a database until the server, the tables or the folder have changed; a slot in use may pass.
_OF_DATABASES = frozenset(
    kind.__name__
    for kind in (
        KeyMissingError,
        PositionFormatError,
        RelationError,
        SchemaConflictError,
        ServerSetupError,
        SlotLostError,
        SpoolError,
        UnreadableMessageError,
    )
)
_LOST = re.compile(rf"^DataLossError: (.*?)\. {re.escape(WHY)}")
_MISSING_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'")
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]*)"')
# What the package needs in each worker; others are those of a step.
_OWN_MODULES = frozenset(
    {"barnabas", "pyspark_barnabas", "pyspark_barnabas_postgres", "pyspark", "pyarrow", "pandas", "msgspec"}
)
_FAULT = "PipelineFault: "  # raised where a micro-batch is written, and quoted by Spark
_OF_PLANS = ("AnalysisException", "ParseException")
JVM_TRACE = "\nJVM stacktrace:"  # a Spark Connect server adds it to messages
_NO_MEMORY = "OutOfMemoryError"
_MORE_MEMORY = (
    'raise "spark.driver.memory" (with a cluster also "spark.executor.memory") under [spark]; if `barnabas pipeline status` shows'
    " that the state of windows and joins grows, give the source a watermark, or keep the state on disk:"
    ' "spark.sql.streaming.stateStore.providerClass" ='
    ' "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"'
)
_MAX_CAUSES = 20  # of a chain, which could be a ring


class PipelineFault(Exception):
    """The pipeline, or its data, has to change; the message says how."""


def cause_of(error: BaseException) -> str:
    """One line for the user. Errors of Spark quote the tracebacks of workers and the plan, in many lines."""
    text = _text_of(error)
    bad = _BAD_RECORD.search(text)
    if bad is not None:
        return bad[1]
    raised = [f"{name}: {words}" for name, words in _RAISED.findall(text) if name not in _FRAMES]
    if raised:
        return raised[-1].strip()
    lines = [line.strip() for line in text.splitlines()]
    first = next((line for line in reversed(lines) if line and not line.startswith("at ")), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def lost_records(error: BaseException) -> str:
    """Which records were removed before they were read; empty if this is another error."""
    found = _LOST.search(cause_of(error))
    return found[1] if found else ""


def missing_in_workers(error: BaseException) -> str:
    """What the Python of Spark's workers lacks, and the cure; empty if this is another error."""
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    cure = (
        f"install 'barnabas[spark]' for {python} on all machines of the cluster, or set PYSPARK_PYTHON to a Python that has it"
        " on all of them"
    )
    text = _text_of(error)
    if no_program := _NO_PROGRAM.search(text):
        return f"there is no program {no_program[1]} on a machine of Spark: {cure}"
    found = _MISSING_MODULE.search(cause_of(error))
    if not found:
        return ""
    module = found[1].partition(".")[0]
    if module not in _OWN_MODULES:
        cure = (
            "import it at the head of the step's module, if it is beside the pipeline's file; otherwise, install it for"
            f" {python} on all machines of the cluster"
        )
    return f"a worker of Spark has no module {module}: {cure}"


def is_bad_record(error: BaseException) -> bool:
    return _BAD_RECORD.search(_text_of(error)) is not None


def is_final(error: Exception) -> bool:
    """The pipeline or its data has to change. Everything else may pass: brokers, networks, memory, databases."""
    if isinstance(error, PipelineFault | InvalidConfigError | MissingExtraError | UnknownTopicOrPartitionError):
        return True
    if is_bad_record(error) or lost_records(error):
        return True
    if isinstance(error, SchemaRegistryError):
        return not error.retriable
    if missing_in_workers(error):
        return True
    if cause_of(error).startswith(_FAULT) or cause_of(error).partition(":")[0] in _OF_DATABASES:
        return True
    return type(error).__name__ in _OF_PLANS


def told_of(error: Exception) -> str:
    """One line for the user: the cause, and what to change in the file."""
    if isinstance(error, PipelineFault):
        return str(error)
    if is_bad_record(error):
        return f'{cause_of(error)}: repair the schema, or set action = "skip" or "dead-letter" under [errors]'
    if any(words in cause_of(error) for words in (BEGIN_AGAIN, RESET)):
        return (
            f"{cause_of(error)}. For a pipeline, `barnabas pipeline reset` makes the new checkpoint and the new folder"
        )
    if missing := missing_in_workers(error):
        return missing
    if _NO_MEMORY in cause_of(error):
        return f"{cause_of(error)}: {_MORE_MEMORY}"
    if lost := lost_records(error):
        return f'{lost}. {WHY} Set lost_records = "skip" in the source to go on without them; {AVOID}'
    return error.message if isinstance(error, BarnabasError) else cause_of(error).removeprefix(_FAULT)


def _text_of(error: BaseException) -> str:
    """The messages of the error and of its causes, without the plan of the query, which quotes the pipeline's own texts.

    The cause of an error of the JVM is in `_cause`; the outermost message may only say that a thread has failed.
    """
    texts: list[str] = []
    current: BaseException | None = error
    while current is not None and len(texts) < _MAX_CAUSES:
        text = str(current).partition("\n=== Streaming Query ===")[0]
        texts.append(text.partition(JVM_TRACE)[0] if type(current).__name__ in _OF_PLANS else text)
        current = getattr(current, "_cause", None) or current.__cause__
    return "\n".join(texts)
