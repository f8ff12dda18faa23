"""A process of a cluster under test: started, killed, started again with other settings; what it shows of itself."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.net.base.local.local_cluster import ClusterError
from barnabas.net.testing.brokers.processes import BrokerProcess, Processes

# Says what it was given, and waits for its end.
SAYS = (
    "import os, signal, sys; given = open(sys.argv[1]).read().split();"
    " print(os.environ.get('COLOUR', 'no colour'), given, flush=True); signal.pause()"
)
PROGRAM = (sys.executable, "-c", SAYS)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path / "cluster", 2, 1, {"num.partitions": "7"}, program=PROGRAM)
    made.start()
    yield made
    made.close(graceful=False)
    assert not any(broker.is_running for broker in made.brokers)


def wait_for_line(broker: BrokerProcess, since: int) -> str:
    """The first line after `since`, once it is whole: a process may write one line in several pieces."""
    while b"\n" not in broker.log_path.read_bytes()[since:]:
        assert broker.is_running, broker.log()
    return broker.log_since(since)[0]


def test_a_broker_starts_again_with_what_it_is_given_meanwhile(processes: Processes) -> None:
    broker = processes.brokers[1]
    first = wait_for_line(broker, 0)
    assert first.startswith("no colour") and "'num.partitions=7'" in first
    assert broker.property("num.partitions") == "7" and broker.port == int(processes.address(1).rpartition(":")[2])
    assert broker.rss_mib() > 1
    size = broker.log_size()
    processes.kill(1)
    assert not processes.is_running(1) and "--- broker 1 (ended with -9)" in processes.logs(5)
    broker.environment = {"COLOUR": "blue"}
    broker.set("num.partitions", "8")
    processes.restart(1)
    second = wait_for_line(broker, size)
    assert second.startswith("blue") and "'num.partitions=8'" in second
    assert broker.tail(1) == f"--- broker 1 (running)\n{second}"
    assert broker.log_of_process() == [second]


def test_one_more_broker_knows_the_voters_and_has_its_own_keys(processes: Processes) -> None:
    added = processes.add(5, {"broker.rack": "r"})
    wait_for_line(added, 0)
    shared = ("controller.quorum.voters", "num.partitions")
    assert [added.property(key) for key in shared] == [processes.brokers[0].property(key) for key in shared]
    assert (added.property("node.id"), added.property("broker.rack")) == ("5", "r")
    assert processes.brokers[-1] is added and added.address not in {broker.address for broker in processes.brokers[:-1]}


def test_a_broker_that_does_not_run_is_refused_what_needs_a_process(tmp_path: Path) -> None:
    broker = BrokerProcess(3, tmp_path, "127.0.0.1:9", launcher=PROGRAM)
    assert not broker.was_started and broker.tail() == "--- broker 3 (not started)\nno log"
    with pytest.raises(ClusterError, match="broker 3 was not started"):
        broker.kill()
    broker.config.write_text("a=b\n", encoding="utf-8")
    broker.launch()
    with pytest.raises(AssertionError, match="broker 3 runs"):
        broker.launch()
    broker.kill()
    broker.signal(signal.SIGCONT)  # nothing happens
    with pytest.raises(OSError, match=r"No such (file|process)|does not run"):
        broker.rss_mib()
