"""The documents are true: their commands and snippets run on a real cluster; their keys, defaults, files and links exist."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from lifeline import held

from barnabas.consumer_groups.model.rebalance_causes import CAUSES
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer

from .source_tree import ROOT, files_of_tests, production_files

TIMEOUT_S = 60
SCRIPT_TIMEOUT_S = 900.0  # 70 commands, each a start of Python, beside other tests on busy cores
# README.md first: the pages under docs/ use its cluster and its topics.
PAGES: Final = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
}
MAX_README_LINES: Final = 350
ACCENT: Final = ("nobody", "whoever", "of ours", "of yours", "anew", "so long", "none the worse")
OTHERS: Final = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language on all pages: `python` and `console` are run, `text` is only shown."""
    pattern = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [block for page in PAGES.values() for block in pattern.findall(page)]


def commands() -> list[str]:
    """The lines after a `$`, without the start of the cluster, which is the fixture's task."""
    lines = [line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]
    assert lines[0] == "barnabas up -n 3"
    return lines[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster on free ports; the documents show the default ones."""

    folder: Path
    environment: dict[str, str]
    bootstrap: str
    admin: str

    def here(self, text: str) -> str:
        return text.replace("localhost:9092", self.bootstrap).replace("localhost:9094", self.admin)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("BARNABAS_")}
    environment |= {"PATH": path, "XDG_CONFIG_HOME": str(tmp_path / "configuration")}  # profiles of this test alone
    up = ["barnabas", "up", "-n", "3", "--port", "0", "--detach"]
    with held() as mark:
        environment |= mark
        started = subprocess.run(up, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert started.stdout, started.stderr
        bootstrap = started.stdout.split()[1]
        properties = (tmp_path / "barnabas-data/0/server.properties").read_text()
        admin = properties.partition("admin.listener=")[2].split()[0]
        environment["BARNABAS_BOOTSTRAP"] = bootstrap
        yield Cluster(folder=tmp_path, environment=environment, bootstrap=bootstrap, admin=admin)


def test_the_snippets_run_as_they_stand(cluster: Cluster) -> None:
    for number, snippet in enumerate(blocks("python")):
        path = cluster.folder / f"snippet_{number}.py"
        path.write_text(cluster.here(snippet))
        ran = subprocess.run(
            [sys.executable, "-P", str(path)],
            cwd=cluster.folder,
            env=cluster.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert ran.returncode == 0, f"{snippet}\n{ran.stderr}"
        assert ran.stdout, snippet


# A command that fails ends the script; a broker that it started would keep its output open until the time limit.
STOP_ALL = "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the HTTP examples use curl")
@pytest.mark.timeout(SCRIPT_TIMEOUT_S + 60)
def test_the_commands_run_in_their_order(cluster: Cluster) -> None:
    script = "\n".join(["set -eo pipefail", STOP_ALL, *(cluster.here(line) for line in commands()), "kill %1", "wait"])
    ran = subprocess.run(
        ["bash", "-xc", script],
        cwd=cluster.folder,
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=SCRIPT_TIMEOUT_S,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    for shown in ("acknowledged 3 records", "acknowledged 1 records"):
        assert shown in ran.stderr
    for shown in ("created access-log: 6 partitions", "broker 1 is fenced", "exit code 3", '"error_code": 200'):
        assert shown in ran.stdout


@pytest.mark.parametrize("client", [Producer, Consumer])
def test_the_tables_of_options_have_the_defaults_of_the_code(client: type) -> None:
    after_marker = PAGES["docs/python.md"].partition(f"<!-- options: {client.__name__},")[2]
    table = after_marker.partition("\n\n")[0].splitlines()[3:]
    options = inspect.signature(client).parameters
    assert table
    for line in table:
        names, default, _ = (cell.strip() for cell in line.strip("|").split(" | ", 2))
        for name in re.findall(r"`(\w+)`", names):
            assert str(options[name].default) == default, line


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[^a-z0-9_ -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", [*PAGES, *OTHERS])
def test_every_link_leads_somewhere(name: str) -> None:
    document = ROOT / name
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        path = document.parent / file if file else document
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), target


def test_code_cites_only_documents_that_are_in_this_repository() -> None:
    cited = re.compile(r"(?<![\w/.-])((?:docs/)?[A-Za-z_-]+\.md)\b")
    missing = {
        f"{file.name}: {name}"
        for file in (*production_files(), *files_of_tests())
        for name in cited.findall(file.text)
        if not (ROOT / name).exists()
    }
    assert not missing


def test_the_readme_is_what_a_newcomer_reads_in_ten_minutes() -> None:
    assert len(PAGES["README.md"].splitlines()) <= MAX_README_LINES


@pytest.mark.parametrize("name", [*PAGES, "CONTRIBUTING.md", "ARCHITECTURE.md"])
def test_the_documents_have_no_words_that_readers_stumble_over(name: str) -> None:
    prose = (ROOT / name).read_text(encoding="utf-8").partition("\n## File map\n")[0]  # The map is what the code says.
    text = re.sub(r"^```.*?^```$", "", prose, flags=re.MULTILINE | re.DOTALL)
    found = [line for line in text.splitlines() if re.search(rf"\b({'|'.join(ACCENT)})\b", line, re.IGNORECASE)]
    assert not found, "write these in plain technical English"


def test_the_readme_links_to_every_page() -> None:
    targets = set(re.findall(r"\]\(([^)\s#]+)", PAGES["README.md"]))
    assert not PAGES.keys() - {"README.md"} - targets


def test_every_cause_of_a_rebalance_is_listed_as_the_command_explains_it() -> None:
    section = PAGES["docs/operations.md"].partition("### Why a group rebalanced")[2].partition("\n## ")[0]
    listed = dict(re.findall(r"^\| `([a-z_]+)` \| ([A-Z].*?) \|$", section, re.MULTILINE))
    assert listed == {cause.value: text.meaning for cause, text in CAUSES.items()}
