"""What simulated members subscribe to, and what they send when they leave."""

from typing import Any

LONG_NAME = "a" * 60

# What members subscribe to by pattern, and the topics that each means; some stop an engine that backtracks.
PATTERNS = {
    "t|u": {"t", "u"},
    "[t-v]": {"t", "u", "v"},
    ".*": {"t", "u", "v", LONG_NAME},
    "(a+)+b": set[str](),
    "(a+)+": {LONG_NAME},
    r"(\pL+-?)*\z": {"t", "u", "v", LONG_NAME},
    r"\Qt\E": {"t"},
}

WISHES: tuple["Wish", ...] = (
    (("t",), ""), (("t", "u"), ""), (("u",), ""), (("t", "u", "v"), ""), (("v",), ""),
    *(((), pattern) for pattern in PATTERNS), (("v",), "t|u"), (("t",), "(a+)+b"),
)  # fmt: skip

# What clients send beside the epoch when they leave.
LEAVING_FIELDS: tuple[dict[str, Any], ...] = (
    {}, {"rebalance_timeout_ms": 0}, {"subscribed_pattern": "("}, {"session_timeout_ms": 0, "assignor": "none"},
)  # fmt: skip

Wish = tuple[tuple[str, ...], str]  # topics by name, and a pattern
