"""The steps of a pipeline: each makes a view of the views before it, by SQL or by a Python function."""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from pyspark import cloudpickle
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession

from barnabas.net.programs.pipeline.spec import PythonStep, SqlStep

from .faults import JVM_TRACE, PipelineFault, cause_of


def run_steps(
    spark: SparkSession,
    sources: Mapping[str, DataFrame],
    steps: tuple[SqlStep | PythonStep, ...],
    base: Path,
    *,
    is_remote: bool = False,
) -> DataFrame:
    """The rows of the last step, or of the only source. `is_remote`: in a Spark Connect server. Raises PipelineFault, which names
    the step."""
    for name, rows in sources.items():
        rows.createOrReplaceTempView(name)
    view, result = list(sources.items())[-1]
    for number, step in enumerate(steps, 1):
        where = f"step {number} ({step.name})"
        if isinstance(step, SqlStep):
            result = _selected(spark, step, where)
        else:
            result = _called(spark, step, view, base, where)
        if step.watermark is not None:
            result = result.withWatermark(step.watermark.column, step.watermark.delay)
        view = step.name
        result.createOrReplaceTempView(view)
        if (
            is_remote
        ):  # The view is what it was made of; this plan would look for names again, which mean other views by then.
            result = spark.table(view)
    return result


def _selected(spark: SparkSession, step: SqlStep, where: str) -> DataFrame:
    try:
        selected: DataFrame = spark.sql(step.statement)
        return selected
    except (AnalysisException, ParseException) as error:
        raise PipelineFault(f"{where}: {_plain(error)}") from error


def _plain(error: AnalysisException | ParseException) -> str:
    """Spark's message with the place, without the plan behind it."""
    text = str(error).partition("\n'")[0].partition("== SQL")[0].partition(JVM_TRACE)[0]
    return " ".join(text.split())


def _called(spark: SparkSession, step: PythonStep, view: str, base: Path, where: str) -> DataFrame:
    try:
        function = getattr(module_of(step.module, base), step.function)
        result = function(spark.table(view))
    except Exception as error:
        raise PipelineFault(f"{where}: {step.module}:{step.function} raised {cause_of(error)}") from error
    if not isinstance(result, DataFrame):
        raise PipelineFault(
            f"{where}: {step.module}:{step.function} returned {type(result).__name__}: return a DataFrame"
        )
    return result


def module_of(name: str, base: Path) -> ModuleType:
    """Modules in the pipeline's folder travel to the workers by value, because they do not have the folder: this one, and those
    that it imports at its head. One that a function imports later is not known yet; see `missing_in_workers`."""
    if str(base) not in sys.path:
        sys.path.insert(0, str(base))
    module = importlib.import_module(name)
    for found in list(sys.modules.values()):
        if _is_beside(found, base):
            cloudpickle.register_pickle_by_value(found)  # type: ignore[no-untyped-call]
    return module


def _is_beside(module: ModuleType, base: Path) -> bool:
    """In the folder, and not in an environment of Python that happens to be there, too."""
    file = getattr(module, "__file__", None)
    if not file or module.__name__ == "__main__":
        return False
    path = Path(file).resolve()
    return path.is_relative_to(base) and not path.is_relative_to(sys.prefix)
