"""Which connections a server takes when it has many. Pure.

Up to `max_connections` anybody is taken. The places beyond are for brokers and operators, or a crowd of idle clients would
keep the cluster from repairing itself and its operators from seeing why. Who asks for such a place is on probation until it
has said its name, and makes room for the next who asks. Names are not proven (there is no authentication): a stranger who
takes that of a broker gets such places, but from one address not all of them. Who forges names from several addresses, or from
the address of the brokers themselves, can take them all.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

RESERVED_PLACES: Final = 64  # more than the brokers of a large cluster and a few operators need at the same moment
# Of one address: the brokers and operators of a cluster on one machine need fewer, and others keep a quarter.
RESERVED_PLACES_OF_HOST: Final = 48
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

    def place(self, *, ordinary: int, reserved: int, reserved_of_host: int, descriptor: int) -> Place:
        """`ordinary` and `reserved` connections are there already, `reserved_of_host` from the address of the new one, whose
        descriptor is `descriptor`, -1: none."""
        if ordinary < self.max_connections and descriptor < self.max_descriptor:
            return Place.ORDINARY
        has_room = reserved < RESERVED_PLACES and reserved_of_host < RESERVED_PLACES_OF_HOST
        return Place.RESERVED if has_room else Place.REFUSED


def is_reserved_for(client_id: str) -> bool:
    """Whether a client of this name may have a reserved place."""
    return client_id.startswith(_KNOWN_PREFIXES)
