"""docs/configuration.md shows every key with the default and the limits that the code has."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "document_keys.py"


def test_the_tables_of_keys_are_those_of_the_code() -> None:
    spec = importlib.util.spec_from_file_location("document_keys", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.written(page) == page, "run .venv/bin/python scripts/document_keys.py"
