"""`local_session` and `session_on`: Spark, configured for the connector, with a clear error if Java is missing.

This module is optional: any SparkSession finds the format "barnabas". But without Java PySpark only reports that its gateway
exited, and the defaults for a cluster make every micro-batch on one machine take twice as long.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .java import require_java
from .spark_home import quick_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # Without libhadoop, Hadoop forks a chmod for every checkpoint file; this manager does not, which saves a third of the time.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

CONNECT = "sc://"  # A master that is a Spark Connect server: the session is there, and this process has no JVM.
CLUSTER_SETTINGS = {"spark.sql.session.timeZone": "UTC"}


def local_session(
    app_name: str = "barnabas", *, cores: int = 2, settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """A session on `cores` cores of this machine; `settings` override LOCAL_SETTINGS. Raises JavaMissingError."""
    return session_on(f"local[{cores}]", app_name, settings=settings)


def session_on(master: str, app_name: str, *, settings: Mapping[str, str] | None = None) -> "SparkSession":
    """A session on any master. LOCAL_SETTINGS are for local ones only; UTC is for all. Raises JavaMissingError, and for
    a Spark Connect server (sc://) PySparkImportError without the packages of pyspark[connect]."""
    if master.startswith(CONNECT):
        return _remote_session(master, app_name, settings or {})
    require_java()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Workers need the packages of this interpreter.
    defaults = CLUSTER_SETTINGS
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        defaults = LOCAL_SETTINGS
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in {**defaults, **(settings or {})}.items():
        builder = builder.config(name, value)
    if not master.startswith("local"):
        return builder.getOrCreate()
    with quick_workers():
        return builder.getOrCreate()


@contextmanager
def quick_workers() -> Iterator[None]:
    """The JVM that starts in this block has `quick_home`; other programs that this process starts later do not."""
    import pyspark

    home = quick_home(Path(pyspark.__file__).parent, pyspark.__version__)
    if home is not None:
        os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        if home is not None:
            os.environ.pop("SPARK_HOME", None)  # Another thread may have started a session, too.


def _remote_session(address: str, app_name: str, settings: Mapping[str, str]) -> "SparkSession":
    """Settings that a server takes only at its own start have no effect; Spark warns of them."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name).remote(address)
    for name, value in {**CLUSTER_SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
