"""The names in the folder of a secure local cluster. They stand by themselves: certificates take long to import."""

from typing import Final

SECURITY: Final = "security"  # a folder: its authority, and the certificates of its users
CLIENT_PROPERTIES: Final = "client.properties"  # what clients need
ADMIN: Final = "admin"  # the user whose certificate `up --secure` makes
