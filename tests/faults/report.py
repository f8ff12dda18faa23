"""What a campaign found, for a person and for a program."""

import json
import re
from collections import Counter
from typing import Final

from .campaign import Outcome
from .checker import percentile
from .history import Fault

MAX_UNUSUAL: Final = 12
_TIME_CHARACTERS: Final = 24  # at the start of a line of a log


def table(outcome: Outcome) -> str:
    """Every kind of fault in a line, then the sums, then what was broken. Seconds are the silences of partitions."""
    report = outcome.report
    lines = [f"{'seconds of silence':22}{'times':>6}{'partitions':>12}{'p50':>8}{'p99':>8}{'max':>8}"]
    for row in _rows(outcome):
        figures = "".join(f"{row[name]:8.2f}" for name in ("p50_s", "p99_s", "max_s"))
        lines.append(f"{row['kind']:22}{row['times']:6}{row['partitions']:12}{figures}")
    lines += [
        "",
        f"seconds {outcome.seconds:.0f}, faults {len(outcome.history.of(Fault))}, "
        + ", ".join(f"{name} {value:g}" for name, value in report.figures.items()),
        "memory MiB " + ", ".join(f"{node}: {a:.0f} to {b:.0f}" for node, (a, b) in outcome.rss_mib.items()),
        f"log lines {outcome.log_lines}; client errors {outcome.client_errors}",
    ]
    lines += [f"left out, {need}: {why}" for need, why in outcome.lacking.items()]
    kinds = Counter(re.sub(r"\d+", "N", line[_TIME_CHARACTERS:]) for line in outcome.unusual)
    lines += [f"in the logs x{count}: {line[:200]}" for line, count in kinds.most_common(MAX_UNUSUAL)]
    if report.violations:
        lines += ["", "VIOLATIONS", report.text()]
    return "\n".join(lines)


def as_json(outcome: Outcome) -> str:
    report = outcome.report
    return json.dumps(
        {
            "seconds": round(outcome.seconds),
            "faults": len(outcome.history.of(Fault)),
            **report.figures,
            "violations": dict(Counter(violation.rule for violation in report.violations)),
            "left_out": outcome.lacking,
            "kinds": _rows(outcome),
        }
    )


def _rows(outcome: Outcome) -> list[dict[str, float | str]]:
    counts = Counter(fault.kind for fault in outcome.history.of(Fault))
    rows: list[dict[str, float | str]] = []
    for kind in sorted(counts):
        values = outcome.report.unavailable_s.get(kind, [])
        rows.append(
            {
                "kind": kind,
                "times": counts[kind],
                "partitions": len(values),
                "p50_s": round(percentile(values, 0.5), 3),
                "p99_s": round(percentile(values, 0.99), 3),
                "max_s": round(max(values, default=0.0), 3),
            }
        )
    return rows
