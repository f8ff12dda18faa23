"""The number of descriptors that this process may open, and the number that clients may use.

Linux gives a new socket or file the lowest free number. Therefore, the number of an accepted connection shows how many
descriptors are in use. A connection whose number lies in the reserve is refused, before the log, the quorum's journal and the
other brokers run out of descriptors.
"""

import logging
import resource
from dataclasses import dataclass
from typing import Final

from barnabas.kraft.raft.net.transport import MAX_STRANGERS
from barnabas.log.segment.open_segments import MAX_OPEN_SEALED_SEGMENTS

logger = logging.getLogger("barnabas.broker")

# For log segments (two to four for each partition while it is written), the quorum, other brokers and operators.
MAX_RESERVED_DESCRIPTORS: Final = 16_384
USUAL_SOFT_LIMIT: Final = 1_024  # if the system does not report a limit
# Unidentified connections to the quorum's port, and to that of the admin API: enough for a voter or an operator among many other
# clients, and few enough that two ports of them leave the reserve to files.
MIN_STRANGERS: Final = 8
LARGEST_LIMIT: Final = 1_048_576  # Linux's fs.nr_open; a hard limit of "infinity" means this


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorLimit:
    """0 < for_clients <= total. Half of a small limit is reserved, at most MAX_RESERVED_DESCRIPTORS of a large one."""

    total: int

    @property
    def for_clients(self) -> int:
        """Ordinary clients get only descriptors below this number."""
        return max(1, self.total - min(self.total // 2, MAX_RESERVED_DESCRIPTORS))

    @property
    def for_strangers(self) -> int:
        """Limit of unidentified connections at a time, for the port of the quorum and for that of the admin API."""
        return max(MIN_STRANGERS, min(MAX_STRANGERS, self.total // 32))

    @property
    def for_sealed_segments(self) -> int:
        """Limit of sealed segments that stay open to be read. A topic with small segments reaches it within seconds."""
        return max(1, min(MAX_OPEN_SEALED_SEGMENTS, (self.total - self.for_clients) // 4))


def raise_descriptor_limit() -> DescriptorLimit:
    """Raise the soft limit (ulimit -n, usually 1024) to the hard limit, which the administrator of the machine sets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LARGEST_LIMIT if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError) as error:
            logger.warning(
                "cannot raise the limit of open files, it stays at %d: %s; raise it with ulimit -n", soft, error
            )
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return DescriptorLimit(total=LARGEST_LIMIT if soft == resource.RLIM_INFINITY else soft)
