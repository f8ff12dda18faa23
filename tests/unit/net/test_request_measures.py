"""Latencies in parts, errors, traffic and figures of a broker, and what `/metrics` makes of them."""

import asyncio
import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from unit.net.wire_world import World, connect, produce_request, produce_response, run_in_simulation, serve

from barnabas.log.disk.files import DiskUsage
from barnabas.log.vocabulary.errors import NotLeaderOrFollowerError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.admin.routes.metrics import render
from barnabas.net.base.clock_offset import ClockOffset
from barnabas.net.base.figures.histogram import LATENCY_BOUNDS_S, Histogram
from barnabas.net.base.figures.process_figures import read_process
from barnabas.net.base.figures.request_measures import FETCH, FOLLOWER_FETCH, PRODUCE, RequestMeasures
from barnabas.net.base.figures.topic_traffic import OTHERS, TopicTraffic, Traffic
from barnabas.net.base.local.certificates import client_certificate, make_authority
from barnabas.net.broker.monitoring.machine import MachineWatch, certificate_ends, machine_samples
from barnabas.net.broker.monitoring.request_samples import request_samples, traffic_samples
from barnabas.net.wire.protocol.api_keys import ApiKey


def parts(measures: RequestMeasures) -> dict[tuple[int, str], tuple[int, float]]:
    return {
        (api, part): (found.count, round(found.total_s, 6)) for api, part, found in measures.histograms() if found.count
    }


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.0, 0.1, 0.100001, 1.0, 5.0):
        histogram.note(seconds)
    assert list(histogram.within()) == [(0.1, 2), (1.0, 4)] and histogram.count == 5
    assert histogram.total_s == pytest.approx(6.200001)


def test_bounds_rise() -> None:
    assert list(LATENCY_BOUNDS_S) == sorted(set(LATENCY_BOUNDS_S))


def test_the_parts_of_a_request_that_waits_are_its_whole_time() -> None:
    measures = RequestMeasures()
    measures.answered(PRODUCE, (10.0, 10.25), 10.75, 12.0)
    assert parts(measures) == {
        (PRODUCE, "total"): (1, 2.0),
        (PRODUCE, "queue"): (1, 0.25),
        (PRODUCE, "log"): (1, 0.5),
        (PRODUCE, "followers"): (1, 1.25),
    }


def test_a_request_that_does_not_wait_is_not_counted_as_waiting() -> None:
    measures = RequestMeasures()
    measures.answered_at_once({FETCH: 3}, (10.0, 10.5), 10.75)
    measures.answered(FOLLOWER_FETCH, (1.0, 1.0), 1.0, 2.0)
    measures.answered(60, (0.5, 0.75), 0.0, 1.0)
    found = parts(measures)
    assert (FETCH, "records") not in found and found[FETCH, "log"] == (3, 0.75) and found[FETCH, "queue"] == (3, 1.5)
    assert found[FOLLOWER_FETCH, "records"] == (1, 1.0)
    assert found[60, "total"] == (1, 0.5) and (60, "queue") not in found


def test_samples_are_a_histogram_of_prometheus() -> None:
    measures = RequestMeasures()
    measures.answered(PRODUCE, (0.5, 0.5), 0.502, 0.504)
    measures.failed(PRODUCE, 6)
    measures.failed(PRODUCE, 6)
    measures.failed(FETCH, 999)
    text = render(request_samples(measures))
    assert 'barnabas_request_seconds_bucket{api="produce",part="total",le="0.0025"} 0\n' in text
    assert 'barnabas_request_seconds_bucket{api="produce",part="total",le="0.005"} 1\n' in text
    assert 'barnabas_request_seconds_bucket{api="produce",part="followers",le="+Inf"} 1\n' in text
    assert 'barnabas_request_seconds_count{api="produce",part="total"} 1\n' in text
    assert 'barnabas_request_errors_total{api="produce",error="NOT_LEADER_OR_FOLLOWER"} 2\n' in text
    assert 'barnabas_request_errors_total{api="produce",error="UNKNOWN_SERVER_ERROR"} 0\n' in text, "rate needs a zero"
    assert 'barnabas_request_errors_total{api="fetch",error="999"} 1\n' in text
    assert 'barnabas_quorum_commit_seconds_bucket{le="+Inf"} 0\n' in text


def test_a_server_measures_its_requests_in_parts() -> None:
    async def body(world: World) -> None:
        parked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def handle(request: Any, context: Any, reply: Any) -> None:
            context.on_disconnect(lambda: None)
            parked.set_result(reply)

        server = await serve(world, {ApiKey.PRODUCE: handle})
        connection = await connect(world, server)
        waiting = connection.send(produce_request(), timeout_ms=90_000)
        reply = await parked
        await asyncio.sleep(3.0)
        reply(produce_response(0))
        await waiting
        found = parts(server.measures)
        assert found[PRODUCE, "followers"] == (1, 3.0) and found[PRODUCE, "total"][1] >= 3.0
        assert found[PRODUCE, "queue"][0] == found[PRODUCE, "log"][0] == 1

        def refuse(request: Any, context: Any, reply: Any) -> None:
            raise NotLeaderOrFollowerError("elsewhere")

        other = await serve(world, {ApiKey.PRODUCE: refuse})
        refused = await connect(world, other)
        with pytest.raises(NotLeaderOrFollowerError):
            await refused.call(produce_request(), timeout_ms=9_000)
        assert other.measures.errors == {(PRODUCE, 6): 1}
        for each in (connection, refused):
            await each.close()
        await server.close()
        await other.close()

    run_in_simulation(body)


def test_a_request_that_waits_and_is_answered_in_the_same_wake_up_has_waited() -> None:
    async def body(world: World) -> None:
        def handle(request: Any, context: Any, reply: Any) -> None:
            context.on_disconnect(lambda: None)
            reply(produce_response(0))

        server = await serve(world, {ApiKey.PRODUCE: handle})
        connection = await connect(world, server)
        await connection.call(produce_request(), timeout_ms=9_000)
        assert parts(server.measures)[PRODUCE, "followers"][0] == 1
        await connection.close()
        await server.close()

    run_in_simulation(body)


def test_traffic_has_a_bounded_number_of_series_and_keeps_those_it_began() -> None:
    traffic = TopicTraffic(2)
    places = [TopicPartition("t", number) for number in range(4)]

    def look(*sizes: int) -> dict[TopicPartition, int]:
        found = [(place, Traffic(bytes_in=size)) for place, size in zip(places, sizes, strict=False) if size]
        return {place: item.bytes_in for place, item in traffic.look(found)}

    assert look(0, 10, 20, 30) == {places[1]: 10, places[2]: 20, OTHERS: 30}
    assert look(5, 11, 20, 31) == {places[1]: 11, places[2]: 20, OTHERS: 36}, "the first ones keep their series"
    assert look(5, 11, 0, 31) == {places[1]: 11, OTHERS: 36}, "what was counted among the others stays there"
    assert look(5, 11, 7, 1) == {places[1]: 11, places[2]: 7, OTHERS: 37}, "a replica that came back counts from zero"


def test_partitions_that_are_gone_give_their_series_to_others() -> None:
    """Topics come and go: neither do series of deleted ones stay, nor do new ones stay without."""
    traffic = TopicTraffic(2)
    for number in range(10):
        places = [TopicPartition(f"t{number}", 0), TopicPartition(f"t{number}", 1)]
        told = dict(traffic.look([(place, Traffic(bytes_in=5)) for place in places]))
        assert told == {places[0]: Traffic(bytes_in=5), places[1]: Traffic(bytes_in=5), OTHERS: Traffic()}


def test_traffic_is_told_by_topic_and_partition() -> None:
    used = SimpleNamespace(topic_partition=TopicPartition("t", 3), bytes_in=70, records_in=2, bytes_out=0)
    idle = SimpleNamespace(topic_partition=TopicPartition("idle", 0), bytes_in=0, records_in=0, bytes_out=0)
    text = render(traffic_samples(TopicTraffic(9), cast(Any, [used, idle])))
    assert 'barnabas_topic_partition_bytes_in_total{topic="t",partition="3"} 70\n' in text
    assert 'barnabas_topic_partition_records_in_total{topic="t",partition="3"} 2\n' in text
    assert 'barnabas_topic_partition_bytes_in_total{topic="",partition=""} 0\n' in text and "idle" not in text


@pytest.mark.parametrize(
    ("theirs", "least"), [(1_000, 0), (1_050, 0), (1_100, 0), (1_101, 1), (999, -1), (5_000, 3_900)]
)
def test_the_offset_of_a_clock_does_not_count_transport(theirs: int, least: int) -> None:
    offset = ClockOffset()
    offset.noted(1_000, theirs, 1_100)
    assert offset.least_ms == least
    offset.is_own()
    assert offset.least_ms == 0


def test_figures_of_this_process_are_those_of_linux() -> None:
    found = read_process()
    assert found.cpu_s > 0 and 10_000_000 < found.memory_bytes < found.memory_limit_bytes
    with open("/dev/null", encoding="ascii"):
        assert read_process().descriptors == found.descriptors + 1
    assert 0 < found.descriptors < found.descriptor_limit
    assert found.started_s > 1_500_000_000


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/", {"memory.max": "1048576"}, 1_048_576),  # a container of version 2
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "700"}, 700),  # a slice around a unit of systemd
        ("0::/a/b", {"a/b/memory.max": "600", "a/memory.max": "700"}, 600),
        ("4:cpu,memory:/a", {"memory/a/memory.limit_in_bytes": "500"}, 500),  # version 1
        ("4:memory:/of/the/host", {"memory/memory.limit_in_bytes": "400"}, 400),  # a container of version 1
        ("4:memory:/a\n0::/", {"memory/a/memory.limit_in_bytes": "9223372036854771712"}, 2_048_000),  # none
        ("4:cpu:/a", {"cpu/a/memory.limit_in_bytes": "500"}, 2_048_000),
    ],
)
def test_the_smallest_limit_of_memory_counts(tmp_path: Path, own: str, files: dict[str, str], limit: int) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(f"{own}\n")
    (tmp_path / "meminfo").write_text("MemTotal: 2000 kB\n")
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert read_process(tmp_path, tmp_path / "groups").memory_limit_bytes == limit


def test_figures_that_a_machine_does_not_have_are_left_out(tmp_path: Path) -> None:
    found = read_process(tmp_path, tmp_path / "none")
    assert (found.memory_bytes, found.memory_limit_bytes, found.descriptors, found.started_s) == (-1, -1, -1, -1)
    watch = MachineWatch((), lambda path: DiskUsage(total_bytes=1, free_bytes=1))
    watch.process = found
    watch.disks["/data"] = DiskUsage(total_bytes=100, free_bytes=7)
    text = render(machine_samples(watch, -1_500))
    assert "process_resident_memory_bytes" not in text and "process_cpu_seconds_total" in text
    assert 'barnabas_disk_free_bytes{folder="/data"} 7\n' in text
    assert "barnabas_clock_offset_seconds -1.5\n" in text


def test_the_ends_of_certificates_are_told_once_for_each_name(tmp_path: Path) -> None:
    """While an authority is replaced, a file has two with one name; two series with equal labels would spoil the whole scrape."""
    now = datetime.datetime.now(datetime.UTC)
    authority = make_authority(tmp_path, "test", now=now)
    path = tmp_path / "both.pem"
    path.write_bytes(b"".join(client_certificate(authority, "alice", now=now, days=days) for days in (90, 30)))
    watch = MachineWatch((), lambda path: DiskUsage(total_bytes=1, free_bytes=1))
    watch.certificates = certificate_ends(str(path))
    assert len(watch.certificates) == 2
    text = render(machine_samples(watch, 0))
    (line,) = (line for line in text.splitlines() if line.startswith("barnabas_certificate_end_timestamp_seconds"))
    assert f'{{path="{path}",subject="CN=alice"}} ' in line
    ends_s = float(line.rpartition(" ")[2])
    assert abs(ends_s - (now + datetime.timedelta(days=30)).timestamp()) < 86_400
