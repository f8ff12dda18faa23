"""What the README says is true: its commands and snippets run on a real cluster, its keys, defaults and files exist."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from barnabas.consumer_groups.model.rebalance_causes import RebalanceCause
from barnabas.net.settings.config import definitions

from .source_tree import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
TIMEOUT_S = 60


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language: `python` and `console` are run, `text` is only shown."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """What stands behind a `$`, without the start of the cluster, which the fixture does."""
    lines = [line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]
    assert lines[0] == "barnabas up -n 3"
    return lines[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster on free ports; the README has the usual ones."""

    folder: Path
    environment: dict[str, str]
    bootstrap: str
    admin: str

    def here(self, text: str) -> str:
        return text.replace("localhost:9092", self.bootstrap).replace("localhost:9094", self.admin)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("BARNABAS_")} | {"PATH": path}
    up = ["barnabas", "up", "-n", "3", "--port", "0", "--detach"]
    started = subprocess.run(up, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    try:
        assert started.returncode == 0, started.stderr
        bootstrap = started.stdout.split()[1]
        properties = (tmp_path / "barnabas-data/0/server.properties").read_text()
        admin = properties.partition("admin.listener=")[2].split()[0]
        environment["BARNABAS_BOOTSTRAP"] = bootstrap
        yield Cluster(folder=tmp_path, environment=environment, bootstrap=bootstrap, admin=admin)
    finally:
        subprocess.run(["barnabas", "down"], cwd=tmp_path, env=environment, capture_output=True, timeout=TIMEOUT_S)


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


@pytest.mark.skipif(shutil.which("curl") is None, reason="the README's HTTP examples use curl")
def test_the_commands_run_in_their_order(cluster: Cluster) -> None:
    script = "\n".join(["set -eo pipefail", *(cluster.here(line) for line in commands()), "kill %1", "wait"])
    ran = subprocess.run(
        ["bash", "-xc", script],
        cwd=cluster.folder,
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    for shown in ("acknowledged 3 records", "acknowledged 1 records"):
        assert shown in ran.stderr
    for shown in ("created access-log: 6 partitions", "broker 1 is fenced", "exit code 3", '"error_code": 200'):
        assert shown in ran.stdout


def test_the_table_of_keys_has_the_names_and_defaults_of_the_code() -> None:
    table = README.partition("<!-- configuration")[2].partition("\n\n")[0].splitlines()[3:]
    known = {item.key: item for item in definitions()}
    for line in table:
        key, default, topic_key, _ = (cell.strip() for cell in line.strip("|").split("|"))
        found = known[key.strip("`")]
        assert found.default is None or found.default == default, line
        # Retention of a topic is in ms only, so its key has no single counterpart among the broker's.
        assert topic_key.strip("`") == (found.topic_key or "") or key == "`log.retention.hours`", line


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_every_link_leads_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)", text, re.M)
    }
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        elif "://" not in target:
            assert (ROOT / target).exists(), target


def test_every_cause_of_a_rebalance_is_listed() -> None:
    listed = set(re.findall(r"^\| `([a-z_]+)` \| [A-Z]", README, re.MULTILINE))
    assert listed == {cause.value for cause in RebalanceCause}
