"""Builds the compiled module barnabas.log.records._native, if Cython and a C compiler exist. pyproject.toml describes all else.

Without them the installation continues: barnabas.log.records.pure does the same in Python (`barnabas --version` tells).
"""

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NAME = "barnabas.log.records._native"


class OptionalBuild(build_ext):
    def initialize_options(self) -> None:
        super().initialize_options()
        self.cython_c_in_temp = True  # The generated C does not belong among the sources.

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:  # Compilers, and their absence, have no common error.
            self.warn(
                f"{NAME} was not built ({type(error).__name__}: {error}). Records are read and written in Python, about ten times"
                " slower. Install a C compiler, the headers of Python (Debian: gcc, python3-dev) and Cython, and install again."
            )
            raise


setup(
    ext_modules=[
        # -g0: debug information would be nine tenths of the file.
        Extension(
            NAME,
            ["log/records/_native.pyx"],
            depends=["log/records/_writing.pxi"],
            optional=True,
            extra_compile_args=["-O3", "-g0"],
        )
    ],
    cmdclass={"build_ext": OptionalBuild},
)
