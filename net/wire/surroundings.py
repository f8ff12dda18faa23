"""The network, the clock and the randomness of clients that are given none: those of the system, unless they are made in a
simulated program (`barnabas.testing.simulate`). So the same program runs in both."""

from contextvars import ContextVar
from dataclasses import dataclass
from random import Random

from ..base.clock import Clock
from .network import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Of one simulated program."""

    network: Network
    clock: Clock
    rng: Random


SURROUNDINGS: ContextVar[Surroundings | None] = ContextVar("SURROUNDINGS", default=None)


def new_random() -> Random:
    """Seeded by the system, or in a simulated program by the simulation's seed."""
    around = SURROUNDINGS.get()
    return Random() if around is None else Random(around.rng.getrandbits(64))
