"""TLS between voters: both sides show a certificate."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MutualTls:
    """Contexts that demand a certificate of the other side. Only a voter's has the DNS name `node-<id>`.

    Both return the context for a connection that begins now, because certificates are replaced while a voter runs. One context
    for ever would resume the sessions of an authority that was removed.
    """

    server: Callable[[], ssl.SSLContext]
    client: Callable[[], ssl.SSLContext]
    # While a cluster changes from plain text to TLS, broker by broker:
    also_plain: bool = False  # accept connections in plain text, too
    dials_plain: bool = False  # the others may not accept TLS yet

    def for_dialing(self) -> ssl.SSLContext | None:
        return None if self.dials_plain else self.client()


def tls_name(node_id: int) -> str:
    return f"node-{node_id}"
