"""The dashboard and the alerts name metrics and labels that a real scrape has."""

import json
import re
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from integration.test_command import Up, run

MONITORING = Path(__file__).resolve().parents[2] / "docs" / "monitoring"
NAME = re.compile(r"\b(?:barnabas|kafka|process)_[a-z0-9_]+")
LABELS = re.compile(r"(?:by \(([^)]*)\))|\{\{ ?(?:\$labels\.)?([a-z_]+) ?\}\}")
PUBLIC = "metrics.public=true"
OF_PROMETHEUS = {"instance", "job", "le"}


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The /metrics of all brokers, after a topic and a group were used. The cluster is secure, and shows them to everyone."""
    started = Up(tmp_path_factory.mktemp("monitoring") / "cluster", "-n", "3", "--secure", "--override", PUBLIC)
    try:
        started.wait_ready()
        login = ("--command-config", str(started.folder / "client.properties"))
        run("topic", "create", "t", "-p", "3", "-r", "3", *login)
        run("topic", "produce", "t", *login, given="a\nb\n")
        run("topic", "consume", "t", "-g", "g", *login)
        context = ssl.create_default_context(cafile=started.folder / "security" / "ca.pem")
        texts = []
        for path in sorted(started.folder.glob("*/server.properties")):
            admin = path.read_text(encoding="utf-8").partition("admin.listener=")[2].split()[0].rpartition("/")[2]
            with urllib.request.urlopen(f"https://{admin}/metrics", timeout=30, context=context) as answer:
                texts.append(answer.read().decode())
        yield "".join(texts)
    finally:
        started.close()


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def targets() -> list[dict[str, str]]:
    board = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))
    return [target for panel in board["panels"] for target in panel["targets"]]


def labels_of(scraped: str, metric: str) -> set[str]:
    series = re.findall(rf"^{metric}(?:\{{(.*)\}})? ", scraped, re.MULTILINE)
    return OF_PROMETHEUS | {name for text in series for name in re.findall(r'([a-z_]+)="', text)}


@pytest.mark.parametrize(
    ("expression", "shown"),
    [(rule["expr"], json.dumps(rule["annotations"])) for rule in rules()]
    + [(target["expr"], target["legendFormat"]) for target in targets()],
)
def test_metrics_and_labels_exist(scraped: str, expression: str, shown: str) -> None:
    names = NAME.findall(expression)
    assert names or expression.startswith("up{")
    known: set[str] = set(OF_PROMETHEUS)
    for name in names:
        assert re.search(rf"^{name}[{{ ]", scraped, re.MULTILINE), f"/metrics has no {name}"
        known |= labels_of(scraped, name)
    for listed, single in LABELS.findall(f"{expression} {shown}"):
        for label in filter(None, [*re.split(r", ?", listed), single]):
            assert label in known, f"{expression}: no label {label}"


def test_each_alert_says_what_to_do() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules()) >= 15
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"] and rule["annotations"]["cure"]
        assert re.fullmatch(r"[0-9]+[mh]", rule["for"])


def test_the_delay_of_the_loop_is_a_histogram(scraped: str) -> None:
    assert "# TYPE barnabas_loop_delay_seconds histogram\n" in scraped
    first = scraped[: scraped.index("barnabas_loop_delay_seconds_sum")]
    counts = [int(text) for text in re.findall(r'barnabas_loop_delay_seconds_bucket\{le="[^"]+"\} ([0-9]+)', first)]
    assert counts == sorted(counts) and counts[-1] > 0
