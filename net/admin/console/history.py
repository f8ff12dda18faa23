"""/v3/.../brokers/{broker_id}/barnabas/history: the last hour of a broker, in steps of ten seconds.

Any broker may be asked for any other.
"""

from typing import Final

from msgspec import structs

from barnabas.net.protocol.broker_figures import HISTORY_STEP_MS, HistoryPoint

from ..frame import shapes
from ..frame.call import Call, Field, Json, Reply, Route
from ..routes.clusters import BROKER, broker_of

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


ROUTES = (
    Route(
        method="GET",
        path=f"{BROKER}/barnabas/history",
        handler=_history,
        summary="Latencies and load of a broker in the last hour",
        query=(Field(name="after_ms", type="integer", description="Only steps that ended after this time."),),
        answer=_ANSWER,
    ),
)
