"""`did_you_mean`: the end of an error about a word that does not exist. Pure."""

import difflib
from collections.abc import Iterable
from typing import Final

CUTOFF: Final = 0.5  # how alike a word must be to be proposed


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """To be appended to an error; empty if nothing is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=CUTOFF)
    return f" (did you mean {near[0]}?)" if near else ""
