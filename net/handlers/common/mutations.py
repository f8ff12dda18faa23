"""What a client uses of `controller_mutation_rate`: the partitions that it creates and deletes (KIP-599).

Differs from Kafka: each broker counts what clients send to it; topics that are created because a client asked for their metadata
are not counted; a request beyond the quota is refused in every version, and does not wait.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from barnabas.log.vocabulary.errors import BarnabasError, RequestTimedOutError
from barnabas.net.server.dispatcher import RequestContext

from .services import Services


@contextmanager
def mutations(services: Services, context: RequestContext, partitions: int) -> Iterator[None]:
    """Round the request to the controller: they count unless it fails, because a mistake in a large number would lock the client
    out for years. Raises ThrottlingQuotaExceededError."""
    quotas, user, client_id = services.quotas, context.principal.name, context.client_id
    if not quotas.is_active or context.certified_node is not None or partitions <= 0:
        yield
        return
    quotas.take_mutations(user, client_id, partitions, services.clock.now_ms())
    try:
        yield
    except RequestTimedOutError:
        raise  # they may be created all the same
    except BarnabasError:
        quotas.give_back_mutations(user, client_id, partitions, services.clock.now_ms())
        raise


def partitions_of(services: Services, name: str | None) -> int:
    """0: there is no such topic."""
    topic = services.metadata.image.topics.get(name or "")
    return 0 if topic is None else len(topic.partitions)
