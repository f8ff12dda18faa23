"""compose.yaml, manifest of Kubernetes, unit of systemd: brokers start as the files say, on hosts with names of their own."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from faults.network import NamespaceNetwork, why_not
from integration.cluster import full_isr, until
from integration.containers import (
    BARNABAS,
    Host,
    compose,
    health_command,
    image_command,
    image_environment,
    manifests,
    outside,
    pod_environment,
    published,
)
from integration.load import read_all, send

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.settings.config import load
from barnabas.net.cli.main import build_parser
from barnabas.net.client.admin.admin import Admin

WHY_NOT = why_not()
needs_hosts = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
pytestmark = pytest.mark.timeout(300)
NAMESPACE = "logs"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def network() -> Iterator[NamespaceNetwork]:
    with NamespaceNetwork(3) as made, made.entered():
        yield made


def names_file(folder: Path, network: NamespaceNetwork, names: list[str]) -> Path:
    path = folder / "hosts"
    lines = [f"{network.address(number)} {name}\n" for number, name in enumerate(names)]
    path.write_text("127.0.0.1 localhost\n" + "".join(lines), encoding="utf-8")
    return path


def test_the_image_starts_a_broker_whose_health_is_that_of_its_admin_port() -> None:
    assert image_command() == ["barnabas", "broker", "start"]
    config = load(None, {}, image_environment())
    assert config.data_folders() == ("/var/lib/barnabas",)
    assert f"http://{config.admin_address().host}:{config.admin_address().port}/readyz" in health_command()[-1]  # type: ignore[union-attr]


def environments() -> dict[str, dict[str, str]]:
    of_compose = {name: image_environment() | item["environment"] for name, item in compose()["services"].items()}
    pods = [f"barnabas-{index}" for index in range(manifests()["StatefulSet/barnabas"]["spec"]["replicas"])]
    return of_compose | {pod: pod_environment(pod, NAMESPACE, index) for index, pod in enumerate(pods)}


@pytest.mark.parametrize("name", sorted(environments()))
def test_each_broker_has_a_configuration_without_faults(name: str) -> None:
    environment = environments()[name]
    config = load(None, {}, environment)
    assert not config.ignored and str(config.node_id) == name[-1]
    assert [voter.node_id for voter in config.voters()] == [0, 1, 2]
    own = next(voter for voter in config.voters() if voter.node_id == config.node_id)
    of_brokers = next(item for item in config.advertised_listeners if item.name == config.inter_broker_listener())
    assert own.host == of_brokers.host and own.host.startswith(name)


def unit() -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(ROOT / "docs/systemd/barnabas@.service", encoding="utf-8")
    return dict(parser["Service"])


def test_the_unit_of_systemd_starts_a_broker_and_gives_it_time_to_stop(tmp_path: Path) -> None:
    service = unit()
    program, *words = shlex.split(service["ExecStart"].replace("%i", "1"))
    found = build_parser(words[:1]).parse_args(words)
    assert (program.rpartition("/")[2], words[:2]) == ("barnabas", ["broker", "start"])
    assert found.config == "/etc/barnabas/1.properties"
    config = load(None, {"node.id": "1", "log.dirs": service["ReadWritePaths"]}, {})
    assert int(service["TimeoutStopSec"]) > config.controlled_shutdown_timeout_ms / 1_000
    assert int(service["LimitNOFILE"]) > config.max_connections


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_knows_every_directive_of_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "barnabas"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    text = (ROOT / "docs/systemd/barnabas@.service").read_text(encoding="utf-8")
    path = tmp_path / "barnabas@1.service"

    def told(text: str) -> list[str]:
        path.write_text(text.replace("/opt/barnabas/bin/barnabas", str(program)), encoding="utf-8")
        done = subprocess.run(
            ["systemd-analyze", "verify", path], capture_output=True, text=True, check=False, timeout=60
        )
        return [line for line in done.stderr.splitlines() if path.name in line]

    assert told(text) == []
    assert told(text.replace("RestartSec", "RestartSek")), "the check can fail"


def test_what_engines_must_know_agrees_with_the_configuration() -> None:
    """Time to stop, ports, folders, users."""
    names = iter(environments().values())
    config = load(None, {}, next(names))
    enough_s = config.controlled_shutdown_timeout_ms / 1_000
    for name, service in compose()["services"].items():
        assert int(service["stop_grace_period"].removesuffix("s")) > enough_s
        (volume,) = service["volumes"]
        assert volume.partition(":")[2] == "/var/lib/barnabas" and volume.partition(":")[0] in compose()["volumes"]
        advertised = service["environment"]["BARNABAS_ADVERTISED_LISTENERS"]
        assert advertised.startswith(f"INTERNAL://{name}:9092,")
        outer = advertised.rpartition(":")[2]
        assert f"127.0.0.1:{outer}:29092" in service["ports"]
    found = manifests()
    pod = found["StatefulSet/barnabas"]["spec"]["template"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > enough_s
    assert pod["spec"]["enableServiceLinks"] is False  # or Kubernetes sets variables that the broker refuses
    selected = [found[f"Service/{name}"]["spec"]["selector"] for name in ("barnabas", "barnabas-bootstrap")]
    selected.append(found["PodDisruptionBudget/barnabas"]["spec"]["selector"]["matchLabels"])
    selected.append(found["NetworkPolicy/barnabas"]["spec"]["podSelector"]["matchLabels"])
    assert all(labels == pod["metadata"]["labels"] for labels in selected)
    (container,) = pod["spec"]["containers"]
    mounted = {item["name"]: item["mountPath"] for item in container["volumeMounts"]}
    folder = environments()["barnabas-0"]["BARNABAS_LOG_DIRS"]
    assert folder.startswith(mounted["data"] + "/")
    ports = {item["name"]: item["containerPort"] for item in container["ports"]}
    pods = load(None, {}, environments()["barnabas-0"])
    assert ports["clients"] == pods.client_listeners()[0].port and ports["admin"] == pods.admin_address().port  # type: ignore[union-attr]
    assert ports["quorum"] == pods.voters()[0].port


@needs_hosts
async def test_composed_brokers_serve_the_machine_and_other_containers(
    network: NamespaceNetwork, tmp_path: Path
) -> None:
    services = compose()["services"]
    names = names_file(tmp_path, network, list(services))
    hosts = [
        Host(network, number, tmp_path, names, image_environment() | item["environment"])
        for number, item in enumerate(services.values())
    ]
    grace_s = float(next(iter(services.values()))["stop_grace_period"].removesuffix("s"))
    try:
        async with AsyncExitStack() as stack:
            for host, item in zip(hosts, services.values(), strict=True):
                host.start()
                for line in item["ports"]:
                    outer, inner = re.fullmatch(r"127\.0\.0\.1:(\d+):(\d+)", line).groups()  # type: ignore[union-attr]
                    await stack.enter_async_context(published(int(outer), host.address, int(inner)))
            for host in hosts:
                await until(host.is_healthy, "the health check of the image succeeds")
            await _serve(hosts, "localhost:9092,localhost:9102,localhost:9112", "broker-2:9092", grace_s)
    finally:
        for host in hosts:
            host.kill()


async def _serve(hosts: list[Host], from_machine: str, from_container: str, grace_s: float) -> None:
    """Records go in from outside and come out inside, and the other way; one broker stops and comes back meanwhile."""
    async with Admin(from_machine) as admin:
        await admin.create_topic("t", partitions=3, replication_factor=3)
        assert (await admin.describe_cluster()).settings["min.insync.replicas"] == "2"
        for partition in range(3):
            await send(from_machine, "t", [b"from the machine"], partition=partition)
        inside = hosts[0].run(*BARNABAS, "topic", "consume", "t", "--bootstrap", from_container)
        assert inside.stdout.splitlines() == ["from the machine"] * 3, inside.stderr
        leaders = {part.leader for part in (await admin.describe_topic("t")).partitions}
        assert leaders == {0, 1, 2}  # so each address was used

        hosts[1].stop(grace_s)
        produced = hosts[2].run(
            *BARNABAS, "topic", "produce", "t", "--bootstrap", from_container, stdin="from a container\n" * 20
        )
        assert produced.returncode == 0, produced.stderr
        hosts[1].start()
        await until(hosts[1].is_healthy, "the broker is back")
        await full_isr(admin, ["t"])
    found = await read_all(from_machine, "t")
    assert sorted(found) == [TopicPartition("t", number) for number in range(3)]
    assert sum(value == b"from a container" for part in found.values() for value in part.values()) == 20


@needs_hosts
async def test_pods_form_a_cluster_that_probes_find_ready(network: NamespaceNetwork, tmp_path: Path) -> None:
    pods = [f"barnabas-{index}" for index in range(3)]
    names = names_file(tmp_path, network, [f"{pod}.barnabas.{NAMESPACE}.svc.cluster.local" for pod in pods])
    spec = manifests()["StatefulSet/barnabas"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    ports = {item["name"]: item["containerPort"] for item in container["ports"]}

    def succeeds(host: Host, probe: str) -> bool:
        """As the kubelet asks: by the Pod's address."""
        get = container[probe]["httpGet"]
        url = f"http://{host.address}:{ports[get['port']]}{get['path']}"
        with urllib.request.urlopen(url, timeout=container[probe]["timeoutSeconds"]) as answer:
            return isinstance(json.load(answer), dict)

    hosts = [
        Host(network, index, tmp_path, names, pod_environment(pod, NAMESPACE, index)) for index, pod in enumerate(pods)
    ]
    client = outside(network, tmp_path, names)
    bootstrap = f"{pods[0]}.barnabas.{NAMESPACE}.svc.cluster.local:9092"
    try:
        hosts[0].start()
        await until(lambda: succeeds(hosts[0], "startupProbe"), "a broker without a quorum is alive")
        with pytest.raises(OSError, match="503"):
            succeeds(hosts[0], "readinessProbe")
        for host in hosts[1:]:
            host.start()
        for host in hosts:
            await until(lambda host=host: succeeds(host, "readinessProbe"), "ready")  # type: ignore[misc]
            assert succeeds(host, "livenessProbe")
        made = client.run(*BARNABAS, "topic", "create", "t", "-r", "3", "--bootstrap", bootstrap)
        assert made.returncode == 0, made.stderr
        assert client.run(*BARNABAS, "topic", "produce", "t", "--bootstrap", bootstrap, stdin="a\nb\n").returncode == 0
        for host in reversed(hosts):  # a rolling update begins with the highest number
            host.stop(spec["terminationGracePeriodSeconds"])
            host.start()
            await until(lambda host=host: succeeds(host, "readinessProbe"), "ready again")  # type: ignore[misc]
        read = client.run(*BARNABAS, "topic", "consume", "t", "--bootstrap", bootstrap)
        assert read.stdout.split() == ["a", "b"], read.stderr
        healthy = client.run(*BARNABAS, "cluster", "health", "--wait", "--bootstrap", bootstrap)
        assert healthy.returncode == 0, healthy.stdout
    finally:
        for host in hosts:
            host.kill()
