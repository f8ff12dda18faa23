"""Requests that fail, and answers that are lost: a layer between a broker's dispatcher and its handlers."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from barnabas.log.vocabulary.errors import error_for

from ...server.admission import is_reserved_for
from ...server.dispatcher import Handler, HasTasks, Reply, RequestContext
from .orders import UNLIMITED, RequestFault


class RequestFaults:
    """The faults of requests that hold now for one broker."""

    def __init__(self) -> None:
        self.active: tuple[RequestFault, ...] = ()

    def wrap(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Handlers of the same APIs that look at the faults first."""
        return {int(api): _Interposed(self, int(api), handler) for api, handler in handlers.items()}

    def take(self, api: int, client_id: str) -> RequestFault | None:
        """The fault that hits this request, if any; one of its hits is used up then."""
        for fault in self.active:
            if fault.api != api or (fault.client_id is not None and fault.client_id != client_id):
                continue
            if not is_reserved_for(client_id) and _take_token(fault.tokens):
                return fault
        return None


def _take_token(folder: str) -> bool:
    """All brokers of a cluster count together: who removes the file has the hit."""
    if folder == UNLIMITED:
        return True
    try:
        names = os.listdir(folder)
    except OSError:
        return False  # the fault has ended meanwhile
    for name in names:
        try:
            os.unlink(os.path.join(folder, name))
        except OSError:
            continue
        return True
    return False


class _Interposed:
    def __init__(self, faults: RequestFaults, api: int, handler: Handler) -> None:
        self._faults = faults
        self._api = api
        self._handler = handler

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        handler: object = self._handler
        return list(handler.tasks) if isinstance(handler, HasTasks) else []

    def __call__(self, request: Any, context: RequestContext, reply: Reply) -> None:
        fault = self._faults.take(self._api, context.client_id) if self._faults.active else None
        if fault is None:
            self._handler(request, context, reply)
        elif fault.error is not None:
            raise error_for(fault.error, f"the request failed with error {fault.error} as its test asked")
        else:
            self._handler(request, context, lambda _: context.hang_up())
