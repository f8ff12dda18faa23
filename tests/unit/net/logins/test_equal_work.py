"""An unknown user costs the same work as one who exists: counted in calls, because times differ on a busy machine."""

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from unit.net.sasl.sasl_world import ITERATIONS, PASSWORD, SALT

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.log.vocabulary.access.scram import LoginSecret, ScramMechanism
from barnabas.net.base.sasl.exchange import Challenge, LoginRefused, PasswordCheck
from barnabas.net.base.sasl.plain import PlainServer
from barnabas.net.base.sasl.scram import ScramClient, ScramServer, credential_for
from barnabas.net.server.logins.users import KnownUsers

KNOWN, UNKNOWN = "alice", "carol"  # names of the same length


def users() -> KnownUsers:
    made = {
        mechanism: credential_for(mechanism, PASSWORD, salt=SALT, iterations=ITERATIONS) for mechanism in ScramMechanism
    }
    image = MetadataImage(users={KNOWN: dict(made), "bob": dict(made)}, login_secret=LoginSecret(value=b"secret"))
    found = KnownUsers(lambda: image, {})
    found.usual_mechanism()  # counts the shapes of all users, once for each change of them
    return found


def calls(work: Callable[[], None]) -> Counter[str]:
    """Every function that is called meanwhile, also those in C, as hashes are."""
    counted: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and not frame.f_code.co_qualname.endswith("<genexpr>"):  # a search may end one step earlier
            counted[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            counted[argument.__qualname__] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_scram_refuses_an_unknown_user_after_the_work_for_a_wrong_password(mechanism: ScramMechanism) -> None:
    known = users()

    def steps_of(user: str) -> tuple[Counter[str], Counter[str]]:
        server = ScramServer(mechanism, known, "server")
        client = ScramClient(mechanism, user, "wrong", "client")
        said: list[bytes] = []

        def begin() -> None:
            step = server.step(client.begin(), 0)
            assert isinstance(step, Challenge)
            said.append(step.data)

        first = calls(begin)
        proof = client.answer(said[0])
        assert proof is not None

        def finish() -> None:
            with pytest.raises(LoginRefused):
                server.step(proof, 0)

        return first, calls(finish)

    steps_of(KNOWN)  # imports and caches
    assert steps_of(KNOWN) == steps_of(UNKNOWN)
    assert any("hmac_digest" in name for name in steps_of(UNKNOWN)[1]), "the proof is computed"


def test_plain_checks_an_unknown_user_with_as_many_iterations_of_the_same_hash() -> None:
    known = users()
    checks: list[PasswordCheck] = []

    def begin(user: str) -> Counter[str]:
        def work() -> None:
            step = PlainServer(known).step(f"\0{user}\0wrong".encode(), 0)
            assert isinstance(step, PasswordCheck)
            checks.append(step)

        return calls(work)

    begin(KNOWN)
    assert begin(KNOWN) == begin(UNKNOWN)
    _, alice, carol = (item.claimed for item in checks)
    assert (alice.mechanism, alice.credential.iterations) == (carol.mechanism, carol.credential.iterations)
    assert len(alice.credential.salt) == len(carol.credential.salt)
    assert len(alice.credential.stored_key) == len(carol.credential.stored_key)
