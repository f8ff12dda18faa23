"""A progress bar, shown only on a terminal: it must not fill a log file with carriage returns."""

import time
from typing import Final, TextIO

BAR_WIDTH: Final = 24
REDRAW_INTERVAL_S: Final = 0.1


class Progress:
    """Counts what is done, and shows it with the rate and, if the total is known, the remaining time."""

    def __init__(self, stream: TextIO, unit: str, total: int | None = None) -> None:
        self._stream = stream
        self._unit = unit
        self._total = total
        self._done = 0
        self._count = 0
        self._started_s = time.monotonic()
        self._drawn_s = 0.0
        self._visible = stream.isatty()

    def advance(self, amount: int, count: int) -> None:
        """`amount` counts towards the total (for example bytes), `count` towards the rate (records)."""
        self._done += amount
        self._count += count
        now_s = time.monotonic()
        if self._visible and now_s - self._drawn_s >= REDRAW_INTERVAL_S:
            self._drawn_s = now_s
            self._stream.write(f"\r\x1b[K{self.text(now_s)}")
            self._stream.flush()

    def finish(self) -> None:
        """Clear the bar, so that what follows starts on an empty line."""
        if self._visible and self._drawn_s:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def text(self, now_s: float) -> str:
        """The text of the bar."""
        elapsed_s = max(now_s - self._started_s, 1e-9)
        words = f"{self._count:,} {self._unit}  {self._count / elapsed_s:,.0f}/s"
        if not self._total:
            return words
        share = min(self._done / self._total, 1.0)
        filled = round(share * BAR_WIDTH)
        left_s = elapsed_s * (1 - share) / share if share else 0.0
        return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {share:4.0%}  {words}  {left_s:.0f} s left"
