"""Makes the machines of the slots that this broker hosts."""

import random

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.slot_coordinator import SlotCoordinator
from barnabas.consumer_groups.subscriptions.match_budget import MatchBudget
from barnabas.consumer_groups.transactions.counts import TransactionCounts

from ..base.settings.config import BrokerConfig
from ..coordination.groups.slot_hosting import LoadedSlot
from .core_settings import group_settings, transaction_settings


class SlotMachines:
    def __init__(self, config: BrokerConfig, rng: random.Random) -> None:
        self._settings = group_settings(config)
        self._transactions = transaction_settings(config)
        self._rng = rng
        self.counts = TransactionCounts()
        self._match_budget = MatchBudget(0)  # of this event loop: all slots share it

    def make(self, loaded: LoadedSlot) -> SlotCoordinator:
        """Raises NotCoordinatorError if the records are of a newer coordinator epoch."""
        groups = GroupCoordinator(
            slot=loaded.number,
            coordinator_epoch=loaded.coordinator_epoch,
            records=loaded.records,
            rng=self._rng,
            topics=loaded.topics,
            now_ms=loaded.now_ms,
            settings=self._settings,
            moved_from=loaded.moved_from,
            match_budget=self._match_budget,
        )
        return SlotCoordinator(groups=groups, settings=self._transactions, now_ms=loaded.now_ms, counts=self.counts)
