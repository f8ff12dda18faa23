"""The process of a pipeline's Spark driver; `net/programs/pipeline/supervisor.py` starts it, and starts it again.

It ends with one of the exit codes of `DriverExit`, and leaves the reason in the state folder.
"""

import argparse
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from barnabas.log.vocabulary.errors import StorageError
from barnabas.net.programs.pipeline.disk import CURE, full_disk, says_full
from barnabas.net.programs.pipeline.parsing import parse_pipeline
from barnabas.net.programs.pipeline.spec import PipelineSpec, on_this_machine
from barnabas.net.programs.pipeline.state import StateFolder
from barnabas.net.programs.pipeline.supervisor import DriverExit

from ..common.connection import properties_of, security_of
from ..session import CONNECT, session_on
from .faults import PipelineFault, is_final, told_of
from .masters import check_master, require_server

# A driver whose supervisor was killed sees that within a second, and ends; its successor waits for it.
ORPHAN_WAIT_S: Final = 120.0


def main(arguments: Sequence[str]) -> int:
    given = order_of(arguments)
    state = StateFolder(given.state)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        with state.locked("driver", wait_s=ORPHAN_WAIT_S):
            state.note_pid("driver", os.getpid())
            _run(given, state, stop)
    except Exception as error:  # noqa: BLE001 - the boundary: whatever it is, the supervisor decides on it by its exit code
        if stop.is_set():
            return DriverExit.OK
        return _noted(error, state, given.base)
    return DriverExit.OK


def _noted(error: Exception, state: StateFolder, base: Path) -> DriverExit:
    """One line in the state, and all of it in driver.log. If the disk is full, the exit code is what is left to say so."""
    told, code = told_of(error), DriverExit.FINAL if is_final(error) else DriverExit.MAY_PASS
    if says_full(told):
        told = told if CURE in told else full_disk(told, _written(state, base))
    try:
        state.write_error(told)
    except StorageError:
        code = DriverExit.NO_SPACE
    with suppress(OSError):
        traceback.print_exception(error)
    return code


def _written(state: StateFolder, base: Path) -> list[Path]:
    """The folders of this machine that a job writes."""
    text, is_yaml = state.read_pipeline()
    spec = parse_pipeline(text, is_yaml=is_yaml)
    own = {} if not isinstance(spec, PipelineSpec) else spec.spark_settings
    local = os.environ.get("SPARK_LOCAL_DIRS") or own.get("spark.local.dir") or tempfile.gettempdir()
    found = [state.path, *map(Path, local.split(","))]
    if isinstance(spec, PipelineSpec) and spec.checkpoint:
        checkpoint = on_this_machine(spec.checkpoint, base)
        found += [checkpoint] if checkpoint is not None else []
    return found


def order_of(arguments: Sequence[str]) -> argparse.Namespace:
    """What `DriverOrder.command` has written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--command-config", type=Path)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--plan", action="store_true")
    return parser.parse_args(arguments)


def _run(given: argparse.Namespace, state: StateFolder, stop: threading.Event) -> None:
    text, is_yaml = state.read_pipeline()
    spec = parse_pipeline(text, is_yaml=is_yaml)
    assert isinstance(spec, PipelineSpec), "the command has checked the file"
    check_master(given.master, spec.spark_settings)
    is_remote = given.master.startswith(CONNECT)
    require_spark(is_remote=is_remote)
    if is_remote:
        require_server(given.master, os.environ)
    from .queries import Job
    from .sources import World

    properties = properties_of(given.command_config)
    own = {} if is_remote else {"spark.log.level": "ERROR"}
    spark = session_on(given.master, spec.name, settings={**own, **spec.spark_settings})
    signal.signal(signal.SIGTERM, lambda *_: stop.set())  # PySpark has handlers of its own
    try:
        world = World(
            spark=spark,
            state=state,
            base=given.base,
            connection={"bootstrap.servers": given.bootstrap, **security_of(properties)},
            is_batch=spec.is_batch,
            is_plan=given.plan,
            registry_login=properties,
            is_remote=is_remote,
        )
        job = Job(world, spec, is_stopped=lambda: stop.is_set() or os.getppid() != given.parent)
        if given.plan:
            job.plan()
        else:
            job.run(is_once=given.once)
    finally:
        spark.stop()


def require_spark(*, is_remote: bool = False) -> None:
    """Raises PipelineFault with the command that installs PySpark, or what it needs for a Spark Connect server."""
    try:
        import pyspark.sql  # noqa: F401
    except ImportError as error:
        raise PipelineFault(f"pipelines need PySpark ({error}): pip install 'barnabas[spark]'") from error
    if not is_remote:
        return
    missing = [name for name in ("grpc", "grpc_status") if find_spec(name) is None]
    if missing:
        raise PipelineFault(
            f"--master sc://... needs a client (no module {missing[0]}): pip install 'pyspark[connect]'"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
