"""Bugs of what is promised about copies, found by `history`: who is eligible, and who says that it lost what it had."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from barnabas.kraft.controller import replication_control
from barnabas.kraft.controller.controller import Controller
from barnabas.kraft.metadata import partition_change
from barnabas.kraft.metadata.partition_change import ElectionRules
from barnabas.log.replication.leader import LeaderState
from barnabas.net.logs.storage_service import StorageService

from .history import run_history
from .planted import in_histories


@contextlib.contextmanager
def _wiped_in_silence() -> Iterator[None]:
    """A broker with an empty disk does not say that it has lost the replicas that the cluster counts on."""
    genuine = StorageService.took_up

    def took_up(self: Any, image: Any) -> None:
        self._log_service.made_anew.clear()
        genuine(self, image)

    with patch.object(StorageService, "took_up", took_up):
        yield


@contextlib.contextmanager
def _losers_stay_eligible() -> Iterator[None]:
    """A replica that has lost data leaves the ISR and becomes eligible, as if it had only been disconnected."""
    genuine = partition_change.with_isr

    def with_isr(partition: Any, isr: Any, rules: Any) -> Any:
        return genuine(partition, isr, replace(rules, lost=frozenset()))

    with (
        patch.object(partition_change, "with_isr", with_isr),
        patch.object(replication_control, "with_isr", with_isr),
    ):
        yield


def _commits_beside_eligible_ones() -> AbstractContextManager[Any]:
    """The high watermark moves as soon as the ISR suffices, regardless of eligible replicas outside of it."""
    genuine = LeaderState._advance

    def advance(self: Any, now_ms: int) -> Any:
        known = self.proposals.isr
        committed = getattr(known, "committed", known)
        bare = replace(committed, eligible=frozenset())
        self.proposals.isr = bare if known is committed else replace(known, committed=bare)
        try:
            return genuine(self, now_ms)
        finally:
            self.proposals.isr = known

    return patch.object(LeaderState, "_advance", advance)


@contextlib.contextmanager
def _nobody_is_relieved() -> Iterator[None]:
    """min.insync.replicas falls, the high watermark moves again, and who has left the ISR stays eligible."""
    with _commits_beside_eligible_ones(), patch.object(Controller, "_relieved", lambda *_: []):
        yield


def _eligible_off_by_one() -> AbstractContextManager[Any]:
    """No replica stays eligible if the ISR has one member less than the high watermark needs."""
    genuine = ElectionRules.enough
    return patch.object(ElectionRules, "enough", lambda self, partition: genuine(self, partition) - 1)


BUGS = in_histories(
    "cluster",
    run_history,
    {
        "a wiped replica says nothing": (_wiped_in_silence, ("wipe", "kill")),
        "who has lost data stays eligible": (_losers_stay_eligible, ("power_loss", "kill", "wipe", "stall")),
        "nobody is relieved when min.insync.replicas falls": (_nobody_is_relieved, ("min_insync", "kill", "stall")),
        "eligible replicas are one too few": (_eligible_off_by_one, ("kill", "stall", "isolate")),
    },
)
