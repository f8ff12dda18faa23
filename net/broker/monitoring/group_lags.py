"""Looks at the lag of the groups that this broker coordinates, and remembers it for an hour.

A broker without groups does nothing. A look costs one description and one fetch of offsets per group, both within the process,
one request to each leader for all groups together, and one to the broker that keeps a copy.
"""

import asyncio
import logging
from collections.abc import Container
from typing import TYPE_CHECKING, Final

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.share.messages import SHARE_PROTOCOL
from barnabas.net.wire.protocol.group_responses import LAG_STEP_MS, ListGroupsResponse
from barnabas.net.wire.protocol.requests import ListGroupsRequest

from .lag_copies import LagCopies
from .lag_history import GroupLags, GroupReading

if TYPE_CHECKING:
    from ...admin.frame.lags import LaggingGroup
    from ..broker import Broker

logger = logging.getLogger("barnabas.broker")

MAX_PARTITIONS: Final = 10_000  # of all groups of one look; groups beyond them have no point
LOOK_TIMEOUT_S: Final = 20.0  # less than a step: leaders that stand still must not delay the next look


async def remember_lags(broker: "Broker", lags: GroupLags, copies: LagCopies) -> None:
    """Until cancelled."""
    while True:
        await asyncio.sleep(LAG_STEP_MS / 1000)
        lags.forget_old(broker.ports.clock.wall_ms())
        try:
            if len(lags) or any(slot.list_groups() for slot in broker.groups.slots()):
                async with asyncio.timeout(LOOK_TIMEOUT_S):
                    await look(broker, lags, copies)
        except (BarnabasError, TimeoutError) as error:
            logger.debug("no lags of groups error=%s", error)
        except Exception:  # the other figures of the broker go on
            logger.exception("event=no_lags_of_groups, by a bug; report it")


async def look(broker: "Broker", lags: GroupLags, copies: LagCopies) -> None:
    """One point for each group. Raises BarnabasError."""
    # Later: they load the client, which a broker without groups does not need.
    from ...admin.frame.call import HERE_TIMEOUT_MS
    from ...admin.frame.lags import lags_of_groups
    from ...client.positions.offset_lookup import unread_now
    from ..admin_backend import BrokerBackend

    backend = BrokerBackend(broker)
    listed: ListGroupsResponse = await backend.here.call(ListGroupsRequest(), timeout_ms=HERE_TIMEOUT_MS)
    here = [group.group_id for group in listed.groups if group.protocol != SHARE_PROTOCOL]
    names = lags.chosen(here)
    copies.coordinates(here)
    await copies.adopt(names)
    async with backend.admin() as admin:
        found = await lags_of_groups(
            lambda request: backend.here.call(request, timeout_ms=HERE_TIMEOUT_MS),
            lambda places: unread_now(admin.client, places),
            names,
            max_partitions=MAX_PARTITIONS,
        )
    topics = broker.metadata.image.topics
    readings = {item.group.group_id: reading_of(item, topics) for item in found if item.lags or item.unanswered}
    lags.note(broker.ports.clock.wall_ms(), readings)
    await copies.hand_on()


def reading_of(found: "LaggingGroup", existing: Container[str]) -> GroupReading:
    """`existing`: topics: those that are gone have no lag, and a sum without a partition that did not answer would be false."""
    places = {item.place.topic for item in found.lags}
    missing = [place for place in found.unanswered if place.topic in existing]
    topics = tuple(sorted(places | {place.topic for place in missing}))
    if missing:
        return GroupReading(unread=-1, lag_ms=-1, topics=topics)
    times = [item.lag.lag_ms for item in found.lags]
    return GroupReading(
        unread=sum(item.lag.lag for item in found.lags),
        lag_ms=-1 if -1 in times else max(times, default=0),
        topics=topics,
    )
