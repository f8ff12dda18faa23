"""Why a group rebalanced, and what it waits for: paths of Barnabas that Confluent's API does not have."""

from barnabas.net.access.own_rules import visible_group
from barnabas.net.groups.group_explanation import explanation, rebalance_row
from barnabas.net.protocol.group_responses import DescribeGroupResponse

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


ROUTES = (
    Route(
        method="GET",
        path=f"{GROUP}/explain",
        handler=_explain,
        summary="What a group waits for now, partitions without a reader, and its last rebalances",
    ),
    Route(
        method="GET",
        path=f"{GROUP}/rebalances",
        handler=_rebalances,
        summary="The last rebalances of a group: causes, moves, pauses",
    ),
)
