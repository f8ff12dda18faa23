"""Long random lives of `HandOver`, beside rules that say what it may do in each step."""

import random
from typing import Any, cast

import pytest
from simulation.raft_cluster import TIMING

from barnabas.kraft.raft.consensus.hand_over import RESEND_S, HandOver

STEPS = 4_000
OTHERS = (1, 2, 3)
OFFER_S = TIMING.election_min_s / 2


class Voter:
    """All parts of a node that a hand-over sees. A leader that gives up follows."""

    node_id = 0
    timing = TIMING

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.is_leader = True
        self.may_lead = True
        self.other_ids: list[int] = list(OTHERS)
        self.live = set(OTHERS)
        self.matches = dict.fromkeys(OTHERS, 0)
        self.has_given_up = False
        self.asked: list[int] = []
        self.takes_requests = True

    def is_live(self, peer_id: int, _now: float) -> bool:
        return peer_id in self.live

    def match_of(self, peer_id: int) -> int:
        return self.matches[peer_id]

    def give_up(self, _reason: str) -> None:
        assert self.is_leader
        self.is_leader, self.has_given_up = False, True

    def ask_transfer(self, peer_id: int) -> bool:
        assert self.is_leader and peer_id in self.other_ids
        self.asked.append(peer_id)
        return self.takes_requests

    def wake(self) -> None: ...

    def report(self, _event: object) -> None: ...

    def change(self) -> None:
        """A leader that has given up takes a step as a follower before anything else happens to it."""
        if self.has_given_up:
            return
        rng = self.rng
        match rng.choice(["nothing", "leader", "leader", "may lead", "others", "live", "live", "matches", "requests"]):
            case "leader":
                self.is_leader = rng.random() < 0.7
            case "may lead":
                self.may_lead = rng.random() < 0.4
            case "others":
                self.other_ids = sorted(rng.sample(OTHERS, rng.randint(0, 3)))
            case "live":
                self.live = set(rng.sample(OTHERS, rng.choice((0, 2, 3, 3))))
            case "matches":
                self.matches[rng.choice(OTHERS)] = rng.randint(0, 3)
            case "requests":
                self.takes_requests = not self.takes_requests

    def best(self) -> int | None:
        live = [peer for peer in self.other_ids if peer in self.live]
        return max(live, key=lambda peer: (self.matches[peer], -peer), default=None)


class Rules:
    """What must follow from what a voter was, step by step."""

    def __init__(self, voter: Voter, machine: HandOver) -> None:
        self.voter = voter
        self.machine = machine
        self.target: int | None = None  # of the open hand-over
        self.deadline = 0.0
        self.asked_at = float("-inf")
        self.has_offered = False  # since this leader must not lead
        self.seen = {"offered": 0, "gave up": 0, "lapsed": 0, "withdrawn": 0}

    def demand(self, now: float) -> None:
        """An operator, or a node that leaves, wants it."""
        expected = self.target is not None or (self.voter.is_leader and self.voter.best() is not None)
        assert self.machine.begin(now) == expected
        if self.target is None and expected:
            self._open(now)

    def _open(self, now: float) -> None:
        self.target, self.deadline, self.asked_at = self.voter.best(), now + OFFER_S, float("-inf")

    def advance(self, now: float) -> None:
        voter = self.voter
        must_follow = self._gives_way(now)
        expected = self._asks(now) if self.target is not None and not must_follow else []
        voter.has_given_up, voter.asked = False, []
        self.machine.advance(now)
        assert voter.has_given_up == must_follow
        assert voter.asked == expected
        if expected and voter.takes_requests:
            self.asked_at = now
        assert self.machine.is_open == (self.target is not None)

    def _gives_way(self, now: float) -> bool:
        """Whether the leader gives up. It makes one offer before, as long as it leads and must not, if anybody could take it."""
        voter = self.voter
        if not voter.is_leader:
            self.seen["withdrawn"] += self.target is not None
            self.target, self.has_offered = None, False
        elif voter.may_lead or not voter.other_ids:
            self.has_offered = False
        elif self.target is None:
            if self.has_offered or voter.best() is None:
                self.seen["gave up"] += 1
                return True
            self.has_offered = True
            self.seen["offered"] += 1
            self._open(now)
        return False

    def _asks(self, now: float) -> list[int]:
        assert self.target is not None
        if now > self.deadline or self.target not in self.voter.other_ids:
            self.seen["lapsed"] += 1
            self.target = None
            return []
        return [self.target] if now - self.asked_at > RESEND_S else []


@pytest.mark.parametrize("seed", range(8))
def test_one_offer_while_a_leader_must_not_lead_and_none_that_outlives_its_reason(seed: int) -> None:
    rng = random.Random(seed)
    voter = Voter(rng)
    part = cast(Any, voter)
    machine = HandOver(part, part, part, part)
    rules, now = Rules(voter, machine), 100.0
    for _ in range(STEPS):
        voter.change()
        now += rng.choice([0.001, 0.02, 2 * RESEND_S])
        if rng.random() < 0.05:
            rules.demand(now)
        rules.advance(now)
    assert min(rules.seen.values()) > 20, rules.seen
