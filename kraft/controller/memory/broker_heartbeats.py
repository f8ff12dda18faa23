"""Broker sessions as the active controller sees them: soft state, never replicated, measured in `now_ms` only.

A new controller knows nothing about the past, so every broker gets a session from the moment of the takeover: a full one, or, if
most of the other brokers have sent a heartbeat already, a shorter one. A broker that is silent at that time has probably been
silent since before, most likely together with the former controller. As long as most brokers are silent, this controller may be
the one that is cut off, so no session ends early.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

_LONG_AGO_MS = -(2**62)


@dataclass(slots=True)
class _Session:
    last_contact_ms: int
    metadata_offset: int = -1
    is_heard: bool = True  # False: no heartbeat yet; the session began when this controller took over


class BrokerHeartbeats:
    """The time of each broker's last heartbeat, and its metadata offset at that time."""

    def __init__(self, *, session_timeout_ms: int, takeover_grace_ms: int) -> None:
        assert 0 < takeover_grace_ms <= session_timeout_ms
        self._session_timeout_ms = session_timeout_ms
        self._takeover_grace_ms = takeover_grace_ms
        self._sessions: dict[int, _Session] = {}

    def restart(self) -> None:
        """Forget everything: another controller was active meanwhile."""
        self._sessions.clear()

    def touch(self, node_id: int, *, now_ms: int, metadata_offset: int = -1) -> None:
        self._sessions[node_id] = _Session(last_contact_ms=now_ms, metadata_offset=metadata_offset)

    def begin_unknown(self, node_ids: Iterable[int], *, now_ms: int) -> None:
        """Begin a session for brokers from which this controller has received no heartbeat."""
        for node_id in node_ids:
            if node_id not in self._sessions:
                self._sessions[node_id] = _Session(last_contact_ms=now_ms, is_heard=False)

    def is_heard(self, node_id: int) -> bool:
        """Has this controller received a heartbeat of the broker since it took over?"""
        session = self._sessions.get(node_id)
        return session is not None and session.is_heard

    def heard_within(self, node_id: int, window_ms: int, *, now_ms: int) -> bool:
        session = self._sessions.get(node_id)
        return session is not None and now_ms - session.last_contact_ms < window_ms

    def expired(self, node_ids: Iterable[int], *, now_ms: int) -> frozenset[int]:
        """Those of `node_ids` (the unfenced brokers) whose session is over."""
        return frozenset(node_id for node_id, end_ms in self._ends_ms(tuple(node_ids)).items() if now_ms >= end_ms)

    def next_expiry_ms(self, node_ids: Iterable[int]) -> int | None:
        """When the first of these sessions ends, unless another heartbeat arrives."""
        known = tuple(node_id for node_id in node_ids if node_id in self._sessions)
        return min(self._ends_ms(known).values(), default=None)

    def _ends_ms(self, node_ids: Collection[int]) -> dict[int, int]:
        most_are_heard = 2 * sum(map(self.is_heard, node_ids)) > len(node_ids)
        unheard_ms = self._takeover_grace_ms if most_are_heard else self._session_timeout_ms
        ends_ms: dict[int, int] = {}
        for node_id in node_ids:
            session = self._sessions.get(node_id)
            if session is None:
                ends_ms[node_id] = _LONG_AGO_MS
            else:
                length_ms = self._session_timeout_ms if session.is_heard else unheard_ms
                ends_ms[node_id] = session.last_contact_ms + length_ms
        return ends_ms

    def lowest_metadata_offset(self, node_ids: Iterable[int]) -> int | None:
        """The metadata offset that all these brokers have applied; None if there are no brokers."""
        offsets = [self._sessions[node_id].metadata_offset for node_id in node_ids if node_id in self._sessions]
        return min(offsets, default=None)
