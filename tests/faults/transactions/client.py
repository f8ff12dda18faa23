"""One client process: `python -m faults.transactions.client ORDERS`. SIGTERM lets it end its transaction first.

Exit code 0: it was told to end; else its journal has the error, by which it may have been fenced.
"""

import asyncio
import json
import signal
import sys
from importlib import import_module
from threading import Event
from types import FrameType
from typing import Final

from .journal import Journal
from .layout import Orders, Role

DIED: Final = 3
WORK: Final[dict[Role, tuple[str, str]]] = {  # module and function; a coroutine function for those of asyncio
    "source": ("by_librdkafka", "source"),
    "librdkafka_transform": ("by_librdkafka", "transform"),
    "aiokafka_transform": ("by_aiokafka", "transform"),
    "sdk_transform": ("by_sdk", "transform"),
    "librdkafka_bank": ("by_librdkafka", "bank"),
    "aiokafka_bank": ("by_aiokafka", "bank"),
    "sdk_bank": ("by_sdk", "bank"),
    "librdkafka_reader": ("by_librdkafka", "read"),
}


def main() -> int:
    orders = Orders(**json.loads(sys.argv[1]))
    journal = Journal(orders.journal)
    over = Event()

    def end(_: int, frame: FrameType | None) -> None:
        over.set()

    signal.signal(signal.SIGTERM, end)
    try:
        run(orders, journal, over)
    except Exception as error:  # whatever a client library raises ends its process, as in an application
        journal.note("error", error=f"{type(error).__name__}: {error}"[:500])
        return DIED
    return 0


def run(orders: Orders, journal: Journal, over: Event) -> None:
    """Import only what the role needs: all client libraries together take seconds on a busy machine."""
    library, work = WORK[orders.role]
    done = getattr(import_module(f".{library}", __package__), work)(orders, journal, over.is_set)
    if done is not None:
        asyncio.run(done)


if __name__ == "__main__":
    sys.exit(main())
