"""Makes the C library return freed memory to the system, so that a burst of large requests does not raise the memory permanently.

glibc raises its mmap threshold to the largest block that was ever freed (up to 32 MiB), and smaller blocks come from heaps that
shrink only at their ends. A broker that once served large requests would keep hundreds of megabytes.
"""

import ctypes
import logging
from typing import Final

logger = logging.getLogger("barnabas.broker")

# Blocks of at least this size are mapped, and return to the system when they are freed; a mapping costs about 30 microseconds.
MAPPED_FROM_BYTES: Final = 256 * 1024
# Free memory that a heap keeps at its end, so that it does not shrink and grow with every request. Without this setting, the
# threshold above would leave it at 128 KiB.
KEPT_BYTES: Final = 8 * 1024 * 1024
MAX_ARENAS: Final = 2  # heaps that threads share; each keeps the memory below its highest block
_M_MMAP_THRESHOLD: Final = -3  # malloc.h; setting it also stops glibc from raising it
_M_TRIM_THRESHOLD: Final = -1
_M_ARENA_MAX: Final = -8


def return_freed_memory() -> bool:
    """Call it once, before threads start. Returns False, and changes nothing, if the C library has no mallopt."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        logger.debug("the C library has no mallopt: the process may keep the memory of large requests")
        return False
    settings = ((_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES), (_M_ARENA_MAX, MAX_ARENAS))
    return all([mallopt(name, value) for name, value in settings])
