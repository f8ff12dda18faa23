"""Which implementation is used."""

import os
import subprocess
import sys

import pytest
from unit.log.records.record_world import implementations

SHOWN = "from barnabas.log.records.codec import Accumulator, IS_COMPILED; print(Accumulator.__module__, IS_COMPILED)"


def test_the_command_says_which_is_used():
    done = subprocess.run(
        [sys.executable, "-P", "-m", "barnabas", "--version"],
        env={**os.environ, "BARNABAS_PURE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith("barnabas ")
    assert done.stdout.endswith("(records: in Python, requests: in Python)\n")


@pytest.mark.parametrize(("wish", "is_pure"), [("1", True), ("0", False), ("", False)])
def test_the_environment_can_ask_for_the_twin_in_python(wish, is_pure):
    is_compiled = len(implementations()) == 2 and not is_pure
    done = subprocess.run(
        [sys.executable, "-P", "-c", SHOWN],
        env={**os.environ, "BARNABAS_PURE": wish},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    module = "_native" if is_compiled else "pure"
    assert done.stdout.split() == [f"barnabas.log.records.{module}", str(is_compiled)]
