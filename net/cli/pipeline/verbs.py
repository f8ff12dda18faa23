"""`barnabas pipeline ...`: a pipeline on Spark that a TOML or YAML file describes: check, plan, run, watch, stop and reset it."""

import asyncio
import logging
import os
import sys
from argparse import ArgumentParser
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from ..frame.command import Context, Verb, no_arguments
from ..frame.exit_codes import CommandError, ExitCode
from ..frame.progress import Progress
from ..streams.copying import until_signalled

if TYPE_CHECKING:  # help must not import the pipeline's modules
    from barnabas.net.programs.pipeline.files import PipelineFile
    from barnabas.net.programs.pipeline.state import RunProgress, RunState, StateFolder
    from barnabas.net.programs.pipeline.supervisor import DriverOrder

STOP_PAUSE_S: Final = 0.2
DEFAULT_MASTER: Final = "local[*]"


def _file_argument(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the pipeline's file, TOML; NAME.yaml: YAML")


def _master_arguments(parser: ArgumentParser) -> None:
    _file_argument(parser)
    parser.add_argument(
        "--master",
        default=DEFAULT_MASTER,
        help="where Spark runs: local[N], spark://HOST:PORT, sc://HOST:PORT, yarn, k8s://URL (default: %(default)s)",
    )


def _validate_arguments(parser: ArgumentParser) -> None:
    _file_argument(parser)
    parser.add_argument(
        "--offline", action="store_true", help="check the file alone: ask neither brokers nor databases"
    )


def _run_arguments(parser: ArgumentParser) -> None:
    _master_arguments(parser)
    parser.add_argument("--once", action="store_true", help="process what is there now, and end")
    parser.add_argument(
        "--metrics", default="", metavar="HOST:PORT", help="serve the pipeline's metrics there, for Prometheus"
    )


def _reset_arguments(parser: ArgumentParser) -> None:
    _file_argument(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--empty-sink",
        action="store_true",
        help="the next run removes all rows of the sink's table before it writes, also those that the source has deleted",
    )


async def _validate(context: Context) -> int:
    """Every problem is a line on stderr; exit code 2 if there is one."""
    found = _read(context)
    if not context.arguments.offline:
        await _check_world(context, found)
    kinds = [type(source.origin).__name__.removesuffix("Source").lower() for source in found.spec.sources]
    row = {
        "pipeline": found.spec.name,
        "mode": "batch" if found.spec.is_batch else "stream",
        "sources": kinds,
        "steps": len(found.spec.steps),
        "sink": type(found.spec.sink).__name__.removesuffix("Sink").lower(),
    }
    context.out.line(f"{context.arguments.file}: valid", row)
    return ExitCode.OK


async def _plan(context: Context) -> int:
    """The plan goes to stdout. It has a folder of its own, so that it does not disturb a pipeline that is running."""
    from barnabas.net.programs.pipeline.supervisor import plan

    from .checks import located

    found = _read(context)
    await _check_world(context, found)
    folder = found.state_folder().of_plan()
    folder.prepare()
    folder.write_pipeline(found.text, is_yaml=found.is_yaml)
    context.out.stdout.flush()
    error = await asyncio.to_thread(plan, _order(context, found, folder, is_plan=True), folder)
    if error:
        raise CommandError(located(found, error))
    return ExitCode.OK


async def _run(context: Context) -> int:
    """Until Ctrl-C or SIGTERM, the end of bounded work, or more failures than `restarts.attempts`."""
    from barnabas.net.programs.pipeline.state import LockedError

    from .checks import located

    found = _read(context)
    await _check_world(context, found, is_patient=True)
    folder = found.state_folder()
    folder.prepare()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        with folder.locked("run"):
            folder.finish_removal()
            _refuse_other_pipeline(found, folder)
            if found.spec.is_batch and folder.read_progress().batches:
                raise CommandError(
                    f"the batch {found.spec.name} is written already: `barnabas pipeline reset` first, to write it again, or use"
                    ' mode = "stream" and --once, to write what is new'
                )
            folder.note_pid("run", os.getpid())
            folder.write_pipeline(found.text, is_yaml=found.is_yaml)
            state = await _supervised(context, found)
    except LockedError:
        pid = folder.pid("run")
        raise CommandError(
            f"pipeline {found.spec.name} is running already ({f'process {pid}' if pid else 'in another process'}): see"
            " `barnabas pipeline status`, or stop it with `barnabas pipeline stop`"
        ) from None
    if state.state == "failed":
        raise CommandError(f"pipeline {found.spec.name} failed: {located(found, state.last_error)}")
    done = folder.read_progress()
    context.out.note(f"{state.state}: {done.records} records read, {done.rows} rows written, {done.bad_records} bad")
    return ExitCode.OK


def _refuse_other_pipeline(found: "PipelineFile", folder: "StateFolder") -> None:
    """Raises CommandError. It would go on behind the records that the other one has read."""
    from barnabas.net.programs.pipeline.parsing import parse_pipeline
    from barnabas.net.programs.pipeline.spec import PipelineSpec

    stored, is_yaml = folder.read_pipeline()
    known = parse_pipeline(stored, is_yaml=is_yaml) if stored else None
    if isinstance(known, PipelineSpec) and known.name != found.spec.name:
        raise CommandError(
            f"{folder.path} has the state of the pipeline {known.name}, not of {found.spec.name}: give each pipeline a folder of"
            " its own (state = ...), or `barnabas pipeline reset` first, if this one was renamed"
        )


async def _supervised(context: Context, found: "PipelineFile") -> "RunState":
    from barnabas.net.programs.pipeline.supervisor import Supervisor

    from .collecting import Collecting
    from .metrics_server import PATH, pipeline_metrics, served
    from .reporting import StatusReporter
    from .slots import reported_slots

    folder = found.state_folder()
    is_bounded = context.arguments.once or found.spec.is_batch
    bar = _Bar(folder.read_progress().records, is_visible=is_bounded)
    supervisor = Supervisor(_order(context, found, folder), found.spec.restarts, folder, on_progress=bar.show)
    collecting = Collecting(found, context, _bootstrap(context, found), is_once=is_bounded)
    own_metrics = pipeline_metrics(found)
    reporter = StatusReporter(
        pipeline=found.spec.name,
        folder=folder,
        bootstrap=_bootstrap(context, found),
        security=context.connector.security,
    )
    try:
        async with (
            reporter.running(),
            reported_slots(found, context, _bootstrap(context, found)) as slot_metrics,
            served(lambda: own_metrics() + slot_metrics(), context.arguments.metrics) as port,
        ):
            if port:
                context.out.note(f"metrics on port {port}, path {PATH}")
            return await until_signalled(lambda: collecting.run(supervisor.run, supervisor.stop), collecting.stop)
    finally:
        bar.finish()


class _Bar:
    """The progress of bounded work: what is read, of that and what is left."""

    def __init__(self, records_before: int, *, is_visible: bool) -> None:
        self._before = records_before
        self._is_visible = is_visible
        self._seen = 0
        self._bar: Progress | None = None

    def show(self, progress: "RunProgress") -> None:
        done = progress.records - self._before
        if not self._is_visible or done <= 0:
            return
        if self._bar is None:
            self._bar = Progress(sys.stderr, "records", None if progress.lag is None else done + progress.lag)
        self._bar.advance(done - self._seen, done - self._seen)
        self._seen = done

    def finish(self) -> None:
        if self._bar is not None:
            self._bar.finish()


async def _status(context: Context) -> int:
    """Exit code 3 for a pipeline that failed, or whose process has died."""
    found = _read(context)
    folder = found.state_folder()
    state, progress = folder.read_run(), folder.read_progress()
    is_running = folder.is_locked("run")
    word: str = "never run" if state is None else state.state
    if word in ("running", "restarting") and not is_running:
        word = "died"  # kill -9, or the machine
    context.out.record(
        {
            "pipeline": found.spec.name,
            "state": word,
            "process": folder.pid("run") if is_running else None,
            "since": _time(state.since_ms if state else 0),
            "restarts": state.restarts if state else 0,
            "records": progress.records,
            "bad_records": progress.bad_records,
            "rows": progress.rows,
            "batches": progress.batches,
            "lag": progress.lag,
            "watermark": progress.watermark or None,
            "state_rows": progress.state_rows,
            "state_bytes": progress.state_bytes,
            "last_batch": _time(progress.last_batch_ms),
            "last_error": (state.last_error if state else "") or None,
        }
    )
    return ExitCode.UNHEALTHY if word in ("failed", "died") else ExitCode.OK


async def _list(context: Context) -> int:
    """As each `run` has told the cluster; exit code 3 if one failed or is silent."""
    from .listing import listed

    return await listed(context)


async def _stop(context: Context) -> int:
    """Wait, for --timeout, until the pipeline has ended after the micro-batch that is running."""
    from barnabas.net.programs.pipeline.supervisor import sent_stop

    found = _read(context)
    folder = found.state_folder()
    asked = False
    while folder.is_locked("run"):
        pid = folder.pid("run")
        if pid is not None and not asked:  # None: `status` or `reset` holds the lock, or a `run` that is about to begin
            asked = sent_stop(pid)
        await asyncio.sleep(STOP_PAUSE_S)
    if not asked:
        context.out.note(f"pipeline {found.spec.name} is not running")
        return ExitCode.OK
    context.out.line(f"stopped {found.spec.name}", {"pipeline": found.spec.name, "state": "stopped"})
    return ExitCode.OK


async def _reset(context: Context) -> int:
    """Remove the state, so that the next run begins at the start of its sources. What the sink has is not removed here."""
    from barnabas.net.programs.pipeline.state import LockedError

    from .resetting import after_reset, check_empty_sink

    found = _read(context)
    folder, is_emptied = found.state_folder(), context.arguments.empty_sink
    if is_emptied:
        check_empty_sink(found.spec)
    if not folder.path.exists() and not is_emptied:
        context.out.note(f"pipeline {found.spec.name} has no state: nothing to reset")
        return ExitCode.OK
    question = (
        f"The next run of {found.spec.name} begins at the start of its sources and writes everything again."
        f" {after_reset(found.spec, is_emptied=is_emptied)}"
    )
    if not context.arguments.yes:
        await asyncio.to_thread(_confirm, question, found.spec.name)
    folder.prepare()
    try:
        with folder.locked("run"), folder.locked("driver"):
            folder.remove()
            if is_emptied:
                folder.ask_for_empty_sink()
    except LockedError as error:
        if str(error) == "driver":
            words = "has a driver that is still ending, because `run` was killed: try again in a few seconds"
        else:
            words = "is running: `barnabas pipeline stop` first"
        raise CommandError(f"pipeline {found.spec.name} {words}") from None
    context.out.line(f"reset {found.spec.name}", {"pipeline": found.spec.name, "state": "never run"})
    if context.arguments.yes:
        context.out.note(after_reset(found.spec, is_emptied=is_emptied))
    return ExitCode.OK


def _confirm(question: str, name: str) -> None:
    """Raises CommandError unless the user types the name. Without a terminal, --yes is needed."""
    if not sys.stdin.isatty():
        raise CommandError(f"{question} Add --yes to confirm", ExitCode.USAGE)
    print(f"{question} Type {name} to confirm: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != name:
        raise CommandError("not confirmed; nothing was changed")


def _time(time_ms: int) -> str | None:
    return datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="seconds") if time_ms else None


def _read(context: Context) -> "PipelineFile":
    from barnabas.net.programs.pipeline.files import PipelineFileError, read_pipeline

    try:
        return read_pipeline(context.arguments.file)
    except PipelineFileError as error:
        _refuse(context, error.problems)


async def _check_world(context: Context, found: "PipelineFile", *, is_patient: bool = False) -> None:
    """Ask brokers and databases for what the file names. `is_patient`: one that does not answer is told, and the driver tries
    again, as often as the file says. Raises CommandError."""
    from .checks import world_problems

    problems = await world_problems(found, context.connector, _bootstrap(context, found))
    if is_patient and all(problem.may_pass for problem in problems):
        for problem in problems:
            context.out.note(f"barnabas: {problem.text(str(found.path))}")
    elif problems:
        _refuse(context, [problem.text(str(found.path)) for problem in problems])


def _refuse(context: Context, problems: list[str]) -> NoReturn:
    """Raises CommandError."""
    for problem in problems[:-1]:
        context.out.note(f"barnabas: {problem}")
    raise CommandError(problems[-1], ExitCode.USAGE) from None


def _bootstrap(context: Context, found: "PipelineFile") -> str:
    """The command line and the environment take precedence."""
    said = context.arguments.bootstrap or os.environ.get("BARNABAS_BOOTSTRAP")
    return context.bootstrap if said or not found.spec.bootstrap else found.spec.bootstrap


def _order(context: Context, found: "PipelineFile", folder: "StateFolder", *, is_plan: bool = False) -> "DriverOrder":
    from barnabas.net.programs.pipeline.supervisor import DriverOrder

    given = context.arguments
    config = given.command_config or os.environ.get("BARNABAS_COMMAND_CONFIG") or ""
    return DriverOrder(
        state=folder.path,
        base=found.base,
        bootstrap=_bootstrap(context, found),
        master=given.master,
        command_config=str(Path(config).resolve()) if config else "",
        is_once=not is_plan and given.once,
        is_plan=is_plan,
    )


VERBS: Final = (
    Verb(
        name="validate",
        summary="check the file, its topics and its tables, without Spark",
        arguments=_validate_arguments,
        run=_validate,
    ),
    Verb(
        name="list",
        summary="the pipelines that run on this cluster, or did in the last week",
        arguments=no_arguments,
        run=_list,
    ),
    Verb(name="plan", summary="show what would run", arguments=_master_arguments, run=_plan, timed=False),
    Verb(name="run", summary="run it in the foreground", arguments=_run_arguments, run=_run, timed=False),
    Verb(
        name="status",
        summary="rows, lag, watermark, size of state and last error",
        arguments=_file_argument,
        run=_status,
    ),
    Verb(name="stop", summary="stop it after its micro-batch", arguments=_file_argument, run=_stop),
    Verb(name="reset", summary="forget positions and state", arguments=_reset_arguments, run=_reset),
)
