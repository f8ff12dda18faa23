"""Known vulnerabilities of what the lock files name, from the answers of pip-audit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "audit_packages.py"
CLEAN = {"name": "attrs", "version": "26.1.0", "vulns": []}
SKIPPED = {"name": "cffi", "skip_reason": "Dependency not found on PyPI and could not be audited: cffi (2.1.1)"}
VULNERABLE = {
    "name": "aiohttp",
    "version": "3.0.0",
    "vulns": [{"id": "GHSA-1", "fix_versions": ["3.0.1", "3.1.0"]}, {"id": "PYSEC-2", "fix_versions": []}],
}
FOUND = "GHSA-1 (mended in 3.0.1 or 3.1.0), PYSEC-2 (mended in no version yet)"


def answer(*dependencies: dict[str, Any]) -> str:
    return json.dumps({"dependencies": dependencies, "fixes": []})


@pytest.mark.parametrize(
    ("output", "code", "told"),
    [
        (answer(CLEAN, CLEAN), 0, "no known vulnerabilities in 2 packages\n"),
        (answer(CLEAN, SKIPPED), 0, "no known vulnerabilities in 1 packages, 1 without data\n"),
        (answer(SKIPPED, SKIPPED), 0, "not audited: the data of vulnerabilities cannot be had here\n"),
        ("", 0, "not audited"),
        ("[]", 0, "not audited"),
        (answer(CLEAN, VULNERABLE, SKIPPED), 1, f"aiohttp 3.0.0: {FOUND}\n"),
    ],
)
def test_what_pip_audit_says(output: str, code: int, told: str) -> None:
    command = [sys.executable, "-P", str(SCRIPT), "image.txt"]
    done = subprocess.run(command, input=output, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code and done.stdout.startswith("image.txt: ") and told in done.stdout
