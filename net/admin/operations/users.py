"""Users with passwords over HTTP. A password is taken by TLS only; brokers keep the SCRAM credential that is computed from it."""

from http import HTTPStatus
from typing import Final

from barnabas.log.vocabulary.access.scram import ScramMechanism

from ..frame import shapes
from ..frame.call import Call, Field, Reply, Route, text_of
from ..frame.errors import bad_request
from ..routes.clusters import CLUSTER

USERS: Final = f"{CLUSTER}/users"
USER: Final = f"{USERS}/{{user}}"
_NAMES: Final = {ScramMechanism.SHA_256: "SCRAM-SHA-256", ScramMechanism.SHA_512: "SCRAM-SHA-512"}


async def _list(call: Call) -> Reply:
    found = await call.ask(lambda admin: admin.users.list())
    by_name: dict[str, list[str]] = {}
    for item in found:
        by_name.setdefault(item.user, []).append(_NAMES[ScramMechanism(item.mechanism)])
    data = [
        call.item("BarnabasUser", ("users", user), {"user": user, "mechanisms": sorted(mechanisms)})
        for user, mechanisms in sorted(by_name.items())
    ]
    return call.listed("BarnabasUserList", ("users",), data)


async def _put(call: Call) -> Reply:
    user, password = call.path["user"], text_of(call.body, "password")
    if not call.base.startswith("https:"):
        raise bad_request("a password is taken by TLS only: use the https address of an admin.listener with HTTPS://")
    await call.ask(lambda admin: admin.users.add(user, password))
    return Reply(status=HTTPStatus.NO_CONTENT)


async def _remove(call: Call) -> Reply:
    await call.ask(lambda admin: admin.users.remove(call.path["user"]))
    return Reply(status=HTTPStatus.NO_CONTENT)


ROUTES = (
    Route(
        method="GET",
        path=USERS,
        handler=_list,
        summary="Users with passwords, and how they can log in",
        answer=shapes.listed(
            "BarnabasUserList",
            shapes.item(
                "BarnabasUser",
                shapes.text("user", "The name."),
                shapes.texts("mechanisms", "SASL mechanisms with a stored credential."),
            ),
        ),
    ),
    Route(
        method="PUT",
        path=USER,
        handler=_put,
        summary="Add a user with a password, or change the password",
        body=(Field(name="password", type="string", description="the password; by TLS only", required=True),),
        status=HTTPStatus.NO_CONTENT,
    ),
    Route(method="DELETE", path=USER, handler=_remove, summary="Remove a user", status=HTTPStatus.NO_CONTENT),
)
