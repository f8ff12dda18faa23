"""/v3/.../doctor: what is wrong with the cluster and what may go wrong, as `barnabas doctor` prints it."""

from typing import Final

from barnabas.net.client.admin.doctor import diagnose, look
from barnabas.net.client.admin.finding import Weight

from ..frame.call import Call, Field, Reply, Route
from .clusters import CLUSTER

LOOK_S: Final = 10.0  # for all questions; those without an answer are named in a finding

_FINDING: Final = (
    Field(name="weight", type="string", description="critical, problem or risk.", required=True),
    Field(name="what", type="string", description="What is wrong.", required=True),
    Field(
        name="since_ms",
        type="any",
        description="Milliseconds since 1970: since when, as far as it is known; else null.",
    ),
    Field(name="costs", type="string", description="Whom it hurts, and how; may be empty.", required=True),
    Field(name="cure", type="string", description="What to do; may be empty.", required=True),
)
_ANSWER: Final = (
    Field(name="healthy", type="boolean", description="There are risks at most.", required=True),
    Field(name="findings", type="array", description="The gravest first.", required=True, fields=_FINDING),
)


async def _doctor(call: Call) -> Reply:
    picture = await call.ask(lambda admin: look(admin, limit_s=LOOK_S))
    found = diagnose(picture)
    rows = [item.row for item in found]
    healthy = all(item.weight < Weight.PROBLEM for item in found)
    return Reply(body=call.item("BarnabasDoctor", ("doctor",), {"healthy": healthy, "findings": rows}))


ROUTES = (
    Route(
        method="GET",
        path=f"{CLUSTER}/doctor",
        handler=_doctor,
        summary="What is wrong with the cluster and what may go wrong, with causes and cures",
        answer=_ANSWER,
    ),
)
