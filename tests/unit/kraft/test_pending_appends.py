"""Pending appends beside a plain list of them: what is open, what is newest, and how many records wait."""

from random import Random

from barnabas.kraft.metadata.pending_appends import PendingAppend, PendingAppends
from barnabas.kraft.metadata.records import RemoveTopicRecord
from barnabas.log.vocabulary.quorum import CommittedCommand

STEPS = 400


def test_they_are_what_a_list_of_them_says() -> None:
    for seed in range(5):
        rng, appends, model = Random(seed), PendingAppends(), list[PendingAppend]()
        for step in range(STEPS):
            term = rng.randint(1, 3)
            of_term = [pending for pending in model if pending.term == term]
            if rng.random() < 0.55:
                records = tuple(RemoveTopicRecord(topic_id=f"{number}") for number in range(rng.randint(0, 3)))
                pending = PendingAppend(term=term, claim=rng.randint(0, 2), command=b"%d" % step, records=records)
                appends.add(pending)
                model.append(pending)
            elif of_term:
                gone = rng.choice(of_term)
                if rng.random() < 0.5:
                    found = appends.match(CommittedCommand(index=step, term=term, command=gone.command))
                    assert found is gone
                else:
                    appends.remove(gone)
                model.remove(gone)
                assert gone.settled
            else:
                assert appends.match(CommittedCommand(index=step, term=term, command=b"unknown")) is None
            assert appends.record_count == sum(len(pending.records) for pending in model)
            for other in (1, 2, 3):
                own = [pending for pending in model if pending.term == other]
                assert appends.newest(other) is (own[-1] if own else None)
                for claim in range(3):
                    assert appends.since(other, claim) == tuple(it for it in own if it.claim == claim)
