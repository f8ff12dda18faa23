"""How many descriptors this process may open, and how many of them its clients may have.

Linux gives a new socket or file the lowest number that is free. So the number of an accepted connection tells how many
descriptors are in use, and a connection whose number lies in the reserve is refused before the log, the quorum's journal
and the other brokers run short.
"""

import logging
import resource
from dataclasses import dataclass
from typing import Final

from barnabas.kraft.raft.net.transport import MAX_STRANGERS

logger = logging.getLogger("barnabas.broker")

# For log segments (two to four for each partition while it is written), the quorum, other brokers and operators.
MAX_RESERVED_DESCRIPTORS: Final = 16_384
USUAL_SOFT_LIMIT: Final = 1_024  # where the system does not tell
# Connections to the quorum's port, and to that of the admin API, of which it is not known yet who asks: enough for a voter or an
# operator beside a crowd, and so few that two ports of them leave the reserve to files.
MIN_STRANGERS: Final = 8
LARGEST_LIMIT: Final = 1_048_576  # Linux's fs.nr_open; a hard limit of "infinity" means this


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorLimit:
    """0 < for_clients <= total. Half of a small limit is reserved, at most MAX_RESERVED_DESCRIPTORS of a large one."""

    total: int

    @property
    def for_clients(self) -> int:
        """Descriptors from this number on are not for ordinary clients."""
        return max(1, self.total - min(self.total // 2, MAX_RESERVED_DESCRIPTORS))

    @property
    def for_strangers(self) -> int:
        """Connections that the port of the quorum, or of the admin API, holds at a time without knowing for whom."""
        return max(MIN_STRANGERS, min(MAX_STRANGERS, self.total // 32))


def raise_descriptor_limit() -> DescriptorLimit:
    """Raise the soft limit (ulimit -n, usually 1024) to the hard one, which the administrator of the machine sets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LARGEST_LIMIT if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError) as error:
            logger.warning("the limit of open files stays at %d: %s; raise it with ulimit -n", soft, error)
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return DescriptorLimit(total=LARGEST_LIMIT if soft == resource.RLIM_INFINITY else soft)
