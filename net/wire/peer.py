"""The identity of the peer of a connection, as its certificate shows it.

Only a certificate that the TLS handshake has verified is read here. A connection without one is ANONYMOUS; SASL gives it a
principal later.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from barnabas.log.settings.principal_rules import DEFAULT_RULES, PrincipalRules, distinguished_name, name_of
from barnabas.log.vocabulary.access.certificates import expired_at
from barnabas.log.vocabulary.errors import InvalidConfigError, SaslAuthenticationError
from barnabas.log.vocabulary.principal import ANONYMOUS, MAX_NAME_LENGTH, Principal

_NODE: Final = "node-"  # `tls_name` of kraft/raft/net/mutual_tls: the DNS name that only a broker's certificate has
_MAX_DIGITS: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """`node_id` is the broker that its certificate names; None: a client."""

    principal: Principal = ANONYMOUS
    node_id: int | None = None


STRANGER: Final = Peer()


def peer_of(
    transport: asyncio.BaseTransport, rules: PrincipalRules = DEFAULT_RULES, *, wall_s: Callable[[], float] = time.time
) -> Peer:
    """Raises InvalidConfigError: no rule of ssl.principal.mapping.rules gives the subject a name; SaslAuthenticationError: the
    certificate has expired. A handshake says that, too, but not one that resumes a session of TLS 1.2."""
    certificate: Mapping[str, Any] | None = transport.get_extra_info("peercert")
    if not certificate:
        return STRANGER
    ends = expired_at(certificate, wall_s())
    if ends is not None:
        raise SaslAuthenticationError(f"the certificate that the client shows has expired: it was valid until {ends}")
    subject = distinguished_name(certificate.get("subject", ()))
    name = name_of(rules, subject)
    if name is None or len(name) > MAX_NAME_LENGTH:
        raise InvalidConfigError(
            f"ssl.principal.mapping.rules gives no name to a certificate with the subject {subject[:MAX_NAME_LENGTH]!r}; add a"
            " rule, or DEFAULT as the last one"
        )
    return Peer(principal=Principal(name=name), node_id=_node_of(certificate))


def _node_of(certificate: Mapping[str, Any]) -> int | None:
    for kind, value in certificate.get("subjectAltName", ()):
        digits = value.removeprefix(_NODE)
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS
        # As voters compare it: `node-01` may be the name of a machine.
        if kind == "DNS" and is_number and value == f"{_NODE}{int(digits)}":
            return int(digits)
    return None
