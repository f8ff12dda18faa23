"""`scripts/benchmark permissions`: what a decision about a permission costs, with 10,000 permissions of 1,000 users.

Processor time of this process. "remembered" is what a request of a client costs as a rule: the broker keeps its decisions until a
permission changes. "new" is the first decision about a name.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import count

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.log.vocabulary.access.acls import Acl, AclResource, Operation, PatternKind, ResourceKind
from barnabas.log.vocabulary.principal import Principal
from barnabas.net.server.access.access import AccessControl
from barnabas.net.server.access.audit import AuditLog
from barnabas.net.server.access.authorizer import AccessRules

USERS, TOPICS = 1_000, 10
PREFIXED_EVERY = 10  # topics: one of ten permissions is for a prefix
GOAL_US = 2.0


class Client:
    """One of the users."""

    client_host = "127.0.0.1"
    certified_node = None

    def __init__(self, number: int) -> None:
        self.principal = Principal(name=f"user-{number}")


def main(arguments: list[str]) -> int:
    """Exit code 1: a remembered decision takes longer than the goal."""
    parser = argparse.ArgumentParser(prog="scripts/benchmark permissions", description=__doc__.splitlines()[0])
    parser.add_argument("--decisions", type=int, default=100_000, help="of each sample")
    parser.add_argument("--repeat", type=int, default=7, help="samples; the median counts")
    options = parser.parse_args(arguments)
    image = MetadataImage(acls=_permissions())
    control = AccessControl(
        lambda: image, AccessRules(), AuditLog(lambda: 0, lambda line: None), brokers_are_certified=True
    )
    client = Client(7)
    access = control.of(client)
    assert access.may_topic(Operation.READ, "topic-7-1") and not access.may_topic(Operation.READ, "topic-8-1")
    numbers = count()

    def remembered() -> None:
        control.of(client).may_topic(Operation.READ, "topic-7-1")

    def new() -> None:
        control.of(client).may_topic(Operation.READ, f"topic-7-{next(numbers)}")

    costs = {kind.__name__: _cost_us(kind, options.decisions, options.repeat) for kind in (remembered, new)}
    for name, (median, least, most) in costs.items():
        print(f"{name:<12} {median:6.2f} us of a decision ({least:.2f} to {most:.2f})")
    return int(costs["remembered"][0] > GOAL_US)


def _permissions() -> dict[AclResource, tuple[Acl, ...]]:
    found: dict[AclResource, tuple[Acl, ...]] = {}
    for user in range(USERS):
        for topic in range(TOPICS):
            pattern = PatternKind.PREFIXED if topic % PREFIXED_EVERY == 0 else PatternKind.LITERAL
            acl = Acl(
                kind=ResourceKind.TOPIC,
                name=f"topic-{user}-{topic}",
                pattern=pattern,
                principal=f"User:user-{user}",
                operation=Operation.READ,
            )
            found[acl.resource] = (*found.get(acl.resource, ()), acl)
    return found


def _cost_us(decide: Callable[[], None], decisions: int, repeat: int) -> tuple[float, float, float]:
    samples = []
    for _ in range(repeat):
        began_s = time.process_time()
        for _ in range(decisions):
            decide()
        samples.append((time.process_time() - began_s) * 1_000_000 / decisions)
    return statistics.median(samples), min(samples), max(samples)
