"""How the C library keeps memory that was freed: as little as possible, so that a burst of large requests leaves no trace.

glibc raises the size from which it maps memory to the largest block that was ever freed (up to 32 MiB), and blocks below it
come from heaps that shrink at their ends only. A broker that once served large requests would keep hundreds of megabytes.
"""

import ctypes
import logging
from typing import Final

logger = logging.getLogger("barnabas.broker")

# Blocks from this size on are mapped and go back to the system when they are freed; a mapping costs about 30 microseconds.
MAPPED_FROM_BYTES: Final = 256 * 1024
# What a heap keeps at its end, so that it does not shrink and grow with every request. Setting the threshold above would
# otherwise leave it at 128 KiB for ever.
KEPT_BYTES: Final = 8 * 1024 * 1024
MAX_ARENAS: Final = 2  # heaps that threads share; each keeps what lies below its highest block
_M_MMAP_THRESHOLD: Final = -3  # malloc.h; setting it also stops glibc from raising it
_M_TRIM_THRESHOLD: Final = -1
_M_ARENA_MAX: Final = -8


def return_freed_memory() -> bool:
    """Call it once, before there are threads. False where the C library is another one; then all stays as it is."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        logger.debug("the C library has no mallopt: memory of large requests may stay with the process")
        return False
    settings = ((_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES), (_M_ARENA_MAX, MAX_ARENAS))
    return all([mallopt(name, value) for name, value in settings])
