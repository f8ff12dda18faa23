"""What lasts longer than one answer: server-sent events, and records that a caller sends one after the other. For `app` alone."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from barnabas.log.vocabulary.errors import BarnabasError

from .frame.call import Call, DocumentsHandler, Json
from .frame.documents import Documents
from .frame.errors import ApiError, bad_request, refusal
from .frame.feed import EVENTS, Follower

WRITE_TIMEOUT_S: Final = 10.0  # for the reader of a stream to take an event or an answer
DOCUMENT_TIMEOUT_S: Final = 60.0  # until the next record of a caller is complete; an idle caller begins a new request
DOCUMENTS_AT_ONCE: Final = 1_000  # that are written together: what has arrived by then
PIECE_BYTES: Final = 65_536  # of a body that are looked at in one turn of the loop
CROSS_ORIGIN: Final = web.RequestKey("cross_origin", dict)  # the headers that let an admitted page read the answer
_EVENT_STREAM: Final = {
    "Content-Type": EVENTS,
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}

Parse = Callable[[bytes], Json]


async def events(request: web.Request, following: Follower, check: Callable[[], Awaitable[None]]) -> web.StreamResponse:
    """Server-sent events, until they end or the reader is gone. A reader that takes nothing for WRITE_TIMEOUT_S is dropped.
    `check` raises an error as soon as the reader may not read any more. An empty event only asks whether the reader is there."""
    response = web.StreamResponse(headers=_EVENT_STREAM)
    async with aclosing(following):
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        try:
            async for event in following:
                if request.transport is None or request.transport.is_closing():
                    break
                await check()
                if event:
                    await _write(response, event.encode())
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except (ConnectionError, BarnabasError):
            pass  # the reader has closed its page, or lost its permission: the next request is refused with the reason
    return response


async def documents(
    request: web.Request,
    call: Call,
    handler: DocumentsHandler,
    parse: Parse,
    check: Callable[[], Awaitable[None]],
    max_bytes: int,
) -> web.StreamResponse:
    """Answer each JSON object of the body with a line of its own, in their order, as soon as it is written. `parse` and `check`
    raise errors. An error that has no record of its own is the last line, and the connection is closed after it."""
    answers = _Answers(request)
    try:
        async for found in _arriving(request, Documents(max_bytes)):
            await check()
            outcomes = await handler(call, [_parsed(parse, data) for data in found])
            await answers.write([_line(outcome) for outcome in outcomes])
    except (ApiError, BarnabasError) as error:
        if not answers.has_begun:
            raise
        told = refusal(error) if isinstance(error, BarnabasError) else error
        await answers.write([_line(told)], is_last=True)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    except ConnectionError:
        pass  # the caller is gone
    return await answers.end()


def is_chunked(request: web.Request) -> bool:
    """Its length is not known in advance."""
    return request.headers.get("Transfer-Encoding", "").lower() == "chunked"


class _Answers:
    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response: web.StreamResponse | None = None

    @property
    def has_begun(self) -> bool:
        return self._response is not None

    async def write(self, lines: Sequence[bytes], *, is_last: bool = False) -> None:
        if self._response is None:
            headers = {"Content-Type": "application/json", **self._request.get(CROSS_ORIGIN, {})}
            self._response = web.StreamResponse(headers=headers)
            await self._response.prepare(self._request)
        if is_last:
            self._response.force_close()
        await _write(self._response, b"".join(lines))

    async def end(self) -> web.StreamResponse:
        if self._response is None:
            raise bad_request("the body has no record")
        return self._response


async def _write(response: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(WRITE_TIMEOUT_S):
        await response.write(data)


async def _arriving(request: web.Request, waiting: Documents) -> AsyncIterator[list[bytes]]:
    """The objects of the body, those together that arrived together. Raises ApiError."""
    body = _Body(request)
    while data := await body.piece():
        waiting.feed(data)
        found: list[bytes] = []
        broken: ApiError | None = None
        try:
            while (one := waiting.next()) is not None:
                found.append(one)
        except ApiError as error:
            broken = error
        for start in range(0, len(found), DOCUMENTS_AT_ONCE):
            yield found[start : start + DOCUMENTS_AT_ONCE]
        if broken is not None:
            raise broken
        if found:
            body.is_patient_again()
        await asyncio.sleep(0)
    if not waiting.is_complete:
        raise bad_request("the body ends within a record")


class _Body:
    """The pieces of a body. One with a length is there already: it was looked at."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._position = 0  # of a body with a length
        self._deadline_s = 0.0
        self.is_patient_again()

    def is_patient_again(self) -> None:
        self._deadline_s = time.monotonic() + DOCUMENT_TIMEOUT_S

    async def piece(self) -> bytes:
        """Empty at the end. Raises ApiError."""
        if not is_chunked(self._request):
            start, self._position = self._position, self._position + PIECE_BYTES
            return (await self._request.read())[start : self._position]
        try:
            async with asyncio.timeout(max(0.0, self._deadline_s - time.monotonic())):
                return await self._request.content.readany()
        except TimeoutError:
            words = f"no complete record for {DOCUMENT_TIMEOUT_S:.0f} s: send them with a new request"
            raise ApiError(HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_TIMEOUT, words) from None


def _parsed(parse: Parse, data: bytes) -> Json | ApiError:
    try:
        return parse(data)
    except ApiError as error:
        return error


def _line(outcome: Json | ApiError) -> bytes:
    told: Any = outcome
    if isinstance(outcome, ApiError):
        told = {"error_code": outcome.error_code, "message": str(outcome)}
    return json.dumps(told, separators=(",", ":")).encode() + b"\n"
