"""The faults of a cluster: asked for by a test, told to the brokers, undone in any order."""

import difflib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from barnabas.log.vocabulary.cluster_changes import FORWARDED
from barnabas.log.vocabulary.errors import ErrorCode

from ..base.local.local_cluster import ClusterError
from ..wire.protocol.api_keys import ApiKey
from ..wire.protocol.apis import api_name
from ..wire.protocol.kafka.apis import KafkaApi
from .argument_checks import check_some, checked_brokers
from .brokers.backends import Backend
from .fault import Fault, HoldingFaults
from .faults.fault_plan import Asked, FaultPlan
from .faults.held_brokers import HeldBrokers
from .faults.orders import UNLIMITED, AskController, AskReady, DropConnections, EndSession, Faults, RequestFault

POLL_S: Final = 0.005
MAX_HITS: Final = 10_000  # each is a file; the count ends here
MAX_DELAY_MS: Final = 60_000  # above it, every timeout of a broker has passed


class Injection:
    """One for a cluster. All calls block until the brokers have carried them out."""

    def __init__(
        self, backend: Backend, brokers: Iterable[int], *, timeout_s: float, voters: Iterable[int] | None = None
    ) -> None:
        """`voters`: of the quorum; None: all brokers."""
        self._backend = backend
        self._brokers = list(brokers)
        self._voters = set(self._brokers if voters is None else voters)
        self._lock = (
            threading.RLock()
        )  # Coroutines of `aio` run in threads: one of them starts, stops and tells brokers.
        self._late: set[int] = set()  # started while other faults kept them from taking part
        self._timeout_s = timeout_s
        self._plan = FaultPlan(addresses={node_id: backend.addresses(node_id) for node_id in self._brokers})
        self._told = {node_id: Faults() for node_id in self._brokers}
        self._paused, self._dead = HeldBrokers(), HeldBrokers()
        self.holding = HoldingFaults()
        self._refusal: OSError | None = None  # of the last question whether a broker is ready

    # --- brokers ------------------------------------------------------------------------------------------------------

    def kill(self, node_ids: Sequence[int]) -> Fault:
        """All of them, before anything else happens. A broker stays dead until each fault that has killed it is undone."""
        check_some("kill", node_ids)
        chosen = self._checked(node_ids)
        with self._lock:
            hold = self._dead.hold(chosen)
            for node_id in chosen:
                self._paused.forget(node_id)
                self._backend.kill(node_id)

        def undo() -> None:
            with self._lock:
                free = _of(self._dead.release(hold), self._brokers)
            self.restart(free)

        return self.holding.new(f"kill{tuple(node_ids)}", undo)

    def restart(self, node_ids: Iterable[int]) -> None:
        """Those that do not run. Returns when they take part again."""
        with self._lock:
            ended = [node_id for node_id in self._checked(node_ids) if not self._backend.is_running(node_id)]
            for node_id in ended:
                self._dead.forget(node_id)
                self._backend.restart(node_id)
                self._told[node_id] = Faults()
        self._tell(patiently=True)
        self.wait_until_ready([*ended, *self._late])

    def pause(self, node_ids: Sequence[int]) -> Fault:
        """A broker stands still until each fault that has paused it is undone."""
        check_some("pause", node_ids)
        chosen = self._checked(node_ids)

        def undo() -> None:
            with self._lock:
                for node_id in _of(self._paused.release(hold), self._brokers):
                    if self._backend.is_running(node_id):
                        self._backend.resume(node_id)
            self._tell()

        with self._lock:
            for node_id in chosen:
                self._check_running(node_id)
            running = [node_id for node_id in chosen if node_id not in self._paused]
            hold = self._paused.hold(chosen)
            fault = self.holding.new(f"pause{tuple(node_ids)}", undo)
            for node_id in running:
                self._backend.pause(node_id)
        return fault

    def added(self, node_id: int) -> None:
        """A new broker, with the faults of all brokers that hold. Returns when it takes part."""
        self._plan.addresses[node_id] = self._backend.addresses(node_id)
        self._told[node_id] = Faults()
        self._brokers.append(node_id)
        self._tell(patiently=True)
        self.wait_until_ready([node_id])

    def removed(self, node_id: int) -> None:
        """It has left for good, or was never there."""
        self._brokers.remove(node_id)
        self._paused.forget(node_id)
        self._dead.forget(node_id)
        self._late.discard(node_id)

    def awake(self) -> list[int]:
        """The brokers that run and are not paused."""
        return [node_id for node_id in self._brokers if self._takes_orders(node_id)]

    # --- faults of ports ----------------------------------------------------------------------------------------------

    def cut(self, one_side: Iterable[int], other_side: Iterable[int], name: str) -> Fault:
        asked = Asked(brokers=self._set(one_side), cut_from=self._set(other_side))
        return self._ask(name, asked, cleaning=lambda: self.wait_until_ready(list(self._late)))

    def delay_network(self, node_ids: Iterable[int], delay_ms: int) -> Fault:
        checked = _checked_delay(delay_ms)
        return self._ask(f"slow_network({delay_ms} ms)", Asked(brokers=self._set(node_ids), network_delay_ms=checked))

    def delay_disk(self, node_ids: Iterable[int], delay_ms: int) -> Fault:
        checked = _checked_delay(delay_ms)
        return self._ask(f"slow_disk({delay_ms} ms)", Asked(brokers=self._set(node_ids), disk_delay_ms=checked))

    def fill_disk(self, node_ids: Iterable[int]) -> Fault:
        return self._ask("full_disk", Asked(brokers=self._set(node_ids), is_disk_full=True))

    def hit_requests(
        self,
        node_ids: Iterable[int],
        api: str,
        *,
        error: str | int | None,
        times: int | None,
        client_id: str | None,
    ) -> Fault:
        """Without an error, the answer is lost. `times`: of all brokers together."""
        brokers, keys = self._set(node_ids), _keys_of(api)
        code = None if error is None else _error_code(error)
        tokens = UNLIMITED if times is None else _make_tokens(times)
        asked = [
            Asked(brokers=brokers, request=RequestFault(api=key, error=code, client_id=client_id, tokens=tokens))
            for key in keys
        ]
        return self._ask(f"{'lose_answer' if error is None else 'fail'}({api})", *asked, cleaning=lambda: _drop(tokens))

    def advance_clock(self, node_ids: Iterable[int], by_ms: int) -> Fault:
        return self._ask(f"advance_clock({by_ms} ms)", Asked(brokers=self._set(node_ids), clock_offset_ms=by_ms))

    def drop_connections(self, node_ids: Iterable[int], client_id: str | None) -> int:
        chosen = [node_id for node_id in self._checked(node_ids) if self._takes_orders(node_id)]
        return sum(self._backend.order(node_id, DropConnections(client_id=client_id)) for node_id in chosen)

    def end_session(self, coordinator: int, group: str, member_id: str) -> None:
        self._backend.order(coordinator, EndSession(group=group, member_id=member_id))

    def lose_quorum(self, voters: Sequence[int]) -> Fault:
        """No voter reaches another one. Returns when no broker knows a controller."""
        asked = [Asked(brokers=frozenset({voter}), cut_from=frozenset(voters), is_of_quorum=True) for voter in voters]
        fault = self._ask("lose_quorum", *asked)
        self._until(lambda: all(leader < 0 for leader in self.controllers()), "the brokers lose their controller")
        return fault

    def controllers(self) -> list[int]:
        """The controller as each running broker knows it; -1: none."""
        return [self._backend.order(node_id, AskController()) for node_id in self.awake()]

    # --- the end of faults --------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Undo all faults, the newest first; returns when all brokers take part again."""
        for fault in self.holding.newest_first():
            fault.undo()
        self.restart(self._brokers)  # those that ended themselves
        self.wait_until_ready(self._brokers)

    def wait_until_ready(self, node_ids: Iterable[int]) -> None:
        """Returns when these brokers are registered, not fenced, and know a controller. Those that other faults keep from that
        are waited for when these are undone."""
        for node_id in _of(node_ids, self._brokers):
            self._late.discard(node_id)
            self._until(lambda node_id=node_id: self._is_back(node_id), f"broker {node_id} takes part")  # type: ignore[misc]

    def _is_back(self, node_id: int) -> bool:
        is_dead = node_id in self._dead and not self._backend.is_running(node_id)
        try:
            if is_dead or node_id in self._paused or self._is_ready(node_id):
                return True
        except ClusterError:
            if node_id in self._dead or self._backend.is_running(node_id):
                return False  # another thread has killed it since, and may have started it again
            raise
        if self._refusal is not None or not self._is_kept_out(node_id):
            return False
        self._late.add(node_id)
        return True

    def _is_kept_out(self, node_id: int) -> bool:
        """Whether faults that hold keep a broker from taking part: it reaches no majority of the quorum, or no controller."""
        voters = self._voters.intersection(self._brokers)
        near = [voter for voter in voters if self._takes_orders(voter) and not self._plan.is_cut(node_id, voter)]
        if len(near) <= len(voters) // 2 or self._plan.has_no_quorum:
            return True
        cut_off = [other for other in self._brokers if self._plan.is_cut(node_id, other)]
        with suppress(OSError):  # another one that is being started
            return bool(cut_off) and any(controller in cut_off for controller in self.controllers())
        return False

    def _is_ready(self, node_id: int) -> bool:
        self._check_running(node_id)
        try:
            self._refusal = None
            return self._backend.order(node_id, AskReady()) == 1
        except OSError as error:  # a process that does not listen to orders yet
            self._refusal = error
            return False

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + self._timeout_s
        while not condition():
            if time.monotonic() > deadline_s:
                refusal = "" if self._refusal is None else f"; it takes no orders: {self._refusal}"
                raise ClusterError(
                    f"not within {self._timeout_s:g} s: {what}{refusal}; faults that hold: {self.holding}"
                )
            time.sleep(POLL_S)

    # --- one fault ----------------------------------------------------------------------------------------------------

    def _ask(self, name: str, *asked: Asked, cleaning: Callable[[], None] = lambda: None) -> Fault:
        with self._lock:
            self._plan.asked += asked
        self._tell()

        def undo() -> None:
            with self._lock:
                self._plan.asked = [fault for fault in self._plan.asked if fault not in asked]
            self._tell()
            cleaning()

        return self.holding.new(name, undo)

    def _tell(self, *, patiently: bool = False) -> None:
        """Tell each broker its faults, if they have changed. Who is paused or dead is told when it is back."""
        with self._lock:
            for node_id in self._brokers:
                faults = self._plan.of(node_id)
                if faults == self._told[node_id] or not self._takes_orders(node_id):
                    continue
                if patiently:
                    self._until(lambda node_id=node_id: self._listens(node_id), f"broker {node_id} takes orders")  # type: ignore[misc]
                self._backend.order(node_id, faults)
                self._told[node_id] = faults

    def _listens(self, node_id: int) -> bool:
        self._check_running(node_id)
        with suppress(OSError):
            self._backend.order(node_id, AskReady())
            return True
        return False

    def _takes_orders(self, node_id: int) -> bool:
        return node_id not in self._paused and self._backend.is_running(node_id)

    def _check_running(self, node_id: int) -> None:
        if not self._backend.is_running(node_id):
            raise ClusterError(f"broker {node_id} does not run: {self._backend.why_ended(node_id)}")

    def _set(self, node_ids: Iterable[int]) -> frozenset[int]:
        return frozenset(self._checked(node_ids))

    def _checked(self, node_ids: Iterable[int]) -> list[int]:
        return checked_brokers(node_ids, self._brokers)


def _of(node_ids: Iterable[int], brokers: Sequence[int]) -> list[int]:
    """Those that have not been removed meanwhile."""
    return [node_id for node_id in node_ids if node_id in brokers]


def _checked_delay(delay_ms: int) -> int:
    if not 0 <= delay_ms <= MAX_DELAY_MS:
        raise ValueError(f"delay_ms={delay_ms}: give 0 to {MAX_DELAY_MS} milliseconds")
    return delay_ms


def _keys_of(api: str) -> list[int]:
    """By the name of either protocol: CREATE_TOPICS is Kafka's, CREATE_TOPIC ours, and both have one key."""
    keys = {int(key) for keys in (ApiKey, KafkaApi) for key in keys if key.name == api.upper()}
    keys |= {row.api_key for row in FORWARDED if api_name(row.api_key) == api.upper()}
    if not keys:
        known = [key.name for keys in (ApiKey, KafkaApi) for key in keys]
        raise ValueError(f"there is no API {api!r}{_nearest(api.upper(), known)}")
    return sorted(keys)


def _error_code(name: str | int) -> int:
    """By name, or any code of Kafka's protocol."""
    if isinstance(name, int):
        return name
    try:
        return int(ErrorCode[name.upper()])
    except KeyError:
        raise ValueError(
            f"there is no error {name!r}{_nearest(name.upper(), [code.name for code in ErrorCode])}"
        ) from None


def _nearest(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(known), n=3)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _make_tokens(times: int) -> str:
    if not 1 <= times <= MAX_HITS:
        raise ValueError(f"times={times}: give 1 to {MAX_HITS}, or None for every request")
    folder = Path(tempfile.mkdtemp(prefix="barnabas-hits-"))
    for number in range(times):
        (folder / str(number)).touch()
    return str(folder)


def _drop(tokens: str) -> None:
    if tokens == UNLIMITED:
        return
    with suppress(OSError):
        for name in os.listdir(tokens):
            with suppress(OSError):
                os.unlink(os.path.join(tokens, name))
        os.rmdir(tokens)
