"""Changes of state in the broker's log: one line for each, few lines for many.

The end of a broker with 1,000 leaderships causes a thousand elections in one publication; an unstable cluster causes as many one
by one. Each publication logs a few lines and a sum for each kind of change, and the rate of all lines is limited.
`barnabas topic describe` has the rest.
"""

import itertools
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.net.base.clock import Clock
from barnabas.net.wire.protocol.event_messages import EventKind

from .state_changes import Change, Tally, controller_change, decisions, own_roles

SHOWN_PER_EVENT: Final = 10  # of one kind in one publication: enough to see what happened
BURST_LINES: Final = 500  # a topic, or a rolling restart of a small cluster, is logged completely
LINES_PER_S: Final = 10  # after a burst: 36,000 lines an hour, a few megabytes


class StateLog:
    """A subscriber of the metadata."""

    def __init__(self, node_id: int, clock: Clock) -> None:
        self._node_id = node_id
        self._clock = clock
        self._image = MetadataImage()
        self._lines_left = float(BURST_LINES)  # 0 to BURST_LINES
        self._filled_at_ms = clock.now_ms()
        self._suppressed = 0  # lines since the last one that was written

    def published(self, publication: MetadataPublication) -> None:
        old, new = self._image, publication.image
        self._image = new
        if publication.keeps_image:
            return
        for change in controller_change(old, new):
            self._write(change)
        if publication.restored:
            counts = {"offset": new.offset, "topics": len(new.topics), "brokers": len(new.brokers)}
            fields = {key: str(value) for key, value in counts.items()}
            self._write(Change(domain="barnabas.metadata", kind=EventKind.METADATA, event="restored", fields=fields))
            return  # the first image: everything is new, but there was no change
        tally = Tally(SHOWN_PER_EVENT, by_name=True)
        if publication.is_active_controller:
            self._write_some(decisions(old, new, publication.changes, tally), tally)
        self._write_some(own_roles(self._node_id, old, new, publication.changes, tally), tally)

    def _write_some(self, changes: Iterable[Change], tally: Tally) -> None:
        by_event = sorted(changes, key=_kind)  # stable: within a kind, the order of the metadata
        for _, group in itertools.groupby(by_event, key=_kind):
            lines = list(group)
            for change in lines[:SHOWN_PER_EVENT]:
                self._write(change)
            total = len(lines) + tally.left_out(lines[0].event)
            if total > SHOWN_PER_EVENT:
                fields = {"total": str(total), "not_shown": str(total - SHOWN_PER_EVENT)}
                self._write(replace(lines[0], fields=fields))

    def _write(self, change: Change) -> None:
        now_ms = self._clock.now_ms()
        gained = (now_ms - self._filled_at_ms) * LINES_PER_S / 1000
        self._lines_left, self._filled_at_ms = min(BURST_LINES, self._lines_left + gained), now_ms
        if self._lines_left < 1:
            self._suppressed += 1
            return
        self._lines_left -= 1
        if self._suppressed:
            text = "event=suppressed lines=%d: more than %d changes a second"
            logging.getLogger(change.domain).warning(text, self._suppressed, LINES_PER_S)
            self._suppressed = 0
        logging.getLogger(change.domain).log(change.level, "event=%s %s", change.event, change.text)


def _kind(change: Change) -> tuple[str, str]:
    return change.domain, change.event
