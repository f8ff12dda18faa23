"""A token bucket: what an entity may use, refilled at the rate of its quota (KIP-599). Pure."""


class TokenBucket:
    """Invariant: tokens <= capacity. Below zero, it has used more than its quota: the next tokens pay for that."""

    __slots__ = ("_filled_ms", "capacity", "rate_per_s", "tokens")

    def __init__(self, *, rate_per_s: float, burst_s: float, now_ms: float) -> None:
        self.rate_per_s = rate_per_s
        self.capacity = rate_per_s * burst_s
        self.tokens = self.capacity
        self._filled_ms = now_ms

    def refill(self, now_ms: float) -> None:
        """A clock that goes back gives nothing."""
        came = max(now_ms - self._filled_ms, 0.0) * self.rate_per_s / 1000
        self._filled_ms = now_ms
        self.tokens = min(self.tokens + came, self.capacity)

    def change(self, *, rate_per_s: float, burst_s: float, now_ms: float) -> None:
        """Another quota from now on. The time that was saved is kept. Debt is paid at the new rate, but takes no longer than it
        would have taken: who lowers a quota by a thousand does not want to refuse clients for hours."""
        self.refill(now_ms)
        if self.tokens > 0 or rate_per_s < self.rate_per_s:
            self.tokens *= rate_per_s / self.rate_per_s
        self.rate_per_s = rate_per_s
        self.capacity = rate_per_s * burst_s
        self.tokens = min(self.tokens, self.capacity)

    def charge(self, amount: float, now_ms: float) -> float:
        """Returns `owed_ms` afterwards."""
        self.refill(now_ms)
        self.tokens = min(self.tokens - amount, self.capacity)
        return self.owed_ms

    def forgive(self, owed_ms: float) -> None:
        """Of what it owes, keep so much."""
        self.tokens = max(self.tokens, -owed_ms * self.rate_per_s / 1000)

    @property
    def owed_ms(self) -> float:
        """The time until it is within its quota again, since the last call with a time."""
        return max(0.0, -self.tokens * 1000 / self.rate_per_s)
