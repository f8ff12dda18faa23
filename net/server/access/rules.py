"""What a rule of the table is, and the kinds of rules that both protocols use.

A rule looks at a request before its handler does. It returns None to pass it on as it is, raises an AuthorizationError to refuse
it as a whole, or returns a `Partly`: the part that the handler gets, and a function that adds the rest to its response or takes
from it what the client may not see. So existence is not told by an answer, and handlers know nothing of permissions.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from barnabas.log.vocabulary.access.acls import Operation, ResourceKind

from .access import Access


class Partly(NamedTuple):
    """`request` None: nothing is left, and `finish(None)` is the answer. Errors of the handler are not passed to `finish`."""

    request: Any
    finish: Callable[[Any], Any]


Rule = Callable[[Any, Access], Partly | None]

Name = Callable[[Any], str]


def free(request: Any, access: Access) -> None:
    """Every client may do this: it is part of the way to a login, or tells nothing but addresses."""


def broker(request: Any, access: Access) -> None:
    """Only brokers may do this."""
    access.require_broker()


def cluster(operation: Operation) -> Rule:
    def rule(request: Any, access: Access) -> None:
        access.require_cluster(operation)

    return rule


def named(operation: Operation, kind: ResourceKind, name: Name) -> Rule:
    """One resource, which the request names."""

    def rule(request: Any, access: Access) -> None:
        access.require(operation, kind, name(request))

    return rule


def both(*rules: Rule) -> Rule:
    """All of them must pass the request; at most the last one takes a part."""

    def rule(request: Any, access: Access) -> Partly | None:
        for item in rules[:-1]:
            partly = item(request, access)  # not within the assertion, which `python -O` leaves out
            assert partly is None, "only the last rule takes a part of a request"
        return rules[-1](request, access)

    return rule


def shown(finish: Callable[[Any, Access], Any]) -> Rule:
    """The handler answers, and `finish` takes from it what the client may not see."""

    def rule(request: Any, access: Access) -> Partly | None:
        return None if access.is_super else Partly(request, lambda response: finish(response, access))

    return rule


def while_permitted(rule: Rule) -> Rule:
    """Of a request that may wait: its answer needs the permission, too."""

    def checked(request: Any, access: Access) -> Partly | None:
        partly = rule(request, access)
        assert partly is None, "it takes no part of the request"

        def finish(response: Any) -> Any:
            rule(request, access)
            return response

        return None if access.is_super else Partly(request, finish)

    return checked


# The kinds of resources whose configuration may be read and changed, by Kafka's numbers; others are the cluster's.
CONFIGURED: Final = {2: ResourceKind.TOPIC, 32: ResourceKind.GROUP}


def may_configure(access: Access, operation: Operation, resource_type: int, name: str) -> bool:
    kind = CONFIGURED.get(resource_type)
    return access.may_cluster(operation) if kind is None else access.may(operation, kind, name)
