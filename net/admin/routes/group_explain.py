"""Why a group rebalanced, and what it waits for: paths of Barnabas that Confluent's API does not have."""

from typing import Final

from barnabas.net.client.group.group_explanation import explanation, rebalance_row
from barnabas.net.server.access.own_rules import visible_group
from barnabas.net.wire.protocol.group_responses import DescribeGroupResponse

from ..frame import shapes
from ..frame.call import Call, Reply, Route
from .groups import GROUP


async def _ask(call: Call) -> DescribeGroupResponse:
    found = await call.ask(lambda admin: admin.explain_group(call.path["consumer_group_id"]))
    return found if call.access is None else visible_group(found, call.access)


async def _explain(call: Call) -> Reply:
    group = await _ask(call)
    path = ("consumer-groups", group.group_id, "explain")
    fields = {"consumer_group_id": group.group_id, **explanation(group)}
    return Reply(body=call.item("BarnabasConsumerGroupExplanation", path, fields))


async def _rebalances(call: Call) -> Reply:
    group = await _ask(call)
    path = ("consumer-groups", group.group_id, "rebalances")
    data = [
        call.item(
            "BarnabasConsumerGroupRebalance",
            (*path, event.rebalance_id),
            {"consumer_group_id": group.group_id, **rebalance_row(event)},
        )
        for event in group.rebalances
    ]
    return call.listed("BarnabasConsumerGroupRebalanceList", path, data)


_REBALANCE: Final = (
    shapes.whole("id", "Counts rebalances."),
    shapes.text("at", "The time with its zone."),
    shapes.whole("at_ms", "The same in milliseconds since 1970."),
    shapes.whole("epoch", "The epoch of the group."),
    shapes.text("cause", "The first cause."),
    shapes.text("member", "The member that caused it.", null=True),
    shapes.rows(
        "causes",
        "All causes.",
        shapes.text("cause", "What happened."),
        shapes.whole("at_ms", "When."),
        shapes.whole("epoch", "The epoch of the group."),
        shapes.text("member", "Whom it happened to.", null=True),
        shapes.text("client_id", "The client id of the member."),
        shapes.text("host", "The address of the member."),
        shapes.text("instance", "The static name of the member.", null=True),
        shapes.text("detail", "More words, may be empty."),
    ),
    shapes.rows(
        "moves",
        "Partitions that changed their reader.",
        shapes.text("topic", "The topic."),
        shapes.whole("partition", "The partition."),
        shapes.text("from", "The member that had it; null: none.", null=True),
        shapes.text("to", "The member that has it; null: none.", null=True),
        shapes.whole("at_ms", "When."),
        shapes.whole("pause_ms", "How long it had no reader."),
    ),
    shapes.whole("moved_count", "Number of moves."),
    shapes.whole("longest_pause_ms", "The longest pause of a partition.", null=True),
    shapes.whole("stable_after_ms", "How long it took.", null=True),
    shapes.flag("under_way", "It has not ended."),
)
_EXPLANATION: Final = shapes.item(
    "BarnabasConsumerGroupExplanation",
    shapes.text("consumer_group_id", "The group."),
    shapes.text("group", "The group."),
    shapes.text("state", "Its state."),
    shapes.whole("epoch", "Counts changes of members and subscriptions."),
    shapes.whole("assignment_epoch", "The epoch of the newest assignment."),
    shapes.whole("coordinator", "The broker that keeps its state."),
    shapes.rows(
        "unowned",
        "Partitions without a reader.",
        shapes.text("topic", "The topic."),
        shapes.whole("partition", "The partition."),
        shapes.text("reason", "Why, as a code."),
        shapes.text("text", "Why, in words."),
        shapes.text("member", "Whom it waits for.", null=True),
        shapes.whole("for_ms", "How long already.", null=True),
        shapes.whole("ends_in_ms", "When the wait ends at the latest.", null=True),
    ),
    shapes.texts("reconciling", "Members that do not have yet what they are to have."),
    shapes.rows(
        "members",
        "Its members.",
        shapes.text("member", "Its id."),
        shapes.text("instance", "Its static name.", null=True),
        shapes.text("client_id", "Its client id."),
        shapes.text("host", "Its address."),
        shapes.whole("epoch", "Counts its assignments."),
        shapes.flag("away", "It is a static member that has left."),
        shapes.whole("silent_ms", "Since its last heartbeat.", null=True),
        shapes.whole("session_left_ms", "Until its session ends.", null=True),
        shapes.whole("slow_ms", "How long it has not polled, if that is too long.", null=True),
        shapes.texts("assigned", "Partitions that it has, as TOPIC-NUMBER."),
        shapes.texts("target", "Partitions that it is to have."),
    ),
    shapes.rows("rebalances", "The last ones.", *_REBALANCE),
)

ROUTES = (
    Route(
        method="GET",
        path=f"{GROUP}/explain",
        handler=_explain,
        summary="What a group waits for now, partitions without a reader, and its last rebalances",
        answer=_EXPLANATION,
    ),
    Route(
        method="GET",
        path=f"{GROUP}/rebalances",
        handler=_rebalances,
        summary="The last rebalances of a group: causes, moves, pauses",
        answer=shapes.listed(
            "BarnabasConsumerGroupRebalanceList",
            shapes.item("BarnabasConsumerGroupRebalance", shapes.text("consumer_group_id", "The group."), *_REBALANCE),
        ),
    ),
)
