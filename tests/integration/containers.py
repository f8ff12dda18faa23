"""Containers without an engine: a host is a network namespace, and a mount namespace with its own /etc/hosts.

What an image, compose.yaml or a manifest says about a broker is read from these files: its variables, probes and ports. The
process, its addresses and names are then real; only the image's file system is that of this machine.
"""

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from faults.network import CLIENT_HOST, NamespaceNetwork

ROOT: Final = Path(__file__).resolve().parents[2]
DATA: Final = "/var/lib/barnabas"
PYTHON: Final = (sys.executable, "-P")
BARNABAS: Final = (*PYTHON, "-m", "barnabas")
COMMAND_TIMEOUT_S: Final = 60
CHUNK_BYTES: Final = 64 * 1024


def dockerfile() -> list[tuple[str, str]]:
    """(instruction, the rest) of the image that users run, which is the last stage."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", "").splitlines()
    found = [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]
    last = max(number for number, (word, _) in enumerate(found) if word == "FROM")
    return found[last:]


def image_environment() -> dict[str, str]:
    words = shlex.split(" ".join(rest for word, rest in dockerfile() if word == "ENV"))
    pairs = dict(word.split("=", 1) for word in words)
    return {name: value for name, value in pairs.items() if name.startswith("BARNABAS_")}


def image_command() -> list[str]:
    return [*_in_json("ENTRYPOINT"), *_in_json("CMD")]


def health_command() -> list[str]:
    (rest,) = (rest for word, rest in dockerfile() if word == "HEALTHCHECK")
    found: list[str] = json.loads(rest.partition("CMD")[2])
    return found


def _in_json(instruction: str) -> list[str]:
    (found,) = (json.loads(rest) for word, rest in dockerfile() if word == instruction)
    assert isinstance(found, list)  # the form with a shell would receive SIGTERM instead of the broker
    return found


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    return found


def manifests() -> dict[str, dict[str, Any]]:
    """By kind and name: StatefulSet/barnabas."""
    text = (ROOT / "docs/kubernetes/barnabas.yaml").read_text(encoding="utf-8")
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in yaml.safe_load_all(text)}


def pod_environment(pod: str, namespace: str, index: int) -> dict[str, str]:
    """What Kubernetes gives the container: fields of the Pod, and $(NAME) for variables that stand before."""
    fields = {
        "metadata.name": pod,
        "metadata.namespace": namespace,
        "metadata.labels['apps.kubernetes.io/pod-index']": str(index),
    }
    (container,) = manifests()["StatefulSet/barnabas"]["spec"]["template"]["spec"]["containers"]
    found: dict[str, str] = {}
    for item in container["env"]:
        if "valueFrom" in item:
            found[item["name"]] = fields[item["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            found[item["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], item["value"])
    return image_environment() | found


class Host:
    """One container: the broker in it, and other programs beside it."""

    def __init__(
        self, network: NamespaceNetwork, number: int, folder: Path, names: Path, environment: Mapping[str, str]
    ) -> None:
        self._enter = (
            *network.launcher(number),
            *("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(names)),
        )
        self.address = network.address(number)
        self.data, self.log_path = folder / f"data-{number}", folder / f"broker-{number}.log"
        self.data.mkdir(exist_ok=True)
        # The volume: this machine has no /var/lib/barnabas.
        self._environment = {name: value.replace(DATA, str(self.data)) for name, value in environment.items()}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert image_command()[0] == "barnabas"
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._enter, *BARNABAS, *image_command()[1:]], env=_clean(self._environment), stdout=log, stderr=log
            )

    def run(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._enter, *command], input=stdin, capture_output=True, text=True, env=_clean({}),
            timeout=COMMAND_TIMEOUT_S, check=False,
        )  # fmt: skip

    def is_healthy(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log_path.read_text(encoding="utf-8")
        return self.run(*PYTHON, *health_command()[2:]).returncode == 0

    def stop(self, grace_s: float) -> float:
        """SIGTERM, as engines do; return how long the broker took. It must end by itself, and cleanly."""
        assert self.process is not None
        began_s = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(grace_s)
        assert code == 0, self.log_path.read_text(encoding="utf-8")
        return time.monotonic() - began_s

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def _clean(environment: Mapping[str, str]) -> dict[str, str]:
    """A container does not inherit the variables of the shell."""
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environment}


def outside(network: NamespaceNetwork, folder: Path, names: Path) -> Host:
    """A host without a broker."""
    return Host(network, CLIENT_HOST, folder, names, {})


@contextlib.asynccontextmanager
async def published(port: int, host: str, target: int) -> AsyncIterator[None]:
    """A port of this host that leads into a container."""

    connections: set[asyncio.Task[None]] = set()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        with contextlib.closing(writer), contextlib.suppress(OSError):
            there, back = await asyncio.open_connection(host, target)
            with contextlib.closing(back):
                await asyncio.gather(_copy(reader, back), _copy(there, writer))

    server = await asyncio.start_server(forward, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.sleep(0)  # Transports close in the next turn of the loop.


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()
