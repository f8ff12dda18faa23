"""The types of Kafka's messages: written by the script, and checked by mypy."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from tidy.source_tree import ROOT

SCRIPT = ROOT / "scripts" / "kafka_stubs.py"
WRONG = """
from barnabas.net.wire.protocol.kafka import bodies

bodies.FindCoordinatorResponse.Coordinator(node=1)
bodies.JoinGroupRequest().group
bodies.FetchResponse.PartitionData(high_watermark="7")
"""


def test_the_stub_is_what_the_script_writes() -> None:
    spec = importlib.util.spec_from_file_location("kafka_stubs", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.TARGET.read_text(encoding="utf-8") == script.stub(), "run .venv/bin/python scripts/kafka_stubs.py"


def test_mypy_finds_wrong_fields(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--no-pretty"]
    found = subprocess.run(
        [*command, str(tmp_path / "wrong.py")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    errors = [line.partition("error: ")[2] for line in found.stdout.splitlines() if "error: " in line]
    assert errors == [
        'Unexpected keyword argument "node" for "Coordinator"  [call-arg]',
        '"JoinGroupRequest" has no attribute "group"; maybe "group_id"?  [attr-defined]',
        'Argument "high_watermark" to "PartitionData" has incompatible type "str"; expected "int"  [arg-type]',
    ], found.stdout + found.stderr
