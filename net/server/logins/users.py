"""The users whose passwords a broker accepts: those of the quorum, and those of its own file. Implements `Users`."""

import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Callable, Mapping

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.log.vocabulary.access.scram import DEFAULT_ITERATIONS, SCRAM_MECHANISMS, ScramCredential, ScramMechanism
from barnabas.net.base.sasl.credentials import Credentials
from barnabas.net.base.sasl.scram import SALT_BYTES, credential_for
from barnabas.net.base.sasl.verifiers import UserFile


class KnownUsers:
    """`from_file`: users that this broker knows without a quorum, as it knows whom it logs in to others as (`of_brokers`): so
    brokers that share a user form a cluster before the quorum has any. A user of the quorum goes before one of the same name."""

    def __init__(
        self, image: Callable[[], MetadataImage], from_file: UserFile, of_brokers: Credentials | None = None
    ) -> None:
        self._image = image
        self._from_file = from_file
        self._of_brokers = of_brokers
        # The password of PLAIN is checked with a credential of SCRAM, like those of all users.
        mechanism = "" if of_brokers is None else of_brokers.mechanism
        self._mechanism_of_brokers = SCRAM_MECHANISMS.get(mechanism, ScramMechanism.SHA_256)
        self._broker_credential: ScramCredential | None = None
        self._own_secret = _secret_of(from_file)  # until the cluster has one
        self._counted: Mapping[str, Mapping[int, ScramCredential]] | None = None
        self._usual_mechanism = ScramMechanism.SHA_256
        self._shapes: dict[ScramMechanism, tuple[int, int]] = {}

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        found = self._image().users.get(user)
        if found is not None:
            return found.get(mechanism)
        of_brokers = self._of_brokers
        if of_brokers is not None and of_brokers.user == user and self._mechanism_of_brokers is mechanism:
            return self._from_file.get((mechanism, user)) or self._credential_of(of_brokers)
        return self._from_file.get((mechanism, user))

    def _credential_of(self, brokers: Credentials) -> ScramCredential:
        """With the salt that an unknown user of this name would have: it does not tell that the name is right, and brokers need
        not know the salts of each other. Computed once for each salt, in some milliseconds."""
        mechanism, known = self._mechanism_of_brokers, self._broker_credential
        shape = self.pretended(mechanism, brokers.user)
        if known is None or (known.salt, known.iterations) != (shape.salt, shape.iterations):
            known = credential_for(mechanism, brokers.password, salt=shape.salt, iterations=shape.iterations)
            self._broker_credential = known
        return known

    def pretended(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """Of the most usual shape among the real ones, so that nothing in the answer tells that the user does not exist."""
        image = self._image()
        secret = self._own_secret if image.login_secret is None else image.login_secret.value
        iterations, salt_bytes = self._shape(mechanism, image)
        noise = hmac.digest(secret, f"{mechanism} {user}".encode(), "sha512")
        key = noise[: mechanism.bits // 8]
        salt = hashlib.shake_256(noise).digest(salt_bytes)
        return ScramCredential(salt=salt, stored_key=key, server_key=key, iterations=iterations)

    def usual_mechanism(self) -> ScramMechanism:
        image = self._image()
        self._shape(ScramMechanism.SHA_256, image)
        return self._usual_mechanism

    def _shape(self, mechanism: ScramMechanism, image: MetadataImage) -> tuple[int, int]:
        if self._counted is not image.users:
            self._counted = image.users
            self._shapes = {item: self._usual_shape(item, image) for item in ScramMechanism}
            # PLAIN takes the first mechanism for which a user has a credential.
            with_first = sum(ScramMechanism.SHA_256 in found for found in image.users.values())
            is_first = 2 * with_first >= len(image.users)
            self._usual_mechanism = ScramMechanism.SHA_256 if is_first else ScramMechanism.SHA_512
        return self._shapes[mechanism]

    def _usual_shape(self, mechanism: ScramMechanism, image: MetadataImage) -> tuple[int, int]:
        """The number of iterations and the size of the salt that most credentials have."""
        real = [found[mechanism] for found in image.users.values() if mechanism in found]
        real.extend(found for (used, _), found in self._from_file.items() if used is mechanism)
        counts = Counter((item.iterations, len(item.salt)) for item in real)
        # The order of the users must not decide between two that are equally usual: it differs after a snapshot.
        return max(counts, key=lambda shape: (counts[shape], shape), default=(DEFAULT_ITERATIONS, SALT_BYTES))


def _secret_of(users: UserFile) -> bytes:
    """Equal on all brokers with this file, and after a restart: otherwise, only the salts of real users would be so. Nobody else
    knows the keys in the file."""
    if not users:
        return secrets.token_bytes(32)  # there is no real user to tell from the others
    keys = sorted(credential.stored_key + credential.server_key for credential in users.values())
    return hmac.digest(b"salts of unknown users", b"".join(keys), "sha512")
