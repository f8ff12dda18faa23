"""Users for the machines of SASL."""

import hashlib
from collections.abc import Mapping

from barnabas.log.vocabulary.access.scram import ScramCredential, ScramMechanism
from barnabas.net.base.sasl.scram import credential_for

SALT = bytes(range(16))
ITERATIONS = 4_096
PASSWORD = "pencil"


class SomeUsers:
    """Implements `Users` from passwords; unknown users get a credential that no password fits."""

    def __init__(self, passwords: Mapping[str, str], *mechanisms: ScramMechanism) -> None:
        self.found = {
            (mechanism, user): credential_for(mechanism, password, salt=SALT, iterations=ITERATIONS)
            for user, password in passwords.items()
            for mechanism in mechanisms or ScramMechanism
        }

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        return self.found.get((mechanism, user))

    def usual_mechanism(self) -> ScramMechanism:
        return (
            ScramMechanism.SHA_512
            if all(item is ScramMechanism.SHA_512 for item, _ in self.found)
            else ScramMechanism.SHA_256
        )

    def pretended(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        key = hashlib.new(mechanism.hash_name, user.encode()).digest()
        return ScramCredential(salt=key[:16], stored_key=key, server_key=key, iterations=ITERATIONS)
