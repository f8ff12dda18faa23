"""`quick_home`: a SPARK_HOME whose Python workers start with a fraction of the processor time.

Spark puts SPARK_HOME/python/lib/pyspark.zip before all other packages of its Python workers. Python finds no compiled modules in
it, so each process compiles what it imports of PySpark: about 0.8 s of processor time for a daemon that forks workers, 0.2 s
without. A query has several such processes. pip has installed the same PySpark as files with compiled modules beside them, which
workers find by themselves. Therefore this home links to everything of pip's PySpark except for the folder `python`.
"""

import hashlib
import os
import site
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

ZIP = Path("python", "lib", "pyspark.zip")
_WITHOUT = ("python", "__pycache__")


def link_home(package: Path, home: Path) -> None:
    """Let a folder have links to all of PySpark's package but for what has the zip. Those that are there stay. Another process
    may do the same. Raises OSError."""
    for item in package.iterdir():
        link = home / item.name
        if item.name in _WITHOUT or link.exists():
            continue
        link.unlink(missing_ok=True)  # it leads nowhere
        with suppress(FileExistsError):
            link.symlink_to(item)


def quick_home(package: Path, version: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The home, made at the first call for this `package` (the folder of PySpark) and version, in the user's cache.

    None if workers may need the zip, or if there is none: with a SPARK_HOME that the user has set, with another interpreter for
    workers, with a PySpark that this interpreter finds only through a changed sys.path; and where links cannot be made. Links
    that are gone are made again: a tool may have cleaned the cache.
    """
    if "SPARK_HOME" in environment or not (package / ZIP).exists() or os.name == "nt":
        return None
    # Spark prefers the driver's interpreter for the workers that plan a read or a write.
    interpreters = {environment.get("PYSPARK_PYTHON"), environment.get("PYSPARK_DRIVER_PYTHON", sys.executable)}
    if interpreters != {sys.executable} or not _is_found_by_workers(package, environment):
        return None
    try:
        cache = Path(environment.get("XDG_CACHE_HOME", ""))
        if not cache.is_absolute():  # its specification wants that such a path is ignored
            cache = Path.home() / ".cache"
        place = hashlib.sha256(str(package).encode()).hexdigest()[:16]
        home = cache / "barnabas" / f"spark-home-{version}-{place}"
        home.mkdir(parents=True, exist_ok=True)
        link_home(package, home)
        return home
    except (OSError, RuntimeError):  # RuntimeError: the user has no folder. The home only saves time.
        return None


def _is_found_by_workers(package: Path, environment: Mapping[str, str]) -> bool:
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    folders += filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    return package.parent in [Path(folder).absolute() for folder in folders]
