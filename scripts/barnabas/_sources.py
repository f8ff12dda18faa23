"""`BARNABAS_PURE=1`: modules that are installed compiled run from their source, which is installed beside them."""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from types import ModuleType


class SourceFinder:
    """Goes first in `sys.meta_path`."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith("barnabas."):
            return None
        found = PathFinder.find_spec(name, path)
        if found is None or found.origin is None or not isinstance(found.loader, ExtensionFileLoader):
            return None
        source = os.path.join(os.path.dirname(found.origin), f"{name.rpartition('.')[2]}.py")
        return spec_from_file_location(name, source) if os.path.exists(source) else None


if os.environ.get("BARNABAS_PURE", "0") not in ("", "0"):
    sys.meta_path.insert(0, SourceFinder())
