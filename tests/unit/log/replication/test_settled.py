"""When a leader has nothing to say to a follower, and nothing to learn from it."""

from unit.log.replication.partitions import fetch, leader, produce, proposal_in

from barnabas.log.replication.isr import PROPOSAL_TIMEOUT_MS


def test_a_follower_is_settled_when_it_knows_that_all_is_committed() -> None:
    partition = leader()
    produce(partition, 0)
    fetch(partition, 2, 1)
    assert not partition.leading.is_settled(2, 1), "3 lacks the record"
    fetch(partition, 3, 1)
    assert not partition.leading.is_settled(2, 1), "2 has not learned that it is committed"
    fetch(partition, 2, 1)
    assert partition.leading.is_settled(2, 1)
    assert not partition.leading.is_settled(2, 0) and not partition.leading.is_settled(4, 1)
    produce(partition, 1)
    assert not partition.leading.is_settled(2, 1)


def test_a_follower_is_not_settled_while_the_outcome_of_a_proposal_is_open() -> None:
    partition = leader(isr=(1, 2))
    produce(partition, 0)
    for _ in range(2):
        fetch(partition, 2, 1)
    assert partition.leading.is_settled(2, 1)
    proposal_in(fetch(partition, 3, 1))
    fetch(partition, 2, 1)
    assert not partition.leading.is_settled(2, 1), "a proposal to add 3 is under way"
    partition.leading.check_isr(PROPOSAL_TIMEOUT_MS)
    assert not partition.leading.is_settled(2, 1), "it may have been accepted"
