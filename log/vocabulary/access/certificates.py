"""The end of a certificate, as the `ssl` module describes certificates.

A TLS handshake checks it, except one that resumes a session of TLS 1.2: whoever believes a certificate asks here as well.
"""

import ssl
from collections.abc import Mapping
from typing import Any


def expired_at(certificate: Mapping[str, Any] | None, now_s: float) -> str | None:
    """Until when the certificate was valid, if that is over. `now_s`: wall clock."""
    ends: str | None = (certificate or {}).get("notAfter")
    return ends if ends is not None and ssl.cert_time_to_seconds(ends) < now_s else None
