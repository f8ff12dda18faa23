"""Whether the source can be reached, and the one line that says so when it changes. Pure: lines are results, times arguments."""

from datetime import UTC, datetime


class Reach:
    """Of one source, in all sessions. It counts as reached until it is not."""

    def __init__(self, address: str) -> None:
        """`address`: of the source, as it was given: HOST:PORT,..."""
        self._address = address
        self._away_since_s: float | None = None
        self._reason = ""

    @property
    def is_away(self) -> bool:
        return self._away_since_s is not None

    def troubled(self, reason: str) -> None:
        """A connection has failed, which means nothing while others work; the last one is the reason if none does."""
        self._reason = reason

    def failed(self, now_s: float, reason: str = "") -> str | None:
        """The source does not answer, since now at the latest. `now_s`: wall clock. Returns the line of a change."""
        if self.is_away:
            return None
        self._away_since_s = now_s
        since = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds")
        why = reason or self._reason or "no broker can be reached"
        return (
            f"event=source_away address={self._address} since={since} reason={why}: it is tried again until it answers"
        )

    def answered(self, now_s: float) -> str | None:
        """As `failed`."""
        since_s, self._away_since_s, self._reason = self._away_since_s, None, ""
        if since_s is None:
            return None
        return f"event=source_back address={self._address} away_s={max(0, round(now_s - since_s))}"
