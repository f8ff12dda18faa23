"""A decision of the controller: records, and the response once they are committed. Nothing here decides."""

from collections.abc import Callable
from dataclasses import dataclass

from .image import MetadataImage
from .records import Record
from .requests import Done

Respond = Callable[[int, MetadataImage], object]
"""Makes the response from the quorum index of the (last) command and the committed image; may raise a BarnabasError."""


def done(index: int, image: MetadataImage) -> object:
    return Done(offset=index)


def answer(value: object) -> Respond:
    """The same response for any index of the records."""
    return lambda index, image: value


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerResult:
    """A decision. Even without records, its response waits for the commit of all earlier records: it may rely on them. But a
    controller that is deposed, and does not know it yet, also gives it, unless it `must_confirm`."""

    records: tuple[Record, ...] = ()
    respond: Respond = done
    must_confirm: bool = False  # the response waits for the commit of a record that is appended after the request
    atomic: bool = True  # False: may be cut into several commands, each of which leaves a valid state
