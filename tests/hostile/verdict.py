"""What was measured under an attack, what must hold, and the table of it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper bounds of what is measured."""

    gap_s: float
    stall_s: float
    busy_s: float
    peak_rss_mib: float
    rss_after_mib: float
    fencings: int | None


# Broken: the run fails. A stall of a loop is bounded loosely, because another process may have had the processor; beyond a
# session (3 s here) a broker is fenced. What the loop itself computed meanwhile is less, whatever else the machine does.
PROMISE: Final = Limits(gap_s=10.0, stall_s=3.0, busy_s=1.0, peak_rss_mib=300, rss_after_mib=100, fencings=None)
# Missed: the table says so. It holds on a machine that does nothing else.
GOAL: Final = Limits(gap_s=3.0, stall_s=0.25, busy_s=0.25, peak_rss_mib=300, rss_after_mib=100, fencings=0)
AFTER_S: Final = 60.0  # memory is to be back within it


@dataclass(slots=True, kw_only=True)
class Measured:
    """One attack. Lists have one number for each broker."""

    attack: str
    seconds: float = 0.0
    gap_s: float = 0.0  # the longest between two acknowledgements of one partition, SDK or librdkafka
    stall_s: list[float] = field(default_factory=list)  # the longest answer to ApiVersions
    starved_s: list[float] = field(default_factory=list)  # for how long the loop had no processor within that answer
    busy_s: list[float] = field(default_factory=list)  # the most that the loop computed within one answer
    own_lag_s: float = 0.0  # how late the measuring process itself was: stalls below it are not the brokers'
    peak_rss_mib: list[float] = field(default_factory=list)
    rss_after_mib: list[float] = field(default_factory=list)
    after_s: float = 0.0  # until memory was back, or AFTER_S
    acknowledged: int = 0
    fencings: int = 0
    elections: int = 0  # of the quorum
    broken: list[str] = field(
        default_factory=list
    )  # promises that no number states: an end of a process, a lost record

    def beyond(self, limits: Limits) -> list[str]:
        found = []
        if self.gap_s > limits.gap_s:
            found.append(f"no acknowledgement for {self.gap_s:.1f} s (limit {limits.gap_s:g} s)")
        for what, values, limit, unit in (
            ("stall", self.stall_s, limits.stall_s, "s"),
            ("computing", self.busy_s, limits.busy_s, "s"),
            ("peak RSS", self.peak_rss_mib, limits.peak_rss_mib, "MiB"),
            (f"RSS after {self.after_s:.0f} s", self.rss_after_mib, limits.rss_after_mib, "MiB"),
        ):
            worst = max(values, default=0.0)
            if worst > limit:
                found.append(f"{what} of broker {values.index(worst)} is {worst:.3g} {unit} (limit {limit:g} {unit})")
        if limits.fencings is not None and self.fencings > limits.fencings:
            found.append(f"{self.fencings} fencings")
        return found

    @property
    def violations(self) -> list[str]:
        return [*self.broken, *self.beyond(PROMISE)]

    @property
    def verdict(self) -> str:
        if self.violations:
            return "BROKEN: " + "; ".join(self.violations)
        missed = self.beyond(GOAL)
        return "holds; goal missed: " + "; ".join(missed) if missed else "holds"


HEAD: Final = (
    f"{'attack':<20} {'s':>5} {'gap':>8} {'stall':>8} {'starved':>8} {'busy':>7} {'own lag':>8} {'RSS peak/after MiB':>19}"
    f" {'acks':>6} {'fenced':>6} {'elected':>7}  verdict"
)


def row(one: Measured) -> str:
    rss = f"{max(one.peak_rss_mib, default=0):.0f}/{max(one.rss_after_mib, default=0):.0f} ({one.after_s:.0f} s)"
    return (
        f"{one.attack:<20} {one.seconds:5.1f} {one.gap_s * 1000:5.0f} ms {max(one.stall_s, default=0) * 1000:5.0f} ms"
        f" {max(one.starved_s, default=0) * 1000:5.0f} ms {max(one.busy_s, default=0) * 1000:4.0f} ms"
        f" {one.own_lag_s * 1000:5.0f} ms {rss:>19} {one.acknowledged:6} {one.fencings:6} {one.elections:7}  {one.verdict}"
    )


def as_json(measured: Sequence[Measured]) -> str:
    rows = [{**asdict(one), "verdict": one.verdict, "violations": one.violations} for one in measured]
    return json.dumps({"promise": asdict(PROMISE), "goal": asdict(GOAL), "attacks": rows}, indent=2)
