"""The pytest plugin as users have it: pytest in a process of its own, in an empty folder, with no conftest."""

from pathlib import Path

import pytest

from .plugin_runs import MANY, run_pytest

TESTS = (
    50  # of the run with xdist: each act at least once, but for some with three brokers; scripts/plugin-runs has more
)
TIMEOUT_S = 110

SHAPES = """
import pytest
from barnabas.sync import Admin, Producer

seen = []

@pytest.mark.barnabas(brokers=1)
def test_one_broker(barnabas, bootstrap_servers):
    assert len(barnabas.brokers) == 1 and "," not in bootstrap_servers
    barnabas.create_topic("left-behind")
    seen.append(bootstrap_servers)

@pytest.mark.barnabas(brokers=1)
def test_the_same_broker_is_empty_again(barnabas, bootstrap_servers):
    assert seen == [bootstrap_servers]
    with Admin(bootstrap_servers) as admin:
        assert admin.list_topics() == []

@pytest.mark.barnabas(brokers=2, voters=1, config={"num.partitions": "7"}, partitions=3)
class TestTwo:
    def test_the_topic_is_named_for_the_test(self, barnabas_topic, bootstrap_servers):
        assert barnabas_topic.startswith("test_the_topic_is_named_for_the_test-")
        with Admin(bootstrap_servers) as admin:
            assert len(admin.describe_topic(barnabas_topic).partitions) == 3

    @pytest.mark.barnabas(reset=False)
    def test_a_fault_that_is_left_behind(self, barnabas):
        barnabas.kill(1)
        barnabas.slow_disk(50)
        barnabas.create_topic("kept")

    def test_is_healed_for_the_next_test(self, barnabas):
        assert barnabas.is_running(1)
        with Admin(barnabas.bootstrap_servers) as admin:
            assert admin.list_topics() == ["kept"]

@pytest.mark.barnabas(brokers=1)
def test_brokers_are_added(barnabas, bootstrap_servers):
    assert seen == [bootstrap_servers]
    assert barnabas.add_broker() == 1

@pytest.mark.barnabas(brokers=1)
def test_the_next_test_has_a_new_cluster(barnabas, bootstrap_servers):
    assert len(barnabas.brokers) == 1 and seen != [bootstrap_servers]

@pytest.mark.barnabas(
    brokers=1,
    tls=True,
    users={"alice": "secret"},
    permissions={"alice": ["DESCRIBE TOPIC *"]},
    broker_config={0: {"broker.rack": "a"}},
)
def test_a_secure_cluster(barnabas, barnabas_topic, bootstrap_servers):
    with Admin(bootstrap_servers, **barnabas.login("alice")) as admin:
        assert admin.list_topics() == [barnabas_topic]
    with Admin(bootstrap_servers, **barnabas.login()) as admin:
        assert admin.describe_cluster().brokers[0].rack == "a"

@pytest.mark.barnabas(brokers=1)
def test_a_test_may_close_its_cluster(barnabas):
    barnabas.close()

@pytest.mark.barnabas(brokers=1)
def test_the_test_after_it_has_a_new_one(barnabas_topic, barnabas):
    assert barnabas.records(barnabas_topic) == []

@pytest.mark.barnabas(broker=1)
def test_a_misspelt_argument(barnabas):
    raise AssertionError("never runs")

@pytest.mark.barnabas(partitions="2")
def test_partitions_as_text(barnabas_topic):
    raise AssertionError("never runs")

@pytest.mark.barnabas(reset="no")
def test_reset_as_text(barnabas):
    raise AssertionError("never runs")

@pytest.mark.barnabas(brokers="2")
def test_brokers_as_text(barnabas):
    raise AssertionError("never runs")
"""

LEFT_OPEN = """
import pytest
from barnabas.sync import Admin, Consumer, Producer

pytestmark = pytest.mark.barnabas(brokers=1)
seen, kept = [], []

def reading(cluster):
    cluster.create_topic("orders")
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send("orders", b"1").result(30)
    consumer = Consumer("orders", bootstrap=cluster.bootstrap_servers, group="billing", auto_offset_reset="earliest")
    assert consumer.poll(timeout_ms=30_000)
    return consumer

def check_empty(cluster):
    with Admin(cluster.bootstrap_servers) as admin:
        assert (admin.list_topics(), admin.list_groups()) == ([], [])

def test_drops_a_consumer(barnabas):
    consumer = reading(barnabas)
    consumer.itself = consumer
    seen.append(barnabas.bootstrap_servers)

def test_the_same_cluster_is_empty(barnabas):
    assert seen == [barnabas.bootstrap_servers]
    check_empty(barnabas)

def test_leaves_a_consumer_open(barnabas):
    kept.append(reading(barnabas))

def test_its_consumer_takes_nothing_from_another_test(barnabas):
    assert seen != [barnabas.bootstrap_servers]
    check_empty(barnabas)
    with reading(barnabas):
        pass
"""


def test_clusters_have_the_shape_that_is_marked_and_are_healed_and_emptied(tmp_path: Path) -> None:
    ended = run_pytest(tmp_path, SHAPES, "--strict-markers")
    assert "10 passed, 4 errors" in ended.stdout, ended.stdout + ended.stderr
    assert "pytest.mark.barnabas has no argument 'broker'; it has brokers, backend, voters, " in ended.stdout
    assert "pytest.mark.barnabas(partitions='2'): give an integer" in ended.stdout
    assert "pytest.mark.barnabas(reset='no'): give True or False" in ended.stdout
    assert "brokers='2': give an integer, such as brokers=3" in ended.stdout


def test_a_consumer_that_a_test_leaves_open_does_not_take_part_in_the_next_test(tmp_path: Path) -> None:
    ended = run_pytest(tmp_path, LEFT_OPEN)
    assert "4 passed" in ended.stdout, ended.stdout + ended.stderr


def test_an_option_chooses_the_backend(tmp_path: Path) -> None:
    text = "import pytest\n@pytest.mark.barnabas(brokers=1)\ndef test_it(barnabas):\n    assert barnabas.backend == 'processes'\n"
    ended = run_pytest(tmp_path, text, "--barnabas-backend=processes")
    assert "1 passed" in ended.stdout, ended.stdout + ended.stderr


@pytest.mark.parametrize("backend", ["in-process", "processes"])
def test_a_test_that_fails_shows_what_the_brokers_say(tmp_path: Path, backend: str) -> None:
    text = (
        "import pytest\n@pytest.mark.barnabas(brokers=2, voters=1)\ndef test_it(barnabas):\n"
        "    barnabas.kill(1)\n    raise ValueError('it fails')\n\n"
        "@pytest.mark.barnabas(brokers=2, voters=1)\ndef test_passes(barnabas):\n    assert barnabas.is_running(1)\n"
    )
    ended = run_pytest(tmp_path, text, f"--barnabas-backend={backend}")
    assert "1 failed, 1 passed" in ended.stdout, ended.stdout + ended.stderr
    assert ended.stdout.count(f"brokers of barnabas.testing, {backend}") == 1
    assert "--- broker 0 (running)" in ended.stdout
    first, _, second = ended.stdout.partition("--- broker 0 (running)")[2].partition("--- broker 1 (ended")
    assert second.startswith(" with -9)" if backend == "processes" else ")")
    assert ("broker unfenced" in first) == (backend == "processes"), (
        first
    )  # its log has it, and pytest captures the other one


@pytest.mark.timeout(TIMEOUT_S + 30)
def test_many_tests_on_several_workers_do_not_disturb_each_other(tmp_path: Path) -> None:
    ended = run_pytest(tmp_path, MANY.read_text(), "-n", "2", "-rP", tests=TESTS)
    assert f"{TESTS} passed" in ended.stdout, ended.stdout + ended.stderr
    clusters = {line for line in ended.stdout.splitlines() if line.startswith("cluster of gw")}
    assert len(clusters) == 4, "each worker has two clusters for all of its tests: one broker, and three"


def test_a_run_that_does_not_use_the_plugin_imports_nothing(tmp_path: Path) -> None:
    text = (
        "import sys\n\nPLUGIN = 'barnabas.net.testing.pytest_plugin'\n\ndef test_it(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.hasplugin('barnabas')\n"
        "    own = sorted(name for name in sys.modules if name.partition('.')[0] == 'barnabas')\n"
        "    assert own == ['barnabas', 'barnabas._sources', 'barnabas.net', 'barnabas.net.testing', PLUGIN]\n"
        "    assert 'asyncio' not in sys.modules\n"
    )
    ended = run_pytest(
        tmp_path, text, "-p", "no:asyncio", "-p", "no:timeout", "-p", "no:xdist", "-p", "no:hypothesispytest"
    )
    assert "1 passed" in ended.stdout, ended.stdout + ended.stderr
