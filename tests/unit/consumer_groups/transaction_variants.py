"""Other circumstances for `transaction_simulation`: few epochs, and brokers of an older version."""

import contextlib
from collections.abc import Iterator
from typing import Final
from unittest.mock import patch

from barnabas.consumer_groups.transactions import ends, identity
from barnabas.consumer_groups.transactions.coordinator import TransactionCoordinator
from barnabas.log.vocabulary.transaction_messages import NOT_STARTED

from .transaction_simulation import TransactionSimulation

FEW_EPOCHS: Final = 4  # instead of 32,766, so that histories use them up


@contextlib.contextmanager
def few_epochs() -> Iterator[None]:
    with (
        patch.object(identity, "LAST_EPOCH", FEW_EPOCHS),
        patch.object(identity, "FENCING_EPOCH", FEW_EPOCHS + 1),
        patch.object(ends, "LAST_EPOCH", FEW_EPOCHS),
    ):
        yield


@contextlib.contextmanager
def second_version_without_stamps() -> Iterator[None]:
    """Brokers of an older version tell no stamps: the epochs of the second version suffice."""
    with (
        patch.object(TransactionSimulation, "draw_version", lambda self: True),
        patch.object(TransactionCoordinator, "started_ms", lambda self, transactional_id: NOT_STARTED),
    ):
        yield
