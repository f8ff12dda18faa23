"""The twin of the quorum keeps the promises of the port."""

from collections.abc import Callable, Iterable

import pytest

from barnabas.kraft.quorum.memory_quorum import InMemoryQuorum
from barnabas.kraft.quorum.quorum import AppendOutcome, Leadership, Quorum
from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.log.vocabulary.quorum import CommittedCommand


class Recorder:
    def __init__(self) -> None:
        self.commands: list[bytes] = []
        self.batches = 0
        self.leaderships: list[Leadership] = []

    def committed(self, commands: list[CommittedCommand]) -> None:
        self.batches += 1
        self.commands += [command.command for command in commands]

    def restore(self, index: int, chunks: Iterable[bytes]) -> None:
        self.commands = list(chunks)

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        view = list(self.commands)
        return lambda: view

    def leadership_changed(self, leadership: Leadership) -> None:
        self.leaderships.append(leadership)


@pytest.fixture
def quorum() -> InMemoryQuorum:
    quorum = InMemoryQuorum()
    quorum.add_node(0, Recorder())
    quorum.add_node(1, Recorder())
    quorum.elect(0)
    return quorum


def heard(quorum: InMemoryQuorum, node_id: int) -> Recorder:
    listener = quorum.nodes[node_id].listener
    assert isinstance(listener, Recorder)
    return listener


def test_commands_reach_everybody_in_order_before_their_outcomes(quorum: InMemoryQuorum) -> None:
    port: Quorum = quorum.nodes[0]
    seen: list[tuple[AppendOutcome, int]] = []
    for command in (b"a", b"b"):
        port.append(command, term=1, done=lambda outcome: seen.append((outcome, len(heard(quorum, 0).commands))))
    assert not seen
    quorum.step()
    assert seen == [(AppendOutcome.COMMITTED, 2)] * 2
    assert heard(quorum, 0).commands == heard(quorum, 1).commands == [b"a", b"b"]
    assert heard(quorum, 1).batches == 1
    assert port.committed_index == quorum.log[-1].index


def test_only_the_leader_appends_and_only_in_its_term(quorum: InMemoryQuorum) -> None:
    outcomes: list[AppendOutcome] = []
    quorum.nodes[1].append(b"x", term=1, done=outcomes.append)
    quorum.nodes[0].append(b"x", term=7, done=outcomes.append)
    quorum.step()
    assert outcomes == [AppendOutcome.NOT_APPENDED] * 2
    assert not quorum.log


def test_a_new_leader_discards_what_was_not_committed(quorum: InMemoryQuorum) -> None:
    outcomes: list[AppendOutcome] = []
    quorum.nodes[0].append(b"x", term=1, done=outcomes.append)
    quorum.elect(1)
    assert outcomes == [AppendOutcome.DISCARDED]
    assert [leadership.is_self for leadership in heard(quorum, 1).leaderships] == [False, True]


def test_a_lost_leadership_leaves_unknown_outcomes(quorum: InMemoryQuorum) -> None:
    outcomes: list[AppendOutcome] = []
    quorum.nodes[0].append(b"x", term=1, done=outcomes.append)
    quorum.lose_leadership()
    assert outcomes == [AppendOutcome.UNKNOWN]
    assert quorum.nodes[0].leadership.leader_id is None


@pytest.mark.parametrize("committed", [True, False])
def test_an_unknown_outcome_may_be_either(quorum: InMemoryQuorum, committed: bool) -> None:
    outcomes: list[AppendOutcome] = []
    quorum.inject(AppendOutcome.UNKNOWN, committed=committed)
    quorum.nodes[0].append(b"x", term=1, done=outcomes.append)
    quorum.run()
    assert outcomes == [AppendOutcome.UNKNOWN]
    assert heard(quorum, 1).commands == ([b"x"] if committed else [])


def test_a_node_that_was_away_catches_up_from_the_log_or_a_snapshot(quorum: InMemoryQuorum) -> None:
    quorum.nodes[1].connected = False
    for command in (b"a", b"b"):
        quorum.nodes[0].append(command, term=1, done=lambda _outcome: None)
    quorum.run()
    assert not heard(quorum, 1).commands
    quorum.nodes[1].connected = True
    quorum.step()
    assert heard(quorum, 1).commands == [b"a", b"b"]
    late = quorum.add_node(2, Recorder())
    late.restore_from(quorum.nodes[0])
    quorum.nodes[0].append(b"c", term=1, done=lambda _outcome: None)
    quorum.run()
    assert heard(quorum, 2).commands == [b"a", b"b", b"c"]


def test_a_command_over_the_limit_is_refused(quorum: InMemoryQuorum) -> None:
    with pytest.raises(InvalidRequestError):
        quorum.nodes[0].append(b"x" * (1024 * 1024 + 1), term=1, done=lambda _outcome: None)


def test_appending_for_ever_is_a_failure(quorum: InMemoryQuorum) -> None:
    def again(_outcome: AppendOutcome) -> None:
        quorum.nodes[0].append(b"x", term=1, done=again)

    again(AppendOutcome.COMMITTED)
    with pytest.raises(AssertionError, match="still busy"):
        quorum.run(limit=10)
