"""`quick_home`: a SPARK_HOME whose Python workers start with a fraction of the processor time.

Spark puts SPARK_HOME/python/lib/pyspark.zip before all other packages of its Python workers. Python finds no compiled modules in
it, so each process compiles what it imports of PySpark: about 0.8 s of processor time for a daemon that forks workers, 0.2 s
without. A query has several such processes. pip has installed the same PySpark as files with compiled modules beside them, which
workers find by themselves. Therefore this home links to everything of pip's PySpark except for the folder `python`.
"""

import hashlib
import os
import shutil
import site
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

ZIP = Path("python", "lib", "pyspark.zip")
_WITHOUT = ("python", "__pycache__")


def link_home(package: Path, home: Path) -> None:
    """Fill a folder with links to all of PySpark's package but for what has the zip. Raises OSError."""
    for item in _wanted(package):
        (home / item.name).symlink_to(item)


def _wanted(package: Path) -> list[Path]:
    return [item for item in package.iterdir() if item.name not in _WITHOUT]


def quick_home(
    package: Path,
    version: str,
    environment: Mapping[str, str] = os.environ,
    *,
    fill: Callable[[Path, Path], None] = link_home,
) -> Path | None:
    """The home, made at the first call for this `package` (the folder of PySpark) and version, in the user's cache.

    None if workers may need the zip, or if there is none: with a SPARK_HOME that the user has set, with another interpreter for
    workers, with a PySpark that this interpreter finds only through a changed sys.path; and where links cannot be made, or some
    are gone: a tool may have cleaned the cache.
    """
    if "SPARK_HOME" in environment or not (package / ZIP).exists() or os.name == "nt":
        return None
    # Spark prefers the driver's interpreter for the workers that plan a read or a write.
    interpreters = {environment.get("PYSPARK_PYTHON"), environment.get("PYSPARK_DRIVER_PYTHON", sys.executable)}
    if interpreters != {sys.executable} or not _is_found_by_workers(package, environment):
        return None
    try:
        cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "barnabas"
        home = cache / f"spark-home-{version}-{hashlib.sha256(str(package).encode()).hexdigest()[:16]}"
        if not home.is_dir():
            cache.mkdir(parents=True, exist_ok=True)
            _make(package, home, fill)
        return home if all((home / item.name).exists() for item in _wanted(package)) else None
    except (OSError, RuntimeError):  # RuntimeError: the user has no folder. The home only saves time.
        return None


def _make(package: Path, home: Path, fill: Callable[[Path, Path], None]) -> None:
    """Another process may do it meanwhile: both homes are the same."""
    made = Path(tempfile.mkdtemp(dir=home.parent))
    try:
        fill(package, made)
        made.rename(home)
    except OSError:
        shutil.rmtree(made)
        if not home.is_dir():
            raise


def _is_found_by_workers(package: Path, environment: Mapping[str, str]) -> bool:
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    folders += filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    return package.parent in [Path(folder).absolute() for folder in folders]
