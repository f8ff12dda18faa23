"""`endpoints.json` in a data folder: the addresses on which a running broker listens, for the process that starts it.

A broker writes the file when all its ports are bound, and removes it when it stops. The file has the real port where port 0 was
configured. The process id tells a reader whether the file belongs to the running broker.
"""

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

FILE_NAME: Final = "endpoints.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Addresses are `host:port`."""

    node_id: int
    pid: int
    listeners: dict[str, str]
    quorum: str | None = None
    admin: str | None = None


def write_endpoints(data_folder: str, endpoints: Endpoints) -> None:
    """Replace the file atomically: a reader sees the old file or the new one, never a part of it."""
    target = Path(data_folder, FILE_NAME)
    temporary = target.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(asdict(endpoints)) + "\n", encoding="utf-8")
    temporary.replace(target)


def read_endpoints(data_folder: str) -> Endpoints | None:
    """Return None if the file does not exist or cannot be read: the broker has not written it yet."""
    try:
        found = Endpoints(**json.loads(Path(data_folder, FILE_NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return found if _is_sound(found) else None


def _is_sound(found: Endpoints) -> bool:
    addresses = (found.quorum, found.admin)
    return (
        type(found.node_id) is int
        and type(found.pid) is int
        and isinstance(found.listeners, dict)
        and all(isinstance(address, str) for address in found.listeners.values())
        and all(address is None or isinstance(address, str) for address in addresses)
    )


def remove_endpoints(data_folder: str) -> None:
    """Remove the file when the broker stops."""
    with contextlib.suppress(OSError):
        Path(data_folder, FILE_NAME).unlink()
