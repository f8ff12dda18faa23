"""Events of the cluster: a path of Barnabas that Confluent's API does not have."""

from typing import Final

from barnabas.net.wire.protocol.event_messages import MAX_PAGE, MAX_WAIT_MS

from ..frame import shapes
from ..frame.call import Call, Field, Reply, Route
from .clusters import CLUSTER

_QUERY: Final = (
    Field(
        name="after", type="string", description="The cursor of the last answer: only newer events, the oldest first."
    ),
    Field(name="since_ms", type="integer", description="Only events since this time, in milliseconds since 1970."),
    Field(name="kind", type="string", description="Kinds of events or their names, separated by commas."),
    Field(name="topic", type="string", description="Only events about this topic."),
    Field(name="broker", type="integer", description="Only events about this broker."),
    Field(name="limit", type="integer", description=f"At most so many events, up to {MAX_PAGE} of each broker."),
    Field(name="wait_ms", type="integer", description=f"Wait for the first event, at most {MAX_WAIT_MS} ms."),
)
_EVENT: Final = (
    shapes.text("at", "The time with its zone (RFC 3339)."),
    shapes.whole("at_ms", "The same in milliseconds since 1970."),
    shapes.text("kind", "The kind of event."),
    shapes.text("event", "What happened."),
    shapes.mapping("fields", "Its details; all values are strings."),
    shapes.text("topic", "The topic, or null.", null=True),
    shapes.wholes("brokers", "The brokers that it is about."),
    shapes.whole("seen_by", "A broker that has kept it."),
    shapes.whole("metadata_offset", "The offset of its metadata record, or null.", null=True),
    shapes.flag("late", "It happened at this time or earlier: the broker was behind."),
)
_ANSWER: Final = shapes.listed(
    "BarnabasEventList",
    _EVENT,
    shapes.text("cursor", "For `after` of the next call."),
    shapes.flag("has_more", "There are more events than fit into the answer."),
    shapes.mapping("unanswered", "Brokers that did not answer, and why."),
)


async def _events(call: Call) -> Reply:
    query = call.query
    found = await call.ask(
        lambda admin: admin.events(
            after=query.get("after", ""),
            since_ms=query.get("since_ms", -1),
            kinds=[word for word in query.get("kind", "").split(",") if word],
            topic=query.get("topic", ""),
            broker=query.get("broker", -1),
            limit=query.get("limit", MAX_PAGE),
            wait_ms=min(query.get("wait_ms", 0), MAX_WAIT_MS),
        )
    )
    reply = call.listed("BarnabasEventList", ("events",), [item.row for item in found.events])
    assert isinstance(reply.body, dict)
    reply.body.update(
        {
            "cursor": found.cursor,
            "has_more": found.has_more,
            "unanswered": {str(node): why for node, why in found.unanswered.items()},
        }
    )
    return reply


ROUTES = (
    Route(
        method="GET",
        path=f"{CLUSTER}/events",
        handler=_events,
        summary="What has happened: elections, ISRs, brokers, topics, configurations, moves, rebalances, logins, refusals",
        query=_QUERY,
        answer=_ANSWER,
    ),
)
