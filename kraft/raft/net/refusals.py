"""Refused connections: log messages, and brokers of other clusters, which `barnabas doctor` names."""

import logging
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from barnabas.log.vocabulary.cluster_mismatch import cluster_mismatch
from barnabas.log.vocabulary.quorum import Stranger

_log = logging.getLogger("barnabas.quorum")

MAX_REMEMBERED_REFUSALS = 256  # addresses; the log must not be a way to use up memory or disk
REFUSAL_REPEAT_S = 60.0
MAX_STRANGERS_TOLD: Final = 20  # brokers of other clusters
STRANGER_TOLD_S: Final = 600.0  # a service manager starts such a broker again and again; an operator looks within this
_CLUSTER_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what a stranger calls itself is shown on terminals


class RefusalLog:
    """Logs refused connections once per address and minute, for a bounded number of addresses."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said_at: OrderedDict[str, float] = OrderedDict()
        self._others: OrderedDict[str, tuple[str, float]] = OrderedDict()  # host -> its cluster, when it asked last

    def other_cluster(self, address: object, cluster_id: str, own_id: str) -> None:
        """A broker that looks for its quorum here has the data folder of another cluster."""
        told = cluster_id if _CLUSTER_ID.fullmatch(cluster_id) else "of an invalid id"
        self.refused(address, cluster_mismatch("a broker that looks for its quorum", told, ("this node", own_id)))
        host = _host(address)
        self._others[host] = (told, self._clock())
        self._others.move_to_end(host)
        while len(self._others) > MAX_STRANGERS_TOLD:
            self._others.popitem(last=False)

    def strangers(self) -> tuple[Stranger, ...]:
        """Brokers of other clusters that asked lately, the newest last."""
        now = self._clock()
        return tuple(
            Stranger(host=host, cluster_id=cluster_id, age_ms=int((now - at) * 1000))
            for host, (cluster_id, at) in self._others.items()
            if now - at < STRANGER_TOLD_S
        )

    def refused(self, address: object, reason: str) -> None:
        host = _host(address)
        key = f"{host} {reason}" if reason.startswith("voter ") else host
        now = self._clock()
        if now - self._said_at.get(key, -REFUSAL_REPEAT_S) < REFUSAL_REPEAT_S:
            return
        self._said_at[key] = now
        self._said_at.move_to_end(key)
        while len(self._said_at) > MAX_REMEMBERED_REFUSALS:
            self._said_at.popitem(last=False)
        _log.warning("connection refused from=%s reason=%s", host, reason)


def _host(address: object) -> str:
    return str(address[0]) if isinstance(address, tuple) and address else str(address)
