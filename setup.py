"""Builds the compiled module barnabas.log.records._native, if Cython and a C compiler exist. pyproject.toml describes all else.

Without them the installation continues: barnabas.log.records.pure does the same in Python (`barnabas --version` tells).

With BARNABAS_COMPILE=1, mypyc also compiles the modules of BROKER_MODULES as they are: those that a broker runs for each
request. That takes a minute or two, and is what wheels by cibuildwheel and the container image have. Their source is installed
beside them, and BARNABAS_PURE=1 runs that.

BARNABAS_OPTIMIZE=1 compiles everything with -O1, in a third of the time: for tests.
"""

import importlib.util
import os
import shlex
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NAME = "barnabas.log.records._native"
# What produce and fetch run, apart from the classes that tests replace or extend: compiled classes accept neither.
BROKER_MODULES = (
    "log/checkpoints/leader_epoch_cache",
    "log/format/record_batch",
    "log/format/varint",
    "log/partition/log_producers",
    "log/partition/log_segments",
    "log/partition/log_tail",
    "log/partition/partition_log",
    "log/replication/current_role",
    "log/replication/guarded_log",
    "log/replication/leader",
    "log/replication/leading",
    "log/replication/replica_manager",
    "log/segment/append_check",
    "log/segment/append_times",
    "log/segment/file_records",
    "log/segment/segment",
    "log/segment/segment_indexes",
    "net/base/clock",
    "net/base/fair_reads",
    "net/base/turn",
    "net/handlers/common/many",
    "net/handlers/records/preparing",
    "net/handlers/records/produce",
    "net/handlers/records/produce_rules",
    "net/server/connection",
    "net/server/intake",
    "net/server/receive_buffer",
    "net/server/replies",
    "net/wire/outbox",
    "net/wire/protocol/codec",
    "net/wire/protocol/framing",
    "net/wire/protocol/kafka/codec",
    "net/wire/protocol/kafka/data_apis",
    "net/wire/protocol/kafka/primitives",
    "net/wire/protocol/kafka/single_produce",
)


OPTIMIZE = os.environ.get("BARNABAS_OPTIMIZE", "")
IS_COMPILED = os.environ.get("BARNABAS_COMPILE", "0") not in ("", "0")
# mypyc is part of mypy, which refuses our messages unless it sees the types of msgspec. scripts/lock has both for the Dockerfile.
COMPILER = ("mypy>=2.4,<3", "msgspec>=0.20,<0.23")


class OptionalBuild(build_ext):
    def initialize_options(self) -> None:
        super().initialize_options()
        self.cython_c_in_temp = True  # The generated C does not belong among the sources.

    def run(self) -> None:
        if IS_COMPILED and not has_compiler():
            raise SystemExit(
                f"BARNABAS_COMPILE=1 needs mypyc, and this build is not isolated: pip install {shlex.join(COMPILER)}"
            )
        super().run()

    def build_extension(self, ext: Extension) -> None:
        if ext.name != NAME:
            super().build_extension(ext)  # It was asked for: a failure ends the build.
            return
        try:
            super().build_extension(ext)
        except Exception as error:  # Compilers, and their absence, have no common error.
            self.warn(
                f"{NAME} was not built ({type(error).__name__}: {error}). Records are read and written in Python, about ten times"
                " slower. Install a C compiler, the headers of Python (Debian: gcc, python3-dev) and Cython, and install again."
            )
            raise


def has_compiler() -> bool:
    return all(importlib.util.find_spec(name) for name in ("mypyc", "msgspec"))


def broker_modules() -> list[Any]:
    """Empty unless they are asked for; and while an isolated build still asks for its requirements: mypyc is not there yet."""
    if not IS_COMPILED or not has_compiler():
        return []
    from mypyc.build import mypycify

    # mypy does not know setuptools' mapping of packages; this folder has the tree under its installed name.
    tree = Path("build/namespace")
    tree.mkdir(parents=True, exist_ok=True)
    link = tree / "barnabas"
    if not link.is_symlink():
        link.symlink_to("../..")
    os.environ["MYPYPATH"] = str(tree)
    paths = [str(link / f"{name}.py") for name in BROKER_MODULES]
    options = ["--config-file=", "--explicit-package-bases", "--namespace-packages", "--ignore-missing-imports"]
    found: list[Any] = mypycify(
        [*options, *paths], opt_level=OPTIMIZE or "2", debug_level="0", group_name="barnabas", target_dir="build/mypyc"
    )
    return found


setup(
    setup_requires=list(COMPILER) if IS_COMPILED else [],  # of an isolated build, as [build-system] in pyproject.toml
    ext_modules=[
        # -g0: debug information would be nine tenths of the file.
        Extension(
            NAME,
            ["log/records/_native.pyx"],
            depends=["log/records/_writing.pxi", "log/records/_intake.pxi"],
            optional=True,
            extra_compile_args=[f"-O{OPTIMIZE or 3}", "-g0"],
        ),
        *broker_modules(),
    ],
    cmdclass={"build_ext": OptionalBuild},
)
