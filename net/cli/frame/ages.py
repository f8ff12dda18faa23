"""`age_ms`: times as people type them, `30s` or `10m`."""

import re
from argparse import ArgumentTypeError
from typing import Final

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGE: Final = re.compile(r"([0-9]{1,9})(ms|[smhd])")


def age_ms(text: str) -> int:
    """The argparse type of `10m`."""
    found = _AGE.fullmatch(text)
    if found is None:
        raise ArgumentTypeError(f"{text}: give a number and a unit: 30s, 10m, 2h, 7d")
    return int(found[1]) * _UNITS_MS[found[2]]
