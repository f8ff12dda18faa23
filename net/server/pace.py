"""How fast a client sends and reads, measured at each sweep of the server. Pure: no clock, no transport."""

from ..base.limits import MIN_PACE_BYTES, MIN_PROGRESS_BYTES, SHORT_FRAME_MS, SHORT_STALL_MS


class Pace:
    """Of one connection."""

    __slots__ = ("age_ms", "frame_age_ms", "progress_bytes", "quiet_ms", "stalled_ms", "was_active")

    def __init__(self) -> None:
        self.age_ms = 0
        self.frame_age_ms = 0  # Of the request that is incomplete.
        self.stalled_ms = 0  # Time for which the client has held memory without progress.
        self.quiet_ms = 0  # Time without a request in flight, or without reading its responses.
        self.was_active = True  # Received anything since the last sweep.
        self.progress_bytes = 0  # Received since the last sweep.

    def passed(self, elapsed_ms: int, sent_bytes: int, *, is_holding: bool, is_sending: bool) -> bool:
        """Return whether anything was received or sent since the last sweep.

        `is_holding`: the client holds memory, and the server does not make it wait. `is_sending`: moreover, its request is
        incomplete, and the server reads it.
        """
        self.age_ms += elapsed_ms
        progress_bytes, self.progress_bytes = self.progress_bytes + sent_bytes, 0
        if not is_holding or progress_bytes >= MIN_PROGRESS_BYTES:
            self.stalled_ms = 0
        else:
            self.stalled_ms += elapsed_ms
        if is_sending:
            self.frame_age_ms += elapsed_ms
        was_active, self.was_active = self.was_active or sent_bytes > 0, False
        if was_active:
            self.quiet_ms = 0
        return was_active

    def is_slow(self, pending_bytes: int) -> bool:
        """The client takes longer to send its request, of which these bytes have arrived, than others should wait for the
        memory."""
        due_bytes = (self.frame_age_ms - SHORT_STALL_MS) * MIN_PACE_BYTES // 1000
        return self.frame_age_ms >= SHORT_FRAME_MS or pending_bytes < due_bytes
