"""TLS between voters: both sides show a certificate."""

import ssl
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MutualTls:
    """Contexts that demand a certificate of the other side. Only a voter's has the DNS name `node-<id>`."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def tls_name(node_id: int) -> str:
    return f"node-{node_id}"
