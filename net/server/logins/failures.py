"""Failed logins by address, or by address and user: who has many failures waits longer, and behind others. Pure.

An address is never refused: honest clients may share it with an attacker.
"""

import ipaddress
from typing import Final

from barnabas.log.settings.addresses import ip_of

MAX_ADDRESSES: Final = 4_096  # remembered; the one that failed longest ago is forgotten first
FORGIVEN_AFTER_S: Final = 60.0
DOUBLED_AFTER: Final = 10  # failures within that time: people mistype less often
MAX_DELAY_S: Final = 5.0  # a little less than the usual time limit of a request
NETWORK_BITS: Final = 64  # of an IPv6 address: whoever has one usually has all 2^64 addresses of its network


def counted_as(host: str) -> str:
    """The address that failures of `host` are counted for; for IPv6 the network."""
    address = ip_of(host)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address), NETWORK_BITS), strict=False))
    return host if address is None else str(address)


class FailedLogins:
    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._found: dict[str, tuple[int, float]] = {}  # failures and the time of the last, the oldest first

    def count(self, host: str, now_s: float) -> int:
        """The recent failures of an address."""
        failures, last_s = self._found.get(host, (0, 0.0))
        return failures if now_s - last_s < FORGIVEN_AFTER_S else 0

    def failed(self, host: str, now_s: float) -> float:
        """Another failure; the seconds until the client learns of it."""
        failures = self.count(host, now_s) + 1
        self._found.pop(host, None)
        self._found[host] = (failures, now_s)
        if len(self._found) > MAX_ADDRESSES:
            del self._found[next(iter(self._found))]
        factor: int = 2 ** min(failures // DOUBLED_AFTER, 16)
        return min(self._delay_s * factor, max(MAX_DELAY_S, self._delay_s))
