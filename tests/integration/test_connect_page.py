"""The page on connectors is true: its files, statements and commands work in their order, and its tables are the code's."""

import asyncio
import os
import re
import subprocess
import sys
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from integration import postgres
from integration.cluster import Cluster, clean_environment, until
from tidy.source_tree import ROOT

from barnabas.net.programs.connect.postgres.changes.settings import SinkSettings, SourceSettings

if postgres.find()[0] is None:
    pytest.skip(postgres.find()[1], allow_module_level=True)
psycopg = pytest.importorskip("psycopg")

from integration import connect_world as world  # noqa: E402 - needs psycopg

PAGE = (ROOT / "docs/connect.md").read_text(encoding="utf-8")
DSN = re.compile(r"host=localhost dbname=(\w+) user=barnabas")


def test_the_page_works_from_top_to_bottom(shared_cluster: Cluster, tmp_path: Path) -> None:
    asyncio.run(_ready(shared_cluster))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**clean_environment(), "BARNABAS_BOOTSTRAP": shared_cluster.bootstrap, "PATH": path}
    blocks = re.findall(r"^```(sql|toml|console) (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    running: list[subprocess.Popen[bytes]] = []
    shown = b""
    with postgres.running(wal_level="logical") as address:
        dsns = {name: world.database(address, name) for name in ("shop", "copy")}
        try:
            for kind, name, text in blocks:
                if kind == "sql":
                    with psycopg.connect(dsns[name], autocommit=True) as connection:
                        connection.execute(text)
                elif kind == "toml":
                    (tmp_path / name).write_text(DSN.sub(lambda found: dsns[found[1]], text))
                else:
                    for line in text.splitlines():
                        arguments = line.removeprefix("$ ").removesuffix(" &").split()
                        if line.endswith(" &"):
                            running.append(subprocess.Popen(arguments, cwd=tmp_path, env=environment))
                        else:
                            shown += asyncio.run(until(partial(_output, arguments, tmp_path, environment), line))
            asyncio.run(until(partial(_is_equal, *dsns.values()), "the copy has the rows of the shop"))
            assert len(world.ids(dsns["copy"], "customers")) == 2
        finally:
            for process in running:
                process.kill()
                process.wait()
    assert b'"after":{"id":1,"name":"Anna","balance":"5.50","since":"2026-01-02T03:04:05Z"}' in shown
    assert re.search(rb"wal status +reserved", shown)


def _output(arguments: list[str], folder: Path, environment: dict[str, str]) -> bytes | None:
    """None if the command fails: what it is about does not exist yet."""
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, timeout=60)
    return done.stdout if done.returncode == 0 else None


def _is_equal(shop: str, copy: str) -> bool:
    return world.texts(shop, "customers") == world.texts(copy, "customers")


async def _ready(cluster: Cluster) -> None:
    await cluster.ready()


@pytest.mark.parametrize("kind", [SourceSettings, SinkSettings])
def test_the_tables_of_settings_are_those_of_the_code(kind: type) -> None:
    table = PAGE.partition(f"<!-- settings: {kind.__name__},")[2].partition("\n\n")[0].splitlines()[3:]
    told: dict[str, str] = {}
    for line in table:
        _, names, default, *_ = (cell.strip() for cell in line.split("|"))
        told |= dict.fromkeys(re.findall(r"`([\w.]+)`", names), default.strip("`"))
    assert told == _defaults(kind, "")


def _defaults(kind: Any, within: str) -> dict[str, str]:
    found: dict[str, str] = {}
    hints = get_type_hints(kind)
    for item in fields(kind):
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        if is_dataclass(default):
            found |= _defaults(hints[item.name], f"{item.name}.")
        elif item.name != "connector":
            found[f"{within}{item.name}"] = "" if default in (MISSING, "", []) else _as_toml(default)
    return found


def _as_toml(value: object) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else str(value).replace("'", '"')
        if isinstance(value, list)
        else (f'"{value}"' if isinstance(value, str) else str(value))
    )
