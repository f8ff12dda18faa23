"""/v3/.../doctor: what is wrong with the cluster and what may go wrong, as `barnabas doctor` prints it."""

from typing import Final

from barnabas.net.client.admin.doctor import diagnose, look
from barnabas.net.client.admin.finding import Weight

from ..frame import shapes
from ..frame.call import Call, Reply, Route
from .clusters import CLUSTER

LOOK_S: Final = 10.0  # for all questions; those without an answer are named in a finding

_ANSWER: Final = shapes.item(
    "BarnabasDoctor",
    shapes.flag("healthy", "There are risks at most."),
    shapes.rows(
        "findings",
        "The gravest first.",
        shapes.text("weight", "critical, problem or risk."),
        shapes.text("what", "What is wrong."),
        shapes.whole("since_ms", "Since when, in milliseconds since 1970; null: unknown.", null=True),
        shapes.text("costs", "Whom it hurts, and how; may be empty."),
        shapes.text("cure", "What to do; may be empty."),
    ),
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
