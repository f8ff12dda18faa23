"""All attacks, by name; which of them are part of every run of the tests, and which need no more than the client port."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from . import (
    admin_http,
    expensive_batches,
    garbage,
    group_crowds,
    idle_connections,
    many_names,
    nonsense_batches,
    patterns,
    quorum_strangers,
    slow_readers,
    transactional_ids,
    unfinished_requests,
)
from .attack import Address, Attack, Port

DESCRIPTORS: Final = 256
MANY: Final = 10_000  # connections; to one broker, as each takes a descriptor of the attacker, too


@asynccontextmanager
async def _nothing(brokers: Sequence[Address]) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def _many_idle(brokers: Sequence[Address]) -> AsyncIterator[None]:
    async with idle_connections.idle_connections(brokers[:1], MANY):
        yield


_LIST: Final = (
    Attack(name="nothing", what="no attack: what the machine and the honest clients cost by themselves", run=_nothing),
    quorum_strangers.ATTACK,
    patterns.ATTACK,
    *many_names.ATTACKS,
    *group_crowds.ATTACKS,
    *garbage.ATTACKS,
    nonsense_batches.ATTACK,
    *expensive_batches.ATTACKS,
    unfinished_requests.UNFINISHED,
    unfinished_requests.ABORTED_ONES,
    slow_readers.ATTACK,
    admin_http.ATTACK,
    transactional_ids.ATTACK,
    idle_connections.ATTACK,
    *idle_connections.SILENT_ONES,
    Attack(name="10,000 idle", what=f"{MANY} idle connections to one broker", run=_many_idle),
    replace(
        idle_connections.ATTACK,
        name="descriptors",
        what=f"300 idle connections to each broker, which may open {DESCRIPTORS} files",
        run=partial(idle_connections.idle_connections, connections=300),
        descriptors=DESCRIPTORS,
    ),
    replace(
        next(attack for attack in expensive_batches.ATTACKS if attack.name == "zstd bombs"),
        name="hung disk and bombs",
        what="zstd bombs while no fsync of the controller's broker returns",
        hangs_disk=True,
    ),
)
ATTACKS: Final = {attack.name: attack for attack in _LIST}

# In every run of the tests: what is not tried by a test of its own (tests/integration/test_hostile_*.py), and is short. Not
# "parked joins": their memory goes back only when the coordinator gives the members up, after five minutes.
IN_CI: Final = (
    "nothing",
    "quorum strangers",
    "patterns",
    "250,000 names",
    "500 topics",
    "garbage",
    "forged lines",
    "zstd bombs",
    "slow readers",
    "admin HTTP",
)
# What a campaign of faults draws from: the client port suffices, and nothing is left that a campaign would have to wait for.
BESIDE_FAULTS: Final = tuple(
    attack.name
    for attack in _LIST
    if attack.port is Port.CLIENT
    and attack.descriptors is None
    and not attack.hangs_disk
    and attack.name not in ("nothing", "10,000 idle", "5,000 unknown names", "500 topics")
)
