"""Voters of the quorum over HTTP: one change at a time; the answer comes after its commit."""

from typing import Final

from ..frame import shapes
from ..frame.call import Call, Reply, Route
from ..routes.clusters import CLUSTER

VOTER: Final = f"{CLUSTER}/quorum/voters/{{broker_id}}"
_ANSWER: Final = (shapes.text("voters", "The voters, in words."),)


async def _add(call: Call) -> Reply:
    node_id = call.number("broker_id")
    return Reply(body={"voters": await call.ask(lambda admin: admin.add_voter(node_id))})


async def _remove(call: Call) -> Reply:
    node_id = call.number("broker_id")
    return Reply(body={"voters": await call.ask(lambda admin: admin.remove_voter(node_id))})


ROUTES = (
    Route(method="PUT", path=VOTER, handler=_add, summary="Make a running broker a voter", answer=_ANSWER),
    Route(method="DELETE", path=VOTER, handler=_remove, summary="Remove a voter, dead or alive", answer=_ANSWER),
)
