"""A transaction ends when every partition and every group has its marker, whatever it has of both."""

import pytest

from barnabas.log.vocabulary.transaction_messages import TransactionState, TransactionTopic

from .test_transactions import T0, T1, World


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("groups", [(), ("g",), ("g", "h")])
@pytest.mark.parametrize("topics", [(), (T0,), (T0, T1)])
def test_an_end_waits_for_the_markers_of_all_partitions_and_groups(
    topics: tuple[TransactionTopic, ...], groups: tuple[str, ...], commit: bool
) -> None:
    world = World()
    who = world.init()
    world.add(who, *topics, groups=groups)
    if not topics and not groups:
        assert not world.machine.undecided_markers()
        return
    world.end(who, commit=commit)
    prepared = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    assert world.phase is prepared
    (marker,) = world.machine.undecided_markers()
    assert sum(len(topic.partitions) for topic in marker.partitions) == len(topics)
    assert marker.offset_groups == groups
    world.fail_over()
    assert world.phase is prepared
    world.complete()
    assert world.phase is (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)
