"""The client ids by which brokers call each other: one for requests, one for the records that a follower fetches. Pure.

A client id proves nothing: any client can choose it. It gives a place or a free way only where nobody can prove who it is.
"""

from typing import Final

BROKER_PREFIX: Final = "broker-"  # and the node id
REPLICA_PREFIX: Final = "replica-"
BROKER_PREFIXES: Final = (BROKER_PREFIX, REPLICA_PREFIX)
