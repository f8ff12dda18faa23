"""Builds `record_readings.pyx` with the flags of the environment into the folder TARGET: build_sanitized.py TARGET."""

import sys

from Cython.Build import cythonize
from setuptools import Extension, setup

target = sys.argv[1]
setup(
    name="sanitized",
    ext_modules=cythonize(
        [Extension("barnabas.log.records._native", ["tests/fuzz/record_readings.pyx"])],
        include_path=["log/records"],
        build_dir=f"{target}/temp",
        quiet=True,
    ),
    script_args=["-q", "build_ext", "--force", "--build-lib", f"{target}/lib", "--build-temp", f"{target}/temp"],
)
