"""Users in the quorum: what may be stored, and that an image, a snapshot and a second controller hold it."""

import pytest
from msgspec.structs import replace
from unit.kraft.group_state_fake import FakeGroupState
from unit.kraft.single_controller import SingleController

from barnabas.kraft.access import user_control
from barnabas.kraft.access.user_control import alter_users
from barnabas.kraft.metadata.delta import MetadataDelta
from barnabas.kraft.metadata.feature_levels import NEWEST_LEVEL, SECURITY_LEVEL
from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.records import FeatureLevelRecord, RecordBatch, decode_batch, encode_batch
from barnabas.kraft.metadata.replay import replay
from barnabas.kraft.node.snapshot import decode_snapshot, encode_snapshot
from barnabas.log.vocabulary.access.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    LoginSecret,
    ScramCredential,
    ScramMechanism,
    UserCredential,
)
from barnabas.log.vocabulary.cluster_changes import AlterUsersRequest, UserMechanism
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    DuplicateResourceError,
    InvalidRequestError,
    PolicyViolationError,
    ResourceNotFoundError,
    UnacceptableCredentialError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)

SHA_256, SHA_512 = ScramMechanism
SECRET = LoginSecret(value=b"s" * 32)
CREDENTIAL = ScramCredential(salt=b"salt", stored_key=b"k" * 32, server_key=b"s" * 32, iterations=4096)
LONG = ScramCredential(salt=b"salt", stored_key=b"k" * 64, server_key=b"s" * 64, iterations=8192)


def cluster_image(level: int = NEWEST_LEVEL) -> MetadataImage:
    image = SingleController(2).image
    brokers = {key: replace(broker, max_feature_level=level) for key, broker in image.brokers.items()}
    return replace(image, brokers=brokers)


def altered(image: MetadataImage, request: AlterUsersRequest) -> MetadataImage:
    """The image after the decision, whose records have travelled as bytes."""
    records = alter_users(MetadataDelta(image), request).records
    delta = MetadataDelta(image)
    for record in decode_batch(encode_batch(RecordBatch(controller_epoch=1, records=records))).records:
        replay(delta, record, image.offset + 1)
    return delta.apply(image.offset + 1)


def one(user: str = "alice", mechanism: int = SHA_256, credential: ScramCredential = CREDENTIAL) -> AlterUsersRequest:
    return AlterUsersRequest(
        credentials=(UserCredential(user=user, mechanism=mechanism, credential=credential),), login_secret=SECRET
    )


def test_a_user_is_stored_and_the_level_rises_once() -> None:
    image = cluster_image()
    first = alter_users(MetadataDelta(image), one()).records
    assert first[0] == FeatureLevelRecord(feature_level=SECURITY_LEVEL)
    image = altered(image, one())
    assert image.users == {"alice": {SHA_256: CREDENTIAL}}
    assert image.feature_level == SECURITY_LEVEL
    assert image.login_secret == SECRET
    other = replace(one(mechanism=SHA_512, credential=LONG), login_secret=LoginSecret(value=b"other"))
    image = altered(image, other)
    assert image.users == {"alice": {SHA_256: CREDENTIAL, SHA_512: LONG}}
    assert image.login_secret == SECRET, "the first secret stays"


def test_a_removed_credential_is_gone_and_with_the_last_one_the_user() -> None:
    image = altered(altered(cluster_image(), one()), one(mechanism=SHA_512, credential=LONG))
    gone = AlterUsersRequest(removals=(UserMechanism(user="alice", mechanism=SHA_256),))
    image = altered(image, gone)
    assert image.users == {"alice": {SHA_512: LONG}}
    with pytest.raises(ResourceNotFoundError, match="alice"):
        altered(image, gone)
    image = altered(image, AlterUsersRequest(removals=(UserMechanism(user="alice", mechanism=SHA_512),)))
    assert image.users == {}


def test_a_snapshot_holds_users_and_the_secret() -> None:
    image = altered(altered(cluster_image(), one()), one("bob", SHA_512, LONG))
    read, _ = decode_snapshot(encode_snapshot(image, FakeGroupState()))
    assert (read.users, read.login_secret) == (image.users, SECRET)
    assert read == image


def test_nothing_is_shown_in_a_repr() -> None:
    image = altered(cluster_image(), one())
    for shown in (repr(image), repr(one()), repr(alter_users(MetadataDelta(cluster_image()), one()))):
        assert "kkkk" not in shown and "ssss" not in shown and "b'salt'" not in shown


def test_an_old_broker_prevents_users() -> None:
    with pytest.raises(UnsupportedVersionError, match="users"):
        altered(cluster_image(level=2), one())


REFUSED: list[tuple[AlterUsersRequest, type[BarnabasError]]] = [
    (one(user=""), UnacceptableCredentialError),
    (one(user="a" * 256), UnacceptableCredentialError),
    (one(user="a\nb"), UnacceptableCredentialError),
    (one(mechanism=0), UnsupportedSaslMechanismError),
    (one(mechanism=3), UnsupportedSaslMechanismError),
    (one(mechanism=SHA_512), UnacceptableCredentialError),
    (one(credential=replace(CREDENTIAL, server_key=b"")), UnacceptableCredentialError),
    (one(credential=replace(CREDENTIAL, salt=b"")), UnacceptableCredentialError),
    (one(credential=replace(CREDENTIAL, salt=b"x" * 257)), UnacceptableCredentialError),
    (one(credential=replace(CREDENTIAL, iterations=MIN_ITERATIONS - 1)), UnacceptableCredentialError),
    (one(credential=replace(CREDENTIAL, iterations=MAX_ITERATIONS + 1)), UnacceptableCredentialError),
    (AlterUsersRequest(removals=(UserMechanism(user="nobody", mechanism=SHA_256),)), ResourceNotFoundError),
    (AlterUsersRequest(credentials=one().credentials * 2), DuplicateResourceError),
    (
        replace(one(), removals=(UserMechanism(user="alice", mechanism=SHA_256),)),
        DuplicateResourceError,
    ),
    (replace(one(), login_secret=LoginSecret(value=b"x" * 65)), InvalidRequestError),
]


@pytest.mark.parametrize(("request_", "error"), REFUSED)
def test_what_may_not_be_stored(request_: AlterUsersRequest, error: type[BarnabasError]) -> None:
    with pytest.raises(error):
        alter_users(MetadataDelta(cluster_image()), request_)


@pytest.mark.parametrize(
    "request_",
    [
        one(user="a" * 255),
        one(credential=replace(CREDENTIAL, salt=b"x" * 256)),
        one(credential=replace(CREDENTIAL, iterations=MIN_ITERATIONS)),
        one(credential=replace(CREDENTIAL, iterations=MAX_ITERATIONS)),
        *(replace(one(), login_secret=LoginSecret(value=b"x" * size)) for size in (1, 64)),
    ],
)
def test_what_is_just_within_the_limits_is_stored(request_: AlterUsersRequest) -> None:
    (asked,) = request_.credentials
    image = altered(cluster_image(), request_)
    assert image.users == {asked.user: {SHA_256: asked.credential}}
    assert image.login_secret == request_.login_secret


def test_one_request_and_the_cluster_hold_so_many() -> None:
    many = AlterUsersRequest(
        credentials=tuple(one(f"user-{n}").credentials[0] for n in range(user_control.MAX_CHANGES))
    )
    image = altered(cluster_image(), many)
    assert len(image.users) == user_control.MAX_CHANGES
    more = replace(many, removals=(UserMechanism(user="alice", mechanism=SHA_256),))
    with pytest.raises(InvalidRequestError, match="at most"):
        altered(image, more)
    full = replace(image, users={f"user-{n}": {int(SHA_256): CREDENTIAL} for n in range(user_control.MAX_USERS)})
    altered(full, one("user-7"))
    with pytest.raises(PolicyViolationError, match="remove some"):
        altered(full, one("one more"))


def test_the_controller_decides_about_users() -> None:
    cluster = SingleController(1)
    assert "users" in cluster.refused(one(), UnsupportedVersionError), "its broker registered for an older level"
