"""The last hour of a broker: differences of counters, quantiles of histograms, and its bound."""

from dataclasses import replace

import pytest

from barnabas.net.base.figures.histogram import Histogram
from barnabas.net.base.figures.request_measures import PRODUCE, RequestMeasures
from barnabas.net.broker.monitoring.history import (
    POINTS,
    History,
    Reading,
    buckets_of,
    quantile_ms,
)


def reading(measures: RequestMeasures, at_s: float, **counted: int) -> Reading:
    found = buckets_of(measures, Histogram((0.1,)))
    usual = {"requests": 0, "errors": 0, "bytes_in": 0, "bytes_out": 0, "connections": 0, "memory_bytes": -1}
    return Reading(
        at_s=at_s,
        wall_ms=int(at_s * 1000),
        buckets={name: tuple(item.counts) for name, item in found.items()},
        bounds_s={name: item.bounds_s for name, item in found.items()},
        **{**usual, **counted},
    )


@pytest.mark.parametrize(
    ("counts", "share", "wanted_ms"),
    [
        ((0, 0, 0), 0.5, -1),
        ((10, 0, 0), 0.5, 50),  # in the middle of the first bucket, 0 to 100 ms
        ((10, 10, 0), 0.75, 550),
        ((10, 10, 0), 0.5, 100),
        ((99, 1, 0), 0.99, 100),
        ((0, 0, 5), 0.5, 1000),  # beyond the last bound
        ((10, 0, 10), 0.5, 100),
    ],
)
def test_quantiles_are_those_of_prometheus(counts: tuple[int, ...], share: float, wanted_ms: float) -> None:
    assert quantile_ms((0.1, 1.0), counts, share) == pytest.approx(wanted_ms)


def test_a_point_is_what_came_between_two_readings() -> None:
    measures, history = RequestMeasures(), History()
    measures.answered(PRODUCE, (0.0, 0.0), 0.0, 9.0)  # slow, but before
    history.note(reading(measures, 10.0, requests=100, bytes_in=1_000))
    assert not history.points
    for _ in range(100):
        measures.answered(PRODUCE, (0.0, 0.0003), 0.0007, 0.002)
    history.note(reading(measures, 20.0, requests=150, bytes_in=6_000, errors=5, connections=7, memory_bytes=9))
    (point,) = history.points
    assert (point.at_ms, point.requests_per_s, point.errors_per_s, point.in_per_s) == (20_000, 5.0, 0.5, 500)
    assert (point.connections, point.memory_bytes) == (7, 9)
    assert 1 < point.produce_p50_ms < point.produce_p99_ms <= 2.5, "of the hundred that came since"
    assert 0 < point.produce_queue_p99_ms <= 0.5 and 0 < point.produce_log_p99_ms <= 0.5
    assert 1 < point.produce_followers_p99_ms <= 2.5
    assert point.commit_p99_ms == point.group_append_p99_ms == point.fetch_log_p99_ms == -1, "nothing was measured"


def test_an_hour_is_kept() -> None:
    history, measures = History(), RequestMeasures()
    for number in range(POINTS + 5):
        history.note(reading(measures, float(number + 1)))
    assert len(history.points) == POINTS and history.points[-1].at_ms == (POINTS + 5) * 1000


def test_a_clock_that_stands_still_gives_no_point() -> None:
    history = History()
    first = reading(RequestMeasures(), 1.0)
    history.note(first)
    history.note(replace(first, requests=5))
    assert not history.points
