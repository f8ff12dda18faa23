"""Decides which connections a server accepts when it has many. Pure.

Up to `max_connections`, every client is accepted. The places beyond are reserved for brokers and operators: otherwise, many idle
clients could prevent the cluster from repairing itself, and its operators from seeing why. A connection on a reserved place is on
probation until it has sent its client id, and during that time makes room for the next one. Client ids are not verified (there is
no authentication): a client that uses the id of a broker gets reserved places, but one address cannot get all of them. A client
that forges ids from several addresses, or from the address of the brokers themselves, can take all of them.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from ..base.figures.broker_clients import BROKER_PREFIXES

RESERVED_PLACES: Final = 64  # more than the brokers of a large cluster and a few operators need at the same moment
# Per address: the brokers and operators of a cluster on one machine need fewer, and other addresses keep a quarter.
RESERVED_PLACES_OF_HOST: Final = 48
PROBATION_MS: Final = 1_000  # A broker sends its client id at once.
IDLE_TO_CLOSE_MS: Final = 5_000  # A client that was silent for less may be about to send its next request.
# Brokers, followers, the command line, the admin client of the SDK, Kafka's own admin tools.
_KNOWN_PREFIXES: Final = (*BROKER_PREFIXES, "barnabas-cli", "barnabas-admin", "adminclient-")


class Place(Enum):
    REFUSED = auto()
    ORDINARY = auto()
    RESERVED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    max_connections: int
    max_descriptor: int  # ordinary clients get lower descriptors

    def place(self, *, ordinary: int, reserved: int, reserved_of_host: int, descriptor: int) -> Place:
        """`ordinary` and `reserved` are the numbers of existing connections, `reserved_of_host` that of the new connection's
        address. `descriptor` is the new connection's; -1: it has none."""
        if ordinary < self.max_connections and descriptor < self.max_descriptor:
            return Place.ORDINARY
        has_room = reserved < RESERVED_PLACES and reserved_of_host < RESERVED_PLACES_OF_HOST
        return Place.RESERVED if has_room else Place.REFUSED


def is_reserved_for(client_id: str) -> bool:
    """Return whether a client with this id may have a reserved place."""
    return client_id.startswith(_KNOWN_PREFIXES)
