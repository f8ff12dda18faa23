"""A SPARK_HOME without pyspark.zip: which Python workers get it, and what it has."""

import os
import shutil
import site
import sys
from contextlib import nullcontext
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from barnabas.spark_connector import session
from barnabas.spark_connector.session import quick_workers, session_on
from barnabas.spark_connector.spark_home import ZIP, quick_home

VERSION = "4.3.0"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """As pip installs it, but in a folder of PYTHONPATH."""
    folder = tmp_path / "packages" / "pyspark"
    (folder / ZIP.parent).mkdir(parents=True)
    (folder / ZIP).touch()
    for name in ("bin", "jars", "conf", "__pycache__"):
        (folder / name).mkdir()
    return folder


@pytest.fixture
def environment(tmp_path: Path, package: Path) -> dict[str, str]:
    return {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(package.parent),
    }


def test_the_home_has_everything_but_the_zip(package: Path, environment: dict[str, str]) -> None:
    home = quick_home(package, VERSION, environment)
    assert home is not None and home.is_relative_to(environment["XDG_CACHE_HOME"])
    assert {item.name for item in home.iterdir()} == {"bin", "jars", "conf"}
    assert (home / "jars").resolve() == package / "jars"


def test_it_is_made_once_for_a_version_of_a_package(package: Path, environment: dict[str, str]) -> None:
    home = quick_home(package, VERSION, environment)
    assert home is not None
    (home / "mark").touch()
    assert quick_home(package, VERSION, environment) == home and (home / "mark").exists()
    assert quick_home(package, "4.4.0", environment) != home


def test_a_package_that_pip_installed_for_the_user(
    package: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(package.parent))
    assert quick_home(package, VERSION, {**environment, "PYTHONPATH": ""}) is not None


def test_packages_of_the_same_version_in_two_places_have_two(
    package: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two virtual environments of one user: the home of one must not end with the other's."""
    other = package.parents[1] / "others" / package.name
    shutil.copytree(package, other)
    environment["PYTHONPATH"] += os.pathsep + "others"
    monkeypatch.chdir(other.parents[1])
    homes = [quick_home(found, VERSION, environment) for found in (package, other)]
    assert [(home / "jars").resolve() for home in homes if home] == [package / "jars", other / "jars"]


def test_two_processes_may_make_it_at_once(
    package: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each link is there already when the second one makes it."""
    link = Path.symlink_to

    def also_elsewhere(self: Path, target: Path) -> None:
        link(self, target)
        link(self, target)

    monkeypatch.setattr(Path, "symlink_to", also_elsewhere)
    home = quick_home(package, VERSION, environment)
    assert home is not None and {item.name for item in home.iterdir()} == {"bin", "jars", "conf"}


@pytest.mark.parametrize(
    "change",
    [
        {"SPARK_HOME": "/opt/spark"},
        {"PYSPARK_PYTHON": "/usr/bin/another-python"},
        {"PYSPARK_PYTHON": ""},
        {"PYSPARK_DRIVER_PYTHON": "/usr/bin/another-python"},
        {"PYTHONPATH": ""},
    ],
)
def test_workers_that_may_need_the_zip_keep_it(
    package: Path, environment: dict[str, str], change: dict[str, str]
) -> None:
    assert quick_home(package, VERSION, {**environment, **change}) is None


def test_without_a_zip_or_a_cache_spark_starts_as_before(package: Path, environment: dict[str, str]) -> None:
    Path(environment["XDG_CACHE_HOME"]).touch()
    assert quick_home(package, VERSION, environment) is None
    (package / ZIP).unlink()
    del environment["XDG_CACHE_HOME"]
    assert quick_home(package, VERSION, environment) is None


def test_a_home_that_cannot_be_filled_is_not_used(
    package: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Path, target: Path) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "symlink_to", fail)
    assert quick_home(package, VERSION, environment) is None


def test_a_relative_cache_is_ignored(
    package: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else the home would be another one in each folder, and the JVM may work in another."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    home = quick_home(package, VERSION, {**environment, "XDG_CACHE_HOME": "cache"})
    assert home is not None and home.is_relative_to(tmp_path / ".cache")


def test_a_user_without_a_folder_has_spark_as_before(
    package: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may run as a user id that no file knows."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    del environment["XDG_CACHE_HOME"]
    assert quick_home(package, VERSION, environment) is None


def test_links_that_are_gone_are_made_again(package: Path, environment: dict[str, str]) -> None:
    """Each session would fail until the folder is removed."""
    home = quick_home(package, VERSION, environment)
    assert home is not None
    (home / "bin").unlink()
    (home / "jars").unlink()
    (home / "jars").symlink_to(package / "gone")
    assert quick_home(package, VERSION, environment) == home
    assert [(home / name).resolve() for name in ("bin", "jars")] == [package / "bin", package / "jars"]


def test_two_threads_may_start_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both set SPARK_HOME, and both remove it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    with quick_workers():
        assert "SPARK_HOME" in os.environ, "this Python has no home, so nothing is tested"
        del os.environ["SPARK_HOME"]
    assert "SPARK_HOME" not in os.environ


def test_pip_installs_pyspark_where_workers_find_it(environment: dict[str, str]) -> None:
    """Else nothing would be gained, and nothing said so."""
    package = Path(pyspark.__file__).parent
    assert str(package.parent) in site.getsitepackages()
    del environment["PYTHONPATH"]
    assert quick_home(package, pyspark.__version__, environment) is not None


@pytest.mark.parametrize(("master", "is_quick"), [("local[2]", True), ("spark://elsewhere:7077", False)])
@pytest.mark.parametrize("fails", [False, True])
def test_only_the_jvm_of_a_local_session_has_the_home(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, master: str, is_quick: bool, fails: bool
) -> None:
    """On other machines, the links are not there. Programs that the process starts later have their own SPARK_HOME."""
    seen: list[str | None] = []

    def start(builder: SparkSession.Builder) -> None:
        seen.append(os.environ.get("SPARK_HOME"))
        if fails:
            raise OSError("no JVM")

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", start)
    monkeypatch.setattr(session, "require_java", lambda: "java")
    for name, value in {**environment, "PYTHONPATH": "", "SPARK_LOCAL_IP": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with pytest.raises(OSError, match="no JVM") if fails else nullcontext():
        session_on(master, "test")
    (home,) = seen
    assert "SPARK_HOME" not in os.environ and (home is not None) == is_quick
    assert home is None or home.startswith(environment["XDG_CACHE_HOME"])
