"""Refusals that end a client, or that it acts on: the quorum confirms first that this broker still coordinates the slot.

A coordinator that was replaced while its network was cut knows neither later members nor later transactions, and clients may
still reach it.
"""

from collections.abc import Callable
from typing import Final, TypeVar, cast

from barnabas.consumer_groups.model.messages import CoordinatorResult
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    FencedMemberEpochError,
    IllegalGenerationError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

M = TypeVar("M")
R = TypeVar("R")

# A member joins again, and learns from its coordinator what holds. These are everyday answers, which need no commit.
_REJOINS: Final = (
    FencedMemberEpochError,
    IllegalGenerationError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)


def ends_a_member(error: BarnabasError) -> bool:
    return not error.retriable and not isinstance(error, _REJOINS)


def ends_a_producer(error: BarnabasError) -> bool:
    return not error.retriable


def with_sure_refusals(
    decide: Callable[[M], CoordinatorResult[R]], machine: M, is_final: Callable[[BarnabasError], bool]
) -> CoordinatorResult[R]:
    try:
        return decide(machine)
    except BarnabasError as error:
        if not is_final(error):
            raise
        told = cast(R, error)  # `HostedSlot.decide` raises it
        return CoordinatorResult(records=(), response=told, must_confirm=True)
