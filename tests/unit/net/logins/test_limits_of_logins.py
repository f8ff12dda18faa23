"""What failures cost whom: delays by address, places in the queue of checks, and what unknown users look like."""

import asyncio
import os
import sys
import threading
from dataclasses import replace as replace_known

import pytest
from msgspec.structs import replace
from unit.net.sasl.sasl_world import ITERATIONS, PASSWORD, SALT

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.log.vocabulary.access.scram import (
    DEFAULT_ITERATIONS,
    LoginSecret,
    ScramCredential,
    ScramMechanism,
    UserCredential,
)
from barnabas.net.base.sasl.credentials import Credentials
from barnabas.net.base.sasl.exchange import PasswordCheck
from barnabas.net.base.sasl.scram import SALT_BYTES, credential_for, is_password_of
from barnabas.net.server.logins.failures import (
    DOUBLED_AFTER,
    FORGIVEN_AFTER_S,
    MAX_ADDRESSES,
    MAX_DELAY_S,
    FailedLogins,
    counted_as,
)
from barnabas.net.server.logins.known_passwords import MAX_KNOWN, KnownPasswords
from barnabas.net.server.logins.password_checks import (
    MAX_SUSPECTS,
    MAX_WAITING,
    NICENESS,
    SUSPECT_CHECKS_PER_S,
    SUSPECT_FROM,
    PasswordChecks,
    TooManyLogins,
)
from barnabas.net.server.logins.users import KnownUsers

SHA_256, SHA_512 = ScramMechanism
CREDENTIAL = credential_for(SHA_256, PASSWORD, salt=SALT, iterations=ITERATIONS)


# --- delays -----------------------------------------------------------------------------------------------------------


def test_the_delay_grows_with_the_failures_of_an_address_only() -> None:
    failures = FailedLogins(0.1)
    delays = [failures.failed("attacker", 0.0) for _ in range(100)]
    assert delays[: DOUBLED_AFTER - 1] == [0.1] * (DOUBLED_AFTER - 1)
    assert delays[DOUBLED_AFTER - 1] == 0.2
    assert delays == sorted(delays) and delays[-1] == MAX_DELAY_S
    assert failures.failed("honest", 0.0) == 0.1
    assert (failures.count("attacker", 0.0), failures.count("nobody", 0.0)) == (100, 0)


def test_failures_are_forgiven_and_addresses_forgotten() -> None:
    failures = FailedLogins(0.1)
    failures.failed("a", 0.0)
    assert failures.count("a", FORGIVEN_AFTER_S - 0.1) == 1
    assert failures.count("a", FORGIVEN_AFTER_S) == 0
    for number in range(MAX_ADDRESSES):
        failures.failed(f"address-{number}", 1.0)
    assert failures.count("a", 1.0) == 0, "the oldest one made room"
    assert failures.count("address-0", 1.0) == 1


def test_who_goes_on_failing_is_not_forgotten() -> None:
    failures = FailedLogins(0.1)
    for number in range(MAX_ADDRESSES):
        failures.failed("attacker", 1.0)
        failures.failed(f"address-{number}", 1.0)
    assert failures.count("attacker", 1.0) == MAX_ADDRESSES


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff:1:2:3", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_failures_from_ipv6_are_counted_by_network(host: str, counted: str) -> None:
    assert counted_as(host) == counted


def test_without_a_delay_there_is_none() -> None:
    failures = FailedLogins(0.0)
    assert {failures.failed("a", 0.0) for _ in range(200)} == {0.0}


# --- checks -----------------------------------------------------------------------------------------------------------


def check(password: str, credential: ScramCredential = CREDENTIAL) -> PasswordCheck:
    claimed = UserCredential(user="alice", mechanism=SHA_256, credential=credential)
    return PasswordCheck(claimed=claimed, password=password, is_known=True)


async def test_checks_tell_right_from_wrong() -> None:
    checks = PasswordChecks()
    assert await checks.is_right(check(PASSWORD), failures=0)
    assert not await checks.is_right(check("wrong"), failures=0)
    checks.close()


async def test_who_has_failed_less_often_goes_first_and_who_has_failed_most_gives_way() -> None:
    checks = PasswordChecks()
    slow = replace(CREDENTIAL, iterations=200_000)
    ended: list[str] = []

    async def ask(name: str, failures: int, credential: ScramCredential = CREDENTIAL) -> None:
        try:
            await checks.is_right(check(PASSWORD, credential), failures=failures)
            ended.append(name)
        except TooManyLogins:
            ended.append(f"{name} gave way")

    running = [asyncio.create_task(ask("running", 0, slow)) for _ in range(2)]  # all threads
    await asyncio.sleep(0)
    attacks = [asyncio.create_task(ask("attacker", 1 + number % (SUSPECT_FROM - 1))) for number in range(MAX_WAITING)]
    await asyncio.sleep(0)
    honest = asyncio.create_task(ask("honest", 0))
    await asyncio.gather(honest, *running)
    assert "attacker gave way" in ended
    checked = [name for name in ended if not name.endswith("gave way")]
    assert checked.index("honest") <= 4, (
        "at once after those that were running, beside one attacker in the other thread"
    )
    await asyncio.gather(*attacks)
    assert ended.count("attacker") == MAX_WAITING - 1
    checks.close()


async def test_an_address_that_guesses_gets_few_checks_and_others_do_not_wait_for_them() -> None:
    """Two seconds of real time at most: the rate is what is measured."""
    checks, loop = PasswordChecks(), asyncio.get_running_loop()
    began_s, made_s, gave_way = loop.time(), list[float](), 0

    async def guess(number: int) -> None:
        nonlocal gave_way
        try:
            assert not await checks.is_right(check(f"guess-{number}"), failures=SUSPECT_FROM, guesses=SUSPECT_FROM)
            made_s.append(loop.time() - began_s)
        except TooManyLogins:
            gave_way += 1

    guesses = [asyncio.create_task(guess(number)) for number in range(5 * MAX_SUSPECTS)]
    await asyncio.sleep(0)
    assert await checks.is_right(check(PASSWORD), failures=SUSPECT_FROM - 1), "another address"
    assert len(made_s) <= 2, "it did not wait for them"
    other = replace(CREDENTIAL, iterations=ITERATIONS + 1)
    assert not await checks.is_right(check("mistyped", other), failures=SUSPECT_FROM), (
        "a user for whom nobody has guessed"
    )
    assert len(made_s) <= 3, "it is the next one of its address"
    while len(made_s) < SUSPECT_CHECKS_PER_S:
        await asyncio.wait([one for one in guesses if not one.done()], return_when=asyncio.FIRST_COMPLETED)
    assert made_s[-1] >= 0.9 * (SUSPECT_CHECKS_PER_S - 1) / SUSPECT_CHECKS_PER_S
    assert gave_way >= 4 * MAX_SUSPECTS - SUSPECT_CHECKS_PER_S
    checks.close()
    await asyncio.gather(*guesses, return_exceptions=True)


async def test_a_password_that_was_right_needs_no_check_while_others_guess() -> None:
    checks = PasswordChecks()
    assert await checks.is_right(check(PASSWORD), failures=0)
    slow = replace(CREDENTIAL, iterations=500_000)
    guesses = [asyncio.create_task(checks.is_right(check("x", slow), failures=0)) for _ in range(2)]  # all threads
    await asyncio.sleep(0)
    assert await checks.is_right(check(PASSWORD), failures=1_000, guesses=1_000)
    assert not any(one.done() for one in guesses)
    assert await asyncio.gather(*guesses) == [False, False]
    checks.close()


def test_a_known_password_is_that_of_one_user_with_one_credential_and_the_oldest_is_forgotten() -> None:
    known = KnownPasswords()
    right = check(PASSWORD)
    known.add(right)
    changed = check(PASSWORD, credential_for(SHA_256, PASSWORD, salt=b"another salt 123", iterations=ITERATIONS))
    bob = PasswordCheck(claimed=replace(right.claimed, user="bob"), password=PASSWORD, is_known=True)
    assert known.has(right)
    assert not known.has(check("wrong")) and not known.has(changed) and not known.has(bob)
    assert not KnownPasswords().has(right), "another process has another key"
    for number in range(MAX_KNOWN - 1):
        known.add(check(f"password-{number}"))
    assert known.has(right), "it is now the one that was used last"
    known.add(check("one more"))
    assert known.has(right) and not known.has(check("password-0"))


async def test_the_password_of_a_user_who_does_not_exist_is_never_known() -> None:
    checks = PasswordChecks()
    stranger = replace_known(check(PASSWORD), is_known=False)
    assert await checks.is_right(stranger, failures=0)
    slow = [asyncio.create_task(checks.is_right(check("x"), failures=0)) for _ in range(4)]
    again = asyncio.create_task(checks.is_right(stranger, failures=9))
    await asyncio.sleep(0)
    assert not again.done(), "it is checked like the first time"
    assert await again and await asyncio.gather(*slow) == [False] * 4
    checks.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, threads have no priority of their own")
async def test_checks_yield_the_processors_to_requests() -> None:
    def nice_of(thread: threading.Thread) -> int:
        assert thread.native_id is not None
        return os.getpriority(os.PRIO_PROCESS, thread.native_id)

    before = set(threading.enumerate())
    checks = PasswordChecks()
    assert await checks.is_right(check(PASSWORD), failures=0)
    made = set(threading.enumerate()) - before
    assert {min(nice_of(threading.main_thread()) + NICENESS, 19)} == {nice_of(one) for one in made}
    checks.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no priorities of threads")
async def test_passwords_are_checked_where_priorities_must_not_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", forbid)
    checks = PasswordChecks()
    assert await checks.is_right(check(PASSWORD), failures=0)
    checks.close()


async def test_a_check_that_cannot_be_made_fails_and_the_next_ones_go_on() -> None:
    checks = PasswordChecks()
    wrong = replace(CREDENTIAL, iterations=0)
    asked = [asyncio.create_task(checks.is_right(check(PASSWORD, wrong), failures=0)) for _ in range(4)]
    async with asyncio.timeout(10):
        assert await checks.is_right(check(PASSWORD), failures=0)
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(answer, ValueError)
    checks.close()


async def test_a_client_that_has_gone_costs_nothing() -> None:
    checks = PasswordChecks()
    asked = [asyncio.create_task(checks.is_right(check(PASSWORD), failures=0)) for _ in range(20)]
    await asyncio.sleep(0)
    for task in asked[2:]:
        task.cancel()
    assert await asked[0] and await asked[1]
    assert await checks.is_right(check(PASSWORD), failures=0)
    checks.close()


# --- unknown users ----------------------------------------------------------------------------------------------------


def image(*shapes: tuple[int, int], secret: bytes = b"secret") -> MetadataImage:
    users = {
        f"user-{number}": {int(SHA_256): replace(CREDENTIAL, iterations=iterations, salt=b"s" * salt_bytes)}
        for number, (iterations, salt_bytes) in enumerate(shapes)
    }
    return MetadataImage(users=users, login_secret=LoginSecret(value=secret))


def test_an_unknown_user_looks_like_most_of_the_real_ones_on_every_broker() -> None:
    made = image((4096, 16), (10_000, 20), (10_000, 20))
    one, other = KnownUsers(lambda: made, {}), KnownUsers(lambda: made, {})
    found = one.pretended(SHA_256, "mallory")
    assert (found.iterations, len(found.salt)) == (10_000, 20)
    assert found == other.pretended(SHA_256, "mallory")
    assert found.salt != one.pretended(SHA_256, "mallet").salt
    assert found.salt != KnownUsers(lambda: image((10_000, 20), secret=b"other"), {}).pretended(SHA_256, "mallory").salt
    assert one.credential(SHA_256, "mallory") is None


def test_before_the_cluster_has_a_secret_brokers_with_the_same_file_pretend_the_same() -> None:
    """Otherwise the salts of two brokers, or of one before and after its restart, tell which users there are."""
    of_file = {(SHA_256, "admin"): CREDENTIAL}
    found = KnownUsers(MetadataImage, of_file).pretended(SHA_256, "mallory")
    assert found == KnownUsers(MetadataImage, dict(of_file)).pretended(SHA_256, "mallory")
    another = {(SHA_256, "admin"): credential_for(SHA_256, "other", salt=SALT, iterations=ITERATIONS)}
    assert found.salt != KnownUsers(MetadataImage, another).pretended(SHA_256, "mallory").salt


def test_the_shape_follows_the_users() -> None:
    made = [image((4096, 16)), image((4096, 16), (10_000, 20), (10_000, 20))]
    users = KnownUsers(lambda: made[0], {})
    assert users.pretended(SHA_256, "mallory").iterations == 4096
    del made[0]
    found = users.pretended(SHA_256, "mallory")
    assert (found.iterations, len(found.salt)) == (10_000, 20)


def test_without_users_the_shape_is_that_of_new_ones() -> None:
    users = KnownUsers(MetadataImage, {})
    found = users.pretended(SHA_512, "mallory")
    assert (found.iterations, len(found.salt), len(found.stored_key)) == (DEFAULT_ITERATIONS, SALT_BYTES, 64)
    assert users.pretended(SHA_512, "mallory") == found


@pytest.mark.parametrize("guess", ["", "guess", PASSWORD])
def test_no_password_fits_a_pretended_credential(guess: str) -> None:
    assert not is_password_of(SHA_256, KnownUsers(MetadataImage, {}).pretended(SHA_256, "mallory"), guess)


def test_a_user_of_the_cluster_goes_before_one_of_the_file() -> None:
    other = replace(CREDENTIAL, iterations=5_000)
    made = MetadataImage(users={"alice": {int(SHA_256): CREDENTIAL}})
    of_file = {(SHA_256, "alice"): other, (SHA_512, "alice"): other, (SHA_256, "bob"): other}
    users = KnownUsers(lambda: made, of_file)
    assert users.credential(SHA_256, "alice") is CREDENTIAL
    assert users.credential(SHA_512, "alice") is None, "a password that was changed must not live on in a file"
    assert users.credential(SHA_256, "bob") is other


def test_the_user_of_brokers_is_known_without_a_quorum_and_looks_like_nobody() -> None:
    """Its salt is that of an unknown user of the same name: on all brokers of a cluster, and as the shape of users changes."""
    password = "open sesame"
    brokers = Credentials(mechanism="SCRAM-SHA-512", user="brokers", password=password)
    made = [image((4096, 16)), image((4096, 16), (10_000, 20), (10_000, 20))]
    users, stranger = (KnownUsers(lambda: made[0], {}, known) for known in (brokers, None))
    for _ in range(2):
        found = users.credential(SHA_512, "brokers")
        assert found is not None and is_password_of(SHA_512, found, password)
        assert not is_password_of(SHA_512, found, "another")
        pretended = stranger.pretended(SHA_512, "brokers")
        assert (found.salt, found.iterations) == (pretended.salt, pretended.iterations)
        assert users.credential(SHA_512, "brokers") is found, "computed once"
        del made[0]
        made.append(image((10_000, 20), (10_000, 20)))
    assert users.credential(SHA_256, "brokers") is None and users.credential(SHA_512, "alice") is None
    assert "sesame" not in repr(brokers)


def test_a_user_of_the_cluster_goes_before_the_user_of_brokers() -> None:
    """So that a password of brokers can be taken from all of them."""
    brokers = Credentials(mechanism="PLAIN", user="brokers", password="open sesame")
    made = MetadataImage(users={"brokers": {int(SHA_256): CREDENTIAL}})
    assert KnownUsers(lambda: made, {}, brokers).credential(SHA_256, "brokers") is CREDENTIAL
    of_file = {(SHA_256, "brokers"): CREDENTIAL}
    assert KnownUsers(MetadataImage, of_file, brokers).credential(SHA_256, "brokers") is CREDENTIAL


def test_the_password_of_an_unknown_user_is_checked_with_the_usual_mechanism() -> None:
    of_512 = {f"user-{number}": {int(SHA_512): CREDENTIAL} for number in range(3)}
    for users, usual in (({}, SHA_256), (of_512, SHA_512), (of_512 | image((4096, 16)).users, SHA_512)):
        assert KnownUsers(lambda users=users: MetadataImage(users=users), {}).usual_mechanism() is usual  # type: ignore[misc]
    both = {name: {int(SHA_256): CREDENTIAL} | found for name, found in of_512.items()}
    assert KnownUsers(lambda: MetadataImage(users=both), {}).usual_mechanism() is SHA_256
