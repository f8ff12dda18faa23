"""The records of one transaction of a bank: money that goes from accounts to others, so that the sum of all stays 0."""

from random import Random
from typing import Final

from .journal import Place
from .layout import ACCOUNTS, CUT, TOPICS

MAX_TRANSFERS: Final = 3
MAX_SUM: Final = 100
CUT_CHANCE: Final = 0.4  # of a further record, without money, in a topic whose records are deleted


def transfers(rng: Random) -> list[Place]:
    places: list[Place] = []
    for _ in range(rng.randint(1, MAX_TRANSFERS)):
        payer, payee = rng.sample(ACCOUNTS, 2)
        amount = rng.randint(1, MAX_SUM)
        places += [(*payer, f"{-amount:+d}"), (*payee, f"{amount:+d}")]
    if rng.random() < CUT_CHANCE:
        places.append((CUT, rng.randrange(TOPICS[CUT]), "+0"))
    return places
