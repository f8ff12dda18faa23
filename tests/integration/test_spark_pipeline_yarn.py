"""`barnabas pipeline run --master yarn` on a real YARN of one node, whose driver is killed: each record is in the topic once."""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from integration import java_client
from integration.cluster import Cluster, clean_environment
from integration.spark_world import QUICK_JAVA, create_topic, send
from integration.test_spark_pipeline_kills import SOURCE, Command, run_with_a_killed_driver
from integration.test_spark_sink import read

pytestmark = pytest.mark.timeout(1_000)
RECORDS = 300  # one micro-batch is left when the driver is killed behind two
PER_BATCH = 100
JARS = Path(pyspark.__file__).parent / "jars"
SETTINGS = f"""
[sink]
topic = "%s"
key = "id"
[spark]
"spark.yarn.jars" = "local:{JARS}/*"
"spark.executor.instances" = "1"
"spark.executor.memory" = "512m"
"spark.yarn.am.memory" = "512m"
"spark.yarn.am.extraJavaOptions" = "{QUICK_JAVA}"
"spark.executor.extraJavaOptions" = "{QUICK_JAVA}"
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"""


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of its settings. It ends with its standard input."""
    if reason := java_client.find():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("yarn")
    (version,) = {
        found[1] for path in JARS.iterdir() if (found := re.fullmatch(r"hadoop-client-api-(.*)\.jar", path.name))
    }
    libraries = java_client.fetch(folder / "libraries", version, "yarn.xml", "hadoop")
    if libraries is None:
        pytest.skip("Maven Central is out of reach")
    words = ["java", *QUICK_JAVA.split(), "-cp", f"{libraries}/*:{JARS}/*", str(java_client.SOURCES / "MiniYarn.java")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*words, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=clean_environment(),
            cwd=folder,
        )
    try:
        assert process.stdout is not None
        assert b"ready\n" in iter(process.stdout.readline, b""), (folder / "log").read_text()[-3_000:]
        yield folder
    finally:
        process.kill()
        process.communicate()


def test_each_record_is_in_the_topic_once_after_the_driver_was_killed(
    driver_cluster: Cluster, tmp_path: Path, yarn: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn))
    source = create_topic(driver_cluster, "to-yarn", partitions=2)
    target = create_topic(driver_cluster, "from-yarn", partitions=1)
    send(driver_cluster, source, [json.dumps({"id": number, "key": 1}).encode() for number in range(RECORDS)])
    text = SOURCE % ("on-yarn", source, PER_BATCH) + SETTINGS % target
    run_with_a_killed_driver(Command(driver_cluster, tmp_path, text, master="yarn"))
    found = Counter(json.loads(record.value or b"")["id"] for record in read(driver_cluster, target))
    assert found == Counter(range(RECORDS))
    applications = {path.name for path in yarn.rglob("application_*") if path.is_dir()}
    assert len(applications) >= 2, "YARN has run an application for each driver"
