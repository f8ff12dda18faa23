"""The table of all APIs, and the guard that the dispatcher asks before it calls a handler."""

from collections.abc import Callable
from typing import Any, Final

from barnabas.log.vocabulary.errors import AuthorizationError, ClusterAuthorizationError
from barnabas.net.server.dispatcher import RequestContext, error_response
from barnabas.net.wire.protocol.apis import api_name
from barnabas.net.wire.protocol.responses import ErrorResponse

from .access import AccessControl
from .changes import ADMINISTRATIVE, outcome_of, target_of
from .kafka_rules import KAFKA_RULES
from .own_rules import OWN_RULES
from .rules import Rule, free
from .shares import SHARE_RULES

RULES: Final[dict[int, Rule]] = {int(api): rule for api, rule in {**OWN_RULES, **KAFKA_RULES, **SHARE_RULES}.items()}


class Guard:
    """Refuses requests, takes parts from them, and takes from responses what their clients may not see."""

    def __init__(self, control: AccessControl) -> None:
        self._control = control

    def admit(
        self, api: int, request: Any, client: RequestContext, reply: Callable[[Any], None]
    ) -> tuple[Any, Callable[[Any], None]] | None:
        """The request for the handler, and where its response goes; None: it is answered. Raises an AuthorizationError."""
        if api in ADMINISTRATIVE and client.certified_node is None:  # brokers carry out what others have asked for
            reply = self._told(api, request, client, reply)
        rule = _rule_of(api)
        access = self._control.of(client)
        if rule is not free and not access.is_known:
            client.hang_up()  # clients connect again, or to another broker; an error about permissions would be final for them
            return None
        try:
            partly = rule(request, access)
        except AuthorizationError:
            if getattr(request, "acks", None) != 0:
                raise
            client.hang_up()  # no response could say so: as with every error of acks=0, the connection ends
            return None
        if partly is None:
            return request, reply
        finish = partly.finish
        if partly.request is None:
            reply(finish(None))
            return None

        def finished(response: Any) -> None:
            if not isinstance(response, ErrorResponse):
                try:
                    response = finish(response)
                except Exception as error:  # noqa: BLE001 - the error boundary: a response that was not looked at is not sent
                    response = error_response(error, request)
            reply(response)

        return partly.request, finished

    def _told(
        self, api: int, request: Any, client: RequestContext, reply: Callable[[Any], None]
    ) -> Callable[[Any], None]:
        """The audit tells how the change ended, before the client knows."""
        target = target_of(request)  # now: a rule may take parts from the request

        def told(response: Any) -> None:
            self._control.audit.changed(client, api_name(api), target=target, outcome=outcome_of(response))
            reply(response)

        return told


def _rule_of(api: int) -> Rule:
    """Raises ClusterAuthorizationError."""
    rule = RULES.get(api)
    if rule is None:
        raise ClusterAuthorizationError(f"{api_name(api)} has no rule for permissions, so it is refused to everyone")
    return rule
