"""`CommitOrder`: a commit that arrives behind a newer one of the same client is not taken. Pure.

A client that gives a connection up sends its commit again by another one. What it sent first may still arrive: its system repeats
what was not acknowledged when the wire is mended, or a proxy has kept it. Taken then, it would undo newer commits that were
acknowledged meanwhile. So each request has a number, and the newest number of each client is remembered.

The memory goes with the coordinator. For this reason a request also names the coordinator epoch that it was sent to, and a
coordinator of another epoch refuses it: its client looks the coordinator up, and sends a request with a new number.
"""

from collections import OrderedDict
from typing import Final

from barnabas.log.vocabulary.errors import CoordinatorNotAvailableError, NotCoordinatorError

from ..model.messages import CommitPlace

# About 200 bytes each. The client that has not committed for longest is forgotten; only a commit of it that is still on its way
# could be taken out of order then.
MAX_COMMITTERS: Final = 10_000


class CommitOrder:
    """Of one slot."""

    def __init__(self, coordinator_epoch: int, *, max_committers: int = MAX_COMMITTERS) -> None:
        self._coordinator_epoch = coordinator_epoch
        self._max_committers = max_committers
        self._newest: OrderedDict[tuple[str, str], int] = OrderedDict()  # (group, committer) -> sequence; newest last

    def check(self, group_id: str, place: CommitPlace) -> None:
        """Raises NotCoordinatorError, CoordinatorNotAvailableError."""
        if place.coordinator_epoch != self._coordinator_epoch:
            raise NotCoordinatorError(
                f"the commit was sent to coordinator epoch {place.coordinator_epoch} of group {group_id!r}, this is epoch "
                f"{self._coordinator_epoch}: look the coordinator up and commit again"
            )
        newest = self._newest.get((group_id, place.committer), -1)
        if place.sequence <= newest:
            raise CoordinatorNotAvailableError(
                f"commit {place.sequence} arrived behind commit {newest} of the same client and was not taken: commit again"
            )

    def taken(self, group_id: str, place: CommitPlace) -> None:
        key = group_id, place.committer
        self._newest[key] = place.sequence
        self._newest.move_to_end(key)
        if len(self._newest) > self._max_committers:
            self._newest.popitem(last=False)
