from barnabas.log.checkpoints.leader_epoch_cache import EpochStart, LeaderEpochCache


def cache(*entries):
    return LeaderEpochCache(EpochStart(*entry) for entry in entries)


def test_end_offsets():
    epochs = cache((2, 10), (4, 20), (7, 50))
    ends = {epoch: epochs.end_offset_for(epoch, log_end_offset=60) for epoch in range(-1, 9)}
    assert ends == {
        -1: (-1, -1), 0: (0, 10), 1: (1, 10), 2: (2, 20), 3: (2, 20), 4: (4, 50), 5: (4, 50), 6: (4, 50), 7: (7, 60),
        8: (-1, -1),
    }  # fmt: skip
    assert cache().end_offset_for(0, log_end_offset=5) == (-1, -1)


def test_kip_101_scenario_1():
    """B leads epoch 1 from offset 1 after A's restart: A must keep the message at 1 only if B has it in epoch 0."""
    leader = cache((0, 0), (1, 2))
    assert leader.end_offset_for(0, log_end_offset=3) == (0, 2)


def test_kip_279_fast_fail_over():
    """The follower asks with an epoch that the leader never saw, and gets the largest one below it."""
    leader = cache((1, 0), (3, 21))
    assert leader.end_offset_for(2, log_end_offset=30) == (1, 21)


def test_assign():
    epochs = cache((1, 0))
    assert not epochs.assign(1, 5)
    assert not epochs.assign(0, 5)
    assert epochs.assign(3, 5)
    assert epochs.assign(4, 5)  # epoch 3 wrote nothing
    assert epochs.entries == ((1, 0), (4, 5))
    assert epochs.epoch_at(4) == 1
    assert epochs.epoch_at(5) == 4


def test_truncation():
    epochs = cache((1, 0), (2, 10), (3, 20))
    assert not epochs.truncate_from_end(21)
    assert epochs.truncate_from_end(20)
    assert epochs.latest_epoch == 2
    assert epochs.truncate_from_start(15)
    assert epochs.entries == ((2, 10),)
    assert not epochs.truncate_from_start(15)
    assert not epochs.truncate_from_start(3)
    epochs.clear()
    assert epochs.latest_epoch == -1


def test_a_replica_that_ends_where_the_log_starts_is_told_whether_it_differs() -> None:
    epochs = cache((1, 0), (2, 10), (3, 17), (4, 30))
    assert epochs.truncate_from_start(17)
    assert epochs.end_offset_for(2, log_end_offset=40) == (2, 17)  # the record before offset 17 is of epoch 2 here, too
    # A replica with epoch 1 at offset 16 has other records.
    assert epochs.end_offset_for(1, log_end_offset=40) == (1, 10)


def test_the_epoch_of_the_last_record_outlives_all_records() -> None:
    epochs = cache((1, 0), (2, 10))
    assert epochs.truncate_from_start(20)
    assert (epochs.latest_epoch, epochs.epoch_at(20)) == (2, 2)
    assert epochs.end_offset_for(1, log_end_offset=20) == (1, 10)
