"""A real Prometheus (Debian's package) with the rules of docs/monitoring, whose times are seconds instead of minutes."""

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.net.base.local.ports import free_ports

ROOT: Final = Path(__file__).resolve().parents[2]
RULES: Final = ROOT / "docs" / "monitoring" / "alerts.yml"
LIMIT_S: Final = 60.0
HEALTHY_S: Final = 120.0  # A busy machine has seconds without an alert again and again.
OF_BUSY_MACHINES: Final = {"BarnabasEventLoopLate", "BarnabasProduceSlow", "BarnabasQuorumCommitSlow"}
needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="needs Prometheus"
)


class Prometheus:
    """Scrapes each second, with the rules of the documentation over the last seconds instead of minutes."""

    def __init__(self, folder: Path, admins: list[str], **scrape: Any) -> None:
        """`scrape`: more settings of the job."""
        folder.mkdir()
        text = re.sub(r"for: \d+[mh]", "for: 0s", RULES.read_text(encoding="utf-8"))
        (folder / "alerts.yml").write_text(re.sub(r"\[\d+[mh]\]", "[6s]", text))
        told = {"job_name": "barnabas", "static_configs": [{"targets": admins}], **scrape}
        settings = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(folder / "alerts.yml")],
            "scrape_configs": [told],
        }
        (folder / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
        (port,) = free_ports(1)
        self._base = f"http://127.0.0.1:{port}/api/v1/"
        self.log = folder / "prometheus.log"
        command = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def ask(self, path: str, **query: str) -> Any:
        url = f"{self._base}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def firing(self) -> set[str]:
        return {item["labels"]["alertname"] for item in self.ask("alerts")["alerts"] if item["state"] == "firing"}

    def scrapes(self) -> int:
        """That each broker has answered, at least."""
        found = self.ask("query", query="min(sum_over_time(up[10m]))")["result"]
        return int(found[0]["value"][1]) if found else 0

    def targets(self) -> str:
        """What fires and what the last scrape of each broker met, or why Prometheus itself does not answer."""
        if self.process.poll() is not None:
            return f"Prometheus ended with {self.process.returncode}: {self.log.read_text(errors='replace')[-600:]}"
        try:
            found, firing = self.ask("targets")["activeTargets"], sorted(self.firing())
        except OSError as error:
            return f"Prometheus does not answer: {error}"
        scraped = "; ".join(f"{item['scrapeUrl']}: {item['lastError'] or item['health']}" for item in found)
        return f"firing {firing}; {scraped}"

    def wait_quiet(self) -> None:
        """No alert is left of what was done before, except those that the other processes of a busy machine cause as well."""
        until(lambda: not self.firing() - OF_BUSY_MACHINES, lambda: f"no alert; {self.targets()}")

    def wait_healthy(self) -> None:
        """Ten scrapes of each broker, and no alert. A scrape that a busy machine does not answer within its second is an alert
        until the next one."""
        until(
            lambda: self.scrapes() >= 10 and not self.firing(),
            lambda: f"ten scrapes of each broker and no alert; {self.targets()}",
            HEALTHY_S,
        )

    def wait_for(self, *alerts: str, limit_s: float = LIMIT_S) -> None:
        wanted = {f"Barnabas{name}" for name in alerts}
        until(lambda: wanted <= self.firing(), lambda: f"wanted {wanted}, firing {self.firing()}", limit_s)

    def wait_without(self, alert: str) -> None:
        until(lambda: f"Barnabas{alert}" not in self.firing(), lambda: f"{alert} still fires")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def watching(admins: list[str], folder: Path, **scrape: Any) -> Iterator[Prometheus]:
    """A Prometheus beside a healthy cluster, of which no alert fires after ten scrapes."""
    prometheus = Prometheus(folder, admins, **scrape)
    try:
        prometheus.wait_healthy()
        yield prometheus
    finally:
        prometheus.close()


def until(condition: Callable[[], Any], what: Callable[[], str], limit_s: float = LIMIT_S) -> None:
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            if condition():
                return
        except OSError:
            pass  # it has not started yet
        assert time.monotonic() < deadline_s, what()
        time.sleep(0.2)  # between two questions to Prometheus, which looks once a second
