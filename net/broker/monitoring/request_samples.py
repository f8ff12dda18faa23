"""Latencies, errors and traffic of a broker as samples."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

from barnabas.log.replication.partition import Partition
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.base.figures.histogram import Histogram
from barnabas.net.base.figures.request_measures import FOLLOWER_FETCH, RequestMeasures
from barnabas.net.base.figures.topic_traffic import TopicTraffic, Traffic
from barnabas.net.wire.protocol.apis import REQUEST_OF, api_name
from barnabas.net.wire.protocol.kafka.apis import SERVED
from barnabas.net.wire.protocol.kafka.schema import snake_case

from ...admin.frame.backend import Sample

_REQUESTS: Final = (
    "Time of requests from their arrival to their answer, without its transport. Parts: queue (until the handler has it), log"
    " (checks, appends, reads), followers and records (what it waits for then; only requests that wait)."
)
_APPENDS: Final = (
    "Appends of group coordinators here to the quorum: commits of offsets and changes of groups, several in one."
)
_COMMITS: Final = (
    "Changes of the metadata that this broker decided as the controller, until a majority had them on disk."
)


def request_samples(measures: RequestMeasures) -> Iterator[Sample]:
    for api, part, histogram in measures.histograms():
        yield from histogram_samples("request_seconds", _REQUESTS, histogram, api=name_of(api), part=part)
    yield from histogram_samples("group_append_seconds", _APPENDS, measures.group_appends)
    yield from histogram_samples("quorum_commit_seconds", _COMMITS, measures.commits)
    yield from _errors(measures)


def _errors(measures: RequestMeasures) -> Iterator[Sample]:
    """Each API that was used has the series of internal errors: without a first zero, `rate` does not see the first error."""
    unseen = {
        (api, int(ErrorCode.UNKNOWN_SERVER_ERROR)): 0 for api, part, _ in measures.histograms() if part == "total"
    }
    for (api, code), count in sorted({**unseen, **measures.errors}.items()):
        yield Sample(
            name="barnabas_request_errors_total",
            type="counter",
            help="Errors that requests were answered with; of produce and fetch, one for each partition that is refused.",
            value=count,
            labels={"api": name_of(api), "error": _error_name(code)},
        )


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def histogram_samples(name: str, text: str, histogram: Histogram, **labels: str) -> Iterator[Sample]:
    made: Any = partial(Sample, name=f"barnabas_{name}", type="histogram", help=text)
    within = list(histogram.within())
    count = within[-1][1] + histogram.counts[-1]  # of the same reading: another thread may note meanwhile
    for bound_s, kept in within:
        yield made(value=kept, labels={**labels, "le": f"{bound_s:g}"}, part="_bucket")
    yield made(value=count, labels={**labels, "le": "+Inf"}, part="_bucket")
    yield made(value=histogram.total_s, labels=labels, part="_sum")
    yield made(value=count, labels=labels, part="_count")


def traffic_samples(traffic: TopicTraffic, partitions: Iterable[Partition]) -> Iterator[Sample]:
    used = (
        (item.topic_partition, Traffic(item.bytes_in, item.records_in, item.bytes_out))
        for item in partitions
        if item.bytes_in or item.bytes_out
    )
    for place, found in traffic.look(used):
        labels = {"topic": place.topic, "partition": str(place.partition) if place.topic else ""}
        for name, text, value in (
            ("bytes_in", "Bytes of record batches that clients have written to this partition here.", found.bytes_in),
            (
                "bytes_out",
                "Bytes of record batches that consumers have read from this partition here.",
                found.bytes_out,
            ),
            ("records_in", "Records that clients have written to this partition here.", found.records_in),
        ):
            yield Sample(
                name=f"barnabas_topic_partition_{name}_total", type="counter", help=text, value=value, labels=labels
            )


def name_of(api: int) -> str:
    """Some keys exist only in Kafka's protocol."""
    if api == FOLLOWER_FETCH:
        return "follower_fetch"
    return api_name(api).lower() if api in REQUEST_OF else snake_case(SERVED[api].name)
