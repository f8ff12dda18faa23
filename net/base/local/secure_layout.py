"""The names in the folder of a secure local cluster. They stand by themselves: certificates take long to import."""

from typing import Final

SECURITY: Final = "security"  # a folder: its authority, and the certificates of its users
CLIENT_PROPERTIES: Final = "client.properties"  # what clients need
ADMIN: Final = "admin"  # the user whose certificate `up --secure` makes
CLIENT_PROTOCOLS: Final = (
    "SASL_SSL",
    "SSL",
    "SASL_PLAINTEXT",
)  # of the port for clients; the others are always encrypted
USUAL_PROTOCOL: Final = CLIENT_PROTOCOLS[0]
PLAIN_TEXT: Final = "PLAINTEXT"  # of a cluster that is not secure


def has_logins(client_protocol: str) -> bool:
    return client_protocol.startswith("SASL_")


def is_encrypted(client_protocol: str) -> bool:
    return client_protocol.endswith("SSL")
