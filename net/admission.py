"""Which connections a server takes when it has many. Pure.

Up to `max_connections` anybody is taken. The places beyond are for brokers and operators, or a crowd of idle clients would
keep the cluster from repairing itself and its operators from seeing why. Who asks for such a place is on probation until it
has said its name. Names are not proven (there is no authentication), so this protects from crowds, not from forgers.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

RESERVED_PLACES: Final = 64  # more than the brokers of a large cluster and a few operators need at the same moment
PROBATION_MS: Final = 1_000  # A broker says its name at once.
IDLE_TO_CLOSE_MS: Final = 5_000  # A client that was silent for less may be about to send its next request.
# Brokers, followers, the command line, the admin client of our SDK, Kafka's own admin tools.
_KNOWN_PREFIXES: Final = ("broker-", "replica-", "barnabas-cli", "barnabas-admin", "adminclient-")


class Place(Enum):
    REFUSED = auto()
    ORDINARY = auto()
    RESERVED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    max_connections: int
    max_descriptor: int  # ordinary clients get descriptors below it

    def place(self, *, ordinary: int, reserved: int, descriptor: int) -> Place:
        """`ordinary` and `reserved` connections are there already; `descriptor` is that of the new one, -1: none."""
        if ordinary < self.max_connections and descriptor < self.max_descriptor:
            return Place.ORDINARY
        return Place.RESERVED if reserved < RESERVED_PLACES else Place.REFUSED


def is_reserved_for(client_id: str) -> bool:
    """Whether a client of this name may have a reserved place."""
    return client_id.startswith(_KNOWN_PREFIXES)
