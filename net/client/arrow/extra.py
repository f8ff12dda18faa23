"""`require`: an optional library, or an error that names the extra that installs it."""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..connection.errors import MissingExtraError

if TYPE_CHECKING:
    from .tables import BatchBuilder


def batch_builder(feature: str, columns: Sequence[str] | None = None) -> "BatchBuilder":
    """Raises MissingExtraError without pyarrow."""
    require("pyarrow", extra="arrow", feature=feature)
    from .tables import BatchBuilder

    return BatchBuilder(columns)


def require(library: str, *, extra: str, feature: str) -> Any:
    """Import a library of an extra. Raises MissingExtraError."""
    try:
        return import_module(library)
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] != library.split(".")[0]:
            raise  # The library is there; something that it needs is not.
        raise MissingExtraError(
            f"{feature} needs {library.split('.')[0]}, which is not installed: pip install 'barnabas[{extra}]'"
        ) from error
