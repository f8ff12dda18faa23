"""`barnabas pipeline run --master k8s://...` against a small API server: the pods that Spark asks for."""

import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from integration.cluster import Cluster
from integration.fake_kubernetes import fake_kubernetes
from integration.spark_world import create_topic, send
from integration.test_spark_pipeline_kills import SOURCE, Command

pytestmark = pytest.mark.timeout(900)
IMAGE = "registry.example.com/spark-barnabas:1"
SETTINGS = f"""
[sink]
console = true
[spark]
"spark.kubernetes.container.image" = "{IMAGE}"
"spark.kubernetes.namespace" = "shop"
"spark.executor.instances" = "2"
"spark.executor.memory" = "600m"
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"spark.executorEnv.TZ" = "UTC"
"""


def test_the_pods_of_executors_have_image_environment_and_the_address_of_the_driver(
    driver_cluster: Cluster, tmp_path: Path
) -> None:
    topic = create_topic(driver_cluster, "to-kubernetes", partitions=1)
    send(driver_cluster, topic, [json.dumps({"id": 1, "key": 1}).encode()])
    with fake_kubernetes() as server:
        found = Command(
            driver_cluster, tmp_path, SOURCE % ("pods", topic, 10) + SETTINGS, master=f"k8s://{server.address}"
        )
        process = found.start("run")
        try:
            found.until(lambda: len(server.pods()) >= 2, "two pods are asked for")
            pod = server.pods()[0]
            assert any(line.startswith("POST /api/v1/namespaces/shop/pods") for line in server.asked)
            (container,) = pod["spec"]["containers"]
            environment = {item["name"]: item.get("value") for item in container["env"]}
            assert container["image"] == IMAGE and container["args"] == ["executor"]
            assert environment["TZ"] == "UTC" and environment["SPARK_EXECUTOR_MEMORY"] == "600m"
            driver = urlsplit(environment["SPARK_DRIVER_URL"].replace("CoarseGrainedScheduler@", ""))
            assert driver.hostname == "127.0.0.1" and driver.port
            socket.create_connection((driver.hostname, driver.port), timeout=10).close()
            names = {item["metadata"]["labels"]["spark-role"] for item in server.pods()}
            assert names == {"executor"} and pod["spec"]["restartPolicy"] == "Never"
        finally:
            found.kill(process)


def test_without_an_image_the_setting_is_named_at_once(driver_cluster: Cluster, tmp_path: Path) -> None:
    topic = create_topic(driver_cluster, "without-image", partitions=1)
    text = SOURCE % ("no-image", topic, 10) + "[sink]\nconsole = true\n"
    told = Command(driver_cluster, tmp_path, text, master="k8s://https://127.0.0.1:1").run_to_end("run", code=1)
    assert 'add "spark.kubernetes.container.image" = "REGISTRY/NAME:TAG" under [spark]' in told
