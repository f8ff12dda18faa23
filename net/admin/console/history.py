"""The last hour: of a broker in steps of ten seconds, and of the lag of a group in steps of thirty.

Any broker may be asked: a broker remembers itself, and the coordinator of a group its lag, also of coordinators before it.
"""

from typing import Final

from msgspec import structs

from barnabas.net.server.access.own_rules import visible_group
from barnabas.net.wire.protocol.broker_figures import HISTORY_STEP_MS, HistoryPoint
from barnabas.net.wire.protocol.group_responses import LAG_STEP_MS

from ..frame import shapes
from ..frame.call import Call, Field, Json, Reply, Route
from ..routes.clusters import BROKER, broker_of
from ..routes.groups import GROUP

_WORDS: Final = {
    "at_ms": "End of the step, milliseconds since 1970.",
    "produce_p50_ms": "Half of the produce requests took at most this long, from arrival to answer.",
    "produce_p99_ms": "99 % of the produce requests took at most this long.",
    "produce_queue_p99_ms": "Part of produce: until the handler has the request.",
    "produce_log_p99_ms": "Part of produce: checks and appends.",
    "produce_followers_p99_ms": "Part of produce: acks=all waits for followers.",
    "fetch_log_p99_ms": "Reads of the log for consumers.",
    "commit_p99_ms": "Commits of the quorum, on the controller.",
    "group_append_p99_ms": "Commits of offsets and changes of groups.",
    "loop_p99_ms": "How late the event loop was.",
    "requests_per_s": "Requests.",
    "errors_per_s": "Errors that requests were answered with.",
    "in_per_s": "Bytes received, also from brokers.",
    "out_per_s": "Bytes sent, also to brokers.",
    "connections": "Open connections.",
    "memory_bytes": "Memory of the process.",
}
_POINT: Final = tuple(
    shapes.whole(name, words)
    if name == "at_ms"
    else shapes.number(name, f"{words} null: nothing was measured.", null=True)
    for name, words in _WORDS.items()
)
_ANSWER: Final = shapes.item(
    "BarnabasHistory",
    shapes.whole("broker_id", "The broker."),
    shapes.whole("interval_ms", "Length of a step."),
    shapes.rows("data", "Steps, the oldest first; at most 360.", *_POINT),
)


def row_of(point: HistoryPoint) -> Json:
    """Latencies with a precision of microseconds. Null: nothing was measured."""
    return {
        name: None if value == -1 else round(value, 3) if isinstance(value, float) else value
        for name, value in structs.asdict(point).items()
    }


async def _history(call: Call) -> Reply:
    node_id = broker_of(call).node_id
    found = await call.ask(lambda admin: admin.describe_broker(node_id, history=True))
    after_ms = call.query.get("after_ms", -1)
    rows = [row_of(point) for point in found.history if point.at_ms > after_ms]
    path = ("brokers", node_id, "barnabas", "history")
    fields = {"broker_id": node_id, "interval_ms": HISTORY_STEP_MS, "data": rows}
    return Reply(body=call.item("BarnabasHistory", path, fields))


async def _group_lags(call: Call) -> Reply:
    group_id = call.path["consumer_group_id"]
    found = await call.ask(lambda admin: admin.describe_group(group_id, history=True))
    if call.access is not None:
        found = visible_group(found, call.access)
    after_ms = call.query.get("after_ms", -1)
    rows = [
        {
            "at_ms": point.at_ms,
            "lag": None if point.unread < 0 else point.unread,
            "lag_seconds": None if point.lag_ms < 0 else point.lag_ms / 1000,
        }
        for point in found.lags
        if point.at_ms > after_ms
    ]
    fields = {"consumer_group_id": group_id, "coordinator": found.coordinator, "interval_ms": LAG_STEP_MS, "data": rows}
    return Reply(body=call.item("BarnabasLagHistory", ("consumer-groups", group_id, "lag-history"), fields))


_AFTER: Final = (Field(name="after_ms", type="integer", description="Only steps that ended after this time."),)
_LAGS: Final = shapes.item(
    "BarnabasLagHistory",
    shapes.text("consumer_group_id", "The group."),
    shapes.whole(
        "coordinator", "The broker that looks at the lag now. It also has what coordinators before it measured."
    ),
    shapes.whole("interval_ms", "Time between two points."),
    shapes.rows(
        "data",
        "Points, the oldest first; at most 120. Times that are more than one interval apart: nobody measured between them.",
        shapes.whole("at_ms", "Milliseconds since 1970."),
        shapes.whole(
            "lag", "Records that it had not read, in all partitions. null: a leader did not answer.", null=True
        ),
        shapes.number("lag_seconds", "Age of the oldest of them. null: unknown.", null=True),
    ),
)

ROUTES = (
    Route(
        method="GET",
        path=f"{BROKER}/barnabas/history",
        handler=_history,
        summary="Latencies and load of a broker in the last hour",
        query=_AFTER,
        answer=_ANSWER,
    ),
    Route(
        method="GET",
        path=f"{GROUP}/lag-history",
        handler=_group_lags,
        summary="Lag of a group in the last hour",
        query=_AFTER,
        answer=_LAGS,
    ),
)
