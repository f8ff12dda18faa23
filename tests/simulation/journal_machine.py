"""The quorum's disk alone: journal, term and vote, snapshot, on a disk that crashes between and in the middle of operations.

What `durable_index` covered, every stored vote, and the blank flag are there when it is opened again; what lies behind is a
state that the journal had since then. `run_seed(seed)` is one history; nothing of asyncio runs in it.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from random import Random
from typing import Any

from barnabas.kraft.raft.disk.folder import QuorumFolder
from barnabas.net.testing.simulation.disk import SimulatedDisk
from barnabas.net.testing.simulation.process import ProcessDied

from .checkers.violation import Violation

DIRECTORY = "/quorum"
STEPS = 120
State = tuple[tuple[int, int], ...]  # (index, term) of each entry; a command is named by both


def command(index: int, term: int) -> bytes:
    return b"%d/%d" % (index, term) + b"x" * (index * 13 % 50)


class _Work:
    """A future whose work is done when the machine says so."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self._error = error
        for callback in self._callbacks:
            callback(self)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._callbacks.append(callback)

    def cancelled(self) -> bool:
        return False

    def exception(self) -> BaseException | None:
        return self._error


class _Loop:
    """Stands for the loop and its executor."""

    def __init__(self) -> None:
        self.pending: list[_Work] = []

    def run_in_executor(self, _executor: Executor, function: Callable[..., object], *arguments: object) -> _Work:
        work = _Work(lambda: function(*arguments))
        self.pending.append(work)
        return work


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalResult:
    seed: int
    events: int
    crashes: int


class JournalMachine:
    """`states` are the contents since the flush that `durable_index` speaks of was begun, oldest first."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.disk = SimulatedDisk()
        self.disk.make_dirs(DIRECTORY)
        self.events = self.crashes = 0
        self.term, self.vote, self.blank = 0, None, True
        self.promised: tuple[int, int | None, bool] = (0, None, True)  # term, vote and blank flag that were stored
        self.wanted: tuple[int, int | None, bool] = (0, None, True)  # what a write that was cut off may have stored
        self.snapshot_index = 0
        self.durable: dict[int, int] = {}  # index -> term of what was said to be on the disk
        self.states: list[State] = [()]
        self.open()

    def open(self) -> None:
        self.loop = _Loop()
        executor: Any = None
        loop: Any = self.loop
        folder = QuorumFolder(
            storage=self.disk,
            directory=DIRECTORY,
            loop=loop,
            executor=executor,
            clock=lambda: 0.0,
            wake=lambda: None,
            fatal=self._fatal,
        )
        self.journal, self.hard_state, self.snapshots = folder.journal, folder.hard_state, folder.snapshots
        if folder.snapshot is not None:
            self.snapshot_index = folder.snapshot.last_index

    def _fatal(self, reason: str) -> None:
        raise Violation(f"the journal stopped: {reason}")

    # --- what must hold -----------------------------------------------------------------------------------------------

    def content(self) -> State:
        return tuple((index, term) for _, index, term in self.journal.entries_from(self.journal.first_index, 1 << 30))

    def check_opened(self) -> None:
        found = self.content()
        for data, index, term in self.journal.entries_from(self.journal.first_index, 1 << 30):
            if index > self.snapshot_index and data != command(index, term):
                raise Violation(f"entry {index} of term {term} holds {data!r}")
        if not any(self._fits(found, state) for state in self.states):
            raise Violation(f"opened {found[-8:]}, but it was {self.states[-1][-8:]} (from {self.states[0][-8:]})")
        held = dict(found)
        for index, term in self.durable.items():
            if index > self.snapshot_index and held.get(index) != term:
                raise Violation(f"entry {index} of term {term} was on the disk, now there is {held.get(index)}")
        meta = (self.hard_state.term, self.hard_state.voted_for, self.hard_state.blank)
        if meta not in (self.promised, self.wanted):
            raise Violation(f"term, vote and blank flag are {meta}, stored was {self.promised}")
        self.promised = self.wanted = meta
        self.term = max(self.term, meta[0])
        self.states = [found]
        self.note_durable()

    def _fits(self, found: State, state: State) -> bool:
        """The same where both have entries: a trimmed prefix is in the snapshot."""
        first = max(found[0][0] if found else 1, state[0][0] if state else 1)
        return [it for it in found if it[0] >= first] == [it for it in state if it[0] >= first]

    def note_durable(self) -> None:
        if self.journal.durable_index > self.journal.last_index:
            raise Violation(f"{self.journal.durable_index} is on the disk, and the last is {self.journal.last_index}")
        held = dict(self.content())
        self.durable = {index: term for index, term in held.items() if index <= self.journal.durable_index}

    # --- operations ---------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        self.states.append(self.content())

    def append(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            index = self.journal.last_index + 1
            self.journal.add(command(index, self.term), index, self.term)
            self.changed()

    def truncate(self) -> None:
        """What a new leader does to entries that were not committed: behind the snapshot, anything may go."""
        lowest = max(self.journal.first_index + 1, self.snapshot_index + 1)
        if self.journal.last_index < lowest:
            return
        index = self.rng.randint(lowest, self.journal.last_index)
        self.durable = {known: term for known, term in self.durable.items() if known < index}
        self.journal.truncate_from(index)
        self.note_durable()
        self.changed()
        self.term += 1

    def store_vote(self) -> None:
        self.term += 1
        voted_for = self.rng.choice((None, 0, 1, 2))
        self.wanted = (self.term, voted_for, self.hard_state.blank)
        self.hard_state.set_term(self.term, voted_for)
        self.promised = self.wanted

    def clear_blank(self) -> None:
        self.wanted = (self.promised[0], self.promised[1], False)
        self.hard_state.clear_blank()
        self.promised = self.wanted

    def finish_work(self) -> None:
        if self.loop.pending:
            self.loop.pending.pop(self.rng.randrange(len(self.loop.pending))).run()
            self.note_durable()

    def begin_snapshot(self) -> None:
        if not self.snapshots.may_begin or self.journal.last_index - self.journal.first_index < 2:
            return
        last_index = self.rng.randint(self.journal.first_index + 1, self.journal.last_index)
        if last_index > self.journal.durable_index:
            return  # only what is committed is in a snapshot
        prev, last = self.journal.entries_from(last_index - 1, 2)

        def chunks() -> Iterable[bytes]:
            return [b"state"]

        self.snapshot_index = max(self.snapshot_index, last_index)
        self.snapshots.begin(last, prev, chunks)

    def trim(self) -> None:
        prev_index = self.snapshots.take_finished()
        if prev_index is not None and prev_index > self.journal.first_index:
            self.states.append(self.content())
            self.journal.trim_to(prev_index)
            self.note_durable()
            self.states = [self.content()]

    def step(self) -> None:
        steps = {
            self.append: 35, self.journal.sync_soon: 20, self.finish_work: 17, self.truncate: 6, self.store_vote: 6,
            self.clear_blank: 2, self.begin_snapshot: 5, self.trim: 3, self.journal.mark_durable: 2,
            self.die_later: 2, self.crash: 2,
        }  # fmt: skip
        self.rng.choices(list(steps), list(steps.values()))[0]()

    def die_later(self) -> None:
        self.disk.kill_within(self.rng, 8)

    def crash(self) -> None:
        self.crashes += 1
        if self.rng.random() < 0.6:
            self.disk.power_loss(self.rng)
        else:
            self.disk.kill()
        self.open()
        self.check_opened()

    def run(self) -> None:
        for _ in range(STEPS):
            self.events += 1
            try:
                self.step()
            except ProcessDied:
                self.crash()
        self.disk.before_operation = None
        self.crash()


def run_seed(seed: int, machine: type[JournalMachine] = JournalMachine) -> JournalResult:
    found = machine(seed)
    found.run()
    return JournalResult(seed=seed, events=found.events, crashes=found.crashes)
