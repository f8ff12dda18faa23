"""Many tests with the fixtures of `barnabas.testing` under xdist, run again and again: does any of them ever fail?

    scripts/plugin-runs --runs 20 --tests 500

Each test produces, reads, works in a group or in a transaction; a third of them break something, and some leave it broken, with
members and transactions open, for the fixture to clean up. Each test needs what was promised: an empty, healthy cluster.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

RUN_TIMEOUT_S: Final = 600
MANY: Final = Path(__file__).with_name("many_tests.py")
HOW_MANY: Final = "TESTS_IN_ALL"  # variable of the environment that it reads


def run_pytest(
    folder: Path, text: str, *arguments: str, timeout_s: float = RUN_TIMEOUT_S, tests: int = 0
) -> subprocess.CompletedProcess[str]:
    """pytest in a process of its own, in this folder, with nothing but the plugin of `barnabas.testing` and xdist."""
    (folder / "test_it.py").write_text(text, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "BARNABAS"))}
    without = ("cacheprovider", "asyncio", "anyio")  # the last: of a library that others bring; it imports asyncio
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-W", "error"),
            *(f"-pno:{name}" for name in without),
            *arguments,
            "test_it.py",
        ],
        cwd=folder,
        env={**environment, HOW_MANY: str(tests)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--tests", type=int, default=500)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--backend", default="in-process")
    options = parser.parse_args()
    failed = 0
    for number in range(1, options.runs + 1):
        with tempfile.TemporaryDirectory(prefix="barnabas-runs-") as folder:
            began_s = time.monotonic()
            try:
                ended = run_pytest(
                    *(Path(folder), MANY.read_text(), "-n", str(options.workers), "--timeout=120"),
                    f"--barnabas-backend={options.backend}",
                    tests=options.tests,
                )
                good, told = f"{options.tests} passed" in ended.stdout and ended.returncode == 0, ended.stdout
            except subprocess.TimeoutExpired as error:
                good, told = False, (error.stdout or b"").decode(errors="replace") + f"\nnot within {RUN_TIMEOUT_S} s"
        failed += not good
        last = told.strip().splitlines()[-1:] or [""]
        print(f"run {number}: {last[0]}; {time.monotonic() - began_s:.0f} s" if good else f"run {number}:\n{told}")
        sys.stdout.flush()
    print(f"{options.runs - failed} of {options.runs} runs with {options.tests} tests passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
