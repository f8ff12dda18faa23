"""How far this machine's clock is from the controller's, from the answers to requests."""


class ClockOffset:
    """Pure; all times are milliseconds since 1970. An answer was written between the request and its arrival, so it shows a
    range; `least_ms` is the part of the offset that cannot be transport."""

    def __init__(self) -> None:
        self.least_ms = 0  # positive: the other clock is ahead

    def noted(self, asked_ms: int, theirs_ms: int, received_ms: int) -> None:
        """`asked_ms` and `received_ms` are of this clock, `theirs_ms` of the other one."""
        if theirs_ms > received_ms:
            self.least_ms = theirs_ms - received_ms
        elif theirs_ms < asked_ms:
            self.least_ms = theirs_ms - asked_ms
        else:
            self.least_ms = 0

    def is_own(self) -> None:
        """This broker is the controller itself."""
        self.least_ms = 0
