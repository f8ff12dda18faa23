"""A request of a broker is valid only with the epoch of its current registration."""

from barnabas.log.vocabulary.errors import StaleBrokerEpochError

from .delta import MetadataDelta
from .image import BrokerImage


def check_broker_epoch(view: MetadataDelta, node_id: int, broker_epoch: int) -> BrokerImage:
    """Return the broker. Raises StaleBrokerEpochError: the broker must register (again)."""
    broker = view.broker(node_id)
    if broker is None:
        raise StaleBrokerEpochError(f"broker {node_id} is not registered; register it first")
    if broker.broker_epoch != broker_epoch:
        raise StaleBrokerEpochError(
            f"broker epoch {broker_epoch} of broker {node_id} is not the current one: it has registered again since"
        )
    return broker
