"""Broker sessions as the active controller sees them: soft state, never replicated, measured in `now_ms` only.

A new controller knows nothing about the past, so every broker gets a full session from the moment it takes over.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Session:
    last_contact_ms: int
    metadata_offset: int = -1


class BrokerHeartbeats:
    """When each broker was last heard of, and how much of the metadata it had then."""

    def __init__(self, *, session_timeout_ms: int) -> None:
        assert session_timeout_ms > 0
        self._session_timeout_ms = session_timeout_ms
        self._sessions: dict[int, _Session] = {}

    def restart(self) -> None:
        """Forget everything: another controller was active in between."""
        self._sessions.clear()

    def touch(self, node_id: int, *, now_ms: int, metadata_offset: int = -1) -> None:
        self._sessions[node_id] = _Session(last_contact_ms=now_ms, metadata_offset=metadata_offset)

    def begin_unknown(self, node_ids: Iterable[int], *, now_ms: int) -> None:
        """Give a full session to whom this controller has never heard of."""
        for node_id in node_ids:
            if node_id not in self._sessions:
                self.touch(node_id, now_ms=now_ms)

    def forget(self, node_id: int) -> None:
        self._sessions.pop(node_id, None)

    def heard_within(self, node_id: int, window_ms: int, *, now_ms: int) -> bool:
        session = self._sessions.get(node_id)
        return session is not None and now_ms - session.last_contact_ms < window_ms

    def expired(self, node_ids: Iterable[int], *, now_ms: int) -> frozenset[int]:
        """Those of `node_ids` (the unfenced brokers) whose session is over."""
        return frozenset(
            node_id for node_id in node_ids if not self.heard_within(node_id, self._session_timeout_ms, now_ms=now_ms)
        )

    def next_expiry_ms(self, node_ids: Iterable[int]) -> int | None:
        """When the first of these sessions ends, unless it is heard of again."""
        contacts = [self._sessions[node_id].last_contact_ms for node_id in node_ids if node_id in self._sessions]
        return min(contacts) + self._session_timeout_ms if contacts else None

    def lowest_metadata_offset(self, node_ids: Iterable[int]) -> int | None:
        """What all of these brokers have applied at least; None when there is nobody."""
        offsets = [self._sessions[node_id].metadata_offset for node_id in node_ids if node_id in self._sessions]
        return min(offsets, default=None)
